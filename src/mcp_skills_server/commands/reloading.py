"""Reload the configuration and the files that it names on SIGHUP and when one of them changes.

A reload parses the command line again with the current file, and compares the options. A broken
file is logged in one line, and the old values stay. Live options (`Traits`), tokens, grants and
quotas change at once; all other changes are logged in one line, to take effect at the next start.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from mcp_skills_server.access.tokens import warn_of_expiry
from mcp_skills_server.commands.fields import key_of, parsed_again, traits_of
from mcp_skills_server.commands.logs import set_level
from mcp_skills_server.commands.options import token_lines_of, warn_of_unknown_variables
from mcp_skills_server.commands.printing import more_suffix
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable

if TYPE_CHECKING:
    from mcp_skills_server.access.grants import Grant
    from mcp_skills_server.access.tokens import Token
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.commands.features.services import HttpServices
    from mcp_skills_server.commands.opening import OpenedRoots

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.5
"""Seconds between polls; a changed file is read once it is equal at two polls (debounce)."""
_MAX_WAITED: Final = 4
"""Polls for which a changing file can hold up all changes: none may keep a revoked token alive."""
_DAY_S: Final = 86_400.0
_STOP_S: Final = 1.0
_RETRY_S: Final = 30.0
"""Seconds between attempts to fetch what the lock file names."""
_FileStates: TypeAlias = list[tuple[int, ...] | None]


class Reloader:
    """Reloader of the files of a running command, in a thread of its own.

    It polls their time stamps instead of waiting for events: a mounted secret is a link that moves,
    and network file systems send no events.

    Args:
        context: the context of the command, whose command line and environment override the file.
        opened: the roots, whose lock file is reread.
        http: the services whose tokens and quotas it replaces; None over pipes.

    Attributes:
        read_at: when the files were last read, in seconds since the epoch.
        refused: why part of the files is not in force; "" if all is.
    """

    def __init__(
        self,
        context: click.Context,
        views: Views,
        opened: OpenedRoots,
        http: HttpServices | None = None,
    ) -> None:
        self._context = context
        self._opened = opened
        self._views = views
        self._http = http
        self._warned = self.read_at = time.time()
        self.refused = ""
        self._retry_at = math.inf
        self._requests: SimpleQueue[None] = SimpleQueue()
        self._is_stopped = False
        self._thread = threading.Thread(
            target=self._follow, name="skills-configuration", daemon=True
        )
        self._read_state = self._stat_files()

    def start(self) -> None:
        """Follow the files, and warn of variables that no command reads."""
        warn_of_unknown_variables(self._context)
        self._thread.start()

    def stop(self) -> None:
        """Stop to follow the files, and wait for a reload under way, but not for a slow fetch."""
        self._is_stopped = True
        self.request_reload()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def request_reload(self) -> None:
        """Request a reload and a poll of every source; reentrant, for handlers of signals."""
        self._requests.put(None)  # the lock of an Event is not reentrant

    def state(self) -> str:
        """Return one line for `/readyz?verbose`, "" if there is no file to follow."""
        if not self.has_files:
            return ""
        when = datetime.fromtimestamp(self.read_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.refused:
            return f"configuration: refused at {when}: {self.refused}"
        return f"configuration: read at {when}"

    def reload(self) -> None:
        """Reread all files, and apply what changed."""
        before, troubles = self._context, list[str]()
        try:
            self._context = parsed_again(before)
        except UsageError as error:
            troubles.append(f"{error}; the configuration stays as it was")
        except click.ClickException as error:
            troubles.append(f"{error.format_message()}; the configuration stays as it was")
        was, now = before.params["config"], self._context.params["config"]
        new_tokens: list[Token] | None = None
        wrong: Sequence[tuple[str, str]] = ()
        try:
            new_tokens, wrong = self._new_tokens()
        except UsageError as error:
            troubles.append(f"{error}; the tokens stay as they were")
        if wrong:
            in_force = "all other lines are in force"
            if new_tokens is None:
                in_force = "the tokens stay as they were"
            troubles.append(f"{wrong[0][1]}{more_suffix(len(wrong) - 1)}; {in_force}")
        grants: Sequence[Grant] | None = None
        if now and self._views.grants not in (None, now.grants):
            grants = now.grants
        self._swap(new_tokens, grants)
        for trouble in troubles:  # logged after the valid changes are in force
            logger.warning("%s", trouble)
        if was and now and was != now:
            self._apply(before, was, now)
        advisories = before.params["advisories"]
        for refused in filter(None, (self._relock(), self._opened.reread_advisories(advisories))):
            logger.warning("%s", refused)
            troubles.append(refused)
        if self.refused and not troubles:
            logger.info("the files are valid again, and fully in force")
        self.read_at, self.refused = time.time(), printable(" / ".join(troubles))

    def _relock(self) -> str:
        """Serve the lock file as it is now, or return the reason and retry later."""
        self._retry_at = math.inf
        if refused := self._opened.relock():
            self._retry_at = time.monotonic() + _RETRY_S
        return refused

    def _swap(self, tokens: list[Token] | None, grants: Sequence[Grant] | None) -> None:
        """Replace tokens and grants atomically. None keeps the current one."""

        def swap() -> None:
            if tokens is not None and self._http is not None:
                self._http.front.responses.cancel(self._http.tokens.replace(tokens))
            if grants is not None:
                self._views.replace(grants)

        if self._http is None:
            swap()
        elif tokens is not None or grants is not None:
            self._http.front.responses.between_requests(swap)
        if tokens is not None:
            logger.info("the tokens were reloaded; there are %s of them", len(tokens))
        if grants is not None:
            logger.info("the grants were reloaded; there are %d of them", len(grants))

    def _new_tokens(self) -> tuple[list[Token] | None, Sequence[tuple[str, str]]]:
        """Return the tokens of the file, None if they are unchanged, and its invalid lines."""
        if self._http is None:
            return None, ()
        params, current = self._context.params, self._http.tokens
        lines = token_lines_of(params["token_file"], params["tokens"], again=True)
        tokens = lines.merge(current)
        if not tokens and not lines.invalid and not current:
            return None, ()
        if not tokens or not current:
            lines.require_valid()
            raise UsageError("turning tokens on or off takes effect at the next start")
        warn_of_expiry(tokens, time.time())
        if {*current} == {*tokens}:
            return None, lines.invalid
        return tokens, lines.invalid

    def _apply(self, before: click.Context, was: Configuration, now: Configuration) -> None:
        """Apply the live options and the quotas, and log the changes that need a restart."""
        old, new = before.params, self._context.params
        at_restart = sorted(
            key_of(param)
            for param in before.command.params
            if traits_of(param).in_file
            and not traits_of(param).is_live
            and old[param.name or ""] != new[param.name or ""]
        )
        if old["log_level"] != new["log_level"]:
            set_level(new["log_level"])
        logger.info("%s was reloaded", now.file)
        if (mirrors := self._opened.mirrors) is not None:
            for root in {*old["roots"], *new["roots"]}:
                rules = now.rules_of(root)
                mirrors.set_refresh(root, (rules and rules.refresh_s) or new["refresh"])
        if _without_refresh(was) != _without_refresh(now):
            at_restart.append("source")
        if was.grants != now.grants and None in (now.grants, self._views.grants):
            at_restart.append("grant")
        if was.oauth != now.oauth:
            at_restart.append("oauth")
        if self._http is not None:
            self._http.front.limits.quotas.replace(now.quotas)
        if at_restart:
            keys = ", ".join(at_restart)
            logger.warning("%s: %s: this takes effect at the next start", now.file, keys)

    @property
    def has_files(self) -> bool:
        """True if there is any file to follow."""
        return bool(self._read_state)

    def _stat_files(self) -> _FileStates:
        """Return a stat signature of each file; None for one that is missing."""
        params = self._context.params
        files = [params["config"] and params["config"].file, self._opened.lock]
        files.append(params["advisories"])
        if self._http is not None:
            files.append(params["token_file"])
        return [_signature(file) for file in files if file]

    def _follow(self) -> None:
        polled, waited = self._read_state, 0
        tokens: Collection[Token] = ()
        if self._http is not None:
            tokens = self._http.tokens  # the live collection, which a reload changes
        while True:
            try:
                self._requests.get(timeout=_POLL_S if self._read_state or tokens else None)
                is_requested = True
            except Empty:  # the next poll of the files is due
                is_requested = False
            if self._is_stopped:
                return
            # stat before reading, so that a write in between counts as another change
            previous, polled = polled, self._stat_files()
            waited = waited + 1 if polled != self._read_state else 0
            is_settled = polled == previous or waited > _MAX_WAITED
            if time.time() - self._warned > _DAY_S:
                self._warned = time.time()
                warn_of_expiry(tokens, self._warned)
            try:
                if not is_requested and not self._is_due(polled, is_settled=is_settled):
                    continue
                self._read_state = polled
                self.reload()
                if is_requested:
                    self._opened.poll_now()
            except Exception:  # a bug must not end the polling
                logger.exception("the configuration could not be reloaded")

    def _is_due(self, polled: _FileStates, *, is_settled: bool) -> bool:
        """Tell whether to reload after polls of the files, or after a late fetch of the lock's.

        The fetch may block for long, so it is never tried while a change waits to be read.
        """
        if polled != self._read_state:
            return is_settled  # otherwise a file is still changing
        return time.monotonic() >= self._retry_at and not self._relock()


def _signature(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _without_refresh(configuration: Configuration) -> dict[str, object]:
    return {root: replace(rules, refresh_s=None) for root, rules in configuration.sources.items()}
