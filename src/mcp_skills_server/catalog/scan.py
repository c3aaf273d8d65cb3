"""A directory tree to Skills. What has not changed since the last scan comes out as the same objects.

Pure where it can be: `tree.walk` brings what is on disk, everything here decides what it means.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from mcp_skills_server.catalog import tree
from mcp_skills_server.catalog.fetched import Origins
from mcp_skills_server.catalog.path_index import join, within
from mcp_skills_server.catalog.tree import Directory
from mcp_skills_server.codes import problem, standing
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format import frontmatter
from mcp_skills_server.format.links import heading, headings
from mcp_skills_server.model import SKILL_MD, Problem, Reading, Skill, SkillFile, Standing
from mcp_skills_server.validation import rules

Hold: TypeAlias = Callable[[str, object], bool]
"""Whether to keep, for the moment, what was known of the skill in this directory: its SKILL.md is gone or has become
worse. The second argument tells one state of it from the next."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a skill may measure (S40-19, RTI-5, ASG-6).

    Attributes:
        skill_md: bytes of SKILL.md.
        files: files of one skill, nested skills included.
        bytes: bytes of one skill.
        depth: levels of directories between a root and a skill in it, at most `tree.MOST_LEVELS`.
        hidden: look into folders whose names begin with a dot, too; inside a skill such names stay ignored.
    """

    skill_md: int = 1 << 20
    files: int = 512
    bytes: int = 16 << 20
    depth: int = 32
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Root:
    """A directory that is served.

    Attributes:
        index: its rank; the lower one wins.
        path: absolute and resolved.
        shown: as the operator wrote it.
        given: absolute and not resolved; a link on the way may come to lead elsewhere.
        origin: where its skills come from, if it only holds copies of them.
    """

    index: int
    path: str
    shown: str
    given: str
    origin: str | None = None

    def show(self, location: str) -> str:
        """A place below this root as the operator would type it."""
        return os.path.join(self.shown, location) if location else self.shown


@dataclass(slots=True)
class Scan:
    """What one scan of a root, or of a part of it, found.

    Attributes:
        skills: by directory below the root.
        problems: (place below the root, problem) of what belongs to no skill.
        passed: dot folders that were passed over, by their place below the root.
        read: what was read of each SKILL.md that is not what was known of it.
    """

    skills: dict[str, Skill] = field(default_factory=dict[str, Skill])
    problems: list[tuple[str, Problem]] = field(default_factory=list[tuple[str, Problem]])
    passed: list[str] = field(default_factory=list[str])
    read: dict[SkillFile, bytes] = field(default_factory=dict[SkillFile, bytes])


def digest_of(raw: bytes) -> str:
    """The digest of these bytes as SEP-2640 writes it (S40-18)."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def scan(
    root: Root, part: str, known: Mapping[str, Skill], namespace: str, limits: Limits, *, hold: Hold | None = None
) -> Scan:
    """Scan a root below the directory `part`. `known` are the skills that were there, by directory.

    `namespace` is the skill path of the root itself, "" for a root that is no skill; scanning the root finds it anew.
    `hold` decides whether a skill whose SKILL.md is gone or has become worse stays what it was.

    Raises:
        OSError: the directory cannot be opened.
    """
    # Beyond the limit on depth the walk goes on, so that a skill that lies too deep is reported, not lost.
    below = tree.MOST_LEVELS - (part.count("/") + 1 if part else 0)
    if below < 0:  # nor does a scan of the whole root go there; it only sees the links in the directory above
        found = _link_at(root, part) if below == -1 else None
    else:
        try:
            with tree.open_directory(root.path, part) as handle:
                found = tree.walk(handle, part, root.index, depth=below, most_files=limits.files, hidden=limits.hidden)
        except OSError as error:
            found = _instead(root, part, error) if part else None
            if found is None:
                raise
    if found is None:
        return Scan()
    scanner = _Scanner(root, known, namespace if part else "", limits, hold)
    scanner.visit(found, inside=False)
    return scanner.out


