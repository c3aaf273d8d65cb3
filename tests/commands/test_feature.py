"""Features of `serve`: the plug-in interface, replicas with Redis, search by meaning, scripts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from catalog.forest import DEADLINE, skill_md, skills, write_files
from dispatching import local_serving
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.features.feature import Feature
from mcp_skills_server.commands.features.records import Audit, PrometheusMetrics, UsageCounts
from mcp_skills_server.commands.features.replicas import Replicas
from mcp_skills_server.commands.features.services import SharedState
from mcp_skills_server.commands.features.table import Publishing
from mcp_skills_server.commands.opening import OpenedRoots
from mcp_skills_server.commands.runtime_options import (
    KEY_VARIABLE,
    RuntimeOptions,
    SearchByMeaning,
    script_settings,
)
from mcp_skills_server.errors import UsageError
from mcp_skills_server.telemetry.events import Events
from runtime.embeddings import tiny
from shared.redis_servers import RealRedis, redis_server
from tables import each_row
from web.http_wire import http_serving, wait_until
from wire import FIXTURES, write_skill

METHODS_FEATURE = """
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mcp_skills_server import cli
from mcp_skills_server.commands.features import table
from mcp_skills_server.commands.features.feature import Feature
from mcp_skills_server.commands.fields import option
from mcp_skills_server.telemetry.gauge import Gauge
from mcp_skills_server.web.part import Part


class Methods(Feature, heading="Methods (--transport http)"):
    methods: str | None = option(None, "Show the called methods at this path.", metavar="PATH")

    def start(self, server):
        self.called = []
        self.unsubscribe = server.runtime.events.subscribe(
            lambda event: self.called.append(event.method)
        )

    def part(self, server, http):
        answer = lambda _: PlainTextResponse(" ".join(self.called))
        return Part([Route(self.methods, answer)])

    def gauges(self):
        return {"skills_methods": Gauge("Called methods.", len(self.called))}

    def state(self):
        return f"methods: {len(self.called)}"

    def stop(self):
        self.unsubscribe()


table.FEATURES = (*table.FEATURES, Methods)
cli.main()
"""


def test_feature_takes_one_class_and_one_table_row(tmp_path: Path) -> None:
    program = tmp_path / "methods.py"
    program.write_text(METHODS_FEATURE)
    with http_serving(
        FIXTURES,
        "--metrics",
        command=[sys.executable, "-u", str(program)],
        environment={"MCP_SKILLS_METHODS": "/methods"},
    ) as server:
        server.send("GET", "/.well-known/agent-skills/index.json")
        assert server.send("GET", "/methods").body == b"GET"
        assert b"skills_methods 1.0" in server.send("GET", "/metrics").body
        assert b"methods: 1" in server.send("GET", "/readyz?verbose").body


@dataclass
class Replica:
    """A registry, its replication feature, and the state that it shares."""

    registry: Registry
    feature: Replicas
    shared: SharedState


def start_replica(feature: Replicas, registry: Registry) -> Replica:
    return Replica(registry, feature, feature.share(OpenedRoots(registry, None), watch=True))


def test_unused_features_import_no_redis_or_page() -> None:
    code = """
