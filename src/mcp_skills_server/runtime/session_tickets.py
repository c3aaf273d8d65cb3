"""Sessions over stdio that outlive their process, by signed tickets (as in RFC 5077).

Some agent frameworks start a server for each call. So a session's handle is a ticket that names its
loaded skills, and the next process goes on with those: it looks them up in what the caller may see
then. The signature covers the roots, so that no server takes up the session of another one.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from mcp_skills_server.durable import read_regular, untrusted_reason
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.sessions import IDLE_S, Sessions, UnknownSessionError

logger = logging.getLogger(__name__)

_KEY_BYTES: Final = 32
_SIGNATURE_CHARACTERS: Final = 22
"""128 bits in base64: models copy the ticket."""


class TicketSessions(Sessions):
    """The open sessions of this process, and those of earlier ones by their tickets."""

    def new(self, since: float | None = None, runtime: Runtime | None = None) -> Session:
        """Return a new session, whose handle is a ticket."""
        return _TicketSession(self, runtime or self.runtime, hosted=False, since=since)

    def find(self, handle: str, owner: str | None) -> Session:
        """Return the session of a ticket; if it is open here, with its latest skills."""
        identifier, *fields = handle.split(".", 3)
        if self._find_local(identifier, owner) is None:
            is_ticket = owner is None and len(fields) == 3  # a pipe has no principals
            if not is_ticket or not self._is_valid(identifier, *fields):
                raise UnknownSessionError(handle)
            self.end(identifier)
            session = _TicketSession(self, self.runtime, hosted=False, handle=identifier)
            session.loaded.paths = _paths(fields[2])
            self.store(session, owner)
        return super().find(identifier, owner)

    def _is_valid(self, identifier: str, issued: str, signature: str, names: str) -> bool:
        """Verify a ticket's signature, and that it was issued within the idle timeout."""
        from hmac import compare_digest

        expected = self.sign(identifier, issued, names).encode()
        if not compare_digest(expected, signature.encode("utf-8", "surrogatepass")):
            return False
        return abs(time.time() - int(issued, 16)) <= IDLE_S

    def sign(self, identifier: str, issued: str, names: str) -> str:
        """Return the signature of a ticket for these roots."""
        import hmac  # lazy: a handshake needs no session
        from base64 import urlsafe_b64encode

        roots = "\0".join(root.given for root in self.runtime.registry.roots)
        text = "\0".join((identifier, issued, names, roots)).encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._key, text, "sha256")
        return urlsafe_b64encode(digest).decode()[:_SIGNATURE_CHARACTERS]

    @cached_property
    def _key(self) -> bytes:
        from mcp_skills_server.directories import state_directory

        try:
            return _kept_key(state_directory() / "session-key")
        except OSError as error:
            logger.info("sessions end with this process, for their key cannot be kept: %s", error)
            return os.urandom(_KEY_BYTES)


class _TicketSession(Session):
    """A session whose handle names its loaded skills."""

    def __init__(self, sessions: TicketSessions, runtime: Runtime, **options: Any) -> None:
        super().__init__(runtime, **options)
        self._sessions = sessions

    @property
    def handle(self) -> str:
        """A ticket for the present state."""
        from urllib.parse import quote

        issued, names = f"{int(time.time()):x}", ",".join(map(quote, self.loaded.paths))
        signature = self._sessions.sign(self.session_id, issued, names)
        return ".".join((self.session_id, issued, signature, names))


def _paths(names: str) -> tuple[str, ...]:
    from urllib.parse import unquote

    return tuple(unquote(name) for name in names.split(",") if name)


def _kept_key(path: Path) -> bytes:
    """Return the key in a file, which is created if it is missing.

    Raises:
        OSError: it cannot be read or written, or others may write it.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(_KEY_BYTES))
            with suppress(FileExistsError):  # another process was faster
                os.link(made, path)
        finally:
            made.unlink()
    raw, status = read_regular(path, _KEY_BYTES)
    reason = untrusted_reason(status)
    if reason or len(raw) != _KEY_BYTES:
        raise OSError(f"{path} {reason or 'holds no key'}; remove it")
    return raw
