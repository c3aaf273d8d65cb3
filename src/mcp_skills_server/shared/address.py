"""The address of Redis, checked, and a client with timeouts and a bounded pool.

Addresses are `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, `rediss://` for TLS, and `unix:///PATH[?db=DB]`. No error
and no text for people ever holds a password.
"""

from __future__ import annotations

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
"""Timeout of Redis to connect, and to answer."""
_LONGEST_PREFIX: Final = 64
_FORMS: Final = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB with TLS, or unix:///PATH"
_CA: Final = "ssl_ca_certs"


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Address and credentials of Redis.

    Attributes:
        host: its name or address; "" for a socket of this machine.
        port: its port.
        path: the socket's path; "" where there is a host.
        database: its number.
        username: None for the default user.
        password: None for none.
        tls: speak TLS.
        ca: the file of authorities that its certificate must be from; None for those of the system.
        prefix: what all keys begin with.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    path: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    prefix: str = PREFIX

    @property
    def shown(self) -> str:
        """The address for people, without user and password."""
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"

    def client(self, most: int) -> Redis:
        """Return a client for the event loop that runs now, with at most so many connections. It connects when it
        must.
        """
        from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        given: dict[str, Any] = {
            "db": self.database,
            "username": self.username,
            "password": self.password,
            "protocol": 2,
            "socket_timeout": ANSWER_S,
            "socket_connect_timeout": ANSWER_S,
            # Once: a server may have closed a connection that was idle.
            "retry": Retry(NoBackoff(), 1),
        }
        kind: Any = Connection
        if self.path:
            kind = UnixDomainSocketConnection
            given["path"] = self.path
        else:
            given |= {"host": self.host, "port": self.port}
        if self.tls:
            kind = SSLConnection
            given |= {"ssl_ca_certs": self.ca, "ssl_min_version": ssl.TLSVersion.TLSv1_2}
        pool: Any = BlockingConnectionPool(connection_class=kind, max_connections=most, timeout=ANSWER_S, **given)
        return Redis.from_pool(pool)


def redis_settings(
    url: str, *, prefix: str = PREFIX, ca: str | None = None, password: str | None = None
) -> RedisSettings:
    """Parse an address into settings.

    Args:
        url: the address. What it says of user and password is in percent-encoding.
        prefix: what all keys begin with.
        ca: the file of authorities; the query of the address may name it, too (`?ssl_ca_certs=FILE`).
        password: instead of one in the address.

    Raises:
        UsageError: it is none, or two of them contradict each other. Never shows the address.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or PORT
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        number = query.pop("db", "") or (parts.path.strip("/") if parts.scheme != "unix" else "") or "0"
    except ValueError:
        raise UsageError(f"--redis: the address cannot be read; write {_FORMS}") from None
    if parts.scheme not in {"redis", "rediss", "unix"} or bool(host) == (parts.scheme == "unix"):
        raise UsageError(f"--redis: this is no address of Redis; write {_FORMS}")
    if not (number.isascii() and number.isdigit() and len(number) < 6):
        raise UsageError("--redis: the database is a number, such as redis://HOST:6379/0")
    tls = parts.scheme == "rediss"
    named = query.pop(_CA, None)
    if query:
        raise UsageError(f"--redis: the address may say db and {_CA} after its '?', and nothing else; use the options")
    if named is not None and ca is not None and named != ca:
        raise UsageError(f"--redis: {_CA} and --redis-ca name two files; give one of them")
    ca = named if ca is None else ca
    if ca is not None:
        _check_authorities(ca, tls=tls)
    own = unquote(parts.password) if parts.password else None
    if own is not None and password is not None and own != password:
        raise UsageError("--redis: the address and MCP_SKILLS_REDIS_PASSWORD have two passwords; give one of them")
    if not (0 < len(prefix) <= _LONGEST_PREFIX and prefix.isascii() and prefix.isprintable() and " " not in prefix):
        raise UsageError(f"--redis-prefix: give 1 to {_LONGEST_PREFIX} printable characters without blanks")
    return RedisSettings(
        host=host,
        port=port,
        path=unquote(parts.path) if parts.scheme == "unix" else "",
        database=int(number),
        username=unquote(parts.username) if parts.username else None,
        password=password if own is None else own,
        tls=tls,
        ca=ca,
        prefix=prefix,
    )


def _check_authorities(file: str, *, tls: bool) -> None:
    if not tls:
        raise UsageError("--redis-ca is for TLS; write rediss://, or leave it out")
    try:
        ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        reason = "there are no certificates in PEM in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(f"--redis-ca {file}: {reason}; name a file with the certificates of authorities") from None