import sys
from mcp_skills_server.commands.features.replicas import Replicas
from mcp_skills_server.web import app
from types import SimpleNamespace
assert Replicas().share(SimpleNamespace(poll_sources=int), watch=True).make_tool_sessions is None
print(sorted(name for name in sys.modules if name.startswith(("redis", "jinja2", "mcp_skills_server.shared"))))
"""
    assert subprocess.check_output([sys.executable, "-c", code]) == b"[]\n"


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_skills_server.commands.features.replicas.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r'pip install "\.\[redis\]"'):
        start_replica(Replicas(redis="redis://cache"), Registry([]))


@contextmanager
def running_replicas(redis: RealRedis, tree: Path, count: int) -> Iterator[list[Replica]]:
    """Run replicas that do not watch their folder, as on a network file system."""
    replicas: list[Replica] = []
    with ExitStack() as stack:
        for _ in range(count):
            registry = Registry([tree])
            registry.load()
            replica = start_replica(Replicas(redis=redis.url), registry)
            stack.callback(replica.feature.stop)
            replicas.append(replica)
        subscribers = ("--raw", "pubsub", "numsub", "mcp-skills:changes")
        wait_until(lambda: redis.say(*subscribers).endswith(str(count)))
        yield replicas


def publish_count(redis: RealRedis) -> str:
    """Return how often PUBLISH was called on the server; "" for never."""
    return redis.say("info", "commandstats").partition("cmdstat_publish:calls=")[2].split(",")[0]


@pytest.mark.needs_program("redis-server")
def test_change_noticed_by_one_replica_reaches_the_others(tmp_path: Path) -> None:
    tree = write_files(tmp_path / "skills", skills("a"))
    with redis_server(tmp_path / "redis") as redis, running_replicas(redis, tree, 3) as replicas:
        assert publish_count(redis) == ""
        write_files(tree, {**skills("b"), "a/SKILL.md": skill_md("a", body="Other.")})
        replicas[0].registry.refresh()
        wait_until(lambda: all("b" in each.registry.snapshot.skills for each in replicas))
        assert publish_count(redis) == "1"  # replicas do not publish a received change again


@pytest.mark.needs_program("redis-server")
def test_replicas_share_sessions_and_report_their_connection(tmp_path: Path) -> None:
    from mcp_skills_server.runtime.runtime import Runtime

    tree = write_files(tmp_path / "skills", skills("a"))

    async def share_session(first: Replica, second: Replica) -> None:
        sessions = first.shared.make_tool_sessions(Runtime(first.registry))
        session = sessions.new()
        await session.call("skills_load", {"names": ["a"]})
        await sessions.add(session, "me")
        other_sessions = second.shared.make_tool_sessions(Runtime(second.registry))
        async with other_sessions.open(session.session_id, "me") as found:
            await found.call("skills_list")
        assert found.active_skills == ["a"]
        for replica in (first, second):
            assert replica.feature.state().endswith(": connected")
            link = replica.feature._link
            assert link is not None
            await link.aclose()  # in the event loop of its connections

    with redis_server(tmp_path / "redis") as redis, running_replicas(redis, tree, 2) as (one, two):
        assert one.shared.poll_sources() == 0
        asyncio.run(share_session(one, two))


@each_row(("embeddings", "model", "message"), [
    ("http://example.org/v1", "m", "with https, or http on this machine"),
    ("ftp://localhost/v1", "m", "with https"), ("https://", "m", "with https"), ("https://[::1", "m", "cannot be read"),
    ("https://example.org:port/", "m", "cannot be read"),
    ("https://user:s3cret@example.org/v1", "m", KEY_VARIABLE), ("https://s3cret@example.org/v1", "m", KEY_VARIABLE),
    ("https://example.org/v1", None, "--embeddings-model"), ("/nowhere", None, "model.safetensors"),
    ("/nowhere", "m", "a folder has only one"), (None, "m", "give --embeddings URL too"),
])  # fmt: skip
def test_invalid_embeddings_options_are_reported_in_one_line(
    embeddings: str | None, model: str | None, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        SearchByMeaning(embeddings=embeddings, embeddings_model=model).start_embeddings(Registry([]), None)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value) and "s3cret" not in str(raised.value)


@each_row(("feature", "message"), [
    (Publishing(publish_only=True), "give --transport http"), (Audit(audit_required=True), "give --audit-log FILE too"),
    (Audit(audit_log="-"), "stdout belongs to the protocol"),
    (PrometheusMetrics(probe_address=":1"), "probe-address"),
    (PrometheusMetrics(probe_address="a:b"), "probe-address"),
    (PrometheusMetrics(probe_address="127.0.0.1:65536"), "probe-address"),
])  # fmt: skip
def test_feature_that_cannot_work_is_refused(feature: Feature, message: str) -> None:
    over_http = isinstance(feature, PrometheusMetrics)
    server: Any = SimpleNamespace(over_http=over_http, runtime=SimpleNamespace(events=Events()))
    with pytest.raises(UsageError, match=message):
        feature.start(server)


@each_row("feature", [Replicas(redis_password="x"), Replicas(redis_ca="/ca.pem")])
def test_settings_of_redis_without_its_url_are_refused(feature: Replicas) -> None:
    with pytest.raises(UsageError, match="give --redis URL too"):
        start_replica(feature, Registry([]))


@each_row(("counts", "message"), [
    (UsageCounts(usage_questions=True), "give --usage sqlite"), (UsageCounts(usage="sqlite:"), "write sqlite:FILE"),
])  # fmt: skip
def test_invalid_usage_options_are_refused(counts: UsageCounts, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        counts.open_store(Registry([tmp_path]), over_http=False)


SCRIPT_OPTIONS = {
    "interpreters": (".py=/x",), "script_env": ("A",), "script_folders": ("a",), "script_secrets": ("a:A",),
    "script_network_of": ("a",), "allow_code": True, "script_origins": ("https://a.example",), "approvals": "a",
}  # fmt: skip


@each_row(("options", "message"), [
    *(({name: value}, "give --allow-scripts too") for name, value in SCRIPT_OPTIONS.items()),
    *(({"allow_scripts": True, "interpreters": (each,)}, "write .EXT=PROGRAM") for each in (".py", "py=/x", ".py=")),
    *(({"allow_scripts": True, "script_secrets": (each,)}, "write SKILL:VARIABLE") for each in ("A", ":A", "a/b:")),
    ({"allow_scripts": True, "script_secrets": ("a/b:NOT_SET",)}, "no such variable in the server's environment"),
    ({"allow_scripts": True, "script_secrets": ("a/b:LD_PRELOAD",)}, "programs that start the sandbox"),
])  # fmt: skip
def test_invalid_script_options_are_refused(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    with pytest.raises(UsageError, match=message):
        script_settings(RuntimeOptions(**options))


def test_script_options_become_script_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "k")
    secrets = ("a:A_KEY", "https://B.example/#a:A_KEY")
    given = {"interpreters": (".PY=/x",), "script_timeout": 99_999.0, "script_secrets": secrets}
    made = script_settings(RuntimeOptions(allow_scripts=True, script_network_of=("a",), **given))
    assert made is not None
    assert made.interpreters == {".py": "/x"}
    assert made.network_of == ("a",)
    assert made.secrets == {"a": {"A_KEY": "k"}, "https://b.example#a": {"A_KEY": "k"}}
    assert made.max_timeout_s == 99_999
    assert script_settings(RuntimeOptions(), roots={"a": False}) is None
    with pytest.raises(UsageError, match="scripts = true; give --allow-scripts too"):
        script_settings(RuntimeOptions(), roots={"a": True})


@each_row("key", ["", " ", "two\nlines", "\u00fcber"])
def test_unsendable_embeddings_key_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(UsageError, match=KEY_VARIABLE):
        SearchByMeaning(embeddings="https://example.org/v1", embeddings_model="m").start_embeddings(Registry([]), None)


def test_server_searches_by_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "skills" / "alpha", description="All about an automobile")
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    cache = tmp_path / "cache"
    with tiny.endpoint() as models:
        options = ("--embeddings", models.url, "--embeddings-model", "tiny", "--cache-dir", str(cache))
        with local_serving(tmp_path / "skills", *options) as wire:
            models.wait_for(1)
            search = {"name": "skills_search", "arguments": {"query": "driving a lorry"}}
            deadline = time.monotonic() + DEADLINE
            found: list[dict[str, Any]] = []
            while not found and time.monotonic() < deadline:  # vectors are made in the background
                found = wire.request("tools/call", search)["structuredContent"]["skills"]
        assert models.requests[0].headers["authorization"] == "Bearer s3cret"
    assert models.inputs[0] == ["alpha\nThing\nAll about an automobile"]
    assert [each["name"] for each in found] == ["alpha"]
    assert (cache / "index" / "skills.sqlite3").exists()
