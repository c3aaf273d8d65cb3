"""Addresses of Redis: the settings of valid ones, and refusals without the password."""

from __future__ import annotations

from pathlib import Path
from ssl import TLSVersion
from typing import Any

import pytest
from certifi import where

from mcp_skills_server.errors import UsageError
from mcp_skills_server.shared.address import redis_settings
from tables import each_row

SECRET = "very-secret-indeed"


# `options` are those of the connection pool.
@each_row(("url", "shown", "options"), [
    ("redis://cache", "redis://cache:6379/0", {"host": "cache"}),
    ("redis://cache:7000/3", "redis://cache:7000/3", {"host": "cache", "port": 7000, "db": 3}),
    ("redis://cache?db=4", "redis://cache:6379/4", {"db": 4}),
    ("redis://cache/99999", "redis://cache:6379/99999", {"db": 99999}),
    ("redis://[::1]:7000", "redis://[::1]:7000/0", {"host": "::1", "port": 7000}),
    ("redis://me:p%40ss@cache/1", "redis://cache:6379/1", {"db": 1, "username": "me", "password": "p@ss"}),
    ("redis://:pass@cache", "redis://cache:6379/0", {"password": "pass"}),
    ("rediss://cache", "rediss://cache:6379/0", {"ssl_min_version": TLSVersion.TLSv1_2}),
    ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock", {"path": "/run/redis.sock", "db": 2}),
])  # fmt: skip
def test_address_is_parsed_into_connection_settings(url: str, shown: str, options: dict[str, Any]) -> None:
    settings = redis_settings(url)
    assert settings.shown == shown
    assert settings.database == options.get("db", 0)
    pool: Any = settings.client(1).connection_pool
    assert (pool.max_connections, pool.timeout) == (1, 1.0)
    assert options.items() <= pool.connection_kwargs.items()
    assert pool.connection_kwargs["socket_timeout"] == 1.0


@each_row("url", [
    *("", "cache", f":{SECRET}@cache:6379", f"redis:{SECRET}@cache", f"http://:{SECRET}@cache"),
    *(f"redis://:{SECRET}@{where}" for where in ("", "cache:port", "cache:99999", "cache/one", "cache/-1", "[::1")),
    *(f"redis://:{SECRET}@cache?{query}" for query in (f"password={SECRET}", "ssl_cert_reqs=none", "password=")),
    *(f"redis://:{SECRET}@cache/{number}" for number in ("100000", "²")), f"unix://host/{SECRET}",
])  # fmt: skip
def test_invalid_address_is_one_line_without_the_password(url: str) -> None:
    with pytest.raises(UsageError, match=r"^--redis: ") as caught:
        redis_settings(url)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_second_password_and_invalid_prefix_are_refused() -> None:
    with pytest.raises(UsageError, match="two passwords") as caught:
        redis_settings(f"redis://:{SECRET}@cache", password="another")
    assert SECRET not in str(caught.value)
    for url in ("redis://cache", f"redis://:{SECRET}@cache"):
        assert redis_settings(url, password=SECRET).password == SECRET
    assert redis_settings("redis://cache", prefix="x" * 64).prefix == "x" * 64
    for prefix in ("", "a b", "a\n", "é", "x" * 65):
        with pytest.raises(UsageError, match="--redis-prefix"):
            redis_settings("redis://cache", prefix=prefix)


def test_password_is_not_in_the_repr_of_settings() -> None:
    assert SECRET not in repr(redis_settings(f"redis://me:{SECRET}@cache:7000/3"))
    assert SECRET not in repr(redis_settings("redis://cache", password=SECRET))


@each_row(("url", "ca", "message"), [
    ("redis://cache", "ca.pem", "for TLS"),
    ("rediss://cache", "ca.pem", "no certificates in PEM"),
    ("rediss://cache?ssl_ca_certs=absent.pem", None, "No such file"),
    ("rediss://cache?ssl_ca_certs=/a", "/b", "two files"),
])  # fmt: skip
def test_invalid_ca_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, ca: str | None, message: str
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        redis_settings(url, ca=ca)


def test_ca_file_is_taken_from_the_option_or_the_address() -> None:
    in_address = f"rediss://cache?ssl_ca_certs={where()}"
    for url, ca in ((in_address, None), (in_address, where()), ("rediss://cache", where())):
        pool: Any = redis_settings(url, ca=ca).client(1).connection_pool
        assert pool.connection_kwargs["ssl_ca_certs"] == where()
