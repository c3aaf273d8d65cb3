"""Features of `serve`: a new one is a file and a row; replicas in Redis; search by meaning."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from catalog.forest import DEADLINE, plant, skill_md, skills
from mcp_skills_server.access.quotas import QuotaSettings
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.features.endpoints import Publishing
from mcp_skills_server.commands.features.feature import Feature
from mcp_skills_server.commands.features.metrics import PrometheusMetrics
from mcp_skills_server.commands.features.records import Audit, UsageCounts
from mcp_skills_server.commands.features.replicas import Replicas
from mcp_skills_server.commands.runtime_options import (
    KEY_VARIABLE,
    RuntimeOptions,
    SearchByMeaning,
    script_settings,
)
from mcp_skills_server.commands.serve import ServeOptions
from mcp_skills_server.errors import UsageError
from mcp_skills_server.telemetry.events import Events
from mcp_skills_server.web.guards import make_policy
from mcp_skills_server.web.settings import HttpSettings
from runtime.embeddings import tiny
from shared.redis_servers import RealRedis, redis_server
from tables import each_row
from web.http_wire import http_serving, until
from wire import FIXTURES, serving, write_skill

SEEN = """
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mcp_skills_server import cli
from mcp_skills_server.commands.features import table
from mcp_skills_server.commands.features.feature import Feature
from mcp_skills_server.commands.fields import option
from mcp_skills_server.telemetry.gauge import Gauge
from mcp_skills_server.web.part import Routes


class Seen(Feature, heading="Seen (--transport http)"):
    seen: str | None = option(None, "Show at this path which methods were called.", metavar="PATH")

    def start(self, server):
        self.methods = []
        self.end = server.runtime.events.subscribe(lambda event: self.methods.append(event.method))

    def part(self, server):
        answer = lambda _: PlainTextResponse(" ".join(self.methods))
        return Routes(lambda _: [Route(self.seen, answer)])

    def gauges(self):
        return {"skills_seen": Gauge("Calls that were seen.", len(self.methods))}

    def state(self):
        return f"seen: {len(self.methods)}"

    def stop(self):
        self.end()


table.FEATURES = (*table.FEATURES, Seen)
cli.main()
"""


def test_a_feature_in_one_file_and_one_row(tmp_path: Path) -> None:
    program = tmp_path / "seen.py"
    program.write_text(SEEN)
    variable = {"MCP_SKILLS_SEEN": "/seen"}  # the option's own, without a line for it anywhere
    with http_serving(FIXTURES, "--metrics", command=[sys.executable, str(program)], environment=variable) as server:
        server.send("GET", "/.well-known/agent-skills/index.json")
        assert server.send("GET", "/seen").body == b"GET"
        assert b"skills_seen 1.0" in server.send("GET", "/metrics").body
        assert b"seen: 1" in server.send("GET", "/readyz?verbose").body


def started(replicas: Replicas, registry: Registry) -> tuple[Replicas, HttpSettings]:
    """The feature of a server over a folder, and the settings of HTTP that it makes."""
    opened = SimpleNamespace(registry=registry, mirrors=None)
    server: Any = SimpleNamespace(options=ServeOptions(transport="http"), opened=opened, quotas=QuotaSettings())
    replicas.start(server)
    http = HttpSettings("127.0.0.1", 0, make_policy("127.0.0.1", (), (), ()))
    part = replicas.part(server)
    return replicas, http if part is None else part.configure(http)


def test_nothing_is_made_or_imported_for_redis_and_the_page_without_their_options() -> None:
    code = """
