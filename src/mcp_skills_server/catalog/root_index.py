"""State of one root: its skills by directory, other problems, and the scan after a change."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from mcp_skills_server.catalog.disk import MISSING_ERRORS, is_utf8
from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.path_index import PathIndex, above, touched, within
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.catalog.scan import Scan
from mcp_skills_server.catalog.switches import SWITCHES
from mcp_skills_server.codes import problem
from mcp_skills_server.format.ignored import is_entered, is_ignored
from mcp_skills_server.model import Changes, Problem, Skill, Snapshot, Standing

logger = logging.getLogger(__name__)

QUIET_S: Final = 1.0
"""Grace period in seconds: a SKILL.md that became worse must stay unchanged so long to count."""

_SWITCH_ON: Final = (
    f"nothing need be done; switch it on in 'ui', or remove its line from {SWITCHES}"
)

Arm: TypeAlias = Callable[[str, str], None]
"""Called with a root's path and a directory's root-relative path before a scan reads it."""
Judge: TypeAlias = Callable[[Skill], GateRefusal | None]


class RootIndex:
    """State of one root as of its last scans. Guarded by the registry's lock.

    Args:
        root: the directory.
        limits: the size limits of a skill.
        grace: decides how long a skill is kept whose SKILL.md has become worse.
        judge: refuses skills that must not be served, None for none; a full scan asks it about
            every skill again.
        roots: all roots, this one among them.
    """

    def __init__(
        self,
        root: Root,
        limits: Limits,
        grace: GracePeriod,
        judge: Judge | None,
        roots: Sequence[Root],
    ) -> None:
        self.root = root
        self._roots = roots
        self.skills = PathIndex[Skill]()
        self.missing: Problem | None = None
        """The problem that makes the root unreadable at the moment."""
        self.saved: dict[str, Skill | None] = {}
        """The skills as stored in the index, by directory; None for one that has changed since."""
        self.limits = limits
        self._grace = grace
        self._judge = judge
        self.unattached_problems: tuple[Problem, ...] = ()
        """Problems in the root outside of every skill; the same object until they change."""
        self.noted: tuple[Problem, ...] = ()
        """Problems reported by the root's source, which no scan finds."""
        self._unattached = PathIndex[tuple[Problem, ...]]()
        self._refused = PathIndex[None]()
        """Directories of the skills that the judge refused."""
        self._dotted = PathIndex[None]()
        self._nested: set[str] = set()
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
        refused = None
        if self._refused:
            refused = next((place for place in above(location) if place in self._refused), None)
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

    def scan(
        self, part: str, recalled: Mapping[str, Skill] | None = None, arm: Arm | None = None
    ) -> Changes:
        """Scan a directory of the root, "" for all of it, and return the skills that went and came.

        The changes are by directory; a skill that changed is in both.

        Args:
            part: the directory.
            recalled: skills of the root from the index of an earlier process, for its first scan.
            arm: called with each directory, to watch it.
        """
        known = {directory: self.skills[directory] for directory in self.skills.below(part)}

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
        grace = None
        if recalled is None:
            grace = self._grace
        found = Scan(
            self.root,
            recalled or known,
            namespace,
            self.limits,
            self._roots,
            self._nested,
            grace,
            entering,
        )
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
        self._note_problems(part, found.problems)
        gone = {
            directory: skill
            for directory, skill in known.items()
            if found.skills.get(directory) is not skill
        }
        came = {
            directory: skill
            for directory, skill in found.skills.items()
            if known.get(directory) is not skill
        }
        self.skills.replace(gone, came)
        if recalled is not None:
            self.saved = {
                **dict.fromkeys(recalled),
                **{each: found.skills[each] for each in found.unread},
            }
        return Changes(gone, came)

    def _note_problems(self, part: str, found: Iterable[tuple[str, Problem]]) -> None:
        """Replace the problems at or below a directory; cheap if none differs."""
        now: dict[str, tuple[Problem, ...]] = {}
        for place, each in found:
            now[place] = (*now.get(place, ()), each)
        before = self._unattached.below(part)
        if len(before) != len(now) or any(
            self._unattached[place] != now.get(place) for place in before
        ):
            self._unattached.replace(before, now)
            places = self._unattached.below("")
            self.unattached_problems = tuple(
                each for place in places for each in self._unattached[place]
            )

    def _switch_of(self, directory: str) -> str | None:
        """Return the switched-off folder that this directory is or lies in, or None."""
        return next((up for up in above(directory) if up in self.root.off), None)

    def _refuse(self, part: str, found: Scan, known: Mapping[str, Skill]) -> None:
        """Remove refused skills from a scan's result: one must not hide a skill of a later root."""
        refused: list[str] = []
        for directory, skill in list(found.skills.items()):
            # a full scan judges unchanged skills again: a certificate may have expired
            if part and known.get(directory) is skill:
                continue
            refusal = None
            off = self._switch_of(directory)
            try:
                if off is not None:
                    refusal = GateRefusal(
                        problem("switched-off", f"{SWITCHES} has {off!r}", hint=_SWITCH_ON)
                    )
                elif self._judge is not None:
                    refusal = self._judge(skill)
            except OSError as error:
                refusal = GateRefusal(
                    problem("unreadable", f"its files cannot be read ({error.strerror})")
                )
            if refusal is not None:
                del found.skills[directory]
                # the skill's own problems must not vanish with it
                if skill.standing is Standing.UNUSABLE and refusal.problem is None:
                    found.problems += [(directory, each) for each in skill.problems]
                refused.append(directory)
                if refusal.problem is not None:
                    place = self.root.show(directory)
                    found.problems.append((directory, refusal.problem.at(place, skill.path)))
        self._refused.replace(self._refused.below(part), dict.fromkeys(refused))

    def _report_missing(self, error: OSError) -> None:
        shown = self.root.shown
        if self.missing is None:
            reason = error.strerror or "cannot be read"
            logger.warning(
                "%s: the root cannot be read (%s); serving what was read before", shown, reason
            )
        self.missing = problem("root-missing", "the root cannot be read").at(shown, "")


