"""What an earlier process knew of a root, as lines of text: readings and digests, each under a stat signature.

One line for each skill, decoded when the skill is looked at, so a start pays for what it uses. A line that means
nothing is as good as none: the scan reads the files. Pure: bytes in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from mcp_skills_server.catalog.shared_texts import shared
from mcp_skills_server.model import SKILL_MD, Json, Problem, Reading, Skill, Standing

Digests: TypeAlias = "Mapping[str, tuple[str, str]]"
"""The digest of each file and the signature that it stands for, by its place below the root. What is in it is not
judged before it is used."""

_OF_THE_MOMENT: Final = frozenset(("unreadable", "skill-md-too-large"))
"""Problems of a SKILL.md whose bytes were not read: the next process must try."""


class StoredSkill(NamedTuple):
    """What was known of one skill.

    Attributes:
        digests: of its files.
        signature: of the SKILL.md that was read, "" where none was.
        reading: what it said, None where that is not known. Its problems have no place.
    """

    digests: Digests
    signature: str
    reading: Reading | None


_DECODER: Final = json.JSONDecoder()
_NOTHING: Final = StoredSkill({}, "", None)


class StoredRoot:
    """The skills of one root as an earlier process left them. Any thread may use it.

    Args:
        raw: the lines, each with what ends it but the last. They are not cut into pieces, because they are many
            megabytes that are let go of soon.
        begin: where in `raw` the first one begins.
        directories: of the skills below the root, in the order of the lines.
        complain: called when a line means nothing, the first time.

    Raises:
        ValueError: there is not one line for each directory.
    """

    def __init__(self, raw: bytes, begin: int, directories: Sequence[str], complain: Callable[[], None]) -> None:
        self._raw = raw
        self._spans: dict[str, slice] = {}
        for directory in directories:
            if begin > len(raw):
                raise ValueError("fewer lines than directories")
            end = raw.find(b"\n", begin)
            end = len(raw) if end < 0 else end
            self._spans[directory] = slice(begin, end)
            begin = end + 1
        if begin <= len(raw):
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
            return _decode(_DECODER.decode(self._raw[span].decode("ascii")))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            complain, self._complain = self._complain, None
            if complain is not None:
                complain()
            return _NOTHING


def encode(skill: Skill) -> bytes | None:
    """The line of this skill, None where nothing can be said of it.

    A file that was so young at its scan that a later write could leave the same signature is left out.
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
            read.append(reading.opening)
    if read is None and not files:
        return None
    try:
        return json.dumps([files, read], separators=(",", ":")).encode("ascii")
    except (ValueError, TypeError, RecursionError):  # a number of thousands of digits, say
        return None


def _decode(record: Any) -> StoredSkill:
    digests, read = record
    if not isinstance(digests, dict):
        raise ValueError
    digests = cast("Digests", digests)
    if read is None:
        return StoredSkill(digests, "", None)
    signature, fields, heading, standing, problems, headings, opening = read
    reading = Reading(
        shared(cast("dict[str, Json]", fields)),
        _text_or_none(heading),
        Standing(standing),
        tuple(map(_problem, problems)),
        tuple(str(each) for each in headings),
        str(opening),
    )
    return StoredSkill(digests, str(signature), reading)


def _problem(fields: Sequence[Any]) -> Problem:
    code, severity, message, hint, line = fields
    if severity not in ("error", "warning") or not (line is None or isinstance(line, int)):
        raise ValueError
    return Problem(str(code), severity, str(message), str(hint), line)


def _text_or_none(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError
