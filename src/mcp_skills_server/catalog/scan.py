"""Scan: build Skills from the directory tree that `tree.Walk` reads.

`Scan.run` visits a directory and those below it. `_visit` builds the skill of each directory that
is one: `_read_skill` reads its SKILL.md, the directories below are visited, and `_completed` adds
the files of all of them. Links to folders come last: they serve only what the root does not hold.
Unchanged skills and files keep their objects from the last scan.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.bundle import REFUSALS, Bundle, ScannedFiles, open_hint
from mcp_skills_server.catalog.disk import WalkedFile
from mcp_skills_server.catalog.fetched import Origins
from mcp_skills_server.catalog.path_map import above, join, levels, within
from mcp_skills_server.catalog.roots import FolderLink, Limits, Root, link_state
from mcp_skills_server.catalog.tree import Directory
from mcp_skills_server.codes import problem, standing
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.format import near_misses
from mcp_skills_server.format.ignored import VENV_MARKER, is_entered
from mcp_skills_server.model import SKILL_MD, Problem, Reading, Skill, Standing

logger = logging.getLogger(__name__)

QUIET_S: Final = 1.0
"""Grace period in seconds: a SKILL.md that is gone or became worse must stay so to count.

An editor may unlink a file and create it anew, a tool may truncate it and write, and a checkout may
do either for a second. The author intends none of that.
"""
_OPENING: Final = 400
"""Characters of a body that are indexed for search: more is slower and finds no more."""
_MAX_CANDIDATES: Final = 100
"""Files of one folder that are examined as near misses."""
_NO_SKILL: Final = "leads to a directory without a SKILL.md"

Arm: TypeAlias = Callable[[str, str], None]
"""Called with a root's path and a directory's root-relative path before a scan reads it."""


class Kept(NamedTuple):
    """A skill in its grace period, which ends if its SKILL.md is in the same `state` by then."""

    state: object
    until: float


@dataclass
class Scan:
    """One scan of a root, or of a part of it. All paths are root-relative.

    Attributes:
        known: the skills of the last scan by directory; in the first scan those of the index.
        proofs: the signatures that prove the bytes of their files, by location.
        roots: all served roots: their content is not served a second time through a link.
        nested: directories that earlier scans found to be nested skills; this scan adds to them.
        grace: the skills in their grace period at the last scan; None for no grace period.
        arm: called with each directory before it is read.
        problems: found problems outside of every skill, with their paths.
        skipped_dot_folders: dot folders that were not entered.
        kept: the skills in their grace period, by directory.
        unread: the directories of known skills for which no file was read.
        signatures: the signatures that prove the bytes of the files met, by location.
    """

    root: Root
    known: Mapping[str, Skill]
    proofs: Mapping[str, str]
    limits: Limits
    roots: Sequence[Root]
    nested: set[str]
    grace: Mapping[str, Kept] | None
    arm: Arm | None
    skills: dict[str, Skill] = field(default_factory=dict[str, Skill])
    problems: list[tuple[str, Problem]] = field(default_factory=list[tuple[str, Problem]])
    skipped_dot_folders: list[str] = field(default_factory=list[str])
    kept: dict[str, Kept] = field(default_factory=dict[str, Kept])
    unread: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self._links: list[str] = []
        """Root-relative paths of links outside of every skill."""
        self._origins = Origins(self.root.path, self.root.origin)
        known, most = self.known.values(), self.limits.bytes
        self._files = ScannedFiles(self.root, known, self.proofs, most, self.nested)
        self.signatures = self._files.signatures

    def run(self, subtree: str) -> None:
        """Scan the directory `subtree` of the root, "" for all of it.

        Raises:
            OSError: the directory cannot be opened, or the process ran out of descriptors or
                memory.
        """
        for reported in () if subtree else self.root.plugin_problems:
            self.problems.append(("", reported.at(self.root.show(reported.path), "")))
        self._visit_subtree(subtree)
        self._follow_links(subtree)

    def _visit_subtree(self, subtree: str) -> None:
        """Visit the directory `subtree` just as a scan of the whole root would."""
        markers = [join(up, VENV_MARKER) for up in above(subtree.rpartition("/")[0]) if up]
        statuses = [disk.lstat_below(self.root.path, marker) for marker in markers]
        if any(status is not None and stat.S_ISREG(status.st_mode) for status in statuses):
            return
        status = disk.lstat_below(self.root.path, subtree)
        if status is not None and stat.S_ISLNK(status.st_mode):
            # The whole scan sees links one level deeper, by their parent.
            if levels(subtree) <= tree.MAX_LEVELS + 1:
                self._links.append(subtree)
            return
        if levels(subtree) > tree.MAX_LEVELS:
            return
        self._entering(subtree)
        try:
            with disk.open_directory(self.root.path, subtree) as handle:
                self._visit(self._walk(handle, subtree))
        except PermissionError:
            if not subtree:
                raise
            self._visit(Directory(subtree, unreadable=True))

    def _walk(self, handle: disk.Handle, path: str) -> Directory | None:
        limits = self.limits
        walk = tree.Walk(limits.files, hidden=limits.hidden, entering=self._entering)
        # Walk beyond `limits.depth`, so that a skill that lies too deep is reported.
        return walk.read_directory(handle, path, tree.MAX_LEVELS - levels(path))

    def _entering(self, location: str) -> None:
        if self.arm is not None:
            located = self.root.locate(location)
            self.arm(located.base, located.rest)

    def _at(self, location: str) -> str:
        """Return the absolute path of a root-relative one."""
        return os.path.join(self.root.path, location)

    def _visit(self, here: Directory | None, outer: Skill | None = None) -> None:
        """Build the skill of this directory, if it is one, and those of the directories below.

        `outer` is the innermost skill around the directory.
        """
        if here is None:
            return
        reads = self._files.reads
        read_skill = self._read_skill(here, outer)
        kept = self._in_grace(here, read_skill)
        skill = kept or read_skill
        here.holds_manifest |= kept is not None  # until the end of the grace period
        if skill is not None:
            self.skills[here.path] = skill
        elif outer is None:
            self._report_outside(here)
        beside_skills = False
        for inner in here.directories:
            self._visit(inner, skill or outer)
            beside_skills = beside_skills or inner.path in self.skills
        if skill is None:
            if outer is None and not here.is_skill:
                self._report_near_misses(here, beside_skills or not here.path)
            elif outer is not None and not here.holds_manifest:
                self._orphan(here)
        elif kept is None:  # a kept skill keeps its files, too
            bundle = Bundle(skill, self.root, self._files)
            bundle.add(here)
            read_skill = bundle.complete(self.limits)
            self.skills[here.path] = unchanged(self.known.get(here.path), read_skill)
            if here.path in self.known and self._files.reads == reads:
                self.unread.add(here.path)

    def _in_grace(self, here: Directory, skill: Skill | None) -> Skill | None:
        """Return this directory's known skill if it stays for a grace period, or None."""
        old = self.known.get(here.path)
        if self.grace is None or old is None or old.standing is Standing.UNUSABLE:
            return None
        if skill is not None and skill.reading.standing >= old.reading.standing:
            return None
        manifest = here.files.get(SKILL_MD)
        state: object = None
        if manifest is not None:
            state = manifest.signature
        elif skill is not None:
            state = skill.reading.problems
        now, kept = time.monotonic(), self.grace.get(here.path)
        if kept is None or kept.state != state:
            kept = Kept(state, now + QUIET_S)
        elif kept.until <= now:
            return None
        self.kept[here.path] = kept
        return old

    def _note_nested(self, here: Directory) -> None:
        """Record the nested skills below a skill, before any link is judged."""
        for inner in here.directories:
            if inner.holds_manifest:
                self.nested.add(inner.path)
            self._note_nested(inner)

    def _orphan(self, here: Directory) -> None:
        """Keep the files of a nested skill without a SKILL.md out of the outer skill.

        The outer skill may have other readers, and an editor or a checkout may take its time.
        """
        if here.path not in self.nested:
            return
        here.is_orphaned = True
        message = "SKILL.md is gone, and the other files are not served with the skill around them"
        hint = "put it back, move the files to a folder of another name, or restart the server"
        self._report("skill-md-irregular", message, here.path, hint)

    # SKILL.md

    def _read_skill(self, here: Directory, outer: Skill | None) -> Skill | None:
        """Return the skill without files, known only after the directories below, or None."""
        layout = self.root.layout
        if outer is None and layout is not None and layout.namespace(here.path) is None:
            return None
        if here.holds_manifest and outer is None:
            self._note_nested(here)
        manifest = self._manifest(here, inside=outer is not None)
        if manifest is None:
            return None
        old, shown = self.known.get(here.path), ""
        if old is not None and self._path(here, old.reading, outer) != old.path:
            old = None  # the name that its directory had counts as that of a renamed plugin
        if isinstance(manifest, Problem):
            shown, reading = manifest.path, _unusable(manifest)
        else:
            reading = self._reading(here, manifest, old)
        path = self._path(here, reading, outer)
        if reading.problems:
            shown = shown or self.root.show(join(here.path, SKILL_MD))
            problems = tuple(problem.at(shown, path) for problem in reading.problems)
            reading = reading._replace(problems=problems)
            # Not by equality alone: in Python 1 equals True, and dicts are equal in any order.
            is_known = old is not None and reading.frontmatter is old.reading.frontmatter
            if old is not None and old.reading == reading and (is_known or not reading.frontmatter):
                reading = old.reading
        origin, index = self._origin(here.path), self.root.index
        return Skill(path, index, here.path, reading, {}, (), reading.standing, origin=origin)

    def _manifest(self, here: Directory, *, inside: bool) -> WalkedFile | Problem | None:
        """Return this directory's SKILL.md, why it is unreadable, or None if there is no skill."""
        kind = here.unserved.get(SKILL_MD)
        if SKILL_MD in here.files:
            if inside and self._origins.is_copy(here.path):
                return None
            return here.files[SKILL_MD]
        if kind == "link":
            linked = self._files.linked(here.path, SKILL_MD)
            if linked is not None and within(linked.location, here.path):
                return linked
            text = "SKILL.md is a link that leaves the skill or leads nowhere"
            return problem("skill-md-irregular", text)
        if kind is not None:
            code, message, hint = REFUSALS[kind]
            if code != "unreadable":
                code = "skill-md-irregular"
            return problem(code, message.format(SKILL_MD), hint=hint)
        for name in here.files if not inside else ():
            if name.lower() == "skill.md":
                path = self.root.show(join(here.path, name))
                return problem("skill-md-case", f"the file is named {name}").at(path, "")
        return None

    def _reading(self, here: Directory, manifest: WalkedFile, old: Skill | None) -> Reading:
        """Return the reading of a SKILL.md: the known one if the file is the same."""
        size, most = manifest.size, self.limits.skill_md
        if size > most:
            text = f"SKILL.md has {size} bytes, at most {most} are allowed"
            return _unusable(problem("skill-md-too-large", text))
        if old and any(problem.code == "unreadable" for problem in old.reading.problems):
            old = None  # its bytes were not read
        known = old and old.files.get(SKILL_MD)
        file = self._files.unchanged(manifest)
        if old and known and file and file.digest == known.digest:
            return old.reading  # by its signature, without reading it
        try:
            raw = self._files.read(manifest)
        except OSError as error:
            if error.errno in disk.TRANSIENT_ERRORS:
                raise
            return _unusable(problem("unreadable", f"SKILL.md cannot be read ({error.strerror})"))
        if old and known and self._files.take(manifest).digest == known.digest:
            return old.reading  # rewritten with the same bytes
        try:
            return read_skill_md(raw, self._directory_name(here))
        except Exception as error:  # a bug of ours must not hide the other skills
            logger.exception("%s could not be read", self.root.show(here.path), extra=REPEATS)
            text = f"the server failed to read SKILL.md ({type(error).__name__}); report this bug"
            return _unusable(problem("unreadable", text))

    def _path(self, here: Directory, reading: Reading, outer: Skill | None) -> str:
        layout = self.root.layout
        if outer is not None:
            return join(outer.path, here.path.removeprefix(outer.directory).lstrip("/"))
        namespace = None if layout is None else layout.namespace(here.path)
        if here.path and (layout is None or here.path not in layout.plugins):
            return f"{namespace}/{self._directory_name(here)}" if namespace else here.path
        # A root or a whole plugin that is a skill takes its name as path, unless that is no single
        # path segment.
        name = reading.frontmatter.get("name")
        is_segment = isinstance(name, str) and "/" not in name and name not in {"", ".", ".."}
        if not isinstance(name, str) or not is_segment or not name.isprintable():
            name = self._directory_name(here)
        return f"{namespace}/{name}" if namespace else name

    def _directory_name(self, here: Directory) -> str:
        layout = self.root.layout
        if layout is not None and here.path in layout.plugins:
            return layout.folders[here.path]
        if here.path:
            return here.path.rpartition("/")[2]  # UTF-8: the walk enters no other name
        return disk.to_utf8(os.path.basename(self.root.path) or "root")

    def _origin(self, location: str) -> str | None:
        """Return the origin of a skill; behind a link, that of the linked folder."""
        located = self.root.locate(location)
        if located.link:
            return Origins(located.base, None).origin_of(located.rest)
        return self._origins.origin_of(location)

    # Links to folders

    def _follow_links(self, subtree: str) -> None:
        """Serve each linked skill folder once, and report other links to directories."""
        self.root.forget_links(subtree)
        # deterministic: outer folders first, and always the same one of two links to a folder
        links = [(os.path.realpath(self._at(location)), location) for location in self._links]
        for target, location in sorted(links):
            state = link_state(self._at(location))
            if os.path.lexists(target) and not os.path.isdir(target):
                continue
            self.root.set_link(location, FolderLink("", state))
            if not state:
                continue
            try:
                reason = self._why_not(location, target)
                if reason is None:
                    self.root.set_link(location, FolderLink(target, state))
                    reason = self._follow(location, target)
            except OSError as error:
                reason = f"leads to a directory that cannot be opened ({error.strerror})"
            if reason:
                self.root.set_link(location, FolderLink("", state))
                hint = "serve the folder it leads to as a root of its own"
                if _below(target, self.root.path) is not None:
                    hint = "remove the link, since the folder it leads to is part of this root"
                text = f"{location.rpartition('/')[2]} is a link that {reason}"
                self._report("link-outside", text, location, hint)

    def _why_not(self, location: str, target: str) -> str | None:
        """Return why a link is not followed, "" if its skill is served elsewhere, or None."""
        holds_skill = os.path.lexists(os.path.join(target, SKILL_MD))
        if not self.limits.links or self._origins.origin_of(location) is not None:
            return "leads to a directory, and links are not followed"
        hidden = self.limits.hidden
        for root in self.roots:
            rest = _below(target, root.path)
            if rest is not None and all(is_entered(name, hidden=hidden) for name in rest):
                layout = root.layout  # of a plugin, whose skills folder may be a link
                is_served = layout is not None and "/".join(rest) in layout.folders
                return "" if holds_skill or is_served else _NO_SKILL
            if _below(root.path, target) is not None:
                return "leads to a directory that a root lies in"
            if root.index <= self.root.index and root.behind_link(target) is not None:
                return ""
        return None

    def _follow(self, location: str, target: str) -> str | None:
        """Scan the skill folder behind a link; return why it is not served, or None.

        Raises:
            OSError: the folder cannot be opened.
        """
        self._entering(location)
        with disk.open_real(target) as handle:
            # Check the opened directory, since the link may lead elsewhere by now (TOCTOU).
            owner = os.lstat(self._at(location)).st_uid
            if os.stat(handle).st_uid != owner:
                return "leads to a directory of another user than the link's"
            folder = self._walk(handle, location)
            if folder is None:
                return _NO_SKILL
            if folder.holds_manifest:
                if disk.lstat(handle, SKILL_MD).st_uid != owner:
                    return "leads to a directory whose SKILL.md belongs to another user"
            elif self._in_grace(folder, None) is None:
                return _NO_SKILL
            self._visit(folder)
        return None

    # Problems outside of every skill

    def _report(self, code: str, message: str, location: str, hint: str | None = None) -> None:
        reported = problem(code, message, hint=hint).at(self.root.show(location), "")
        self.problems.append((location, reported))

    def _report_outside(self, here: Directory) -> None:
        """Report what is not served outside of skills, and collect links and dot folders."""
        layout, location = self.root.layout, here.path
        if layout is not None and here.is_skill and layout.namespace(location) is None:
            shown = location or "."
            message = f"the skill at {shown} is not part of any plugin of {layout.manifest}"
            self._report("plugin-unlisted", message, location)
        self._links += [join(location, name) for name in here.named("link")]
        self.skipped_dot_folders += [join(location, name) for name in here.named("dotted")]
        for name in here.named("unnamed"):
            message = f"the name {name} is not UTF-8, so nothing of it is served"
            self._report("file-name", message, join(location, name))
        denied = here.named("denied")
        if here.unreadable:
            hint = open_hint(self.root, here)
            self._report("unreadable", "the directory cannot be opened", location, hint)
        elif denied:
            code, message, hint = REFUSALS["denied"]
            self._report(code, message.format(f"{len(denied)} of its names"), location, hint)
        if here.is_truncated:
            most = tree.MAX_LEVELS
            message = f"folders lie more than {most} levels below the root and are not searched"
            hint = "serve a folder that lies nearer to them as a root of its own"
            self._report("too-deep", message, location, hint)

    def _report_near_misses(self, here: Directory, beside_skills: bool) -> None:
        """Report files outside of skills that are skills but for their names."""
        names = near_misses.candidates(here.files, beside_skills)
        for name in islice(names, _MAX_CANDIDATES):
            file, location = here.files[name], join(here.path, name)
            with suppress(OSError):
                raw = b"" if file.size > self.limits.skill_md else self._files.read(file)
                near_miss = near_misses.judge(location, raw, beside_skills)
                if near_miss is not None:
                    self.problems.append((location, near_miss.at(self.root.show(location), "")))


