"""docs/protocols.md: what it shows is what the server answers. `make golden` writes its blocks anew."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mcp_skills_server.dialects.wellknown import DIRECTORY, INDEX
from web.http_wire import HttpClient, Server, http_serving
from wire import FIXTURES, ROOT, serving

PAGE = ROOT / "docs" / "protocols.md"
SKILL = FIXTURES / "csv-profiling"
_BLOCK = re.compile(r"(<!-- ([a-z0-9.-]+) -->\n```json\n).*?(?=```)", re.DOTALL)
_LONGEST = 72


def shown() -> Iterator[tuple[str, Any]]:
    """What each protocol answers about one and the same skill, by the name of its block."""
    with http_serving(SKILL) as server:
        yield from _mcp(server)
        yield "discovery.index", json.loads(server.send("GET", DIRECTORY + INDEX).body)
        yield "skills-protocol.list", server.rpc("list_skills", detail="summary")
    with serving(SKILL, "--dialect", "sep-2076", era="legacy") as wire:
        yield "sep-2076.list", wire.request("skills/list")
        yield "sep-2076.get", wire.request("skills/get", {"name": "csv-profiling"})


def _mcp(server: Server) -> Iterator[tuple[str, Any]]:
    host = HttpClient(server, "modern", extension=True)
    yield "sep-2640.list", host.request("skills/list")
    plain = HttpClient(server, "modern")
    yield "tools.list", plain.call("skills_list")
    loaded = plain.call("skills_load", names=["csv-profiling"])
    handle = loaded["structuredContent"]["session"]
    yield "tools.load", json.loads(json.dumps(loaded).replace(handle, "A-HANDLE-OF-24-CHARACTERS"))


def cut(seen: Any) -> Any:
    """The same with long texts cut, and without `_meta`, in which the server names itself."""
    if isinstance(seen, dict):
        return {key: cut(value) for key, value in seen.items() if key != "_meta"}
    if isinstance(seen, list):
        return [cut(each) for each in seen]
    if isinstance(seen, str):
        return seen if len(seen) <= _LONGEST else f"{seen[:_LONGEST].rstrip()} ..."
    return seen


def page(text: str) -> str:
    """The page with the blocks of today."""
    blocks = {name: json.dumps(cut(seen), indent=2, ensure_ascii=False) + "\n" for name, seen in shown()}
    assert blocks.keys() == {name for _, name in _BLOCK.findall(text)}
    return _BLOCK.sub(lambda match: match[1] + blocks[match[2]], text)


def test_the_page_shows_what_the_server_answers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
