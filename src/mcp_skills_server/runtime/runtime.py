"""The `Runtime`: the services that all sessions of a process share, and a factory of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final, Self

from mcp_skills_server.caches import LruCache
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.dialects import runtime
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Changes
from mcp_skills_server.runtime.offering import Offering
from mcp_skills_server.runtime.session import ClosingMixin, Session
from mcp_skills_server.runtime.settings import RuntimeSettings
from mcp_skills_server.telemetry.events import Events

if TYPE_CHECKING:
    from mcp_skills_server.runtime.embeddings.index import Embeddings
    from mcp_skills_server.runtime.scripts.runner import Scripts
    from mcp_skills_server.runtime.scripts.settings import ScriptSettings
    from mcp_skills_server.runtime.search import Search

_MAX_OFFERINGS: Final = 4096
"""The most offerings that are cached, of about a kilobyte each."""


class Runtime(ClosingMixin):
    """A factory of sessions, one per conversation, for a custom agent loop or an MCP server.

    Use it in a `with` or `async with` statement, which removes all work directories at the end.
    `async with` also reads the skills on entry, in a thread.

    Args:
        registry: the skills. The caller keeps ownership: `close` does not stop its watcher.
        settings: the operator's settings; None for the defaults.
        scripts: the settings of script execution; None disables scripts.
        embeddings: the semantic search, started; `close` ends it. None for full text only.

    Raises:
        UsageError: scripts cannot be run with these settings.
    """

    def __init__(
        self,
        registry: Registry,
        settings: RuntimeSettings | None = None,
        *,
        scripts: ScriptSettings | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        self.registry = registry
        self.settings = settings or RuntimeSettings()
        self.events = Events()
        """The events of the server that has this runtime."""
        registry.subscribe(self._emit)  # for good: an attached server runs again after `close`
        self.scripts = self._make_scripts(scripts)
        self._embeddings = embeddings
        self._search: Search | None = None
        self._search_lock = Lock()
        self.whole = Offering(registry, self.settings, self.scripts, self._search_of_all)
        """All skills, as models are offered them."""
        self._unsubscribe: Callable[[], None] = registry.subscribe(self.whole.briefing.note)
        self.offerings = LruCache(self._make_offering, _MAX_OFFERINGS)
        """Sets of skills, as models are offered them."""

    def _make_scripts(self, settings: ScriptSettings | None) -> Scripts | None:
        if settings is None:
            return None
        from mcp_skills_server.runtime.scripts.runner import Scripts

        return Scripts(self.registry, settings, self.events)

    def _emit(self, changes: Changes) -> None:
        if self.registry.loaded.is_set():  # the first scan is not a change
            self.events.emit_changes(changes)

    def _make_offering(self, skill_set: SkillSet) -> Offering:
        if skill_set is self.registry:
            return self.whole
        briefing, search = self.whole.briefing, self._search_of_all
        return Offering(skill_set, self.settings, self.scripts, search, briefing)

    def _search_of_all(self) -> Search:
        from mcp_skills_server.runtime.search import Search  # late: a handshake needs no search

        with self._search_lock:
            if self._search is None:
                self._search = Search(
                    self.registry, self._embeddings, is_stale=self.registry.freshness.is_stale
                )
        return self._search

    def prepare_search(self) -> None:
        """Wait for the first scan, then index the skills, so that no client waits for that."""
        from mcp_skills_server.runtime.search_index import NoFullTextError

        self.registry.loaded.wait()
        with suppress(NoFullTextError):
            self.whole.search.find("skill", 1, runtime.is_offered)

    async def __aenter__(self) -> Self:
        await self.load()
        return self

    async def load(self) -> None:
        """Read the skills in a thread if needed, so that `session` does not block."""
        if not self.registry.loaded.is_set():
            await in_thread(self.registry.load)

    def session(self) -> Session:
        """Return a new session, which the caller binds to a conversation and closes at its end.

        Outside of an event loop this first reads the skills if needed, which blocks.

        Raises:
            UsageError: the skills are unread, and reading them would block this thread's event
                loop. Enter the runtime with `async with`, or await `load`.
        """
        if not self.registry.loaded.is_set():
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # none is running
                self.registry.load()
            else:
                raise UsageError(
                    "Runtime.session: the skills are not read yet; enter the runtime with 'async "
                    "with', or await its load() first"
                )
        return Session(self.whole, hosted=True)

    def close(self) -> None:
        """Remove all work directories, and end the semantic search. Safe to call twice."""
        self._unsubscribe()
        if self._embeddings is not None:
            self._embeddings.close()
        if self.scripts is not None:
            self.scripts.close()
