"""Which client a name in a handshake is, and what is different for each."""

from __future__ import annotations

from mcp_skills_server.model.clients import UNKNOWN, Client, client_of
from tables import each_row

IN_TOOLS = {"list_in": "tools", "catalog_characters": 10_000}
STRUCTURE = {"shows": "structure", "searches_tools": True}


@each_row(("name", "differences"), [
    *((each, {}) for each in (None, "", "somebody-else", "my-codex", "mcp-inspector")),
    ("claude-code", {**STRUCTURE, "shows_skills": True, "list_in": "instructions"}),
    ("codex-mcp-client", {**IN_TOOLS, **STRUCTURE}), ("mcp", {"shows": "either"}),
    ("opencode", {**IN_TOOLS, "makes_templates_of_prompts": True}),
    ("kilo", {**IN_TOOLS, "makes_templates_of_prompts": True}), ("Cline", {"result_characters": 7_500}),
    ("@cline/core", {"result_characters": 6_500}), ("gemini-cli-mcp-client", {**IN_TOOLS, "keeps_lost_session": True}),
    ("qwen-code", {"result_characters": 7_500, "keeps_lost_session": True}),
    ("copilot", {"result_characters": 7_500}), ("GitHub-Copilot-developer", {"result_characters": 7_500}),
])  # fmt: skip
def test_a_client_is_known_by_what_its_name_begins_with(name: str | None, differences: dict[str, object]) -> None:
    assert client_of(name) == Client(**differences)  # type: ignore[arg-type]


def test_a_client_that_is_not_known_is_shown_what_suits_most() -> None:
    assert Client("text", "both", 4_000, False, 38_000, False, False, False) == UNKNOWN
