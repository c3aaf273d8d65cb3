"""How file descriptors are shared out, with plain values and in processes that may have few."""

from __future__ import annotations

import errno
import selectors
import socket
import subprocess
import sys
from typing import Any

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.web import last_arrivals
from mcp_skills_server.web.last_arrivals import drops_who_is_new, fill
from mcp_skills_server.web.listen import Budget, budget, open_listener
from wire import DEADLINE


def test_descriptors_are_shared_out_and_never_more_than_there_are() -> None:
    assert budget(1000, 20_000, 10) == Budget(1000, 8, 16)
    for limit in range(16, 4000):
        given = budget(1000, limit, 7)
        assert min(given.places, given.spare, given.arriving) >= 1
        left = limit - 7 - given.places - given.spare - given.arriving
        assert left >= 6 and (left >= 128 or given.places <= limit // 2)


def test_the_least_that_is_told_is_enough() -> None:
    with pytest.raises(UsageError, match="at least 16 "):
        budget(1000, 10, 7)
    assert budget(1000, 16, 7).places == 1


LIMITED = """
import logging, resource, sys
from mcp_skills_server.web.listen import _open_files, allowance
logging.basicConfig(format="%(message)s")
used = _open_files()
soft, hard = (used + int(each) for each in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
given = allowance(1000)
print(given.places, given.spare, given.arriving, *(each - used for each in resource.getrlimit(resource.RLIMIT_NOFILE)))
"""
NEEDED = 1000 + 8 + 16 + 128
"""Descriptors for 1,000 connections, beside those that are open already."""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
@pytest.mark.parametrize(
    ("soft", "hard", "raised", "places"),
    [
        (NEEDED, NEEDED, NEEDED, 1000),
        (NEEDED + 100, NEEDED + 200, NEEDED + 100, 1000),
        (NEEDED - 1, NEEDED + 200, NEEDED, 1000),
        (300, NEEDED, NEEDED, 1000),
        (300, NEEDED - 1, NEEDED - 1, 999),
        (NEEDED - 1, NEEDED - 1, NEEDED - 1, 999),
    ],
)
def test_the_limit_of_the_process_is_raised_as_far_as_it_needs_and_may(
    soft: int, hard: int, raised: int, places: int
) -> None:
    command = [sys.executable, "-c", LIMITED, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=DEADLINE)
    assert [int(each) for each in done.stdout.split()] == [places, 8, 16, raised, hard]
    assert done.stderr.startswith("999 connections at once, not 1000 (--max-connections)") or places == 1000
    assert done.stderr.count("\n") == (0 if places == 1000 else 1)


def takes_filters() -> bool:
    """Whether the kernel lets this user filter what a TCP socket hears."""
    with open_listener("127.0.0.1", 0) as listener:
        return drops_who_is_new(listener)


@pytest.mark.skipif(sys.platform != "linux", reason="a queue of Linux")
@pytest.mark.parametrize(
    "is_filter",
    [pytest.param(True, marks=pytest.mark.skipif(not takes_filters(), reason="this kernel takes it from root")), False],
)
def test_who_comes_in_the_last_moment_is_refused_and_who_came_before_is_heard(is_filter: bool) -> None:
    with (
        open_listener("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()) as early,
        socket.socket() as late,
    ):
        early.sendall(b"asked")
        if is_filter:
            assert drops_who_is_new(listener)
            accepted, filler = listener.accept()[0], None
        else:
            [accepted], filler = fill(listener)
            assert filler is not None
        late.setblocking(False)
        late.connect_ex(listener.getsockname())
        early.sendall(b" on")
        with accepted:
            assert accepted.getpeername() == early.getsockname()
            accepted.settimeout(DEADLINE)
            assert accepted.recv(8, socket.MSG_WAITALL) == b"asked on"
        if filler is not None:
            listener.accept()[0].close()  # the filler itself
            filler.close()
        with pytest.raises(BlockingIOError):
            listener.accept()
        listener.close()  # nobody was connected, so nobody loses what it has asked
        with selectors.DefaultSelector() as selector:
            selector.register(late, selectors.EVENT_WRITE)
            assert selector.select(DEADLINE)
        assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


@pytest.mark.skipif(sys.platform != "linux", reason="a queue of Linux")
def test_who_takes_the_last_place_of_the_queue_is_accepted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_listener("127.0.0.1", 0) as listener, socket.socket() as between:
        accept = last_arrivals._accept

        def and_then_somebody_comes(*given: Any) -> bool:
            is_empty = accept(*given)
            if between.getsockname()[1] == 0:
                between.connect(listener.getsockname())
            return is_empty

        monkeypatch.setattr(last_arrivals, "_accept", and_then_somebody_comes)
        [accepted], filler = fill(listener)
        assert filler is not None and accepted.getpeername() == between.getsockname()
        accepted.close()
        filler.close()


@pytest.mark.skipif(sys.platform != "linux" or not takes_filters(), reason="this kernel takes it from root")
def test_a_listener_that_cannot_be_reached_from_here_is_not_filled_and_not_tried_for_ever() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        assert drops_who_is_new(listener)  # as a firewall does, or half connected strangers where there are no cookies
        assert fill(listener) == ([], None)