def unchanged(old: Skill | None, skill: Skill) -> Skill:
    """Return the known skill of a directory, `old`, if `skill` equals it, else `skill`."""
    if old is None or (old.path, old.nested) != (skill.path, skill.nested):
        return skill
    return old if old.has_same_content(skill) else skill


def read_skill_md(raw: bytes, directory: str) -> Reading:
    """Parse and check the bytes of a SKILL.md; its `name` must equal `directory`."""
    # late imports: a start over an indexed tree needs no rules
    from mcp_skills_server.format.frontmatter import parse
    from mcp_skills_server.format.links import heading, headings
    from mcp_skills_server.validation.rules import check

    document = parse(raw)
    problems = (*document.problems, *check(document, directory))
    frontmatter, body, level = document.frontmatter, document.body, standing(problems)
    if frontmatter is None:
        return Reading({}, None, level, problems)
    opening = body[:_OPENING].strip()
    return Reading(frontmatter, heading(body), level, problems, headings(body), opening)


def _unusable(reason: Problem) -> Reading:
    return Reading({}, None, Standing.UNUSABLE, (reason,))


def _below(path: str, top: str) -> list[str] | None:
    """Return the path segments from `top` down to `path`, or None if it is not below."""
    if path != top and not path.startswith(top.rstrip(os.sep) + os.sep):
        return None
    return [name for name in path[len(top) :].split(os.sep) if name]
