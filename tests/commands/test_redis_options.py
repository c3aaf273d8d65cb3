"""What `--redis` takes and makes: nothing where it is not given, and otherwise replicas that look again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from catalog.forest import plant, skill_md, skills
from mcp_skills_server.access.quotas import QuotaSettings
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.cli import cli
from mcp_skills_server.commands.features.replicas import Replicas
from mcp_skills_server.commands.serve import ServeOptions
from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.guards import make_policy
from mcp_skills_server.web.settings import HttpSettings
from shared.redis_servers import RealRedis, redis_server
from web.http_wire import until

SECRET = "very-secret-indeed"


HTTP = ServeOptions(transport="http")


def started(replicas: Replicas, registry: Registry) -> tuple[Replicas, HttpSettings]:
    """The feature of a server over a folder, and the settings of HTTP that it makes."""
    opened = SimpleNamespace(registry=registry, mirrors=None)
    server: Any = SimpleNamespace(options=HTTP, opened=opened, quotas=QuotaSettings())
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_skills_server.commands.features.replicas.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install '\.\[redis\]'"):
        started(Replicas(redis="redis://cache"), Registry([]))


@pytest.mark.parametrize("options", [{"redis_password": SECRET}, {"redis_ca": "/ca.pem"}])
def test_what_is_for_redis_wants_one(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="give --redis URL too"):
        started(Replicas(**options), Registry([]))


def test_the_password_is_masked_where_options_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'redis = "redis://me:{SECRET}@cache:7000/1"\n')
    environment = {"MCP_SKILLS_REDIS_PASSWORD": SECRET}
    done = CliRunner().invoke(cli, ["config", "show", "serve", "--config", str(file)], env=environment)
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line for line in done.output.splitlines()}
    assert rows["redis"].endswith("redis://cache:7000/1")
    assert rows["redis-password"].endswith("********") and "MCP_SKILLS_REDIS_PASSWORD" in rows["redis-password"]
    assert SECRET not in done.output
    assert rows["redis-prefix"].endswith("mcp-skills:")


# Look again


@contextmanager
def followed(redis: RealRedis, tree: Path, count: int) -> Iterator[list[tuple[Registry, Replicas, HttpSettings]]]:
    """Replicas that hear of no change of their folder but from each other, as on a network's file system."""
    made: list[tuple[Registry, Replicas, HttpSettings]] = []
    with ExitStack() as stack:
        for _ in range(count):
            registry = Registry([tree], quiet_s=0)
            registry.load()
            replicas, http = started(Replicas(redis=redis.url), registry)
            stack.callback(replicas.stop)
            made.append((registry, replicas, http))
        until(lambda: redis.say("--raw", "pubsub", "numsub", "mcp-skills:look").endswith(str(count)))
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
        asyncio.run(work(one, two))
