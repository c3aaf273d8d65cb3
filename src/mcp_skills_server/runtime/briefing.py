"""Server instructions, tool definitions and change notices, with the list of skills in them.

The texts are cached per snapshot, for all who read it. Until the first scan ends they list the
skills of the persistent index, because some hosts fetch them only once, at the start.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os.path import basename
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog.disk import is_utf8
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import permissions_of
from mcp_skills_server.dialects import runtime
from mcp_skills_server.dialects.runtime import OVERVIEW_CHARACTERS, Loaded, Offer, Overview
from mcp_skills_server.format import hidden, identity
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import SKILL_MD, Changes, Json, Skill, Snapshot, Standing
from mcp_skills_server.model.clients import UNKNOWN, Client
from mcp_skills_server.runtime.overlap import group_copies
from mcp_skills_server.runtime.search_text import STOP_WORDS, words_of
from mcp_skills_server.runtime.settings import RuntimeSettings

_MAX_KEPT: Final = 4096
"""The length of the history of added and removed skills, from which `news` counts."""
_ABOUT_SEARCH: Final = 400
"""The length of the search tool's description without keywords of skills, in characters."""
_MAX_NAME_WORDS: Final = 2_000
"""The limit of keywords from names and tags, in characters."""
_MAX_COUNTED: Final = 1_000
"""The maximum number of skills whose keywords are counted."""


class NativeHost(Protocol):
    """A host that shows skills by itself. Hashable."""

    def shown(self, snapshot: Snapshot) -> Collection[str]:
        """Return the paths of the skills that it shows."""
        ...


class _Texts(NamedTuple):
    """The texts of one snapshot."""

    overview: Overview
    instructions: dict[tuple[bool, Client, NativeHost | None], str]
    """The instructions without loaded skills, by whether scripts may run, client and host."""
    tools: dict[tuple[bool, bool, NativeHost | None, Client], list[dict[str, Json]]]
    """Tool definitions by whether scripts may run, and the arguments of `Briefing.tools`."""


