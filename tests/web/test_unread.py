"""Answers that nobody reads: what waits for all clients together is bounded, and whoever keeps most waiting pays."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.web.connections import Slot, Slots, Unread
from web.http_wire import client, http_serving
from wire import write_skill

MIB = 1 << 20
LITTLE = """
from mcp_skills_server.web.connections import Unread
Unread.__init__.__defaults__ = (32 << 20, None)
from mcp_skills_server.cli import main
main()
"""
"""The program where 32 MiB may wait, and not 128."""


def waiting(owner: str, ended: list[str], name: str) -> Slot:
    return Slot(Slots(1, 1), owner, lambda: ended.append(name))


def test_the_owner_with_most_loses_its_oldest(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []
    unread = Unread(most=10 * MIB)
    greedy = [waiting("greedy", ended, f"greedy {number}") for number in range(5)]
    modest = [waiting(f"modest {number}", ended, f"modest {number}") for number in range(3)]
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
    assert ended == ["greedy 0", "greedy 1", "greedy 2", "greedy 3", "greedy 4"]
    assert set(caplog.messages) == {"cut off a client that left its answer unread: more than 10 MiB waited in all"}


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
            bare = stack.enter_context(server.connect(receive_buffer=4096))
            bare.sendall(request)
            assert bare.recv(15, socket.MSG_PEEK) in (b"HTTP/1.1 200 OK", b"")
        server.said("cut off a client that left its answer unread")
        assert server.resident() - before < 90 * MIB
        assert len(other.read(uri)) == 15 * MIB // 4


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(1, 9)), max_size=40), st.integers(1, 12)
)
def test_beyond_a_share_only_ones_own_connections_are_ended_and_the_last_one_stays(
    steps: list[tuple[str, int, int]], share: int
) -> None:
    ended: list[str] = []
    unread = Unread(most=1 << 30, share=share)
    places = {(owner, number): waiting(owner, ended, owner) for owner in "abc" for number in range(5)}
    left: dict[str, dict[int, int]] = {owner: {} for owner in "abc"}
    for owner, number, size in steps:
        unread.add(places[owner, number], size)
        mine = left[owner]
        mine.pop(number, None)
        mine[number] = size
        goes = 0
        while len(mine) > 1 and sum(mine.values()) > share:
            del mine[next(iter(mine))]
            goes += 1
        assert ended == [owner] * goes
        ended.clear()