class GracePeriod:
    """Grace period of skills whose SKILL.md is gone or has become worse: they stay as they were.

    An editor may unlink a file and create it anew, a tool may truncate it and write, and a checkout
    may do either for a second. The author intends none of that. Guarded by the registry's lock.

    Args:
        rescan: called in a timer thread when a state may have lasted long enough.
        quiet_s: seconds that a state must last; 0 turns the grace period off.
    """

    def __init__(self, rescan: Callable[[], object], quiet_s: float = QUIET_S) -> None:
        self._rescan = rescan
        self._quiet_s = quiet_s
        self._since: dict[tuple[int, str], tuple[object, float]] = {}
        self._timer: threading.Timer | None = None
        self._closed = False

    @property
    def is_on(self) -> bool:
        """Tell whether there is a grace period."""
        return self._quiet_s > 0

    @property
    def places(self) -> list[tuple[int, str]]:
        """(root index, directory) of each kept skill."""
        return list(self._since)

    def keep(self, root: int, directory: str, state: object) -> bool:
        """Tell whether to keep the skill: its SKILL.md has changed state too recently."""
        now = time.monotonic()
        before, since = self._since.get((root, directory), (None, now))
        if (root, directory) not in self._since or before != state:
            since = now
        if now - since >= self._quiet_s:
            self._since.pop((root, directory), None)
            return False
        self._since[root, directory] = state, since
        if self._timer is None and not self._closed:
            self._timer = threading.Timer(self._quiet_s, self._on_timer)
            self._timer.daemon = True
            self._timer.start()
        return True

    def discard_others(self, root: int, part: str, still: Collection[str]) -> None:
        """Forget the directories at or below `part` that are not in `still`."""
        for key in [
            key
            for key in self._since
            if key[0] == root and within(key[1], part) and key[1] not in still
        ]:
            del self._since[key]

    def close(self) -> None:
        """Cancel the timer; `rescan` is not called from here on."""
        self._closed = True
        if (timer := self._timer) is not None:
            timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        self._rescan()
