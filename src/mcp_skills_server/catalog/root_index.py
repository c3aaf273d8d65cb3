"""State of one root: its skills by directory, other problems, and the scan after a change.

`touched` names the directory to scan after a change, `scan` scans it and replaces what is known of
it: the skills, those that a gate refuses, dot folders, and problems outside of every skill.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from mcp_skills_server.catalog.disk import MISSING_ERRORS, is_utf8
from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.grace import GracePeriod
from mcp_skills_server.catalog.path_index import PathIndex, above, touched, within
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.catalog.scan import Scan
from mcp_skills_server.catalog.switches import SWITCHES
from mcp_skills_server.codes import problem
from mcp_skills_server.format.ignored import is_entered, is_ignored
from mcp_skills_server.model import Changes, Problem, Skill, Snapshot, Standing

logger = logging.getLogger(__name__)

_SWITCH_ON: Final = (
    f"nothing need be done; switch it on in 'ui', or remove its line from {SWITCHES}"
)

Arm: TypeAlias = Callable[[str, str], None]
"""Called with a root's path and a directory's root-relative path before a scan reads it."""
Judge: TypeAlias = Callable[[Skill], GateRefusal | None]
"""Refuses skills that must not be served; a full scan asks it about every skill again."""


class RootIndex:
    """State of one of the roots as of its last scans. Guarded by the registry's lock."""

    def __init__(
        self,
        root: Root,
        limits: Limits,
        grace: GracePeriod,
        judge: Judge | None,
        roots: Sequence[Root],
    ) -> None:
        self.root = root
        self.limits = limits
        self._grace = grace
        self._judge = judge
        self._roots = roots
        self.skills = PathIndex[Skill]()
        self.saved: dict[str, Skill | None] = {}
        """The skills as stored in the index, by directory; None for one that has changed since."""
        self.missing: Problem | None = None
        """The problem that makes the root unreadable at the moment."""
        self.unattached_problems: tuple[Problem, ...] = ()
        """Problems in the root outside of every skill; the same object until they change."""
        self.noted: tuple[Problem, ...] = ()
        """Problems reported by the root's source, which no scan finds."""
        self._unattached = PathIndex[tuple[Problem, ...]]()
        self._refused = PathIndex[None]()
        """Directories of the skills that are refused by the judge, or switched off."""
        self._dotted = PathIndex[None]()
        self._nested: set[str] = set()
        """Directories that were nested skills at some time, in the folder `_nested_in`."""
        self._nested_in = root.path

    @property
    def dot_folders(self) -> list[str]:
        """Folders that no scan entered because their names begin with a dot, in order."""
        return list(self._dotted.below(""))

    def snapshot(self) -> Snapshot:
        """Return the skills of this root as if it were the only one."""
        skills = {
            self.skills[directory].path: self.skills[directory]
            for directory in reversed(self.skills.below(""))  # the first of one path wins
        }
        missing = ()
        if self.missing is not None:
            missing = (self.missing,)
        return Snapshot(skills, (*missing, *self.unattached_problems, *self.noted))

    # What to scan

    def touched(self, path: str) -> str | None:
        """Return the directory to scan again after a change of this absolute path, or None."""
        location = self._location(path)
        if location is None:
            return None
        if location == SWITCHES and self.root.origin is None:
            self.root.follow()
            return ""
        if self._is_passed_over(location):
            return None
        while not is_utf8(location):
            location = location.rpartition("/")[0]
        part = touched(location, self.skills, os.path.isdir(os.path.join(self.root.path, location)))
        refused = next((up for up in above(location) if up in self._refused), None)
        if refused is not None and (part is None or within(part, refused)):
            part = refused  # the refused skill may be as approved again
        if part is None and self._unattached.below(location):
            part = location  # a problem found there may be solved
        # Changes in a root that was missing went unseen: scan all of it.
        if part is None or self.missing is None:
            return part
        return ""

    def _location(self, path: str) -> str | None:
        """Return an absolute path, also one behind a served link, as root-relative, or None."""
        found, root = self.root.behind_link(path), self.root.path
        if found is None and (path == root or path.startswith(root + os.sep)):
            found = path[len(root) + 1 :].replace(os.sep, "/")
        return found

    def _is_passed_over(self, location: str) -> bool:
        """Tell whether no scan enters this path, because of a name in it."""
        names = [name for name in location.split("/") if name]
        if not any(map(is_ignored, names)):
            return False
        hidden = self.limits.hidden and "" not in self.skills
        for depth, name in enumerate(names, 1):
            if not is_entered(name, hidden=hidden):
                return True
            hidden = hidden and "/".join(names[:depth]) not in self.skills
        return False

    # The scan

    def scan(
        self, part: str, recalled: Mapping[str, Skill] | None = None, arm: Arm | None = None
    ) -> Changes:
        """Scan a directory of the root, "" for all of it, and return the skills that went and came.

        The changes are by directory; a skill that changed is in both.

        Args:
            recalled: skills of the root from the index of an earlier process, for its first scan.
            arm: called with each directory, to watch it.
        """
        known = {directory: self.skills[directory] for directory in self.skills.below(part)}
        found = self._new_scan(part, known, recalled, arm)
        try:
            found.run(part)
            self.missing = None
        except OSError as error:
            # Remove skills only if the directory is certainly gone: running out of descriptors,
            # say, is transient.
            if not part or error.errno not in MISSING_ERRORS or not os.path.isdir(self.root.path):
                self._report_missing(error)
                return Changes({}, {})
        self._grace.discard_others(self.root.index, part, found.kept)
        if self._judge is not None or self.root.off or self._refused:
            self._refuse(part, found, known)
        self._dotted.replace(self._dotted.below(part), dict.fromkeys(found.skipped_dot_folders))
        self._replace_problems(part, found.problems)
        gone = {place: each for place, each in known.items() if found.skills.get(place) is not each}
        came = {place: each for place, each in found.skills.items() if known.get(place) is not each}
        self.skills.replace(gone, came)
        if recalled is not None:
            unread = {place: found.skills[place] for place in found.unread}
            self.saved = {**dict.fromkeys(recalled), **unread}
        return Changes(gone, came)

    def _new_scan(
        self,
        part: str,
        known: Mapping[str, Skill],
        recalled: Mapping[str, Skill] | None,
        arm: Arm | None,
    ) -> Scan:
        """Return a scan of `part` that has not run yet."""

        def entering(place: str) -> None:
            if arm is not None:
                located = self.root.locate(place)
                arm(located.base, located.rest)

        if self._nested_in != self.root.path or not self._grace.is_on:
            # The whole tree was replaced at once, so no SKILL.md is gone only for a moment.
            self._nested_in = self.root.path
            self._nested.clear()
        namespace = ""
        if part and "" in self.skills:
            namespace = self.skills[""].path
        return Scan(
            self.root,
            recalled or known,
            namespace,
            self.limits,
            self._roots,
            self._nested,
            self._grace if recalled is None else None,
            entering,
        )

    def _refuse(self, part: str, found: Scan, known: Mapping[str, Skill]) -> None:
        """Remove refused skills from a scan's result: one must not hide a skill of a later root."""
        refused: list[str] = []
        for directory, skill in list(found.skills.items()):
            # a full scan judges unchanged skills again: a certificate may have expired
            if part and known.get(directory) is skill:
                continue
            refusal = self._refusal(skill)
            if refusal is None:
                continue
            refused.append(directory)
            del found.skills[directory]
            if refusal.problem is not None:
                place = self.root.show(directory)
                found.problems.append((directory, refusal.problem.at(place, skill.path)))
            elif skill.standing is Standing.UNUSABLE:
                # the skill's own problems must not vanish with it
                found.problems += [(directory, each) for each in skill.problems]
        self._refused.replace(self._refused.below(part), dict.fromkeys(refused))

    def _refusal(self, skill: Skill) -> GateRefusal | None:
        """Return the refusal of a skill that is switched off or that the judge refuses, or None."""
        off = next((up for up in above(skill.directory) if up in self.root.off), None)
        if off is not None:
            text = f"{SWITCHES} has {off!r}"
            return GateRefusal(problem("switched-off", text, hint=_SWITCH_ON))
        if self._judge is None:
            return None
        try:
            return self._judge(skill)
        except OSError as error:
            text = f"its files cannot be read ({error.strerror})"
            return GateRefusal(problem("unreadable", text))

    def _replace_problems(self, part: str, found: Iterable[tuple[str, Problem]]) -> None:
        """Replace the problems at or below a directory; cheap if none differs."""
        now: dict[str, tuple[Problem, ...]] = {}
        for place, each in found:
            now[place] = (*now.get(place, ()), each)
        before = self._unattached.below(part)
        if {place: self._unattached[place] for place in before} != now:
            self._unattached.replace(before, now)
            places = self._unattached.below("")
            self.unattached_problems = tuple(
                each for place in places for each in self._unattached[place]
            )

    def _report_missing(self, error: OSError) -> None:
        shown = self.root.shown
        if self.missing is None:
            text = "%s: the root cannot be read (%s); serving what was read before"
            logger.warning(text, shown, error.strerror or "cannot be read")
        self.missing = problem("root-missing", "the root cannot be read").at(shown, "")
