"""Followers: polling, backoff and reports, with a minimal kind of source."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Set
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import anyio
import pytest

from catalog.forest import DEADLINE
from mcp_skills_server.catalog.registry import MirroredRoot, Registry
from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources import folder
from mcp_skills_server.sources.folder import BusyError
from mcp_skills_server.sources.kinds import KINDS, Kind
from mcp_skills_server.sources.mirrors import Follower, Mirrors, SourceState
from mcp_skills_server.sources.reconcile import fetching
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.source import (
    FetchSettings,
    Plan,
    Revision,
    SkillRefusal,
    Source,
    SourceError,
    SourceSettings,
    UnacceptableError,
    Unit,
    UnitContents,
    UnreachableError,
    UnsignedCommitError,
)


class StopError(Exception):
    """Raised by `ScriptedSource.sleep` when no answer is left."""


class ScriptedSource(Source):
    """A source of one skill; each poll takes the next answer, a revision or an error."""

    own_check_s: float | None = 300.0

    def __init__(self, given: str, settings: SourceSettings) -> None:
        super().__init__(given, settings.cache / "memo", settings)
        self.answers: list[str | Exception] = []
        self.planned: list[str] = []
        self.errors: dict[str, Exception] = {}
        """Raised by `plan`, by revision."""
        self.is_complete = True
        self.waits: list[float] = []
        self.on_poll: Callable[[bool], object] | None = None
        self.place.mkdir(exist_ok=True)

    async def resolve(self, *, anew: bool = False) -> Revision:
        if self.on_poll is not None:
            self.on_poll(anew)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Revision(answer, 1000.0)

    @asynccontextmanager
    async def plan(self, revision: Revision, known: IndexRecord) -> AsyncGenerator[Plan]:
        self.planned.append(revision.digest)
        if revision.digest in self.errors:
            raise self.errors[revision.digest]
        refused = []
        if not self.is_complete:
            refused.append(SkillRefusal("other", "no answer", "network"))
        units = [Unit(revision.digest, "memo", ("memo",))]
        remark = f"{revision.digest} has a remark"
        index = IndexRecord(self.key, self.origin, revision=revision.digest, warnings=(remark,))
        yield Plan(units, fetching(self.fetch), index, refused=refused)

    async def fetch(self, unit: Unit) -> UnitContents:
        text = f"---\nname: memo\ndescription: {unit.fingerprint}\n---\n"
        return UnitContents({"memo": {"SKILL.md": (text.encode(), False)}})

    async def sleep(self, seconds: float) -> None:
        """Record a wait of the follower, instead of waiting."""
        if not self.answers:
            raise StopError
        self.waits.append(seconds)


def make_follower(tmp_path: Path) -> tuple[ScriptedSource, Follower]:
    source = ScriptedSource("memo:x", SourceSettings(tmp_path))
    return source, Follower(source, source.sleep)


def follow(follower: Follower) -> None:
    """Poll until all answers are used."""
    with pytest.raises(StopError):
        anyio.run(follower.follow)


def served_description(follower: Follower) -> str:
    return (follower.path / "memo" / "SKILL.md").read_text().splitlines()[2]


def match_with_jitter(waits: list[float], *expected: float) -> bool:
    """Tell whether each wait is the expected one, or up to a tenth longer."""
    if len(waits) != len(expected):
        return False
    return all(least <= wait <= least * 1.1 for wait, least in zip(waits, expected, strict=True))


def test_registry_receives_problems_and_revision_of_source(tmp_path: Path) -> None:
    source, follower = make_follower(tmp_path)
    source.answers = ["first"]
    anyio.run(follower.refresh)
    with Registry([MirroredRoot(str(follower.path), source.origin)]) as registry:
        codes: list[list[str]] = []

        def record_codes(_: object) -> None:
            codes.append([each.code for each in registry.snapshot.problems])

        registry.subscribe(record_codes, problems=True)
        follower.report_to(partial(registry.note, str(follower.path)))
        assert registry.roots[0].revision == "first"
        assert codes == []
        source.answers = ["second", "second"]
        source.errors = {"second": UnsignedCommitError("it has no signature")}
        for _ in range(2):
            with pytest.raises(UnacceptableError) as failed:
                anyio.run(follower.refresh)
            follower.report_failure(failed.value)
        reported = next(each for each in registry.problems() if each.path == "memo:x")
        assert reported.code == "commit-unsigned"
        assert reported.hint
        assert reported.message == "it has no signature; serving the last copy"
        assert codes == [["commit-unsigned"]]
        assert registry.roots[0].revision == "first"
        source.answers = ["third"]
        anyio.run(follower.refresh)
        assert codes == [["commit-unsigned"], []]
        assert registry.roots[0].revision == "third"


def test_only_new_or_incomplete_revision_is_fetched(tmp_path: Path) -> None:
    source, follower = make_follower(tmp_path)
    source.answers = ["one", "one", "two", "one"]
    follow(follower)
    assert source.planned == ["one", "two", "one"]
    assert served_description(follower) == "description: one"
    assert match_with_jitter(source.waits, 0, 1000, 1000, 1000)
    source.is_complete = False
    source.answers = ["three", "three"]
    follow(follower)
    assert source.planned[3:] == ["three", "three"]
    assert match_with_jitter(source.waits[4:], 0, 300)


def test_retries_back_off_and_last_copy_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, follower = make_follower(tmp_path)
    assert (follower.state.ready, follower.state.trouble) == (False, "not fetched yet")
    fault = UnreachableError("no answer")
    source.answers = [fault, fault, "one", fault, fault, fault, fault]
    follow(follower)
    assert match_with_jitter(source.waits, 0, 30, 60, 1000, 30, 60, 120)
    assert served_description(follower) == "description: one"
    assert follower.state.ready
    assert follower.state.trouble == "no answer"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "memo:x: no answer; there is no copy of it yet",
        "memo:x: one has a remark",
        "memo:x: no answer; serving the last copy",
    ]


def test_end_of_failures_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source, follower = make_follower(tmp_path)
    fault, busy = UnreachableError("no answer"), BusyError("another process fetches into it")
    source.answers = ["one", busy, "one", fault, fault, "one", "one"]
    follow(follower)
    assert caplog.messages.count("memo:x: can be fetched again") == 1


def test_state_has_times_of_last_and_next_poll(tmp_path: Path) -> None:
    source, follower = make_follower(tmp_path)
    source.answers = ["one", UnreachableError("is away"), "two"]
    states: list[SourceState] = []
    source.on_poll = lambda _: states.append(follower.state)
    start = time.time()
    follow(follower)
    assert states[0].polled is None
    for state in (*states[1:], follower.state):  # failures count as polls
        assert state.polled is not None
        assert start <= state.polled <= time.time()
    assert [state.next_poll for state in states] == [None] * 3  # a poll is under way
    assert follower.state.next_poll is not None
    assert follower.state.next_poll >= start + 1000


def test_refused_revision_is_not_retried_but_unreachable_one_is(tmp_path: Path) -> None:
    source, follower = make_follower(tmp_path)
    source.errors = {"bad": UnacceptableError("it is no good"), "later": UnreachableError("not now")}
    source.answers = ["one", "bad", "bad", "later", "later", "two"]
    follow(follower)
    assert source.planned == ["one", "bad", "later", "later", "two"]
    assert served_description(follower) == "description: two"
    assert follower.state.trouble is None


def test_busy_folder_is_not_logged_unlike_other_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, follower = make_follower(tmp_path)
    source.answers = [KeyError("x"), "one"]
    follow(follower)
    assert served_description(follower) == "description: one"
    assert match_with_jitter(source.waits, 0, 30)
    assert "could not be fetched" in caplog.text
    caplog.clear()
    source.answers = [BusyError("another process fetches into it")] * 3
    follow(follower)
    assert not caplog.records
    assert match_with_jitter(source.waits[2:], 0, 1, 2)  # what it fetches is read then
    assert follower.state.trouble == "another process fetches into it"
    source.answers = [UsageError("the proxy cannot be used")] * 2
    follow(follower)
    assert caplog.messages == ["memo:x: the proxy cannot be used; serving the last copy"]


def test_first_copy_is_ready_once_it_is_whole(tmp_path: Path) -> None:
    source, follower = make_follower(tmp_path)
    source.is_complete, source.answers = False, ["one"]
    follow(follower)
    trouble = "not all of its skills are fetched yet"
    assert (follower.has_copy, follower.state.ready, follower.state.trouble) == (True, False, trouble)
    assert not Follower(source).state.ready  # of the next process
    source.is_complete, source.answers = True, ["one"]
    follow(follower)
    assert (follower.state.ready, follower.state.trouble) == (True, None)
    source.is_complete, source.answers = False, ["two"]
    follow(follower)
    assert (follower.state.ready, follower.state.trouble) == (True, trouble)
    assert Follower(source).state.ready


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("step", ["write_tree", "sync_paths", "replace_file"])
def test_failing_disk_fails_the_source(fault: int, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, follower = make_follower(tmp_path)
    source.answers = ["one"]
    with monkeypatch.context() as failing:
        failing.setattr(folder, step, Mock(side_effect=OSError(fault, os.strerror(fault))))
        with pytest.raises(UnreachableError):
            anyio.run(follower.refresh)
    trouble = f"its copy cannot be written ({os.strerror(fault)})"
    assert (follower.state.ready, follower.state.trouble) == (False, trouble)
    source.answers = ["one"]
    anyio.run(follower.refresh)
    assert (follower.state.ready, follower.state.trouble) == (True, None)


def test_listing_waits_only_for_sources_without_copy(tmp_path: Path) -> None:
    kind = Kind("memo", lambda given: given.startswith("memo:"), ScriptedSource)
    for is_awaited in (True, False):
        mirrors = Mirrors(SourceSettings(tmp_path), (kind, *KINDS))
        mirrors.root("memo:a")
        (follower,) = mirrors.followers
        assert isinstance(follower.source, ScriptedSource)
        follower.source.answers = ["one"]
        mirrors.start(DEADLINE)
        assert mirrors.are_awaited is is_awaited
        mirrors.await_first_read()
        assert follower.has_copy
        mirrors.stop()


class NoticedChanges:
    """A registry of a follower's copy, and what a listener reads at each of its changes."""

    def __init__(self, follower: Follower) -> None:
        self.registry = Registry([MirroredRoot(str(follower.path), follower.source.origin)])
        self.seen: list[tuple[str, list[str]]] = []
        follower.report_to(partial(self.registry.note, str(follower.path)))
        self.registry.load()
        self.registry.subscribe(lambda _: self.seen.append(self.now))

    @property
    def now(self) -> tuple[str, list[str]]:
        """The revision of the root, and the descriptions of its skills."""
        skills = self.registry.snapshot.skills.values()
        return self.registry.roots[0].revision, sorted(skill.description for skill in skills)

    def take(self) -> list[tuple[str, list[str]]]:
        seen, self.seen = self.seen, []
        return seen