import sys
from mcp_skills_server.commands.features.replicas import Replicas
from mcp_skills_server.web import app
replicas = Replicas()
replicas.start(None)
assert replicas.part(None) is None
print(sorted(name for name in sys.modules if name.startswith(("redis", "jinja2", "mcp_skills_server.shared"))))
"""
    assert subprocess.check_output([sys.executable, "-c", code]) == b"[]\n"


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_skills_server.commands.features.replicas.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install '\.\[redis\]'"):
        started(Replicas(redis="redis://cache"), Registry([]))


@each_row("options", [{"redis_password": "x"}, {"redis_ca": "/ca.pem"}])
def test_what_is_for_redis_wants_one(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="give --redis URL too"):
        started(Replicas(**options), Registry([]))


@contextmanager
def followed(redis: RealRedis, tree: Path, count: int) -> Iterator[list[tuple[Registry, Replicas, HttpSettings]]]:
    """Replicas that hear of no change of their folder but from each other, as on a network's file system."""
    made: list[tuple[Registry, Replicas, HttpSettings]] = []
    with ExitStack() as stack:
        for _ in range(count):
            registry = Registry([tree])
            registry.load()
            replicas, http = started(Replicas(redis=redis.url), registry)
            stack.callback(replicas.stop)
            made.append((registry, replicas, http))
        until(lambda: redis.say("--raw", "pubsub", "numsub", "mcp-skills:changes").endswith(str(count)))
        yield made


@pytest.mark.needs_program("redis-server")
def test_what_one_replica_notices_the_others_find(tmp_path: Path) -> None:
    tree = plant(tmp_path / "skills", skills("a"))
    with redis_server(tmp_path / "redis") as redis, followed(redis, tree, 3) as replicas:
        published = int(redis.say("info", "commandstats").partition("cmdstat_publish:calls=")[2].split(",")[0] or 0)
        assert published == 0
        plant(tree, {**skills("b"), "a/SKILL.md": skill_md("a", body="Other.")})
        replicas[0][0].refresh()
        until(lambda: all("b" in registry.snapshot.skills for registry, *_ in replicas))
        # Who found it because another said so says nothing.
        assert redis.say("info", "commandstats").partition("cmdstat_publish:calls=")[2].startswith("1,")


@pytest.mark.needs_program("redis-server")
def test_sessions_are_shared_and_the_state_is_a_line(tmp_path: Path) -> None:
    from mcp_skills_server.runtime.runtime import Runtime

    tree = plant(tmp_path / "skills", skills("a"))

    async def work(*pair: tuple[Registry, Replicas, HttpSettings]) -> None:
        sessions, others = (http.make_tool_sessions(Runtime(registry)) for registry, _, http in pair)
        session = sessions.new()
        await session.call("skills_load", {"names": ["a"]})
        await sessions.save(session, "me")
        found = await others.open(session.session_id, "me")
        await found.call("skills_list")
        assert found.active_skills == ["a"]
        for _, replicas, _ in pair:
            assert replicas.state().endswith(": connected")
            link = replicas._link  # closed here, in the loop of its connections: a server ends with its process
            assert link is not None
            await link.aclose()

    with redis_server(tmp_path / "redis") as redis, followed(redis, tree, 2) as (one, two):
        assert one[2].poll_sources() == 0  # there is none
        asyncio.run(work(one, two))


SERVER: Any = SimpleNamespace()
"""Whoever asks for the catalogue of this server has taken a wrong option."""


@each_row(("embeddings", "model", "said"), [
    ("http://example.org/v1", "m", "with https, or http on this machine"),
    ("ftp://localhost/v1", "m", "with https"), ("https://", "m", "with https"), ("https://[::1", "m", "cannot be read"),
    ("https://example.org:port/", "m", "cannot be read"), ("https://user:s3cret@example.org/v1", "m", KEY_VARIABLE),
    ("https://example.org/v1", None, "--embeddings-model"), ("/nowhere", None, "model.safetensors"),
    ("/nowhere", "m", "a folder has only one"), (None, "m", "give --embeddings URL too"),
])  # fmt: skip
def test_wrong_use_is_one_line(embeddings: str | None, model: str | None, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        SearchByMeaning(embeddings=embeddings, embeddings_model=model).start(SERVER)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value) and "s3cret" not in str(raised.value)


