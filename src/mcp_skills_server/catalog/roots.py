"""Roots: the served directories, their limits, links and plugins, and the namespace they share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mcp_skills_server.catalog.disk import to_utf8
from mcp_skills_server.catalog.path_map import PathMap, above
from mcp_skills_server.catalog.plugins import read_layout
from mcp_skills_server.catalog.switches import switched_off
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.ignored import ARCHIVES
from mcp_skills_server.format.plugins import Layout
from mcp_skills_server.model import SKILL_MD, Problem, Skill

logger = logging.getLogger(__name__)

_GIVE: Final = "give the path of a folder that holds skills"


class Limits(NamedTuple):
    """Limits on a skill's size, and on where a scan looks.

    Attributes:
        skill_md: bytes of SKILL.md.
        files: files of one skill, nested skills included.
        bytes: bytes of one skill.
        depth: levels of directories between a root and a skill in it, at most 64.
        hidden: enter dot folders outside of skills, too; inside a skill dot names stay ignored.
        links: follow symlinks in a local folder that lead to a skill folder; never in fetched
            content.
    """

    skill_md: int = 1 << 20
    files: int = 512
    bytes: int = 16 << 20
    depth: int = 32
    hidden: bool = False
    links: bool = True


class FolderLink(NamedTuple):
    """A symbolic link outside of every skill that leads to a directory, or to nothing.

    Attributes:
        target: real path of the linked skill folder, "" if the link is not followed.
        state: `link_state` of the link when the scan judged it.
    """

    target: str
    state: tuple[int, ...]


def directory_identity(path: str) -> tuple[int, ...]:
    """Return the identity and permissions of a directory, links followed; () if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid


def link_state(path: str) -> tuple[int, ...]:
    """Return a stat signature of a link's target, equal as long as the link is judged the same.

    SKILL.md counts by its presence alone: file events report an edit of it.
    """
    state = directory_identity(path)
    if not state:
        return ()
    return (*state, os.path.lexists(f"{path}/{SKILL_MD}"))


class MirroredRoot(NamedTuple):
    """A directory with copies of skills that live elsewhere. No watcher follows it: `refresh` does.

    Attributes:
        origin: the site or archive that they come from, without secrets. Shown to the operator;
            clients and models see `identity.shown_origin` of it.
    """

    path: str
    origin: str


class OptionalRoot(str):
    """The path of a directory that may be absent: it is served once it is there."""

    __slots__ = ()


class Location(NamedTuple):
    """A root-relative path as it lies on the disk: `rest` below the real directory `base`."""

    base: str
    link: str  # the link in the root that leads to `base`; "" for the root itself
    rest: str


@dataclass(slots=True, eq=False)
class Root:
    """A served directory.

    Attributes:
        index: rank; the skills of a lower index win.
        path: absolute and resolved; `follow` updates it.
        shown: as the operator wrote it.
        given: absolute, not resolved; a link on the way may later lead elsewhere.
        origin: where its skills come from, if it only holds copies of them.
        revision: the served revision of its source; "" for a folder, or if unknown.
        layout: layout of its plugins; None for a folder that is neither plugin nor marketplace.
        plugin_problems: problems of the manifests of its plugins, by root-relative path.
        off: the folders of skills that are switched off.
        optional: whether it may be absent.
        links: the links to directories that the last scans found outside of skills, by
            root-relative path; `set_link` adds one, `forget_links` removes some.
    """

    index: int
    path: str
    shown: str
    given: str
    origin: str | None = None
    revision: str = ""
    layout: Layout | None = None
    plugin_problems: Sequence[Problem] = ()
    off: frozenset[str] = frozenset()
    optional: bool = False
    links: PathMap[FolderLink] = field(default_factory=PathMap[FolderLink])
    _links_by_target: dict[str, str] = field(default_factory=dict[str, str])
    """By real target, the path of the link recorded last; `links` tells whether it still is."""

    @property
    def address(self) -> str:
        """The address of its source, or its folder as given; also where copies lie elsewhere."""
        return self.origin or self.given

    def set_link(self, location: str, link: FolderLink) -> None:
        """Record a scanned link, or replace it."""
        self.links.replace((), {location: link})
        if link.target:
            self._links_by_target[_slashed(link.target)] = location

    def forget_links(self, subtree: str) -> None:
        """Forget the links at or below a root-relative path; for "", former targets, too."""
        self.links.replace_below(subtree, {})
        if not subtree:
            self._links_by_target.clear()

    def behind_link(self, path: str) -> str | None:
        """Return the root-relative path at which a link serves a real path, or None."""
        if not self.links:
            return None
        path = _slashed(path)
        for up in above(path):
            location = self._links_by_target.get(up, "")
            link = self.links.get(location)
            if link is not None and _slashed(link.target) == up:
                return location + path[len(up) :]
        return None

    def locate(self, location: str) -> Location:
        """Resolve a root-relative path through followed links."""
        for up in above(location) if self.links else ():
            link = self.links.get(up)
            if link is not None and link.target:
                return Location(link.target, up, location[len(up) + 1 :])
        return Location(self.path, "", location)

    def show(self, location: str) -> str:
        """Return a root-relative path as the operator would type it."""
        if location:
            return os.path.join(self.shown, location)
        return self.shown

    def resolve(self) -> None:
        """Resolve the root anew: deployment tools publish a whole folder by moving a symlink."""
        path = os.path.realpath(self.given)
        if path != self.path and os.path.isdir(path) and not os.path.islink(path):
            logger.info("%s now leads to another folder", self.shown)
            self.path = path
        if self.origin is None:
            self.off = switched_off(self.path, self.off)
            layout, self.plugin_problems = read_layout(self.path)
            if layout is not None or not self.plugin_problems:  # a broken manifest changes nothing
                self.layout = layout


