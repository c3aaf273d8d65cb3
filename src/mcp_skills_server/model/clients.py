"""Known MCP clients by the name in their handshake, and what differs in how each shows results to
its model.

Measured with the real programs (`make hosts`). A client that is not in the table gets what suits
most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Shows: TypeAlias = Literal["text", "structure", "either"]
Where: TypeAlias = Literal["both", "instructions", "tools"]

MOST_CATALOG: Final = 10_000
"""Characters of a list of skills for clients that cut nothing."""


@dataclass(frozen=True, slots=True)
class Client:
    """The differences between clients that matter here.

    Attributes:
        shows: which part of a tool's result its model sees: the text, the structure, or either of
            them, as with libraries that several frameworks are built on.
        list_in: where the list of skills stands: in the instructions, in the description of the
            loading tool, or both where it is not known which of them the model is shown.
        catalog_characters: how long the instructions, and that description, may be.
        searches_tools: whether it defers tools and searches their descriptions, which then hold
            words of the skills.
        result_characters: the longest result that reaches the model whole.
        makes_templates_of_prompts: whether it runs `` !`commands` ``, reads `@files` and replaces
            `$1` in the text of a prompt.
        keeps_lost_session: whether it sends the id of a legacy session on and on after HTTP 404, so
            that a restart of the server would end its work.
        shows_skills: whether it shows the skills of `skills/list` by itself, once it declares the
            extension. Inspectors and frameworks declare it and show nothing.
    """

    shows: Shows = "text"
    list_in: Where = "both"
    catalog_characters: int = 4_000
    searches_tools: bool = False
    result_characters: int = 38_000
    makes_templates_of_prompts: bool = False
    keeps_lost_session: bool = False
    shows_skills: bool = False


_TABLE: Final = {
    "claude-code": Client(
        shows="structure", shows_skills=True, list_in="instructions", searches_tools=True
    ),
    # Shows the first line of the instructions alone; once tools are searched, all of them with each
    # tool.
    "codex": Client(
        shows="structure", list_in="tools", catalog_characters=MOST_CATALOG, searches_tools=True
    ),
    # the Python SDK's own name: pydantic-ai shows structure, LangChain text
    "mcp": Client(shows="either"),
    # Lists tools again when they change, and instructions never.
    "opencode": Client(
        list_in="tools", catalog_characters=MOST_CATALOG, makes_templates_of_prompts=True
    ),
    "kilo": Client(
        list_in="tools", catalog_characters=MOST_CATALOG, makes_templates_of_prompts=True
    ),
    "cline": Client(result_characters=7_500),
    # Cline's own programs. The model is shown 8,000 characters of the result as JSON: escapes and
    # the structure count.
    "@cline/": Client(result_characters=6_500),
    # Its window shows no instructions.
    "gemini-cli": Client(list_in="tools", catalog_characters=MOST_CATALOG, keeps_lost_session=True),
    "qwen": Client(result_characters=7_500, keeps_lost_session=True),
    "copilot": Client(result_characters=7_500),
    "github-copilot": Client(result_characters=7_500),
}
"""By what their names begin with, in small letters; `mcp` is a whole name."""
UNKNOWN: Final = Client()
"""A client that is not in the table, or does not say what it is."""
WIDEST: Final = Client(catalog_characters=MOST_CATALOG, searches_tools=True)
"""A client that gets the longest texts that any client gets unasked."""


def client_of(name: str | None) -> Client:
    """Return what is known of the client that calls itself so; None for one that does not say."""
    lower = ""
    if name is not None:
        lower = name.lower()
    known = (
        known
        for begin, known in _TABLE.items()
        if lower == begin or (begin != "mcp" and lower.startswith(begin))
    )
    return next(known, UNKNOWN)