def test_copy_that_another_process_changed_is_read_again(tmp_path: Path) -> None:
    source, follower = make_follower(tmp_path)
    other_source, other = make_follower(tmp_path)
    noticed = NoticedChanges(follower)
    source.answers, other_source.answers = ["one", "two", "one"], ["two", "one"]
    anyio.run(follower.refresh)
    noticed.take()
    anyio.run(other.refresh)
    assert noticed.take() == []  # nothing is watched
    anyio.run(follower.refresh)
    assert source.planned == ["one"]  # the other process fetched it
    assert noticed.take() == [("two", ["two"])]
    anyio.run(other.refresh)
    anyio.run(follower.refresh)
    assert noticed.take() == [("one", ["one"])]


def test_copy_that_another_process_changed_has_no_revision_after_a_failed_fetch(tmp_path: Path) -> None:
    source, follower = make_follower(tmp_path)
    other_source, other = make_follower(tmp_path)
    noticed = NoticedChanges(follower)
    source.answers, other_source.answers = ["one", "three"], ["two"]
    anyio.run(follower.refresh)
    anyio.run(other.refresh)
    noticed.take()
    source.errors = {"three": UnreachableError("no answer")}
    with pytest.raises(UnreachableError) as failed:
        anyio.run(follower.refresh)
    follower.report_failure(failed.value)
    assert noticed.take() == [("", ["two"])]
    assert follower.state.revision == ""


