"""`[quota]`: what one may take over HTTP, what is said beyond it, and that nobody pays for what another one takes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from programs import LOOSE, loose
from shared.redis_servers import redis_server, until
from web.http_wire import BOTH, HELLO, MODERN_META, HttpClient, Reply, Server, client, http_serving
from wire import DEADLINE, VERSIONS, write_skill

MIB = 1 << 20
TOKENS = {name: f"a-made-up-token-of-{name}" for name in ("alpha", "beta", "gamma")}
PATCHED = "import sys\nfrom mcp_skills_server.cli import main\n{0}\nmain(sys.argv[1:])\n"


@contextmanager
def limited(
    tmp_path: Path, quota: str, *options: str | Path, tokens: bool = True, patch: str = "", **more: Any
) -> Iterator[Server]:
    """A server with these quotas, for the bearers of some tokens."""
    if not (tmp_path / "skills").exists():
        write_skill(tmp_path / "skills" / "one")
    (tmp_path / "config.toml").write_text(f"roots = ['skills']\n[quota]\n{quota}\n")
    (tmp_path / "tokens").write_text("".join(f"{name}={secret}\n" for name, secret in TOKENS.items()))
    (tmp_path / "tokens").chmod(0o600)
    given = ["--config", tmp_path / "config.toml", *options]
    if tokens:
        given += ["--token-file", tmp_path / "tokens"]
    command = [sys.executable, "-c", PATCHED.format(patch)] if patch else None
    with http_serving(*given, command=command, **more) as server:
        yield server


def bearer(server: Server, name: str, era: Any = "modern") -> HttpClient:
    return HttpClient(server, era, token=TOKENS[name])


def ping(one: HttpClient) -> Reply:
    return one.post(one.message("skills/list"))


def said_over(reply: Reply, quota: str) -> None:
    """It is the answer to who is over this quota."""
    assert reply.error == (429, -32000, None)
    error = reply.messages[0]["error"]
    assert error["data"] == {"quota": quota} and quota in error["message"]
    assert int(reply.headers["Retry-After"]) >= 1 and reply.headers["Cache-Control"] == "no-store"


def send(server: Server, headers: Mapping[str, str], *, source: str = "127.0.0.1") -> Reply:
    """A handshake from an address of this machine, with these headers beside."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE, source_address=(source, 0))
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO})
    try:
        connection.request("POST", "/mcp", body, {"Content-Type": "application/json", "Accept": BOTH, **headers})
        with connection.getresponse() as response:
            return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def over_rpc(server: Server, name: str, method: str, **params: Any) -> dict[str, Any]:
    """The answer of the Skills Protocol to a bearer."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKENS[name]}"}
    return server.send(path="/rpc", body=body, headers=headers).messages[0]


# Rates


def test_who_asks_too_often_gets_429_and_nobody_else(tmp_path: Path) -> None:
    with limited(tmp_path, "requests-per-minute = 3") as server:
        alpha, beta = bearer(server, "alpha"), bearer(server, "beta")
        assert [ping(alpha).status for _ in range(3)] == [200] * 3
        said_over(ping(alpha), "requests-per-minute")
        assert over_rpc(server, "alpha", "list_skills")["error"]["data"] == {"quota": "requests-per-minute"}
        assert [ping(beta).status for _ in range(3)] == [200] * 3
        assert server.send("GET", "/healthz").status == 200
        server.said("quota requests-per-minute: token:alpha wants more than 3")


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8")
def test_where_nobody_proves_anything_addresses_are_counted(tmp_path: Path) -> None:
    with limited(tmp_path, "requests-per-minute = 2", tokens=False) as server:
        assert [send(server, {}).status for _ in range(3)] == [200, 200, 429]
        assert [send(server, {}, source="127.0.0.2").status for _ in range(3)] == [200, 200, 429]


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8")
def test_who_proves_nobody_too_often_gets_429_and_a_token_is_still_let_in(tmp_path: Path) -> None:
    with limited(tmp_path, "failed-authentications-per-minute = 3") as server:
        wrong, right = {"Authorization": "Bearer wrong-0123456789"}, {"Authorization": f"Bearer {TOKENS['alpha']}"}
        assert [send(server, each).status for each in (wrong, {}, right, wrong)] == [401, 401, 200, 401]
        said_over(send(server, wrong), "failed-authentications-per-minute")
        assert send(server, {}).status == 429
        assert send(server, right).status == 200
        assert send(server, wrong, source="127.0.0.2").status == 401


def test_behind_a_proxy_clients_are_counted_by_their_own_addresses(tmp_path: Path) -> None:
    quota = "failed-authentications-per-minute = 2\nrequests-per-minute = 2"
    with limited(tmp_path, quota, "--trusted-proxy", "127.0.0.1") as server:
        one, other = {"X-Forwarded-For": "192.0.2.1"}, {"X-Forwarded-For": "192.0.2.2"}
        assert [send(server, one).status for _ in range(3)] == [401, 401, 429]
        assert send(server, other).status == 401
    with limited(tmp_path, quota, "--trusted-proxy", "127.0.0.1", tokens=False) as server:
        assert [send(server, one).status for _ in range(3)] == [200, 200, 429]
        assert send(server, other).status == 200


@pytest.mark.needs_program("redis-server")
def test_replicas_count_requests_as_one_and_each_for_itself_while_redis_is_away(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as redis, ExitStack() as stack:
        options = ("requests-per-minute = 6", "--redis", redis.url)
        servers = [stack.enter_context(limited(tmp_path, *options)) for _ in range(2)]
        both = [bearer(each, "alpha") for each in servers]
        statuses = [ping(both[number % 2]).status for number in range(8)]
        assert statuses == [200] * 6 + [429] * 2
        assert ping(bearer(servers[1], "beta")).status == 200
        redis.stop()
        for server in servers:
            until(
                lambda server=server: b"connected" not in server.send("GET", "/readyz?verbose").body, "the end of Redis"
            )
        gammas = [bearer(each, "gamma") for each in servers]
        assert [ping(each).status for each in gammas for _ in range(7)] == ([200] * 6 + [429]) * 2


def test_rates_change_at_once_and_the_rest_at_the_next_start(tmp_path: Path) -> None:
    with limited(tmp_path, "requests-per-minute = 1") as server:
        alpha = bearer(server, "alpha")
        assert [ping(alpha).status for _ in range(2)] == [200, 429]
        (tmp_path / "config.toml").write_text("roots = ['skills']\n[quota]\nrequests-per-minute = 2\nstreams = 3\n")
        server.process.send_signal(signal.SIGHUP)
        server.said("WARNING: .*config.toml: quota: this takes effect at the next start\n")
        assert [ping(alpha).status for _ in range(3)] == [200, 200, 429]
        (tmp_path / "config.toml").write_text("roots = ['skills']\n[quota]\nstreams = 3\n")
        server.process.send_signal(signal.SIGHUP)
        server.said("config.toml was read again", 2)
        until(lambda: ping(alpha).status == 200)
        assert [ping(alpha).status for _ in range(4)] == [200] * 4


# What is held


def test_legacy_sessions_end_ones_own_oldest_idle_and_where_none_is_429(tmp_path: Path) -> None:
    with limited(tmp_path, "sessions = 2") as server, ExitStack() as stack:

        def opened(name: str) -> HttpClient:
            return stack.enter_context(client(server, "legacy", token=TOKENS[name]))

        theirs = [opened("beta") for _ in range(2)]
        mine = [opened("alpha") for _ in range(2)]
        assert ping(mine[0]).status == 200  # so the other one is idle for longer
        mine.append(opened("alpha"))
        assert [ping(each).status for each in mine] == [200, 404, 200]
        assert [ping(each).status for each in theirs] == [200, 200]
        for each in (mine[0], mine[2]):
            each.follow()
        late = bearer(server, "alpha", "legacy")
        said_over(late.post(late.message("initialize", HELLO)), "sessions")
        assert [ping(each).status for each in (mine[0], mine[2], *theirs)] == [200] * 4


def test_listen_streams_end_ones_own_oldest(tmp_path: Path) -> None:
    with limited(tmp_path, "streams = 2") as server, ExitStack() as stack:
        alpha, beta = (stack.enter_context(client(server, "modern", token=TOKENS[name])) for name in ("alpha", "beta"))
        theirs = beta.listen(skillsListChanged=True)
        mine = [alpha.listen(number, skillsListChanged=True) for number in range(3)]
        (last,) = mine[0].rest()
        assert last["result"]["resultType"] == "complete"
        write_skill(tmp_path / "skills" / "two")
        for each in (mine[1], mine[2], theirs):
            each.until("notifications/skills/list_changed")


def test_where_others_have_all_streams_who_has_none_is_refused_with_the_name(tmp_path: Path) -> None:
    patch = "from mcp_skills_server.server import notify\nnotify.MOST_STREAMS = 2"
    with limited(tmp_path, "", patch=patch) as server, ExitStack() as stack:
        for name in ("alpha", "beta"):
            stack.enter_context(client(server, "modern", token=TOKENS[name])).listen(skillsListChanged=True)
        gamma = bearer(server, "gamma")
        reply = gamma.post(gamma.message("subscriptions/listen", {"notifications": {"skillsListChanged": True}}))
        (error,) = (each["error"] for each in reply.messages)
        assert (error["code"], error["data"]) == (-32000, {"quota": "streams"}) and "streams" in error["message"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a kernel whose buffers are as large as they are set")
def test_answers_left_unread_cost_ones_own_oldest_connection(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "big")
    (tmp_path / "skills" / "big" / "file.bin").write_bytes(os.urandom(12 * MIB))
    uri = "skill://big/file.bin"
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": uri, "_meta": MODERN_META}}
    )

    def asked(name: str) -> socket.socket:
        bare = stack.enter_context(server.connect(receive_buffer=4096))
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: {BOTH}\r\n"
            f"Authorization: Bearer {TOKENS[name]}\r\nMCP-Protocol-Version: {VERSIONS['modern']}\r\n"
            f"Mcp-Method: resources/read\r\nMcp-Name: {uri}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        bare.sendall((head + body).encode())
        assert bare.recv(15, socket.MSG_PEEK) == b"HTTP/1.1 200 OK"
        return bare

    def whole(bare: socket.socket) -> bool:
        """Whether all of an answer comes."""
        size = 0
        try:
            while size < 16 * MIB and (found := bare.recv(MIB)):
                size += len(found)
        except ConnectionResetError:
            return False
        return size >= 16 * MIB

    with limited(tmp_path, "unread-bytes = 20_000_000") as server, ExitStack() as stack:
        theirs, oldest, youngest = asked("beta"), asked("alpha"), asked("alpha")
        server.said("cut off a client that left its answer unread: quota unread-bytes: more than 20,000,000 waited")
        assert not whole(oldest)
        assert whole(youngest) and whole(theirs)


def test_sessions_of_the_tools_end_ones_own_oldest(tmp_path: Path) -> None:
    def load(one: HttpClient, **more: Any) -> dict[str, Any]:
        return one.request("tools/call", {"name": "skills_load", "arguments": {"names": ["one"], **more}})

    def handle(one: HttpClient) -> str:
        return load(one)["structuredContent"]["session"]

    with limited(tmp_path, "runtime-sessions = 2") as server:
        alpha, beta = bearer(server, "alpha"), bearer(server, "beta")
        theirs = [handle(beta) for _ in range(2)]
        mine = [handle(alpha) for _ in range(3)]
        assert ["isError" in load(alpha, session=each) for each in mine] == [True, False, False]
        assert not any("isError" in load(beta, session=each) for each in theirs)


@loose
def test_blobs_end_ones_own_oldest_and_one_beyond_all_is_refused_with_the_name(tmp_path: Path) -> None:
    with limited(tmp_path, "blob-bytes = 200_000", "--allow-scripts", *LOOSE) as server:

        def kept(name: str) -> str:
            return over_rpc(server, name, "create_blob", content="x" * 90_000)["result"]["blob_id"]

        theirs = [kept("beta") for _ in range(2)]
        mine = [kept("alpha") for _ in range(3)]
        found = ["result" in over_rpc(server, "gamma", "read_blob", blob_id=each) for each in (*mine, *theirs)]
        assert found == [False, True, True, True, True]
        error = over_rpc(server, "alpha", "create_blob", content="x" * 200_001)["error"]
        assert (error["code"], error["data"]) == (-32000, {"quota": "blob-bytes"}) and "blob-bytes" in error["message"]


def test_runs_at_once_of_one_are_never_all(tmp_path: Path, sandbox_mode: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)  # a root server's scripts are nobody
    hold = f"touch {shared}/begun; while [ ! -e {shared}/go ]; do sleep 0.05; done\n"
    write_skill(tmp_path / "skills" / "one", scripts__hold_sh=hold, scripts__quick_sh="echo done\n")
    options = ("--allow-scripts", "--allow-code", "--script-concurrency", "2", "--sandbox", sandbox_mode)
    patch = "from mcp_skills_server.runtime.scripts import runner\nrunner.PATIENCE_S = 0.3"

    def run(name: str, script: str) -> dict[str, Any]:
        one = bearer(server, name)
        arguments = {"names": ["one"]}
        session = one.request("tools/call", {"name": "skills_load", "arguments": arguments})
        arguments = {"session": session["structuredContent"]["session"], "path": f"scripts/{script}.sh"}
        return one.request("tools/call", {"name": "skills_run_script", "arguments": arguments})

    with limited(tmp_path, "", *options, "--script-folder", shared, patch=patch) as server:
        ended: list[dict[str, Any]] = []
        holding = threading.Thread(target=lambda: ended.append(run("alpha", "hold")), daemon=True)
        holding.start()
        until(lambda: (shared / "begun").exists() or ended)
        assert not ended, ended
        refused = run("alpha", "quick")
        assert refused["isError"] and "(quota runs)" in refused["content"][0]["text"]
        error = over_rpc(server, "alpha", "run_code", language="python", code="print(1)")["error"]
        assert (error["code"], error["data"]) == (-32000, {"quota": "runs"})
        assert "isError" not in run("beta", "quick")
        (shared / "go").touch()
        holding.join(DEADLINE)
        assert len(ended) == 1 and "isError" not in ended[0]
        assert "isError" not in run("alpha", "quick")


def test_over_stdio_the_table_is_named_as_unused(tmp_path: Path) -> None:
    from wire import serving

    write_skill(tmp_path / "skills" / "one")
    (tmp_path / "config.toml").write_text("roots = ['skills']\n[quota]\nruns = 1\n")
    with serving("--config", tmp_path / "config.toml") as wire:
        wire.logs(b"unused without --transport http: [quota]")


def test_the_calls_of_a_batch_count_one_by_one(tmp_path: Path) -> None:
    batch = [{"jsonrpc": "2.0", "id": number, "method": "list_skills"} for number in range(5)]
    headers = {"Content-Type": "application/json"}
    with limited(tmp_path, "requests-per-minute = 7", tokens=False) as server:
        first = server.send("POST", "/rpc", json.dumps(batch).encode(), headers)
        assert (first.status, len(json.loads(first.body))) == (200, 5)
        said_over(server.send("POST", "/rpc", json.dumps(batch).encode(), headers), "requests-per-minute")
