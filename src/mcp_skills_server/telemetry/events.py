"""Events of a server, one for each request and for each difference of the catalogue, and their
readers.

Readers are the log, the audit log, usage, metrics, traces and the page. They subscribe to the
`Events` of one server, so that two servers in one process share none. The server of a request
stands in a context variable, which is set where requests enter. Without a reader nothing is
gathered. An event holds no content, no session handle and no token; the words of a search only
where the operator has them kept. The W3C Trace Context of a request is looked at only where a
reader wants it; what clients send of it is bounded here and judged by that reader, and baggage is
passed over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from mcp_skills_server.errors import REPEATS, RequestError, clipped
from mcp_skills_server.model import SKILL_MD, Changes, Skill

logger = logging.getLogger(__name__)

Outcome: TypeAlias = Literal[
    "ok", "refused", "failed", "cancelled", "begun", "appeared", "changed", "vanished"
]
Action: TypeAlias = Literal["", "load", "read", "run", "dropped", "propose", "approve", "reject"]
PROPOSING: Final = frozenset(("propose", "approve", "reject"))
"""The actions that are about proposals, and use no skill."""
CATALOGUE: Final = "catalogue"
"""The `protocol` of an event that no request caused."""
LIBRARY: Final = "library"
"""The `protocol` of a run that no request caused."""
COMMAND: Final = "command"
"""The `protocol` of what a person decides on the command line."""
PAGE: Final = "page"
"""The `protocol` of what a person looks at in a browser. It is read, and not used."""


_PARENT: Final = "traceparent"
_STATE: Final = "tracestate"
_LONGEST: Final = 512
"""Characters of either, which every implementation must take; longer ones are none."""
_TARGETED: Final = frozenset(("tools/call", "prompts/get"))

Carrier = dict[str, str]
"""`traceparent`, and `tracestate` where there is one; empty where there is neither."""


class Trace(NamedTuple):
    """The trace context and attributes of a request, beside its event.

    Attributes:
        message: what `_meta` of the message says of the span that it belongs to.
        http: what the headers of its HTTP request say.
        id: of the message, at most 200 characters; "" where there is none.
        target: the name of the tool or prompt that is asked for, at most 200 characters; "" where
            there is none.
        version: the revision of MCP that is spoken; "" where none is settled.
    """

    message: Carrier
    http: Carrier
    id: str = ""
    target: str = ""
    version: str = ""


of_http: Final[ContextVar[Carrier | None]] = ContextVar("of_http", default=None)
"""What the headers of the HTTP request say that is being answered here."""


def of_headers(headers: Iterable[tuple[bytes, bytes]]) -> Carrier:
    """Return the trace context of the headers of an HTTP request, whose names are in lower case."""
    return _carrier({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})


def trace_of(
    method: str,
    params: Mapping[str, Any] | None = None,
    id_: object = None,
    http: Carrier | None = None,
    *,
    version: str = "",
) -> Trace:
    """Return where a request belongs in a trace, by its parameters as the client sent them and the
    id of its message.

    `http` is what the headers say, where they are not those of the request that is being answered
    here.
    """
    given = params or {}
    meta, name = given.get("_meta"), given.get("name")
    message: Carrier = {}
    if isinstance(meta, Mapping):
        message = _carrier(cast("Mapping[str, Any]", meta))
    if http is None:
        http = of_http.get() or {}
    id_text = target = ""
    if id_ is not None:
        id_text = clipped(str(id_))
    if method in _TARGETED and isinstance(name, str):
        target = clipped(name)
    return Trace(message, http, id_text, target, version)


def _carrier(found: Mapping[str, Any]) -> Carrier:
    parent, state = found.get(_PARENT), found.get(_STATE)
    if not isinstance(parent, str) or len(parent) > _LONGEST:
        return {}
    if not isinstance(state, str) or len(state) > _LONGEST:
        return {_PARENT: parent}
    return {_PARENT: parent, _STATE: state}


class NotRecordedError(RequestError):
    """A reader that must have an event before its work is done cannot take it."""


class Use(NamedTuple):
    """The use of a file of a skill.

    Attributes:
        action: "load" where it is the SKILL.md, "read" for another file, "run" where it was
            started, "dropped" where the skill was unloaded before anything else of it was asked
            for; "propose", "approve" and "reject" for a proposal; "" where the request was about
            the skill and no file was read.
        skill: the skill path.
        file: its path in the skill; the id of a proposal.
        digest: of its bytes as they were read; of all files of the skill where one was run; of the
            SKILL.md that a proposal changes; "" where it is not known.
    """

    action: Action
    skill: str
    file: str
    digest: str


class _Principal(Protocol):
    """The identity that a client proved."""

    @property
    def id(self) -> str: ...

    @property
    def label(self) -> str: ...


def _named(principal: _Principal | None) -> tuple[str | None, str]:
    if principal is None:
        return (None, "")
    return (principal.id, principal.label)


class Event(NamedTuple):
    """Something that happened.

    Attributes:
        time: when it began, in seconds since 1970.
        protocol: "mcp", "skills-protocol", "discovery", "page", or "http" for what was refused
            before any of them; "catalogue" for a difference of the catalogue, "library" for a run
            without a request, "command" for a decision of the operator.
        method: which one was called, at most 200 characters of what the client says; "" for a
            difference.
        outcome: of a request "ok", "refused" for what is wrong with it, "failed" for a bug,
            "cancelled", or "begun" for a run that is about to start; of a skill in the catalogue
            the rest.
        principal: the `id` of whom the client proved to be, None where no proof is required.
        address, era: where the client is, and of which era of MCP; None where there is none.
        host: what the client calls itself, at most 200 characters, None where it does not say.
        uses: what was done with which skills, in order.
        reason: why it was refused, where that was before any protocol.
        milliseconds: how long it took.
        bytes: bytes of skill files that were read for the answer.
        found: how many skills a search found, None where nothing was searched for.
        question: what was searched for, where a reader keeps that; else "".
        request: the id of the request of HTTP, which its answer carries; None where there is none.
        code: of the error of JSON-RPC that it was answered by, None for none.
        trace: where it belongs in a trace, where a reader wants that.
        label: what the issuer calls the principal for people; "" where it does not.
        proposer: whose proposal is decided on; "" where none is.
    """

    time: float
    protocol: str
    method: str
    outcome: Outcome
    principal: str | None = None
    address: str | None = None
    era: str | None = None
    host: str | None = None
    uses: tuple[Use, ...] = ()
    reason: str = ""
    milliseconds: float = 0.0
    bytes: int = 0
    found: int | None = None
    question: str = ""
    request: str | None = None
    code: int | None = None
    trace: Trace | None = None
    label: str = ""
    proposer: str = ""

    @property
    def skills(self) -> tuple[str, ...]:
        """Paths of the skills that it was about, in the order in which they were looked at."""
        return tuple(dict.fromkeys(each.skill for each in self.uses))


Reader: TypeAlias = Callable[[Event], None]

request_id: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The id of the request of HTTP that is being answered here."""


