"""Counts of uses: what is counted, by what, and that a disk that fails stops nothing."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from contextlib import closing, nullcontext
from dataclasses import astuple
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
from mcp_skills_server.telemetry.usage import KEPT_DAYS, OTHER, Usage, UsageStore, spark
from tables import each_row
from wire import write_skill

DAY = 24 * 3600.0
NOW = 20_000 * DAY + 3600


@pytest.fixture
def clock() -> list[float]:
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
    usage.on_changes(Changes({}, skill("a", "B", "never")))
    for each in (
        event(use("load"), use("read"), use("read", digest="sha256:2")),
        event(use("load", digest="sha256:2")),
        event(use("run"), outcome="begun"),
        event(use("run"), outcome="begun"),
        event(use("run"), outcome="refused"),  # it ended with another exit code: it ran all the same
        *[event(use("load", "B"), use("dropped", "B"), at=NOW - DAY)] * 3,
        event(use("load", "B"), outcome="failed"),
        event(use("")),
        event(use("propose", "proposed")),
        event(use("load"))._replace(protocol=events.PAGE),  # a person looked at it
    ):
        usage.record(each)
    usage.flush()
    first, second, last = store.report("skill", 2).lines
    assert astuple(first) == ("a", 2, 2, 2, 0, NOW, 2, (0, 6), "")
    assert astuple(second) == ("B", 3, 0, 0, 3, NOW - DAY, 1, (3, 0), "")
    assert astuple(last) == ("never", 0, 0, 0, 0, None, 0, (0, 0), "")
    (line,) = store.report("host", 2).lines
    assert (line.name, line.loads, line.versions) == ("an editor", 5, 0)
    assert [each.name for each in store.report("principal", 1).lines] == ["token:ann"]
    assert [each.name for each in store.report("skill", 1).lines] == ["a", "B", "never"]
    usage.on_changes(Changes(skill("never", "B"), {}))
    usage.on_changes(Changes(skill("B"), skill("B")))
    usage.flush()
    assert [each.name for each in store.report("skill", 1).lines] == ["a", "B"], "a skill that is gone is not unused"


def test_host_programs_that_clients_make_up_do_not_fill_the_store(store: UsageStore, usage: Usage) -> None:
    for at in (NOW - DAY, NOW):
        for number in (*range(1_007), 0):
            usage.record(event(use("load"), at=at, host=f"made up {at} {number}"))
    usage.flush()
    found = {each.name: each.loads for each in store.report("host", 2).lines}
    assert found.pop(OTHER) == 14 and sorted(found.values()) == [1] * 1_998 + [2] * 2


def test_beyond_a_bound_nothing_waits_nor_is_kept_and_the_log_says_how_much_was_lost(
    store: UsageStore, caplog: pytest.LogCaptureFixture
) -> None:
    usage = Usage(store, questions=True)
    for number in (*range(10_002), 0):
        usage.record(event(use("load", f"s{number}"), label="x")._replace(principal=f"p{number}"))
        usage.record(event(found=0, question=f"q{number}")._replace(principal="p0"))
    assert (usage.lost, usage.waiting) == (3, 10_000)  # searches are one count
    usage.flush()
    assert (usage.lost, usage.waiting) == (3, 0)
    assert [each.levelno for each in caplog.records] == [logging.ERROR, logging.WARNING]
    assert "3 uses were lost meanwhile" in caplog.messages[-1]

    def kept(table: str) -> int:
        with closing(sqlite3.connect(store.name)) as opened:
            return opened.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    assert (kept("labels"), kept("questions")) == (10_000, 10_000)
    usage.record(event(found=0, question="another"))
    usage.flush()
    assert kept("questions") == 10_000 and len(store.report().questions) == 100
    assert store.report().questions[0] == ("q0", 2)


def test_a_principal_has_its_latest_name(store: UsageStore, usage: Usage) -> None:
    for label in ("ann", "ann@acme", ""):
        usage.record(event(use("load"), label=label))
        usage.flush()
    assert [(each.name, each.label) for each in store.report("principal").lines] == [("token:ann", "ann@acme")]


def test_skills_loaded_lately_come_latest_first(store: UsageStore, usage: Usage) -> None:
    for name, age in (("a", 29), ("b", 1), ("c", 30), ("d", 2)):
        usage.record(event(use("load", name), at=NOW - age * DAY))
    usage.record(event(use("read", "e")))
    usage.flush()
    assert (store.recently_loaded(), store.recently_loaded(1)) == (["b", "d", "a"], ["b"])
    assert {each.name for each in store.report().lines} == {*"abde"}
    for number in range(51):
        usage.record(event(use("load", f"s{number}")))
    usage.flush()
    assert len(store.recently_loaded()) == 50


@pytest.mark.parametrize("kept", [True, False])
def test_searches_that_found_nothing_are_counted_and_their_words_kept_only_if_asked(
    tmp_path: Path, store: UsageStore, kept: bool
) -> None:
    usage = Usage(store, questions=True) if kept else Usage(store)
    usage.record(event(found=3, question="refunds"))
    for times in (1, 2):
        for _ in range(times):
            usage.record(event(found=0, question="teleport"))
        usage.flush()
    report = store.report()
    assert (report.searches, report.empty) == (4, 3)
    assert report.questions == ((("teleport", 3),) if kept else ())
    assert any(b"teleport" in each.read_bytes() for each in tmp_path.glob("usage.db*")) is kept


def test_old_days_are_forgotten(store: UsageStore, clock: list[float]) -> None:
    usage = Usage(store, questions=True)
    usage.record(event(use("load"), label="ann", found=0, question="teleport"))
    usage.flush()
    for days, names, known, questions in ((KEPT_DAYS, {"a", "b"}, {"token:ann", "b"}, 1), (1, {*"bc"}, {*"bc"}, 0)):
        clock[0] += days * DAY
        name = max(names)
        usage.record(event(use("load", name), at=clock[0], label=name)._replace(principal=name))
        usage.flush()
        report = store.report("skill", 2 * KEPT_DAYS)
        assert ({each.name for each in report.lines}, len(report.questions)) == (names, questions)
        with closing(sqlite3.connect(store.name)) as opened:
            assert {each for (each,) in opened.execute("SELECT principal FROM labels")} == known


def test_where_it_cannot_be_written_one_line_says_so_and_nothing_is_lost(
    store: UsageStore, usage: Usage, server: Events, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_module, "_BUSY_S", 0)
    monkeypatch.setattr(usage_module, "_FLUSH_S", 3600)
    with closing(sqlite3.connect(store.name)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            usage.record(event(use("load")))
            usage.flush()
        assert usage.waiting == 2 and [each.levelno for each in caplog.records] == [logging.ERROR]
        assert "uses cannot be counted (database is locked); requests go on" in caplog.text
        stop = usage.start(server)
        assert [each.daemon for each in threading.enumerate() if each.name == "skills-usage"] == [True]
        stop()
    assert caplog.messages[1:] == [f"{store.name}: the last counts could not be written and are lost"]
    assert not server.has_readers and "skills-usage" not in {each.name for each in threading.enumerate()}
    usage.flush()
    assert store.report().lines[0].loads == 3 and caplog.messages[2:] == [f"{store.name}: uses are counted again"]
    Usage(store).start(server)()
    assert len(caplog.messages) == 3
    usage.record(event(use("load")))
    with monkeypatch.context() as patch:
        patch.setattr(store, "add", lambda _: {}["a bug"])
        usage._try_to_flush()
    assert caplog.messages[3:] == ["uses could not be written"]


def test_a_new_file_that_another_process_writes_to_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, waited = str(tmp_path / "usage.db"), list[float]()
    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patch:
            patch.setattr(usage_module, "_BUSY_S", 0)
            with pytest.raises(UsageError, match="locked"):
                UsageStore(file)
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
    for version in (1, 2, -1):
        name = str(tmp_path / f"{version}.db")
        with closing(sqlite3.connect(name)) as opened:
            opened.execute(f"PRAGMA user_version = {version}")
        with pytest.raises(UsageError, match="another version") if version != 1 else nullcontext():
            UsageStore(name)
    made = UsageStore(str(tmp_path / "made.db"))
    assert Path(made.name).stat().st_mode & 0o777 == 0o600
    Path(made.name).write_bytes(b"no database" * 100)
    with pytest.raises(UsageError, match=r"made.db: cannot be read \(.*\); name a file of counts"):
        made.report()


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
