"""`[quota]`: what one may take over HTTP, what is said beyond it, and that nobody pays for what another one takes."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.redis_servers import redis_server
from web.http_wire import HELLO, JSON, HttpClient, Reply, Server, client, http_serving, token_file, until
from wire import DEADLINE, write_skill

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
    given = ["--config", tmp_path / "config.toml", *options]
    if tokens:
        lines = [f"{name}={secret}" for name, secret in TOKENS.items()]
        given += ["--token-file", token_file(tmp_path, *lines)]
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


def test_who_asks_too_often_gets_429_and_nobody_else(tmp_path: Path) -> None:
    with limited(tmp_path, "requests-per-minute = 3") as server:
        alpha, beta = bearer(server, "alpha"), bearer(server, "beta")
        assert [ping(alpha).status for _ in range(3)] == [200] * 3
        said_over(ping(alpha), "requests-per-minute")
        assert server.rpc("list_skills", token=TOKENS["alpha"])["error"]["data"] == {"quota": "requests-per-minute"}
        assert [ping(beta).status for _ in range(3)] == [200] * 3
        probes = [server.send("GET", path).status for path in 2 * ("/healthz", "/readyz")]
        assert probes == [200] * 4, "probes are not counted"
        server.said("quota requests-per-minute: token:alpha exceeded 3")


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8")
def test_who_proves_nobody_too_often_gets_429_and_a_token_is_still_let_in(tmp_path: Path) -> None:
    with limited(tmp_path, "failed-authentications-per-minute = 3") as server:

        def ask(token: str | None, source: str = "127.0.0.1") -> Reply:
            one = HttpClient(server, "legacy", token=token, source=source)
            return one.post(one.message("initialize", HELLO))

        wrong, right = "wrong-0123456789", TOKENS["alpha"]
        assert [ask(each).status for each in (wrong, None, right, wrong)] == [401, 401, 200, 401]
        said_over(ask(wrong), "failed-authentications-per-minute")
        assert ask(None).status == 429
        assert ask(right).status == 200
        assert ask(wrong, source="127.0.0.2").status == 401


def test_each_quota_of_what_is_held_is_in_force(tmp_path: Path, sandbox_mode: str) -> None:
    def load(**more: Any) -> dict[str, Any]:
        return one.call("skills_load", names=["one"], **more)

    held = "streams = 1\nruntime-sessions = 1\nblob-bytes = 200_000"
    with limited(tmp_path, held, "--allow-scripts", "--sandbox", sandbox_mode) as server, ExitStack() as stack:
        one = stack.enter_context(client(server, "modern", token=TOKENS["alpha"]))
        first, _ = (one.listen(number, skillsListChanged=True) for number in range(2))
        (last,) = first.rest()
        assert last["result"]["resultType"] == "complete"
        handles = [load()["structuredContent"]["session"] for _ in range(2)]
        assert ["isError" in load(session=each) for each in handles] == [True, False]
        error = server.rpc("create_blob", token=TOKENS["alpha"], content="x" * 200_001)["error"]
        assert (error["code"], error["data"]) == (-32000, {"quota": "blob-bytes"}) and "blob-bytes" in error["message"]


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
            until(lambda server=server: b"connected" not in server.send("GET", "/readyz?verbose").body)
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
        server.said("config.toml was reloaded", 2)
        until(lambda: ping(alpha).status == 200)
        assert [ping(alpha).status for _ in range(4)] == [200] * 4


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


@pytest.mark.parametrize(("quota", "slots"), [("", "2"), ("runs = 1", "4")])
def test_runs_at_once_of_one_are_never_all(tmp_path: Path, sandbox_mode: str, quota: str, slots: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)  # a root server's scripts are nobody
    hold = f"touch {shared}/begun; while [ ! -e {shared}/go ]; do sleep 0.05; done\n"
    write_skill(tmp_path / "skills" / "one", scripts__hold_sh=hold, scripts__quick_sh="echo done\n")
    options = ("--allow-scripts", "--allow-code", "--script-concurrency", slots, "--sandbox", sandbox_mode)
    patch = "from mcp_skills_server.runtime.scripts import runner\nrunner.SLOT_TIMEOUT_S = 0.3"

    def run(name: str, script: str) -> dict[str, Any]:
        one = bearer(server, name)
        loaded = one.call("skills_load", names=["one"])
        given = {"session": loaded["structuredContent"]["session"], "path": f"scripts/{script}.sh"}
        return one.call("skills_run_script", **given)

    options += ("--script-folder", str(shared))
    with limited(tmp_path, quota, *options, patch=patch) as server, ThreadPoolExecutor(1) as pool:
        holding = pool.submit(run, "alpha", "hold")
        until(lambda: (shared / "begun").exists() or holding.done())
        refused = run("alpha", "quick")
        assert refused["isError"] and "(quota runs)" in refused["content"][0]["text"]
        error = server.rpc("run_code", token=TOKENS["alpha"], language="python", code="print(1)")["error"]
        assert (error["code"], error["data"]) == (-32000, {"quota": "runs"})
        assert "isError" not in run("beta", "quick")
        (shared / "go").touch()
        assert "isError" not in holding.result(DEADLINE)
        assert "isError" not in run("alpha", "quick")


def test_the_calls_of_a_batch_count_one_by_one_and_a_refused_batch_counts_as_one(tmp_path: Path) -> None:
    batch = json.dumps([{"jsonrpc": "2.0", "id": number, "method": "list_skills"} for number in range(5)]).encode()
    with limited(tmp_path, "requests-per-minute = 7", tokens=False) as server:
        first = server.send("POST", "/rpc", batch, JSON)
        assert (first.status, len(json.loads(first.body))) == (200, 5)
        said_over(server.send("POST", "/rpc", batch, JSON), "requests-per-minute")
        assert "result" in server.rpc("list_skills")
        said_over(server.send("POST", "/rpc", batch, JSON), "requests-per-minute")
