"""The connection to Redis: pings, retries, and reasons of failures."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import exceptions

from mcp_skills_server.shared import link as module
from mcp_skills_server.shared.address import redis_settings
from mcp_skills_server.shared.link import Link, SharedError
from ports import free_port
from shared.redis_servers import answering, redis_server
from tables import each_row
from web.http_wire import wait_until
from wire import DEADLINE


def ignore(*_: object) -> None: ...


@pytest.mark.needs_program("redis-server")
def test_idle_connection_is_pinged_and_a_hanging_one_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    with redis_server(tmp_path) as redis:
        assert redis.process is not None
        link = Link(redis_settings(redis.url))
        reconnects: list[bool] = []
        link.start(ignore, lambda: reconnects.append(link.is_up))
        wait_until(lambda: "cmdstat_ping:calls=3" in redis.say("info", "commandstats"))
        assert link.is_up
        assert not caplog.messages
        assert not reconnects
        redis.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not link.is_up)
        redis.process.send_signal(signal.SIGCONT)
        wait_until(lambda: reconnects)
        assert link.is_up
        link.stop()
    assert ["does not answer" in each for each in caplog.messages] == [True, False]


def test_lost_connection_is_retried_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []
    monkeypatch.setattr(module, "_RETRY_S", 0.3)

    def answer(_: socket.socket) -> None:
        tries.append(time.monotonic())

    with answering(answer) as port:
        link = Link(redis_settings(f"redis://127.0.0.1:{port}"))
        link.start(ignore, ignore)
        wait_until(lambda: len(tries) > 4)  # two connections per retry
        link.stop()
    assert tries[4] - tries[0] > 0.6
    assert link.state.startswith(f"Redis at redis://127.0.0.1:{port}/0: there is no ")


def test_message_is_dropped_while_redis_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[socket.socket] = []
    monkeypatch.setattr(module, "_RETRY_S", DEADLINE)
    with answering(tries.append) as port:
        link = Link(redis_settings(f"redis://127.0.0.1:{port}"))
        link.start(ignore, ignore)
        wait_until(lambda: not link.is_up)
        before = len(tries)
        assert link._loop is not None
        asyncio.run_coroutine_threadsafe(link.publish("x"), link._loop).result(DEADLINE)
        assert len(tries) == before > 0
        link.stop()


def test_failure_after_stop_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Redis and its clients are often stopped together."""
    for is_stopped in (True, False):
        link = Link(redis_settings(f"redis://127.0.0.1:{free_port()}"))
        if is_stopped:
            link.stop()
        with pytest.raises(SharedError):
            asyncio.run(link.run("reading", "return 1", [], []))
        assert ("requests that need it are refused" in caplog.text) is not is_stopped


SETTINGS: Any = SimpleNamespace(database=7)


@each_row(("error", "reason"), [
    (TimeoutError(), "it does not answer within 2 seconds"),
    (exceptions.TimeoutError("x"), "it does not answer within 2 seconds"),
    (exceptions.AuthenticationError("no\n way"), "it rejects the login (no way); check the user of --redis and "),
    (exceptions.AuthenticationWrongNumberOfArgsError("few"), "it rejects the login (few); "),
    (exceptions.ConnectionError("x CERTIFICATE_VERIFY_FAILED x"), "its certificate is not trusted; "),
    (exceptions.ResponseError("DB index is out of range"), "it has no database 7; give another one in --redis"),
    (exceptions.BusyLoadingError("LOADING"), "it is loading its data"),
    (exceptions.ResponseError("no"), "it refuses the command (no)"),
    (exceptions.ConnectionError("refused"), "there is no connection (refused)"),
    (OSError(), "there is no connection (OSError)"),
    (exceptions.InvalidResponse("Protocol Error"), "the server there is not Redis (Protocol Error)"),
    (ValueError("x" * 99), "the server there is not Redis (ValueError)"),
])  # fmt: skip
def test_reason_names_the_cause_of_each_failure(error: Exception, reason: str) -> None:
    assert module._reason(error, SETTINGS).startswith(reason)
