"""Sessions shared by replicas through a record store, also during its outages."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from catalog.forest import load_registry, skills, write_files
from mcp_skills_server.access.quota import Owner
from mcp_skills_server.catalog.recalls import Advisory
from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.model import SkillFile
from mcp_skills_server.runtime import sessions
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.sessions import IDLE_S, UnknownSessionError
from mcp_skills_server.runtime.settings import RuntimeSettings
from mcp_skills_server.runtime.shared_sessions import SessionRecord, SharedSessions
from runtime.support import FakeScripts, call_tool, error_of, text_of
from tables import each_row

pytestmark = pytest.mark.anyio


class Store:
    """A record store in memory, with simulated outages and a hook before a write."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.is_down = False
        self.before_write: Callable[[str], Awaitable[Any]] | None = None
        self.reads = self.writes = self.share = 0

    async def read(self, name: str, group: str | None) -> str | None:
        self.reads += 1
        await anyio.lowlevel.checkpoint()
        if self.is_down:
            raise RequestError("store is down")
        return self.texts.get(name)

    async def write(self, name: str, group: str | None, text: str, *, replaces: str | None, share: int) -> None:
        self.writes, self.share = self.writes + 1, share
        if self.before_write is not None:
            hook, self.before_write = self.before_write, None
            await hook(name)
        await anyio.lowlevel.checkpoint()
        if self.is_down:
            raise RequestError("store is down")
        if self.texts.get(name) not in (replaces, text):
            raise RequestError("changed meanwhile")
        self.texts[name] = text

    async def go_down(self, _: str) -> None:
        self.is_down = True


