"""The examples of docs/protocols.md are real responses. `make golden` updates them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from dispatching import local_serving
from mcp_skills_server.dialects.wellknown import DIRECTORY, INDEX
from web.http_wire import HttpClient, Target
from web.in_process import app_serving
from wire import FIXTURES, ROOT

PAGE = ROOT / "docs" / "protocols.md"
SKILL = FIXTURES / "csv-profiling"
_BLOCK = re.compile(r"(<!-- ([a-z0-9.-]+) -->\n```json\n).*?(?=```)", re.DOTALL)
_MAX_LENGTH = 72


def examples() -> Iterator[tuple[str, Any]]:
    """Yield the name of each block, and the response of its protocol about one skill."""
    with app_serving(SKILL) as server:
        yield from _mcp(server)
        yield "discovery.index", json.loads(server.send("GET", DIRECTORY + INDEX).body)
        yield "skills-protocol.list", server.rpc("list_skills", detail="summary")
    with local_serving(SKILL, "--dialect", "sep-2076", era="legacy") as wire:
        yield "sep-2076.list", wire.request("skills/list")
        yield "sep-2076.get", wire.request("skills/get", {"name": "csv-profiling"})


def _mcp(server: Target) -> Iterator[tuple[str, Any]]:
    declared = HttpClient(server, "modern", extension=True)
    yield "sep-2640.list", declared.request("skills/list")
    plain = HttpClient(server, "modern")
    yield "tools.list", plain.call("skills_list")
    loaded = plain.call("skills_load", names=["csv-profiling"])
    handle = loaded["structuredContent"]["session"]
    yield "tools.load", json.loads(json.dumps(loaded).replace(handle, "A-HANDLE-OF-24-CHARACTERS"))


def shortened(value: Any) -> Any:
    """Shorten long texts, and drop `_meta`, which has the version of the server."""
    if isinstance(value, dict):
        return {key: shortened(each) for key, each in value.items() if key != "_meta"}
    if isinstance(value, list):
        return [shortened(each) for each in value]
    if isinstance(value, str) and len(value) > _MAX_LENGTH:
        return f"{value[:_MAX_LENGTH].rstrip()} ..."
    return value


def page(text: str) -> str:
    blocks: dict[str, str] = {}
    for name, value in examples():
        blocks[name] = json.dumps(shortened(value), indent=2, ensure_ascii=False) + "\n"
    assert blocks.keys() == {name for _, name in _BLOCK.findall(text)}
    return _BLOCK.sub(lambda match: match[1] + blocks[match[2]], text)


def test_examples_of_page_are_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
