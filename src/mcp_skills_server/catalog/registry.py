"""The one mutable cell: the current Snapshot, swapped whole.

Readers take `snapshot` and keep it; a refresh builds the next one beside it, so nobody ever sees it half filled.
A refresh scans only the skills that a change touches. Digests are computed when somebody asks and kept beside the
file. Every read is proved: the descriptor that was checked is the one that is read, and bytes whose digest is known
must still have it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mcp_skills_server.catalog import collector, tree
from mcp_skills_server.catalog.held import QUIET_S, Held, Kept
from mcp_skills_server.catalog.path_index import PathIndex, join, merge, outermost, touched, within
from mcp_skills_server.catalog.scan import Limits, Root, Scan, digest_of, scan
from mcp_skills_server.codes import problem
from mcp_skills_server.errors import StaleFileError, UsageError
from mcp_skills_server.format import frontmatter
from mcp_skills_server.format.links import linked_files, references
from mcp_skills_server.model import SKILL_MD, Changes, Problem, Skill, SkillFile, Snapshot, Standing
from mcp_skills_server.validation import rules

logger = logging.getLogger(__name__)

_BODIES_KEPT: Final = 256
_BODIES_SIZE: Final = 8 << 20
_NAMES_LOOKED_AT: Final = 100_000


@dataclass(frozen=True, slots=True)
class Body:
    """A skill's instructions, made ready.

    Attributes:
        text: UTF-8 text with LF line ends, without frontmatter (S76-7, S76-19).
        linked: the bundled files that it refers to, in order, each with its link text or "".
        line: the line of SKILL.md that it begins on, counted from 1.
    """

    text: str
    linked: Mapping[str, str]
    line: int = 1


@dataclass(frozen=True, slots=True)
class MirroredRoot:
    """A directory with copies of skills that live elsewhere.

    Attributes:
        path: the directory.
        origin: the site or the archive that they come from; clients and models read it, so it holds no secret.
    """

    path: str
    origin: str


class Registry:
    """The skills of some directories, kept current.

    Args:
        roots: directories that hold skills or are one; the earlier root wins (ASG-7). A path to a SKILL.md stands
            for its directory.
        limits: what a skill may measure.
        quiet_s: seconds for which a SKILL.md that is gone or has become worse must stay so before the skill becomes
            what it is then; until then it stands as it was. Editors and tools write a file in several steps.

    Raises:
        UsageError: a root is not there, is not a directory, or cannot be read.
    """

    def __init__(
        self,
        roots: Sequence[str | os.PathLike[str] | MirroredRoot],
        limits: Limits | None = None,
        *,
        quiet_s: float = QUIET_S,
    ) -> None:
        self.limits = limits or Limits()
        self.roots = _open_roots(roots)
        self.snapshot = Snapshot({})
        self.loaded = threading.Event()
        self._lock = threading.RLock()
        self._skills = [PathIndex() for _ in self.roots]
        self._unattached_problems: list[list[tuple[str, Problem]]] = [[] for _ in self.roots]
        self._missing: dict[int, Problem] = {}
        self._dotted: list[list[str]] = [[] for _ in self.roots]
        self._listeners: dict[object, tuple[Callable[[Changes], None], bool]] = {}
        self._held = Held(self._look_at_held, quiet_s)
        self._bodies: Kept[Skill, Body] = Kept(_BODIES_KEPT, _BODIES_SIZE, lambda body: body.text)
        self._replacing: Kept[SkillFile, bytes] = Kept(_BODIES_KEPT, _BODIES_SIZE, lambda raw: raw)
        self._proved: dict[str, Skill] = {}
        self.followed = False
        """Whether something calls `tell_deferred` now and then, so that `rescan` need not tell."""
        self._rescanning = False
        self._deferred = Changes({}, {})
        self._digest_lock = threading.Lock()

    # Keeping current

    def subscribe(self, listener: Callable[[Changes], None], *, problems: bool = False) -> Callable[[], None]:
        """Have `listener` called after the first scan and after each swap that changed something, in its thread.

        It is called in the order of the swaps and must return at once. With `problems` it is also called, with empty
        changes, when nothing has changed but what is wrong. Returns what ends the subscription.
        """
        token = object()
        self._listeners[token] = listener, problems
        return lambda: self._listeners.pop(token, None) and None

    def load(self) -> None:
        """The first scan. `loaded` is set when it is done, whatever it found."""
        try:
            with collector.paused(), self._lock:
                if not self.refresh():
                    self._tell(Changes({}, {}), first=True)
        finally:
            self.loaded.set()

    def refresh(self, paths: Iterable[str] | None = None) -> Changes:
        """Scan again what these absolute paths touch, or everything, and swap the snapshot if anything changed."""
        with self._lock:
            if paths is None:
                self._follow_roots()
            todo = [(root, [""]) for root in self.roots] if paths is None else self._touched(paths)
            before: list[Skill] = []
            after: list[Skill] = []
            loose_before = [list(loose) for loose in self._unattached_problems], dict(self._missing)
            same_keys = True
            for root, parts in todo:
                for part in parts:
                    gone, came = self._scan_part(root, part)
                    same_keys = same_keys and _paths(gone) == _paths(came)
                    before += gone.values()
                    after += came.values()
            if before or after or loose_before != (self._unattached_problems, self._missing):
                return self._swap(before, after, same_keys=same_keys)
            return Changes({}, {})

    def _follow_roots(self) -> None:
        """Look where the roots lead now: tools that publish a folder whole do it by moving a link."""
        for root in self.roots:
            path = os.path.realpath(root.given)
            if path != root.path and os.path.isdir(path):
                logger.info("%s now leads to another folder", root.shown)
                self.roots = (*self.roots[: root.index], replace(root, path=path), *self.roots[root.index + 1 :])

    def _touched(self, paths: Iterable[str]) -> list[tuple[Root, list[str]]]:
        by_root: dict[int, set[str]] = {}
        for path in paths:
            for root in self.roots:
                if path == root.path or path.startswith(root.path + os.sep):
                    location = path[len(root.path) + 1 :].replace(os.sep, "/")
                    part = self._touched_part(root, location)
                    if part is not None:
                        by_root.setdefault(root.index, set()).add(part)
        return [
            # While a root was away nobody heard what happened in it.
            (self.roots[index], [""] if index in self._missing else outermost(parts))
            for index, parts in sorted(by_root.items())
        ]

    def _touched_part(self, root: Root, location: str) -> str | None:
        if self._is_passed_over(root, location):
            return None
        while not tree.is_utf8(location):
            location = location.rpartition("/")[0]
        part = touched(location, self._skills[root.index], os.path.isdir(os.path.join(root.path, location)))
        if part is None and any(within(place, location) for place, _ in self._unattached_problems[root.index]):
            return location  # what was told of it may be over
        return part

    def _is_passed_over(self, root: Root, location: str) -> bool:
        """Whether a part of this place has a name that no scan looks at; inside a skill no dot folder is entered."""
        names = [name for name in location.split("/") if name]
        if not any(map(tree.is_ignored, names)):
            return False
        skills, hidden = self._skills[root.index], self.limits.hidden and "" not in self._skills[root.index]
        for depth, name in enumerate(names, 1):
            if not tree.is_entered(name, hidden=hidden):
                return True
            hidden = hidden and "/".join(names[:depth]) not in skills
        return False

    def _look_at_held(self) -> None:
        with self._lock:
            self.refresh([os.path.join(self.roots[root].path, place) for root, place in self._held.places])

    def _scan_part(self, root: Root, part: str) -> tuple[dict[str, Skill], dict[str, Skill]]:
        """Scan one part; returns what is gone and what came, by directory. Unchanged skills are in neither."""
        mine = self._skills[root.index]
        known = {directory: mine[directory] for directory in mine.below(part)}
        namespace = mine[""].path if "" in mine else ""
        held: set[str] = set()

        def hold(directory: str, state: object) -> bool:
            keep = self._held.keep(root.index, directory, state)
            if keep:
                held.add(directory)
            return keep

        try:
            found = scan(root, part, known, namespace, self.limits, hold=hold)
            self._missing.pop(root.index, None)
        except OSError as error:
            # Only what is known to be gone is taken away: a want of descriptors, say, passes.
            if not part or error.errno not in tree.GONE or not os.path.isdir(root.path):
                self._report_missing(root, error)
                return {}, {}
            found = Scan()
        self._held.settle(root.index, part, held)
        for file, raw in found.read.items():
            self._replacing.put(file, raw)
        keep = [entry for entry in self._unattached_problems[root.index] if part and not within(entry[0], part)]
        self._unattached_problems[root.index] = keep + found.problems
        dotted = [place for place in self._dotted[root.index] if part and not within(place, part)]
        self._dotted[root.index] = dotted + found.passed
        skills = found.skills
        gone = {d: skill for d, skill in known.items() if skills.get(d) is not skill}
        came = {d: skill for d, skill in skills.items() if known.get(d) is not skill}
        mine.replace(gone, came)
        return gone, came

    def _report_missing(self, root: Root, error: OSError) -> None:
        if root.index not in self._missing:
            said = error.strerror or "cannot be read"
            logger.warning("%s: the root cannot be read (%s); serving what was read before", root.shown, said)
        self._missing[root.index] = problem("root-missing", "the root cannot be read").at(root.shown, "")

    def _swap(self, went: Iterable[Skill], came: Iterable[Skill], *, same_keys: bool) -> Changes:
        old = self.snapshot
        if len(self.roots) == 1 or same_keys:
            # Who wins does not change when only the contents do.
            shadowed = [found for found in old.problems if found.code == "shadowed"]
            after = {skill.path: skill for skill in came if len(self.roots) == 1 or self._wins(skill)}
            before = {skill.path: skill for skill in went if old.skills.get(skill.path) is skill}
            gone = before.keys() - after.keys()
            new = old.replacing(after, gone, tuple(self._loose_problems() + shadowed))
        else:
            skills, shadowed = self._merge()
            new = Snapshot(skills, tuple(self._loose_problems() + shadowed))
            before = {path: s for path, s in old.skills.items() if new.skills.get(path) is not s}
            after = {path: s for path, s in new.skills.items() if old.skills.get(path) is not s}
        self.snapshot = new
        changes = Changes(before, after)
        self._remember_proved(changes)
        self._tell(changes)
        return changes

    def _remember_proved(self, changes: Changes) -> None:
        """Of a skill that changed keep the last state of which all digests are known, until those of the new are."""
        for path, skill in changes.before.items():
            if path not in changes.after:
                self._proved.pop(path, None)
            elif all(file.digest is not None for file in skill.files.values()):
                self._proved[path] = skill

    def _tell(self, changes: Changes, *, first: bool = False) -> None:
        if self._deferred:
            changes, self._deferred = self._deferred.then(changes), Changes({}, {})
        if changes and self._rescanning and self.followed:
            self._deferred = changes
            return
        for listener, problems in list(self._listeners.values()):
            if not (changes or first or problems):
                continue
            try:
                listener(changes)
            except Exception:  # one listener's bug must not cost the others their news
                logger.exception("a listener failed")

    def _wins(self, skill: Skill) -> bool:
        shown = self.snapshot.skills.get(skill.path)
        return shown is not None and shown.root == skill.root

    def _loose_problems(self) -> list[Problem]:
        return [*self._missing.values(), *(found for loose in self._unattached_problems for _, found in loose)]

    def _merge(self) -> tuple[dict[str, Skill], list[Problem]]:
        """One namespace from all roots, and a Problem for each skill that has no place in it."""
        merged, hidden = merge([shelf[directory] for directory in shelf.below("")] for shelf in self._skills)
        shadowed: list[Problem] = []
        for skill, winner in hidden:
            if self.place(winner) == self.place(skill):
                continue  # of one root inside another: nothing is hidden
            place = self.roots[winner.root].show(winner.directory)
            found = problem("shadowed", f"the skill {skill.path} is hidden by {place}, which comes first")
            shadowed.append(found.at(self.roots[skill.root].show(skill.directory), skill.path))
        return merged, shadowed

    # Reading

    def read(self, file: SkillFile) -> bytes:
        """The file's exact bytes, proved against its digest.

        Raises:
            StaleFileError: they are no longer the bytes that were scanned. `rescan` looks again.
        """
        raw = tree.read(self.roots[file.root].path, file)
        digest = digest_of(raw)
        if file.digest is None:
            with self._digest_lock:  # of two first readers one decides what the file's bytes are
                file.digest = file.digest or digest
        if file.digest != digest:
            # Rewritten so quickly that no time stamp tells: only the bytes do.
            file.signature = ()
            raise StaleFileError(os.path.join(self.roots[file.root].path, file.location))
        return raw

    def digest(self, file: SkillFile) -> str:
        """The file's digest, computed once.

        Raises:
            StaleFileError: as for `read`.
        """
        return file.digest or digest_of(self.read(file))

    def body(self, skill: Skill) -> Body:
        """The skill's instructions and the files that they refer to.

        Raises:
            StaleFileError: as for `read`.
        """
        file = skill.files[SKILL_MD]
        kept = self._bodies.get(skill)
        if kept is not None and tree.is_fresh(self.roots[file.root].path, file):
            return kept
        return self._body_of(skill, self.read(file))

    def last_read(self, file: SkillFile) -> bytes | None:
        """The bytes that a scan read of a SKILL.md that is being replaced again, while they are kept.

        They are what its digest stands for, though the disk no longer has them.
        """
        return self._replacing.get(file)

    def last_body(self, skill: Skill) -> Body | None:
        """The same of a skill's instructions."""
        raw = self.last_read(skill.files[SKILL_MD])
        return self._bodies.get(skill) or (None if raw is None else self._body_of(skill, raw))

    def last_proved(self, skill: Skill) -> Skill | None:
        """What this skill was when last all its digests were known, as long as it is not gone."""
        return self._proved.get(skill.path)

    def _body_of(self, skill: Skill, raw: bytes) -> Body:
        document = frontmatter.parse(raw)
        linked = linked_files(references(document.body), skill.files, SKILL_MD)
        body = Body(document.body, linked, document.body_line)
        self._bodies.put(skill, body)
        return body

    def has_body(self, skill: Skill) -> bool:
        """Whether `body` has the answer at hand."""
        return skill in self._bodies

    def rescan(self, stale: StaleFileError) -> Changes:
        """Look again at what a stale file touches.

        While the disk is followed, listeners hear of it with what else is found there: a client that reads during a
        burst would otherwise hear of each skill by itself.
        """
        with self._lock:
            self._rescanning = True
            try:
                return self.refresh([stale.path])
            finally:
                self._rescanning = False

    def tell_deferred(self) -> None:
        """Tell the listeners what `rescan` found and nobody told since."""
        with self._lock:
            if self._deferred:
                self._tell(Changes({}, {}))

    def hash_files(self, skill: Skill) -> None:
        """Compute the digests of a skill that nobody has asked for yet, so that a touch can be told from an edit.

        Not of an unusable skill: it may be of any size.
        """
        for file in skill.files.values() if skill.standing > Standing.UNUSABLE else ():
            try:
                self.digest(file)
            except StaleFileError:
                continue
        if all(file.digest is not None for file in skill.files.values()):
            self._proved.pop(skill.path, None)

    def place(self, skill: Skill) -> str:
        """The absolute path of the skill's directory, for whoever works on the same disk."""
        return os.path.join(self.roots[skill.root].path, *skill.directory.split("/")).rstrip(os.sep)

    # Problems

    def of_root(self, root: Root) -> Snapshot:
        """The skills of one root as if it were the only one, those included that another hides."""
        mine = self._skills[root.index]
        loose = [found for _, found in self._unattached_problems[root.index]]
        missing = [self._missing[root.index]] if root.index in self._missing else []
        return Snapshot({mine[directory].path: mine[directory] for directory in mine.below("")}, (*missing, *loose))

    def dot_folders(self, root: Root) -> list[str]:
        """The folders of a root that no scan entered because their names begin with a dot, from the root.

        As of the scan of the folder that each lies in: nothing that happens in or to them is looked at.
        """
        return sorted(self._dotted[root.index])

    def problems(self, snapshot: Snapshot | None = None) -> list[Problem]:
        """Everything that is wrong, by place: skills, roots, and what shows only among several skills.

        Of the current snapshot, unless another is given. Of `dependencies` only the resources are judged; tools and
        prompts are the server's matter.
        """
        snapshot = snapshot or self.snapshot
        found = snapshot.all_problems
        for each in rules.check_catalog(snapshot):
            skill = snapshot.skills[each.skill]
            place = join(skill.directory, each.path) if each.path else skill.directory
            found.append(each.at(self.roots[skill.root].show(place), skill.path))
        return sorted(found, key=lambda each: (each.path, each.line or 0, each.code))

    def lint(self, skill: Skill) -> list[Problem]:
        """What only a reading of every text file tells: dangling references and what should not be in a skill.

        A file that cannot be read becomes a Problem.
        """
        from mcp_skills_server.validation import lint  # and with it TOML, which no start needs

        root = self.roots[skill.root]
        above = skill.directory + "/" if skill.directory else ""
        nested = tuple(
            f"{directory.removeprefix(above)}/"
            for directory in self._skills[skill.root].below(skill.directory)
            if directory != skill.directory
        )
        own = {path: file for path, file in skill.files.items() if not path.startswith(nested)}
        found = lint.lint_names(skill, own, tree.ignored_in(root.path, skill.directory, most_names=_NAMES_LOOKED_AT))
        known = {each.path for each in skill.problems if each.code == "unreadable"}  # the scan reported them
        for path, file in own.items():
            if file.size > self.limits.bytes:
                continue
            try:
                found += lint.lint_file(skill, path, self.read(file))
            except StaleFileError as stale:
                if root.show(join(skill.directory, path)) not in known:
                    reason = f"the file cannot be read ({stale.reason or 'it changed'})"
                    found.append(problem("unreadable", reason).at(path, ""))
        return [each.at(root.show(join(skill.directory, each.path)), skill.path) for each in found]


