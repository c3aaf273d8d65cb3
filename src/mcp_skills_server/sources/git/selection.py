"""Which files of a commit make skills, and how much of them may come. Pure.

Only what lies in the folder of a skill is fetched. A skill that holds what no archive may hold is left out alone, by a
rule that knows nothing but the commit, so that a commit is the same set of files wherever it is fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Final

from mcp_skills_server.format import file_names, media
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, UnpackLimits
from mcp_skills_server.format.archive.tree import Tree, check_name, decoded
from mcp_skills_server.format.excerpts import quoted
from mcp_skills_server.format.ignored import is_ignored
from mcp_skills_server.sources.git.repository import TreeEntry
from mcp_skills_server.sources.grouping import group_by_skill, is_skill_md

_LINK: Final = b"120000"
_SUBMODULE: Final = b"160000"
_EXECUTABLE: Final = b"100755"
_PIECE: Final = 1 << 20


@dataclass(slots=True)
class WantedSkill:
    """The folder of a skill in a commit; skills within it are part of it.

    Attributes:
        folder: its path below the folder that is served; "" for that itself.
        files: path in the skill, object and whether it may be executed, of each file.
        left_out: paths of what is never served.
        fault: why the skill is refused; None where nothing is known yet that speaks against it.
        key: another one when any of it is different.
    """

    folder: str
    files: list[tuple[str, str, bool]] = field(default_factory=list[tuple[str, str, bool]])
    left_out: list[str] = field(default_factory=list[str])
    fault: str | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The wanted part of a commit.

    Attributes:
        skills: by folder.
        passed: folders of skills that lie in dot folders, and are not looked for.
    """

    skills: Mapping[str, WantedSkill]
    passed: tuple[str, ...]


def select(entries: Iterable[TreeEntry], *, hidden: bool) -> Selection:
    """Find the skills among these entries; with `hidden` also those in dot folders."""
    files: dict[str, list[TreeEntry]] = {}  # a hostile tree has two files of one name
    for entry in entries:
        files.setdefault(entry.path.decode("utf-8", "surrogateescape"), []).append(entry)
    grouped, rest = group_by_skill(files, hidden=hidden)
    skills: dict[str, WantedSkill] = {}
    for folder, found in grouped.items():
        skill = skills[folder] = WantedSkill(folder)
        try:
            if folder:
                check_name(folder)
        except ArchiveRefusedError as error:
            skill.fault = str(error)
        for each in found.values():
            for entry in each:
                _add(skill, entry)
    passed = sorted(path.rpartition("/")[0] for path in rest if is_skill_md(path))
    for skill in skills.values():
        lines = "".join(f"{executable:d} {object_id} {path}\0" for path, object_id, executable in sorted(skill.files))
        skill.key = hashlib.sha256(f"{skill.fault}\0{lines}".encode("utf-8", "surrogateescape")).hexdigest()
    for fault in file_names.faults(sorted(skills)):
        skills[fault.path].fault = skills[fault.path].fault or fault.message
    return Selection(skills, tuple(passed))


def read_files(skill: WantedSkill, out: IO[bytes], limits: UnpackLimits) -> tuple[Files, list[str]]:
    """Read the files of a skill from `git cat-file --batch`, in the order of `skill.files`.

    All that it writes for the skill is read, also where the skill is refused.

    Returns:
        (the files, the paths of those that are pointers of Git LFS).

    Raises:
        ArchiveRefusedError: it is over a limit, or some platform cannot hold it.
        EOFError: git wrote something else.
    """
    tree, refused, pointers = Tree(limits), None, list[str]()
    for path, object_id, executable in skill.files:
        size = _size(out.readline(), object_id)
        if refused is None:
            try:
                tree.place(path)
                tree.admit(path, size)
            except ArchiveRefusedError as error:
                refused = error
        if refused is not None:
            _skip(out, size + 1)
            continue
        raw = out.read(size + 1)
        if len(raw) != size + 1:
            raise EOFError
        raw = raw[:-1]
        if media.is_lfs_pointer(raw):
            pointers.append(path)
        tree.fill(path, raw, executable)
    if refused is not None:
        raise refused
    return tree.checked(), pointers


def _add(skill: WantedSkill, entry: TreeEntry) -> None:
    try:
        path = decoded(entry.path)
        path = path[len(skill.folder) + 1 :] if skill.folder else path
        check_name(path)  # before what is ignored is left out: `../x` is no file that was forgotten there
    except ArchiveRefusedError as error:
        skill.fault = skill.fault or str(error)
        return
    if any(is_ignored(part) for part in path.split("/") if part):
        skill.left_out.append(path)
    elif entry.mode == _LINK:
        skill.fault = skill.fault or f"{quoted(path)} is a symbolic link"
    elif entry.mode == _SUBMODULE:
        skill.fault = skill.fault or f"{quoted(path)} is a submodule, which is another repository"
    else:
        skill.files.append((path, entry.object_id, entry.mode == _EXECUTABLE))


def _size(head: bytes, object_id: str) -> int:
    """Parse the size in the header of an object."""
    parts = head.split()
    if len(parts) != 3 or parts[:2] != [object_id.encode(), b"blob"]:
        raise EOFError
    return int(parts[2])


def _skip(out: IO[bytes], size: int) -> None:
    while size:
        piece = out.read(min(size, _PIECE))
        if not piece:
            raise EOFError
        size -= len(piece)