def test_foreign_content_is_no_longer_served_once_it_is_removed(tmp_path: Path) -> None:
    source, follower = make_follower(tmp_path)
    source.answers = ["one"]
    anyio.run(follower.refresh)
    (follower.path / "mine").mkdir()
    (follower.path / "mine" / "SKILL.md").write_text("---\nname: mine\ndescription: mine\n---\n")
    source, follower = make_follower(tmp_path)  # another process, which begins with this
    noticed = NoticedChanges(follower)
    source.answers = ["one"]
    assert noticed.now[1] == ["mine", "one"]
    anyio.run(follower.refresh)
    assert noticed.take() == [("", ["one"])]
    assert noticed.now == ("one", ["one"])


def test_source_that_is_switched_to_is_read_whole(tmp_path: Path) -> None:
    source, follower = make_follower(tmp_path)
    changed: list[Set[str]] = []
    follower.report_to(lambda _revision, _problems, paths: changed.append({*paths}))
    source.answers = ["one"]
    anyio.run(follower.refresh)
    other, _ = make_follower(tmp_path)
    other.answers = ["one"]
    follower.switch(other)
    assert follower.state.revision == ""
    anyio.run(follower.refresh)
    assert changed[-1] == {""}
    assert follower.state.revision == "one"


def test_change_by_another_process_just_before_a_fetch_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, follower = make_follower(tmp_path)
    other_source, other = make_follower(tmp_path)
    noticed = NoticedChanges(follower)
    source.answers, other_source.answers = ["one", "two"], ["two"]
    anyio.run(follower.refresh)
    noticed.take()

    def fetch_elsewhere(*_: object) -> None:
        """Run where the follower has not locked the folder yet."""
        if other_source.answers:
            monkeypatch.undo()
            anyio.run(other.refresh)

    monkeypatch.setattr("mcp_skills_server.sources.reconcile._held", fetch_elsewhere)
    anyio.run(follower.refresh)
    assert other_source.planned == ["two"]
    assert noticed.take() == [("two", ["two"])]


