"""Replicas that share a Redis: sessions, change notifications, and an unreachable Redis."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.shared import records
from ports import free_port
from server.test_tools import text_of
from shared.redis_servers import RealRedis, answering, redis_server
from sources.git.remotes import Upstream, skill
from sources.oci.registries import self_signed
from tables import each_row
from web.http_wire import HttpClient, Server, client, http_serving
from wire import DEADLINE, ROOT, write_skill

pytestmark = pytest.mark.needs_program("redis-server")

PASSWORD = "very-secret-indeed"
LISTED = "notifications/skills/list_changed"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RealRedis]:
    with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    for name in ("alpha", "beta", "gamma"):
        write_skill(tmp_path / "skills" / name)
    return tmp_path / "skills"


@contextmanager
def replicas(skills: Path, url: str, *options: str | Path, count: int = 2, **more: Any) -> Iterator[list[Server]]:
    arguments = (skills, "--redis", url, *options)
    with ExitStack() as stack:
        yield [stack.enter_context(http_serving(*arguments, **more)) for _ in range(count)]


@contextmanager
def two_clients(skills: Path, url: str, *options: str | Path, **more: Any) -> Iterator[list[HttpClient]]:
    """Run two replicas, and yield a modern client of each."""
    with replicas(skills, url, *options, **more) as servers, ExitStack() as stack:
        yield [stack.enter_context(client(server, "modern")) for server in servers]


def call_ok(caller: HttpClient, tool: str, **arguments: Any) -> dict[str, Any]:
    result = caller.call(f"skills_{tool}", **arguments)
    assert not result.get("isError"), result
    return result


def error_of(caller: HttpClient, tool: str, **arguments: Any) -> str:
    """Call a tool, which must fail, and return its message."""
    result = caller.call(f"skills_{tool}", **arguments)
    assert result["isError"], result
    return text_of(result)


def load(caller: HttpClient, *names: str) -> str:
    return call_ok(caller, "load", names=list(names))["structuredContent"]["session"]


def is_loaded(reader: HttpClient, session: str, skill: str) -> bool:
    result = reader.call("skills_read", session=session, skill=skill, path="SKILL.md")
    if not result.get("isError"):
        return True
    text = text_of(result)
    assert "not loaded" in text or "Unknown skill" in text, text
    return False


def redis_status(server: Server) -> str:
    """Return the line of the readiness probe about Redis. The server is ready in any case."""
    reply = server.send("GET", "/readyz?verbose")
    assert reply.status == 200
    return reply.body.decode().splitlines()[-1]


def assert_reads_work(reader: HttpClient) -> None:
    """Assert that requests which need no shared state are answered."""
    entry, *_ = reader.every_skill()
    assert reader.read(entry["resources"][0]["uri"])
    call_ok(reader, "list")
    call_ok(reader, "search", query="alpha")


def test_reads_work_without_redis_and_sessions_recover(redis: RealRedis, skills: Path) -> None:
    with two_clients(skills, redis.url) as (first, second):
        session = load(first, "alpha")
        servers = (first.server, second.server)
        redis.stop()
        for server in servers:
            server.wait_for_log("reads go on")
        for _ in range(3):
            assert is_loaded(first, session, "alpha")  # in the memory of this replica
            for each in (first, second):
                assert_reads_work(each)
                message = error_of(each, "load", names=["beta"], session=session)
                assert "cannot be reached now" in message and "127.0.0.1" not in message
                # A new session belongs to its replica.
                result = call_ok(each, "load", names=["beta"])
                content = result["structuredContent"]
                assert "one replica" in text_of(result) and "one replica" in content["note"]
                assert is_loaded(each, content["session"], "beta")
        assert "there is no connection" in redis_status(first.server)
        redis.start()
        for server in servers:
            server.wait_for_log("answers again")
        # The new Redis is empty. A replica that knows the session writes it again.
        message = error_of(second, "read", session=session, skill="alpha", path="SKILL.md")
        assert "Unknown session" in message
        assert is_loaded(first, session, "alpha")
        assert is_loaded(second, session, "alpha")
        for server in servers:
            assert server.stderr.count("reads go on") == server.stderr.count("answers again") == 1


def sending(data: bytes) -> Callable[[Any], object]:
    return lambda connection: connection.sendall(data)


def stay_silent(connection: Any) -> None:
    connection.recv(1)
    threading.Event().wait(DEADLINE)


@each_row(("answer", "warning"), [
    (stay_silent, "it does not answer within 2 seconds"),
    (sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "the server there is not Redis"),
    (sending(b"$99999999999\r\n" + os.urandom(1 << 20)), "(does not answer|no connection)"),
])  # fmt: skip
def test_foreign_server_is_reported_once(skills: Path, answer: Callable[[Any], object], warning: str) -> None:
    with answering(answer) as port:
        assert_reported_once(skills, f"redis://:{PASSWORD}@127.0.0.1:{port}", warning)


def assert_reported_once(skills: Path, url: str, warning: str) -> None:
    """Assert that a replica warns once, without the password, and works without this Redis."""
    with replicas(skills, url, count=1) as (server,), client(server, "modern") as reader:
        server.wait_for_log(warning)
        for _ in range(3):
            assert "one replica" in text_of(call_ok(reader, "load", names=["alpha"]))
            assert_reads_work(reader)
        server.wait_for_log("redis://")
        assert server.stderr.count("redis://") == 1
        assert PASSWORD not in server.stderr + redis_status(server)


@each_row(("login", "database", "warning"), [
    ("", 0, "it rejects the login .*MCP_SKILLS_REDIS_PASSWORD"),
    (f"nobody:{PASSWORD}@", 0, "it rejects the login"),
    (f":{PASSWORD}@", 99, "it has no database 99"),
])  # fmt: skip
def test_wrong_login_or_database_is_reported_once(
    skills: Path, tmp_path: Path, login: str, database: int, warning: str
) -> None:
    with redis_server(tmp_path / "redis", "--requirepass", PASSWORD) as redis:
        url = f"redis://{login}127.0.0.1:{redis.port}/{database}"
        assert_reported_once(skills, url, warning)


@pytest.mark.needs_program("openssl")
def test_redis_over_tls_with_password_and_own_authority(skills: Path, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    port = free_port()
    tls = ("--tls-port", str(port), "--port", "0", "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with redis_server(tmp_path / "redis", *tls, "--tls-auth-clients", "no", "--requirepass", PASSWORD, port=port):
        url, password = f"rediss://localhost:{port}/0", {"MCP_SKILLS_REDIS_PASSWORD": PASSWORD}
        with two_clients(skills, url, "--redis-ca", certificate, environment=password) as (first, second):
            session = load(first, "alpha")
            assert is_loaded(second, session, "alpha")
            assert redis_status(first.server) == f"Redis at {url}: connected"
        with replicas(skills, url, count=1, environment=password) as (server,):
            server.wait_for_log("its certificate is not trusted; name its authority by --redis-ca")


def test_documented_redis_acl_suffices(redis: RealRedis, skills: Path) -> None:
    text = (ROOT / "docs" / "container.md").read_text(encoding="utf-8")
    words = next(line.split() for line in text.splitlines() if line.startswith("ACL SETUSER"))
    assert redis.say(*(each.replace("PASSWORD", PASSWORD) for each in words)) == "OK"
    for script in (records._READ, records._WRITE, records._TAKE):
        commands = re.findall(r"redis\.p?call\('(\w+)'", script)
        assert commands
        assert {f"+{each.lower()}" for each in commands} <= {*words}
    url = redis.url.replace("redis://", f"redis://skills:{PASSWORD}@")
    with two_clients(skills, url) as (first, second):
        session = load(first, "alpha")
        call_ok(second, "load", session=session, names=["beta"], mode="add")
        assert is_loaded(first, session, "beta")
        write_skill(skills / "delta")
        assert redis_status(first.server).endswith(": connected")
        assert "redis://" not in first.server.stderr + second.server.stderr
    denied = redis.say("acl", "log")
    assert "skills" not in denied, denied


@pytest.mark.needs_program("git")
def test_webhook_at_one_replica_notifies_clients_of_all(redis: RealRedis, tmp_path: Path) -> None:
    author, shared = Upstream(tmp_path / "author.git"), Upstream(tmp_path / "shared.git")

    def push(*names: str) -> None:
        author.commit({path: raw for name in names for path, raw in skill(name).items()})
        author.git("push", "--quiet", str(shared.directory), "main")

    push("alpha")
    secret = "made-up-secret-of-webhooks"
    with ExitStack() as stack:
        servers: list[Server] = []
        for number in range(2):
            options = ("--redis", redis.url, "--refresh", "3600", "--cache-dir", tmp_path / str(number))
            given = {"MCP_SKILLS_REFRESH_SECRET": secret}
            servers.append(stack.enter_context(http_serving(shared.url, *options, environment=given)))
        clients = [stack.enter_context(client(server, "modern")) for server in servers]
        streams = [each.hear() for each in clients]

        def wait_for_skills(count: int) -> None:
            for reader, stream in zip(clients, streams, strict=True):
                while len(reader.every_skill()) < count:
                    stream.until(LISTED)

        wait_for_skills(1)
        push("alpha", "beta")
        proof = {"X-Gitlab-Token": secret}
        assert servers[0].send(path="/refresh", body=b"{}", headers=proof).status == 202
        wait_for_skills(2)


def test_recall_reaches_every_replica_and_the_session_is_told_once(
    skills: Path, redis: RealRedis, tmp_path: Path
) -> None:
    advisories = tmp_path / "advisories.toml"
    advisories.write_text("version = 1\n")
    with replicas(skills, redis.url, "--advisories", advisories) as servers, ExitStack() as stack:
        one, two = (stack.enter_context(client(server, "modern")) for server in servers)
        session, other = load(one, "alpha"), load(two, "beta")
        digest = digest_of((skills / "alpha" / "SKILL.md").read_bytes())
        advisories.write_text(
            f'version = 1\n[[advisory]]\ndigest = "{digest}"\nreason = "it is bad"\nseverity = "high"\n'
        )
        for server in servers:
            server.wait_for_log("its advisories: 1")
        told = ["RECALLED" in str(caller.call("skills_list", session=session)) for caller in (two, one, two)]
        assert told == [True, False, False]
        assert "RECALLED" not in str(one.call("skills_list", session=other))
