"""An answer of HTTP that says what is wrong as an error of JSON-RPC, to a request whose id nobody has read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from starlette.types import Send


async def send_error(
    send: Send, status: int, error: dict[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send it.

    Args:
        send: sends the answer.
        status: of HTTP.
        error: code, message, and data where there is any.
        headers: beside those of the body.
    """
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})
