"""Parse and check the address of Redis, and create clients with timeouts and a bounded pool.

Addresses are `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, `rediss://` for TLS, and
`unix:///PATH[?db=DB]`. No error or displayed text contains a password.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX: Final = "mcp-skills:"
PORT: Final = 6379
ANSWER_S: Final = 1.0
"""Timeout in seconds of each connection attempt and each response."""
_FORMS: Final = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB with TLS, or unix:///PATH"
_CA: Final = "ssl_ca_certs"


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Address and credentials of Redis.

    Attributes:
        shown: the address for display, without user, password and query.
        ca: PEM file of trusted certificate authorities; None for those of the system.
    """

    url: str = field(repr=False)
    shown: str
    database: int = 0
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    prefix: str = PREFIX

    def client(self, most: int) -> Redis:
        """Return a client for the running event loop, with at most `most` lazy connections."""
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        options: dict[str, Any] = {
            "password": self.password,  # unless the URL has one, which takes precedence
            "protocol": 2,  # RESP2, which servers before Redis 6 speak, too
            "socket_timeout": ANSWER_S,
            "socket_connect_timeout": ANSWER_S,
            # Retry once: the server may have closed an idle connection.
            "retry": Retry(NoBackoff(), 1),
        }
        if self.url.startswith("rediss:"):
            options |= {"ssl_ca_certs": self.ca, "ssl_min_version": ssl.TLSVersion.TLSv1_2}
        pool: Any = BlockingConnectionPool  # whose keywords are untyped
        options |= {"max_connections": most, "timeout": ANSWER_S}
        return Redis.from_pool(pool.from_url(self.url, **options))


def redis_settings(
    url: str, *, prefix: str = PREFIX, ca: str | None = None, password: str | None = None
) -> RedisSettings:
    """Check an address and the options for it.

    Raises:
        UsageError: the address is malformed, or contradicts an option. The message never contains
            it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or PORT
        is_strict = bool(parts.query)  # strict parsing refuses an empty query, too
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=is_strict))
    except ValueError:
        raise UsageError(f"--redis: the address cannot be read; write {_FORMS}") from None
    is_socket = parts.scheme == "unix"
    if parts.scheme not in {"redis", "rediss", "unix"} or bool(host) == is_socket:
        raise UsageError(f"--redis: this is not an address of Redis; write {_FORMS}")
    number = query.pop("db", "")
    if not is_socket:
        number = number or parts.path.strip("/")
    number = number or "0"
    if not (number.isascii() and number.isdigit() and len(number) < 6):
        raise UsageError("--redis: the database is a number, such as redis://HOST:6379/0")
    named = query.pop(_CA, None)
    if query:
        text = f"after its '?' the address may have only db and {_CA}; use the options"
        raise UsageError(f"--redis: {text}")
    if named is not None and ca is not None and named != ca:
        raise UsageError(f"--redis: {_CA} and --redis-ca name two files; give one of them")
    ca = ca or named
    if ca is not None:
        _check_authorities(ca, tls=parts.scheme == "rediss")
    if parts.password and password is not None and unquote(parts.password) != password:
        text = "the address and MCP_SKILLS_REDIS_PASSWORD have two passwords; give one of them"
        raise UsageError(f"--redis: {text}")
    if not re.fullmatch(r"[!-~]{1,64}", prefix):
        raise UsageError("--redis-prefix: give 1 to 64 printable characters without blanks")
    shown = f"unix://{unquote(parts.path)}"
    if not is_socket:
        if ":" in host:
            host = f"[{host}]"
        shown = f"{parts.scheme}://{host}:{port}/{number}"
    return RedisSettings(url, shown, int(number), password, ca, prefix)


def _check_authorities(file: str, *, tls: bool) -> None:
    if not tls:
        raise UsageError("--redis-ca is for TLS; write rediss://, or leave it out")
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        reason = error.strerror
        if isinstance(error, ssl.SSLError):
            reason = "it has no certificates in PEM format"
        remedy = "name a file with the certificates of authorities"
        raise UsageError(f"--redis-ca {file}: {reason}; {remedy}") from None
