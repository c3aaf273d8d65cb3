"""Scan: build Skills from the directory tree that `tree.Walk` reads.

Unchanged skills and files keep their objects from the last scan.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.fetched import Origins
from mcp_skills_server.catalog.path_index import above, join, within
from mcp_skills_server.catalog.roots import FolderLink, Limits, Root, link_state
from mcp_skills_server.catalog.tree import Directory, Entering
from mcp_skills_server.codes import problem, standing
from mcp_skills_server.format.ignored import VENV_MARKER, is_entered
from mcp_skills_server.model import SKILL_MD, Problem, Reading, Skill, SkillFile, Standing

if TYPE_CHECKING:
    from mcp_skills_server.catalog.root_index import GracePeriod

logger = logging.getLogger(__name__)

_ADMIT: Final = "give the user that runs the server permission to enter the folder"
_HARD_LINK: Final = (
    "{} is a hard link to a file that belongs to another user than its folder, and is not served"
)
_LINK: Final = (
    "{} is a link that leaves the skill, leads to a directory or into another skill, or is broken"
)


class _Refusal(NamedTuple):
    """The problem of a directory entry that a skill does not serve."""

    code: str
    message: str
    hint: str | None = None


_ODD: Final[Mapping[str, _Refusal]] = {
    "irregular": _Refusal("file-irregular", "{} is not a regular file"),
    "foreign": _Refusal("hard-link", _HARD_LINK),
    "unnamed": _Refusal("file-name", "the name of {} is not UTF-8, so the file is not served"),
    "denied": _Refusal(
        "unreadable", "{} cannot be inspected: the folder may be read but not entered", _ADMIT
    ),
    "link": _Refusal("link-outside", _LINK),
}
"""By kind of name that is not served with its skill."""
_IN_PART: Final = (
    "it is not listed, and tools, prompts and the Skills Protocol have the files up to the "
    "limit alone"
)


@dataclass
class Scan:
    """One scan of a root, or of a part of it.

    Attributes:
        root: the root.
        known: the skills of the last scan by directory; in the first scan those of the index.
        namespace: for a scan of a part, the path of the skill that the root itself is; else "".
        limits: size limits of a skill.
        roots: all served roots: their content is not served a second time through a link.
        nested: directories that earlier scans found to be nested skills; this scan adds to them.
        grace: decides whether a skill is kept whose SKILL.md is gone or has become worse; None for
            no grace period.
        entering: called with the root-relative path of each directory before it is read.
        skills: by root-relative directory.
        problems: (root-relative path, problem) of each problem outside of every skill.
        skipped_dot_folders: root-relative paths of dot folders that were not entered.
        kept: the directories of skills in their grace period.
        unread: the directories of known skills for which no file was read.
    """

    root: Root
    known: Mapping[str, Skill]
    namespace: str
    limits: Limits
    roots: Sequence[Root]
    nested: set[str]
    grace: GracePeriod | None
    entering: Entering | None = None
    skills: dict[str, Skill] = field(default_factory=dict[str, Skill])
    problems: list[tuple[str, Problem]] = field(default_factory=list[tuple[str, Problem]])
    skipped_dot_folders: list[str] = field(default_factory=list[str])
    kept: set[str] = field(default_factory=set[str])
    unread: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self._links: list[str] = []
        """Root-relative paths of links outside of every skill."""
        self._origins = Origins(self.root.path, self.root.origin)
        self._files = {
            file.location: file for skill in self.known.values() for file in skill.files.values()
        }
        """The files of the known skills, by location."""
        self._taken: dict[str, SkillFile] = {}
        self._resolved: dict[str, SkillFile | None] = {}
        self._reads = 0

    def run(self, part: str) -> None:
        """Scan the directory `part` of the root, "" for all of it.

        Raises:
            OSError: the directory cannot be opened, or the process ran out of descriptors or
                memory.
        """
        found: Directory | None = None
        if self.root.layout is not None and not part:
            for name, reason in self.root.layout.left_out.items():
                self._report("plugin-elsewhere", f"the plugin {name} is not served: {reason}", "")
        levels = _levels(part)
        in_environment = any(
            os.path.lexists(os.path.join(self.root.path, up, VENV_MARKER))
            for up in above(part)
            if up
        )
        # Same depth as a scan of the whole root, which sees links one level deeper, by their
        # parent.
        if levels > tree.MOST_LEVELS:
            if levels == tree.MOST_LEVELS + 1:
                found = tree.link_at(self.root.path, part)
        elif not in_environment:
            if self.entering is not None:
                self.entering(part)
            try:
                with disk.open_directory(self.root.path, part) as handle:
                    self._visit(self._walk(handle, part), inside=False)
            except OSError as error:
                if part:
                    found = tree.fallback_entry(self.root.path, part, error)
                if found is None:
                    raise
        self._visit(found, inside=False)
        self._follow_links(part)

    def _walk(self, handle: disk.Handle, path: str) -> Directory | None:
        walk = tree.Walk(
            self.root.index, self.limits.files, hidden=self.limits.hidden, entering=self.entering
        )
        # Walk beyond `limits.depth`, so that a skill that lies too deep is reported.
        return walk.read_directory(handle, path, tree.MOST_LEVELS - _levels(path))

    def _visit(self, here: Directory | None, *, inside: bool) -> None:
        """Build the skill of this directory, if it is one, and those of the directories below."""
        if here is None:
            return
        reads = self._reads
        skill = None
        if self._may_be_skill(here, inside=inside):
            skill = self._read_skill(here, inside=inside)
        kept = self._in_grace(here, skill)
        skill = kept or skill
        if skill is not None:
            self.skills[here.path] = skill
            if not here.path:
                self.namespace = skill.path
        elif not inside:
            self._report_outside(here)
        for inner in here.directories:
            self._visit(inner, inside=inside or skill is not None)
        if skill is None:
            if inside and not here.holds_manifest:
                self._withhold(here)
        elif kept is None:
            self.skills[here.path] = self._completed(here, skill)
            if here.path in self.known and self._reads == reads:
                self.unread.add(here.path)

    def _may_be_skill(self, here: Directory, *, inside: bool) -> bool:
        if inside:
            return here.holds_manifest
        return self.root.layout is None or self.root.layout.namespace(here.path) is not None

    def _note_nested(self, here: Directory) -> None:
        """Record the nested skills below a skill, before any link is judged."""
        for inner in here.directories:
            if inner.holds_manifest:
                self.nested.add(inner.path)
            self._note_nested(inner)

    def _withhold(self, here: Directory) -> None:
        """Keep the files of a nested skill without a SKILL.md out of the outer skill.

        The outer skill may have other readers, and an editor or a checkout may take its time.
        """
        if here.path not in self.nested:
            return
        here.is_withheld = True
        message = "SKILL.md is gone, and the other files are not served with the skill around them"
        hint = "put it back, move the files to a folder of another name, or restart the server"
        self._report("skill-md-irregular", message, here.path, hint)

    def _report(self, code: str, message: str, place: str, hint: str | None = None) -> None:
        """Record a problem outside of every skill."""
        self.problems.append(
            (place, problem(code, message, hint=hint).at(self.root.show(place), ""))
        )

    def _in_grace(self, here: Directory, found: Skill | None) -> Skill | None:
        """Return this directory's known skill if it stays for a grace period, or None."""
        old = self.known.get(here.path)
        if self.grace is None or old is None or old.standing is Standing.UNUSABLE:
            return None
        if found is not None and found.reading.standing >= old.reading.standing:
            return None
        now = here.files.get(SKILL_MD)
        state: object = None
        if now is not None:
            state = now.signature
        elif found is not None:
            state = found.reading.problems
        if not self.grace.keep(self.root.index, here.path, state):
            return None
        self.kept.add(here.path)
        return old

    # SKILL.md

    def _manifest(self, here: Directory, *, inside: bool) -> SkillFile | Problem | None:
        """Return this directory's SKILL.md, why it is unreadable, or None if there is no skill."""
        kind = here.unserved.get(SKILL_MD)
        if SKILL_MD in here.files:
            if self._origins.is_copy(here.path):
                return None
            return here.files[SKILL_MD]
        if kind == "link":
            linked = self._link(here.path, SKILL_MD)
            if linked is not None and within(linked.location, here.path):
                return linked
            return problem(
                "skill-md-irregular", "SKILL.md is a link that leaves the skill or leads nowhere"
            )
        if kind is not None:
            odd = _ODD[kind]
            code = "skill-md-irregular"
            if odd.code == "unreadable":
                code = odd.code
            return problem(code, odd.message.format(SKILL_MD), hint=odd.hint)
        if here.folder_as_manifest:
            return problem("skill-md-irregular", "SKILL.md is a directory")
        for name in here.files if not inside else ():
            if name.lower() == "skill.md":
                place = self.root.show(join(here.path, name))
                return problem("skill-md-case", f"the file is named {name}").at(place, "")
        return None

    def _read_skill(self, here: Directory, *, inside: bool) -> Skill | None:
        """Return the skill without files, known only after the directories below, or None."""
        if here.holds_manifest and not inside:
            self._note_nested(here)
        manifest = self._manifest(here, inside=inside)
        if manifest is None:
            return None
        old, place = self.known.get(here.path), ""
        if isinstance(manifest, Problem):
            place, reading = manifest.path, _unusable(manifest)
        else:
            reading = self._reading(here, manifest, old)
        path = self._path(here, reading)
        if reading.problems:
            place = place or self.root.show(join(here.path, SKILL_MD))
            reading = reading._replace(
                problems=tuple(found.at(place, path) for found in reading.problems)
            )
            if old is not None and old.reading == reading:
                reading = old.reading
        origin = self._origin(here.path)
        return Skill(
            path, self.root.index, here.path, reading, {}, (), reading.standing, origin=origin
        )

    def _reading(self, here: Directory, manifest: SkillFile, old: Skill | None) -> Reading:
        """Return the reading of a SKILL.md: the known one if the file is the same."""
        if manifest.size > self.limits.skill_md:
            message = (
                f"SKILL.md has {manifest.size} bytes, at most {self.limits.skill_md} are allowed"
            )
            return _unusable(problem("skill-md-too-large", message))
        known = None
        if old is not None and not any(
            found.code == "unreadable" for found in old.reading.problems
        ):
            known = old.files.get(SKILL_MD)
        if old is not None and known is not None and self._unchanged(manifest) is known:
            return old.reading
        try:
            raw = self._read(manifest)
        except OSError as error:
            if error.errno in disk.TRANSIENT_ERRORS:
                raise
            return _unusable(problem("unreadable", f"SKILL.md cannot be read ({error.strerror})"))
        if old is not None and known is not None and self._take(manifest) is known:
            return old.reading
        # late import: a start over an indexed tree needs no rules
        from mcp_skills_server.catalog import reading

        return reading.read_skill_md(raw, self._directory_name(here))

    def _path(self, here: Directory, reading: Reading) -> str:
        if here.path:
            if self.namespace:
                return f"{self.namespace}/{here.path}"
            return self.root.skill_path(here.path, self.skills)
        name = reading.frontmatter.get("name")
        # A root that is a skill takes its name as path, unless that is no single path segment.
        sound = (
            isinstance(name, str)
            and name.isprintable()
            and "/" not in name
            and name not in {"", ".", ".."}
        )
        if not isinstance(name, str) or not sound:
            name = self._directory_name(here)
        if self.root.layout is not None:
            return join(self.root.layout.folders[""], name)
        return name

    def _directory_name(self, here: Directory) -> str:
        if here.path:
            return here.path.rpartition("/")[2]  # UTF-8: the walk enters no other name
        return disk.to_utf8(os.path.basename(self.root.path) or "root")

    def _origin(self, place: str) -> str | None:
        """Return the origin of a skill; behind a link, that of the linked folder."""
        located = self.root.locate(place)
        if located.link:
            return Origins(located.base, None).of(located.rest)
        return self._origins.of(place)

    # Files

    def _unchanged(self, found: SkillFile) -> SkillFile | None:
        """Return the known file at this location if its signature is the same, or None.

        An index may be wrong about a file: `Reader.read` hashes all it reads, so no bytes are
        served under another digest.
        """
        old = self._taken.get(found.location) or self._files.get(found.location)
        if (
            old is None
            or not old.digest
            or not old.mtime_reliable
            or old.signature != found.signature
        ):
            return None
        if not found.mtime_reliable:  # the clock was set back
            return None
        old.executable = found.executable
        self._taken[found.location] = old
        return old

    def _take(self, found: SkillFile) -> SkillFile:
        """Return the object of a file: the known one if the bytes are the same.

        A file that cannot be read has no digest.

        Raises:
            OSError: the process ran out of descriptors or memory.
        """
        taken = self._taken.get(found.location) or self._unchanged(found)
        if taken is not None:
            return taken
        old = self._files.get(found.location)
        if not found.digest:
            try:
                self._read(found)
            except OSError as error:
                if error.errno in disk.TRANSIENT_ERRORS:
                    raise
                is_news = old is None or old.digest
                # an unreadable SKILL.md has a problem of its own
                if is_news and not found.location.endswith(SKILL_MD):
                    logger.warning(
                        "a file of a skill is not served: %s: %s", error.strerror, error.filename
                    )
        taken = found
        if old is not None and (old.digest, old.size) == (found.digest, found.size):
            old.signature, old.mtime_reliable, old.executable = (
                found.signature,
                found.mtime_reliable,
                found.executable,
            )
            taken = old
        self._taken[found.location] = taken
        return taken

    def _read(self, found: SkillFile) -> bytes:
        """Read a file and record its digest; raise OSError if it is unreadable."""
        self._reads += 1
        located = self.root.locate(found.location)
        return disk.ingest(located.base, located.rest, found, self.limits.bytes)

    def _link(self, directory: str, name: str) -> SkillFile | None:
        """Return the file in its root that a link leads to, or None.

        A link into a nested skill from outside yields None: it would bypass the grants.
        """
        place = join(directory, name)
        if place not in self._resolved:
            located = self.root.locate(directory)
            target = disk.resolve_link(located.base, self.root.index, located.rest, name)
            if target is not None and located.link:
                target.location = join(located.link, target.location)
            if target is not None and any(
                up in self.nested and not within(place, up) for up in above(target.location)
            ):
                target = None
            self._resolved[place] = target
        return self._resolved[place]

    # The skill with its files

    def _completed(self, here: Directory, skill: Skill) -> Skill:
        """Return the skill with its files and final standing; the known object if equal."""
        bundle = _Bundle()
        self._collect(here, skill, bundle)
        files, findings = dict(sorted(bundle.files.items())), bundle.findings
        over = list(_over_limits(here.path, files, self.limits, bundle.unkept))
        if over:
            findings += [each.at(self.root.show(here.path), skill.path) for each in over]
            files = _within_limits(files, self.limits)
        found = Skill(
            skill.path,
            skill.root,
            skill.directory,
            skill.reading,
            {path: self._take(file) for path, file in files.items()},
            tuple(findings),
            min(skill.standing, standing(findings)),
            tuple(sorted(bundle.empty)),
            skill.origin,
            tuple(bundle.nested),
        )
        old = self.known.get(here.path)
        if old is not None and _equal(old, found):
            return old
        return found

    def _collect(self, here: Directory, skill: Skill, bundle: _Bundle) -> None:
        """Collect the files of this directory and those below, by their paths in the skill."""
        if here.is_withheld:
            return
        within_skill = here.path.removeprefix(skill.directory).lstrip("/")
        prefix = ""
        if within_skill:
            prefix = f"{within_skill}/"

        def find(code: str, message: str, name: str, hint: str | None = None) -> None:
            place = self.root.show(join(here.path, name))
            bundle.findings.append(problem(code, message, hint=hint).at(place, skill.path))

        before = len(bundle.files)
        if here.holds_manifest and within_skill:
            bundle.nested.append(within_skill)
        bundle.unkept += here.surplus
        for name, file in here.files.items():
            # interned: many skills have files of the same names
            bundle.files[sys.intern(prefix + name)] = file
            if "\\" in name:
                find("file-name-backslash", f"the name of {prefix}{name} holds a backslash", name)
        for name, kind in here.unserved.items():
            linked = None
            if kind == "link":
                linked = self._link(here.path, name)
            if linked is not None and within(linked.location, skill.directory):
                bundle.files[prefix + name] = linked
            elif kind in _ODD and name != SKILL_MD:
                odd = _ODD[kind]
                find(odd.code, odd.message.format(prefix + name), name, odd.hint)
        if here.unreadable:
            find("unreadable", "the directory cannot be opened", "", _open_hint(self.root, here))
        if here.is_truncated:
            find("too-deep", "files lie deeper than the scan goes", "")
        for inner in here.directories:
            self._collect(inner, skill, bundle)
        if len(bundle.files) == before and within_skill:
            bundle.empty.append(within_skill)

    # Links to folders, and what is no skill

    def _follow_links(self, part: str) -> None:
        """Serve each linked skill folder once, and report other links to directories."""
        for place in [*self.root.links.below(part)]:
            self.root.set_link(place, None)
        # Deterministic order: outer folders first, and always the same one of two links to a
        # folder.
        for target, place in sorted(
            (os.path.realpath(self._at(place)), place) for place in self._links
        ):
            state = link_state(self._at(place))
            if os.path.lexists(target) and not os.path.isdir(target):
                continue
            self.root.set_link(place, FolderLink("", state))
            if not state:
                continue
            try:
                reason = self._why_not(place, target)
                if reason is None:
                    self.root.set_link(place, FolderLink(target, state))
                    reason = self._follow(place, target)
            except OSError as error:
                reason = f"leads to a directory that cannot be opened ({error.strerror})"
            if reason:
                self.root.set_link(place, FolderLink("", state))
                self._report_link(place, target, reason)

    def _at(self, place: str) -> str:
        return os.path.join(self.root.path, place)

    def _why_not(self, place: str, target: str) -> str | None:
        """Return why a link is not followed, "" if its skill is served elsewhere, or None."""
        holds_skill = os.path.lexists(os.path.join(target, SKILL_MD))
        if not self.limits.links or self._origins.of(place) is not None:
            return "leads to a directory, and links are not followed"
        for root in self.roots:
            rest = _below(target, root.path)
            if rest is not None and all(
                is_entered(name, hidden=self.limits.hidden) for name in rest
            ):
                if holds_skill:
                    return ""
                return "leads to a directory without a SKILL.md"
            if _below(root.path, target) is not None:
                return "leads to a directory that a root lies in"
            if root.index <= self.root.index and root.behind_link(target) is not None:
                return ""
        return None

    def _follow(self, place: str, target: str) -> str | None:
        """Scan the skill folder behind a link; return why it is not served, or None.

        Raises:
            OSError: the folder cannot be opened.
        """
        if self.entering is not None:
            self.entering(place)
        with disk.open_real(target) as handle:
            # Check the opened directory, since the link may lead elsewhere by now (TOCTOU).
            owner = os.lstat(self._at(place)).st_uid
            if disk.owner_of(handle, "") != owner:
                return "leads to a directory of another user than the link's"
            found = self._walk(handle, place)
            if (
                found is not None
                and found.holds_manifest
                and disk.owner_of(handle, SKILL_MD) != owner
            ):
                return "leads to a directory whose SKILL.md belongs to another user"
            if found is None or (not found.holds_manifest and self._in_grace(found, None) is None):
                return "leads to a directory without a SKILL.md"
            self._visit(found, inside=False)
        return None

    def _report_link(self, place: str, target: str, reason: str) -> None:
        if _below(target, self.root.path) is not None:
            hint = "remove the link, since the folder it leads to is part of this root"
        else:
            hint = "serve the folder it leads to as a root of its own"
        self._report(
            "link-outside", f"{place.rpartition('/')[2]} is a link that {reason}", place, hint
        )

    def _report_outside(self, here: Directory) -> None:
        """Report near misses outside of skills, and collect links and dot folders."""
        layout = self.root.layout
        if here.holds_manifest and layout is not None and layout.is_too_deep(here.path):
            message = (
                "the skill does not lie right in the skills folder of its plugin, where "
                "plugins have theirs"
            )
            hint = "move it there, or list its folder in the plugin's manifest"
            self._report("too-deep", message, here.path, hint)
        self._links += [join(here.path, name) for name in here.named("link")]
        self.skipped_dot_folders += [join(here.path, name) for name in here.named("dotted")]
        for name in here.named("unnamed"):
            message = f"the name {name} is not UTF-8, so nothing of it is served"
            self._report("file-name", message, join(here.path, name))
        denied = here.named("denied")
        if here.unreadable:
            self._report(
                "unreadable",
                "the directory cannot be opened",
                here.path,
                _open_hint(self.root, here),
            )
        elif denied:
            odd = _ODD["denied"]
            self._report(
                odd.code, odd.message.format(f"{len(denied)} of its names"), here.path, odd.hint
            )
        if here.is_truncated:
            message = (
                f"folders lie more than {tree.MOST_LEVELS} levels below the root and are not "
                "searched"
            )
            hint = "serve a folder that lies nearer to them as a root of its own"
            self._report("too-deep", message, here.path, hint)


