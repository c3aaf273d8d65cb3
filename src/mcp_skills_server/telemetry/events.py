"""What happened, as one event for each request and for each difference of the catalogue, and who reads it.

Events are written where requests enter and where the catalogue changes; logs, audit and metrics are readers. Without a
reader nothing is gathered. An event holds no content, no session handle and no token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, TypeAlias

from mcp_skills_server.errors import REPEATS, RequestError, clipped
from mcp_skills_server.model import SKILL_MD, Changes, Skill

logger = logging.getLogger(__name__)

Outcome: TypeAlias = Literal["ok", "refused", "failed", "cancelled", "appeared", "changed", "vanished"]
CATALOGUE: Final = "catalogue"
"""The `protocol` of an event that no request caused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened.

    Attributes:
        time: when it began, in seconds since 1970.
        protocol: "mcp" or "skills-protocol"; "catalogue" for a difference of the catalogue.
        method: which one was called, at most 200 characters of what the client says; "" for a difference.
        outcome: of a request "ok", "refused" for what was wrong with it, "failed" for a bug, or "cancelled"; of a
            skill in the catalogue "appeared", "changed" or "vanished".
        principal: the name that the client proved, None where nobody has to.
        era: "legacy" or "modern" for MCP, else None.
        host: what the client calls itself, at most 200 characters, None where it does not say.
        skills: paths of the skills that it was about, in the order in which they were looked at.
        digests: of each of these the digest of the file that was read, of its SKILL.md where it was the whole skill;
            "" where it is not known.
        milliseconds: how long it took.
        bytes: bytes of skill files that were read for the answer.
    """

    time: float
    protocol: str
    method: str
    outcome: Outcome
    principal: str | None = None
    era: str | None = None
    host: str | None = None
    skills: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    milliseconds: float = 0.0
    bytes: int = 0


Reader: TypeAlias = Callable[[Event], None]
_readers: dict[object, Reader] = {}


def subscribe(reader: Reader) -> Callable[[], None]:
    """Have `reader` called with each event from now on, in the thread where it happens; it must return at once.

    Returns what ends the subscription.
    """
    token = object()
    _readers[token] = reader
    return lambda: _readers.pop(token, None) and None


def has_readers() -> bool:
    """Whether anybody reads events."""
    return bool(_readers)


def emit(event: Event) -> None:
    """Hand an event to every reader."""
    for reader in list(_readers.values()):
        try:
            reader(event)
        except Exception:  # a bug of one reader must not cost the others the event, nor the client its answer
            logger.exception("a reader of events failed", extra=REPEATS)


def emit_changes(changes: Changes) -> None:
    """Emit an event for each skill that differs."""
    if not _readers:
        return
    now = time.time()
    for path, skill in sorted({**changes.before, **changes.after}.items()):
        outcome: Outcome = "changed" if path in changes.before else "appeared"
        outcome = outcome if path in changes.after else "vanished"
        file = skill.files.get(SKILL_MD)  # which a skill that cannot be used need not have
        digest = (file.digest if file is not None else None) or ""
        emit(Event(time=now, protocol=CATALOGUE, method="", outcome=outcome, skills=(path,), digests=(digest,)))


class Request:
    """A request that is being answered; entered around the work, it emits the event at its end.

    An exception decides the outcome unless `outcome` was set: RequestError is "refused", another Exception "failed",
    and whatever else ends the work has it "cancelled".
    """

    __slots__ = ("_begun", "_bytes", "_fields", "_skills", "_token", "outcome")

    def __init__(
        self, protocol: str, method: str, *, principal: str | None, era: str | None = None, host: str | None = None
    ) -> None:
        self._fields = protocol, clipped(method), principal, era, None if host is None else clipped(host)
        self._skills: dict[str, str] = {}
        self._bytes = 0
        self.outcome: Outcome | None = None

    def __enter__(self) -> Request:
        self._begun = time.time(), time.perf_counter()
        self._token: Token[Request | None] = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        _current.reset(self._token)
        protocol, method, principal, era, host = self._fields
        began, started = self._begun
        emit(
            Event(
                time=began,
                protocol=protocol,
                method=method,
                outcome=self.outcome or _outcome_of(error),
                principal=principal,
                era=era,
                host=host,
                skills=tuple(self._skills),
                digests=tuple(self._skills.values()),
                milliseconds=(time.perf_counter() - started) * 1000,
                bytes=self._bytes,
            )
        )

    def add(self, skill: str, digest: str | None, size: int) -> None:
        """A file of a skill was read for the answer."""
        self._skills[skill] = digest or ""
        self._bytes += size

    def begin_again(self) -> None:
        """The work starts from its beginning; what was read so far does not count."""
        self._skills.clear()
        self._bytes = 0


def observe(protocol: str, method: str, *, principal: str | None = None) -> AbstractContextManager[Request | None]:
    """A `Request` to enter around the work, or nothing while nobody reads events."""
    return Request(protocol, method, principal=principal) if _readers else nullcontext()


_current: Final[ContextVar[Request | None]] = ContextVar("request", default=None)


def was_read(skill: Skill, path: str) -> None:
    """A file of a skill was read for the answer to the current request."""
    request = _current.get()
    if request is not None:
        file = skill.files[path]
        request.add(skill.path, file.digest, file.size)


def concerns(skills: Iterable[Skill]) -> None:
    """The current request is about these skills, whose files are not read."""
    request = _current.get()
    if request is not None:
        for skill in skills:
            request.add(skill.path, skill.files[SKILL_MD].digest, 0)


def begins_again() -> None:
    """The current request is answered anew, because a file changed while it was read."""
    request = _current.get()
    if request is not None:
        request.begin_again()


def _outcome_of(error: BaseException | None) -> Outcome:
    if error is None:
        return "ok"
    if isinstance(error, RequestError):
        return "refused"
    return "failed" if isinstance(error, Exception) else "cancelled"
