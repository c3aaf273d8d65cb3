"""What Linux shows of processes in /proc. Elsewhere, and of a process that has ended meanwhile, it is nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator


def entries(directory: str) -> list[str]:
    """The names in a directory; none if it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def content(path: str) -> bytes:
    """What a file holds; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def lines(path: str) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    return content(path).decode(errors="replace").splitlines()


def family(pid: int) -> Iterator[int]:
    """A process and all that descends from it."""
    todo, seen = [pid], {pid}
    while todo:
        here = todo.pop()
        yield here
        for task in entries(f"/proc/{here}/task"):
            for word in content(f"/proc/{here}/task/{task}/children").split():
                child = int(word)
                if child not in seen:
                    seen.add(child)
                    todo.append(child)


def having(variable: str, value: str) -> Iterator[int]:
    """The processes whose environment has this variable, as far as we may look."""
    mark = f"{variable}={value}".encode()
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit() and mark in content(f"/proc/{name}/environ"):
            yield int(name)