@dataclass(slots=True)
class _Bundle:
    """The files of one skill, nested skills included, and the findings of its directories.

    Attributes:
        unkept: number of further files that the walk did not keep.
    """

    files: dict[str, SkillFile] = field(default_factory=dict[str, SkillFile])
    findings: list[Problem] = field(default_factory=list[Problem])
    empty: list[str] = field(default_factory=list[str])
    nested: list[str] = field(default_factory=list[str])
    unkept: int = 0


def _unusable(found: Problem) -> Reading:
    return Reading({}, None, Standing.UNUSABLE, (found,))


def _levels(place: str) -> int:
    """Return the depth of a root-relative path; 0 for the root."""
    if not place:
        return 0
    return place.count("/") + 1


def _below(path: str, top: str) -> list[str] | None:
    """Return the path segments from `top` down to `path`, or None if it is not below."""
    if path != top and not path.startswith(top.rstrip(os.sep) + os.sep):
        return None
    return [name for name in path[len(top) :].split(os.sep) if name]


def _equal(old: Skill, new: Skill) -> bool:
    return (
        old.reading is new.reading
        and old.path == new.path
        and old.standing == new.standing
        and old.findings == new.findings
        and old.empty == new.empty
        and old.nested == new.nested
        and old.origin == new.origin
        and old.files.keys() == new.files.keys()
        and all(old.files[path] is file for path, file in new.files.items())
    )


