"""The MCP App of the tools (SEP-1865): its views for clients that show HTML."""

from __future__ import annotations

from typing import Any

import pytest

from dispatching import dispatching
from mcp_skills_server.dialects.runtime import apps
from tables import each_row
from wire import FIXTURES, Era, Wire, WireError

EXTENSION = "io.modelcontextprotocol/ui"
MIME_TYPE = "text/html;profile=mcp-app"
DECLARED = {EXTENSION: {"mimeTypes": [MIME_TYPE]}}
CATALOGUE, SKILL = "ui://mcp-skills-server/catalogue", "ui://mcp-skills-server/skill"
META = {
    "ui": {"csp": {f"{of}Domains": [] for of in ("connect", "resource", "frame", "baseUri")}, "prefersBorder": True}
}
VIEWS: list[dict[str, Any]] = [
    {"uri": uri, "mimeType": MIME_TYPE, "name": name, "title": title, "description": description, "_meta": META}
    for uri, name, title, description in (
        (CATALOGUE, "skills-catalogue", "Skills", "Search and load skills."),
        (SKILL, "loaded-skill", "Loaded skill", "The instructions of a loaded skill."),
    )
]
SKILLS = FIXTURES / "acme"


def test_client_with_the_extension_gets_views_of_the_tools(era: Era) -> None:
    with dispatching(SKILLS, era=era, opened=False, page_size=1) as client:
        client.extensions = {**DECLARED, "com.example/other": {}}
        assert client.open()["capabilities"]["extensions"][EXTENSION] == {}
        tools = {tool["name"]: tool.get("_meta") for tool in client.request("tools/list")["tools"]}
        shown = {name: meta["ui"]["resourceUri"] for name, meta in tools.items() if meta is not None}
        assert shown == {"skills_list": CATALOGUE, "skills_load": SKILL}
        first = client.request("resources/list")
        assert first["resources"][:2] == VIEWS
        assert len(first["resources"]) == 3
        then = client.request("resources/list", {"cursor": first["nextCursor"]})
        assert [each["uri"].split(":")[0] for each in then["resources"]] == ["skill"]
        for uri in (CATALOGUE, SKILL):
            (content,) = client.request("resources/read", {"uri": uri})["contents"]
            html = content.pop("text")
            assert content == {"uri": uri, "mimeType": MIME_TYPE, "_meta": META}
            assert html.startswith("<!doctype html>")
            assert "http" not in html


def test_other_client_or_server_without_tools_has_no_views(era: Era) -> None:
    texts: list[str] = []
    for extensions in ({}, DECLARED):
        with dispatching(SKILLS, era=era, opened=False) as client:
            client.extensions = extensions
            assert (EXTENSION in client.open()["capabilities"]["extensions"]) is bool(extensions)
            tools = client.request("tools/list")["tools"]
            assert any("_meta" in tool for tool in tools) is bool(extensions)
            resources = client.request("resources/list")["resources"]
            schemes = {each["uri"].partition(":")[0] for each in resources}
            assert ("ui" in schemes) is bool(extensions)
            assert schemes - {"ui"} == {"skill"}
            loaded = client.call("skills_load", names=["refunds"])
            texts.append(loaded["content"][0]["text"].replace(loaded["structuredContent"]["session"], "S"))
    assert texts[0] == texts[1]
    assert "# Refunds" in texts[0]
    with dispatching(SKILLS, era=era, opened=False, tools=False) as client:
        client.extensions = DECLARED
        assert EXTENSION not in client.open()["capabilities"]["extensions"]
        assert all(each["uri"].startswith("skill://") for each in client.request("resources/list")["resources"])
        with pytest.raises(WireError):
            client.request("resources/read", {"uri": CATALOGUE})


@each_row("settings", [
    {},
    {"mimeTypes": ["text/plain"]},
    {"mimeTypes": MIME_TYPE},
    {"mimeTypes": None},
    {"mimeTypes": [MIME_TYPE], "revision": "2"},
])  # fmt: skip
def test_extension_without_the_html_type_is_not_declared(settings: dict[str, Any]) -> None:
    assert not apps.is_declared({EXTENSION: settings})


@pytest.mark.parametrize("era", ["modern"])
def test_attached_server_has_views_and_its_own_resources(example: Wire) -> None:
    example.extensions = DECLARED
    example.open()
    tools = {tool["name"]: tool.get("_meta") for tool in example.request("tools/list")["tools"]}
    assert (tools["read_ticket"], tools["skills_load"]) == (None, {"ui": {"resourceUri": SKILL}})
    uris = [each["uri"] for each in example.request("resources/list")["resources"]]
    assert uris == ["tickets://open", CATALOGUE, SKILL, "skill://summarise-ticket/SKILL.md"]
    assert example.request("resources/read", {"uri": SKILL})["contents"][0]["mimeType"] == MIME_TYPE
    assert example.request("resources/read", {"uri": "tickets://7"})["contents"][0]["mimeType"] != MIME_TYPE
