"""Publish/subscribe of a server's events: one for each request and each change of a skill.

Subscribers (readers) are the log, the audit log, usage, metrics, traces and the page. Each server
has its own `Events`; a context variable holds those of the current request. An event holds no
content, session handle or token, and search text only if the operator keeps it. The size of the W3C
Trace Context is limited here, the reader validates it, and baggage is ignored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from mcp_skills_server.errors import REPEATS, RequestError, clipped
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import SKILL_MD, Changes, Skill
from mcp_skills_server.model.skill import whole_digest

logger = logging.getLogger(__name__)

Outcome: TypeAlias = Literal[
    "ok", "refused", "failed", "cancelled", "begun", "appeared", "changed", "vanished"
]
Action: TypeAlias = Literal[
    "", "load", "read", "run", "dropped", "propose", "approve", "reject", "switch-on", "switch-off"
]
PROPOSING: Final = frozenset(("propose", "approve", "reject"))
"""Actions on proposals."""
NO_USES: Final = frozenset(("", *PROPOSING, "switch-on", "switch-off"))
"""Actions that are not uses of a skill."""
CATALOGUE: Final = "catalogue"
"""The `protocol` of an event that no request caused."""
LIBRARY: Final = "library"
"""The `protocol` of a run that no request caused."""
COMMAND: Final = "command"
"""The `protocol` of a decision on a proposal on the command line."""
PAGE: Final = "page"
"""The `protocol` of the page for browsers, whose reads do not count as uses."""

_PARENT: Final = "traceparent"
_STATE: Final = "tracestate"
_CARRIED: Final = frozenset((_PARENT.encode(), _STATE.encode()))
_MAX_LENGTH: Final = 512
"""Most characters of a header; W3C Trace Context requires support for this many."""
_TARGETED: Final = frozenset(("tools/call", "prompts/get"))

Carrier = dict[str, str]
"""The headers `traceparent` and optionally `tracestate`; empty without a trace context."""


class Trace(NamedTuple):
    """The trace context and span attributes of a request. Texts are clipped; "" for none."""

    message: Carrier  # from `_meta` of the message
    http: Carrier  # from the headers of the HTTP request
    id: str = ""  # of the message
    target: str = ""  # the requested tool or prompt
    version: str = ""  # the negotiated revision of MCP


http_carrier: Final[ContextVar[Carrier]] = ContextVar("http_carrier")
"""The trace context from the headers of the current HTTP request."""


def carrier_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> Carrier:
    """Return the trace context of HTTP headers, whose names must be in lower case."""
    carrier: dict[str, str] = {}
    for name, value in headers:
        if name in _CARRIED:
            carrier[name.decode("latin-1")] = value.decode("latin-1")
    return _carrier(carrier)


def trace_of(
    method: str,
    params: Mapping[str, Any] | None = None,
    id_: object = None,
    http: Carrier | None = None,
    *,
    version: str = "",
) -> Trace:
    """Return the trace context and attributes of a request, from its raw parameters and message id.

    `http` is the trace context of the headers; it defaults to that of the current HTTP request.
    """
    given = params or {}
    meta, name = given.get("_meta"), given.get("name")
    message = _carrier(mapping(meta))
    if http is None:
        http = http_carrier.get({})
    id_text = target = ""
    if id_ is not None:
        id_text = clipped(str(id_))
    if method in _TARGETED and isinstance(name, str):
        target = clipped(name)
    return Trace(message, http, id_text, target, version)


def _carrier(fields: Mapping[str, Any]) -> Carrier:
    parent, state = fields.get(_PARENT), fields.get(_STATE)
    if not isinstance(parent, str) or len(parent) > _MAX_LENGTH:
        return {}
    if not isinstance(state, str) or len(state) > _MAX_LENGTH:
        return {_PARENT: parent}
    return {_PARENT: parent, _STATE: state}


class NotRecordedError(RequestError):
    """Raised by a reader that cannot record a run or read before it begins; this prevents it."""


class Use(NamedTuple):
    """The use of a file of a skill.

    An action is "load" of a SKILL.md, "read" of another file, "run" of a script, "dropped" for a
    skill that was unloaded before any other use, what was done with a proposal, or "" for a request
    about the skill that reads no file.
    """

    action: Action
    skill: str  # its path
    file: str  # its path in the skill, or the id of a proposal
    digest: str
    """Of the file as read; of all files for a run; of the SKILL.md that a proposal changes; "" if
    unknown."""
    whole: str = ""
    """The digest of all files of the skill, of a load or read; "" if unknown."""


class _Principal(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def label(self) -> str: ...


class Event(NamedTuple):
    """A request, a run, a decision on a proposal, or a change of a skill in the catalogue.

    The protocol is "mcp", "skills-protocol", "discovery", `PAGE`, or "http" for a refusal before
    any of them; without a request it is `CATALOGUE`, `LIBRARY` or `COMMAND`. The outcome is "ok",
    "refused" for a fault of the request, "failed" for a bug, "cancelled", "begun" for a run or read
    that is about to start, or what happened to a skill. Texts of clients are clipped.
    """

    time: float  # of the start, in seconds since 1970
    protocol: str
    method: str  # as the client sent it; "" for a change
    outcome: Outcome
    principal: str | None = None  # `id` of the authenticated principal
    address: str | None = None  # network address of the client
    era: str | None = None  # of MCP
    host: str | None = None  # name of the host program as the client sent it
    uses: tuple[Use, ...] = ()  # in order
    reason: str = ""  # of a refusal before any protocol
    milliseconds: float = 0.0
    bytes: int = 0  # of skill files that were read for the response
    found: int | None = None  # number of skills that a search found
    question: str = ""  # text of a search, for readers that subscribed to it
    request: str | None = None  # id of the HTTP request, which the response carries
    code: int | None = None  # of the JSON-RPC error in the response
    trace: Trace = Trace({}, {})
    label: str = ""  # readable name of the principal from its issuer
    proposer: str = ""  # author of the proposal that is decided on

    @property
    def skills(self) -> tuple[str, ...]:
        """Return the distinct paths of the used skills, in order of first use."""
        return tuple(dict.fromkeys(use.skill for use in self.uses))

    @property
    def runs_script(self) -> bool:
        """Return whether a script is about to run, or ran; it may have failed."""
        return any(use.action == "run" for use in self.uses)

    def counts(self, use: Use) -> bool:
        """Return whether this event adds a use to statistics: a run at its start, others after."""
        if use.action == "run":
            return self.outcome == "begun"
        return self.outcome == "ok" or (self.runs_script and self.outcome != "begun")


Reader: TypeAlias = Callable[[Event], None]


class _Subscription(NamedTuple):
    reader: Reader
    begun_reads: bool
    questions: bool


request_id: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The id of the current HTTP request."""


