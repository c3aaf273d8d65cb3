"""Bundle: the files of one skill, what of its directories is refused, and its limits."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Final, NamedTuple

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.disk import WalkedFile
from mcp_skills_server.catalog.path_map import above, join, levels, within
from mcp_skills_server.catalog.roots import Limits, Root
from mcp_skills_server.catalog.tree import Directory
from mcp_skills_server.codes import problem, standing
from mcp_skills_server.format.identity import MARKUP
from mcp_skills_server.model import SKILL_MD, Problem, Skill, SkillFile
from mcp_skills_server.model.digests import digest_of

logger = logging.getLogger(__name__)

_ADMIT: Final = "give the user that runs the server permission to enter the folder"
_IN_PART: Final = (
    "it is not listed, and tools, prompts and the Skills Protocol have the files up to the "
    "limit alone"
)


class FileRefusal(NamedTuple):
    """The problem of a directory entry that a skill does not serve."""

    code: str
    message: str
    hint: str | None = None


REFUSALS: Final[Mapping[str, FileRefusal]] = {
    "irregular": FileRefusal("file-irregular", "{} is not a regular file"),
    "folder": FileRefusal("skill-md-irregular", "{} is a directory"),
    "foreign": FileRefusal(
        "hard-link",
        "{} is a hard link to a file that belongs to another user than its folder, and is not "
        "served",
    ),
    "unnamed": FileRefusal("file-name", "the name of {} is not UTF-8, so the file is not served"),
    "denied": FileRefusal(
        "unreadable", "{} cannot be inspected: the folder may be read but not entered", _ADMIT
    ),
    "link": FileRefusal(
        "link-outside",
        "{} is a link that leaves the skill, leads to a directory or into another skill, or is "
        "broken",
    ),
}
"""By the kind of a name in `Directory.unserved`."""


class ScannedFiles:
    """The files that one scan of a root meets. A file whose bytes are the same keeps its object.

    Args:
        known: the skills of the last scan, or of the index.
        proofs: by location, the stat signatures that prove the bytes of their files.
        most_bytes: a larger file is not read.
        nested: the directories of nested skills, to which the scan adds.

    Attributes:
        reads: number of files that were read.
        signatures: by location, the signatures that prove the bytes of the files met.
    """

    def __init__(
        self,
        root: Root,
        known: Iterable[Skill],
        proofs: Mapping[str, str],
        most_bytes: int,
        nested: Set[str],
    ) -> None:
        self.reads = 0
        self.signatures: dict[str, str] = {}
        self._root = root
        self._most_bytes = most_bytes
        self._nested = nested
        self._known = {file.location: file for skill in known for file in skill.files.values()}
        self._proofs = proofs
        self._taken: dict[str, SkillFile] = {}
        self._linked: dict[str, WalkedFile | None] = {}

    def unchanged(self, file: WalkedFile) -> SkillFile | None:
        """Return a file without reading it if its signature proves the known bytes, or None.

        An index may be wrong about a file: `Registry.read` hashes all it reads, so no bytes are
        served under another digest.
        """
        location = file.location
        if not file.is_settled or self._proofs.get(location) != file.signature:
            return None
        known = self._known.get(location)
        if known is None or not known.digest:
            return None
        if known.executable != file.is_executable:
            known = known._replace(executable=file.is_executable)
        return self._record(file, known)

    def take(self, file: WalkedFile) -> SkillFile:
        """Return a file with its digest; one that cannot be read has none.

        Raises:
            OSError: the process ran out of descriptors or memory.
        """
        taken = self._taken.get(file.location) or self.unchanged(file)
        if taken is not None:
            return taken
        try:
            self.read(file)
        except OSError as error:
            if error.errno in disk.TRANSIENT_ERRORS:
                raise
            old = self._known.get(file.location)
            # an unreadable SKILL.md has a problem of its own
            if (old is None or old.digest) and not file.location.endswith(SKILL_MD):
                text = "a file of a skill is not served: %s: %s"
                logger.warning(text, error.strerror, error.filename)
            return self._record(file, self._made(file, ""))
        return self._taken[file.location]

    def read(self, file: WalkedFile) -> bytes:
        """Read a file and record its digest; raise OSError if it is unreadable."""
        self.reads += 1
        located = self._root.locate(file.location)
        raw, file = disk.ingest(located.base, located.rest, file, self._most_bytes)
        self._record(file, self._made(file, digest_of(raw)))
        return raw

    def _made(self, file: WalkedFile, digest: str) -> SkillFile:
        """Return the known file if it is equal, since an unchanged skill keeps its objects."""
        size, executable = file.size, file.is_executable
        made = SkillFile(self._root.index, file.location, size, digest, executable)
        known = self._known.get(file.location)
        return known if known is not None and known == made else made

    def _record(self, file: WalkedFile, taken: SkillFile) -> SkillFile:
        if taken.digest and file.is_settled:
            self.signatures[file.location] = file.signature
        self._taken[file.location] = taken
        return taken

    def linked(self, directory: str, name: str) -> WalkedFile | None:
        """Return the file in its root that a link leads to, or None.

        A link into a nested skill from outside yields None: it would bypass the grants.
        """
        location = join(directory, name)
        if location not in self._linked:
            located = self._root.locate(directory)
            target = disk.resolve_link(located.base, located.rest, name)
            if target is not None:
                target = target._replace(location=join(located.link, target.location))
                entered = {*above(target.location)} - {*above(location)}
                target = target if self._nested.isdisjoint(entered) else None
            self._linked[location] = target
        return self._linked[location]


class Bundle:
    """The files of one skill, nested skills included, and the findings of its directories.

    `skill` comes without files, and `complete` returns it with them.
    """

    def __init__(self, skill: Skill, root: Root, files: ScannedFiles) -> None:
        self._skill = skill
        self._root = root
        self._scanned = files
        self._files: dict[str, WalkedFile] = {}
        self._findings: list[Problem] = []
        self._empty: list[str] = []
        self._nested: list[str] = []
        self._surplus = self._orphans = 0

    def add(self, here: Directory, *, is_orphaned: bool = False) -> None:
        """Add the files of this directory and those below, by their paths in the skill."""
        if here.is_orphaned or (is_orphaned and not here.holds_manifest):
            self._orphans += 1  # only the skills nested in it are added
            for inner in here.directories:
                self.add(inner, is_orphaned=True)
            return
        path = here.path.removeprefix(self._skill.directory).lstrip("/")
        before = len(self._files) + self._orphans  # what is orphaned leaves no folder empty
        if here.holds_manifest and path:
            self._nested.append(path)
        self._surplus += here.surplus
        for name, file in here.files.items():
            # interned: many skills have files of the same names
            shown = sys.intern(join(path, name))
            self._files[shown] = file
            if "\\" in name:
                text = f"the name of {shown} holds a backslash"
                self._find(here, "file-name-backslash", text, name)
        for name, kind in here.unserved.items():
            linked = self._scanned.linked(here.path, name) if kind == "link" else None
            if linked is not None and within(linked.location, self._skill.directory):
                self._files[join(path, name)] = linked
            elif kind in REFUSALS and name != SKILL_MD:
                code, message, hint = REFUSALS[kind]
                self._find(here, code, message.format(join(path, name)), name, hint)
        if here.unreadable:
            hint = open_hint(self._root, here)
            self._find(here, "unreadable", "the directory cannot be opened", "", hint)
        if here.is_truncated:
            self._find(here, "too-deep", "files lie deeper than the scan goes", "")
        for inner in here.directories:
            self.add(inner)
        if len(self._files) + self._orphans == before and path:
            self._empty.append(path)

    def _find(
        self, here: Directory, code: str, message: str, name: str, hint: str | None = None
    ) -> None:
        shown = self._root.show(join(here.path, name))
        self._findings.append(problem(code, message, hint=hint).at(shown, self._skill.path))

    def complete(self, limits: Limits) -> Skill:
        """Return the skill with its files and final standing; over a limit with fewer files.

        Raises:
            OSError: the process ran out of descriptors or memory.
        """
        skill, files = self._skill, dict(sorted(self._files.items()))
        over = list(self._over(limits))
        if over:
            shown = self._root.show(skill.directory)
            self._findings += [problem.at(shown, skill.path) for problem in over]
            files = _within_limits(files, limits)
        return Skill(  # half the time of `replace`, for 10,000 skills 35 ms
            skill.path,
            skill.root,
            skill.directory,
            skill.reading,
            {path: self._scanned.take(file) for path, file in files.items()},
            tuple(sorted(self._findings)),
            min(skill.standing, standing(self._findings)),
            tuple(sorted(self._empty)),
            skill.origin,
            tuple(sorted(self._nested)),
        )

    def _over(self, limits: Limits) -> Iterator[Problem]:
        """Yield a problem for each limit that the skill exceeds, and for a forbidden path."""
        if markup := MARKUP.search(self._skill.path):
            yield problem("name-markup", f"the path of the skill holds {markup[0]!r}")
        depth = levels(self._skill.directory)
        if depth > limits.depth:
            text = f"the skill lies {depth} levels below its root, {limits.depth} are searched"
            yield problem("too-deep", text)
        count = len(self._files) + self._surplus
        if count > limits.files:
            text = f"the skill has {count} files, {limits.files} are allowed; {_IN_PART}"
            yield problem("too-many-files", text)
        size = sum(file.size for file in self._files.values())
        if size > limits.bytes:
            text = f"the skill has {size} bytes, {limits.bytes} are allowed; {_IN_PART}"
            yield problem("too-many-bytes", text)


def _within_limits(files: Mapping[str, WalkedFile], limits: Limits) -> dict[str, WalkedFile]:
    """Return the files within the limits: SKILL.md first, then by depth and path.

    This bounds what any client can make the server hash, copy or send of a skill.
    """
    chosen: set[str] = set()
    left = limits.bytes
    for path in sorted(files, key=lambda path: (path != SKILL_MD, path.count("/"), path)):
        if len(chosen) >= limits.files:
            break
        size = files[path].size
        if size <= left or path == SKILL_MD:
            chosen.add(path)
            left -= size
    return {path: file for path, file in files.items() if path in chosen}


def without_nested(skill: Skill, withheld: Collection[str], root: Root) -> Skill:
    """Return a skill without the files and findings of some of its nested skills.

    A nested skill in a `withheld` one keeps its files, but not what a link has from around it.
    """
    if not withheld:
        return skill

    def is_left(path: str) -> bool:
        holders = [nested for nested in skill.nested if within(path, nested)]
        return max(holders, key=len, default="") not in withheld

    folders = [root.show(join(skill.directory, nested)) for nested in withheld]
    findings = tuple(
        _uncounted(finding)
        for finding in skill.findings
        if not any(within(finding.path, folder) for folder in folders)
    )
    top = f"{skill.directory}/" if skill.directory else ""
    return replace(
        skill,
        files={  # by location, too: a link may show a file of a withheld skill
            path: file
            for path, file in skill.files.items()
            if is_left(path) and is_left(file.location.removeprefix(top))
        },
        empty=tuple(filter(is_left, skill.empty)),
        findings=findings,
        standing=min(skill.reading.standing, standing(findings)),  # the limits count less now
    )


def _uncounted(finding: Problem) -> Problem:
    """Return a finding without numbers of files and bytes, which count what is withheld."""
    if finding.code.startswith("too-many"):
        return finding._replace(message=f"the skill is larger than allowed; {_IN_PART}")
    return finding


def open_hint(root: Root, here: Directory) -> str | None:
    """Return a hint for an unreadable directory whose parent may not be entered, else None."""
    parent, _, name = here.path.rpartition("/")
    effective = os.access in os.supports_effective_ids
    if not name or os.access(os.path.join(root.path, parent), os.X_OK, effective_ids=effective):
        return None
    return f"{_ADMIT} above it, {root.show(parent)}"
