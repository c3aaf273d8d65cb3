"""Quotas over HTTP: each limit, its refusal, and its independence of other clients."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.runtime.scripts import runner
from shared.redis_servers import redis_server
from tables import each_row
from web.http_wire import (
    HELLO,
    JSON,
    HttpClient,
    Reply,
    Server,
    Target,
    bearer_header,
    client,
    http_serving,
    token_file,
    wait_until,
)
from web.in_process import app_serving
from wire import DEADLINE, write_skill

MIB = 1 << 20
TOKENS = {name: f"a-made-up-token-of-{name}" for name in ("alpha", "beta", "delta", "gamma")}


def write_config(folder: Path, quota: str) -> None:
    """Write a configuration with the limits in `quota`, in which other tables `[[quota]]` may follow."""
    head = "[[quota]]" if "[[quota]]" in quota else "[quota]"
    (folder / "config.toml").write_text(f"roots = ['skills']\n{head}\n{quota}\n")


@contextmanager
def quota_server(
    folder: Path, quota: str, *options: str | Path, tokens: bool = True, serving: Any = app_serving, **more: Any
) -> Iterator[Any]:
    """Serve a skill with these limits to `TOKENS`; gamma is in the group ci."""
    if not (folder / "skills").exists():
        write_skill(folder / "skills" / "one")
    write_config(folder, quota)
    given = ["--config", folder / "config.toml", *options]
    if tokens:
        lines = [f"{name}={secret}" for name, secret in TOKENS.items()]
        lines[-1] += " groups=ci"
        given += ["--token-file", token_file(folder, *lines)]
    with serving(*given, **more) as server:
        yield server


def client_of(server: Target, name: str, era: Any = "modern") -> HttpClient:
    return HttpClient(server, era, token=TOKENS[name])


def send(sender: HttpClient) -> Reply:
    return sender.post(sender.message("skills/list"))


def assert_over_quota(reply: Reply, quota: str) -> None:
    assert reply.error == (429, 429, None)
    error = reply.messages[0]["error"]
    assert error["data"] == {"quota": quota} and quota in error["message"]
    assert int(reply.headers["Retry-After"]) >= 1
    assert reply.headers["Cache-Control"] == "no-store"


@pytest.mark.requirement("MCP-20")
def test_client_over_request_rate_gets_429_but_others_do_not(tmp_path: Path) -> None:
    with quota_server(tmp_path, "requests-per-minute = 3") as server:
        alpha, beta = client_of(server, "alpha"), client_of(server, "beta")
        assert [send(alpha).status for _ in range(3)] == [200] * 3
        assert_over_quota(send(alpha), "requests-per-minute")
        error = server.rpc("list_skills", token=TOKENS["alpha"])["error"]
        assert error["data"] == {"quota": "requests-per-minute"}
        assert [send(beta).status for _ in range(3)] == [200] * 3
        for path in 2 * ("/healthz", "/readyz"):
            assert server.send("GET", path).status == 200  # probes do not count
        server.wait_for_log("quota requests-per-minute: token:alpha exceeded 3")


def test_address_over_failed_authentications_gets_429_unless_token_is_valid(tmp_path: Path) -> None:
    with quota_server(tmp_path, "failed-authentications-per-minute = 3") as server:

        def initialize(token: str | None, source: str = "127.0.0.1") -> Reply:
            sender = HttpClient(server, "legacy", token=token, source=source)
            return sender.post(sender.message("initialize", HELLO))

        wrong, right = "wrong-0123456789", TOKENS["alpha"]
        statuses = [initialize(token).status for token in (wrong, None, right, wrong)]
        assert statuses == [401, 401, 200, 401]
        assert_over_quota(initialize(wrong), "failed-authentications-per-minute")
        assert initialize(None).status == 429
        assert initialize(right).status == 200
        assert initialize(wrong, source="127.0.0.2").status == 401


@pytest.mark.needs_program("redis-server")
def test_replicas_share_request_counts_while_redis_is_reachable(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as redis, ExitStack() as stack:
        quota = "requests-per-minute = 6\n[[quota]]\nwho = ['token:delta']\nrequests-per-minute = 3"
        options = (quota, "--redis", redis.url)
        servers = [stack.enter_context(quota_server(tmp_path, *options, serving=http_serving)) for _ in range(2)]
        alphas = [client_of(server, "alpha") for server in servers]
        statuses = [send(alphas[number % 2]).status for number in range(8)]
        assert statuses == [200] * 6 + [429] * 2
        deltas = [client_of(server, "delta") for server in servers]
        assert [send(deltas[number % 2]).status for number in range(5)] == [200] * 3 + [429] * 2
        assert send(client_of(servers[1], "beta")).status == 200
        batch = json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "list_skills"}] * 4).encode()
        headers = JSON | bearer_header(TOKENS["beta"])
        for server, status in zip(servers, (200, 429), strict=True):
            assert server.send("POST", "/rpc", batch, headers).status == status
        redis.stop()
        for server in servers:
            wait_until(lambda server=server: b"connected" not in server.send("GET", "/readyz?verbose").body)
        for server in servers:
            gamma = client_of(server, "gamma")
            assert [send(gamma).status for _ in range(7)] == [200] * 6 + [429]


def test_reload_changes_quotas_at_once_unless_the_file_is_broken(tmp_path: Path) -> None:
    with quota_server(tmp_path, "requests-per-minute = 1\nstreams = 1") as server:

        def reload(quota: str) -> None:
            write_config(tmp_path, quota)
            server.reload()

        alpha = client_of(server, "alpha")
        assert [send(alpha).status for _ in range(2)] == [200, 429]
        reload("streams = 1\n[[quota]]\nwho = ['alpha']\nstreams = 3")
        server.wait_for_log("config.toml:5: quota.who: it does not take this value; .*stays as it was")
        assert send(alpha).status == 429
        reload("streams = 1\n[[quota]]\nwho = ['token:alpha']\nstreams = 3")
        server.wait_for_log("config.toml was reloaded")
        assert [send(alpha).status for _ in range(4)] == [200] * 4
        listen_exactly(server, "alpha", 3)
        server.wait_for_log("WARNING: refused a stream of token:alpha: .*at most 3 ")
        listen_exactly(server, "beta", 1)
        assert "takes effect at the next start" not in server.stderr


def request_exactly(server: Target, name: str, limit: int) -> None:
    sender = client_of(server, name)
    assert [send(sender).status for _ in range(limit + 1)] == [200] * limit + [429]


def listen_exactly(server: Target, name: str, limit: int) -> None:
    sender = client_of(server, name)
    with closing(sender):
        for number in range(limit):
            sender.listen(number)
        refused = sender.post(sender.message("subscriptions/listen", {"notifications": {}}))
        assert refused.error[:2] == (503, 429) and refused.headers["Retry-After"] == "10"
        assert f"at most {limit} (quota streams)" in refused.messages[0]["error"]["message"]
        assert refused.messages[0]["error"]["data"] == {"quota": "streams"}


def open_exactly(server: Target, name: str, limit: int) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(client(server, "legacy", token=TOKENS[name])) for _ in range(limit + 1)]
        assert [send(each).status for each in opened] == [404] + [200] * limit


def load_exactly(server: Target, name: str, limit: int) -> None:
    sender = client_of(server, name)
    loaded = [sender.call("skills_load", names=["one"]) for _ in range(limit + 1)]
    handles = [each["structuredContent"]["session"] for each in loaded]
    found = ["isError" not in sender.call("skills_load", names=["one"], session=each) for each in handles]
    assert found == [False] + [True] * limit


def store_exactly(server: Target, name: str, limit: int) -> None:
    count, blob = limit // 100_000, "x" * 100_000
    stored = [server.rpc("create_blob", token=TOKENS[name], content=blob) for _ in range(count + 1)]
    names = [each["result"]["blob_id"] for each in stored]
    read = [server.rpc("read_blob", token=TOKENS[name], blob_id=each) for each in names]
    assert ["error" not in each for each in read] == [False] + [True] * count, read
    error = server.rpc("create_blob", token=TOKENS[name], content="x" * (limit + 1))["error"]
    assert (error["code"], error["data"]) == (429, {"quota": "blob-bytes"}) and "blob-bytes" in error["message"]


def leave_unread_exactly(server: Server, name: str, limit: int) -> None:
    sender = client_of(server, name)
    request = sender.raw(sender.message("resources/read", {"uri": "skill://one/large.txt"}))
    request = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    with server.connect(receive_buffer=4096) as first, server.connect(receive_buffer=4096) as second:
        for connection in (first, second):
            connection.sendall(request)
            assert connection.recv(1, socket.MSG_PEEK)
        if limit < MIB:
            server.wait_for_log(f"cut off .*: quota unread-bytes: more than {limit:,} bytes unread by token:{name}")
        else:
            for connection in (first, second):
                with connection.makefile("rb") as answer:
                    assert len(answer.read()) > 8 * MIB


@each_row(("quota", "limits", "use_exactly"), [
    ("requests-per-minute", (1, 3), request_exactly), ("streams", (1, 3), listen_exactly),
    ("sessions", (1, 3), open_exactly), ("runtime-sessions", (1, 3), load_exactly),
])  # fmt: skip
def test_table_with_who_sets_each_quota_of_its_principals(
    tmp_path: Path, quota: str, limits: tuple[int, int], use_exactly: Callable[[Target, str, int], None]
) -> None:
    small, large = limits
    tables = f"{quota} = {small}\n[[quota]]\nwho = ['token:beta', 'group:ci']\n{quota} = {large}"
    with quota_server(tmp_path, tables) as server:
        for name, limit in (("alpha", small), ("beta", large), ("gamma", large)):
            use_exactly(server, name, limit)


@each_row(("quota", "limits", "use_exactly"), [
    ("blob-bytes", (100_000, 300_000), store_exactly), ("unread-bytes", (10_000, 100 * MIB), leave_unread_exactly),
])  # fmt: skip
def test_table_with_who_sets_quotas_of_bytes(
    tmp_path: Path, sandbox_mode: str, quota: str, limits: tuple[int, int], use_exactly: Callable[[Any, str, int], None]
) -> None:
    small, large = limits
    write_skill(tmp_path / "skills" / "one", large_txt="0123456789abcde\n" * (8 << 16))
    tables = f"{quota} = {small}\n[[quota]]\nwho = ['token:beta', 'group:ci']\n{quota} = {large}"
    options = ("--allow-scripts", "--sandbox", sandbox_mode)
    with quota_server(tmp_path, tables, *options, serving=http_serving) as server:
        for name, limit in (("alpha", small), ("beta", large), ("gamma", large)):
            use_exactly(server, name, limit)


def test_live_page_counts_as_a_stream_of_its_viewer_and_ends_no_other(tmp_path: Path) -> None:
    def status_of_page(name: str) -> bytes:
        connection = stack.enter_context(server.connect())
        head = f"GET /ui/live/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS[name]}\r\n\r\n"
        connection.sendall(head.encode())
        answer = connection.recv(4096)
        assert (b"retry-after: 10\r\n" in answer) is (b" 503 " in answer)
        return answer.split()[1]

    quota = "streams = 1\n[[quota]]\nwho = ['token:alpha']\nstreams = 3"
    with quota_server(tmp_path, quota, "--ui", serving=http_serving) as server, ExitStack() as stack:
        server.until_ready()
        alpha = stack.enter_context(client(server, "modern", token=TOKENS["alpha"]))
        listening = alpha.listen()
        assert [status_of_page(name) for name in ("alpha", "alpha", "alpha", "beta", "beta")] == [
            b"200", b"200", b"503", b"200", b"503",
        ]  # fmt: skip
        refused = alpha.post(alpha.message("subscriptions/listen", {"notifications": {}}))
        assert refused.status == 503 and listening.whole is None


def test_session_quota_evicts_own_longest_idle_session_else_429(tmp_path: Path) -> None:
    with quota_server(tmp_path, "sessions = 2") as server, ExitStack() as stack:

        def opened(name: str) -> HttpClient:
            return stack.enter_context(client(server, "legacy", token=TOKENS[name]))

        betas = [opened("beta") for _ in range(2)]
        first, second = opened("alpha"), opened("alpha")
        assert send(first).status == 200  # the second one is idle for longer
        third = opened("alpha")
        assert [send(each).status for each in (first, second, third)] == [200, 404, 200]
        assert [send(each).status for each in betas] == [200, 200]
        first.follow()
        third.follow()
        fourth = client_of(server, "alpha", "legacy")
        assert_over_quota(fourth.post(fourth.message("initialize", HELLO)), "sessions")
        assert [send(each).status for each in (first, third, *betas)] == [200] * 4


@pytest.mark.parametrize(
    ("quota", "slots"),
    [("", "2"), ("runs = 1", "4"), ("sessions = 9\n[[quota]]\nwho = ['token:alpha']\nruns = 1", "4")],
)
def test_one_client_cannot_hold_all_script_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox_mode: str, quota: str, slots: str
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)  # scripts of a root server run as user nobody
    hold = f"touch {shared}/begun; while [ ! -e {shared}/go ]; do sleep 0.05; done\n"
    write_skill(tmp_path / "skills" / "one", scripts__hold_sh=hold, scripts__quick_sh="echo done\n")
    options = ("--allow-scripts", "--allow-code", "--script-concurrency", slots, "--sandbox", sandbox_mode)
    monkeypatch.setattr(runner, "SLOT_TIMEOUT_S", 0.3)

    def run(name: str, script: str) -> dict[str, Any]:
        caller = client_of(server, name)
        loaded = caller.call("skills_load", names=["one"])
        session = loaded["structuredContent"]["session"]
        return caller.call("skills_run_script", session=session, path=f"scripts/{script}.sh")

    options += ("--script-folder", str(shared))
    with quota_server(tmp_path, quota, *options) as server, ThreadPoolExecutor(1) as pool:
        holding = pool.submit(run, "alpha", "hold")
        wait_until(lambda: (shared / "begun").exists() or holding.done())
        refused = run("alpha", "quick")
        assert refused["isError"] and "(quota runs)" in refused["content"][0]["text"]
        error = server.rpc("run_code", token=TOKENS["alpha"], language="python", code="print(1)")["error"]
        assert (error["code"], error["data"]) == (429, {"quota": "runs"})
        assert "isError" not in run("beta", "quick")
        (shared / "go").touch()
        assert "isError" not in holding.result(DEADLINE)
        assert "isError" not in run("alpha", "quick")


def test_calls_of_batch_count_each_but_refused_batch_counts_once(tmp_path: Path) -> None:
    calls = [{"jsonrpc": "2.0", "id": number, "method": "list_skills"} for number in range(5)]
    batch = json.dumps(calls).encode()
    with quota_server(tmp_path, "requests-per-minute = 8", tokens=False) as server:
        reply = server.send("POST", "/rpc", json.dumps(calls * 2).encode(), JSON)
        assert reply.messages[0]["error"]["message"].endswith("; send at most 8 calls in a batch")
        reply = server.send("POST", "/rpc", batch, JSON)
        assert (reply.status, len(json.loads(reply.body))) == (200, 5)
        assert_over_quota(server.send("POST", "/rpc", batch, JSON), "requests-per-minute")
        assert "result" in server.rpc("list_skills")
        assert_over_quota(server.send("POST", "/rpc", batch, JSON), "requests-per-minute")
