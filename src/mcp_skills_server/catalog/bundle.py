"""The files of one skill, nested skills' included, and what is wrong with its directory rather than with SKILL.md."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Digests
from mcp_skills_server.catalog.path_index import above, join, within
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.catalog.tree import Directory
from mcp_skills_server.codes import problem, standing
from mcp_skills_server.model import SKILL_MD, Problem, Skill, SkillFile

logger = logging.getLogger(__name__)

HARD_LINK: Final = "a hard link to a file that belongs to another user than its folder, and is not served"
DENIED: Final = "the folder may be read but not entered"
ADMIT: Final = "give the user that runs the server permission to enter the folder"
_IN_PART: Final = "it is not listed, and tools, prompts and the Skills Protocol have the files up to the limit alone"


class Files:
    """The files of a root for one scan. Each that is new or has changed is read once; the others stay the same objects.

    Args:
        root: the root.
        known: the skills that were there.
        nested: the directories that are skills within another one, or were.
        most_bytes: a larger file is not read.

    Attributes:
        reads: how many files were read.
    """

    def __init__(self, root: Root, known: Iterable[Skill], nested: Collection[str], most_bytes: int) -> None:
        self.reads = 0
        self._root = root
        self._nested = nested
        self._most_bytes = most_bytes
        self._known = {file.location: file for skill in known for file in skill.files.values()}
        self._taken: dict[str, SkillFile] = {}
        self._links: dict[str, SkillFile | None] = {}
        self._stored: Digests = {}

    def recall(self, digests: Digests) -> None:
        """Use the digests that an earlier process computed, by place, for files of the signature that stands there.

        They need not be true: `Reader.read` hashes whatever it reads, so no byte is served under a digest that is not
        its own, and one that is false is computed anew.
        """
        self._stored = digests

    def unchanged(self, found: SkillFile) -> SkillFile | None:
        """Return the known file at the place of the one that was found, if its signature tells that it is the same."""
        old = self._taken.get(found.location) or self._known.get(found.location)
        if old is None or not old.digest or not old.mtime_reliable or old.signature != found.signature:
            return None
        old.executable = found.executable
        self._taken[found.location] = old
        return old

    def take(self, found: SkillFile) -> SkillFile:
        """Return what stands for a file that was found: the known object if its bytes are the same.

        A file that cannot be read has no digest.

        Raises:
            OSError: the process ran out of descriptors or memory.
        """
        taken = self._taken.get(found.location) or self.unchanged(found)
        if taken is not None:
            return taken
        if not found.digest and found.mtime_reliable:
            found.digest = _digest_under(found.signature, self._stored.get(found.location))
        old = self._known.get(found.location)
        if not found.digest:
            try:
                self.read(found)
            except OSError as error:
                if error.errno in disk.PASSING:
                    raise
                is_news = old is None or old.digest
                if is_news and not found.location.endswith(SKILL_MD):  # which has a problem of its own then
                    logger.warning("a file of a skill is not served: %s: %s", error.strerror, error.filename)
        taken = found
        if old is not None and (old.digest, old.size) == (found.digest, found.size):
            old.signature, old.mtime_reliable, old.executable = found.signature, found.mtime_reliable, found.executable
            taken = old
        self._taken[found.location] = taken
        return taken

    def read(self, found: SkillFile) -> bytes:
        """Return the bytes of a file that was found, and record its digest.

        Raises:
            OSError: it cannot be read.
        """
        self.reads += 1
        base, _, rest = self._root.locate(found.location)
        return disk.ingest(base, rest, found, self._most_bytes)

    def link(self, directory: str, name: str) -> SkillFile | None:
        """Return the file in its root that a link in this directory stands for, or None where it stands for none.

        A file of a nested skill is that skill's own: a link from outside of it would pass by the grants.
        """
        place = join(directory, name)
        if place not in self._links:
            base, link, rest = self._root.locate(directory)
            target = disk.resolve_link(base, self._root.index, rest, name)
            if target is not None and link:
                target.location = join(link, target.location)
            if target is not None and any(
                up in self._nested and not within(place, up) for up in above(target.location)
            ):
                target = None
            self._links[place] = target
        return self._links[place]


def _digest_under(signature: str, stored: object) -> str:
    """Return the digest of a record of the index, if it stands for this signature and has the shape of one; else ""."""
    match stored:
        case [str() as digest, str() as mark] if mark == signature and disk.is_digest(digest):
            return digest
        case _:
            return ""


def complete(root: Root, here: Directory, skill: Skill, files: Files, limits: Limits) -> Skill:
    """Return the skill of this directory with its files, and with the standing that they leave it.

    Raises:
        OSError: the process ran out of descriptors or memory.
    """
    gathering = _Gathering(root, skill, files)
    gathering.visit(here)
    found, findings = dict(sorted(gathering.files.items())), gathering.findings
    over = list(over_limits(here.path, found, limits, unkept=gathering.unkept))
    if over:
        findings += [each.at(root.show(here.path), skill.path) for each in over]
        found = _as_far_as_allowed(found, limits)
    return Skill(
        path=skill.path,
        root=skill.root,
        directory=skill.directory,
        reading=skill.reading,
        files={path: files.take(file) for path, file in found.items()},
        findings=tuple(findings),
        standing=min(skill.standing, standing(findings)),
        empty=tuple(sorted(gathering.empty)),
        origin=skill.origin,
        nested=tuple(gathering.nested),
    )


class _Gathering:
    """The files in the directory of a skill and below it, by their paths in the skill."""

    def __init__(self, root: Root, skill: Skill, known: Files) -> None:
        self.files: dict[str, SkillFile] = {}
        self.findings: list[Problem] = []
        self.empty: list[str] = []
        self.nested: list[str] = []
        self.unkept = 0
        """The number of further files that the walk did not keep."""
        self._root = root
        self._skill = skill
        self._known = known

    def visit(self, here: Directory) -> None:
        """Collect what lies in this directory and below it."""
        if here.is_withheld:
            return
        within_skill = here.path.removeprefix(self._skill.directory).lstrip("/")
        prefix = ""
        if within_skill:
            prefix = f"{within_skill}/"
        before = len(self.files)
        if here.holds_manifest and within_skill:
            self.nested.append(within_skill)
        self.unkept += here.overfull
        for name, file in here.files.items():
            self.files[sys.intern(prefix + name)] = file  # many skills have files of the same names
            if "\\" in name:
                self._find("file-name-backslash", f"the name of {prefix}{name} holds a backslash", here, name)
        if not here.is_plain:
            self._visit_rare(here, prefix)
        for inner in here.directories:
            self.visit(inner)
        if len(self.files) == before and within_skill:
            self.empty.append(within_skill)

    def _visit_rare(self, here: Directory, prefix: str) -> None:
        """Note the links of this directory, and entries that are neither files nor directories."""
        for name in here.links:
            linked = self._known.link(here.path, name)
            if linked is not None and within(linked.location, self._skill.directory):
                self.files[prefix + name] = linked
            elif name != SKILL_MD:
                message = (
                    f"{prefix}{name} is a link that leaves the skill, leads to a directory or into "
                    "another skill, or is broken"
                )
                self._find("link-outside", message, here, name)
        for name in here.irregular:
            if name != SKILL_MD:
                self._find("file-irregular", f"{prefix}{name} is not a regular file", here, name)
        for name in here.foreign:
            if name != SKILL_MD:
                self._find("hard-link", f"{prefix}{name} is {HARD_LINK}", here, name)
        for name in here.unnamed:
            self._find("file-name", f"the name of {prefix}{name} is not UTF-8, so the file is not served", here, name)
        for name in here.denied:
            if name != SKILL_MD:
                self._find("unreadable", f"{prefix}{name} cannot be looked at: {DENIED}", here, name, ADMIT)
        if here.unreadable:
            self._find("unreadable", "the directory cannot be opened", here, "", what_opens(self._root, here))
        if here.cut:
            self._find("too-deep", "files lie deeper than the scan goes", here, "")

    def _find(self, code: str, message: str, here: Directory, name: str, hint: str | None = None) -> None:
        place = self._root.show(join(here.path, name))
        self.findings.append(problem(code, message, hint=hint).at(place, self._skill.path))


def what_opens(root: Root, here: Directory) -> str | None:
    """Return what to do about a directory that cannot be opened, None for what is usual: its own permissions are right
    where the folder above may not be entered.
    """
    parent, _, name = here.path.rpartition("/")
    effective = os.access in os.supports_effective_ids
    if not name or os.access(os.path.join(root.path, parent), os.X_OK, effective_ids=effective):
        return None
    return f"{ADMIT} above it, {root.show(parent)}"


def over_limits(
    directory: str, files: Mapping[str, SkillFile], limits: Limits, *, unkept: int = 0
) -> Iterator[Problem]:
    """Yield what the limits say of a skill in this directory with these files, and with so many that were not kept."""
    depth = 0
    if directory:
        depth = directory.count("/") + 1
    if depth > limits.depth:
        yield problem("too-deep", f"the skill lies {depth} levels below its root, {limits.depth} are searched")
    count = len(files) + unkept
    if count > limits.files:
        yield problem("too-many-files", f"the skill has {count} files, {limits.files} are allowed; {_IN_PART}")
    size = sum([file.size for file in files.values()])
    if size > limits.bytes:
        yield problem("too-many-bytes", f"the skill has {size} bytes, {limits.bytes} are allowed; {_IN_PART}")


def _as_far_as_allowed(files: Mapping[str, SkillFile], limits: Limits) -> dict[str, SkillFile]:
    """Return the files that the limits leave of a skill: SKILL.md first, then what lies nearest to it.

    All that any client can make the server hash, copy or send of a skill is thus bounded by the limits.
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
