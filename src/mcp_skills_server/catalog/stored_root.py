"""What an earlier process knew of a root, as lines of text: readings and digests, each under a stat signature.

One line for each skill, decoded when the skill is looked at, so a start pays for what it uses. A line that means
nothing is as good as none: the scan reads the files. Pure: bytes in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from mcp_skills_server.model import SKILL_MD, Json, Problem, Reading, Skill, Standing

Digests: TypeAlias = "Mapping[str, tuple[str, str]]"
"""The digest of each file and the signature that it stands for, by its place below the root. What is in it is not
judged before it is used."""

Reread: TypeAlias = Callable[[int, int], bytes]
"""Reads from an offset so many bytes."""

_THEN: Final = b"\t"
"""What comes between a record and the opening of its body: no JSON that we write has one."""
_OF_THE_MOMENT: Final = frozenset(("unreadable", "skill-md-too-large"))
"""Problems of a SKILL.md whose bytes were not read: the next process must try."""


class StoredFolder(NamedTuple):
    """What was known of the folder of a skill.

    Attributes:
        mark: of its directories together, as `unchanged` makes it.
        inner: the directories in it, by their paths in the skill, each behind the one that holds it.
        empty: those of them without a file that is served.
    """

    mark: bytes
    inner: Sequence[str]
    empty: Sequence[str]


class StoredSkill(NamedTuple):
    """What was known of one skill.

    Attributes:
        digests: of its files.
        signature: of the SKILL.md that was read, "" where none was.
        reading: what it said, None where that is not known. Its problems have no place.
        folder: None where nothing is known but files; else all that are served are in `digests`.
    """

    digests: Digests
    signature: str
    reading: Reading | None
    folder: StoredFolder | None = None


_DECODER: Final = json.JSONDecoder()
_NOTHING: Final = StoredSkill({}, "", None)


class StoredRoot:
    """The skills of one root as an earlier process left them. Any thread may use it.

    Args:
        raw: holds the lines, each with what ends it. They are not cut into pieces, because they are many megabytes
            that are let go of soon.
        begin: where in `raw` the first one begins.
        end: where the last one ends.
        directories: of the skills below the root, in the order of the lines.
        complain: called when a line means nothing, the first time.
        reread: reads a part of `raw` once more when that is gone; None keeps what would be read.

    Raises:
        ValueError: there is not one line for each directory.
    """

    def __init__(
        self,
        raw: bytes,
        begin: int,
        end: int,
        directories: Sequence[str],
        *,
        complain: Callable[[], None],
        reread: Reread | None = None,
    ) -> None:
        self._raw = raw
        self._reread = reread
        self._spans: dict[str, slice] = {}
        for directory in directories:
            stop = raw.index(b"\n", begin, end)
            self._spans[directory] = slice(begin, stop)
            begin = stop + 1
        if begin != end:
            raise ValueError("more lines than directories")
        self._complain: Callable[[], None] | None = complain

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, directory: str) -> bool:
        return directory in self._spans

    @property
    def directories(self) -> Iterable[str]:
        """Of all skills, below the root."""
        return self._spans

    def skill(self, directory: str) -> StoredSkill:
        """What was known of the skill in this directory; of another it is nothing."""
        span = self._spans.get(directory)
        if span is None:
            return _NOTHING
        try:
            end = self._raw.index(_THEN, span.start, span.stop)
            opening = _opening(self._raw, end + 1, span.stop, self._reread)
            return _decode(_value(self._raw[span.start : end]), opening)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            complain, self._complain = self._complain, None
            if complain is not None:
                complain()
            return _NOTHING


def _opening(raw: bytes, begin: int, end: int, reread: Reread | None) -> str | Callable[[], str]:
    if begin == end:
        return ""
    return _text(raw[begin:end]) if reread is None else _Opening(reread, begin, end - begin)


class _Opening:
    """How a body begins, which only a search wants to know: it stays in the index file until it is asked for."""

    __slots__ = ("_begin", "_length", "_reread")

    def __init__(self, reread: Reread, begin: int, length: int) -> None:
        self._reread, self._begin, self._length = reread, begin, length

    def __call__(self) -> str:
        try:
            return self.read()
        except (OSError, ValueError):
            return ""

    def read(self) -> str:
        """The text.

        Raises:
            OSError: the file cannot be read.
            ValueError: somebody wrote into it.
        """
        return _text(self._reread(self._begin, self._length))


def _text(raw: bytes) -> str:
    return str(_value(raw))


def _value(raw: bytes) -> Any:
    """What the JSON is, which has no blanks around it."""
    value, end = _DECODER.raw_decode(raw.decode("ascii"))
    if end != len(raw):
        raise ValueError
    return value


def encode(skill: Skill, mark: bytes = b"") -> bytes | None:
    """The line of this skill, with what ends it, None where nothing can be said of it.

    A file that was so young at its scan that a later write could leave the same signature is left out. `mark` is that
    of its folder, b"" where it has none.
    """
    files = {
        file.location: (file.digest, file.signature)
        for file in skill.files.values()
        if file.mtime_reliable and file.digest and file.signature
    }
    manifest, reading = skill.files.get(SKILL_MD), skill.reading
    read: list[Any] | None = None
    if manifest is not None and manifest.mtime_reliable and manifest.digest and manifest.signature:
        problems = [(each.code, each.severity, each.message, each.hint, each.line) for each in reading.problems]
        if not any(code in _OF_THE_MOMENT for code, *_ in problems):
            standing = int(reading.standing)
            read = [manifest.signature, reading.frontmatter, reading.heading, standing, problems, reading.headings]
    if read is None and not files:
        return None
    folder: tuple[str, list[str], Sequence[str]] | None = None
    if mark and read is not None and len(files) == len(skill.files) and not skill.findings:
        folder = mark.hex(), directories_in(skill), skill.empty
    try:
        record = json.dumps([files, read, folder], separators=(",", ":")).encode("ascii")
        opening = reading.opening.read() if isinstance(reading.opening, _Opening) else reading.opening_text
        return b"%b%b%b\n" % (record, _THEN, b"" if read is None else json.dumps(opening).encode("ascii"))
    except (OSError, ValueError, TypeError, RecursionError):  # a number of thousands of digits, say
        return None


def directories_in(skill: Skill) -> list[str]:
    """The directories in a skill, each behind the one that holds it."""
    found = set(skill.empty)
    for path in (*skill.files, *skill.empty):
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return sorted(found)


def _decode(record: Any, opening: str | Callable[[], str]) -> StoredSkill:
    digests, read, folder = record
    if not isinstance(digests, dict):
        raise ValueError
    digests = cast("Digests", digests)
    if read is None:
        return StoredSkill(digests, "", None)
    signature, fields, heading, standing, problems, headings = read
    reading = Reading(
        cast("dict[str, Json]", fields),
        _text_or_none(heading),
        Standing(standing),
        tuple(map(_problem, problems)),
        tuple(str(each) for each in headings),
        opening,
    )
    return StoredSkill(digests, str(signature), reading, None if folder is None else _folder(*folder))


def _folder(mark: str, inner: Iterable[object], empty: Iterable[object]) -> StoredFolder:
    return StoredFolder(bytes.fromhex(mark), [str(each) for each in inner], [str(each) for each in empty])


def _problem(fields: Sequence[Any]) -> Problem:
    code, severity, message, hint, line = fields
    if severity not in ("error", "warning") or not (line is None or isinstance(line, int)):
        raise ValueError
    return Problem(str(code), severity, str(message), str(hint), line)


def _text_or_none(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError
