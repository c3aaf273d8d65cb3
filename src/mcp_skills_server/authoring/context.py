"""Model context: the text that a host shows its model, unasked and when it loads a skill.

The facts about hosts are in `hosts/table.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from mcp_skills_server.dialects import runtime as dialect
from mcp_skills_server.dialects.runtime import Offer, ToolResult
from mcp_skills_server.hosts import table
from mcp_skills_server.hosts.table import HostContext
from mcp_skills_server.model import Skill
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.runtime.briefing import name_of
from mcp_skills_server.runtime.offering import Offering

_CUT_MARK: Final = "… [truncated]"
_FIRST_LINE: Final = 247
"""The characters that Codex shows of a longer first line, as measured."""
_NAME: Final = re.compile(r"[^\s,;:<>\"']+")


CONTEXTS: Final = {
    "generic": HostContext(),
    **{name: host.context for name, host in table.HOSTS.items()},
}
"""What hosts show, by the value of `--host`."""


class ShownText(NamedTuple):
    """A text that a model is shown: the part that it sees, and the number of characters cut off."""

    title: str
    text: str
    cut_characters: int


Part: TypeAlias = Literal["whole", "shortened", "absent"]
"""The part of a skill that texts show: its whole description, at least its name, or nothing."""


def shown_unasked(offering: Offering, host: HostContext) -> list[ShownText]:
    """Return the texts that the host shows its model unasked."""
    client = client_of(host.client)
    briefing = offering.briefing
    texts: list[ShownText] = []
    instructions = briefing.instructions(client=client)
    if host.instructions != "none" and instructions:
        shown = instructions
        if host.instructions == "first line":
            shown = _first_line(instructions)
        texts.append(_text("Instructions of the server", shown, instructions, host.text_characters))
    tools = briefing.tools(handles=True, client=client)
    if host.tools == "all":
        for tool in tools:
            fields = {key: tool[key] for key in ("name", "description", "inputSchema")}
            text = json.dumps(fields, ensure_ascii=False)
            texts.append(_text(f"Tool {tool['name']}", text, text, None))  # no host cuts these
    elif host.tools == "names" and tools:
        names = "\n".join(str(tool["name"]) for tool in tools)
        texts.append(_text("Names of the tools", names, names, None))
    return texts


async def shown_on_load(offering: Offering, host: HostContext, skill: Skill) -> ShownText:
    """Return the text that the host shows its model when it loads a skill with `skills_load`."""
    from mcp_skills_server.runtime.session import Session

    name = name_of(skill, offering.skill_set.snapshot)
    async with Session(offering, hosted=False) as session:
        result = await session.call(dialect.LOAD, {"names": [name]}, client=host.client or None)
    return shown_result(f"Result of {dialect.LOAD} for {name}", result, host)


def shown_result(title: str, result: ToolResult, host: HostContext) -> ShownText:
    """Return the text that the host shows its model of the result of a tool."""
    text = "\n".join(str(block.get("text", "")) for block in result["content"])
    if client_of(host.client).shows == "structure" and "structuredContent" in result:
        text = json.dumps(result["structuredContent"], ensure_ascii=False)
    return _text(title, text, text, host.result_characters)


def _first_line(text: str) -> str:
    line = text.partition("\n")[0]
    if len(line) > _FIRST_LINE:
        return f"{line[:_FIRST_LINE]}..."
    return line


def _text(title: str, shown: str, sent: str, most: int | None) -> ShownText:
    """Cut the part `shown` of a text that was `sent` at the host's limit."""
    left_out = max(0, len(sent) - len(shown))
    if most is not None and len(shown) > most:
        left_out, shown = len(sent) - most, shown[:most] + _CUT_MARK
    return ShownText(title, shown, left_out)


def parts_shown(
    texts: Iterable[ShownText], offers: Iterable[Offer]
) -> Mapping[Part, Sequence[Offer]]:
    """Return the skills by the part that these texts show of them."""
    # Texts of tools are JSON, whose escapes would hide a description.
    flat = " ".join(
        "\n".join(text.text for text in texts).replace("\\n", " ").replace('\\"', '"').split()
    )
    words = set(_NAME.findall(flat))
    out: dict[Part, list[Offer]] = {"whole": [], "shortened": [], "absent": []}
    for offer in offers:
        part: Part = "absent"
        if offer.name in words:
            is_whole = " ".join(offer.description.split()) in flat
            part = "whole" if is_whole else "shortened"
        out[part].append(offer)
    return out
