"""File names that some platform cannot hold or tell apart, or whose characters nobody sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final
from unicodedata import normalize

from mcp_skills_server.codes import problem
from mcp_skills_server.format import hidden
from mcp_skills_server.model import Problem

_NOT_ON_WINDOWS: Final = re.compile(r"[<>:\"|?*\x00-\x1f]|[ .]\Z")
_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z)", re.IGNORECASE)


def unportable(paths: Iterable[str]) -> Iterator[tuple[str, Problem]]:
    """Warn of file names that a platform cannot hold, each with the file's path."""
    seen: dict[str, str] = {}
    for path in paths:
        for segment in path.split("/"):
            unseen = next(hidden.find(segment), None)
            if unseen is not None:
                said = f"the name {_short(segment)} holds the invisible character U+{ord(unseen[1]):04X}"
                yield path, problem("hidden-characters", said, hint="rename the file without it")
            elif _NOT_ON_WINDOWS.search(segment) or _RESERVED.match(segment):
                yield path, problem("file-name-portable", f"Windows cannot hold the name {_short(segment)}")
        other = seen.setdefault(normalize("NFC", path).casefold(), path)
        if other != path:
            yield path, problem("file-name-portable", f"many platforms cannot tell it from {_short(other)}")


def _short(text: str) -> str:
    line = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
    return line if len(line) <= 60 else line[:57] + "..."
