"""Sessions over stdio that outlive their process, by signed tickets (as in RFC 5077).

Some agent frameworks start a server for each call. So a session's handle is a ticket that names its
loaded skills, and the next process looks those up in what the caller may see then. The signature
covers the roots, so that no server takes up the session of another one.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final

from mcp_skills_server.durable import read_regular, replace_file, untrusted_reason
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.sessions import IDLE_S, Sessions, UnknownSessionError

logger = logging.getLogger(__name__)

_KEY_BYTES: Final = 32
_SIGNATURE_CHARACTERS: Final = 22
"""128 bits in base64: models copy the ticket."""


class TicketSessions(Sessions):
    """The open sessions of this process, and those of earlier ones by their tickets."""

    def handle_of(self, session: Session) -> str:
        """Return a ticket for the present state of a session."""
        from urllib.parse import quote  # lazy: a handshake needs no session

        names = ",".join(map(quote, session.loaded.paths))
        return self._ticket(session.session_id, f"{int(time.time()):x}", names)

    def find(self, handle: str, owner: str | None) -> Session:
        """Return the session of a ticket; if it is open here, with its latest skills."""
        from hmac import compare_digest
        from urllib.parse import unquote

        # fewer parts than `_ticket` joins if the model altered it, or no skill was loaded
        identifier, issued, _, names = (*handle.split(".", 3), "", "", "")[:4]
        if self._find_local(identifier, owner) is None:
            tickets = self._ticket(identifier, issued, names), handle
            expected, given = (ticket.encode("utf-8", "surrogatepass") for ticket in tickets)
            if owner is not None or not compare_digest(expected, given):  # a pipe has no principals
                raise UnknownSessionError(handle)
            if abs(time.time() - int(issued, 16)) > IDLE_S:
                raise UnknownSessionError(handle)
            self.end(identifier)
            session = self.new(handle=identifier)
            session.loaded.paths = tuple(unquote(name) for name in names.split(",") if name)
            self.store(session, owner)
        return super().find(identifier, owner)

    def _ticket(self, identifier: str, issued: str, names: str) -> str:
        import hmac
        from base64 import urlsafe_b64encode

        roots = (root.given for root in self.runtime.registry.roots)
        text = "\0".join((identifier, issued, names, *roots)).encode("utf-8", "surrogatepass")
        signature = urlsafe_b64encode(hmac.digest(self._key, text, "sha256")).decode()
        parts = (identifier, issued, signature[:_SIGNATURE_CHARACTERS], names)
        return ".".join(filter(None, parts))  # without a full stop at the end, which models drop

    @cached_property
    def _key(self) -> bytes:
        from mcp_skills_server.directories import state_directory

        try:
            return _kept_key(state_directory() / "session-key")
        except OSError as error:
            logger.info("sessions end with this process, for their key cannot be kept: %s", error)
            return os.urandom(_KEY_BYTES)


def _kept_key(path: Path) -> bytes:
    """Return the key in a file, which is created if it is missing.

    Raises:
        OSError: it cannot be read or written, or others may write it.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f"{path.name}-{os.urandom(4).hex()}")
        replace_file(made, os.urandom(_KEY_BYTES), 0o600)
        try:
            with suppress(FileExistsError):  # another process was faster
                os.link(made, path)
        finally:
            made.unlink()
    raw, status = read_regular(path, 1 << 10)
    reason = untrusted_reason(status)
    if reason or len(raw) != _KEY_BYTES:
        raise OSError(f"{path} {reason or 'holds no key'}; remove it")
    return raw
