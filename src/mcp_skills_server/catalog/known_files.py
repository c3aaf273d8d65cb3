"""Recognition of unchanged files in a scan: a skill that has not changed keeps its objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.disk import digest_of
from mcp_skills_server.catalog.index import Digests
from mcp_skills_server.catalog.path_index import above, join, within
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import Skill, SkillFile


class KnownFiles:
    """The files of a root for one scan, by their places.

    Args:
        root: the root.
        known: the skills that were there.
        nested: the directories that are skills within another one, or were.
    """

    def __init__(self, root: Root, known: Iterable[Skill], nested: Collection[str] = ()) -> None:
        self._root = root
        self._nested = nested
        self._files = {file.location: file for skill in known for file in skill.files.values()}
        self._known = bool(self._files)
        self._links: dict[str, SkillFile | None] = {}
        self._stored: Digests = {}

    def recall(self, digests: Digests, *, more: bool) -> None:
        """These files, by place, had these signatures and digests in an earlier process.

        `more`: beside those that were recalled before, and not in their place.
        """
        self._stored = {**self._stored, **digests} if more else digests

    def recognise_all(self, files: dict[str, SkillFile]) -> None:
        """Put the known file in the place of each that still is one; `files` are those of one directory, by name."""
        if self._known or self._stored:
            for name, file in files.items():
                files[name] = self.recognise(file)
        else:
            for file in files.values():
                self._files[file.location] = file

    def recognise(self, new: SkillFile) -> SkillFile:
        """Return the known file if what was found still is that: by signature, or by its bytes under a new
        signature.
        """
        # What comes back is what the next one finds: a file and the links to it are one object.
        old = self._files.setdefault(new.location, new)
        if old is new:
            stored = self._stored.get(new.location)
            if stored is not None and new.mtime_reliable:
                new.digest = _digest_under(new.signature, stored)
            return new
        same_signature = old.signature == new.signature
        changed = not same_signature
        if not (same_signature and old.mtime_reliable) and old.digest is not None:
            changed = old.size != new.size or self._digest(new) != old.digest
        if changed:
            self._files[new.location] = new
            return new
        old.signature, old.mtime_reliable, old.executable = new.signature, new.mtime_reliable, new.executable
        return old

    def _digest(self, file: SkillFile) -> str | None:
        try:
            file.digest = digest_of(disk.read(self._root.path, file))
        except StaleFileError:
            return None
        return file.digest

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
            self._links[place] = None if target is None else self.recognise(target)
        return self._links[place]

    def replace(self, file: SkillFile, link: str | None) -> None:
        """This is the file at its place now, and what the link at this other place stands for."""
        self._files[file.location] = file
        if link is not None:
            self._links[link] = file


def _digest_under(signature: str, stored: tuple[str, str]) -> str | None:
    """Return the digest that an earlier process computed, if it stands for this signature and has the shape of one.

    It need not be true: `Reader.read` hashes whatever it reads, so no byte is served under a digest that is not its
    own, and one that is false is computed anew.
    """
    try:
        digest, mark = stored
        right = mark == signature and disk.is_digest(digest)
    except (ValueError, TypeError, AttributeError):
        return None
    return digest if right else None
