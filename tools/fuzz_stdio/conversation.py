"""Conversations with a server, short ones and long ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

from tools.fuzz_stdio.lines import opening, wild
from tools.fuzz_stdio.server import Count, FuzzError, Server

LONG_S: Final = 45.0
"""Seconds of a process whose growth is looked at."""
MOST_GROWTH: Final = 8 << 20
"""Bytes by which a process may be larger at its end than after a third of its life."""
_ENDS: Final = ("close", "half", "terminate")


def converse(server: Server, dice: random.Random, corpus: list[bytes], goes_on: Callable[[int], bool]) -> Iterator[int]:
    """Talk while it goes on; after each round its number."""
    modern, number = dice.random() < 0.5, 1000
    if dice.random() < 0.7:  # it begins as it should
        for line in opening(modern=modern):
            server.say(line, dice)
    turn = 0
    while goes_on(turn):
        for _ in range(dice.randrange(1, 12)):
            number += 10
            for line in wild(dice, corpus, number, modern=modern):
                server.say(line, dice)
        server.settle()
        server.leave_streams(dice)
        yield turn
        turn += 1


def grown(dice: random.Random, lines: list[bytes], seconds: float, count: Count) -> None:
    """A long conversation.

    Raises:
        FuzzError: the process does what it must not, or has grown.
    """
    server = Server(count)
    try:
        begun = monotonic()
        sizes: list[tuple[float, int, int]] = []
        for turn in converse(server, dice, lines, lambda _: monotonic() - begun < seconds):
            if turn % 10 == 0:
                sizes.append((monotonic() - begun, *server.held()))
        third = [each for each in sizes if seconds / 3 <= each[0] < seconds * 2 / 3]
        last = [each for each in sizes if each[0] >= seconds * 2 / 3]
        if third and last:
            growth = min(each[1] for each in last) - min(each[1] for each in third)
            count.grown.append(growth)
            if growth > MOST_GROWTH:
                raise FuzzError(f"it grew by {growth:,} bytes in {seconds * 2 / 3:.0f} s")
            if min(each[2] for each in last) > max(each[2] for each in third):
                raise FuzzError(f"it holds {last[-1][2]} descriptors, and held {third[0][2]}")
        server.end("close")
    finally:
        server.kill()


def short(dice: random.Random, lines: list[bytes], count: Count) -> None:
    """A short conversation with some end.

    Raises:
        FuzzError: the process does what it must not.
    """
    server = Server(count)
    try:
        most = dice.randrange(1, 8)
        for _ in converse(server, dice, lines, lambda turn: turn < most):
            pass
        server.end(dice.choice(_ENDS))
    finally:
        server.kill()