def _always() -> bool:
    return True


class Events:
    """The events of one server.

    Attributes:
        before_reads: called before the bytes of a file are answered, with an event whose outcome is
            "begun"; the request is refused where it raises NotRecordedError.
        keeps_questions: whether events hold the words of searches.
        wants_traces: whether events hold where a request belongs in a trace.
    """

    def __init__(self) -> None:
        self._readers: dict[object, tuple[Reader, Callable[[], bool]]] = {}
        self.before_reads: Reader | None = None
        self.keeps_questions = False
        self.wants_traces = False

    @property
    def has_readers(self) -> bool:
        """True when a reader wants events now."""
        return any(wants() for _, wants in self._readers.values())

    @contextmanager
    def serving(self) -> Generator[None]:
        """Have the requests that are answered inside, in this context, become events of this
        server."""
        token = _serving.set(self)
        try:
            yield
        finally:
            _serving.reset(token)

    def subscribe(self, reader: Reader, wants: Callable[[], bool] = _always) -> Callable[[], None]:
        """Have `reader` called with each event from now on, in the thread where it happens; it must
        return at once.

        It gets none while `wants` is false: without a reader that wants them, no request is
        recorded.

        What it raises is logged, but for NotRecordedError of a run that is about to start: that run
        is refused.

        Returns:
            A function that ends the subscription.
        """
        token = object()
        self._readers[token] = reader, wants
        return lambda: self._readers.pop(token, None) and None

    def emit(self, event: Event) -> None:
        """Hand an event to every reader.

        Raises:
            NotRecordedError: it is a run that is about to start, and a reader cannot take it.
        """
        unrecorded: NotRecordedError | None = None
        for reader, wants in list(self._readers.values()):
            try:
                if wants():
                    reader(event)
            except NotRecordedError as error:
                unrecorded = error
            # a bug of one reader must not cost the others the event, nor the client its answer
            except Exception:
                logger.exception("a reader of events failed", extra=REPEATS)
        if unrecorded is not None and event.outcome == "begun":
            raise unrecorded

    def emit_decision(
        self, use: Use, *, proposer: str, reviewer: str, label: str = "", address: str | None = None
    ) -> None:
        """Emit an event for a proposal that a reviewer decided on: on the page, or where there is
        no address."""
        about = time.time(), PAGE if address else COMMAND, use.action, "ok", reviewer, address
        self.emit(
            Event(*about, uses=(use,), request=request_id.get(), label=label, proposer=proposer)
        )

    def emit_changes(self, changes: Changes) -> None:
        """Emit an event for each skill that differs."""
        if not self.has_readers:
            return
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
"""The events outside of any server, such as those of an agent loop; they have no reader."""
_serving: Final[ContextVar[Events]] = ContextVar("serving", default=_UNSERVED)


