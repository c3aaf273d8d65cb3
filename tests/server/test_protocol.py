"""Rules of the base protocol across methods: handshakes, statelessness, and error codes."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dispatching import Direct, dispatching, local_serving
from programs import WITH_NETWORK, needs_script_network
from tables import each_row
from web.http_wire import HELLO
from wire import EXTENSION, FIXTURES, META, VERSIONS, Era, WireError, serving, write_skill

TEMPLATE = {"type": "ref/resource", "uri": "skill://{+path}"}
PROMPT = {"type": "ref/prompt", "name": "meeting-notes"}
EVERY_METHOD: list[tuple[str, dict[str, Any]]] = [
    ("skills/list", {"cursor": None}), ("resources/list", {}), ("resources/templates/list", {}),
    ("tools/list", {}), ("prompts/list", {}),
    ("skills/get", {"name": "meeting-notes", "arguments": {"topic": "x"}}),
    ("skills/get", {"uri": "skill://commit-messages/SKILL.md"}),
    ("resources/read", {"uri": "skill://commit-messages/SKILL.md"}),
    ("resources/directory/read", {"uri": "skill://acme"}),
    ("completion/complete", {"ref": TEMPLATE, "argument": {"name": "path", "value": "a"}}),
    ("completion/complete", {"ref": PROMPT, "argument": {"name": "audience", "value": "e"}}),
    ("tools/call", {"name": "skills_search", "arguments": {"query": "commit"}}),
    ("tools/call", {"name": "skills_read", "arguments": {"path": "SKILL.md"}}),
    ("prompts/get", {"name": "meeting-notes", "arguments": {"topic": "x"}}),
]  # fmt: skip


@pytest.mark.requirement("MCP-6", "MCP-8", "MCP-10", "MCP-23", "MCP-25", "S40-20", "S40-23")
@each_row(("method", "params"), EVERY_METHOD)
def test_modern_request_is_stateless_and_its_result_private(method: str, params: dict[str, Any]) -> None:
    with dispatching(FIXTURES, era="modern", opened=False) as wire:
        first = wire.request(method, params)
        assert first["_meta"][META + "serverInfo"]["name"] == "mcp-skills-server"
        assert wire.request(method, params) == first
        # These results have no fields for a cache, and neither have SEP-2076's instructions.
        if method not in {"completion/complete", "tools/call", "prompts/get"} and "instructions" not in first:
            assert (first["ttlMs"], first["cacheScope"]) == (0, "private")


@pytest.mark.requirement("MCP-2", "MCP-3", "MCP-7", "MCP-9")
@each_row(("method", "params", "code", "requested"), [
    ("skills/list", {"_meta": {META + "clientCapabilities": 5}}, -32602, None),
    ("skills/list", {"_meta": {META + "protocolVersion": "2031-01-01"}}, -32022, "2031-01-01"),
    ("initialize", HELLO, -32022, HELLO["protocolVersion"]),
])  # fmt: skip
def test_modern_connection_refuses_other_versions_and_invalid_envelopes(
    method: str, params: dict[str, Any], code: int, requested: str | None
) -> None:
    with dispatching(FIXTURES, era="modern") as wire, pytest.raises(WireError) as caught:
        wire.request(method, params)
    data = None
    if requested is not None:
        data = {"requested": requested, "supported": [VERSIONS["modern"]]}
    assert (caught.value.code, caught.value.data) == (code, data)


@pytest.mark.requirement("MCP-11", "MCP-26")
def test_cursor_is_valid_on_another_connection(era: Era) -> None:
    with dispatching(FIXTURES, era=era, page_size=4) as one, dispatching(FIXTURES, era=era, page_size=4) as other:
        for method in ("skills/list", "resources/list"):
            cursor = {"cursor": one.request(method)["nextCursor"]}
            assert one.request(method, cursor) == other.request(method, cursor)


@pytest.mark.requirement("MCP-4", "MCP-26", "X-17")
def test_lists_do_not_depend_on_earlier_requests(direct: Direct) -> None:
    lists = ("skills/list", "resources/list", "resources/templates/list", "tools/list", "prompts/list")
    before = [direct.request(method) for method in lists]
    for method, params in EVERY_METHOD:
        direct.request(method, params)
    direct.call("skills_load", names=["commit-messages"])
    assert before == [direct.request(method) for method in lists]


@pytest.mark.requirement("MCP-14", "MCP-54")
def test_server_sends_neither_requests_nor_log_messages(tmp_path: Path, era: Era) -> None:
    write_skill(tmp_path / "a")
    with serving(tmp_path, "--log-level", "debug", era=era) as wire:
        if era == "modern":
            wire.listen(skillsListChanged=True)
        wire.every_skill()
        (tmp_path / "a" / "SKILL.md").write_text("---\nname: [\n")
        wire.until("notifications/skills/list_changed")
        wire.pending()
        wire.close()
        assert not any(b'"id"' in line and b'"method"' in line for line in wire.lines)
        assert b'"notifications/message"' not in b"".join(wire.lines)


@pytest.mark.requirement("S40-31")
def test_reserved_names_have_only_methods_and_keys_of_the_extension(direct: Direct) -> None:
    for method in ("skills/find", "skills/activate", "skills/unload", "resources/directory/list"):
        with pytest.raises(WireError, match=r"^-32601: "):
            direct.request(method)
    for resource in direct.request("resources/list")["resources"]:
        frontmatter = direct.request("skills/get", {"uri": resource["uri"]})["skill"]["frontmatter"]
        for key in resource.get("_meta", {}):
            prefix, _, field = key.partition("/")
            assert prefix == "io.modelcontextprotocol.skills" and field in frontmatter


@pytest.mark.requirement("S76-1", "S40-1", "S40-4", "S40C-1", "X-9")
@pytest.mark.requirement("MCP-5", "MCP-12", "MCP-23", "MCP-25", "MCP-29", "MCP-30")
def test_handshake_declares_skills_the_extension_and_resources(era: Era) -> None:
    skills, extension = {"listChanged": True}, {EXTENSION: {"directoryRead": True}}
    for dialect, declared in (
        ("auto", (skills, extension)),
        ("sep-2076", (skills, {})),
        ("sep-2640", (None, extension)),
    ):
        with dispatching(FIXTURES, dialect=dialect, era=era, opened=False) as wire:
            result = wire.open()
            capabilities = result["capabilities"]
            assert (capabilities.get("skills"), capabilities.get("extensions", {})) == declared
            assert capabilities["resources"] == {"subscribe": True, "listChanged": True}
            if era == "modern":
                assert result["supportedVersions"] == ["2026-07-28"]
                assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


@pytest.mark.requirement("MCP-31", "X-9", "X-10", "X-11", "S40-12", "S40-15")
def test_host_with_native_skills_gets_each_skill_once(era: Era, tmp_path: Path) -> None:
    """The instructions and prompts list only lenient skills, which such a host cannot list natively."""
    write_skill(tmp_path / "valid")
    claude = partial(dispatching, tmp_path, era=era, host="claude-code")
    with claude(extension=True, opened=False) as wire, claude() as without_extension:
        assert "instructions" not in wire.open()
        (pure,), (union,) = wire.every_skill(), without_extension.every_skill()
        assert {key: union[key] for key in pure} == pure
        assert [each["frontmatter"]["name"] for each in wire.every_skill()] == ["valid"]
        assert wire.request("tools/list")["tools"] == []
        assert wire.request("prompts/list")["prompts"] == []
    for server in (claude(dialect="sep-2076", extension=True), claude(), claude(extension=True, host="inspector-cli")):
        with server as wire:
            assert wire.request("tools/list")["tools"]
            assert wire.request("prompts/list")["prompts"]
    write_skill(tmp_path / "lenient", name="Not_The_Folder")
    with claude(extension=True, opened=False) as wire:
        assert re.findall("<name>(.*)</name>", wire.open()["instructions"]) == ["Not_The_Folder"]
        tools = wire.request("tools/list")["tools"]
        assert "skills_load" in [tool["name"] for tool in tools]
        assert "valid" not in json.dumps(tools)
        assert [each["name"] for each in wire.request("prompts/list")["prompts"]] == ["Not_The_Folder"]


@pytest.mark.requirement("S40-55")
def test_native_host_of_an_unknown_revision_gets_tools_and_instructions(era: Era, tmp_path: Path) -> None:
    write_skill(tmp_path / "valid")
    with dispatching(tmp_path, era=era, host="claude-code", opened=False) as wire:
        wire.extensions = {EXTENSION: {"revision": "2"}}
        result = wire.open()
        assert result["capabilities"]["extensions"] == {EXTENSION: {"directoryRead": True}}
        assert "valid" in result["instructions"]
        assert [tool["name"] for tool in wire.request("tools/list")["tools"]][:2] == ["skills_list", "skills_search"]
        assert wire.every_skill()[0].keys() > {"uri", "frontmatter", "resources", "name"}


@needs_script_network
def test_script_tool_names_no_skill_to_a_host_with_native_skills(era: Era, tmp_path: Path) -> None:
    write_skill(tmp_path / "valid")
    with local_serving(tmp_path, "--allow-scripts", *WITH_NETWORK, era=era, host="claude-code", extension=True) as wire:
        tools = wire.request("tools/list")["tools"]
        assert "skills_run_script" in [each["name"] for each in tools]
        assert "valid" not in json.dumps(tools)