def _open_roots(roots: Sequence[str | os.PathLike[str] | MirroredRoot]) -> tuple[Root, ...]:
    out: list[Root] = []
    seen: set[str] = set()
    for given in roots:
        origin = given.origin if isinstance(given, MirroredRoot) else None
        shown = given.path if isinstance(given, MirroredRoot) else os.fspath(given)
        if not shown:
            raise UsageError("the path of a folder is empty; give the path of a folder that holds skills")
        if os.path.basename(shown) == SKILL_MD and os.path.isfile(shown):
            shown = os.path.dirname(shown) or "."
        path = os.path.realpath(shown)
        if not os.path.exists(path):
            raise UsageError(f"{shown}: no such folder; give the path of a folder that holds skills")
        if not os.path.isdir(path):
            raise UsageError(f"{shown}: not a folder; give the path of a folder that holds skills")
        try:
            os.scandir(path).close()
        except OSError as error:
            raise UsageError(f"{shown}: cannot be read ({error.strerror}); check its permissions") from None
        if path not in seen:
            seen.add(path)
            out.append(Root(len(out), path, origin or tree.spelled(shown), os.path.abspath(shown), origin))
    return tuple(out)


def _paths(skills: Mapping[str, Skill]) -> dict[str, str]:
    return {directory: skill.path for directory, skill in skills.items()}