def has_readers() -> bool:
    """Return whether events of the server that answers here are read."""
    return _serving.get().has_readers


def emit_refusal(
    method: str, reason: str, *, principal: _Principal | None = None, address: str | None = None
) -> None:
    """Emit an event for what was refused before any protocol, for one of a few fixed reasons."""
    server = _serving.get()
    if server.has_readers:
        here = request_id.get()
        who, label = _named(principal)
        about = time.time(), "http", clipped(method), "refused", who, address
        server.emit(Event(*about, reason=reason, request=here, label=label))


class Request:
    """A request that is being answered; entered around the work, it emits the event at its end.

    An exception decides the outcome unless `outcome` was set.

    Attributes:
        outcome: what became of it.
        code: of the error of JSON-RPC that answers it.
    """

    def __init__(
        self,
        protocol: str,
        method: str,
        *,
        principal: _Principal | None,
        address: str | None = None,
        era: str | None = None,
        host: str | None = None,
        trace: Callable[[], Trace] | None = None,
    ) -> None:
        self._server = _serving.get()
        who, self._label = _named(principal)
        self._call = protocol, clipped(method)
        self._who = who, address, era, host and clipped(host)
        self._trace: Trace | None = None
        if trace is not None and self._server.wants_traces:
            self._trace = trace()
        self._uses: dict[tuple[Action, str, str], str] = {}
        self._bytes = 0
        self._found: tuple[int | None, str] = None, ""
        self.outcome: Outcome | None = None
        self.code: int | None = None

    def __enter__(self) -> Request:
        self._began, self._started = time.time(), time.perf_counter()
        self._token: Token[Request | None] = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        _current.reset(self._token)
        outcome = self.outcome or ("ok" if error is None else _outcome_of(error))
        self._server.emit(
            self._event(outcome, tuple(Use(*use, digest) for use, digest in self._uses.items()))
        )

    def add(self, action: Action, skill: str, file: str, digest: str, size: int = 0) -> None:
        """Record the use of a file of a skill, as in `Use`, and the bytes of it that were read."""
        self._uses[action, skill, file] = digest
        self._bytes += size

    def searched(self, question: str, found: int) -> None:
        """Record a search."""
        if not self._server.keeps_questions:
            question = ""
        self._found = found, clipped(question)

    def forget(self) -> None:
        """Forget the reads so far: the work begins again."""
        self._uses.clear()
        self._bytes = 0

    def answers(self, use: Use, size: int) -> None:
        """Record that bytes of a file are about to be sent.

        Raises:
            NotRecordedError: they must not be.
        """
        if self._server.before_reads is not None:
            self._server.before_reads(self._event("begun", (use,)))
        self.add(*use, size)

    def start(self, *uses: Use) -> None:
        """Record a run that is about to start, with its uses; NotRecordedError forbids it."""
        for use in uses:
            self.add(*use)
        self._server.emit(self._event("begun", uses))

    def _event(self, outcome: Outcome, uses: tuple[Use, ...]) -> Event:
        took = time.perf_counter() - self._started
        return Event(
            self._began, *self._call, outcome, *self._who, uses, "", took * 1000, self._bytes,
            *self._found, request_id.get(), self.code, self._trace, self._label,
        )  # fmt: skip


