"""How far a long command has come, for a person who waits: on stderr, and only where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

import click

_T = TypeVar("_T")


def progress(items: Iterable[_T], *, length: int, label: str) -> Iterator[_T]:
    """These items one by one, with a bar on stderr while they are worked on; none where stderr is no terminal.

    Args:
        items: what is worked on.
        length: how many there are.
        label: what is done with them.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    with click.progressbar(items, length=length, label=label, file=sys.stderr) as bar:
        yield from bar
