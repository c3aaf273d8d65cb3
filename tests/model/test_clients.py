"""Known clients, by the name in their handshake."""

from __future__ import annotations

from mcp_skills_server.model.clients import UNKNOWN, Client, NativeLimits, client_of
from tables import each_row

IN_TOOLS = {"list_in": "tools", "catalog_characters": 10_000}
STRUCTURE = {"shows": "structure", "searches_tools": True, "result_characters": 34_000}


# The fields in which a client differs from an unknown one.
@each_row(("name", "differences"), [
    *((each, {}) for each in (None, "", "other-client", "my-codex", "mcp-inspector")),
    ("claude-code", {**STRUCTURE, "native": NativeLimits(100, 20, 524_288), "list_in": "instructions"}),
    ("codex-mcp-client", {**IN_TOOLS, **STRUCTURE}), ("mcp", {"shows": "either"}),
    ("opencode", {**IN_TOOLS, "makes_templates_of_prompts": True}),
    ("kilo", {**IN_TOOLS, "makes_templates_of_prompts": True}), ("Cline", {"result_characters": 7_500}),
    ("@cline/core", {"result_characters": 6_500}), ("gemini-cli-mcp-client", {**IN_TOOLS, "keeps_lost_session": True}),
    ("qwen-code", {"result_characters": 7_500, "keeps_lost_session": True}),
    ("copilot", {"result_characters": 7_500}), ("GitHub-Copilot-developer", {"result_characters": 7_500}),
])  # fmt: skip
def test_client_is_recognized_by_the_prefix_of_its_name(name: str | None, differences: dict[str, object]) -> None:
    assert client_of(name) == Client(**differences)  # type: ignore[arg-type]


def test_unknown_client_has_conservative_defaults() -> None:
    assert Client("text", "both", 4_000, False, 38_000, False, False, None) == UNKNOWN
