"""Roots that are not folders: sites that publish skills, and archives. Each is given to the registry as a folder.

A site is fetched into a cache of its own and kept current in the background, as often as its cache headers ask for;
what fails leaves the last good copy in service. The registry's watch sees what changes, so that clients are told of it
as of any edit.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import IndexRefusedError
from mcp_skills_server.errors import SkillsServerError, UsageError
from mcp_skills_server.format import archive
from mcp_skills_server.format.uris import bare
from mcp_skills_server.sources.faults import UnacceptableError, UnreachableError
from mcp_skills_server.sources.refresh import Report, Settings, refresh
from mcp_skills_server.sources.unpacked import Unpacked
from mcp_skills_server.sources.urls import check, shown

logger = logging.getLogger(__name__)

_ARCHIVE_S: Final = 1.0
"""Between two looks at an archive."""
_FIRST_RETRY_S: Final = 30.0
_LAST_RETRY_S: Final = 3600.0
_NAMES_TOLD: Final = 10


def default_cache() -> Path:
    """Where fetched skills are kept unless the operator says otherwise: the user's cache directory."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~\\AppData\\Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mcp-skills-server"


@dataclass(frozen=True, slots=True)
class SiteState:
    """How it stands with a root that is a site.

    Attributes:
        name: its address, without what may be a secret.
        ready: it has answered once, or a copy of it was kept.
        trouble: why it could not be fetched the last time, in one line; None if it could. Where it is not ready there
            always is one.
    """

    name: str
    ready: bool
    trouble: str | None


class _NotFetchedError(SkillsServerError):
    """A site cannot be had now; the message says why."""