class ManySource(ScriptedSource):
    """A source whose revision has the skills of these letters; "x" cannot be fetched."""

    @asynccontextmanager
    async def plan(self, revision: Revision, known: IndexRecord) -> AsyncGenerator[Plan]:
        units = [Unit(f"{name} {revision.digest}", name, (name,)) for name in revision.digest]
        index = IndexRecord(self.key, self.origin, revision=revision.digest)
        yield Plan(units, fetching(self.fetch), index)

    async def fetch(self, unit: Unit) -> UnitContents:
        if unit.label == "x":
            raise KeyError(unit.label)
        text = f"---\nname: {unit.label}\ndescription: {unit.label}\n---\n"
        return UnitContents({unit.label: {"SKILL.md": (text.encode(), False)}})


def test_part_of_a_long_fetch_is_served_without_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_skills_server.sources.reconcile._BATCH", 2)
    source = ManySource("memo:x", SourceSettings(tmp_path, fetch=FetchSettings(connections=1)))
    follower = Follower(source, source.sleep)
    noticed = NoticedChanges(follower)
    source.answers = ["abcde", "bc", "bcdefx", "bcdefgh"]
    anyio.run(follower.refresh)
    assert noticed.take() == [("", [*"ab"]), ("", [*"abcd"]), ("abcde", [*"abcde"])]
    anyio.run(follower.refresh)
    assert noticed.take() == [("bc", [*"bc"])]
    with pytest.raises(SourceError) as failed:
        anyio.run(follower.refresh)
    follower.report_failure(failed.value)
    assert noticed.take() == [("", [*"bcde"])]
    assert follower.state.revision == noticed.now[0] == ""
    anyio.run(follower.refresh)
    assert noticed.take()[-1] == noticed.now == ("bcdefgh", [*"bcdefgh"])


def test_requested_poll_ends_wait_and_is_throttled_to_one_per_second(tmp_path: Path) -> None:
    source = ScriptedSource("memo:x", SourceSettings(tmp_path))
    anew: list[bool] = []
    source.answers = ["one", "two", "three"]
    source.on_poll = anew.append

    async def sleep(seconds: float) -> None:
        await source.sleep(seconds)
        if seconds:
            follower.poll_now()
        if seconds > 1:
            await anyio.sleep_forever()

    follower = Follower(source, sleep)
    follow(follower)
    assert anew == [False, True, True]
    assert 0.5 < source.waits[-1] <= 1.0


class PolledSource(ScriptedSource):
    """A source whose polling interval the operator sets."""

    own_check_s = None


def test_each_source_has_its_own_changeable_polling_interval(tmp_path: Path) -> None:
    kind = Kind("memo", lambda given: given.startswith("memo:"), PolledSource)
    mirrors = Mirrors(SourceSettings(tmp_path, refresh_s=60.0), (kind, *KINDS))
    for given, refresh_s in (("memo:a", None), ("memo:b", 5.0)):
        mirrors.root(given, refresh_s=refresh_s)
    sources = [each.source for each in mirrors.followers]
    assert [each.check_s for each in sources] == [60.0, 5.0]
    mirrors.set_refresh("memo:a", 7.0)
    mirrors.set_refresh("memo:unknown", 9.0)
    assert [each.check_s for each in sources] == [7.0, 5.0]
    mirrors.stop()


def test_copy_that_was_deleted_is_fetched_again_without_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_skills_server.sources.reconcile._BATCH", 2)
    source = ManySource("memo:x", SourceSettings(tmp_path))
    follower = Follower(source, source.sleep)
    noticed = NoticedChanges(follower)
    source.answers = ["abcde", "abcde"]
    anyio.run(follower.refresh)
    noticed.take()
    shutil.rmtree(follower.path)
    anyio.run(follower.refresh)
    assert noticed.take() == []
    assert noticed.now == ("abcde", [*"abcde"])
    for skill in noticed.registry.snapshot.skills.values():
        assert noticed.registry.read(skill.files["SKILL.md"])
