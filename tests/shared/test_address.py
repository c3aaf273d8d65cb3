"""Addresses of Redis: what is taken, and that what is refused is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.shared.address import RedisSettings, redis_settings
from tables import each_row

SECRET = "very-secret-indeed"


@each_row(
    ("url", "wanted"),
    [
        ("redis://cache", RedisSettings("cache")),
        ("redis://cache:7000/3", RedisSettings("cache", 7000, database=3)),
        ("redis://cache?db=4", RedisSettings("cache", database=4)),
        ("redis://[::1]:7000", RedisSettings("::1", 7000)),
        ("redis://me:p%40ss@cache/1", RedisSettings("cache", database=1, username="me", password="p@ss")),
        ("redis://:pass@cache", RedisSettings("cache", password="pass")),
        ("rediss://cache", RedisSettings("cache", tls=True)),
        ("unix:///run/redis.sock?db=2", RedisSettings("", path="/run/redis.sock", database=2)),
    ],
)
def test_an_address_says_where_redis_is(url: str, wanted: RedisSettings) -> None:
    assert redis_settings(url) == wanted


@each_row(
    "url",
    [
        "",
        "cache",
        f":{SECRET}@cache:6379",
        f"redis:{SECRET}@cache",
        f"http://:{SECRET}@cache",
        f"redis://:{SECRET}@",
        f"redis://:{SECRET}@cache:port",
        f"redis://:{SECRET}@cache:99999",
        f"redis://:{SECRET}@cache/one",
        f"redis://:{SECRET}@cache/-1",
        f"redis://:{SECRET}@cache?password={SECRET}",
        f"redis://:{SECRET}@cache?ssl_cert_reqs=none",
        f"redis://:{SECRET}@[::1",
        f"unix://host/{SECRET}",
    ],
)
def test_what_is_no_address_is_one_line_without_it(url: str) -> None:
    with pytest.raises(UsageError, match=r"^--redis: ") as caught:
        redis_settings(url)
    assert SECRET not in str(caught.value) and "\n" not in str(caught.value)


def test_two_passwords_and_odd_prefixes_are_refused() -> None:
    with pytest.raises(UsageError, match="two passwords") as caught:
        redis_settings(f"redis://:{SECRET}@cache", password="another")
    assert SECRET not in str(caught.value)
    assert redis_settings("redis://cache", password=SECRET).password == SECRET
    for prefix in ("", "a b", "a\n", "é", "x" * 65):
        with pytest.raises(UsageError, match="--redis-prefix"):
            redis_settings("redis://cache", prefix=prefix)


def test_the_password_is_in_no_text_for_people() -> None:
    settings = redis_settings(f"redis://me:{SECRET}@cache:7000/3")
    assert settings.shown == "redis://cache:7000/3"
    assert SECRET not in repr(settings)


def test_authorities_are_for_tls_and_are_read_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(UsageError, match="for TLS"):
        redis_settings("redis://cache", ca=str(tmp_path / "ca.pem"))
    with pytest.raises(UsageError, match="no certificates in PEM"):
        redis_settings("rediss://cache", ca=str(tmp_path / "ca.pem"))
    with pytest.raises(UsageError, match="No such file"):
        redis_settings(f"rediss://cache?ssl_ca_certs={tmp_path}/absent.pem")
    with pytest.raises(UsageError, match="two files"):
        redis_settings("rediss://cache?ssl_ca_certs=/a", ca="/b")