class Briefing:
    """The texts with the list of skills that a host gives to its model at the start.

    Args:
        skill_set: the skills.
        settings: the operator's settings.
        runs_scripts: returns whether scripts of at least one of these skills may run.
        of_all: the briefing of all skills, if these are a part of them.
    """

    def __init__(
        self,
        skill_set: SkillSet,
        settings: RuntimeSettings,
        runs_scripts: Callable[[], bool],
        of_all: Briefing | None = None,
    ) -> None:
        self._skill_set = skill_set
        self._settings = settings
        self._runs_scripts = runs_scripts
        self._preferred = settings.preferred_paths
        self._texts = WeakKeyDictionary[Snapshot, _Texts]()
        self._remembered: Snapshot | None = None
        self._changes: deque[tuple[float, str, int]] = deque(maxlen=_MAX_KEPT)
        """`time.monotonic`, skill path and +1 or -1 of each added or removed skill."""
        if of_all is not None:
            self._texts, self._changes = of_all._texts, of_all._changes
            if skill_set.snapshot is not of_all._skill_set.snapshot:
                self._preferred = ()  # their order would show what other principals use

    def remember(self) -> bool:
        """List the persisted skills until the first scan ends; return False if unavailable."""
        if self._remembered is None and not self._skill_set.loaded.is_set():
            self._remembered = self._skill_set.remembered()
        return self._remembered is not None

    # Texts

    def characters(self, client: Client) -> int:
        """Return the limit of a text with the list of skills for this client, in characters."""
        characters = self._settings.overview_characters
        return client.catalog_characters if characters is None else characters

    def instructions(
        self,
        active: Sequence[Loaded] | None = None,
        client: Client = UNKNOWN,
        host: NativeHost | None = None,
    ) -> str:
        """Return the server instructions, with the `active` skills; "" if there are no skills.

        They list only the skills that `host` does not show by itself.
        """
        snapshot, texts = self._current()
        scripts = self._runs_scripts()
        if not active and (scripts, client, host) in texts.instructions:
            return texts.instructions[scripts, client, host]
        overview = _not_shown(texts.overview, snapshot, host)
        characters = self.characters(client)
        if client.list_in == "tools":
            characters = 0
        text = runtime.instructions(overview, characters, scripts=scripts, active=active)
        if not active:
            texts.instructions[scripts, client, host] = text
        return text

    def tools(
        self, *, handles: bool, host: NativeHost | None = None, client: Client = UNKNOWN
    ) -> list[dict[str, Json]]:
        """Return the cached tool definitions, which the caller must not change.

        Args:
            handles: whether the tools take the session as an argument.
            host: a host that shows skills by itself. The tools list only the other skills. If there
                are none, only scripts need tools.
        """
        (snapshot, texts), scripts = self._current(), self._runs_scripts()
        key = scripts, handles, host, client
        if key not in texts.tools:
            overview = _not_shown(texts.overview, snapshot, host)
            limit = characters = self.characters(client)
            if client.list_in == "instructions":
                characters = 0
            keywords: list[str] = []
            if client.searches_tools:
                counted = [snapshot.skills[offer.path] for offer in overview.offers[:_MAX_COUNTED]]
                keywords = _keywords_of(counted, min(limit, OVERVIEW_CHARACTERS) - _ABOUT_SEARCH)
            if scripts and not overview:
                overview, characters = texts.overview, 0
            texts.tools[key] = runtime.definitions(
                overview, characters, scripts=scripts, handles=handles, words=keywords
            )
        return texts.tools[key]

    def shown_part(self, skill: Skill, client: Client = UNKNOWN) -> str | None:
        """Return in words how much of a skill a client's list shows; None if it is not offered."""
        overview = self.overview
        position = next(
            (at for at, offer in enumerate(overview.offers) if offer.path == skill.path), None
        )
        if position is None:
            return None
        characters = self.characters(client)
        if client.list_in == "tools":
            shown = runtime.in_loading(overview, characters)
        else:
            shown = runtime.in_instructions(overview, characters, scripts=self._runs_scripts())
        return runtime.shown_part(overview, shown, position)

    @property
    def overview(self) -> Overview:
        """The skills offered to models now."""
        return self._current()[1].overview

    def location(self, skill: Skill, path: str = SKILL_MD) -> str:
        """Return the URI, or absolute path, of a skill's file, or of its directory for ""."""
        if not self._settings.absolute_paths:
            return uri(skill.path, path)
        folder = self._skill_set.place(skill)
        return f"{folder}/{path}" if path else folder

    def root_dir(self, skill: Skill) -> str:
        """Return the directory of a skill: a local path if the host can use it, else a location."""
        if self._settings.local_root_dirs and skill.origin is None:
            folder = self._skill_set.place(skill)
            if is_utf8(folder):  # JSON cannot encode other paths
                return folder
        return self.location(skill, "")

    def _current(self) -> tuple[Snapshot, _Texts]:
        is_read = self._skill_set.loaded.is_set()
        if is_read:
            self._remembered = None  # the scan has replaced it
        snapshot = self._remembered or self._skill_set.snapshot
        more = not is_read and self._remembered is None
        texts = self._texts.get(snapshot)
        if texts is None or texts.overview.more != more:
            texts = self._texts[snapshot] = self._write(snapshot, more=more)
        return snapshot, texts

    def _write(self, snapshot: Snapshot, *, more: bool) -> _Texts:
        usable = (snapshot.skills[path] for path in snapshot.paths(Standing.LENIENT))
        offered = filter(runtime.is_offered, usable)
        skills = [skill for skill, _ in group_copies(offered)]
        offers = [self._offer(skill, snapshot) for skill in skills]
        tags = {*self._settings.preferred_tags}
        tagged = [skill.path for skill in skills if tags & {*map(str, tags_of(skill.frontmatter))}]
        return _Texts(Overview(offers, more, [*tagged, *self._preferred]), {}, {})

    def _offer(self, skill: Skill, snapshot: Snapshot) -> Offer:
        root, path = self._root_and_path(skill)
        name, description = name_of(skill, snapshot), hidden.strip(skill.description)
        location = self.location(skill) if self._settings.absolute_paths else None
        return Offer(name, description, location, path, root)

    def _root_and_path(self, skill: Skill) -> tuple[str, str]:
        """Return the display name of a skill's root ("" for a single root), and its path."""
        roots = self._skill_set.roots
        if len(roots) == 1:
            return "", skill.path
        root = roots[skill.root]  # only the last part of its path: the rest is private
        if root.origin is not None:
            return identity.shown_origin(root.origin), skill.path
        return basename(root.shown.rstrip("/")) or basename(root.path), skill.path

    # Change notices

    def news(self, since: float) -> str | None:
        """Return one line with the net additions and removals since `since`; None for none.

        `since` is a `time.monotonic` of this process.
        """
        changes, permissions = list(self._changes), permissions_of(self._skill_set)
        balance: Counter[str] = Counter()
        for at, path, step in changes:
            if at > since and (permissions is None or permissions.can_read(path)):
                balance[path] += step
        added = sum(step > 0 for step in balance.values())
        removed = sum(step < 0 for step in balance.values())
        if not added and not removed:
            return None
        is_full = len(changes) == _MAX_KEPT and changes[0][0] > since
        return runtime.change_notice(added, removed, uncounted=is_full)

    def note(self, changes: Changes) -> None:
        """Record the skills that were added and removed."""
        if not self._skill_set.loaded.is_set():
            return  # the first scan finds existing skills, which are not news
        before, after = _offered(changes.before), _offered(changes.after)
        now = time.monotonic()
        self._changes.extend((now, path, -1) for path in before - after)
        self._changes.extend((now, path, 1) for path in after - before)


def _not_shown(overview: Overview, snapshot: Snapshot, host: NativeHost | None) -> Overview:
    """Return the overview without the skills that the host shows by itself."""
    if host is None:
        return overview
    shown = host.shown(snapshot)
    offers = [offer for offer in overview.offers if offer.path not in shown]
    return overview._replace(offers=offers, more=False)


def name_of(skill: Skill, snapshot: Snapshot) -> str:
    """Return the name by which a model loads a skill."""
    return identity.name_of(skill, snapshot, Standing.LENIENT)


def _offered(skills: Mapping[str, Skill]) -> set[str]:
    return {path for path, skill in skills.items() if runtime.is_offered(skill)}


def _keywords_of(skills: Iterable[Skill], characters: int) -> list[str]:
    """Return the keywords that fit: frequent ones of names and tags, then of descriptions."""
    named: Counter[str] = Counter()
    described: Counter[str] = Counter()
    for skill in skills:
        tags = " ".join(map(str, tags_of(skill.frontmatter)))
        named.update({*words_of(f"{skill.name} {tags}")})
        described.update({*words_of(hidden.strip(skill.description))})
    kept = _fitting(named, min(characters, _MAX_NAME_WORDS))
    for word in kept:
        del described[word]
        characters -= len(word) + 2
    return kept + _fitting(described, characters)


def _fitting(counts: Counter[str], characters: int) -> list[str]:
    """Return the most frequent words whose total length fits, counting ", " after each."""
    kept: list[str] = []
    for word, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        if len(word) > 2 and word not in STOP_WORDS:
            characters -= len(word) + 2
            if characters < 0:
                break
            kept.append(word)
    return kept