def _event(
    protocol: str, method: str, outcome: Outcome, principal: _Principal | None = None, **more: Any
) -> Event:
    """Return an event that begins now, with the id of the current HTTP request."""
    if principal is not None:
        more |= {"principal": principal.id, "label": principal.label}
    more["request"] = request_id.get()
    return Event(time.time(), protocol, clipped(method), outcome, **more)


class Events:
    """A publisher of the events of one server."""

    def __init__(self) -> None:
        self._subscriptions: dict[object, _Subscription] = {}

    @contextmanager
    def serving(self) -> Generator[None]:
        """Publish the events of all requests in this context through this object."""
        token = _serving.set(self)
        try:
            yield
        finally:
            _serving.reset(token)

    def subscribe(
        self, reader: Reader, *, begun_reads: bool = False, questions: bool = False
    ) -> Callable[[], None]:
        """Call `reader` with each event, in its thread; return a function that ends this.

        The reader must return at once. Its exceptions are logged, except NotRecordedError for a run
        or read that is about to start, which refuses it.

        Args:
            reader: takes each event.
            begun_reads: also call it, with outcome "begun", before the content of a file is sent.
            questions: let its events hold the text of searches.
        """
        token = object()
        self._subscriptions[token] = _Subscription(reader, begun_reads, questions)
        return lambda: self._subscriptions.pop(token, None) and None

    def emit_begun_read(self, request: Request, use: Use) -> None:
        """Announce that the content of a file is about to be sent; NotRecordedError prevents it."""
        for subscription in list(self._subscriptions.values()):
            if subscription.begun_reads:
                subscription.reader(request.event("begun", use))

    def emit(self, event: Event) -> None:
        """Pass an event to every reader; NotRecordedError prevents a run that is about to start."""
        unrecorded: NotRecordedError | None = None
        for subscription in list(self._subscriptions.values()):
            shown = event
            if event.question and not subscription.questions:
                shown = event._replace(question="")
            try:
                subscription.reader(shown)
            except NotRecordedError as error:
                unrecorded = error
            # A bug in one reader must affect neither the other readers nor the response.
            except Exception:
                logger.exception("a reader of events failed", extra=REPEATS)
        if unrecorded is not None and event.outcome == "begun":
            raise unrecorded

    def emit_decision(
        self, use: Use, *, proposer: str, reviewer: str, label: str = "", address: str | None = None
    ) -> None:
        """Emit a decision on a proposal, or a switch; without `address` it was made by command."""
        by = PAGE if address else COMMAND
        made = _event(by, use.action, "ok", address=address, uses=(use,), proposer=proposer)
        self.emit(made._replace(principal=reviewer, label=label))

    def emit_changes(self, changes: Changes) -> None:
        """Emit an event for each skill that appeared, changed or vanished."""
        now = time.time()
        for path, skill in sorted({**changes.before, **changes.after}.items()):
            outcome: Outcome = "changed"
            if path not in changes.before:
                outcome = "appeared"
            elif path not in changes.after:
                outcome = "vanished"
            use = Use("", path, SKILL_MD, _digest(skill))
            self.emit(Event(time=now, protocol=CATALOGUE, method="", outcome=outcome, uses=(use,)))


