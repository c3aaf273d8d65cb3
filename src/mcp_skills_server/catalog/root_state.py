"""State of one root: its skills by directory, other problems, and the scan after a change.

`touched` names the directory to scan after a change, `scan` scans it and replaces what is known of
it: the skills, those that a gate refuses, dot folders, and problems outside of every skill.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from mcp_skills_server.catalog.bundle import without_nested
from mcp_skills_server.catalog.disk import MISSING_ERRORS, is_utf8
from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.index import IndexedSkills
from mcp_skills_server.catalog.path_map import PathMap, above, levels
from mcp_skills_server.catalog.recalls import Recalls
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.catalog.scan import Arm, Kept, Scan, unchanged
from mcp_skills_server.catalog.switches import SWITCHES
from mcp_skills_server.codes import problem
from mcp_skills_server.format.ignored import VENV_MARKER, is_entered
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Snapshot, Standing

logger = logging.getLogger(__name__)

_SWITCH_ON: Final = (
    f"nothing need be done; switch it on in 'ui', or remove its line from {SWITCHES}"
)

RootGate: TypeAlias = Callable[[Skill], GateRefusal | None]
"""Refuses skills that must not be served; a full scan passes every skill through it again."""


class RootState:
    """State of one of the roots as of its last scans. Guarded by the registry's lock."""

    def __init__(
        self,
        root: Root,
        limits: Limits,
        gate: RootGate | None,
        roots: Sequence[Root],
        recalls: Recalls,
    ) -> None:
        self.root = root
        self.limits = limits
        self._gate = gate
        self._recalls = recalls
        self._roots = roots
        self.skills = PathMap[Skill]()
        self.unsaved: set[str] = set()
        """Directories whose skill changed or went since the index was last saved."""
        self.is_indexed = False
        """Whether the index may have the root: then each skill that goes must leave it, too."""
        self.missing: Problem | None = None
        """The problem that makes the root unreadable at the moment."""
        self.source_problems: tuple[Problem, ...] = ()
        """Problems reported by the root's source, which no scan finds."""
        self._unattached = PathMap[tuple[Problem, ...]]()
        """Problems in the root outside of every skill."""
        self._refused = PathMap[None]()
        """Directories of the skills that the gate refuses, or that are switched off."""
        self._dotted = PathMap[None]()
        self._kept = PathMap[Kept]()
        """The skills in their grace period."""
        self.signatures = PathMap[str]()
        """By location, the stat signatures that prove the bytes of the files of skills."""
        self._nested: set[str] = set()
        """Directories in the root that were nested skills at some time."""

    @property
    def dot_folders(self) -> list[str]:
        """Folders that no scan entered because their names begin with a dot, in order."""
        return sorted(self._dotted)  # not `below`: called without the lock

    @property
    def problems(self) -> list[Problem]:
        """All problems of no served skill, except those of combinations of roots."""
        problems = [
            problem
            for location in self._unattached.below("")
            for problem in self._unattached[location]
        ]
        if self.missing is not None:
            problems.insert(0, self.missing)
        return [*problems, *self.source_problems]

    def snapshot(self) -> Snapshot:
        """Return the skills of this root as if it were the only one."""
        skills = {
            self.skills[directory].path: self.skills[directory]
            for directory in reversed(self.skills.below(""))  # the first of one path wins
        }
        return Snapshot(skills, tuple(self.problems))

    def resolve(self) -> None:
        """Resolve the root anew, as `Root.resolve`."""
        before = self.root.path
        self.root.resolve()
        if self.root.path != before:
            # The whole tree was replaced at once, so no SKILL.md is gone only for a moment.
            self._nested.clear()

    def distrust(self, path: str) -> None:
        """Have the next scan read the file at this absolute path, whatever its signature."""
        location = self._location(path)
        if location is not None and location in self.signatures:
            self.signatures.replace((location,), {})

    # What to scan

    def touched(self, path: str) -> str | None:
        """Return the directory to scan again after a change of this absolute path, or None."""
        location = self._location(path)
        if location is None or not self._enters(location):
            return None
        if location == SWITCHES and self.root.origin is None:
            return ""
        while not is_utf8(location):  # never part of a skill, but the folder around it reports it
            location = location.rpartition("/")[0]
        if self.missing is not None:
            return ""  # changes in a missing root went unseen
        # The outermost skill, whose list of files has all below it. A refused one may pass now.
        for directory in above(location):
            if directory in self.skills or directory in self._refused:
                return directory
        parent, _, name = location.rpartition("/")
        if name.lower() == SKILL_MD.lower() or name == VENV_MARKER:
            return parent
        known = (self.skills, self._refused, self._unattached, self.root.links)
        absolute = os.path.join(self.root.path, location)
        # an edit of a file that is a near miss has to wait for the next full scan
        if any(skills.below(location) for skills in known) and not os.path.isfile(absolute):
            return location
        # elsewhere only a SKILL.md, a directory or a link can make a skill appear
        if not location or os.path.isdir(absolute) or os.path.islink(absolute):
            return location
        return None

    def _location(self, path: str) -> str | None:
        """Return an absolute path, also one behind a served link, as root-relative, or None."""
        location, root = self.root.behind_link(path), self.root.path
        if location is None and (path == root or path.startswith(root + os.sep)):
            location = path[len(root) + 1 :].replace(os.sep, "/")
        return location

    def enters(self, path: str) -> bool:
        """Tell whether a scan enters this absolute path, or would if it were a directory."""
        location = self._location(path)
        return location is not None and self._enters(location)

    def _enters(self, location: str) -> bool:
        # Dot names inside a skill count as entered, too, if those outside are: a scan then finds no
        # change.
        hidden = self.limits.hidden
        return all(is_entered(name, hidden=hidden) for name in location.split("/") if name)

    def past_grace(self) -> list[str]:
        """Return the directories of the skills whose grace period is over."""
        now = time.monotonic()
        return [directory for directory, kept in self._kept.items() if kept.until <= now]

    # The scan

    def scan(
        self,
        subtree: str,
        indexed: IndexedSkills | None = None,
        *,
        arm: Arm | None = None,
        grace: bool = False,
    ) -> bool:
        """Scan a directory of the root, "" for all of it; tell whether skills or problems changed.

        Args:
            subtree: the directory.
            indexed: skills of the root from the index of an earlier process, for its first scan.
            arm: called with each directory, to watch it.
            grace: keep a skill as it was for `QUIET_S` if its SKILL.md is gone or became worse.
        """
        known = {directory: self.skills[directory] for directory in self.skills.below(subtree)}
        scan = Scan(
            self.root,
            known if indexed is None else indexed.skills,
            self.signatures if indexed is None else indexed.signatures,
            self.limits,
            self._roots,
            self._nested,
            self._kept if grace and indexed is None else None,
            arm if self.root.origin is None else None,  # its source tells what it changes
        )
        missing = self.missing
        try:
            scan.run(subtree)
            self.missing = None
        except OSError as error:
            # Remove skills only if the directory is certainly gone: running out of descriptors,
            # say, is transient.
            is_gone = bool(subtree) and error.errno in MISSING_ERRORS
            if not is_gone or not os.path.isdir(self.root.path):
                self._report_missing(error)
                return self._withdraw(known) or missing is None
            self.root.forget_links(subtree)
        for directory in scan.kept:  # it has the bytes of an earlier scan, not those proved now
            for file in scan.skills[directory].files.values():
                scan.signatures.pop(file.location, None)
        if self._gate or self._recalls.advisories or self.root.off or self._refused:
            self._refuse(subtree, scan, known)
        directories = known.keys() | scan.skills.keys()
        changed = {
            directory
            for directory in directories
            if known.get(directory) is not scan.skills.get(directory)
        }
        self.skills.replace_below(subtree, scan.skills)
        self.signatures.replace_below(subtree, scan.signatures)
        self._kept.replace_below(subtree, scan.kept)
        self._dotted.replace_below(subtree, dict.fromkeys(scan.skipped_dot_folders))
        if indexed is None:
            self.unsaved |= changed
        else:
            self.is_indexed = True
            # all but the skills that are still as the index has them
            self.unsaved = (indexed.skills.keys() | changed) - (scan.unread & scan.skills.keys())
        is_news = self._replace_problems(subtree, scan.problems)
        return bool(changed or is_news or missing is not None)

    def _withdraw(self, known: Mapping[str, Skill]) -> bool:
        """Drop the recalled ones of skills that cannot be scanned; tell whether there were any."""
        recalled: dict[str, tuple[Problem, ...]] = {}
        for directory, skill in known.items():
            refusal = self._recalls.refuse(skill, skill)
            if refusal is not None and refusal.problem is not None:
                shown = self.root.show(directory)
                recalled[directory] = (refusal.problem.at(shown, skill.path),)
        self.skills.replace(recalled, {})
        self._unattached.replace(recalled, recalled)
        return bool(recalled)

    def _refuse(self, subtree: str, scan: Scan, known: Mapping[str, Skill]) -> None:
        """Remove refused skills, lest they hide others, and their files from those around them."""
        refused: list[str] = []
        inner: dict[str, list[str]] = {}  # refused directories by those above, relative to them
        for directory in sorted(scan.skills, key=levels, reverse=True):  # nested skills first
            whole, withheld = scan.skills[directory], inner.get(directory, [])
            skill = without_nested(whole, withheld, self.root)
            skill = scan.skills[directory] = unchanged(known.get(directory), skill)
            # a full scan passes all through the gate again: a certificate may have expired
            if subtree and known.get(directory) is skill and not withheld:
                continue
            refusal = self._refusal(skill)
            if refusal is not None and withheld:
                # A lock or signature may cover the nested skills, too: it admits a part of it.
                refusal = self._refusal(whole)
            refusal = refusal or self._recalls.refuse(skill, whole)
            if refusal is None:
                continue
            refused.append(directory)
            del scan.skills[directory]
            for outer in above(directory):
                inner.setdefault(outer, []).append(directory.removeprefix(outer).lstrip("/"))
            if refusal.problem is not None:
                shown = self.root.show(directory)
                scan.problems.append((directory, refusal.problem.at(shown, skill.path)))
            elif skill.standing is Standing.UNUSABLE:
                # the skill's own problems must not vanish with it
                scan.problems += [(directory, problem) for problem in skill.problems]
        self._refused.replace_below(subtree, dict.fromkeys(refused))

    def _refusal(self, skill: Skill) -> GateRefusal | None:
        """Return the refusal of a skill that is switched off or that the gate refuses, or None."""
        off = next((up for up in above(skill.directory) if up in self.root.off), None)
        if off is not None:
            text = f"{SWITCHES} has {off!r}"
            return GateRefusal(problem("switched-off", text, hint=_SWITCH_ON))
        if self._gate is None:
            return None
        try:
            return self._gate(skill)
        except OSError as error:
            text = f"its files cannot be read ({error.strerror})"
            return GateRefusal(problem("unreadable", text))

    def _replace_problems(self, subtree: str, problems: Iterable[tuple[str, Problem]]) -> bool:
        """Replace the problems at or below a directory; tell whether any differs."""
        now: dict[str, tuple[Problem, ...]] = {}
        for location, reported in problems:
            now[location] = (*now.get(location, ()), reported)
        before = {path: self._unattached[path] for path in self._unattached.below(subtree)}
        self._unattached.replace_below(subtree, now)
        return before != now

    def _report_missing(self, error: OSError) -> None:
        shown, reason = self.root.shown, error.strerror or "cannot be read"
        text = "%s: the root cannot be read (%s); serving what was read before"
        missing = problem("root-missing", "the root cannot be read")
        if self.root.optional and not self.skills and error.errno in MISSING_ERRORS:
            text = "%s: the optional root is absent (%s); it is served once it is there"
            missing = Problem("root-missing", "warning", "the optional root is absent", "create it")
        if self.missing is None:
            logger.warning(text, shown, reason)
        self.missing = missing.at(shown, "")
