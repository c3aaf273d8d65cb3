"""What independent clients said, as `make record` wrote it down: each of it is answered, over pipes alike by both."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import anyio
import pytest

from front.posts import Post, ask, serving
from fronts import by_ours, by_the_sdk, shown, talk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server.requests import Settings
from wire import FIXTURES, ROOT

FILE = ROOT / "tests" / "front" / "recorded.jsonl"
ROWS: Final[list[dict[str, Any]]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
PIPES = [row for row in ROWS if "lines" in row]
POSTS = [row for row in ROWS if "headers" in row]


def by_referee(rows: Iterable[dict[str, Any]]) -> list[Any]:
    """The rows, those of one referee together."""
    out: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        out[row["by"]].append(row)
    return [pytest.param(rows, id=by) for by, rows in out.items()]


@pytest.fixture(scope="module")
def registry() -> Registry:
    """The skills that the clients were served."""
    out = Registry([FIXTURES])
    out.load()
    return out


@pytest.mark.parametrize("rows", by_referee(PIPES))
def test_conversations_are_the_same_on_both_fronts(rows: list[dict[str, Any]], registry: Registry) -> None:
    for row in rows:
        lines = [line.encode("utf-8", "surrogateescape") for line in row["lines"]]
        theirs, ours = (talk(front, lines, registry, Settings(), patient=True) for front in (by_the_sdk, by_ours))
        assert shown(ours) == shown(theirs)


@pytest.mark.parametrize("rows", by_referee(POSTS))
def test_every_post_is_answered(rows: list[dict[str, Any]], registry: Registry) -> None:
    posts = [_post(row) for row in rows]

    async def answered(out: Callable[[Any], None]) -> None:
        async with serving(registry, Settings()) as (app, _):
            for each in posts:
                out(await ask(app, each, stays=False))

    replies: list[Any] = []
    anyio.run(answered, replies.append)
    assert len(replies) == len(posts)
    # A session of the recording is not one of this server.
    assert {each.status for each in replies} <= {200, 202, 400, 404, 405}
    internal = [message for each in replies for message in each.messages if '"code": -32603' in message]
    assert internal == []


def _post(row: dict[str, Any]) -> Post:
    headers = {"host": "localhost", **row["headers"]}
    raw = tuple((name.encode(), value.encode("latin-1")) for name, value in headers.items())
    return Post(raw, row["body"].encode("latin-1"), row["method"])


def test_the_recording_is_of_many_clients_and_holds_nothing_of_the_machine_it_was_made_on() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(text) < 1 << 20
    assert not re.search(r"127\.0\.0\.1|localhost:|/tmp/|/home/|/root/|/work/|file://", text)
    assert len({row["by"].split(",")[0] for row in ROWS}) >= 7
    assert sum(len(row["lines"]) for row in PIPES) + len(POSTS) >= 500
