"""Reload the configuration, the tokens and the lock file on SIGHUP and when one of them changes.

A new version that is broken is one line in the log, and the old one stays. Live options (`Traits`), tokens, grants and
rates change at once; of all else one line says that it takes effect at the next start.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from mcp_skills_server.access.tokens import warn_of_ends
from mcp_skills_server.commands.fields import key_of, traits_of
from mcp_skills_server.commands.logs import set_level
from mcp_skills_server.commands.options import configuration_of, token_lines_of, warn_of_unknown_variables
from mcp_skills_server.commands.printing import and_more
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_skills_server.access.grants import Grant
    from mcp_skills_server.access.quotas import Rates
    from mcp_skills_server.access.tokens import Token, Tokens
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.commands.opening import OpenedRoots

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_DAY_S: Final = 86_400.0
_SETTLE_S: Final = 0.2
"""A file that is being written is read when it has stayed the same for so long."""


@dataclass(frozen=True, slots=True)
class Reload:
    """The result of a reload; the start is the first.

    Attributes:
        at: seconds since the epoch.
        error: why something of the files is not in force; "" where all is.
    """

    at: float
    error: str = ""

    @property
    def line(self) -> str:
        """Return one line for `/readyz?verbose`."""
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.error:
            return f"configuration: refused at {when}: {self.error}"
        return f"configuration: read at {when}"


class Reloader:
    """Follows the files of a running command in a thread of its own.

    It polls their time stamps instead of waiting for events: a mounted secret is a link that moves, and network file
    systems send no events.

    Args:
        context: of the command. A value of its command line or of the environment stays, whatever the file says.
        views: the skills of each principal.
        sources: the roots, whose lock file is read again; None where there are none.
        tokens: those in force, where there may be some.
        rates: those in force, where requests are counted.
    """

    def __init__(
        self,
        context: click.Context,
        views: Views,
        sources: OpenedRoots | None,
        tokens: Tokens | None = None,
        rates: Rates | None = None,
    ) -> None:
        self._context = context
        self._sources = sources
        self._views = views
        self._rates = rates
        above = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
        self._options = {
            each.name or "": each
            for each in context.command.params
            if context.get_parameter_source(each.name or "") not in above
        }
        """The options that the file decides."""
        self._given = context.params
        plain = click.Context(context.command)  # where the file gives no defaults
        self._defaults = {
            name: each.get_default(plain) for name, each in self._options.items() if traits_of(each).is_live
        }
        self._configuration = configuration_of(context)
        self._tokens = tokens
        self._warned = time.monotonic()  # when they were read
        self.last = Reload(time.time())
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._seen = self._look()

    def start(self) -> None:
        """Follow the files until the process ends, and warn of variables that no command reads."""
        warn_of_unknown_variables(self._context)
        threading.Thread(target=self._follow, name="skills-configuration", daemon=True).start()

    def ask(self) -> None:
        """Request a reload and a poll of every source; reentrant, for handlers of signals."""
        self._asked.put(None)  # the lock of an Event is not reentrant

    def reload(self) -> None:
        """Read all files again, and put what is new in force."""
        before, troubles = self._configuration, list[str]()
        if before is not None:
            from mcp_skills_server.commands.config_file import ConfigurationError, read  # not for every start

            try:
                self._configuration = read(before.file, again=True)
            except ConfigurationError as error:
                troubles.append(f"{error}; the configuration stays as it was")
        tokens, wrong = None, ()
        try:
            tokens, wrong = self._new_tokens()
        except UsageError as error:
            troubles.append(f"{error}; the tokens stay as they were")
        if wrong:
            in_force = "all other lines are in force"
            if tokens is None:
                in_force = "the tokens stay as they were"
            troubles.append(f"{wrong[0][1]}{and_more(len(wrong) - 1)}; {in_force}")
        self._swap(tokens, self._new_grants(before))
        for each in troubles:  # once what was taken is in force
            logger.warning("%s", each)
        if before is not None and self._configuration is not None and self._configuration != before:
            self._take(before, self._configuration)
        if self._sources is not None and (refused := self._sources.relock()):
            logger.warning("%s", refused)
            troubles.append(refused)
        if self.last.error and not troubles:
            logger.info("the files are right again, and all that they say is in force")
        self.last = Reload(time.time(), printable(" / ".join(troubles)))

    def _swap(self, tokens: list[Token] | None, grants: Sequence[Grant] | None) -> None:
        """Replace tokens and grants atomically. None keeps the current one."""

        def swap() -> None:
            if tokens is not None and self._tokens is not None:
                self._tokens.replace(tokens)
            if grants is not None:
                self._views.replace(grants)

        if tokens is not None or grants is not None:
            at_once = swap if self._tokens is None else partial(self._tokens.between_requests, swap)
            at_once()
        if tokens is not None:
            logger.info("the tokens were read again; there are %s of them", len(tokens))
        if grants is not None:
            logger.info("the grants were read again; there are %d of them", len(grants))

    def _value(self, name: str, configuration: Configuration | None) -> Any:
        """Return the value of a live option under a configuration."""
        if name not in self._options:
            return self._given.get(name)
        if configuration is None:
            return self._defaults[name]
        return configuration.values.get(name, self._defaults[name])

    def _new_grants(self, before: Configuration | None) -> Sequence[Grant] | None:
        """Return the grants of the file if they have changed; None too where there were none."""
        now = self._configuration
        if before is None or now is None or before.grants is None or before.grants == now.grants:
            return None
        return now.grants

    def _new_tokens(self) -> tuple[list[Token] | None, Sequence[tuple[str, str]]]:
        """Return the tokens of the file, None if they are those in force, and the lines that are wrong."""
        if self._tokens is None:
            return None, ()
        file = self._value("token_file", self._configuration)
        lines = token_lines_of(file, self._value("tokens", self._configuration), again=True)
        found = lines.after(self._tokens)
        if not found and not lines.wrong and not self._tokens:
            return None, ()
        if not found or not self._tokens:
            lines.checked()
            raise UsageError("whether tokens are wanted takes effect at the next start")
        warn_of_ends(found, time.time())
        if {*self._tokens} == {*found}:
            return None, lines.wrong
        return found, lines.wrong

    def _take(self, before: Configuration, now: Configuration) -> None:
        if self._value("log_level", before) != (level := self._value("log_level", now)):
            set_level(level)
        logger.info("%s was read again", now.file)
        mirrors = self._sources and self._sources.mirrors
        if mirrors is not None:
            roots = () if "roots" in self._options else self._given["roots"]
            for root in {*before.values.get("roots", ()), *now.values.get("roots", ()), *roots}:
                rules = now.rules_of(root)
                mirrors.set_refresh(root, (rules and rules.refresh_s) or self._value("refresh", now))
        later = sorted(
            key_of(each)
            for name, each in self._options.items()
            if before.values.get(name) != now.values.get(name) and not traits_of(each).is_live
        )
        if _without_refresh(before) != _without_refresh(now):
            later.append("source")
        if (before.grants is None) != (now.grants is None):
            later.append("grant")
        if before.oauth != now.oauth:
            later.append("oauth")
        if self._rates is not None and before.quotas != now.quotas:
            self._rates.replace(now.quotas)
            if before.quotas.lasting != now.quotas.lasting:
                later.append("quota")
        if later:
            logger.warning("%s: %s: this takes effect at the next start", now.file, ", ".join(later))

    def _warn_of_ends(self) -> None:
        """Warn of tokens that expire soon, once a day."""
        if self._tokens is not None and time.monotonic() - self._warned > _DAY_S:
            self._warned = time.monotonic()
            warn_of_ends(self._tokens, time.time())

    @property
    def has_files(self) -> bool:
        """Tell whether there is any file to follow."""
        return bool(self._seen)

    def _look(self) -> list[tuple[int, ...] | None]:
        """Return a stat signature of each file; None for one that is missing."""
        files = [self._configuration.file] if self._configuration is not None else []
        if self._tokens is not None and (file := self._value("token_file", self._configuration)) is not None:
            files.append(file)
        if self._sources is not None and self._sources.lock is not None:
            files.append(self._sources.lock)
        return [_signature(each) for each in files]

    def _follow(self) -> None:
        while True:
            asked = True
            try:
                self._asked.get(timeout=_LOOK_S if self._seen or self._tokens else None)
            except Empty:
                asked = False
                self._warn_of_ends()
                now = self._look()
                if now == self._seen:
                    continue
                while True:
                    try:
                        self._asked.get(timeout=_SETTLE_S)
                        break
                    except Empty:
                        before, now = now, self._look()
                        if before == now:
                            break
            try:
                self._seen = self._look()  # before they are read, so that a later change is another one
                self.reload()
                if self._sources is not None and asked:
                    self._sources.look()
            except Exception:  # a bug must not end the looking
                logger.exception("the configuration could not be read again")


def _signature(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _without_refresh(configuration: Configuration) -> dict[str, object]:
    return {root: replace(rules, refresh_s=None) for root, rules in configuration.sources.items()}
