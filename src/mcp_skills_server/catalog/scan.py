"""A directory tree to Skills: what `tree.walk` brings from the disk is judged here.

What has not changed since the last scan comes out as the same objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.bundle import ADMIT, DENIED, HARD_LINK, Files, complete, what_opens
from mcp_skills_server.catalog.fetched import Origins
from mcp_skills_server.catalog.index import StoredSkill, StoredSkills
from mcp_skills_server.catalog.path_index import above, join, within
from mcp_skills_server.catalog.roots import FolderLink, Limits, Root, link_state
from mcp_skills_server.catalog.tree import Directory, Entering
from mcp_skills_server.codes import problem
from mcp_skills_server.format.ignored import ENVIRONMENT, is_entered
from mcp_skills_server.model import SKILL_MD, Problem, Reading, Skill, SkillFile, Standing

Hold: TypeAlias = Callable[[str, object], bool]
"""Whether to keep, for the moment, what was known of the skill in this directory: its SKILL.md is gone or has become
worse. The second argument tells one state of it from the next."""


class Scan:
    """One scan of a root, or of a part of it.

    Args:
        root: the root.
        known: the skills that were there, by directory.
        namespace: the path of the skill that the root itself is, for a scan of a part of it; else "".
        limits: what a skill may measure.
        roots: all that are served: what lies in one of them is not served a second time through a link.
        nested: the directories that earlier scans found to be skills within another one; this scan adds its own.
        hold: decides whether a skill whose SKILL.md is gone or has become worse stays what it was.
        stored: what an earlier process knew: a file that still has the signature of then is not read.
        entering: called with the place of each directory before it is looked into.

    Attributes:
        skills: by directory below the root.
        problems: (place below the root, problem) of what belongs to no skill.
        passed: dot folders that were passed over, by their place below the root.
        recalled: the skills of which the index knew all, by directory.
    """

    def __init__(
        self,
        root: Root,
        known: Mapping[str, Skill],
        namespace: str,
        limits: Limits,
        *,
        roots: Sequence[Root],
        nested: set[str],
        hold: Hold,
        stored: StoredSkills | None = None,
        entering: Entering | None = None,
    ) -> None:
        self.skills: dict[str, Skill] = {}
        self.problems: list[tuple[str, Problem]] = []
        self.passed: list[str] = []
        self.recalled: dict[str, Skill] = {}
        self._root = root
        self._known = known
        self._namespace = namespace
        self._limits = limits
        self._roots = roots
        self._nested = nested
        self._hold = hold
        self._stored = stored
        self._entering = entering
        self._links: list[str] = []
        """The places of links outside of every skill."""
        self._files = Files(root, known.values(), nested, limits.bytes)
        self._origins = Origins(root.path, root.origin)

    def run(self, part: str) -> None:
        """Scan the directory `part` of the root, "" for all of it.

        Raises:
            OSError: the directory cannot be opened, or the process ran out of descriptors or memory.
        """
        found: Directory | None = None
        if self._root.layout is not None and not part:
            for name, reason in self._root.layout.left_out.items():
                outside = problem("plugin-elsewhere", f"the plugin {name} is not served: {reason}")
                self.problems.append(("", outside.at(self._root.shown, "")))
        levels = 0
        if part:
            levels = part.count("/") + 1
        in_environment = any(
            os.path.lexists(os.path.join(self._root.path, up, ENVIRONMENT)) for up in above(part) if up
        )
        # A scan of the whole root does not go deeper either; it only sees the links in the directory above.
        if levels > tree.MOST_LEVELS:
            found = None
            if levels == tree.MOST_LEVELS + 1:
                found = tree.link_at(self._root.path, part)
        elif not in_environment:
            if self._entering is not None:
                self._entering(part)
            try:
                with disk.open_directory(self._root.path, part) as handle:
                    self._visit(self._walk(handle, part), inside=False)
            except OSError as error:
                found = None
                if part:
                    found = tree.instead(self._root.path, part, error)
                if found is None:
                    raise
        if found is not None:
            self._visit(found, inside=False)
        self._follow_links(part)

    def _walk(self, handle: disk.Handle, path: str) -> Directory:
        # Beyond the limit on depth the walk goes on, so that a skill that lies too deep is reported, not lost.
        return tree.walk(
            handle,
            path,
            self._root.index,
            depth=tree.MOST_LEVELS - (path.count("/") + 1 if path else 0),
            most_files=self._limits.files,
            hidden=self._limits.hidden,
            entering=self._entering,
        )

    def _visit(self, here: Directory, *, inside: bool) -> None:
        """Build the skill of this directory, if it is one, and of those below it."""
        reads, stored = self._files.reads, None
        if self._stored is not None and here.path in self._stored:
            stored = self._stored.skill(here.path)
            if not inside:  # else the skill around it has the digests of these files, too
                self._files.recall(stored.digests)
        if here.holds_manifest and not inside and self._is_of_plugin(here):
            self._note_nested(here)
        if inside and not here.holds_manifest and here.path not in self._known:
            for inner in here.directories:
                self._visit(inner, inside=True)
            self._withhold(here)
            return
        manifest = None
        if inside or self._is_of_plugin(here):
            manifest = self._manifest(here, inside)
        skill = None
        if manifest is not None:
            skill = self._skill(here, manifest, stored)
        held = self._held(here, skill)
        if held is not None:
            skill = held
        if skill is not None:
            self.skills[here.path] = skill
            if not here.path:
                self._namespace = skill.path
        elif not inside:
            self._report_outside(here)
        for inner in here.directories:
            self._visit(inner, inside=inside or skill is not None)
        if skill is None and inside and not here.holds_manifest:
            self._withhold(here)
        if skill is not None and held is None:
            found = complete(self._root, here, skill, self._files, self._limits)
            old = self._known.get(here.path)
            if old is not None and _equal(old, found):
                found = old
            self.skills[here.path] = found
            if stored is not None and self._files.reads == reads:
                self.recalled[here.path] = found

    def _is_of_plugin(self, here: Directory) -> bool:
        """Tell whether a skill in this directory is one of a plugin, in a root that has plugins."""
        layout = self._root.layout
        return layout is None or layout.namespace(here.path) is not None

    def _note_nested(self, here: Directory) -> None:
        """Remember which directories below a skill are skills themselves, before any link is judged."""
        for inner in here.directories:
            if inner.holds_manifest:
                self._nested.add(inner.path)
            self._note_nested(inner)

    def _withhold(self, here: Directory) -> None:
        """Keep the files of a nested skill without a SKILL.md out of the skill around it.

        Its readers need not be those of the nested one, and an editor or a checkout may take its time.
        """
        if here.path not in self._nested:
            return
        here.is_withheld = True
        found = problem(
            "skill-md-irregular",
            "SKILL.md is gone, and the other files are not served with the skill around them",
            hint="put it back, move the files to a folder of another name, or restart the server",
        )
        self.problems.append((here.path, found.at(self._root.show(here.path), "")))

    def _held(self, here: Directory, found: Skill | None) -> Skill | None:
        """Return the known skill of this directory, if it is to stay although its SKILL.md is gone or has become
        worse.
        """
        old = self._known.get(here.path)
        if old is None or old.standing is Standing.UNUSABLE:
            return None
        if found is not None and found.reading.standing >= old.reading.standing:
            return None
        now = here.files.get(SKILL_MD)
        state: object = None
        if now is not None:
            state = now.signature
        elif found is not None:
            state = found.reading.problems
        if self._hold(here.path, state):
            return old
        return None

    def _manifest(self, here: Directory, inside: bool) -> SkillFile | Problem | None:
        """Return this directory's SKILL.md, or why it cannot be read, or None when the directory is no skill."""
        if SKILL_MD in here.files and self._origins.is_copy(here.path):
            return None
        if SKILL_MD in here.files:
            return here.files[SKILL_MD]
        if SKILL_MD in here.links:
            linked = self._files.link(here.path, SKILL_MD)
            if linked is not None and within(linked.location, here.path):
                return linked
            return problem("skill-md-irregular", "SKILL.md is a link that leaves the skill or leads nowhere")
        if SKILL_MD in here.denied:
            return problem("unreadable", f"SKILL.md cannot be looked at: {DENIED}", hint=ADMIT)
        if SKILL_MD in here.foreign:
            return problem("skill-md-irregular", f"SKILL.md is {HARD_LINK}")
        if SKILL_MD in here.irregular:
            return problem("skill-md-irregular", "SKILL.md is not a regular file")
        if here.folder_as_manifest:
            return problem("skill-md-irregular", "SKILL.md is a directory")
        if not inside:
            for name in here.files:
                if name.lower() == "skill.md":
                    place = self._root.show(join(here.path, name))
                    return problem("skill-md-case", f"the file is named {name}").at(place, "")
        return None

    def _skill(self, here: Directory, manifest: SkillFile | Problem, stored: StoredSkill | None) -> Skill:
        """Return the skill without its files, which are not known before the directories below were visited."""
        old = self._known.get(here.path)
        if isinstance(manifest, Problem):
            reading = Reading({}, None, Standing.UNUSABLE, (manifest,))
        else:
            reading = self._reading(here, manifest, old, stored)
        path = self._path(here, reading)
        if reading.problems:
            place = self._root.show(join(here.path, SKILL_MD))
            problems = tuple(found.at(found.path or place, path) for found in reading.problems)
            reading = reading._replace(problems=problems)
            if old is not None and old.reading == reading:
                reading = old.reading
        origin = self._origin(here.path)
        return Skill(path, self._root.index, here.path, reading, {}, (), reading.standing, origin=origin)

    def _reading(self, here: Directory, manifest: SkillFile, old: Skill | None, stored: StoredSkill | None) -> Reading:
        """Return what SKILL.md says: what was known of it, or what an earlier process knew, if it is the same file."""
        if manifest.size > self._limits.skill_md:
            most = self._limits.skill_md
            message = f"SKILL.md has {manifest.size} bytes, at most {most} are allowed"
            return Reading({}, None, Standing.UNUSABLE, (problem("skill-md-too-large", message),))
        if old is None or _is_unread(old.reading):
            known = None
        else:
            known = old.files.get(SKILL_MD)
        if old is not None and known is not None and self._files.unchanged(manifest) is known:
            return old.reading
        if stored is not None and stored.signature == manifest.signature and manifest.mtime_reliable:
            self._files.take(manifest)
            if stored.reading is not None:
                return stored.reading
        try:
            raw = self._files.read(manifest)
        except OSError as error:
            if error.errno in disk.PASSING:
                raise
            message = f"SKILL.md cannot be read ({error.strerror})"
            return Reading({}, None, Standing.UNUSABLE, (problem("unreadable", message),))
        if old is not None and known is not None and self._files.take(manifest) is known:
            return old.reading
        from mcp_skills_server.catalog import reading

        return reading.read_skill_md(raw, self._directory_name(here))

    def _path(self, here: Directory, reading: Reading) -> str:
        if here.path:
            if self._namespace:
                return f"{self._namespace}/{here.path}"
            return self._root.skill_path(here.path, self.skills)
        name = reading.frontmatter.get("name")
        # A root that is itself a skill goes by its name, unless the name would make a path of another shape.
        sound = isinstance(name, str) and name.isprintable() and "/" not in name and name not in {"", ".", ".."}
        if not isinstance(name, str) or not sound:
            name = self._directory_name(here)
        if self._root.layout is not None:
            return join(self._root.layout.folders[""], name)
        return name

    def _directory_name(self, here: Directory) -> str:
        if here.path:
            return here.path.rpartition("/")[2]  # which is UTF-8, or the walk had not come here
        return disk.spelled(os.path.basename(self._root.path) or "root")

    def _origin(self, place: str) -> str | None:
        """Return the origin of a skill; behind a link it is that of the folder it lies in."""
        base, link, rest = self._root.locate(place)
        if link:
            return Origins(base, None).of(rest)
        return self._origins.of(place)

    def _follow_links(self, part: str) -> None:
        """Serve the skill folders that links lead to, each once, and report the other links to directories."""
        for place in [*self._root.links.below(part)]:
            self._root.set_link(place, None)
        # The outer one of two folders first, and of two links to one folder always the same.
        for target, place in sorted((os.path.realpath(self._at(place)), place) for place in self._links):
            state = link_state(self._at(place))
            if os.path.lexists(target) and not os.path.isdir(target):
                continue
            self._root.set_link(place, FolderLink("", state))
            if not state:
                continue
            try:
                reason = self._why_not(place, target)
                if reason is None:
                    self._root.set_link(place, FolderLink(target, state))
                    reason = self._follow(place, target)
            except OSError as error:
                reason = f"leads to a directory that cannot be opened ({error.strerror})"
            if reason:
                self._root.set_link(place, FolderLink("", state))
                self._report_link(place, target, reason)

    def _at(self, place: str) -> str:
        return os.path.join(self._root.path, place)

    def _why_not(self, place: str, target: str) -> str | None:
        """Return why a link is not followed: "" where its skill is served from elsewhere, None where it may be."""
        holds_skill = os.path.lexists(os.path.join(target, SKILL_MD))
        if not self._limits.links or self._origins.of(place) is not None:
            return "leads to a directory, and links are not followed"
        for root in self._roots:
            rest = _below(target, root.path)
            if rest is not None and all(is_entered(name, hidden=self._limits.hidden) for name in rest):
                if holds_skill:
                    return ""
                return "leads to a directory without a SKILL.md"
            if _below(root.path, target) is not None:
                return "leads to a directory that a root lies in"
            if root.index <= self._root.index and root.behind_link(target) is not None:
                return ""
        return None

    def _follow(self, place: str, target: str) -> str | None:
        """Scan the skill folder behind a link; returns why it is not served, if it is not.

        Raises:
            OSError: it cannot be opened.
        """
        if self._entering is not None:
            self._entering(place)
        with disk.open_real(target) as handle:
            # Of what was opened, whatever the link leads to by now.
            owner = os.lstat(self._at(place)).st_uid
            if disk.owner_of(handle, "") != owner:
                return "leads to a directory of another user than the link's"
            found = self._walk(handle, place)
            if found.holds_manifest and disk.owner_of(handle, SKILL_MD) != owner:
                return "leads to a directory whose SKILL.md belongs to another user"
            if not found.holds_manifest and self._held(found, None) is None:
                return "leads to a directory without a SKILL.md"
            self._visit(found, inside=False)
        return None

    def _report_link(self, place: str, target: str, reason: str) -> None:
        if _below(target, self._root.path) is not None:
            hint = "remove the link, since the folder it leads to is part of this root"
        else:
            hint = "serve the folder it leads to as a root of its own"
        message = f"{place.rpartition('/')[2]} is a link that {reason}"
        found = problem("link-outside", message, hint=hint).at(self._root.show(place), "")
        self.problems.append((place, found))

    def _report_outside(self, here: Directory) -> None:
        """Outside every skill: what might have been one, so that nothing is lost in silence."""

        def find(code: str, message: str, location: str, hint: str | None = None) -> None:
            found = problem(code, message, hint=hint).at(self._root.show(location), "")
            self.problems.append((location, found))

        if here.holds_manifest and self._root.layout is not None and self._root.layout.is_too_deep(here.path):
            message = "the skill does not lie right in the skills folder of its plugin, where plugins have theirs"
            find("too-deep", message, here.path, "move it there, or list its folder in the plugin's manifest")
        self._links += [join(here.path, name) for name in here.links]
        for name in here.unnamed:
            message = f"the name {name} is not UTF-8, so nothing of it is served"
            find("file-name", message, join(here.path, name))
        if here.unreadable:
            find("unreadable", "the directory cannot be opened", here.path, what_opens(self._root, here))
        elif here.denied:
            find("unreadable", f"{len(here.denied)} of its names cannot be looked at: {DENIED}", here.path, ADMIT)
        if here.cut:
            message = f"folders lie more than {tree.MOST_LEVELS} levels below the root and are not searched"
            find("too-deep", message, here.path, "serve a folder that lies nearer to them as a root of its own")
        self.passed += [join(here.path, name) for name in here.dotted]


def _below(path: str, top: str) -> list[str] | None:
    """Return the names that lead from one real path to another at or below it, None where it does not lie there."""
    if path != top and not path.startswith(top.rstrip(os.sep) + os.sep):
        return None
    return [name for name in path[len(top) :].split(os.sep) if name]


def _is_unread(reading: Reading) -> bool:
    return any(found.code == "unreadable" for found in reading.problems)


def _equal(old: Skill, new: Skill) -> bool:
    return (
        old.reading is new.reading
        and old.path == new.path
        and old.findings == new.findings
        and old.empty == new.empty
        and old.nested == new.nested
        and old.origin == new.origin
        and old.files.keys() == new.files.keys()
        and all(old.files[path] is file for path, file in new.files.items())
    )
