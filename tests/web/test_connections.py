"""Connections: who gets a place, where a request ends, and clients that trickle or do not read."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.web.connections import Slot, Slots, State, Unread, client_to_evict
from tables import each_row
from web.http_wire import Server, client, http_serving, token_file, until
from wire import DEADLINE, FIXTURES, write_skill

MIB = 1 << 20


class Crowd:
    """Connections to so many slots, and which of them were closed."""

    def __init__(self, limit: int, spare: int = 2) -> None:
        self.closed: list[Slot] = []
        self.slots = Slots(limit, spare)

    def come(self, owner: str, state: State = State.SILENT) -> Slot:
        """A connection, which was let in if it has sent anything."""
        slot = Slot(self.slots, owner, lambda: self.closed.append(slot))
        self.slots.enter(slot)
        slot.is_admitted = state is not State.SILENT
        self.slots.set_state(slot, state)
        return slot


STATES = {"silent": State.SILENT, "rests": State.RESTING, "busy": State.BUSY}


@each_row(
    ("limit", "come", "closed", "spare"),
    [
        # A silent one of who holds most goes before who has been let in, and then one of its own.
        (5, "good-rests good-rests good-rests bad-silent bad-silent new-silent bad-silent", [3, 4], []),
        # Where all are busy a newcomer is refused.
        (2, "a-busy b-busy c-busy d-silent", [], [2, 3]),
        # A silent one on a spare place gives way to the next, and none that is busy there does.
        (1, "a-busy probe-busy b-silent b-silent b-silent", [2, 3], [1, 2, 3, 4]),
        # Who holds most and is busy keeps its places, as long as the newcomer has shown nothing.
        (4, "hog-busy hog-busy hog-busy hog-busy stranger-silent", [], [4]),
    ],
)
def test_who_gets_a_place_and_who_loses_one(limit: int, come: str, closed: list[int], spare: list[int]) -> None:
    crowd = Crowd(limit)
    words = (each.split("-") for each in come.split())
    there = [crowd.come(owner, STATES[state]) for owner, state in words]
    assert [there.index(each) for each in crowd.closed] == closed
    assert [number for number, each in enumerate(there) if each.is_spare] == spare


HELD = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9))


@given(HELD, st.sampled_from("abcde"), st.sets(st.sampled_from("abcd")))
def test_nobody_loses_a_place_to_who_holds_as_many(held: dict[str, int], newcomer: str, able: set[str]) -> None:
    gives = client_to_evict(held, newcomer, able & held.keys())
    may = {owner for owner in able & held.keys() if owner == newcomer or held[owner] > held.get(newcomer, 0)}
    if gives is None:
        assert not may
    else:
        assert gives in may and held[gives] == max(held[owner] for owner in may)


def test_the_longest_idle_goes_and_not_the_oldest() -> None:
    crowd = Crowd(2)
    first, second = crowd.come("a", State.RESTING), crowd.come("a", State.RESTING)
    crowd.slots.set_state(first, State.BUSY)
    crowd.slots.set_state(first, State.RESTING)
    crowd.come("a")
    assert crowd.closed == [second]


def test_a_request_that_let_nobody_in_leaves_a_connection_among_the_silent() -> None:
    crowd = Crowd(2)
    stranger = crowd.come("a")
    crowd.come("a", State.RESTING)
    for state in (State.BUSY, State.RESTING):  # it was answered with 401
        crowd.slots.set_state(stranger, state)
    crowd.come("a")
    assert crowd.closed == [stranger]


def test_who_moves_from_a_spare_place_to_another_leaves_the_spare_one_free() -> None:
    crowd = Crowd(1, spare=1)
    leaving, moving = crowd.come("a", State.BUSY), crowd.come("b", State.BUSY)
    assert moving.is_spare and not moving.admit(None)
    crowd.slots.leave(leaving)
    assert moving.admit(None) and not moving.is_spare
    for owner in "cd":  # the second of them takes the spare place of the first
        assert crowd.come(owner).is_spare and moving not in crowd.closed
    assert len(crowd.closed) == 1


def test_who_holds_more_than_half_gives_even_a_busy_one_but_only_to_who_was_let_in() -> None:
    crowd = Crowd(4, spare=4)
    hog = [crowd.come("hog", State.BUSY) for _ in range(4)]
    guests = [crowd.come(f"guest {number}", State.BUSY) for number in range(3)]
    assert [guest.admit(None) for guest in guests] == [True, True, False]
    assert crowd.closed == hog[:2]
    for limit, most, mine, gives in ((4, 2, 0, False), (5, 3, 2, False), (7, 4, 2, True)):
        crowd = Crowd(limit, spare=4)
        for owner in ["hog"] * most + ["new"] * mine + ["a", "b"][: limit - most - mine]:
            crowd.come(owner, State.BUSY)
        assert crowd.come("new", State.BUSY).admit(None) is gives


def test_a_bearer_is_counted_by_the_token_wherever_it_comes_from() -> None:
    crowd = Crowd(3)
    bearer = crowd.come("here", State.BUSY)
    assert bearer.admit("token x")
    crowd.slots.set_state(bearer, State.RESTING)
    crowd.come("here", State.BUSY), crowd.come("here", State.BUSY)
    newcomer = crowd.come("here")  # holds two by then, and token x one: nothing of another's goes
    assert newcomer.is_spare and not crowd.closed


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(State), st.integers(0, 3)), max_size=60))
def test_there_are_never_more_than_the_limit_and_none_is_counted_twice(steps: list[tuple[str, State, int]]) -> None:
    crowd = Crowd(4, spare=2)
    there: list[Slot] = []
    for owner, state, what in steps:
        place = crowd.come(owner, state)
        there.append(place)
        if what == 1:
            place.admit(f"token {owner}")
        elif what == 2:
            there.remove(place)
            crowd.slots.leave(place)
            crowd.slots.leave(place)
        there = [each for each in there if each not in crowd.closed]
        assert len([each for each in there if not each.is_spare]) <= 4
        assert len([each for each in there if each.is_spare]) <= 2
        assert len(set(crowd.closed)) == len(crowd.closed)


def places() -> tuple[list[str], Callable[[str], Slot]]:
    """What was ended, by name, and what makes a connection of an owner: the first word of its name."""
    ended: list[str] = []
    return ended, lambda name: Slot(Slots(1, 1), name.split()[0], lambda: ended.append(name))


def test_the_owner_with_most_loses_its_oldest(caplog: pytest.LogCaptureFixture) -> None:
    ended, waiting = places()
    unread = Unread(most=10 * MIB)
    greedy = [waiting(f"greedy {number}") for number in range(5)]
    modest = [waiting(f"modest-{number}") for number in range(3)]
    unread.add(modest[0], 3 * MIB)
    for each in greedy[:3]:
        unread.add(each, 2 * MIB)
    assert not ended
    unread.add(modest[1], 3 * MIB)
    assert ended == ["greedy 0"]
    unread.add(greedy[3], 2 * MIB)
    assert ended == ["greedy 0", "greedy 1"]
    unread.drop(modest[0])
    unread.drop(modest[0])
    unread.add(greedy[3], 2 * MIB)  # the same again, not once more
    unread.add(modest[2], 3 * MIB)
    assert ended == ["greedy 0", "greedy 1"]
    unread.add(greedy[4], 11 * MIB)  # more than all may have
    assert ended == [f"greedy {number}" for number in range(5)]
    large = Unread()
    for name in ("one", "two"):
        large.add(waiting(name), 64 * MIB)
    assert len(ended) == 5
    large.add(waiting("three"), 1)
    assert len(ended) == 6
    caplog.records.pop()
    assert {*caplog.messages} == {
        "cut off a client that did not read its response: more than 10 MiB unread by all clients"
    }


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(1, 9)), max_size=40)


@given(STEPS, st.integers(1, 12))
def test_beyond_a_share_only_ones_own_connections_are_ended_and_the_last_one_stays(
    steps: list[tuple[str, int, int]], share: int
) -> None:
    ended, waiting = places()
    unread = Unread(most=1 << 30, share=share)
    slots = {(owner, number): waiting(owner) for owner in "abc" for number in range(5)}
    left: dict[str, dict[int, int]] = {owner: {} for owner in "abc"}
    for owner, number, size in steps:
        unread.add(slots[owner, number], size)
        mine = left[owner]
        mine.pop(number, None)
        mine[number] = size
        goes = 0
        while len(mine) > 1 and sum(mine.values()) > share:
            del mine[next(iter(mine))]
            goes += 1
        assert ended == [owner] * goes
        ended.clear()


PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
BOTH = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


def answers(server: Server, *said: bytes, until: bytes | None = None) -> bytes:
    """All that comes back until the server closes the connection, or up to `until`, which must not come.

    Each but the last of what is said is answered with `alive`.
    """
    with server.connect() as bare:
        out = b""
        for number, each in enumerate(said, 1):
            bare.sendall(each)
            while (number == len(said) or out.count(b"alive\n") < number) and (piece := bare.recv(1000)):
                out += piece
                if until is not None and until in out:
                    break
        return out


@each_row("version", [b"1.0", b"1.1"])
@each_row("cased", [bytes.lower, bytes.upper])
@each_row("reverse", [False, True])
def test_both_headers_are_one_400_and_the_end(
    server: Server, version: bytes, cased: Callable[[bytes], bytes], reverse: bool
) -> None:
    body = b"0\r\n\r\n" + PROBE
    lines = sorted([cased(b"content-length") + b": %d" % len(body), cased(b"transfer-encoding") + b": chunked"])
    head = b"\r\n".join([b"POST /mcp HTTP/" + version, b"Host: localhost", *lines[:: -1 if reverse else 1]])
    seen = answers(server, head + b"\r\n\r\n" + body, until=b"alive")
    assert seen.startswith(b"HTTP/1.1 400 ") and seen.count(b"HTTP/1.1 ") == 1 and b"alive" not in seen
    assert b"connection: close" in seen.lower()


def test_an_encoding_in_http_1_0_and_both_headers_in_a_second_request_are_refused(
    server: Server,
) -> None:
    seen = answers(server, b"POST /mcp HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert seen.startswith(b"HTTP/1.1 400 ") and seen.count(b"HTTP/1.1 ") == 1
    seen = answers(server, PROBE + BOTH + PROBE)
    assert seen.startswith(b"HTTP/1.1 200 ") and seen.count(b"alive") == 1 and seen.count(b"HTTP/1.1 400 ") == 1


HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
LINE = "bob=bobs-made-up-token-0123456789"
IMPATIENT = ("--request-timeout", "0.2", "--log-level", "info")


def test_a_connection_without_a_whole_request_is_closed() -> None:
    with http_serving(FIXTURES, *IMPATIENT) as server:
        for said in (b"", PROBE[:10], HEAD[:-2], HEAD, HEAD + b'{"json'):
            assert answers(server, said) == b""
        assert answers(server, PROBE, PROBE, PROBE[:10]).count(b"HTTP/1.1 ") == 2
        server.said("closed a connection that sent no complete request in 0.2 s")


@pytest.mark.parametrize("refusals", [0, 61])
def test_who_goes_on_with_a_body_that_nobody_wants_is_cut_off(tmp_path: Path, refusals: int) -> None:
    begin = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    quota = tmp_path / "c.toml"
    quota.write_text("[quota]\nfailed-authentications-per-minute = 1\n", encoding="ascii")
    options = ("--token-file", token_file(tmp_path, LINE), "--config", quota, "--log-level", "info")
    with http_serving(FIXTURES, *options) as server:
        for _ in range(refusals):
            server.send("GET", "/mcp")
        with server.connect() as bare:
            bare.sendall(begin)
            bare.settimeout(DEADLINE)
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                bare.sendall(chunk * 1_000)
        server.said("kept sending a request after its response")
        assert server.send("GET", "/healthz").status == 200


def test_a_body_that_nobody_wants_may_come_to_its_end(tmp_path: Path) -> None:
    body = bytes(4 * MIB)
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with http_serving(FIXTURES, "--token-file", token_file(tmp_path, LINE)) as server, server.connect() as bare:
        for _ in range(3):  # on one connection
            bare.sendall(head + body)
            answer = b""
            while not answer.endswith(b"}"):
                answer += bare.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 401 ")


def test_streams_outlast_it(tmp_path: Path) -> None:
    with http_serving(tmp_path, *IMPATIENT) as server, client(server, "modern") as asked:
        stream = asked.listen(skillsListChanged=True)
        for _ in range(3):  # the waits of these are the clock of the test
            answers(server, PROBE[:10])
        write_skill(tmp_path / "a")
        assert stream.until("notifications/skills/list_changed")


def big(folder: Path) -> Path:
    parts = {f"references__part{number}_md": "y" * 900_000 for number in range(9)}
    write_skill(folder / "big", body="x" * 900_000, **parts)
    return folder


def sockets(server: Server) -> int:
    """Count the sockets of a server: the watch and the index open their own files whenever they start."""
    count = 0
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += os.readlink(link).startswith("socket:")
    return count


def published(server: Server) -> tuple[str, bytes]:
    """The digest of the one skill that the server publishes, and the head of a request for it."""
    (entry,) = json.loads(server.send("GET", "/.well-known/agent-skills/index.json").body)["skills"]
    return entry["digest"], f"GET {entry['url']} HTTP/1.1\r\nHost: localhost\r\n".encode()


def unread(server: Server, said: bytes, window: int = 4096) -> socket.socket:
    """A connection that asks for more than it reads."""
    bare = server.connect(receive_buffer=window)
    bare.sendall(said)
    return bare


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_who_does_not_read_an_answer_is_cut_off(tmp_path: Path) -> None:
    with http_serving(big(tmp_path), *IMPATIENT, "--max-connections", "4") as server:
        call = {"jsonrpc": "2.0", "method": "read_skill_file"}
        files = [{"name": "big", "path": f"references/part{number}.md"} for number in range(9)]
        batch = json.dumps([{**call, "id": number, "params": each} for number, each in enumerate(files)]).encode()
        head = b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        rpc = head % len(batch)
        asked = [published(server)[1] + b"\r\n", rpc + b"\r\n" + batch, rpc + b"Connection: close\r\n\r\n" + batch]
        opened = sockets(server)
        with ExitStack() as stack:
            for said in asked:
                stack.enter_context(unread(server, said))
            server.said("cut off a client that did not read its response for 0.8 s")
            until(lambda: sockets(server) <= opened)
            assert server.send("GET", "/healthz").status == 200


def test_the_end_of_the_server_cuts_off_who_does_not_read_without_a_traceback(tmp_path: Path) -> None:
    with http_serving(big(tmp_path)) as server, unread(server, published(server)[1] + b"\r\n") as bare:
        assert bare.recv(12) == b"HTTP/1.1 200"
        assert server.signal(signal.SIGTERM)[0] == 0


def test_who_reads_slowly_gets_it_all(tmp_path: Path) -> None:
    with http_serving(big(tmp_path), *IMPATIENT) as server:
        digest, head = published(server)
        raw = b""
        with unread(server, head + b"Connection: close\r\n\r\n", window=1 << 17) as bare:
            for _ in range(8):
                raw += bare.recv(1 << 17)
                answers(server, PROBE[:10])  # another connection that is given up is the clock
            while piece := bare.recv(1 << 20):
                raw += piece
        assert "sha256:" + hashlib.sha256(raw.partition(b"\r\n\r\n")[2]).hexdigest() == digest
        assert "cut off" not in server.stderr


LITTLE = """
from mcp_skills_server.web.connections import Unread
Unread.__init__.__defaults__ = (32 << 20, None)
from mcp_skills_server.cli import main
main()
"""
"""The program where 32 MiB may wait, and not 128."""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and all of 127.0.0.0/8")
def test_answers_that_nobody_reads_take_a_bounded_memory(tmp_path: Path) -> None:
    """10.4: requests of 300 bytes for a file of 12 MiB took 16 MiB of memory each, for two minutes, without an end."""
    write_skill(tmp_path / "big", file_txt="0123456789abcde\n" * (15 << 14))
    uri = "skill://big/file.txt"
    # As our image sets it: by itself glibc keeps what was freed.
    command, environment = [sys.executable, "-c", LITTLE], {"MALLOC_TRIM_THRESHOLD_": "131072"}
    with http_serving(tmp_path, command=command, environment=environment) as server, ExitStack() as stack:
        server.said("serving 1 skill ")
        before = server.resident()
        other = stack.enter_context(client(server, "modern"))
        request = other.raw(other.message("resources/read", {"uri": uri}))
        for _ in range(30):
            bare = stack.enter_context(unread(server, request))
            assert bare.recv(15, socket.MSG_PEEK) in (b"HTTP/1.1 200 OK", b"")
        server.said("cut off a client that did not read its response")
        assert server.resident() - before < 90 * MIB
        assert len(other.read(uri)) == 15 * MIB // 4


SMALL = """
from mcp_skills_server.web import serving
serving._SEND_BUFFER = 4096
from mcp_skills_server.cli import main
main()
"""
"""The program whose sockets hold little that is not read."""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_streams_that_nobody_reads_hold_up_no_other_and_take_a_bounded_memory(tmp_path: Path) -> None:
    names = [f"{'x' * 60}-{number}" for number in range(300)]
    uris = [f"skill://many/{name}.md" for name in names]
    write_skill(tmp_path / "many", **{f"{name}_md": "" for name in names})
    with http_serving(tmp_path, command=[sys.executable, "-c", SMALL]) as server, ExitStack() as stack:
        other = stack.enter_context(client(server, "modern"))
        heard = other.listen(resourceSubscriptions=uris)
        listen = other.message("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
        for _ in range(40):
            assert stack.enter_context(unread(server, other.raw(listen))).recv(15, socket.MSG_PEEK)
        resident: list[int] = []
        for number in range(6):
            write_skill(tmp_path / "many", **{f"{name}_md": str(number) for name in names})
            missing = set(uris)
            while missing:
                message = heard.next()
                assert message is not None
                missing.discard(message["params"]["uri"])
            resident.append(server.resident())
        assert resident[-1] - resident[0] < 8 * MIB
