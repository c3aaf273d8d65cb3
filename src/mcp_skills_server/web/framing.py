"""A request that says twice where it ends is refused: a proxy and this server must see one end (RFC 9112, 6.3).

h11 takes the Transfer-Encoding where there is a Content-Length as well, and what a proxy took for the body becomes
another request.
"""

from __future__ import annotations

from typing import Any

import h11


class OneEnd(h11.Connection):
    """A connection of h11's on which each request says once where it ends."""

    def next_event(self) -> Any:
        """What comes next.

        Raises:
            RemoteProtocolError: as h11 does; or a request has both headers, or an encoding that its version lacks.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                reason = "Transfer-Encoding stands beside Content-Length, or in HTTP/1.0"
                raise h11.RemoteProtocolError(reason, error_status_hint=400)
        return event
