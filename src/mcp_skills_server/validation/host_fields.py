"""Fields outside of the specification that hosts honour in a SKILL.md."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Shape: TypeAlias = Literal["text", "flag", "text or list", "mapping"]


class HostField(NamedTuple):
    """A field that hosts honour: its shape, the hosts, and its effect over MCP ("" for none)."""

    shape: Shape
    hosts: str
    over_mcp: str = ""


_CLAUDE: Final = "Claude Code"
_SEVERAL: Final = "Claude Code, VS Code, Copilot CLI"
HOST_FIELDS: Final = {
    "argument-hint": HostField("text", _SEVERAL, "the title of the prompt's argument"),
    "disable-model-invocation": HostField("flag", _SEVERAL, "the model does not see the skill"),
    "user-invocable": HostField("flag", _SEVERAL, "false: no prompt"),
    "when_to_use": HostField("text", _CLAUDE),
    "model": HostField("text", _CLAUDE),
    "effort": HostField("text", _CLAUDE),
    "context": HostField("text", _CLAUDE),
    "agent": HostField("text", _CLAUDE),
    "shell": HostField("text", _CLAUDE),
    "paths": HostField("text or list", _CLAUDE),
    "disallowed-tools": HostField("text or list", _CLAUDE),
    "hooks": HostField("mapping", _CLAUDE),
}
"""Each by its name; docs/writing-skills.md shows the table."""
GRANTED: Final = "a host honours it only for a skill that its user granted"
"""The effect of `allowed-tools` over MCP."""
