"""Known MCP clients by the name in their handshake, and what differs in how each shows results to its model.

Measured with the real programs (`make hosts`). A client that is not in the table gets what suits most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Shows: TypeAlias = Literal["text", "structure", "either"]


@dataclass(frozen=True, slots=True)
class Client:
    """What differs between clients.

    Attributes:
        shows: which part of a tool's result its model sees: the text, the structure, or either of them, as with
            libraries that several frameworks are built on.
        result_characters: the longest result that reaches the model whole.
        makes_templates_of_prompts: whether it runs `` !`commands` ``, reads `@files` and replaces `$1` in the text of a
            prompt.
        keeps_lost_session: whether it sends the id of a legacy session on and on after HTTP 404, so that a restart of
            the server would end its work.
        shows_skills: whether it shows the skills of `skills/list` by itself, once it declares the extension. Inspectors
            and frameworks declare it and show nothing.
    """

    shows: Shows = "text"
    result_characters: int = 38_000
    makes_templates_of_prompts: bool = False
    keeps_lost_session: bool = False
    shows_skills: bool = False


_TABLE: Final = {
    "claude-code": Client(shows="structure", shows_skills=True),
    "codex": Client(shows="structure"),
    "mcp": Client(shows="either"),  # the Python SDK's own name: pydantic-ai shows structure, LangChain text
    "opencode": Client(makes_templates_of_prompts=True),
    "kilo": Client(makes_templates_of_prompts=True),
    "cline": Client(result_characters=7_500),
    "gemini-cli": Client(keeps_lost_session=True),
    "qwen": Client(result_characters=7_500, keeps_lost_session=True),
    "copilot": Client(result_characters=7_500),
    "github-copilot": Client(result_characters=7_500),
}
"""By what their names begin with, in small letters; `mcp` is a whole name."""
_OTHER: Final = Client()


def client_of(name: str | None) -> Client:
    """Return what is known of the client that calls itself so; None for one that does not say."""
    lower = "" if name is None else name.lower()
    known = (known for begin, known in _TABLE.items() if lower == begin or (begin != "mcp" and lower.startswith(begin)))
    return next(known, _OTHER)
