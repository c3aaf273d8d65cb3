"""Publish/subscribe of changes of the catalogue, in their order."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mcp_skills_server.model import Changes

logger = logging.getLogger(__name__)


class Listeners:
    """The subscribers of a registry. `notify` and `notify_deferred` are called under the registry's lock."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[Callable[[Changes], None], bool]] = {}
        self._deferred = Changes({}, {})

    def __len__(self) -> int:
        return len(self._listeners)

    def subscribe(self, listener: Callable[[Changes], None], *, problems: bool) -> Callable[[], None]:
        """Call it with each difference; with `problems` also when only those differ. Returns what ends that."""
        token = object()
        self._listeners[token] = listener, problems
        return lambda: self._listeners.pop(token, None) and None

    def notify(self, changes: Changes, *, first: bool = False, defer: bool = False) -> None:
        """Call the listeners with this difference and with what was deferred, or defer it, too.

        Nothing is deferred where no skill differs. After the first scan all are called, whatever it found.
        """
        if self._deferred:
            changes, self._deferred = self._deferred.then(changes), Changes({}, {})
        if changes and defer:
            self._deferred = changes
            return
        for listener, problems in list(self._listeners.values()):
            if not (changes or first or problems):
                continue
            try:
                listener(changes)
            except Exception:  # one listener's bug must not cost the others their news
                logger.exception("a listener failed")

    def notify_deferred(self) -> None:
        """Call the listeners with what was deferred, if anything was."""
        if self._deferred:
            self.notify(Changes({}, {}))
