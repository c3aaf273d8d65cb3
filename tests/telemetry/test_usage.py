"""Counts of uses: what is counted, by what, and that a disk that fails stops nothing."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from catalog.forest import loaded
from mcp_skills_server import Runtime
from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Changes
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry import usage as usage_module
from mcp_skills_server.telemetry.events import Event, Events, Outcome, Use
from mcp_skills_server.telemetry.usage import KEPT_DAYS, OTHER, NotStoredError, Usage, UsageStore, spark
from tables import each_row
from wire import write_skill

DAY = 24 * 3600.0
NOW = 20_000 * DAY + 3600


@pytest.fixture
def clock() -> list[float]:
    """The time, which a test may change."""
    return [NOW]


@pytest.fixture
def store(tmp_path: Path, clock: list[float]) -> UsageStore:
    return UsageStore(str(tmp_path / "usage.db"), now=lambda: clock[0])


@pytest.fixture
def usage(store: UsageStore) -> Usage:
    return Usage(store)


def event(*uses: Use, outcome: Outcome = "ok", at: float = NOW, **more: Any) -> Event:
    return Event(at, "mcp", "tools/call", outcome, "token:ann", host=more.pop("host", "an editor"), uses=uses, **more)


def use(action: str, skill: str = "a", digest: str = "sha256:1") -> Use:
    return Use(action, skill, "SKILL.md", digest)  # type: ignore[arg-type]


def skill(*paths: str) -> dict[str, Any]:
    return dict.fromkeys(paths)


def test_what_was_used_is_counted_by_skill_principal_and_host(store: UsageStore, usage: Usage) -> None:
    usage.on_changes(Changes({}, skill("a", "b", "never")))
    for each in (
        event(use("load")),
        event(use("load", digest="sha256:2"), use("read")),
        event(use("run"), outcome="begun"),
        event(use("run"), outcome="refused"),  # it ended with another exit code: it ran all the same
        event(use("load", "b"), use("dropped", "b"), at=NOW - DAY),
        event(use("load", "b"), outcome="failed"),
        event(use("")),
        event(use("load"))._replace(protocol=events.PAGE),  # a person looked at it
    ):
        usage.record(each)
    usage.flush()
    first, second, last = store.report("skill", 2).lines
    assert (first.name, first.loads, first.reads, first.runs, first.versions) == ("a", 2, 1, 1, 2)
    assert (first.days, first.last) == ((0, 4), NOW)
    assert (second.name, second.loads, second.dropped, second.days) == ("b", 1, 1, (1, 0))
    assert (last.name, last.last) == ("never", None)
    (line,) = store.report("host", 2).lines
    assert (line.name, line.loads, line.versions) == ("an editor", 3, 0)
    assert [each.name for each in store.report("principal", 1).lines] == ["token:ann"]
    assert [each.name for each in store.report("skill", 1).lines] == ["a", "b", "never"]
    usage.on_changes(Changes(skill("never", "b"), {}))
    usage.on_changes(Changes(skill("b"), skill("b")))
    usage.flush()
    assert [each.name for each in store.report("skill", 1).lines] == ["a", "b"], "a skill that is gone is not unused"


def test_host_programs_that_clients_make_up_do_not_fill_the_store(
    store: UsageStore, usage: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_module, "_MOST_HOSTS", 3)
    for at in (NOW - DAY, NOW):
        for number in range(10):
            usage.record(event(use("load"), at=at, host=f"made up {at} {number}"))
    usage.flush()
    found = {each.name: each.loads for each in store.report("host", 2).lines}
    assert found.pop(OTHER) == 14 and [*found.values()] == [1] * 6


def test_a_principal_has_its_latest_name(store: UsageStore, usage: Usage) -> None:
    for label in ("ann", "ann@acme"):
        usage.record(event(use("load"), label=label))
        usage.flush()
    assert [(each.name, each.label) for each in store.report("principal").lines] == [("token:ann", "ann@acme")]


def test_skills_loaded_lately_come_latest_first(store: UsageStore, usage: Usage) -> None:
    for name, age in (("a", 3), ("b", 1), ("c", 40), ("d", 2)):
        usage.record(event(use("load", name), at=NOW - age * DAY))
    usage.record(event(use("read", "e")))
    usage.flush()
    assert (store.recently_loaded(), store.recently_loaded(1)) == (["b", "d", "a"], ["b"])


@pytest.mark.parametrize("kept", [True, False])
def test_searches_that_found_nothing_are_counted_and_their_words_kept_only_if_asked(
    tmp_path: Path, store: UsageStore, kept: bool
) -> None:
    usage = Usage(store, questions=kept)
    usage.record(event(found=3, question="refunds"))
    for _ in range(2):
        usage.record(event(found=0, question="teleport"))
        usage.flush()
    report = store.report()
    assert (report.searches, report.empty) == (3, 2)
    assert report.questions == ((("teleport", 2),) if kept else ())
    assert any(b"teleport" in each.read_bytes() for each in tmp_path.glob("usage.db*")) is kept


def test_old_days_are_forgotten(store: UsageStore, usage: Usage, clock: list[float]) -> None:
    usage.record(event(use("load")))
    usage.flush()
    clock[0] += (KEPT_DAYS + 1) * DAY
    usage.record(event(use("load", "b"), at=clock[0]))
    usage.flush()
    assert [each.name for each in store.report("skill", 2 * KEPT_DAYS).lines] == ["b"]


def test_where_it_cannot_be_written_one_line_says_so_and_nothing_is_lost(
    store: UsageStore, usage: Usage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise NotStoredError("database or disk is full")

    monkeypatch.setattr(store, "add", full)
    for _ in range(3):
        usage.record(event(use("load")))
        usage.flush()
    assert [each.levelno for each in caplog.records] == [logging.ERROR]
    monkeypatch.undo()
    usage.flush()
    assert store.report().lines[0].loads == 3 and "are counted again" in caplog.messages[-1]


def test_a_new_file_that_another_process_writes_to_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, waited = str(tmp_path / "usage.db"), list[float]()
    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(usage_module.time, "sleep", lambda seconds: (waited.append(seconds), other.rollback()))
        UsageStore(file)
    assert len(waited) == 1


def test_a_file_of_something_else_is_one_line_and_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no folder .*none; make it, or name another file"):
        UsageStore(str(tmp_path / "none" / "x.db"))
    file = tmp_path / "foreign.db"
    for content in (b"no database", b"SQLite format 3\x00" + bytes(100)):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="name another file"):
            UsageStore(str(file))
        assert file.read_bytes() == content
    with closing(sqlite3.connect(tmp_path / "later.db")) as opened:
        opened.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match="another version"):
        UsageStore(str(tmp_path / "later.db"))


def shown(*words: str) -> str:
    return CliRunner().invoke(cli, ["usage", *words], catch_exceptions=False).stdout


def test_the_command_shows_a_table_and_json_with_the_most_used_first(tmp_path: Path) -> None:
    option, usage = f"sqlite:{tmp_path / 'usage.db'}", Usage(UsageStore(str(tmp_path / "usage.db")))
    usage.on_changes(Changes({}, skill("a", *(f"skill-{number:03}" for number in range(49)))))
    usage.record(event(use("load", "b\x1b[31m"), at=time.time()))
    usage.record(event(found=0, at=time.time()))
    usage.flush()
    table = shown("--usage", option)
    assert "skill-017" in table and "of which 1 found nothing" in table and "\x1b" not in table
    assert "31 more, 31 of them never used; --all prints them" in table
    assert "skill-048" in shown("--usage", option, "--all")
    found = json.loads(shown("--usage", option, "--format", "json", "--since", "7d"))
    assert [each["name"] for each in found["lines"]][:3] == ["b\x1b[31m", "a", "skill-000"]
    assert (found["searches"], found["empty_searches"], len(found["lines"][0]["days"])) == (1, 1, 7)


@each_row(
    ("words", "said"),
    [
        (("--usage", "sqlite:/no/such/file.db"), "there are no counts"),
        (("--usage", "off"), "there are no counts"),
        (("--usage", "postgres:x"), "write sqlite:FILE"),
        (("--since", "401d"), "at most 400d"),
        (("--since", "x"), "write days"),
    ],
)
def test_what_is_wrong_says_what_to_write(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shown(*words)


def test_a_line_of_bars_is_as_high_as_its_highest_day() -> None:
    assert [*map(spark, ([0, 1, 8, 4], [], [0, 0]))] == [" ▁█▄", "", "  "]


@pytest.mark.anyio
async def test_searches_and_skills_that_were_dropped_unused_are_events(
    tmp_path: Path, server: Events, seen: list[Event]
) -> None:
    for name in ("unused", "read", "replaced", "gone"):
        write_skill(tmp_path / name, notes_md="other")
    registry = loaded(tmp_path)
    session = Runtime(registry).session()
    digests = {path: skill.files["SKILL.md"].digest for path, skill in registry.snapshot.skills.items()}

    async def call(tool: str, **arguments: object) -> Event:
        with server.serving(), events.Request("mcp", "tools/call", principal=None):
            result = await session.call(tool, arguments)
        assert not result.get("isError"), result
        return seen[-1]

    async def dropped(tool: str, **arguments: object) -> list[str]:
        found = [each for each in (await call(tool, **arguments)).uses if each.action == "dropped"]
        assert all(each.digest == digests[each.skill] for each in found)
        return [each.skill for each in found]

    assert (await call("skills_search", query="unused")).found
    assert (await call("skills_search", query="qqqqqq")).found == 0
    assert await dropped("skills_load", names=["unused", "read", "replaced"]) == []
    await call("skills_read", skill="read", path="SKILL.md")
    await call("skills_read", skill="read", path="notes.md")
    assert await dropped("skills_unload", names=["unused", "read"]) == ["unused"]
    assert await dropped("skills_load", names=["unused"], mode="add") == []
    assert await dropped("skills_load", names=["unused", "gone"]) == ["replaced"]  # which stays is not dropped
    (tmp_path / "gone" / "SKILL.md").unlink()
    registry.refresh()
    assert await dropped("skills_unload", all=True) == ["unused"]  # who vanished was not dropped by anybody
