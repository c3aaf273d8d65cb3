"""Authorization: permissions of principals on skills, from the tables `[[grant]]`. Pure.

A grant matches skill paths by patterns: `*` matches any characters in one segment, `**` any number
of segments, including none. Matching takes time linear in the length of the path.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.model import keys
from mcp_skills_server.model.keys import ContradictionError, Key, Table, WrongValueError

May: TypeAlias = Literal["read", "scripts", "code", "propose", "review", "admin"]
MAY: Final[tuple[May, ...]] = ("read", "scripts", "code", "propose", "review", "admin")
EVERYBODY: Final = "*"
LOCAL: Final = "local"
"""The client over stdio: the user who started the server."""
KINDS: Final = ("token", "user", "group")
_MAX_CHARACTERS: Final = 512
_MAX_SEGMENTS: Final = 64
EVERY_SKILL: Final = "**"
"""The pattern that matches every skill, and the segment that matches any number of segments."""
_SEGMENTS: Final = "(?:[^/]*+/)*"
_FOREIGN_WILDCARDS: Final = frozenset("?[]{}\\")
"""Wildcards of other programs, which would match literally here and are refused."""
_MAX_KNOWN: Final = 4096
"""Most principals whose permissions are cached."""


class PatternError(WrongValueError):
    """Raised for an invalid pattern of skill paths; the message is one line."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of skill paths, such as `acme/billing/**`.

    Raises:
        PatternError: the text is invalid.
    """

    text: str
    prefix: str = field(init=False, compare=False)
    """The text before the first wildcard. Every matching path begins with it, or equals it without
    its final slash."""
    _regex: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        segments = self.text.split("/")
        _check(self.text, segments)
        object.__setattr__(self, "prefix", self.text.partition("*")[0])
        object.__setattr__(self, "_regex", re.compile(_translated(segments)))

    @property
    def matches_all(self) -> bool:
        """Return whether the pattern matches every skill path."""
        return self.text == EVERY_SKILL

    def matches(self, path: str) -> bool:
        """Return whether the pattern matches a skill path."""
        return self._regex.fullmatch(f"{path}/") is not None


def _check(text: str, segments: Sequence[str]) -> None:
    if not text or len(text) > _MAX_CHARACTERS or len(segments) > _MAX_SEGMENTS:
        most = f"{_MAX_CHARACTERS} characters and {_MAX_SEGMENTS} segments"
        raise PatternError("a pattern is empty" if not text else f"a pattern has more than {most}")
    if not text.isprintable():
        raise PatternError("a pattern has characters that cannot be printed")
    if text.startswith("!") or not _FOREIGN_WILDCARDS.isdisjoint(text):
        raise PatternError("a pattern has no wildcards but * and **, and ! does not negate it")
    for segment in segments:
        if segment in {"", ".", ".."}:
            raise PatternError("a pattern has an empty segment, or . or ..")
        if EVERY_SKILL in segment and segment != EVERY_SKILL:
            raise PatternError("** is a segment of its own")


def _translated(segments: Sequence[str]) -> str:
    """Return a regular expression for these segments, each followed by a slash.

    Text between two wildcards matches at its first occurrence, which leaves most for the rest.
    Atomic groups therefore prevent backtracking without losing a match.
    """
    runs = [""]
    for segment in segments:
        if segment == EVERY_SKILL:
            runs.append("")
            continue
        first, *rest = map(re.escape, segment.split("*"))
        between = "".join(f"(?>[^/]*?{part})" for part in rest[:-1])
        runs[-1] += f"{first}{between}{''.join(f'[^/]*{part}' for part in rest[-1:])}/"
    first, *rest = runs
    between = "".join(f"(?>{_SEGMENTS}?{run})" for run in rest[:-1])
    return first + between + "".join(f"{_SEGMENTS}{run}" for run in rest[-1:])


def is_who(text: str) -> bool:
    """Return whether a text is a valid entry of `who` in a grant."""
    kind, _, name = text.partition(":")
    return text in {EVERYBODY, LOCAL} or (
        kind in KINDS and bool(name.strip()) and text.isprintable()
    )


WHO: Final = 'a list of "*", "local", "token:NAME", "user:SUBJECT" or "group:NAME"'
read_who: Final = keys.list_of(keys.text_that(is_who), least=1)
_SKILLS: Final = 'a list of skill paths, such as ["acme/billing/**"]'
_read_skills: Final = keys.list_of(lambda value: Pattern(keys.of_kind(value, str)), least=1)


@dataclass(frozen=True, slots=True)
class Grant:
    """The permissions of one `[[grant]]` table."""

    who: tuple[str, ...]  # "*", "local", "token:NAME", "user:SUBJECT" or "group:NAME"
    skills: tuple[Pattern, ...]
    may: frozenset[str] = frozenset()  # out of `MAY`; "read" is implied
    TABLE: ClassVar = Table(
        {
            "who": Key(WHO, read_who, WHO),
            "skills": Key(_SKILLS, _read_skills, _SKILLS),
            "may": keys.names(MAY),
        },
        f'write a table [[grant]] with who = ["*"] and skills = ["{EVERY_SKILL}"]',
        least=1,
    )

    @classmethod
    def from_table(cls, values: Mapping[str, Any]) -> Grant:
        """Return the grant of a table with these values, or raise ContradictionError."""
        grant = cls(values["who"], values["skills"], frozenset(values.get("may", ())))
        if "admin" in grant.may and not grant.covers_all:
            what = "admin is about all skills, and this grant is about some"
            hint = f'write skills = ["{EVERY_SKILL}"], or leave out admin'
            raise ContradictionError("may", what, hint)
        return grant

    def covers(self, path: str) -> bool:
        """Return whether the grant includes the skill of this path."""
        return any(pattern.matches(path) for pattern in self.skills)

    @property
    def covers_all(self) -> bool:
        """Return whether the grant includes every skill."""
        return any(pattern.matches_all for pattern in self.skills)


def names_of(principal: Principal | None, *, local: bool = False) -> set[str]:
    """Return all entries of `who` that mean this principal; with `local`, None is this user."""
    if principal is not None:
        return {EVERYBODY, principal.id, *(f"group:{group}" for group in principal.groups)}
    return {EVERYBODY, LOCAL} if local else {EVERYBODY}


class SkillRights(NamedTuple):
    """Rights of a principal, or an entry of `who`, on one skill, and the grants that give them."""

    who: str
    names: Set[str]  # the entries of `who` that mean it
    may: Sequence[May]
    grants: Sequence[Grant]


def rights_on(
    path: str, grants: Sequence[Grant], principals: Iterable[Principal] = ()
) -> list[SkillRights]:
    """Return who may read the skill of this path: the entries of `who`, then known principals.

    A principal that reads it only as everybody does has no row of its own.
    """
    covering = [grant for grant in grants if grant.covers(path)]
    names = {name: {name} for grant in covering for name in grant.who}
    for principal in principals:
        own = names_of(principal)
        if any(not (own - {EVERYBODY}).isdisjoint(grant.who) for grant in covering):
            names[principal.id] = own
    rows: list[SkillRights] = []
    for who, own in names.items():
        by = [grant for grant in covering if not own.isdisjoint(grant.who)]
        given = {"read"}.union(*(grant.may for grant in by))
        rows.append(SkillRights(who, own, [right for right in MAY if right in given], by))
    return rows


class Permissions:
    """The permissions of a principal, from the grants that apply; equal ones permit the same."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self.grants = tuple(grants)
        self._given = frozenset(
            (pattern, grant.may - {"read"}) for grant in self.grants for pattern in grant.skills
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Permissions) and self._given == other._given)

    def __hash__(self) -> int:
        return hash(self._given)

    def can_read(self, path: str) -> bool:
        """Return whether the skill of this path may be read."""
        return any(grant.covers(path) for grant in self.grants)

    @property
    def can_read_all(self) -> bool:
        """Return whether every skill may be read."""
        return any(grant.covers_all for grant in self.grants)

    def permits(self, what: str, path: str) -> bool:
        """Return whether the action `what`, out of `MAY`, is permitted on the skill at a path."""
        if what == "read":
            return self.can_read(path)
        return any(what in grant.may and grant.covers(path) for grant in self.grants)

    def permits_any(self, what: str) -> bool:
        """Return whether any grant permits the action `what`, even if it matches no skill now."""
        return any(what in grant.may for grant in self.grants)

    @cached_property
    def to_read(self) -> Permissions:
        """These permissions without what they permit beside reading."""
        return Permissions([Grant((), grant.skills) for grant in self.grants])

    @property
    def is_admin(self) -> bool:
        """Return whether the operator's data may be seen, which needs "admin" on every skill."""
        return any("admin" in grant.may and grant.covers_all for grant in self.grants)

    def readable(self, paths: Sequence[str]) -> set[str]:
        """Return the readable paths, out of skill paths in code point order.

        A binary search by the prefix of each pattern limits the paths that are matched.
        """
        out: set[str] = set()
        for pattern in {skill for grant in self.grants for skill in grant.skills}:
            prefix = pattern.prefix.removesuffix("/")
            at = bisect_left(paths, prefix)
            while at < len(paths) and paths[at].startswith(prefix):
                if pattern.matches(paths[at]):
                    out.add(paths[at])
                at += 1
        return out


class Grants:
    """All grants in force, in the order of the file.

    With `local`, an unauthenticated client counts as the user of this machine, as over stdio.
    """

    def __init__(self, grants: Sequence[Grant], *, local: bool) -> None:
        self.grants = tuple(grants)
        self.local = local
        self.permissions = lru_cache(_MAX_KNOWN)(self._permissions)

    def _permissions(self, principal: Principal | None) -> Permissions:
        """Return the permissions of a principal; None is an unauthenticated client."""
        names = names_of(principal, local=self.local)
        return Permissions([grant for grant in self.grants if not names.isdisjoint(grant.who)])
