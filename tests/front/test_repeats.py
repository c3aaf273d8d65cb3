"""Requests that are asked again: which bytes say the same, and never an answer that no longer holds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations import ENVELOPE, HANDSHAKE
from fronts import by_ours, talk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.view import View
from mcp_skills_server.server.front.dispatch import Dispatcher
from mcp_skills_server.server.front.repeats import Repeats, parted
from mcp_skills_server.server.front.request import Request
from mcp_skills_server.server.messages import Message, judge
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry import events
from wire import write_skill

GUIDE = ("resources/read", {"uri": "skill://a/guide.md"})
ENTRY = ("skills/get", {"uri": "skill://a/SKILL.md"})
WORDS = (b'{"id":', b"}")
NAMES = st.sampled_from(["id", "method", "jsonrpc", "a"]) | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
    | st.sampled_from(["id", '"id":5,', '"id"']),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
REQUESTS = st.builds(
    lambda order, id_, params: {
        key: {"jsonrpc": "2.0", "id": id_, "method": "skills/get", "params": params}[key] for key in order
    },
    st.permutations(["jsonrpc", "id", "method", "params"]).flatmap(
        lambda order: st.sampled_from([order, order[:3], order[1:]])
    ),
    st.integers(-3, 10**16) | st.floats(0, 9) | st.text(max_size=3),
    st.dictionaries(NAMES, VALUES, max_size=3),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A skill with a file beside it."""
    write_skill(tmp_path / "root" / "a", guide_md="guide")
    return tmp_path / "root"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The ids of the requests that were answered anew."""
    out: list[object] = []
    original = Dispatcher.at_once

    def noted(self: Dispatcher, request: Request) -> bytes | None:
        out.append(request.id)
        return original(self, request)

    monkeypatch.setattr(Dispatcher, "at_once", noted)
    return out


def loaded(folder: Path) -> Registry:
    """A folder whose files have not been touched for long."""
    out = Registry([folder])
    out.load()
    for skill in out.snapshot.skills.values():
        out.hash_files(skill)
        for file in skill.files.values():
            file.mtime_reliable = True
    return out


def line(id_: int, method: str, params: dict[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": {**params, "_meta": ENVELOPE}}
    return json.dumps(message, separators=(",", ":")).encode()


@given(REQUESTS, st.sampled_from([(",", ":"), (", ", ": ")]), st.integers(0, 10**15 - 1), st.booleans())
def test_with_another_id_the_rest_means_the_same(
    message: dict[str, Any], separators: tuple[str, str], other: int, ascii_only: bool
) -> None:
    raw = json.dumps(message, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found, said = judge(raw), parted(raw)
    if said is None or not isinstance(found, Message) or found.kind != "request":
        return  # what is kept was answered, so it was a request
    (before, after), id_ = said
    assert id_ == found.id
    again = judge(before + b"%d" % other + after)
    assert isinstance(again, Message)
    assert again.fields == {**found.fields, "id": other} and again.kind == "request"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id":1,"id":2}',
        b'{"i\\u0064":1,"params":{"id":2}}',
        b'{"params":{"id":2},"id":"1"}',
        b'{"id":01}',
        b'{"id":1.0}',
        b'{"id":1e3}',
        b'{"id":-1}',
        b'{"id" :1}',
        b'{"id":1000000000000000}',
        b'{"id":1,"a":"' + b"x" * 1024 + b'"}',
    ],
)
def test_what_leaves_a_doubt_is_read_as_a_whole(raw: bytes) -> None:
    assert parted(raw) is None


def test_what_is_asked_again_is_answered_without_a_look_at_the_request(folder: Path, tried: list[object]) -> None:
    lines = [line(id_, *asked) for id_, asked in enumerate([GUIDE, ENTRY] * 4)]
    found = talk(by_ours, lines, loaded(folder), Settings(), patient=True).said
    assert [each["id"] for each in found] == [*range(8)]
    for first, *again in (found[0::2], found[1::2]):
        assert all(each["result"] == first["result"] for each in again)
    assert tried == [0, 1, 2, 3, 4]  # the first of all decides the era, and is not counted


def test_an_id_that_is_under_way_is_refused_whatever_is_asked(folder: Path) -> None:
    listen = {"notifications": {"skillsListChanged": True}}
    lines = [line(id_, *GUIDE) for id_ in range(4)] + [line(5, "subscriptions/listen", listen), line(5, *GUIDE)]
    found = talk(by_ours, lines, loaded(folder), Settings(), patient=True).said
    assert [each for each in found if each.get("error", {}).get("code") == -32600 and each["id"] == 5]


def test_after_another_handshake_it_is_another_client_that_asks(folder: Path, tried: list[object]) -> None:
    get = {"jsonrpc": "2.0", "method": ENTRY[0], "params": ENTRY[1]}
    hello = {"jsonrpc": "2.0", "method": "initialize"}
    knowing = {"extensions": {"io.modelcontextprotocol/skills": {}}}
    messages = [
        {**hello, "id": 1, "params": HANDSHAKE}, *[{**get, "id": id_} for id_ in (2, 3, 4)],
        {**hello, "id": 6, "params": {**HANDSHAKE, "capabilities": knowing}}, {**get, "id": 5},
    ]  # fmt: skip
    lines = [json.dumps(each).encode() for each in messages]
    found = {each["id"]: each for each in talk(by_ours, lines, loaded(folder), Settings(), patient=True).said}
    assert found[2]["result"] == found[4]["result"] != found[5]["result"]
    assert 4 not in tried and 5 in tried


def rewritten(folder: Path) -> None:
    """The same size and time of modification, other bytes."""
    guide = folder / "a/guide.md"
    found = guide.stat()
    guide.write_text("other")
    while guide.stat().st_ctime_ns == found.st_ctime_ns:  # until the clock of the file system has moved on
        os.utime(guide, ns=(found.st_atime_ns, found.st_mtime_ns))


def swapped(folder: Path) -> None:
    """A link in place of the skill, to a foreign file of the same size and time."""
    outside, guide = folder.parent / "outside", folder / "a/guide.md"
    shutil.copytree(folder / "a", outside)
    (outside / "guide.md").write_text("other")
    os.utime(outside / "guide.md", ns=(guide.stat().st_atime_ns, guide.stat().st_mtime_ns))
    shutil.rmtree(folder / "a")
    (folder / "a").symlink_to(outside)


def linked(folder: Path) -> None:
    """A link in place of the file."""
    (folder.parent / "other").write_text("other")
    (folder / "a/guide.md").unlink()
    (folder / "a/guide.md").symlink_to(folder.parent / "other")


def gone(folder: Path) -> None:
    (folder / "a/guide.md").unlink()


@pytest.mark.requirement("S40-18", "X-5")
@pytest.mark.parametrize("change", [rewritten, swapped, linked, gone])
def test_an_answer_is_not_given_again_for_a_file_that_is_another(
    folder: Path, change: Callable[[Path], None], tried: list[object]
) -> None:
    registry = loaded(folder)
    answered: list[int] = []
    original = Repeats.find

    def find(self: Repeats, words: tuple[bytes, bytes]) -> bytes | None:
        if len(answered) == 4:
            change(folder)
        answered.append(1)
        return original(self, words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repeats, "find", find)
        found = talk(by_ours, [line(id_, *GUIDE) for id_ in range(5)], registry, Settings(), patient=True).said
    assert found[0]["result"] == found[3]["result"] and 3 not in tried and 4 in tried
    last = found[4]
    if change in (rewritten, swapped):  # a link of a root to a folder of the same user is followed
        assert last["result"]["contents"][0]["text"] == "other"
    else:
        assert last["error"]["code"] == -32602


def test_an_answer_holds_for_its_snapshot_and_while_nobody_reads_events(folder: Path) -> None:
    registry = loaded(folder)
    repeats = Repeats(lambda: View(registry, last_try=False))
    repeats.keep(WORDS, View(registry), b"body")
    assert repeats.find(WORDS) is None  # asked once
    repeats.keep(WORDS, View(registry), b"body")
    assert repeats.find(WORDS) == b"body"
    unsubscribe = events.subscribe(lambda _: None)
    try:
        assert repeats.find(WORDS) is None
    finally:
        unsubscribe()
    assert repeats.find(WORDS) == b"body"
    write_skill(folder / "b")
    registry.refresh()
    assert repeats.find(WORDS) is None
    repeats.keep(WORDS, View(registry), b"another")
    assert repeats.find(WORDS) == b"another"
    repeats.clear()
    assert repeats.find(WORDS) is None


def test_what_is_kept_is_small(folder: Path) -> None:
    registry = loaded(folder)
    repeats = Repeats(lambda: View(registry, last_try=False))
    for _ in range(2):
        repeats.keep(WORDS, View(registry), bytes((1 << 14) + 1))
        assert repeats.find(WORDS) is None
        for number in range(400):
            repeats.keep((WORDS[0], b"%d" % number), View(registry), bytes(1 << 14))
    kept = [number for number in range(400) if repeats.find((WORDS[0], b"%d" % number)) is not None]
    assert kept == list(range(400 - (1 << 8), 400))


def test_requests_in_turn_that_are_too_many_to_be_kept_leave_what_is_kept(folder: Path) -> None:
    registry = loaded(folder)
    repeats = Repeats(lambda: View(registry, last_try=False))
    for _ in range(2):
        repeats.keep(WORDS, View(registry), b"body")
    for _ in range(3):
        for number in range(3000):
            repeats.keep((WORDS[0], b"%d" % number), View(registry), b"another")
    assert repeats.find(WORDS) == b"body"
