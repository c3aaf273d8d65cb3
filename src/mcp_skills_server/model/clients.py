"""Known MCP clients, by the name in their handshake, and their differences in showing results.

Measured with the real programs (`make hosts`). An unknown client gets defaults that suit most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple, TypeAlias

Shows: TypeAlias = Literal["text", "structure", "either"]
Where: TypeAlias = Literal["both", "instructions", "tools"]

MAX_CATALOG: Final = 10_000
"""Maximum length in characters of a list of skills, for clients that truncate nothing."""


class NativeLimits(NamedTuple):
    """The part of `skills/list` that a host reads: the most skills, pages, and bytes of entries."""

    skills: int
    pages: int
    size: int


@dataclass(frozen=True, slots=True)
class Client:
    """Behaviour of a client that matters to the server.

    Attributes:
        shows: the part of a tool's result that its model sees: the text, the structure, or either,
            as with libraries under several frameworks.
        list_in: the place for the list of skills: the instructions, the description of the loading
            tool, or both if it is unknown which of them the model sees.
        catalog_characters: maximum length of the instructions, and of that description.
        searches_tools: it defers tools and searches their descriptions, which then include words of
            the skills.
        result_characters: maximum length of a result that reaches the model untruncated.
        makes_templates_of_prompts: it runs `` !`commands` ``, reads `@files` and replaces `$1` in
            the text of a prompt.
        keeps_lost_session: it repeats the id of a lost legacy session after HTTP 404, so that a
            restart of the server would end its work.
        native: the part of `skills/list` whose skills it shows by itself, if it declares the
            extension; None for inspectors and frameworks, which declare it and show nothing.
    """

    shows: Shows = "text"
    list_in: Where = "both"
    catalog_characters: int = 4_000
    searches_tools: bool = False
    result_characters: int = 38_000
    makes_templates_of_prompts: bool = False
    keeps_lost_session: bool = False
    native: NativeLimits | None = None


_AS_JSON: Final = 34_000
"""Result size for clients that show JSON, whose escapes add up to 12 % to real instructions."""
_in_tools = partial(Client, list_in="tools", catalog_characters=MAX_CATALOG)
_TABLE: Final = {
    "claude-code": Client(
        shows="structure",
        list_in="instructions",
        searches_tools=True,
        result_characters=_AS_JSON,
        # The limits in its program, version 2.1.332. It drops an entry that exceeds them, and all
        # later ones. It counts the bytes of entries as JSON without blanks.
        native=NativeLimits(skills=100, pages=20, size=512 << 10),
    ),
    # Shows only the first line of the instructions; with tool search, all of them for each tool.
    "codex": _in_tools(shows="structure", searches_tools=True, result_characters=_AS_JSON),
    # the Python SDK's default name: pydantic-ai shows structure, LangChain text
    "mcp": Client(shows="either"),
    # Refreshes tools when they change, instructions never.
    "opencode": _in_tools(makes_templates_of_prompts=True),
    "kilo": _in_tools(makes_templates_of_prompts=True),
    "cline": Client(result_characters=7_500),
    # Cline's own programs show 8,000 characters of the result as JSON: escapes and structure count.
    "@cline/": Client(result_characters=6_500),
    # Its window shows no instructions.
    "gemini-cli": _in_tools(keeps_lost_session=True),
    "qwen": Client(result_characters=7_500, keeps_lost_session=True),
    "copilot": Client(result_characters=7_500),
    "github-copilot": Client(result_characters=7_500),
}
"""Clients by the lower-case prefix of their names; `mcp` must match in full."""
UNKNOWN: Final = Client()
"""A client that is not in the table, or gives no name."""
WIDEST: Final = Client(catalog_characters=MAX_CATALOG, searches_tools=True)
"""A client that gets the longest texts that any client gets by default."""


def client_of(name: str | None) -> Client:
    """Return the known behaviour of a client by its name; None for no name."""
    lower = (name or "").lower()
    for begin, known in _TABLE.items():
        if lower == begin or (begin != "mcp" and lower.startswith(begin)):
            return known
    return UNKNOWN