@each_row(("feature", "said"), [
    (Publishing(publish_only=True, publish=False), "leave nothing to serve"),
    (Publishing(publish_only=True), "give --transport http"),
    (UsageCounts(usage_questions=True), "give --usage sqlite"),
    (UsageCounts(usage="sqlite:"), "write sqlite:FILE"), (Audit(audit_required=True), "give --audit-log FILE too"),
    (Audit(audit_log="-"), "stdout belongs to the protocol"),
    (PrometheusMetrics(metrics_address=":1"), "metrics-address"),
    (PrometheusMetrics(metrics_address="a:b"), "metrics-address"),
    (PrometheusMetrics(metrics_address="127.0.0.1:65536"), "metrics-address"),
])  # fmt: skip
def test_a_feature_that_cannot_be_over_stdio_is_refused(feature: Feature, said: str) -> None:
    server: Any = SimpleNamespace(over_http=False, runtime=SimpleNamespace(events=Events()))
    with pytest.raises(UsageError, match=said):
        feature.start(server)


FOR_SCRIPTS = {
    "interpreters": (".py=/x",), "script_env": ("A",), "script_folders": ("a",), "script_secrets": ("a:A",),
    "script_network_of": ("a",), "allow_code": True, "script_origins": ("https://a.example",), "approvals": "a",
}  # fmt: skip


@each_row(("options", "said"), [
    *(({name: value}, "give --allow-scripts too") for name, value in FOR_SCRIPTS.items()),
    *(({"allow_scripts": True, "interpreters": (each,)}, "write .EXT=PROGRAM") for each in (".py", "py=/x", ".py=")),
    *(({"allow_scripts": True, "script_secrets": (each,)}, "write SKILL:VARIABLE") for each in ("A", ":A", "a/b:")),
])  # fmt: skip
def test_scripts_are_refused_without_what_they_need(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        script_settings(RuntimeOptions(**options))


def test_options_of_scripts_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "k")
    secrets = ("a:A_KEY", "https://B.example/#a:A_KEY")
    given = {"interpreters": (".PY=/x",), "script_timeout": 99_999.0, "script_secrets": secrets}
    made = script_settings(RuntimeOptions(allow_scripts=True, script_network_of=("a",), **given))
    assert made is not None and made.interpreters == {".py": "/x"} and made.network_of == ("a",)
    assert (
        made.secrets == {name: {"A_KEY": "k"} for name in ("a", "https://b.example#a")} and made.max_timeout_s == 99_999
    )
    assert script_settings(RuntimeOptions(), roots={"a": False}) is None
    with pytest.raises(UsageError, match="scripts = true; give --allow-scripts too"):
        script_settings(RuntimeOptions(), roots={"a": True})


@each_row("key", ["", " ", "two\nlines", "\u00fcber"])
def test_a_key_that_cannot_be_sent_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(UsageError, match=KEY_VARIABLE):
        SearchByMeaning(embeddings="https://example.org/v1", embeddings_model="m").start(SERVER)


def test_a_server_finds_by_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "skills" / "alpha", description="All about an automobile")
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    cache = tmp_path / "cache"
    with tiny.endpoint() as served:
        options = ("--embeddings", served.url, "--embeddings-model", "tiny", "--cache-dir", str(cache))
        with serving(tmp_path / "skills", *options) as wire:
            served.wait_for(1)
            asked = {"name": "skills_search", "arguments": {"query": "driving a lorry"}}
            until = time.monotonic() + DEADLINE
            found: list[dict[str, Any]] = []
            while not found and time.monotonic() < until:  # the vectors are made beside the server's work
                found = wire.request("tools/call", asked)["structuredContent"]["skills"]
        assert served.headers[0]["authorization"] == "Bearer s3cret"
    assert served.asked[0] == ["alpha\nThing\nAll about an automobile"]
    assert [each["name"] for each in found] == ["alpha"]
    assert (cache / "index" / "skills.sqlite3").exists()