class Supply:
    """The sites and archives among the roots.

    Args:
        cache: the directory for copies of sites.
        settings: how sites are fetched.
        hidden: skills in dot folders of archives are served, too.
    """

    def __init__(self, cache: Path, settings: Settings | None = None, *, hidden: bool = False) -> None:
        self._hidden = hidden
        # The cache is ours: what was changed in it is put right, what the index no longer has is gone.
        self._settings = replace(settings or Settings(), force=True, prune=True)
        self._cache = cache
        self._sites: dict[str, Path] = {}
        self._archives: list[Unpacked] = []
        self._stop = threading.Event()
        self._told: dict[str, tuple[str, ...]] = {}
        self._ready: set[str] = set()
        self._arrived: Callable[[str], object] = str
        self._trouble: dict[str, str] = {}

    def root(self, given: str) -> str | MirroredRoot:
        """What to give the registry for a root: itself for a folder, the folder with its copies for any other.

        Raises:
            UsageError: an archive is refused, an address is none, or the cache cannot be written.
        """
        if wellknown.is_site(given):
            check(given)
            self._sites[given] = self._folder(given)
            if _has_skills(self._sites[given]):
                self._ready.add(given)
            return MirroredRoot(str(self._sites[given]), bare(given))
        if archive.is_archive(given) and os.path.isfile(given):
            unpacked = Unpacked(given, hidden=self._hidden)
            self._archives.append(unpacked)
            return MirroredRoot(unpacked.folder, given)
        return given

    def sites(self) -> list[SiteState]:
        """The state of every site, from any thread."""
        out: list[SiteState] = []
        for site in self._sites:
            ready, trouble = site in self._ready, self._trouble.get(site)
            out.append(SiteState(bare(site), ready, trouble if ready else trouble or "not fetched yet"))
        return out

    def fetch(self) -> None:
        """Fetch every site now, whatever its cache headers say, and wait for it.

        Raises:
            UsageError: a site cannot be fetched, and there is no copy of it.
        """

        async def all_sites() -> None:
            for site, folder in self._sites.items():
                try:
                    await self._refresh(site, folder, revalidate=True)
                except UsageError:
                    if not _has_skills(folder):
                        raise
                except _NotFetchedError as trouble:
                    if not _has_skills(folder):
                        raise UsageError(f"{shown(site)}: {trouble}; there is no copy of it") from None
                    self._tell(site, (f"{trouble}; serving the last copy",))

        if self._sites:
            anyio.run(all_sites)

    def start(self, arrived: Callable[[str], object] | None = None) -> None:
        """Keep everything current, in a thread of its own, until `stop`.

        `arrived` is called in another thread with the folder of a site when it was fetched for the first time, and the
        site is ready only after it: a watch would need a moment to see what came.
        """
        if arrived is not None:
            self._arrived = arrived
        if self._sites or self._archives:
            threading.Thread(target=anyio.run, args=(self._follow,), name="skills-supply", daemon=True).start()

    def stop(self) -> None:
        """Fetch no more, and remove what archives were unpacked to."""
        self._stop.set()
        for unpacked in self._archives:
            unpacked.close()

    def _folder(self, site: str) -> Path:
        plain = re.sub(r"[^a-z0-9.-]+", "-", bare(site).lower().partition("://")[2])[:60].strip("-.")
        folder = self._cache / "sites" / f"{plain}-{hashlib.sha256(site.encode()).hexdigest()[:12]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            said = error.strerror or error
            raise UsageError(f"{folder}: the cache cannot be written ({said}); choose another --cache-dir") from None
        return folder

    async def _follow(self) -> None:
        async with anyio.create_task_group() as tasks:
            for site, folder in self._sites.items():
                tasks.start_soon(self._follow_site, site, folder)
            if self._archives:
                tasks.start_soon(self._follow_archives)

    async def _follow_archives(self) -> None:
        while await self._goes_on(_ARCHIVE_S):
            for unpacked in self._archives:
                await to_thread.run_sync(unpacked.refresh)

    async def _follow_site(self, site: str, folder: Path) -> None:
        retry = _FIRST_RETRY_S
        wait = 0.0
        # Not all at the same moment, when many servers were started together.
        while await self._goes_on(wait * random.uniform(1, 1.1)):  # noqa: S311
            wait = retry
            try:
                report = await self._refresh(site, folder)
            except UsageError as error:  # another server fetches into the same cache, and we shall see what it brings
                logger.debug("%s: %s", shown(site), error)
                self._failed(site, folder, str(error))
            except _NotFetchedError as trouble:
                self._failed(site, folder, str(trouble))
                last = "serving the last copy" if _has_skills(folder) else "there is no copy of it yet"
                self._tell(site, (f"{trouble}; {last}",))
            else:
                wait, retry = report.next_check_s, _FIRST_RETRY_S
                continue
            retry = min(retry * 2, _LAST_RETRY_S)

    async def _goes_on(self, seconds: float) -> bool:
        return not await to_thread.run_sync(self._stop.wait, seconds, abandon_on_cancel=True)

    async def _refresh(self, site: str, folder: Path, *, revalidate: bool = False) -> Report:
        """Bring the copy of a site up to date.

        Raises:
            _NotFetchedError: it cannot be had now.
            UsageError: the folder cannot be written, or somebody else writes there.
        """
        try:
            report = await refresh(site, folder, replace(self._settings, revalidate=revalidate))
        except (IndexRefusedError, UnacceptableError, UnreachableError) as error:
            raise _NotFetchedError(str(error)) from None
        except UsageError:
            raise
        except Exception as error:  # a bug must not end the others' service
            logger.exception("%s: could not be fetched", shown(site))
            raise _NotFetchedError("it could not be fetched") from error
        self._trouble.pop(site, None)
        if site not in self._ready:
            await to_thread.run_sync(self._arrived, str(folder))
            self._ready.add(site)
        self._tell(site, (*report.warnings, *map(str, report.refused)))
        changed = [*report.added, *report.updated, *report.pruned]
        if changed:
            more = f" and {len(changed) - _NAMES_TOLD} more" if len(changed) > _NAMES_TOLD else ""
            logger.info("%s: fetched %s%s", shown(site), ", ".join(changed[:_NAMES_TOLD]), more)
        return report

    def _failed(self, site: str, folder: Path, why: str) -> None:
        self._trouble[site] = why
        if _has_skills(folder):  # what another server fetched into the same cache
            self._ready.add(site)

    def _tell(self, site: str, words: tuple[str, ...]) -> None:
        """Log what is wrong, once for as long as it stays the same."""
        if self._told.get(site, ()) != words:
            self._told[site] = words
            for each in words:
                logger.warning("%s: %s", shown(site), each)


def _has_skills(folder: Path) -> bool:
    return any(not each.name.startswith(".") for each in folder.iterdir())