def open_roots(roots: Sequence[str | os.PathLike[str] | MirroredRoot]) -> tuple[Root, ...]:
    """Return the roots of these directories, in order and without duplicates.

    Raises:
        TypeError: `roots` is one path and no list.
        UsageError: a root is missing, is not a directory, or cannot be read.
    """
    if isinstance(roots, str | bytes | os.PathLike):  # each letter of a path would be a root
        raise TypeError(f"Registry takes a list of roots; write Registry([{roots!r}])")
    out: list[Root] = []
    seen: set[str] = set()
    for given in roots:
        origin, optional = None, isinstance(given, OptionalRoot)
        if isinstance(given, MirroredRoot):
            shown, origin = given
        else:
            shown = os.fspath(given)
        if not shown:
            raise UsageError(f"the path of a folder is empty; {_GIVE}")
        if os.path.basename(shown) == SKILL_MD and os.path.isfile(shown):
            shown = os.path.dirname(shown) or "."
        path = os.path.realpath(shown)
        try:
            os.scandir(path).close()
        except (FileNotFoundError, NotADirectoryError):
            if not optional or os.path.exists(path):
                raise no_folder(shown) from None
        except OSError as error:
            text = f"{shown}: cannot be read ({error.strerror}); check its permissions"
            raise UsageError(text) from None
        if path not in seen:
            seen.add(path)
            root = Root(len(out), path, origin or to_utf8(shown), os.path.abspath(shown), origin)
            root.optional = optional
            if origin is None:
                root.layout, root.plugin_problems = read_layout(path)
                root.off = switched_off(path)
            out.append(root)
    return tuple(out)


def no_folder(shown: str) -> UsageError:
    """Return the error for a path that is missing or no folder, with the reason."""
    if os.path.exists(shown):
        reason = f"not a folder, nor an archive that is read ({', '.join(ARCHIVES)})"
    elif os.path.islink(shown):
        reason = f"a link that leads to nothing ({to_utf8(os.readlink(shown))})"
    else:
        reason = "no such file or folder"
    return UsageError(f"{shown}: {reason}; {_GIVE}")


def merge(roots: Iterable[Iterable[Skill]]) -> tuple[dict[str, Skill], list[tuple[Skill, Skill]]]:
    """Merge the skills of all roots into one namespace; pair each hidden skill with its winner.

    The earlier root owns its skill paths, all that lies below them and all above.
    """
    merged = PathMap[Skill]()
    hidden: list[tuple[Skill, Skill]] = []
    for skills in roots:
        mine: dict[str, Skill] = {}
        tops = {path.partition("/")[0] for path in merged}
        for skill in skills:
            path, owner = skill.path, None
            # a shortcut: where no earlier root has the first segment, none owns the path
            if path.partition("/")[0] in tops:
                owner = next((up for up in (path, *above(path)) if up in merged), None)
                owner = owner or next(iter(merged.below(path)), None)
            if owner is not None:
                hidden.append((skill, merged[owner]))
            elif path in mine:  # two folders of one plugin
                hidden.append((skill, mine[path]))
            else:
                mine[path] = skill
        merged.replace((), mine)
    return merged, hidden


def _slashed(path: str) -> str:
    return path.replace(os.sep, "/")
