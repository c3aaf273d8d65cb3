"""The MCP App of the tools (SEP-1865): what its views look like on the wire, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mcp_skills_server.dialects.runtime import apps
from tables import each_row
from web.http_wire import HttpClient, client, http_serving
from wire import FIXTURES, Era, Wire, WireError, serving

EXTENSION = "io.modelcontextprotocol/ui"
MIME_TYPE = "text/html;profile=mcp-app"
SHOWS_VIEWS = {EXTENSION: {"mimeTypes": [MIME_TYPE]}}
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
Asking = Wire | HttpClient


both_transports = pytest.mark.parametrize("transport", ["stdio", "http"])


@contextmanager
def asking(transport: str, era: Era, *options: str) -> Iterator[Asking]:
    """A client that has not shaken hands yet."""
    if transport == "stdio":
        with serving(SKILLS, *options, era=era, opened=False) as wire:
            yield wire
    else:
        with http_serving(SKILLS, *options) as server, client(server, era, opened=False) as asks:
            yield asks


@both_transports
def test_a_client_that_shows_views_finds_them_at_the_tools(transport: str, era: Era) -> None:
    with asking(transport, era, "--page-size", "1") as asks:
        asks.extensions = {**SHOWS_VIEWS, "com.example/other": {}}
        assert asks.open()["capabilities"]["extensions"][EXTENSION] == {}
        tools = {tool["name"]: tool.get("_meta") for tool in asks.request("tools/list")["tools"]}
        shown = {name: meta["ui"]["resourceUri"] for name, meta in tools.items() if meta is not None}
        assert shown == {"skills_list": CATALOGUE, "skills_load": SKILL}
        first = asks.request("resources/list")
        assert first["resources"][:2] == VIEWS
        assert len(first["resources"]) == 3
        then = asks.request("resources/list", {"cursor": first["nextCursor"]})
        assert [each["uri"].split(":")[0] for each in then["resources"]] == ["skill"]
        for uri in (CATALOGUE, SKILL):
            (content,) = asks.request("resources/read", {"uri": uri})["contents"]
            html = content.pop("text")
            assert content == {"uri": uri, "mimeType": MIME_TYPE, "_meta": META}
            assert html.startswith("<!doctype html>") and "http" not in html


@both_transports
def test_for_any_other_client_or_without_tools_nothing_changes_and_each_has_the_whole_text(
    transport: str, era: Era
) -> None:
    texts: list[str] = []
    for extensions in ({}, SHOWS_VIEWS):
        with asking(transport, era) as asks:
            asks.extensions = extensions
            assert (EXTENSION in asks.open()["capabilities"]["extensions"]) is bool(extensions)
            assert any("_meta" in tool for tool in asks.request("tools/list")["tools"]) is bool(extensions)
            schemes = {each["uri"].partition(":")[0] for each in asks.request("resources/list")["resources"]}
            assert schemes == ({"ui", "skill"} if extensions else {"skill"})
            loaded = asks.call("skills_load", names=["refunds"])
            texts.append(loaded["content"][0]["text"].replace(loaded["structuredContent"]["session"], "S"))
    assert texts[0] == texts[1] and "# Refunds" in texts[0]
    with asking(transport, era, "--no-tools") as asks:
        asks.extensions = SHOWS_VIEWS
        assert EXTENSION not in asks.open()["capabilities"]["extensions"]
        assert all(each["uri"].startswith("skill://") for each in asks.request("resources/list")["resources"])
        with pytest.raises(WireError):
            asks.request("resources/read", {"uri": CATALOGUE})


@each_row("settings", [{}, {"mimeTypes": ["text/plain"]}, {"mimeTypes": MIME_TYPE}, {"mimeTypes": None}])
def test_a_client_that_does_not_show_html_declares_no_views(settings: dict[str, Any]) -> None:
    assert not apps.is_declared({EXTENSION: settings})


def test_a_server_that_skills_are_attached_to_has_the_views_beside_its_own(example: Wire) -> None:
    example.extensions = SHOWS_VIEWS
    example.open()
    tools = {tool["name"]: tool.get("_meta") for tool in example.request("tools/list")["tools"]}
    assert (tools["read_ticket"], tools["skills_load"]) == (None, {"ui": {"resourceUri": SKILL}})
    uris = [each["uri"] for each in example.request("resources/list")["resources"]]
    assert uris == ["tickets://open", CATALOGUE, SKILL, "skill://summarise-ticket/SKILL.md"]
    assert example.request("resources/read", {"uri": SKILL})["contents"][0]["mimeType"] == MIME_TYPE
    assert example.request("resources/read", {"uri": "tickets://7"})["contents"][0]["mimeType"] != MIME_TYPE
