"""The files of one skill, nested skills' included, and what is wrong with its directory rather than with SKILL.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from mcp_skills_server.catalog.known_files import KnownFiles
from mcp_skills_server.catalog.path_index import join, within
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.catalog.tree import Directory
from mcp_skills_server.codes import problem, standing
from mcp_skills_server.model import SKILL_MD, Problem, Skill, SkillFile

HARD_LINK: Final = "a hard link to a file that belongs to another user than its folder, and is not served"
DENIED: Final = "the folder may be read but not entered"
ADMIT: Final = "give the user that runs the server permission to enter the folder"
_IN_PART: Final = "it is not listed, and tools, prompts and the Skills Protocol have the files up to the limit alone"


def complete(root: Root, here: Directory, skill: Skill, known: KnownFiles, limits: Limits) -> Skill:
    """Return the skill of this directory with its files, and with the standing that they leave it."""
    gathering = _Gathering(root, skill, known)
    gathering.visit(here)
    files, findings = dict(sorted(gathering.files.items())), gathering.findings
    over = list(over_limits(here.path, files, limits, unkept=gathering.unkept))
    if over:
        findings += [found.at(root.show(here.path), skill.path) for found in over]
        files = _as_far_as_allowed(files, limits)
    stands = min(skill.standing, standing(findings)) if findings else skill.standing
    empty = tuple(sorted(gathering.empty))
    found = tuple(findings)
    nested = tuple(gathering.nested)
    # Written out because this is done for every skill, and `replace` takes four times as long.
    return Skill(
        skill.path, skill.root, skill.directory, skill.reading, files, found, stands, empty, skill.origin, nested
    )


class _Gathering:
    """The files in the directory of a skill and below it, by their paths in the skill."""

    def __init__(self, root: Root, skill: Skill, known: KnownFiles) -> None:
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
        above = self._skill.directory
        prefix = f"{here.path}/"[len(above) + 1 if above else 0 :] if here.path else ""
        before = len(self.files)
        if here.holds_manifest and prefix:
            self.nested.append(prefix.rstrip("/"))
        self.unkept += here.overfull
        for name, file in here.files.items():
            self.files[sys.intern(prefix + name)] = file  # many skills have files of the same names
            if "\\" in name:
                self._find("file-name-backslash", f"the name of {prefix}{name} holds a backslash", here, name)
        if not here.is_plain:
            self._visit_rare(here, prefix)
        for inner in here.directories:
            self.visit(inner)
        if len(self.files) == before and prefix:
            self.empty.append(prefix.rstrip("/"))

    def _visit_rare(self, here: Directory, prefix: str) -> None:
        """What lies in this directory beside files and directories."""
        skill = self._skill
        for name in here.links:
            linked = self._known.link(here.path, name)
            if linked is not None and within(linked.location, skill.directory):
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
    above, _, name = here.path.rpartition("/")
    effective = os.access in os.supports_effective_ids
    if not name or os.access(os.path.join(root.path, above), os.X_OK, effective_ids=effective):
        return None
    return f"{ADMIT} above it, {root.show(above)}"


def over_limits(
    directory: str, files: Mapping[str, SkillFile], limits: Limits, *, unkept: int = 0
) -> Iterator[Problem]:
    """Yield what the limits say of a skill in this directory with these files, and with so many that were not kept."""
    depth = directory.count("/") + 1 if directory else 0
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