def _instead(root: Root, part: str, error: OSError) -> Directory | None:
    """What a scan of the whole root would find at a directory that cannot be opened, None when it finds nothing."""
    if isinstance(error, PermissionError):
        return Directory(part, {}, [], unreadable=True)
    return _link_at(root, part) if error.errno in tree.GONE else None


def _link_at(root: Root, part: str) -> Directory | None:
    found = tree.look(root.path, part)
    if found is None or not stat.S_ISLNK(found.st_mode):
        return None
    parent, _, name = part.rpartition("/")
    return Directory(parent, {}, [], links=[name])


class _Scanner:
    """Turns one walk into skills, with what is known already."""

    def __init__(
        self, root: Root, known: Mapping[str, Skill], namespace: str, limits: Limits, hold: Hold | None
    ) -> None:
        self.out = Scan()
        self._hold = hold
        self._root = root
        self._known = known
        self._namespace = namespace
        self._limits = limits
        self._old = {file.location: file for skill in known.values() for file in skill.files.values()}
        self._origins = Origins(root.path, root.origin)
        self._linked: dict[str, SkillFile | None] = {}

    def visit(self, here: Directory, *, inside: bool) -> None:
        """Build the skill of this directory, if it is one, and of those below it."""
        for name, file in here.files.items():
            here.files[name] = self._recognised(file)
        manifest = self._manifest(here, inside)
        skill = None if manifest is None else self._skill(here, manifest)
        held = self._held(here, skill)
        if held is not None:
            skill = held
        if skill is not None:
            self.out.skills[here.path] = skill
            if not here.path:
                self._namespace = skill.path
        elif not inside:
            self._report_loose(here)
        for inner in here.directories:
            self.visit(inner, inside=inside or skill is not None)
        if skill is not None and held is None:
            self._complete(here)

    def _held(self, here: Directory, found: Skill | None) -> Skill | None:
        """The known skill of this directory, if it is to stay although its SKILL.md is gone or has become worse."""
        old = self._known.get(here.path)
        if self._hold is None or old is None or old.standing is Standing.UNUSABLE:
            return None
        if found is not None and found.reading.standing >= old.reading.standing:
            return None
        now = here.files.get(SKILL_MD)
        state = now.signature if now is not None else None if found is None else found.reading.problems
        return old if self._hold(here.path, state) else None

    def _recognised(self, new: SkillFile) -> SkillFile:
        """The known file, if this is still it: by signature, or by its bytes under a new signature."""
        # What comes back is what the next one finds: a file and the links to it are one object.
        old = self._old.setdefault(new.location, new)
        same_signature = old.signature == new.signature
        changed = not same_signature
        if not (same_signature and old.mtime_reliable) and old.digest is not None and old is not new:
            changed = old.size != new.size or self._digest(new) != old.digest
        if changed:
            self._old[new.location] = new
            return new
        old.signature, old.mtime_reliable, old.executable = new.signature, new.mtime_reliable, new.executable
        return old

    def _digest(self, file: SkillFile) -> str | None:
        try:
            file.digest = digest_of(tree.read(self._root.path, file))
        except StaleFileError:
            return None
        return file.digest

    def _manifest(self, here: Directory, inside: bool) -> SkillFile | Problem | None:
        """This directory's SKILL.md, or why it cannot be read, or None when the directory is no skill."""
        if SKILL_MD in here.files and self._origins.is_copy(here.path):
            return None
        if SKILL_MD in here.files:
            return here.files[SKILL_MD]
        if SKILL_MD in here.links:
            linked = self._link(here, SKILL_MD)
            if linked is not None and within(linked.location, here.path):
                return linked
            return problem("skill-md-irregular", "SKILL.md is a link that leaves the skill or leads nowhere")
        if SKILL_MD in here.denied:
            return problem("unreadable", f"SKILL.md cannot be looked at: {_DENIED}", hint=_ADMIT)
        if SKILL_MD in here.foreign:
            return problem("skill-md-irregular", f"SKILL.md is {_HARD_LINK}")
        if SKILL_MD in here.irregular:
            return problem("skill-md-irregular", "SKILL.md is not a regular file")
        if any(inner.path.rpartition("/")[2] == SKILL_MD for inner in here.directories):
            return problem("skill-md-irregular", "SKILL.md is a directory")
        if not inside:
            for name in here.files:
                if name.lower() == "skill.md":
                    place = self._root.show(join(here.path, name))
                    return problem("skill-md-case", f"the file is named {name}").at(place, "")
        return None

    def _skill(self, here: Directory, manifest: SkillFile | Problem) -> Skill:
        """The skill without its files, which are not known before the directories below were visited."""
        old = self._known.get(here.path)
        if isinstance(manifest, Problem):
            reading = Reading({}, None, Standing.UNUSABLE, (manifest,))
            path = self._path(here, reading)
        else:
            unchanged = old is not None and old.files.get(SKILL_MD) is manifest and not _is_unread(old.reading)
            reading = old.reading if old is not None and unchanged else self._read(here, manifest)
            path = self._path(here, reading)
        place = self._root.show(join(here.path, SKILL_MD))
        if reading.problems:
            located = tuple(found.at(found.path or place, path) for found in reading.problems)
            reading = replace(reading, problems=located)
            if old is not None and old.reading == reading:
                reading = old.reading
        origin = self._origins.of(here.path)
        return Skill(path, self._root.index, here.path, reading, {}, (), reading.standing, origin=origin)

    def _path(self, here: Directory, reading: Reading) -> str:
        if here.path:
            return f"{self._namespace}/{here.path}" if self._namespace else here.path
        name = reading.frontmatter.get("name")
        # A root that is itself a skill goes by its name, unless the name would make a path of another shape.
        sound = isinstance(name, str) and name.isprintable() and "/" not in name and name not in {"", ".", ".."}
        return name if isinstance(name, str) and sound else self._directory_name(here)

    def _directory_name(self, here: Directory) -> str:
        name = os.path.basename(f"{self._root.path}/{here.path}" if here.path else self._root.path) or "root"
        return tree.spelled(name)

    def _read(self, here: Directory, manifest: SkillFile) -> Reading:
        reason: str | None = None
        for _ in range(_TRIES):
            if manifest.size > self._limits.skill_md:
                found = problem(
                    "skill-md-too-large",
                    f"SKILL.md has {manifest.size} bytes, at most {self._limits.skill_md} are allowed",
                )
                return Reading({}, None, Standing.UNUSABLE, (found,))
            try:
                raw = tree.read(self._root.path, manifest)
            except StaleFileError as error:
                again, reason = tree.look_again(self._root.path, manifest), error.reason
                if again is None or (error.reason and again.signature == manifest.signature):
                    break
                manifest = again
                self._old[again.location] = again
                if SKILL_MD in here.links:
                    self._linked[join(here.path, SKILL_MD)] = again
                else:
                    here.files[SKILL_MD] = again
                continue
            manifest.digest = digest_of(raw)
            if here.path in self._known:
                self.out.read[manifest] = raw
            return read_skill_md(raw, self._directory_name(here))
        said = f"SKILL.md cannot be read ({reason or 'it keeps changing'})"
        return Reading({}, None, Standing.UNUSABLE, (problem("unreadable", said),))

    def _complete(self, here: Directory) -> None:
        """Give the skill its files, nested skills' included, and judge the bundle; reuse the old one if it is equal."""
        skill = self.out.skills[here.path]
        files: dict[str, SkillFile] = {}
        findings: list[Problem] = []
        empty: list[str] = []
        self._gather(here, skill, files, findings, empty)
        files = dict(sorted(files.items()))
        over = list(self._over_limits(here, files))
        if over:
            findings += [found.at(self._root.show(here.path), skill.path) for found in over]
            files = self._as_far_as_allowed(files)
        standing_now = min(skill.standing, standing(findings))
        empties, said = tuple(sorted(empty)), tuple(findings)
        found = Skill(
            skill.path,
            skill.root,
            skill.directory,
            skill.reading,
            files,
            said,
            standing_now,
            empties,
            origin=skill.origin,
        )
        old = self._known.get(here.path)
        self.out.skills[here.path] = old if old is not None and _equal(old, found) else found

    def _gather(
        self, here: Directory, skill: Skill, files: dict[str, SkillFile], findings: list[Problem], empty: list[str]
    ) -> None:
        """Collect what lies in this directory and below it, by its path in the skill."""
        prefix = f"{here.path}/"[len(skill.directory) + 1 if skill.directory else 0 :] if here.path else ""

        def find(code: str, message: str, name: str, hint: str | None = None) -> None:
            findings.append(problem(code, message, hint=hint).at(self._root.show(join(here.path, name)), skill.path))

        before = len(files)
        for name, file in here.files.items():
            files[sys.intern(prefix + name)] = file  # many skills have files of the same names
            if "\\" in name:
                find("file-name-backslash", f"the name of {prefix}{name} holds a backslash", name)
        for name in here.links:
            linked = self._link(here, name)
            if linked is not None and within(linked.location, skill.directory):
                files[prefix + name] = linked
            elif name != SKILL_MD:
                find(
                    "link-outside",
                    f"{prefix}{name} is a link that leaves the skill, leads to a directory or is broken",
                    name,
                )
        for name in here.irregular:
            if name != SKILL_MD:
                find("file-irregular", f"{prefix}{name} is not a regular file", name)
        for name in here.foreign:
            if name != SKILL_MD:
                find("hard-link", f"{prefix}{name} is {_HARD_LINK}", name)
        for name in here.unnamed:
            find("file-name", f"the name of {prefix}{name} is not UTF-8, so the file is not served", name)
        for name in here.denied:
            if name != SKILL_MD:
                find("unreadable", f"{prefix}{name} cannot be looked at: {_DENIED}", name, _ADMIT)
        if here.unreadable:
            find("unreadable", "the directory cannot be opened", "", self._what_opens(here))
        if here.cut:
            find("too-deep", "files lie deeper than the scan goes", "")
        for inner in here.directories:
            self._gather(inner, skill, files, findings, empty)
        if len(files) == before and prefix:
            empty.append(prefix.rstrip("/"))

    def _over_limits(self, here: Directory, files: Mapping[str, SkillFile]) -> Iterator[Problem]:
        limits = self._limits
        depth = here.path.count("/") + 1 if here.path else 0
        if depth > limits.depth:
            yield problem("too-deep", f"the skill lies {depth} levels below its root, {limits.depth} are searched")
        count = len(files) + _unkept(here)
        if count > limits.files:
            yield problem("too-many-files", f"the skill has {count} files, {limits.files} are allowed; {_IN_PART}")
        size = sum(file.size for file in files.values())
        if size > limits.bytes:
            yield problem("too-many-bytes", f"the skill has {size} bytes, {limits.bytes} are allowed; {_IN_PART}")

    def _as_far_as_allowed(self, files: Mapping[str, SkillFile]) -> dict[str, SkillFile]:
        """The files that the limits leave of a skill: SKILL.md first, then what lies nearest to it (S40-19).

        All that any client can make the server hash, copy or send of a skill is thus bounded by the limits.
        """
        kept: set[str] = set()
        left = self._limits.bytes
        for path in sorted(files, key=lambda path: (path != SKILL_MD, path.count("/"), path)):
            if len(kept) >= self._limits.files:
                break
            size = files[path].size
            if size <= left or path == SKILL_MD:
                kept.add(path)
                left -= size
        return {path: file for path, file in files.items() if path in kept}

    def _link(self, here: Directory, name: str) -> SkillFile | None:
        key = join(here.path, name)
        if key not in self._linked:
            target = tree.resolve_link(self._root.path, self._root.index, here.path, name)
            self._linked[key] = None if target is None else self._recognised(target)
        return self._linked[key]

    def _what_opens(self, here: Directory) -> str | None:
        """What to do about a directory that cannot be opened, None for what is usual: its own permissions are right
        where the folder above may not be entered."""
        above, _, name = here.path.rpartition("/")
        effective = os.access in os.supports_effective_ids
        if not name or os.access(os.path.join(self._root.path, above), os.X_OK, effective_ids=effective):
            return None
        return f"{_ADMIT} above it, {self._root.show(above)}"

    def _report_loose(self, here: Directory) -> None:
        """Outside every skill: what might have been one, told so that nothing is lost in silence."""
        for name in here.links:
            location = join(here.path, name)
            target = os.path.realpath(os.path.join(self._root.path, location))
            if os.path.isdir(target):
                leads_back = f"{target}{os.sep}".startswith(self._root.path.rstrip(os.sep) + os.sep)
                found = problem(
                    "link-outside",
                    f"{name} is a link to a directory, and links are not followed",
                    hint="remove the link, since the folder it leads to is part of this root"
                    if leads_back
                    else "serve the folder it leads to as a root of its own",
                )
                self.out.problems.append((location, found.at(self._root.show(location), "")))
        for name in here.unnamed:
            location = join(here.path, name)
            found = problem("file-name", f"the name {name} is not UTF-8, so nothing of it is served")
            self.out.problems.append((location, found.at(self._root.show(location), "")))
        if here.unreadable:
            found = problem("unreadable", "the directory cannot be opened", hint=self._what_opens(here))
            self.out.problems.append((here.path, found.at(self._root.show(here.path), "")))
        elif here.denied:
            found = problem(
                "unreadable", f"{len(here.denied)} of its names cannot be looked at: {_DENIED}", hint=_ADMIT
            )
            self.out.problems.append((here.path, found.at(self._root.show(here.path), "")))
        if here.cut:
            said = f"folders lie more than {tree.MOST_LEVELS} levels below the root and are not searched"
            found = problem("too-deep", said, hint="serve a folder that lies nearer to them as a root of its own")
            self.out.problems.append((here.path, found.at(self._root.show(here.path), "")))
        self.out.passed += [join(here.path, name) for name in here.dotted]


