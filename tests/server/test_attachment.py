"""What a handshake declares, asked over real stdio in both eras."""

from __future__ import annotations

from typing import Any

import pytest

from wire import EXTENSION, FIXTURES, META, Era, Wire, serving


@pytest.mark.requirement("S76-1", "S76-3", "S40-1", "S40-2", "S40-4", "MCP-29", "MCP-30", "X-9")
def test_both_handshakes_declare_skills_the_extension_and_resources(era: Era) -> None:
    with serving(FIXTURES, era=era, opened=False) as wire:
        capabilities = wire.open()["capabilities"]
        assert capabilities["skills"] == {"listChanged": True}
        assert capabilities["extensions"] == {EXTENSION: {"directoryRead": True}}
        assert capabilities["resources"] == {"subscribe": True, "listChanged": True}
        assert wire.request("skills/list")["skills"]


@pytest.mark.requirement("X-9")
@pytest.mark.parametrize(("dialect", "skills", "extension"), [("sep-2076", True, False), ("sep-2640", False, True)])
def test_a_pinned_dialect_declares_itself_alone(era: Era, dialect: str, skills: bool, extension: bool) -> None:
    with serving(FIXTURES, "--dialect", dialect, era=era, opened=False) as wire:
        capabilities = wire.open()["capabilities"]
        assert ("skills" in capabilities) is skills
        assert (EXTENSION in capabilities.get("extensions", {})) is extension


@pytest.mark.requirement("S40C-1")
def test_the_extension_is_declared_inline_without_envelope_keys(wire: Wire) -> None:
    if wire.era == "modern":
        assert wire.open()["capabilities"]["extensions"][EXTENSION] == {"directoryRead": True}


@pytest.mark.requirement("MCP-5", "MCP-12")
def test_discover_tells_versions_and_how_long_it_holds() -> None:
    with serving(FIXTURES, era="modern", opened=False) as wire:
        seen = wire.open()
        assert seen["supportedVersions"] == ["2026-07-28"]
        assert seen["ttlMs"] >= 0 and seen["cacheScope"] in {"public", "private"}
        assert seen["resultType"] == "complete"
        assert seen["_meta"][META + "serverInfo"]["name"] == "mcp-skills-server"


@pytest.mark.requirement("MCP-6")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("server/discover", None),
        ("skills/list", None),
        ("skills/get", {"name": "csv-profiling"}),
        ("skills/get", {"uri": "skill://csv-profiling/SKILL.md"}),
        ("resources/list", None),
        ("resources/templates/list", None),
        ("resources/read", {"uri": "skill://csv-profiling/SKILL.md"}),
        ("resources/directory/read", {"uri": "skill://csv-profiling"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "skill://{+path}"}, "argument": {"name": "path", "value": "b"}},
        ),
        ("tools/list", None),
        ("tools/call", {"name": "skills_list", "arguments": {}}),
        ("prompts/list", None),
        ("prompts/get", {"name": "csv-profiling"}),
    ],
)
def test_every_result_of_the_modern_era_names_the_server(
    wire: Wire, method: str, params: dict[str, Any] | None
) -> None:
    """Whatever the method, the SDK's own ones and ours."""
    if wire.era == "modern":
        assert wire.request(method, params)["_meta"][META + "serverInfo"]["name"] == "mcp-skills-server"
