"""One schedule for every kind of source, shown with a kind that is a class of twenty lines and one row of the table."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.catalog.registry import MirroredRoot, Registry
from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.folder import BusyError
from mcp_skills_server.sources.kinds import KINDS, Kind
from mcp_skills_server.sources.mirrors import Follower, Mirrors
from mcp_skills_server.sources.reconcile import fetching
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.source import (
    Plan,
    Revision,
    SkillRefusal,
    Source,
    SourceSettings,
    UnacceptableError,
    Unit,
    UnitContents,
    UnreachableError,
    UnsignedCommitError,
)


class Memo(Source):
    """A kind of its own: one skill whose body is what the list says next, or the error that it holds next."""

    own_check_s: float | None = 300.0

    def __init__(self, given: str, settings: SourceSettings) -> None:
        super().__init__(given, settings.cache / "memo", settings)
        self.answers: list[str | Exception] = []
        self.brought: list[str] = []
        self.refused: dict[str, Exception] = {}
        self.complete = True
        self.on_look: Callable[[bool], object] = bool
        self.place.mkdir(exist_ok=True)

    async def resolve(self, *, anew: bool = False) -> Revision:
        self.on_look(anew)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Revision(answer, 1000.0)

    @asynccontextmanager
    async def plan(self, revision: Revision, known: IndexRecord) -> AsyncGenerator[Plan]:
        self.brought.append(revision.digest)
        if revision.digest in self.refused:
            raise self.refused[revision.digest]
        refused = () if self.complete else (SkillRefusal("other", "no answer", "network"),)
        units = [Unit(revision.digest, "memo", ("memo",))]
        remark = f"{revision.digest} has a remark"
        index = IndexRecord(self.key, self.origin, revision=revision.digest, warnings=(remark,))
        yield Plan(units, fetching(self.fetch), index, refused=refused)

    async def fetch(self, unit: Unit) -> UnitContents:
        text = f"---\nname: memo\ndescription: {unit.fingerprint}\n---\n"
        return UnitContents({"memo": {"SKILL.md": (text.encode(), False)}})


MEMO = Kind("memo", lambda given: given.startswith("memo:"), Memo)


class StopError(Exception):
    """The answers are used up."""


def made(tmp_path: Path) -> tuple[Memo, Follower, list[float]]:
    """A source, its follower, and the seconds that it waited."""
    source, waits = Memo("memo:x", SourceSettings(tmp_path)), list[float]()

    async def sleep(seconds: float) -> None:
        if not source.answers:
            raise StopError
        waits.append(seconds)

    return source, Follower(source, sleep), waits


def follow(follower: Follower) -> None:
    with pytest.raises(StopError):
        anyio.run(follower.follow)


def served(follower: Follower) -> str:
    return (follower.path / "memo" / "SKILL.md").read_text().splitlines()[2]


def within(waits: list[float], *expected: float) -> bool:
    """Each wait is the expected one, or up to a tenth longer."""
    return len(waits) == len(expected) and all(
        least <= wait <= least * 1.1 for wait, least in zip(waits, expected, strict=True)
    )


def test_the_registry_hears_what_a_source_refuses_and_of_which_revision_it_is(tmp_path: Path) -> None:
    source, follower, _ = made(tmp_path)
    source.answers = ["first"]
    anyio.run(follower.refresh)
    with Registry([MirroredRoot(str(follower.path), source.origin)]) as registry:
        heard: list[list[str]] = []
        registry.subscribe(lambda _: heard.append([each.code for each in registry.snapshot.problems]), problems=True)
        follower.report_to(partial(registry.note, str(follower.path)))
        assert registry.roots[0].revision == "first" and heard == []
        source.answers, source.refused = ["second"] * 2, {"second": UnsignedCommitError("nobody signed it")}
        for _ in range(2):
            with pytest.raises(UnacceptableError) as failed:
                anyio.run(follower.refresh)
            follower.report_failure(failed.value)
        found = next(each for each in registry.problems() if each.path == "memo:x")
        assert found.code == "commit-unsigned" and found.hint
        assert found.message == "nobody signed it; serving the last copy"
        assert heard == [["commit-unsigned"]] and registry.roots[0].revision == "first"
        source.answers = ["third"]
        anyio.run(follower.refresh)
        assert heard == [["commit-unsigned"], []] and registry.roots[0].revision == "third"


def test_a_new_kind_is_one_class_and_one_row(tmp_path: Path) -> None:
    mirrors = Mirrors(SourceSettings(tmp_path), (MEMO, *KINDS))
    root = mirrors.root("memo:x")
    assert isinstance(root, MirroredRoot) and root.origin == "memo:x"
    registry = Registry([root])
    registry.load()
    assert not registry.snapshot.skills
    assert mirrors.root(str(tmp_path)) == str(tmp_path)
    (state,) = mirrors.states()
    assert (state.name, state.ready, state.trouble) == ("memo:x", False, "not fetched yet")
    (follower,) = mirrors.followers
    assert isinstance(follower.source, Memo)
    follower.source.answers = [UnreachableError("no answer"), "first"]
    with pytest.raises(UsageError, match=r"memo:x: no answer; there is no copy of it"):
        mirrors.fetch()
    mirrors.fetch()
    assert (Path(root.path) / "memo" / "SKILL.md").is_file() and mirrors.states()[0].ready
    registry.refresh()
    assert list(registry.snapshot.skills) == ["memo"] and registry.snapshot.skills["memo"].origin == "memo:x"
    mirrors.stop()


def test_only_what_is_new_or_not_complete_is_brought(tmp_path: Path) -> None:
    source, follower, waits = made(tmp_path)
    source.answers = ["one", "one", "two", "one"]
    follow(follower)
    assert source.brought == ["one", "two", "one"] and served(follower) == "description: one"
    assert within(waits, 0, 1000, 1000, 1000)
    source.complete = False
    source.answers = ["three", "three"]
    follow(follower)
    assert source.brought[3:] == ["three", "three"] and within(waits[4:], 0, 300)


def test_retries_take_longer_and_the_last_copy_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, follower, waits = made(tmp_path)
    fault = UnreachableError("no answer")
    source.answers = [fault, fault, "one", fault, fault, fault, fault]
    follow(follower)
    assert within(waits, 0, 30, 60, 1000, 30, 60, 120)
    assert served(follower) == "description: one" and follower.state.ready and follower.state.trouble == "no answer"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "memo:x: no answer; there is no copy of it yet",
        "memo:x: one has a remark",
        "memo:x: no answer; serving the last copy",
    ]


def test_a_state_says_when_it_was_looked_at_and_when_it_will_be(tmp_path: Path) -> None:
    source, follower, _ = made(tmp_path)
    source.answers = ["one", UnreachableError("is away"), "two"]
    before: list[tuple[float | None, float | None]] = []
    source.on_look = lambda _: before.append((follower.state.looked, follower.state.next_look))
    begun = time.time()
    follow(follower)
    assert before[0] == (None, None)
    looked = [each for each, _ in before[1:]] + [follower.state.looked]
    assert all(each is not None and begun <= each <= time.time() for each in looked), "failures count as looks"
    assert [next_look for _, next_look in before] == [None] * 3, "none is planned while one is under way"
    assert follower.state.next_look is not None and follower.state.next_look >= begun + 1000


def test_what_is_refused_is_not_tried_again_until_it_is_another(tmp_path: Path) -> None:
    source, follower, _ = made(tmp_path)
    source.refused = {"bad": UnacceptableError("it is no good"), "later": UnreachableError("not now")}
    source.answers = ["one", "bad", "bad", "later", "later", "two"]
    follow(follower)
    assert source.brought == ["one", "bad", "later", "later", "two"]
    assert served(follower) == "description: two" and follower.state.trouble is None


def test_a_bug_is_a_failure_of_its_source_and_another_process_in_the_cache_is_no_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, follower, waits = made(tmp_path)
    source.answers = [KeyError("x"), "one"]
    follow(follower)
    assert served(follower) == "description: one" and within(waits, 0, 30)
    assert "could not be fetched" in caplog.text
    caplog.clear()
    source.answers = [BusyError("another process fetches into it")]
    follow(follower)
    assert not caplog.records and follower.state.trouble == "another process fetches into it"
    source.answers = [UsageError("the proxy cannot be used")] * 2
    follow(follower)
    assert caplog.messages == ["memo:x: the proxy cannot be used; serving the last copy"]


def test_a_source_is_ready_after_its_folder_was_taken_in_and_before_a_list_that_waited(tmp_path: Path) -> None:
    source, follower, _ = made(tmp_path)
    seen: list[tuple[str, bool]] = []

    class Noting(threading.Event):
        def set(self) -> None:
            seen.append(("read", follower.state.ready))
            super().set()

    follower.read_once = Noting()
    follower.arrived = lambda folder: seen.append((folder, follower.state.ready))
    source.answers = ["one"]
    follow(follower)
    assert seen[:2] == [(str(follower.path), False), ("read", True)]


def test_a_look_that_is_asked_for_ends_a_wait_and_the_next_one_comes_a_second_later(tmp_path: Path) -> None:
    source, waits, anew = Memo("memo:x", SourceSettings(tmp_path)), list[float](), list[bool]()
    source.answers, source.on_look = ["one", "two", "three"], anew.append

    async def sleep(seconds: float) -> None:
        if not source.answers:
            raise StopError
        waits.append(seconds)
        if seconds:
            follower.look()
        if seconds > 1:
            await anyio.sleep_forever()

    follower = Follower(source, sleep)
    follow(follower)
    assert anew == [False, True, True] and 0.5 < waits[-1] <= 1.0


class Asked(Memo):
    """A memo whose polling interval is the operator's."""

    own_check_s = None


def test_each_source_has_its_own_refresh_which_may_change(tmp_path: Path) -> None:
    mirrors = Mirrors(SourceSettings(tmp_path, refresh_s=60.0), (Kind("memo", MEMO.matches, Asked), *KINDS))
    for given, refresh_s in (("memo:a", None), ("memo:b", 5.0)):
        mirrors.root(given, refresh_s=refresh_s)
    paces = [each.source for each in mirrors.followers]
    assert [each.check_s for each in paces] == [60.0, 5.0]
    mirrors.set_refresh("memo:a", 7.0)
    mirrors.set_refresh("memo:nobody", 9.0)
    assert [each.check_s for each in paces] == [7.0, 5.0]
    mirrors.stop()