def _open_hint(root: Root, here: Directory) -> str | None:
    """Return a hint for an unreadable directory whose parent may not be entered, else None."""
    parent, _, name = here.path.rpartition("/")
    effective = os.access in os.supports_effective_ids
    if not name or os.access(os.path.join(root.path, parent), os.X_OK, effective_ids=effective):
        return None
    return f"{_ADMIT} above it, {root.show(parent)}"


def _over_limits(
    directory: str, files: Mapping[str, SkillFile], limits: Limits, unkept: int
) -> Iterator[Problem]:
    """Yield a problem for each limit that a skill exceeds; `unkept` files count, too."""
    depth = _levels(directory)
    if depth > limits.depth:
        yield problem(
            "too-deep", f"the skill lies {depth} levels below its root, {limits.depth} are searched"
        )
    count = len(files) + unkept
    if count > limits.files:
        yield problem(
            "too-many-files", f"the skill has {count} files, {limits.files} are allowed; {_IN_PART}"
        )
    size = sum([file.size for file in files.values()])
    if size > limits.bytes:
        yield problem(
            "too-many-bytes", f"the skill has {size} bytes, {limits.bytes} are allowed; {_IN_PART}"
        )


def _within_limits(files: Mapping[str, SkillFile], limits: Limits) -> dict[str, SkillFile]:
    """Return the files within the limits: SKILL.md first, then by depth and path.

    This bounds what any client can make the server hash, copy or send of a skill.
    """
    kept: set[str] = set()
    left = limits.bytes
    for path in sorted(files, key=lambda path: (path != SKILL_MD, path.count("/"), path)):
        if len(kept) >= limits.files:
            break
        size = files[path].size
        if size <= left or path == SKILL_MD:
            kept.add(path)
            left -= size
    return {path: file for path, file in files.items() if path in kept}
