"""Diff of two states of a skill, with the parts that matter most to a reviewer first.

The order is: description and permissions, scripts, hidden text, links, other fields of the
frontmatter, and unified diffs of the text files. The lines hold untrusted text, which must be
escaped before it is printed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from mcp_skills_server.format import frontmatter, hidden
from mcp_skills_server.model import SIGNATURE_FILE, SKILL_MD

_FIRST: Final = ("name", "description", "allowed-tools", "hooks")
"""Fields that decide when a skill is used and what it may do."""
_URL: Final = re.compile(r"\bhttps?://[^\s<>\"'`\])}]{1,2000}", re.IGNORECASE)
_MAX_LINES: Final = 2_000
"""Most differing lines of a file that are compared, since comparison may take quadratic time."""
_MAX_SHOWN: Final = 20
_CONTEXT: Final = 3

Files: TypeAlias = Mapping[str, tuple[bytes, bool]]
"""The files of a skill in one state: (content, is executable) by path in the skill."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two states of a skill."""

    path: str
    kind: str
    """One of "added", "removed" and "changed"."""
    important: tuple[str, ...]
    """The lines that matter most to a reviewer."""
    others: tuple[str, ...]
    """The other lines: other fields, files, unified diffs."""


def compare(path: str, before: Files | None, after: Files | None) -> Difference | None:
    """Compare two states of a skill, None if absent; return None for equal ones."""
    if before == after:
        return None
    if after is None:
        return Difference(path, "removed", (), ())
    old, new = before or {}, after
    fields = dict(_fields(old, new))
    first = (
        *(fields.pop(name) for name in _FIRST if name in fields),
        *_scripts(old, new), *_hidden(old, new), *_links(old, new),
    )  # fmt: skip
    if before is None:  # a new skill: list its files without diffs
        return Difference(path, "added", first, tuple(f"file {file}" for file in sorted(new)))
    return Difference(path, "changed", first, (*fields.values(), *_files(path, old, new)))


def _fields(old: Files, new: Files) -> Iterator[tuple[str, str]]:
    """Yield (name, line) of the frontmatter fields that differ, sorted."""
    before, after = _frontmatter(old), _frontmatter(new)
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was is None and now is not None:
            yield name, f"{name}: {_shown(now)}"
        elif was != now:
            yield name, f"{name}: {_shown(was)} -> {_shown(now)}"


def _frontmatter(files: Files) -> Mapping[str, object]:
    return (frontmatter.parse(files[SKILL_MD][0]).frontmatter or {}) if SKILL_MD in files else {}


def _shown(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _scripts(old: Files, new: Files) -> Iterator[str]:
    for path in sorted(new):
        raw, executable = new[path]
        if not (path.startswith("scripts/") or executable or raw.startswith(b"#!")):
            continue
        if path not in old:
            yield f"script new: {path}"
        elif old[path] != new[path]:
            yield f"script changed: {path}"


def _hidden(old: Files, new: Files) -> Iterator[str]:
    """Yield lines for files with more hidden characters than before, which a diff does not show."""
    for path in sorted(new):
        was, now = (hidden.count(_text(files.get(path, (b"",))[0]) or "") for files in (old, new))
        if now > was:
            more = f"{now - was:,} more than before"
            yield f"hidden text: {path} has {now:,} invisible characters, {more}"


def _links(old: Files, new: Files) -> Iterator[str]:
    addresses = sorted(_addresses(new) - _addresses(old))
    for address in addresses[:_MAX_SHOWN]:
        yield f"link new: {address}"
    if len(addresses) > _MAX_SHOWN:
        yield f"and {len(addresses) - _MAX_SHOWN:,} more links"


def _addresses(files: Files) -> set[str]:
    return {url for raw, _ in files.values() for url in _URL.findall(_text(raw) or "")}


def _files(path: str, old: Files, new: Files) -> Iterator[str]:
    for file in sorted(old.keys() | new.keys()):
        if file not in new:
            yield f"file removed: {file}"
        elif file not in old:
            yield f"file added: {file} ({len(new[file][0]):,} bytes)"
            if file != SIGNATURE_FILE:
                yield from _unified(f"{path}/{file}", b"", new[file][0])
        else:
            if old[file][1] != new[file][1]:
                yield f"file {file} may {'now' if new[file][1] else 'no longer'} be executed"
            if old[file][0] != new[file][0]:
                yield from _unified(f"{path}/{file}", old[file][0], new[file][0])


def _unified(path: str, before: bytes, after: bytes) -> Iterator[str]:
    was, now = _text(before), _text(after)
    if was is None or now is None:
        yield f"file {path}: {len(before):,} bytes -> {len(after):,} bytes, not text"
        return
    if path.endswith(f"/{SIGNATURE_FILE}"):
        yield f"file {path} is a different signature"
        return
    old, new = _lines(was), _lines(now)
    start = common_length(old, new)
    end = common_length(old[start:][::-1], new[start:][::-1])
    count = max(len(old), len(new)) - start - end
    if count > _MAX_LINES:
        differ = f"about {count:,} lines are different from line {start + 1} on"
        yield f"file {path}: {differ}, too many to compare"
        return
    # Compare only the lines between the common prefix and suffix, with lines of context.
    begin, stop = max(0, start - _CONTEXT), max(0, end - _CONTEXT)
    old, new = old[begin : len(old) - stop], new[begin : len(new) - stop]
    yield f"--- a/{path}"
    yield f"+++ b/{path}"
    # Skip the two header lines, which are yielded above.
    for line in islice(difflib.unified_diff(old, new, lineterm="", n=_CONTEXT), 2, None):
        yield _renumbered(line, begin) if line.startswith("@@") else line


def unified(name: str, before: str, after: str) -> str:
    """Return a unified diff of two states of a file for `patch`, or "" if they are equal."""
    return "\n".join(difflib.unified_diff(_lines(before), _lines(after), name, name, lineterm=""))


def _lines(text: str) -> list[str]:
    """Split a file into lines, and mark a last line without a newline as `diff` does."""
    lines = text.split("\n")
    last = lines.pop()
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


def common_length(old: list[str], new: list[str]) -> int:
    """Return the length of the common prefix of two lists of lines."""
    return next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )


def _renumbered(line: str, by: int) -> str:
    """Return the header of a hunk with `by` added to its line numbers."""
    return re.sub(r"(?<=[-+])\d+", lambda match: str(int(match[0]) + by), line)


def _text(raw: bytes) -> str | None:
    """Decode bytes as text, or return None if they are binary."""
    if b"\0" in raw:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