class Replica:
    """A replica with shared sessions, which are called in the way of `server/tools.py`."""

    def __init__(self, tree: Path, store: Store, settings: RuntimeSettings | None = None) -> None:
        self.runtime = Runtime(load_registry(tree), settings)
        self.sessions = SharedSessions(self.runtime, store)

    async def call(
        self,
        tool: str,
        handle: str | None = None,
        owner: str | None = None,
        limits: dict[str, int] | None = None,
        *,
        fails: bool = False,
        **given: Any,
    ) -> Any:
        quota_owner = None if owner is None else Owner(owner, limits or {})
        async with AsyncExitStack() as opened:
            session = self.sessions.new()
            if handle is not None:
                changes = tool in {"load", "unload"}
                context = self.sessions.open(handle, owner, quota_owner, changes=changes)
                session = await opened.enter_async_context(context)
            result: Any = await session.call(f"skills_{tool}", given)
        if handle is None:
            await self.sessions.add(session, owner, quota_owner)
        assert result.get("isError", False) is fails, result
        return session

    async def told(self, handle: str) -> bool:
        """Tell whether the next result of a session speaks of a recall."""
        async with self.sessions.open(handle, None) as session:
            return "RECALLED" in str(await session.call("skills_list"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_files(tmp_path, skills("a", "b", "c"))


@pytest.fixture
def store() -> Store:
    return Store()


def names(session: Session) -> list[str]:
    return session.active_skills


async def test_replicas_see_changes_of_each_other_in_order(tree: Path, store: Store) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    assert names(await two.call("load", handle, names=["b"], mode="add")) == ["a", "b"]
    assert names(await one.call("load", handle, names=["a"], mode="add")) == ["a", "b"]
    assert names(await two.call("unload", handle, names=["a"])) == ["b"]
    assert names(await one.call("list", handle)) == ["b"]
    assert json.loads(store.texts[handle])["skills"] == ["b"]
    await one.call("unload", handle, all=True)
    assert names(await two.call("list", handle)) == []


async def test_read_only_call_writes_no_record(tree: Path, store: Store) -> None:
    one = Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    assert (store.reads, store.writes) == (0, 1)
    for _ in range(5):
        await one.call("read", handle, path="SKILL.md")
    assert (store.reads, store.writes) == (5, 1)
    for handle in ("x", "a b" * 10, "A" * 65, "é" * 24, "A" * 23 + "\n"):
        with pytest.raises(UnknownSessionError):
            await one.call("list", handle)
    assert store.reads == 5


async def test_record_is_written_under_the_limit_of_its_owner(tree: Path, store: Store) -> None:
    one = Replica(tree, store)
    shares: list[int] = []
    for owner, limits in (("ann", {}), ("ann", {"runtime-sessions": 7}), (None, {})):
        await one.call("load", owner=owner, limits=limits, names=["a"])
        shares.append(store.share)
    assert shares == [1024, 7, 4096]


async def test_concurrent_change_of_another_replica_wins(tree: Path, store: Store) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    store.before_write = lambda _: two.call("load", handle, names=["b"])
    with pytest.raises(RequestError, match="changed meanwhile"):
        await one.call("load", handle, names=["c"])
    assert names(await one.call("list", handle)) == ["b"]
    assert names(await one.call("load", handle, names=["c"], mode="add")) == ["b", "c"]


async def test_known_session_is_read_only_during_store_outage(tree: Path, store: Store) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    store.is_down = True
    await one.call("read", handle, path="SKILL.md")
    for replica in (one, two):
        with pytest.raises(RequestError, match="store is down"):
            await replica.call("load", handle, names=["b"])
    with pytest.raises(RequestError, match="store is down"):
        await two.call("read", handle, path="SKILL.md")
    assert (len(one.sessions), len(two.sessions)) == (1, 0)
    store.is_down = False
    assert names(await one.call("list", handle)) == names(await two.call("list", handle)) == ["a"]


async def test_session_created_during_outage_is_shared_after_it(tree: Path, store: Store) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    store.is_down = True
    session = await one.call("load", names=["b"])
    assert names(await one.call("load", session.session_id, names=["c"], mode="add")) == ["b", "c"]
    assert not one.sessions.is_shared(session)
    store.is_down = False
    await one.call("list", session.session_id)
    assert one.sessions.is_shared(session)
    assert names(await two.call("list", session.session_id)) == ["b", "c"]


async def test_change_is_rolled_back_if_write_fails(tree: Path, store: Store) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    store.before_write = store.go_down
    with pytest.raises(RequestError, match="store is down"):
        await one.call("load", handle, names=["b"])
    store.is_down = False
    assert names(await one.call("list", handle)) == ["a"]
    assert names(await two.call("load", handle, names=["c"], mode="add")) == ["a", "c"]
    assert names(await one.call("list", handle)) == ["a", "c"]


async def test_refused_write_of_a_lost_record_is_an_error(tree: Path, store: Store) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    await two.call("list", handle)
    store.texts.clear()
    store.before_write = lambda _: two.call("load", handle, names=["b"])
    with pytest.raises(RequestError, match="changed meanwhile"):
        await one.call("load", handle, names=["c"])
    assert names(await one.call("list", handle)) == ["b"]
    store.texts.clear()
    store.before_write = store.go_down
    with pytest.raises(RequestError, match="store is down"):
        await one.call("load", handle, names=["c"])


@each_row(("tool", "given"), [("load", {"names": ["c"], "mode": "add"}), ("unload", {"names": ["b"]})])
async def test_unreadable_skill_of_another_replicas_session_stays_loaded(
    tree: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tool: str, given: dict[str, Any]
) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    handle = (await one.call("load", names=["a", "b"])).session_id
    read = two.runtime.registry.read

    def fail_for_a(file: SkillFile) -> bytes:
        if file.location.startswith("a/"):
            raise StaleFileError("a/SKILL.md", "Input/output error")
        return read(file)

    with monkeypatch.context() as broken:
        broken.setattr(two.runtime.registry, "read", fail_for_a)
        await two.call(tool, handle, fails=True, **given)
    assert names(await two.call("list", handle)) == names(await one.call("list", handle)) == ["a", "b"]


async def test_lost_record_is_written_again_by_replica_that_knows_session(
    tree: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    store.texts.clear()
    with pytest.raises(UnknownSessionError):
        await two.call("list", handle)
    await one.call("list", handle)
    assert names(await two.call("list", handle)) == ["a"]
    for text in ("{", "[" * 100_000):
        store.texts["A" * 24] = text
        with pytest.raises(UnknownSessionError):
            await two.call("list", "A" * 24)
    invalid = "a shared session record is invalid: Invalid JSON: EOF while parsing an object at line 1 column 1"
    assert caplog.messages[0] == invalid
    # The replica with the older copy does not overwrite the restored record.
    await two.call("load", handle, names=["b"])
    assert names(await one.call("list", handle)) == ["b"]


async def test_session_with_lost_record_stays_known_until_it_is_written(tree: Path, store: Store) -> None:
    one = Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    store.texts.clear()
    store.before_write = store.go_down
    assert names(await one.call("list", handle)) == ["a"]
    store.is_down = False
    assert names(await one.call("list", handle)) == ["a"]
    assert handle in store.texts


@pytest.mark.requirement("X-15", "MCP-11")
async def test_owner_is_checked_on_every_replica(tree: Path, store: Store) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    handle = (await one.call("load", owner="alpha", names=["a"])).session_id
    for replica in (one, two):
        for foreign in ("beta", None, ""):
            with pytest.raises(UnknownSessionError, match=repr(handle)):
                await replica.call("list", handle, foreign)
    assert names(await two.call("list", handle, "alpha")) == ["a"]
    with pytest.raises(UnknownSessionError):
        await two.call("list", handle, "beta")
    assert "alpha" not in store.texts[handle]
    assert re.search(r'"owner":"[0-9a-f]{64}"', store.texts[handle])
    for owner in ("\u00e9", "\ud800"):  # a record of another program
        store.texts["h" * 24] = json.dumps({"version": 2, "owner": owner, "since": 0, "skills": []})
        with pytest.raises(UnknownSessionError):
            await two.call("list", "h" * 24, "alpha")


async def test_expired_session_is_restored_from_its_record(
    tree: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(sessions, "time", Mock(monotonic=lambda: now))
    one, two = Replica(tree, store), Replica(tree, store)
    expired = await one.call("load", names=["a"])
    handle = expired.session_id
    now = IDLE_S + 1
    restored = await one.call("list", handle)
    assert restored is not expired
    assert names(restored) == ["a"]
    assert names(expired) == []
    assert len(one.sessions) == 1
    now *= 2
    other = await one.call("load", names=["b"])
    assert len(one.sessions) == 1
    assert [*one.sessions._known] == [other.session_id]
    assert names(await two.call("list", handle)) == names(await one.call("list", handle)) == ["a"]


@pytest.mark.parametrize("seed", range(4))
async def test_every_acknowledged_load_survives_concurrent_calls(tmp_path: Path, store: Store, seed: int) -> None:
    generator = random.Random(seed)
    all_names = [f"s{number}" for number in range(16)]
    tree = write_files(tmp_path, skills("a", *all_names))
    replicas = [Replica(tree, store, RuntimeSettings(max_loaded=17)) for _ in range(3)]
    handle = (await replicas[0].call("load", names=["a"])).session_id
    acknowledged: set[str] = {"a"}

    async def load(replica: Replica, name: str, pauses: int) -> None:
        for _ in range(pauses):
            await anyio.lowlevel.checkpoint()
        with suppress(RequestError):
            await replica.call("load", handle, names=[name], mode="add")
            acknowledged.add(name)

    for _ in range(4):
        async with anyio.create_task_group() as group:
            for name in generator.sample(all_names, 5):
                group.start_soon(load, generator.choice(replicas), name, generator.randrange(12))
                group.start_soon(generator.choice(replicas).call, "list", handle)
        for replica in replicas:
            assert {*names(await replica.call("list", handle))} == acknowledged
    assert len(acknowledged) > 4


async def test_read_of_output_file_on_another_replica_is_explained(tmp_path: Path, store: Store) -> None:
    tree = write_files(tmp_path, skills("a") | {"a/scripts/x.sh": "echo x\n"})
    one, two = Replica(tree, store), Replica(tree, store)
    for each in (one, two):
        each.runtime.whole.scripts = scripts = FakeScripts(each.runtime.registry)  # type: ignore[assignment]
        scripts.workspace = lambda: Mock(**{"read.side_effect": RequestError("It has no file")})
    handle = (await one.call("load", names=["a"])).session_id
    for runner, reader in ((one, two), (two, one)):
        await runner.call("run_script", handle, path="scripts/x.sh")
        writes = store.writes
        await runner.call("run_script", handle, path="scripts/x.sh")
        assert store.writes == writes
        session = await reader.call("list", handle)
        assert "ran on another replica" in await error_of(session, "skills_read", {"path": "/workspace/x"})
        assert (await runner.call("list", handle)).scripts_at == "here"


async def test_news_counts_from_start_of_session_on_another_replica(tree: Path, store: Store) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    write_files(tree, skills("before"))
    for replica in (one, two):
        replica.runtime.registry.refresh()
    handle = (await one.call("load", names=["a"])).session_id
    write_files(tree, skills("after", "later"))
    two.runtime.registry.refresh()
    session = await two.call("list", handle)
    result = await call_tool(session, "skills_load", names=["a"])
    assert "since this session began: 2 added" in text_of(result)


async def test_recall_is_told_once_by_whichever_replica_answers_next(tree: Path, store: Store) -> None:
    one, two = Replica(tree, store), Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    await two.call("list", handle)  # it has read the skill, too
    other = (await two.call("load", names=["b"])).session_id
    for replica in (one, two):
        registry = replica.runtime.registry
        digest = registry.snapshot.skills["a"].digests["SKILL.md"]
        registry.recall([Advisory(digest, "it is bad", "low")])
    replicas = [two, one, two]
    told = [await replica.told(handle) for replica in replicas]
    assert told == [True, False, False]
    assert not await one.told(other)
    third = Replica(tree, store)
    third.runtime.registry.recall([Advisory(digest, "it is bad", "low")])
    assert not await third.told(handle)


async def test_recall_of_an_earlier_version_is_told_by_a_replica_that_never_had_it(tree: Path, store: Store) -> None:
    one = Replica(tree, store)
    handle = (await one.call("load", names=["a"])).session_id
    other = (await one.call("load", names=["b"])).session_id
    before = one.runtime.registry.snapshot.skills["a"].digests["SKILL.md"]
    (tree / "a" / "SKILL.md").write_text("---\nname: a\ndescription: Makes tea in another way.\n---\n")
    replicas = [Replica(tree, store) for _ in range(2)]
    later = (await replicas[0].call("load", names=["a"])).session_id
    for replica in replicas:
        replica.runtime.registry.recall([Advisory(before, "it is bad", "low")])
    assert [await replica.told(handle) for replica in replicas] == [True, False]
    assert names(await replicas[0].call("list", handle)) == ["a"]
    assert not any([await replicas[0].told(session) for session in (other, later)])


@given(st.floats(allow_nan=False, allow_infinity=False), st.lists(st.text(max_size=50)))
def test_record_round_trips_and_unknown_fields_are_ignored(since: float, paths: list[str]) -> None:
    record = SessionRecord(version=2, owner="x", since=since, skills=tuple(paths), scripts_at="y")
    assert SessionRecord.model_validate_json(record.model_dump_json()) == record
    assert SessionRecord.model_validate({**record.model_dump(), "more": [1]}) == record


@each_row(
    "change",
    [
        {"version": 3}, {"version": 1}, {"version": True}, {"version": "1"}, {"since": None}, {"since": True},
        {"since": 10**400},
        {"owner": 1}, {"owner": "x" * 4097}, {"scripts_at": None}, {"skills": [["a"]]}, {"version": 0},
        {"skills": ["x" * 4097]}, {"skills": "a"}, {"skills": [str(each) for each in range(1001)]},
        {"since": float("nan")}, {"version": None}, {"recalled": "a"},
        {"recalled": [str(each) for each in range(1001)]}, {"given": ["a"]}, {"given": {"a": 1}},
        {"given": dict.fromkeys(map(str, range(1001)), "a")},
    ],
)  # fmt: skip
def test_record_of_invalid_shape_or_version_is_refused(change: dict[str, Any]) -> None:
    skills = [str(each) for each in range(1_000)]
    valid = {
        "version": 2,
        "owner": "x" * 4_096,
        "since": 1.5,
        "skills": skills,
        "given": {"a": "b"},
        "recalled": ["a"],
        "scripts_at": "here",
    }
    assert json.loads(SessionRecord.model_validate_json(json.dumps(valid)).model_dump_json()) == valid
    with pytest.raises(ValidationError):
        SessionRecord.model_validate_json(json.dumps({**valid, **change}))
