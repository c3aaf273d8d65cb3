"""Two replicas with one Redis: sessions go on elsewhere, changes are looked at everywhere, and Redis may be away."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.shared import records
from ports import free_port
from programs import LOOSE, loose
from shared.redis_servers import RealRedis, answering, redis_server
from sources.git.remotes import Upstream, skill
from sources.oci.registries import self_signed
from tables import each_row
from web.http_wire import HttpClient, Server, client, http_serving, token_file, until
from wire import DEADLINE, ROOT, write_skill

pytestmark = pytest.mark.needs_program("redis-server")

SECRET = "very-secret-indeed"
LISTED = "notifications/skills/list_changed"
UNKNOWN = "Unknown session"
AWAY = "cannot be reached now"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RealRedis]:
    """A Redis of this test."""
    with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """Three skills."""
    for name in ("alpha", "beta", "gamma"):
        write_skill(tmp_path / "skills" / name, scripts__make_sh="echo made > out.txt\n")
    return tmp_path / "skills"


@contextmanager
def replicas(skills: Path, url: str, *options: str | Path, count: int = 2, **more: Any) -> Iterator[list[Server]]:
    """Replicas that have connected."""
    with ExitStack() as stack:
        yield [stack.enter_context(http_serving(skills, "--redis", url, *options, **more)) for _ in range(count)]


@contextmanager
def pair(skills: Path, url: str, *options: str | Path, **more: Any) -> Iterator[list[HttpClient]]:
    """A modern client of each of two replicas."""
    with replicas(skills, url, *options, **more) as servers, ExitStack() as stack:
        yield [stack.enter_context(client(server, "modern")) for server in servers]


@contextmanager
def alone(skills: Path, url: str) -> Iterator[HttpClient]:
    """A modern client of the only replica."""
    with replicas(skills, url, count=1) as (server,), client(server, "modern") as one:
        yield one


def call(one: HttpClient, tool: str, **arguments: Any) -> tuple[str, Any, bool]:
    """What a tool answers: text, structure, whether it failed."""
    result = one.call(f"skills_{tool}", **arguments)
    text = "\n".join(each["text"] for each in result["content"])
    return text, result.get("structuredContent"), result.get("isError", False)


def fails(one: HttpClient, tool: str, **arguments: Any) -> str:
    """What a tool says that fails."""
    text, _, failed = call(one, tool, **arguments)
    assert failed, text
    return text


def begin(one: HttpClient, *names: str) -> str:
    """Load skills in a new session; its handle."""
    text, structure, failed = call(one, "load", names=list(names))
    assert not failed, text
    return structure["session"]


def active(one: HttpClient, session: str, tool: str = "load", **more: Any) -> list[str]:
    """The skills that a session has after loading or unloading something."""
    text, structure, failed = call(one, tool, session=session, **more)
    assert not failed, text
    return [each["name"] for each in structure["active_skills"]]


def readable(one: HttpClient, session: str, skill: str) -> bool:
    """Whether the session has this skill."""
    text, _, failed = call(one, "read", session=session, skill=skill, path="SKILL.md")
    assert not failed or "not loaded" in text or "Unknown skill" in text, text
    return not failed


def state(server: Server) -> str:
    """What the probe says of Redis; a server is ready whatever that is."""
    reply = server.send("GET", "/readyz?verbose")
    assert reply.status == 200
    return reply.body.decode().splitlines()[-1]


@pytest.mark.requirement("X-15")
def test_a_session_goes_on_at_another_replica_when_its_own_is_killed(redis: RealRedis, skills: Path) -> None:
    with pair(skills, redis.url) as (at_a, at_b):
        session = begin(at_a, "alpha")
        assert readable(at_b, session, "alpha")
        assert active(at_b, session, names=["beta"], mode="add") == ["alpha", "beta"]
        assert readable(at_a, session, "beta")  # which it did not load itself
        assert active(at_a, session, "unload", names=["alpha"]) == ["beta"]
        at_a.server.process.send_signal(signal.SIGKILL)
        at_a.server.process.wait(DEADLINE)
        assert not readable(at_b, session, "alpha")
        assert readable(at_b, session, "beta")
        assert active(at_b, session, names=["gamma"], mode="add") == ["beta", "gamma"]


def test_a_session_goes_on_after_a_restart_of_all_replicas(redis: RealRedis, skills: Path) -> None:
    with pair(skills, redis.url) as (at_a, at_b):
        session = begin(at_a, "alpha")
        assert active(at_b, session, names=["beta"], mode="add") == ["alpha", "beta"]
    with alone(skills, redis.url) as at_c:
        assert readable(at_c, session, "alpha")
        assert active(at_c, session, names=["gamma"], mode="add") == ["alpha", "beta", "gamma"]


@pytest.mark.requirement("X-15", "MCP-11")
def test_anothers_session_is_as_unknown_as_none(redis: RealRedis, skills: Path, tmp_path: Path) -> None:
    tokens = {"alpha": "a" * 16, "beta": "b" * 16}
    file = token_file(tmp_path, *(f"{name}={secret}" for name, secret in tokens.items()))
    with (
        replicas(skills, redis.url, "--token-file", file) as (a, b),
        client(a, "modern", token=tokens["alpha"]) as alpha,
        client(b, "modern", token=tokens["alpha"]) as alpha_at_b,
        client(b, "modern", token=tokens["beta"]) as beta,
    ):
        session = begin(alpha, "alpha")
        handles = (session, "A" * 24, "x", "")
        said = {fails(beta, "load", names=["beta"], session=each).replace(repr(each), "it") for each in handles}
        assert len(said) == 1 and UNKNOWN in said.pop()
        assert readable(alpha_at_b, session, "alpha")
        assert UNKNOWN in fails(beta, "load", names=["beta"], session=session)  # also where it is known by now
    assert not any(secret in key for key in redis.all_keys() for secret in (session, "alpha", "beta"))


@loose
def test_files_that_a_script_left_elsewhere_are_said_to_be_there(redis: RealRedis, skills: Path) -> None:
    with pair(skills, redis.url, "--allow-scripts", *LOOSE) as (at_a, at_b):
        session = begin(at_a, "alpha")
        file = {"session": session, "path": "/workspace/out.txt"}
        assert "No script has run" in fails(at_b, "read", **file)
        for one, other in ((at_a, at_b), (at_b, at_a)):
            text, _, failed = call(one, "run_script", session=session, path="scripts/make.sh")
            assert not failed, text
            assert call(one, "read", **file)[0] == "made\n"
            text = fails(other, "read", session=session, path=f"/workspace/{other.server.port}.txt")
            assert "ran on another replica" in text and "\n" not in text


def reads_go_on(one: HttpClient) -> None:
    """What needs nothing shared is answered."""
    entry, *_ = one.every_skill()
    assert one.read(entry["resources"][0]["uri"])
    for tool, arguments in (("list", {}), ("search", {"query": "alpha"})):
        assert not call(one, tool, **arguments)[2]


def test_while_redis_is_away_reads_go_on_and_afterwards_all_does(redis: RealRedis, skills: Path) -> None:
    with pair(skills, redis.url) as (at_a, at_b):
        session = begin(at_a, "alpha")
        servers = (at_a.server, at_b.server)
        redis.stop()
        for server in servers:
            server.said("reads go on")
        for _ in range(3):
            reads_go_on(at_a)
            reads_go_on(at_b)
            assert readable(at_a, session, "alpha")  # which is known there
            for one in (at_a, at_b):
                text = fails(one, "load", names=["beta"], session=session)
                assert AWAY in text and "127.0.0.1" not in text
                # A conversation that begins is the replica's own.
                text, structure, failed = call(one, "load", names=["beta"])
                assert not failed and "one replica" in text and "one replica" in structure["note"]
                assert readable(one, structure["session"], "beta")
        assert "there is no connection" in state(at_a.server)
        redis.start()
        for server in servers:
            server.said("answers again")
        # That Redis has forgotten everything. Whoever knows the session writes it again.
        assert UNKNOWN in fails(at_b, "read", session=session, skill="alpha", path="SKILL.md")
        assert readable(at_a, session, "alpha")
        assert readable(at_b, session, "alpha")
        for server in servers:
            assert server.stderr.count("reads go on") == server.stderr.count("answers again") == 1


NOT_REDIS: dict[str, tuple[Callable[[Any], object], str]] = {
    "silent": (lambda it: it.recv(1) and threading.Event().wait(DEADLINE), "it does not answer within 2 seconds"),
    "closing": (lambda _: None, "there is no connection"),
    "http": (lambda it: it.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "the server there is not Redis"),
    "noise": (lambda it: it.sendall(os.urandom(1 << 20)), "(the server there is not Redis|there is no connection)"),
    "long": (lambda it: it.sendall(b"$99999999999\r\n" + b"x" * (1 << 24)), "(does not answer|no connection)"),
}


@each_row("kind", NOT_REDIS)
def test_what_is_no_redis_is_one_line(skills: Path, kind: str) -> None:
    answer, words = NOT_REDIS[kind]
    with answering(answer) as port:
        is_told_in_one_line(skills, f"redis://:{SECRET}@127.0.0.1:{port}", words)


def is_told_in_one_line(skills: Path, url: str, words: str) -> None:
    """Why Redis cannot be used is told once and without the password, and its replica goes on."""
    with alone(skills, url) as one:
        one.server.said(words)
        for _ in range(3):
            text, _, failed = call(one, "load", names=["alpha"])
            assert not failed and "one replica" in text
            reads_go_on(one)
        one.server.said("redis://")
        assert one.server.stderr.count("redis://") == 1
        assert SECRET not in one.server.stderr + state(one.server)


@each_row(
    ("user", "database", "words"),
    [
        ("", 0, "it rejects the login .*MCP_SKILLS_REDIS_PASSWORD"), (f":{SECRET}x@", 0, "it rejects the login"),
        (f"nobody:{SECRET}@", 0, "it rejects the login"), (f":{SECRET}@", 99, "it has no database 99"),
    ],
)  # fmt: skip
def test_a_wrong_login_is_one_line(skills: Path, tmp_path: Path, user: str, database: int, words: str) -> None:
    with redis_server(tmp_path / "redis", "--requirepass", SECRET) as redis:
        is_told_in_one_line(skills, f"redis://{user}127.0.0.1:{redis.port}/{database}", words)


@pytest.mark.needs_program("openssl")
def test_over_tls_with_a_password_and_an_authority(skills: Path, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    port = free_port()
    tls = ("--tls-port", str(port), "--port", "0", "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with redis_server(tmp_path / "redis", *tls, "--tls-auth-clients", "no", "--requirepass", SECRET, port=port):
        url, password = f"rediss://localhost:{port}/0", {"MCP_SKILLS_REDIS_PASSWORD": SECRET}
        with pair(skills, url, "--redis-ca", certificate, environment=password) as (at_a, at_b):
            session = begin(at_a, "alpha")
            assert readable(at_b, session, "alpha")
            assert state(at_a.server) == f"Redis at {url}: connected"
        with replicas(skills, url, count=1, environment=password) as (a,):
            a.said("its certificate is not trusted; name its authority by --redis-ca")


def test_the_documented_user_may_all_that_is_needed(redis: RealRedis, skills: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "redis.md").read_text(encoding="utf-8")
    words = next(line.split() for line in text.splitlines() if line.startswith("ACL SETUSER"))
    assert redis.say(*(each.replace("PASSWORD", SECRET) for each in words)) == "OK"
    for script in (records._READ, records._WRITE, records._TAKE):
        used = re.findall(r"redis\.p?call\('(\w+)'", script)
        assert used and {f"+{each.lower()}" for each in used} <= {*words}
    url = redis.url.replace("redis://", f"redis://skills:{SECRET}@")
    with pair(skills, url) as (at_a, at_b):
        session = begin(at_a, "alpha")
        assert active(at_b, session, names=["beta"], mode="add") == ["alpha", "beta"]
        write_skill(skills / "delta")
        assert state(at_a.server).endswith(": connected")
        assert "redis://" not in at_a.server.stderr + at_b.server.stderr
    denied = redis.say("acl", "log")
    assert "skills" not in denied, denied


@pytest.mark.needs_program("git")
def test_a_webhook_at_one_replica_reaches_the_clients_of_all(redis: RealRedis, tmp_path: Path) -> None:
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
        streams = [one.hear() for one in clients]

        def all_see(count: int) -> None:
            for one, stream in zip(clients, streams, strict=True):
                while len(one.every_skill()) < count:
                    stream.until(LISTED)

        all_see(1)
        push("alpha", "beta")
        assert servers[0].send(path="/refresh", body=b"{}", headers={"X-Gitlab-Token": secret}).status == 202
        all_see(2)


def test_clients_hear_once_more_when_a_replica_has_caught_up(redis: RealRedis, skills: Path, tmp_path: Path) -> None:
    with pair(skills, redis.url) as (one, other):
        until(lambda: redis.say("--raw", "pubsub", "numsub", "mcp-skills:changes").endswith("2"))
        stream = one.listen(skillsListChanged=True)
        assert len(other.every_skill()) == 3
        other.server.process.send_signal(signal.SIGSTOP)
        try:
            write_skill(tmp_path / "delta")
            (tmp_path / "delta").rename(skills / "delta")  # one difference, and so one notification
            stream.until(LISTED)
        finally:
            other.server.process.send_signal(signal.SIGCONT)
        stream.until(LISTED)
        assert len(other.every_skill()) == 4  # what the client reads now is new, whichever replica it asks