_UNSERVED: Final = Events()
"""The default outside of any server, such as in an agent loop; it has no readers."""
_serving: Final[ContextVar[Events]] = ContextVar("serving", default=_UNSERVED)


def emit_refusal(
    method: str, reason: str, *, principal: _Principal | None = None, address: str | None = None
) -> None:
    """Emit a refusal before any protocol; `reason` must be one of a few fixed texts."""
    refusal = _event("http", method, "refused", principal, address=address, reason=reason)
    _serving.get().emit(refusal)


class Request:
    """A context manager around the handling of a request, which emits its event at the end."""

    def __init__(
        self,
        protocol: str,
        method: str,
        *,
        principal: _Principal | None = None,
        address: str | None = None,
        era: str | None = None,
        host: str | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.server: Final = _serving.get()
        self._draft = _event(
            protocol,
            method,
            "begun",
            principal,
            address=address,
            era=era,
            host=host and clipped(host),
            trace=trace or trace_of(method),
        )
        """The event without what is known only later."""
        self.uses: dict[tuple[Action, str, str], Use] = {}
        """The uses by action, skill and file."""
        self.bytes = 0
        self.question = ""
        self.found: int | None = None
        self.outcome: Outcome | None = None
        """None derives it from the raised exception, if any."""
        self.code: int | None = None

    def __enter__(self) -> Request:
        self._started = time.perf_counter()
        self._token: Token[Request | None] = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        _current.reset(self._token)
        outcome = self.outcome or ("ok" if error is None else _outcome_of(error))
        self.server.emit(self.event(outcome, *self.uses.values()))

    def add(self, use: Use, size: int = 0) -> None:
        """Record a use, and the number of bytes that were read."""
        self.uses[use[:3]] = use
        self.bytes += size

    def event(self, outcome: Outcome, *uses: Use) -> Event:
        """Return the event as of now."""
        took = time.perf_counter() - self._started
        return self._draft._replace(
            outcome=outcome,
            uses=uses,
            milliseconds=took * 1000,
            bytes=self.bytes,
            found=self.found,
            question=self.question,
            code=self.code,
        )


_current: Final[ContextVar[Request | None]] = ContextVar("request", default=None)


def record_read(skill: Skill, path: str) -> None:
    """Record that a file of a skill is about to be sent; NotRecordedError must prevent it."""
    file, action = skill.files[path], "load" if path == SKILL_MD else "read"
    use = Use(action, skill.path, path, file.digest or "", whole_digest(skill))
    record_sent(use, file.size)


def record_sent(use: Use, size: int) -> None:
    """Record that so many bytes are about to be sent; NotRecordedError must prevent it."""
    request = _current.get()
    if request is not None:
        request.server.emit_begun_read(request, use)
        request.add(use, size)


def record_mentions(skills: Iterable[Skill]) -> None:
    """Record that the current request concerns these skills without reading their files."""
    for skill in skills:
        record_use(Use("", skill.path, SKILL_MD, _digest(skill)))


def record_run(
    skill: str, file: str, digest: str, *, laid_out: Mapping[str, str] | None = None
) -> None:
    """Record that a script of a skill, or code from a call (`skill` is ""), is about to run.

    `digest` covers all files that are laid out for the run. `laid_out` maps each further skill that
    the run may read to the digest of all its files. NotRecordedError must prevent the run.
    """
    read = (Use("read", path, "", over) for path, over in (laid_out or {}).items())
    uses, request = (*read, Use("run", skill, file, digest)), _current.get()
    if request is not None:
        request.server.emit(request.event("begun", *uses))
        request.uses.pop(("", skill, SKILL_MD), None)  # the run replaces the mention of its skill
        for use in uses:
            request.add(use)
    else:
        _serving.get().emit(
            Event(time=time.time(), protocol=LIBRARY, method="", outcome="begun", uses=uses)
        )


def record_search(question: str, found: int) -> None:
    """Record a search of the current request."""
    request = _current.get()
    if request is not None:
        request.found = found
        request.question = clipped(question)


def record_use(use: Use) -> None:
    """Record a use of a skill by the current request."""
    request = _current.get()
    if request is not None:
        request.add(use)


def reset_uses() -> None:
    """Reset the reads of the current request, which is retried because a file changed."""
    request = _current.get()
    if request is not None:
        request.uses.clear()
        request.bytes = 0


def _digest(skill: Skill) -> str:
    """Return the digest of a skill's SKILL.md, or "" for an unusable skill without one."""
    file = skill.files.get(SKILL_MD)
    if file is None:
        return ""
    return file.digest or ""


def _outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, RequestError):
        return "refused"
    if isinstance(error, Exception):
        return "failed"
    return "cancelled"