_TRIES: Final = 3
_HARD_LINK: Final = "a hard link to a file that belongs to another user than its folder, and is not served"
_DENIED: Final = "the folder may be read but not entered"
_ADMIT: Final = "give the user that runs the server permission to enter the folder"
_IN_PART: Final = "it is not listed, and tools, prompts and the Skills Protocol have the files up to the limit alone"


def read_skill_md(raw: bytes, directory: str) -> Reading:
    """What the bytes of a SKILL.md say; `directory` is the name that AS-7 compares with."""
    document = frontmatter.parse(raw)
    problems = (*document.problems, *rules.check(document, directory))
    if document.frontmatter is None:
        return Reading({}, None, standing(problems), problems)
    return Reading(document.frontmatter, heading(document.body), standing(problems), problems, headings(document.body))


def _unkept(here: Directory) -> int:
    """How many files lie in and below this directory that the walk did not keep."""
    return here.overfull + sum(map(_unkept, here.directories))


def _is_unread(reading: Reading) -> bool:
    return any(found.code == "unreadable" for found in reading.problems)


def _equal(old: Skill, new: Skill) -> bool:
    return (
        old.reading is new.reading
        and old.path == new.path
        and old.findings == new.findings
        and old.empty == new.empty
        and old.origin == new.origin
        and old.files.keys() == new.files.keys()
        and all(old.files[path] is file for path, file in new.files.items())
    )