def observe(
    protocol: str,
    method: str,
    *,
    principal: _Principal | None = None,
    address: str | None = None,
    id_: object = None,
) -> AbstractContextManager[Request | None]:
    """Return a `Request` to enter around the work, or nothing while there is no reader. `id_` is
    that of its message.
    """
    if not has_readers():
        return nullcontext()
    return Request(
        protocol,
        method,
        principal=principal,
        address=address,
        trace=lambda: trace_of(method, id_=id_),
    )


_current: Final[ContextVar[Request | None]] = ContextVar("request", default=None)


def was_read(skill: Skill, path: str) -> None:
    """Record that a file of a skill was read for the current request.

    Raises:
        NotRecordedError: it must not be answered, because it cannot be recorded.
    """
    request = _current.get()
    if request is not None:
        file = skill.files[path]
        request.answers(
            Use("load" if path == SKILL_MD else "read", skill.path, path, file.digest or ""),
            file.size,
        )


def concerns(skills: Iterable[Skill]) -> None:
    """Record that the current request is about these skills, whose files are not read."""
    for skill in skills:
        note(Use("", skill.path, SKILL_MD, _digest(skill)))


def runs(skill: str, file: str, digest: str, *, laid_out: Mapping[str, str] | None = None) -> None:
    """Record that a file of a skill is about to run, or, with "" as the skill, code of a call.

    `digest` is over all files that are laid out for it; `laid_out` has the skills beside it that it
    may read, and the digest over all files of each.

    Raises:
        NotRecordedError: it must not be started, because it cannot be recorded.
    """
    if not has_readers():
        return
    read = (Use("read", path, "", over) for path, over in (laid_out or {}).items())
    uses, request = (*read, Use("run", skill, file, digest)), _current.get()
    if request is not None:
        request.start(*uses)
    else:
        _serving.get().emit(
            Event(time=time.time(), protocol=LIBRARY, method="", outcome="begun", uses=uses)
        )


def searched(question: str, found: int) -> None:
    """Record a search of the current request."""
    request = _current.get()
    if request is not None:
        request.searched(question, found)


def note(use: Use) -> None:
    """Record a use of a skill by the current request."""
    request = _current.get()
    if request is not None:
        request.add(*use)


def begins_again() -> None:
    """Reset the reads of the current request, which is retried because a file changed."""
    request = _current.get()
    if request is not None:
        request.forget()


def _digest(skill: Skill) -> str:
    """Return that of its SKILL.md, which a skill that cannot be used need not have."""
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
