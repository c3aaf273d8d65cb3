"""Which worker a request belongs to, by what its client wrote; and that it is written anew as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.server.messages import Message
from mcp_skills_server.web.workers import routing
from mcp_skills_server.web.workers.loads import Loads, make_loads
from mcp_skills_server.web.workers.routing import CONNECTION, Routes, mark, worker_of

PATHS = "/nowhere/{}"
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes]]:
    """To which paths what was given."""
    out: list[tuple[str, bytes]] = []

    async def take(path: str, _: int, raw: bytes) -> bool:
        out.append((path, raw))
        return True

    monkeypatch.setattr(routing, "give", take)
    return out


class Held:
    """A connection whose client has sent a whole request, and `later`."""

    def __init__(self, later: bytes = b"", *, whole: bool = True) -> None:
        self.later = later
        self.whole = whole
        self.has_left = False

    async def hold(self) -> tuple[int, bytes] | None:
        return (7, self.later) if self.whole else None

    def resume(self) -> None:
        raise AssertionError

    def leave(self) -> None:
        self.has_left = True


def scope(connection: Held | None, method: str = "POST", **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {
        "method": method,
        "raw_path": b"/mcp",
        "query_string": b"",
        "http_version": "1.1",
        "headers": named,
        "state": {} if connection is None else {CONNECTION: lambda: connection},
    }


async def gone() -> dict[str, str]:
    return {"type": "http.disconnect"}


@given(st.integers(0, 63), st.text("abcdef0123456789_-w", max_size=40))
def test_a_mark_is_read_back(number: int, identifier: str) -> None:
    assert worker_of(identifier + mark(number)) == number


@pytest.mark.parametrize(
    "identifier",
    [
        "",
        "x",
        "_w",
        "x_w1x",
        "x_w1 ",
        "x_w1\n",
        "x_w-1",
        "x_w1.0",
        "x_w0x1",
        "x_w\N{ARABIC-INDIC DIGIT ONE}",
        "x_w1234",
        "../../x_w/1",
        1,
        None,
        [],
        {},
    ],
)
def test_what_is_no_mark_is_none(identifier: object) -> None:
    assert worker_of(identifier) is None


def called(arguments: object, method: str = "tools/call") -> Message:
    return Message({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"arguments": arguments}}, "request")


@pytest.mark.parametrize(
    ("message", "headers", "number"),
    [
        (called({"session": "x_w1"}), {}, 1),
        (called({"session": "x_w2"}), {}, 2),
        (called({"session": "x_w2"}), {"mcp_session_id": "y_w1"}, 1),  # a session has no other worker
        (called({}), {"mcp_session_id": "y_w1"}, 1),
        (called({"session": "x_w0"}), {}, None),  # our own
        (called({"session": "x_w3"}), {}, None),  # there are only three
        (called({"session": "x_w999"}), {}, None),
        (called({"session": ["x_w1"]}), {}, None),
        (called({"names": "x_w1"}), {}, None),
        (called("x_w1"), {}, None),
        (called({"session": "x_w1"}, "skills/list"), {}, None),
        (called({"session": "x_w1"}), {"mcp_session_id": "y"}, None),
        (Message({"jsonrpc": "2.0", "method": "tools/call"}, "notification"), {}, None),
        (Message({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, "request"), {}, None),
        (Message({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]}, "request"), {}, None),
    ],
)
async def test_a_message_goes_to_whom_it_names(
    message: Message, headers: dict[str, str], number: int | None, given_away: list[tuple[str, bytes]]
) -> None:
    held = Held()
    left = await Routes(0, 3, PATHS).message(message, b"{}", scope(held, **headers), gone)
    assert [path for path, _ in given_away] == ([] if number is None else [f"/nowhere/{number}"])
    assert left == held.has_left == (number is not None)


async def test_a_request_is_written_anew_with_its_end_and_what_follows(given_away: list[tuple[str, bytes]]) -> None:
    headers = {
        "host": "localhost",
        "mcp_session_id": "x_w1",
        "transfer_encoding": "chunked",
        "expect": "100-continue",
        "x_odd": "\xff",
    }
    routes = Routes(0, 2, PATHS)
    await routes.message(called({}), b"{}", scope(Held(b"GET /next"), **headers), gone)
    await routes.session({**scope(Held(), "GET", **headers), "query_string": b"a=b"}, gone)
    kept = b"host: localhost\r\nmcp-session-id: x_w1\r\nx-odd: \xff\r\n"
    assert given_away == [
        ("/nowhere/1", b"POST /mcp HTTP/1.1\r\n" + kept + b"content-length: 2\r\n\r\n{}GET /next"),
        ("/nowhere/1", b"GET /mcp?a=b HTTP/1.1\r\n" + kept + b"\r\n"),
    ]


async def test_half_a_request_stays_and_so_does_one_that_nobody_takes(
    given_away: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = Routes(0, 2, PATHS)
    assert not await routes.session(scope(Held(whole=False), "GET", mcp_session_id="x_w1"), gone)
    assert not await routes.session(scope(None, "GET", mcp_session_id="x_w1"), gone)
    assert given_away == []

    async def refuse(*_: object) -> bool:
        return False

    resumed: list[bool] = []
    held = Held()
    monkeypatch.setattr(held, "resume", lambda: resumed.append(True))
    monkeypatch.setattr(routing, "give", refuse)
    assert not await routes.session(scope(held, "DELETE", mcp_session_id="x_w1"), gone)
    assert resumed == [True] and not held.has_left


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (b'{"blob_id":"blob:%b_w1"}' % (b"0" * 32), 1),
        (b'{"blob_id":"blob:%b_w0"}' % (b"0" * 32), None),
        (b'{"blob_id":"blob:%b"}' % (b"0" * 32), None),
        (b'{"blob_id":"blob:x_w1"}', None),
        (b"_w1", None),
    ],
)
async def test_a_blob_is_where_its_name_says(
    body: bytes, number: int | None, given_away: list[tuple[str, bytes]]
) -> None:
    assert await Routes(0, 2, PATHS).call(body, scope(Held()), gone) == (number is not None)
    assert len(given_away) == (number is not None)


def test_who_has_least_is_next(tmp_path: Any) -> None:
    path = str(tmp_path / "loads")
    make_loads(path, 3)
    first, second = Loads(path), Loads(path)
    assert first.put(0, 5)  # the others take none
    assert second.put(1, 4) and not first.put(0, 5)
    second.leave(1)
    assert first.put(0, 5)
