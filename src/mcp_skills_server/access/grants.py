"""Authorization: which principals may read which skills, and do what else, by the tables `[[grant]]`. Pure.

A skill is granted by its own path. A pattern is text and never a regular expression: `*` stands for any characters of
one segment, `**` for any number of segments, none included. To judge a path takes time in proportion to its length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.errors import SkillsServerError

May: TypeAlias = Literal["read", "scripts", "code", "propose", "review", "admin"]
MAY: Final[tuple[May, ...]] = ("read", "scripts", "code", "propose", "review", "admin")
EVERYBODY: Final = "*"
LOCAL: Final = "local"
"""Who is at the other end of a pipe: the user who started the server."""
KINDS: Final = ("token", "user", "group")
_MOST_CHARACTERS: Final = 512
_MOST_SEGMENTS: Final = 64
EVERY_SKILL: Final = "**"
"""The pattern of all skills, and the segment for any number of segments."""
_NOT_TAKEN: Final = frozenset("?[]{}\\")
"""Wildcards of other programs, which would be taken for themselves here."""
_LAST: Final = "\U0010ffff"
_MOST_KNOWN: Final = 4096
"""Principals whose permissions are remembered."""


class PatternError(SkillsServerError, ValueError):
    """A text is no pattern of skill paths. The message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Skill paths, such as `acme/billing/**`.

    Attributes:
        text: as it stands in a grant.
        prefix: what stands before the first wildcard; every path that fits begins so, but for a slash at its end.

    Raises:
        PatternError: the text is no pattern.
    """

    text: str
    prefix: str = field(init=False, compare=False)
    _parts: tuple[tuple[tuple[str, ...], ...], ...] = field(init=False, repr=False, compare=False)
    """The runs of segments between `**`; each segment as the texts between its `*`."""

    def __post_init__(self) -> None:
        segments = self.text.split("/")
        _check(self.text, segments)
        runs: list[list[tuple[str, ...]]] = [[]]
        for each in segments:
            if each == EVERY_SKILL:
                runs.append([])
            else:
                runs[-1].append(tuple(each.split("*")))
        object.__setattr__(self, "prefix", self.text.partition("*")[0])
        object.__setattr__(self, "_parts", tuple(map(tuple, runs)))

    @property
    def fits_all(self) -> bool:
        """Return whether every skill path is one of these, of skills to come too."""
        return self.text == EVERY_SKILL

    def fits(self, path: str) -> bool:
        """Return whether a skill path is one of these."""
        if self.prefix == self.text:
            return path == self.text
        if not path.startswith(self.prefix.removesuffix("/")):
            return False
        segments = path.split("/")
        first, *rest = self._parts
        if not rest:
            return len(first) == len(segments) and _run_fits(first, segments, 0)
        *between, last = rest
        end = len(segments) - len(last)
        if end < len(first) or not _run_fits(first, segments, 0) or not _run_fits(last, segments, end):
            return False
        # Of what lies between, the first place that fits leaves most for the rest.
        start = len(first)
        for run in between:
            found = next((at for at in range(start, end - len(run) + 1) if _run_fits(run, segments, at)), None)
            if found is None:
                return False
            start = found + len(run)
        return True


def _check(text: str, segments: Sequence[str]) -> None:
    if not text or len(text) > _MOST_CHARACTERS or len(segments) > _MOST_SEGMENTS:
        most = f"{_MOST_CHARACTERS} characters and {_MOST_SEGMENTS} segments"
        raise PatternError("a pattern is empty" if not text else f"a pattern has more than {most}")
    if not text.isprintable():
        raise PatternError("a pattern has characters that cannot be printed")
    if text.startswith("!") or not _NOT_TAKEN.isdisjoint(text):
        raise PatternError("a pattern has no wildcards but * and **, and nothing is taken back by !")
    for each in segments:
        if each in {"", ".", ".."}:
            raise PatternError("a pattern has an empty segment, or . or ..")
        if EVERY_SKILL in each and each != EVERY_SKILL:
            raise PatternError("** is a segment of its own")


def _run_fits(run: Sequence[tuple[str, ...]], segments: Sequence[str], start: int) -> bool:
    return all(_segment_fits(parts, segments[start + number]) for number, parts in enumerate(run))


def _segment_fits(parts: tuple[str, ...], text: str) -> bool:
    """Return whether a segment is these texts in their order with anything between them."""
    if len(parts) == 1:
        return text == parts[0]
    first, *between, last = parts
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in between:
        position = text.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return True


@dataclass(frozen=True, slots=True)
class Grant:
    """The permissions of one `[[grant]]` table.

    Attributes:
        who: "*", "local", or "token:NAME", "user:SUBJECT", "group:NAME".
        skills: which skills.
        may: what may be done with them; to read is always part of it.
    """

    who: tuple[str, ...]
    skills: tuple[Pattern, ...]
    may: frozenset[str] = frozenset()

    def covers(self, path: str) -> bool:
        """Return whether it is about the skill of this path."""
        return any(each.fits(path) for each in self.skills)

    @property
    def covers_all(self) -> bool:
        """Return whether it is about every skill."""
        return any(each.fits_all for each in self.skills)


def is_who(text: str) -> bool:
    """Return whether this names a principal in a grant."""
    kind, _, name = text.partition(":")
    return text in {EVERYBODY, LOCAL} or (kind in KINDS and bool(name.strip()) and text.isprintable())


class Permissions:
    """The permissions of a principal: the grants that apply. Those that give the same are equal, in any order."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self.grants = tuple(grants)
        self._given = frozenset((pattern, each.may - {"read"}) for each in self.grants for pattern in each.skills)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Permissions) and self._given == other._given)

    def __hash__(self) -> int:
        return hash(self._given)

    def reads(self, path: str) -> bool:
        """Return whether the skill of this path may be read."""
        return any(each.covers(path) for each in self.grants)

    @property
    def reads_all(self) -> bool:
        """Return whether there is no skill that may not be read."""
        return any(each.covers_all for each in self.grants)

    def may(self, what: str, path: str) -> bool:
        """Return whether this may be done with the skill of this path; `what` is one of `MAY`."""
        if what == "read":
            return self.reads(path)
        return any(what in each.may and each.covers(path) for each in self.grants)

    def may_any(self, what: str) -> bool:
        """Return whether this may be done with some skill, if there is one that is granted so."""
        return any(what in each.may for each in self.grants)

    @property
    def may_admin(self) -> bool:
        """Return whether what is for the operator may be seen; a grant of some skills is not enough."""
        return any("admin" in each.may and each.covers_all for each in self.grants)

    def readable(self, paths: Sequence[str]) -> Iterator[str]:
        """Yield those of these skill paths, which are in code point order, that may be read, each once.

        It looks only where the beginning of a pattern leads, so it costs about what it finds.
        """
        seen: set[str] = set()
        for pattern in {each for grant in self.grants for each in grant.skills}:
            for path in _beginning(pattern.prefix, paths):
                if path not in seen and pattern.fits(path):
                    seen.add(path)
                    yield path


