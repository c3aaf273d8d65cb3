"""Usage counts: their store, its bounds and failures, and the command `usage`."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from catalog.forest import load_registry
from mcp_skills_server import Runtime
from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Changes, Skill
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry import usage as usage_module
from mcp_skills_server.telemetry.events import Event, Events, Outcome, Use
from mcp_skills_server.telemetry.usage import KEPT_DAYS, OTHER, Report, Usage, UsageStore, spark
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


def skills_at(*paths: str) -> dict[str, Any]:
    return dict.fromkeys(paths, SimpleNamespace(root=0))


def names(report: Report) -> list[str]:
    return [row.name for row in report.lines]


def test_uses_are_counted_by_skill_principal_and_host(store: UsageStore, usage: Usage) -> None:
    usage.on_changes(Changes({}, skills_at("a", "B", "never")))
    for used in (
        event(use("load"), use("read"), use("read", digest="sha256:2")),
        event(use("load", digest="sha256:2")),
        event(use("run"), outcome="begun"),
        event(use("run"), outcome="begun"),
        event(use("read", "B"), use("run"), outcome="refused"),  # the end of a run that was counted when it began
        *[event(use("load", "B"), use("dropped", "B"), at=NOW - DAY)] * 3,
        event(use("load", "B"), outcome="failed"),
        event(use("")),
        event(use("propose", "proposed")),
        event(use("load"))._replace(protocol=events.PAGE),  # a person viewed it
    ):
        usage.record(used)
    usage.flush()
    first, second, last = store.report("skill", 2).lines
    assert astuple(first) == ("a", 2, 2, 2, 0, NOW, 2, (0, 6), "")
    assert astuple(second) == ("B", 3, 1, 0, 3, NOW, 1, (3, 1), "")
    assert astuple(last) == ("never", 0, 0, 0, 0, None, 0, (0, 0), "")
    (host,) = store.report("host", 2).lines
    assert (host.name, host.loads, host.versions) == ("an editor", 5, 0)
    for label in ("ann", "ann@acme", ""):
        usage.record(event(label=label))
        usage.flush()
    (principal,) = store.report("principal", 1).lines
    assert (principal.name, principal.label) == ("token:ann", "ann@acme"), "the latest label"
    assert names(store.report("skill", 1)) == ["a", "B", "never"]
    usage.on_changes(Changes(skills_at("never", "B"), {}))
    usage.on_changes(Changes(skills_at("B"), skills_at("B")))
    usage.flush()
    assert names(store.report("skill", 1)) == ["a", "B"], "a removed skill is not listed as unused"


def test_report_of_some_roots_leaves_out_servers_of_others(store: UsageStore) -> None:
    """Two servers share the file; each has a skill `a`, and the second has another root, too."""
    for roots, served in ((["/one"], {"a": 0, "b": 0}), (["/two", "https://x"], {"a": 0, "web": 1})):
        usage = Usage(store, roots=roots)
        usage.on_changes(
            Changes({}, {path: cast("Skill", SimpleNamespace(root=root)) for path, root in served.items()})
        )
        for path in roots:
            usage.record(event(use("load"), found=0, question=path, host=path))
        usage.record(event(use("load", "web" if "web" in served else "a"), host=roots[0]))
        usage.flush()

    def loads(*roots: str) -> dict[str, int]:
        return {row.name: row.loads for row in store.report("skill", 1, roots or None).lines}

    unused = {"a": 0, "b": 0, "web": 0}
    assert loads("/one") == unused | {"a": 2} and loads("/two") == unused | {"a": 2}
    assert loads("https://x") == unused | {"web": 1} and loads("/none") == unused
    assert loads() == loads("/one", "/two", "https://x") == {"a": 4, "b": 0, "web": 1}
    assert [row.name for row in store.report("host", 1, ["/one"]).lines] == ["/one"]
    assert [store.report("skill", 1, roots).empty for roots in (["/one"], ["/two"], None)] == [1, 2, 3]
    assert store.recently_loaded(roots=["https://x"]) == ["web"]


def test_host_names_are_bounded_per_day(store: UsageStore, usage: Usage) -> None:
    for at in (NOW - DAY, NOW):
        for number in (*range(1_007), 0):
            usage.record(event(use("load"), at=at, host=f"made up {at} {number}"))
    usage.flush()
    loads = {row.name: row.loads for row in store.report("host", 2).lines}
    assert loads.pop(OTHER) == 14
    assert sorted(loads.values()) == [1] * 1_998 + [2] * 2


def test_counts_labels_and_questions_are_bounded_and_losses_logged(
    store: UsageStore, caplog: pytest.LogCaptureFixture
) -> None:
    usage = Usage(store, questions=True)
    for number in (*range(10_002), 0):
        usage.record(event(use("load", f"s{number}"), label="x")._replace(principal=f"p{number}"))
        usage.record(event(found=0, question=f"q{number}")._replace(principal="p0"))
    assert (usage.lost, usage.waiting) == (3, 10_000)  # all searches share one count
    usage.flush()
    assert (usage.lost, usage.waiting) == (3, 0)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert "3 uses were lost meanwhile" in caplog.messages[-1]

    def count_rows(table: str) -> int:
        with closing(sqlite3.connect(store.name)) as connection:
            return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

    assert (count_rows("labels"), count_rows("questions")) == (10_000, 10_000)
    usage.record(event(found=0, question="another"))
    usage.flush()
    assert len(caplog.records) == 2, "a recovery is logged once"
    assert count_rows("questions") == 10_000
    assert len(store.report().questions) == 100
    assert store.report().questions[0] == ("q0", 2)


def test_recently_loaded_skills_are_listed_latest_first(store: UsageStore, usage: Usage) -> None:
    for name, age in (("a", 29), ("b", 1), ("c", 30), ("d", 2)):
        usage.record(event(use("load", name), at=NOW - age * DAY))
    usage.record(event(use("read", "e")))
    usage.flush()
    assert (store.recently_loaded(), store.recently_loaded(1)) == (["b", "d", "a"], ["b"])
    assert {*names(store.report())} == {*"abde"}
    for number in range(51):
        usage.record(event(use("load", f"s{number}")))
    usage.flush()
    assert len(store.recently_loaded()) == 50


@pytest.mark.parametrize("kept", [True, False])
def test_empty_searches_are_counted_and_questions_kept_only_on_request(
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
    assert any(b"teleport" in file.read_bytes() for file in tmp_path.glob("usage.db*")) is kept


def test_old_days_labels_and_questions_are_deleted(store: UsageStore, clock: list[float]) -> None:
    usage = Usage(store, questions=True)
    usage.record(event(use("load"), label="ann", found=0, question="teleport"))
    usage.flush()
    # On its last day the first use is still kept; a day later it is not.
    for days, skill, skills, labels, questions in (
        (KEPT_DAYS, "b", {"a", "b"}, {"token:ann", "b"}, 1),
        (1, "c", {"b", "c"}, {"b", "c"}, 0),
    ):
        clock[0] += days * DAY
        usage.record(event(use("load", skill), at=clock[0], label=skill)._replace(principal=skill))
        usage.flush()
        report = store.report("skill", 2 * KEPT_DAYS)
        assert {*names(report)} == skills
        assert len(report.questions) == questions
        with closing(sqlite3.connect(store.name)) as connection:
            assert {principal for (principal,) in connection.execute("SELECT principal FROM labels")} == labels


def test_locked_store_is_logged_once_and_loses_nothing(
    store: UsageStore,
    usage: Usage,
    publisher: Events,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage_module, "_BUSY_S", 0)
    monkeypatch.setattr(usage_module, "_FLUSH_S", 3600)
    with closing(sqlite3.connect(store.name)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            usage.record(event(use("load")))
            usage.flush()
        assert usage.waiting == 2
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "uses cannot be counted (database is locked); requests go on" in caplog.text
        stop = usage.start(publisher)
        assert [thread.daemon for thread in threading.enumerate() if thread.name == "skills-usage"] == [True]
        stop()
    assert caplog.messages[1:] == [f"{store.name}: the last counts could not be written and are lost"]
    publisher.emit(event(use("load")))  # not counted after the stop
    assert "skills-usage" not in {thread.name for thread in threading.enumerate()}
    usage.flush()
    assert store.report().lines[0].loads == 3
    assert caplog.messages[2:] == [f"{store.name}: uses are counted again"]
    Usage(store).start(publisher)()
    assert len(caplog.messages) == 3
    usage.record(event(use("load")))
    with monkeypatch.context() as patch:
        patch.setattr(store, "add", lambda _: {}["a bug"])
        usage.flush()
    assert caplog.messages[3:] == ["uses could not be written"]


def test_locked_new_file_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pauses = str(tmp_path / "usage.db"), list[float]()

    def unlock(seconds: float) -> None:
        pauses.append(seconds)
        other.rollback()

    with closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patch:
            patch.setattr(usage_module, "_BUSY_S", 0)
            with pytest.raises(UsageError, match="locked"):
                UsageStore(file)
        monkeypatch.setattr(usage_module.time, "sleep", unlock)
        UsageStore(file)
    assert len(pauses) == 1


def test_file_is_private_and_a_foreign_or_damaged_one_is_refused(tmp_path: Path, store: UsageStore) -> None:
    assert Path(store.name).stat().st_mode & 0o777 == 0o600
    UsageStore(store.name)  # opens the file again, of the current version
    Path(store.name).write_bytes(b"no database" * 100)
    with pytest.raises(UsageError, match=r"usage.db: cannot be read \(.*\); name a file of counts"):
        store.report()
    with pytest.raises(UsageError, match=r"there is no folder .*none; make it, or name another file"):
        UsageStore(str(tmp_path / "none" / "x.db"))
    file = tmp_path / "foreign.db"
    for content in (b"no database", b"SQLite format 3\x00" + bytes(100)):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="name another file"):
            UsageStore(str(file))
        assert file.read_bytes() == content
    for version in (1, -1):
        with closing(sqlite3.connect(tmp_path / f"{version}.db")) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        with pytest.raises(UsageError, match="another version"):
            UsageStore(str(tmp_path / f"{version}.db"))


def output_of(*arguments: str) -> str:
    return CliRunner().invoke(cli, ["usage", *arguments], catch_exceptions=False).stdout


def test_command_prints_table_and_json_most_used_first(tmp_path: Path) -> None:
    option, usage = f"sqlite:{tmp_path / 'usage.db'}", Usage(UsageStore(str(tmp_path / "usage.db")))
    usage.on_changes(Changes({}, skills_at("a", *(f"skill-{number:03}" for number in range(49)))))
    usage.record(event(use("load", "b\x1b[31m"), at=time.time()))
    usage.record(event(found=0, at=time.time()))
    usage.flush()
    table = output_of("--usage", option)
    assert "skill-017" in table and "of which 1 found nothing" in table and "\x1b" not in table
    assert "31 more, 31 of them never used; --all prints them" in table
    assert "skill-048" in output_of("--usage", option, "--all")
    report = json.loads(output_of("--usage", option, "--format", "json", "--since", "7d"))
    assert [row["name"] for row in report["lines"]][:3] == ["b\x1b[31m", "a", "skill-000"]
    assert (report["searches"], report["empty_searches"], len(report["lines"][0]["days"])) == (1, 1, 7)


@each_row(("arguments", "message"), [
    (("--usage", "sqlite:/no/such/file.db"), "there are no counts"),
    (("--usage", "off"), "there are no counts"),
    (("--usage", "postgres:x"), "write sqlite:FILE"),
    (("--since", "401d"), "at most 400d"),
    (("--since", "x"), "write days"),
])  # fmt: skip
def test_invalid_options_are_usage_errors(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        output_of(*arguments)


def test_sparkline_is_scaled_to_its_highest_day() -> None:
    assert [*map(spark, ([0, 1, 8, 4], [], [0, 0]))] == [" ▁█▄", "", "  "]


@pytest.mark.anyio
async def test_searches_and_unused_dropped_skills_are_events(
    tmp_path: Path, publisher: Events, published: list[Event]
) -> None:
    for name in ("unused", "read", "replaced", "gone"):
        write_skill(tmp_path / name, notes_md="other")
    registry = load_registry(tmp_path)
    session = Runtime(registry).session()
    digests = {path: skill.files["SKILL.md"].digest for path, skill in registry.snapshot.skills.items()}

    async def call(tool: str, **arguments: object) -> Event:
        with publisher.serving(), events.Request("mcp", "tools/call", principal=None):
            result = await session.call(tool, arguments)
        assert not result.get("isError"), result
        return published[-1]

    async def dropped(tool: str, **arguments: object) -> list[str]:
        uses = [use for use in (await call(tool, **arguments)).uses if use.action == "dropped"]
        assert all(use.digest == digests[use.skill] for use in uses)
        return [use.skill for use in uses]

    assert (await call("skills_search", query="unused")).found
    assert (await call("skills_search", query="qqqqqq")).found == 0
    assert await dropped("skills_load", names=["unused", "read", "replaced"]) == []
    await call("skills_read", skill="read", path="SKILL.md")
    await call("skills_read", skill="read", path="notes.md")
    assert await dropped("skills_unload", names=["unused", "read"]) == ["unused"]
    assert await dropped("skills_load", names=["unused"], mode="add") == []
    assert await dropped("skills_load", names=["unused", "gone"]) == ["replaced"]  # a skill that stays is not dropped
    (tmp_path / "gone" / "SKILL.md").unlink()
    registry.refresh()
    assert await dropped("skills_unload", all=True) == ["unused"]  # a removed skill was not dropped
