"""What the last run of `publish` saw, by stamps: what need not be looked at again skill by skill.

It lies in the user's cache and may be lost at any time; what it says is believed only for the same roots, limits and
options, and the same version of this program.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from mcp_skills_server import __version__
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.stamps import OUTSIDE, YOUNG, Stamps, stamps, stamps_again
from mcp_skills_server.durable import leave_in_cache, why_untrusted
from mcp_skills_server.model import Standing
from mcp_skills_server.publish.edition import Edition

MOST_YOUNG: Final = 1000
"""Files of the tree that are read because they were too young; with more all is looked at."""
_MOST_CHANGED: Final = 100
_FORMAT: Final = 2

Looks = Sequence[Sequence[Mapping[str, str]]]
"""For each root, the fields of its `catalog.stamps.Stamps`: the stamps of its skill folders come first."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a published folder was like when a run ended.

    Attributes:
        record: sha256 in hex of the record beside the tree.
        output: the stamp of the files of the tree, but for the young.
        young: those whose signatures prove nothing yet.
    """

    record: str = ""
    output: str = ""
    young: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LastRun:
    """A run that ended well.

    Attributes:
        seen: the folder.
        roots: the stamps of the roots.
        names: for each root, by skill folder, the name of the one skill that is published of it.
        left_out: (skill path, reason) of what was not published.
        left_out_0_1: the same of what only 0.2.0 publishes.
        skills: how many are published.
    """

    seen: Seen
    roots: Looks
    names: Sequence[Mapping[str, str]]
    left_out: Sequence[Sequence[str]] = field(default=())
    left_out_0_1: Sequence[Sequence[str]] = field(default=())
    skills: int = 0

    def changed(self, now: Looks) -> list[tuple[int, str]] | None:
        """(root, folder) of the skills that may have changed; None where it is not they alone."""
        if len(now) != len(self.roots):
            return None
        changed: list[tuple[int, str]] = []
        for rank, ((before, *_), (after, *_)) in enumerate(zip(self.roots, now, strict=True)):
            if before.keys() != after.keys() or before[OUTSIDE] != after[OUTSIDE]:
                return None
            if not all(after.values()):
                return None
            changed += [(rank, each) for each, stamp in after.items() if stamp == YOUNG or stamp != before[each]]
        # Of a folder with several skills, or with one that is not published, more than its bytes counts.
        alone = all(self.names[rank].get(each) for rank, each in changed)
        return changed if alone and len(changed) <= _MOST_CHANGED else None


class LastRuns:
    """Where it is kept what the last run saw.

    Args:
        cache: the folder for it.
        output: the folder that is published to, with links resolved.
        about: all else that a run depends on.
    """

    def __init__(self, cache: Path, output: str, about: Sequence[object]) -> None:
        self._place = cache / f"{hashlib.sha256(os.fsencode(output)).hexdigest()[:32]}.seen"
        self._key = hashlib.sha256(repr((_FORMAT, __version__, *about)).encode("utf-8", "surrogateescape")).hexdigest()

    def load(self) -> LastRun | None:
        """What the last run saw, None where that is not known."""
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            with self._place.open("rb") as file:
                if why_untrusted(os.fstat(file.fileno())):
                    return None
                fields = cast("dict[str, Any]", json.loads(file.read()))
            if fields.pop("key") == self._key:
                seen = fields.pop("seen")
                return LastRun(Seen(seen["record"], seen["output"], frozenset(seen["young"])), **fields)
        return None

    def save(self, run: LastRun) -> None:
        """Keep it. A cache that cannot be written is none."""
        seen = asdict(run.seen) | {"young": sorted(run.seen.young)}
        fields = {name: getattr(run, name) for name in ("roots", "names", "left_out", "left_out_0_1", "skills")}
        raw = json.dumps({"key": self._key, "seen": seen, **fields}, separators=(",", ":")).encode()
        leave_in_cache(self._place, raw)


def stamps_of(registry: Registry, last: LastRun | None) -> list[list[Mapping[str, str]]] | None:
    """The stamps of its roots as the disk has them; None where one is no plain folder, or stamps do not suffice.

    Args:
        registry: has the roots.
        last: what the last run saw of them, None where that is not known.
    """
    out: list[list[Mapping[str, str]]] = []
    hidden = registry.limits.hidden
    for rank, root in enumerate(registry.roots):
        if root.origin is not None:
            return None
        if last is not None and rank < len(last.roots):
            found = stamps_again(root.path, hidden=hidden, before=Stamps(*last.roots[rank]))
        else:
            found = stamps(root.path, hidden=hidden)
        if found is None:
            return None
        out.append([*found])
    return out


def names_of(edition: Edition, now: Looks) -> list[dict[str, str]]:
    """For each root, by skill folder, the name of the one skill that is published of it, "" where that is not so."""
    names: list[dict[str, str]] = [{} for _ in now]
    for skill in edition.snapshot.skills.values():
        found, folder = now[skill.root][0], skill.directory
        parts = folder.split("/")
        above = ("/".join(parts[:length]) for length in range(len(parts)))
        unit = next((each for each in above if each in found), folder)
        made = edition.skills.get(skill.name)
        published = made is not None and made.skill is skill and skill.name in edition.older
        rivals = len(edition.snapshot.named(skill.name, Standing.VALID)) > 1
        alone = unit == folder and unit not in names[skill.root]
        names[skill.root][unit] = skill.name if published and alone and not rivals else ""
    return names


def stamp_of(marks: Mapping[str, str], but: Collection[str]) -> str:
    """One stamp for the signatures of files, by their paths, but for some of these."""
    text = "\0".join([f"{path}\0{marks[path]}" for path in sorted(marks) if path not in but])
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