def _beginning(prefix: str, paths: Sequence[str]) -> Sequence[str]:
    """Return the paths that begin so, and the one of which only the slash at the end is missing."""
    whole = prefix.removesuffix("/")
    at = bisect_left(paths, whole)
    own = paths[at : at + 1] if whole != prefix and at < len(paths) and paths[at] == whole else ()
    return (*own, *paths[bisect_left(paths, prefix) : bisect_left(paths, prefix + _LAST)])


class Grants:
    """All grants that are in force, in the order of the file.

    With `local`, a caller without a proof is the user of this machine, as at the other end of a pipe.
    """

    def __init__(self, grants: Sequence[Grant], *, local: bool) -> None:
        self.grants = tuple(grants)
        self.local = local
        self.permissions = lru_cache(_MOST_KNOWN)(self._permissions)

    def _permissions(self, principal: Principal | None) -> Permissions:
        """Return the permissions of a principal; None is a client that proves nothing."""
        names = self.names(principal)
        return Permissions([each for each in self.grants if not names.isdisjoint(each.who)])

    def names(self, principal: Principal | None) -> set[str]:
        """Return the names by which a grant may call this principal in `who`."""
        if principal is not None:
            return {EVERYBODY, principal.id, *(f"group:{each}" for each in principal.groups)}
        return {EVERYBODY, LOCAL} if self.local else {EVERYBODY}
