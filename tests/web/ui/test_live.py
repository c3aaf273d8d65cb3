"""Changes as they happen: what is kept of them and who hears of them, and how a skill differs after each."""

from __future__ import annotations

import http.client
import shutil
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from starlette.requests import Request

from catalog.forest import plant, skill_md, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import SkillSet
from mcp_skills_server.web.ui.pages import history, live
from mcp_skills_server.web.ui.pages.history import Revisions, SkillRevision
from mcp_skills_server.web.ui.pages.live import Change, ChangeStream, Live
from web.http_wire import Server, until
from web.ui.serving import get, look_at, page_serving, words
from wire import DEADLINE, write_skill


async def always() -> bool:
    return True


def came(*paths: str) -> tuple[Change, ...]:
    """What a scan finds that has these skills for the first time."""
    return tuple(Change("appeared", path) for path in paths)


def reading(path: str) -> SkillSet:
    """A set of skills that is the skill of this path alone; "*" for all."""
    permissions = SimpleNamespace(can_read=lambda each: path in ("*", each))
    return cast("SkillSet", SimpleNamespace(permissions=permissions))


EVERY, MINE = reading("*"), reading("mine")


def test_each_change_after_the_first_scan_is_kept_with_what_it_is(tmp_path: Path) -> None:
    def scan(**files: str) -> None:
        """Have these files and those of some other skills changed, in one scan."""
        plant(tmp_path, {**files, **{f"other-{number}/a.txt": "".join(files) for number in range(40)}})
        registry.refresh()

    plant(tmp_path, skills("a", "a/b", "two", *(f"other-{number}" for number in range(40))) | {"a/b/c.txt": "c"})
    kept, registry = Live(), Registry([tmp_path])
    kept.follow(registry)
    registry.load()
    assert kept.latest(registry) == [], "what the first scan finds is no change"
    scan(**{"a/b/c.txt": "d"})
    scan(**{"a/b/c.txt": "e", "a/b.txt": "b", "new/SKILL.md": skill_md("other")})
    scan(**{f"two/{number}": "" for number in range(6)})
    shutil.rmtree(tmp_path / "a" / "b")
    shutil.rmtree(tmp_path / "two")
    registry.refresh()
    latest = [each for each in kept.latest(registry) if "other" not in each.path]
    assert [each._replace(number=0, time=0.0) for each in latest] == [
        Change("vanished", "two"),
        Change("vanished", "a/b"),
        Change("changed", "two", ("0", "1", "2", "3", "4"), 1),
        Change("appeared", "new"),
        Change("changed", "a/b", ("c.txt",)),
        Change("changed", "a", ("b.txt",)),
        Change("changed", "a/b", ("c.txt",)),
    ]
    numbers = [each.number for each in latest]
    assert numbers[0] == numbers[1] > numbers[2] > numbers[3] == numbers[5] > numbers[6] > 0


def test_only_so_many_changes_are_kept_and_shown_and_numbers_only_grow() -> None:
    kept, other, seen = Live(), reading("other"), 0
    kept.note(came("other"))
    assert (kept.latest(MINE), kept.number(MINE)) == ([], 0)
    for _ in range(3):
        kept.note(came("other", *(f"skill-{number:04}" for number in range(998)), "mine"))
        assert len(kept.latest(MINE)) == 1 and kept.latest(MINE)[0].number == kept.number(MINE) > seen
        assert kept.number(other) == kept.number(MINE), "it tells how many others there were"
        seen = kept.number(MINE)
    for _ in range(201):
        kept.note(came("mine"))
    assert len(kept.latest(MINE)) == 200 and {each.path for each in kept.latest(MINE)} == {"mine"}


async def rest(lines: AsyncGenerator[str]) -> list[str]:
    with anyio.fail_after(DEADLINE):
        return [each async for each in lines]


async def opened(kept: Live, skills: SkillSet, owner: str = "a") -> tuple[ChangeStream, AsyncGenerator[str]]:
    stream = kept.open(skills, owner, kept.number(skills), always)
    assert (await anext(stream.lines)).startswith("retry:")
    return stream, stream.lines


@pytest.mark.anyio
async def test_a_burst_is_one_line_with_a_number_and_a_change_of_other_skills_is_none() -> None:
    kept, heard = Live(), list[str]()
    _, lines = await opened(kept, MINE)

    async def hear() -> None:
        heard.append(await anext(lines))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear)
            for _ in range(3):
                kept.note(came("other"))
                await anyio.wait_all_tasks_blocked()
            assert heard == []
            await anyio.to_thread.run_sync(kept.note, came("mine"))
        numbers = [kept.number(MINE)]
        for _ in range(2):
            kept.note(came("mine"))
        await hear()
    numbers.append(kept.number(MINE))
    assert heard == [f"id: {number}\nevent: change\ndata: {number}\n\n" for number in numbers]
    kept.close()
    assert await rest(lines) == []


@pytest.mark.anyio
async def test_who_opens_too_many_loses_his_oldest_and_nobody_elses() -> None:
    kept = Live(share=2)
    others, _ = await opened(kept, EVERY, "b")
    _, oldest = await opened(kept, EVERY)
    mine = [await opened(kept, EVERY) for _ in range(2)]
    assert await rest(oldest) == ["event: replaced\ndata: 1\n\n"]
    assert len(kept) == 3 and not others.is_replaced and not any(stream.is_replaced for stream, _ in mine)
    for stream in (others, *(stream for stream, _ in mine)):
        kept.release(stream)
    assert len(kept) == 0


@pytest.mark.anyio
async def test_while_nothing_changes_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    assert live.HEARTBEAT_S == 30
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.01)
    _, lines = await opened(Live(), EVERY)
    assert [await anext(lines) for _ in range(2)] == [":\n\n"] * 2
    await lines.aclose()


@dataclass
class Following:
    """An open stream."""

    reply: http.client.HTTPResponse

    def event(self) -> str:
        """The next event that has a name, "" at the end."""
        while line := self.reply.readline():
            if line.startswith(b"event:"):
                return line.decode().partition(" ")[2].strip()
        return ""


@contextmanager
def following(server: Server, **headers: str) -> Iterator[Following]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
        connection.request("GET", "/ui/live/events", headers=headers)
        yield Following(connection.getresponse())


def test_two_hundred_open_pages_are_served_and_all_hear_of_a_change(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with page_serving(tmp_path) as server, ExitStack() as stack:
        assert server.send("HEAD", "/ui/live/events").status == 200, "it holds no stream"
        streams = [stack.enter_context(following(server)) for _ in range(200)]
        assert {(each.reply.status, each.reply.headers["Cache-Control"]) for each in streams} == {(200, "no-store")}
        assert "Nothing has changed." in words(get(server, "/ui/live"))
        write_skill(tmp_path / "two", name="other")
        assert {each.event() for each in streams} == {"change"}
        page = get(server, "/ui/live?part=1")
        assert "appeared two left out" in words(page) and b"<html" not in page.body
        assert server.signal(signal.SIGTERM)[0] == 0
        # None was cut off, which would be an IncompleteRead.
        assert {each.reply.read()[:6] for each in streams} == {b"data: "}


def test_whoever_leaves_gives_the_place_back(tmp_path: Path) -> None:
    look, left = look_at(plant(tmp_path, skills("one"))), list[int]()

    async def leave() -> dict[str, Any]:
        left.append(len(look.site.live))
        return {"type": "http.disconnect"}

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "client": None}
        response = await live.events(Request(scope), look)
        with anyio.fail_after(DEADLINE):
            await response(scope, leave, lambda _: anyio.lowlevel.checkpoint())

    anyio.run(ask)
    assert left == [1] and len(look.site.live) == 0


def test_where_others_hold_all_places_a_stream_is_refused(tmp_path: Path) -> None:
    def asked(query: str = "") -> Any:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}
        return anyio.run(live.events, Request({**scope, "query_string": query.encode()}), look)

    kept, look = Live(share=1), look_at(plant(tmp_path, skills("one")))
    held = [kept.open(EVERY, f"{number}", 0, always) for number in range(1_023)]
    look = replace(look, site=replace(look.site, live=kept))
    kept.note(came("one"))
    for after, begins in (("9" * 19, int("9" * 19)), ("9" * 20, kept.last_number), ("\u00b2", kept.last_number)):
        stream = asked(f"after={after}")
        assert (stream.status_code, stream._after) == (200, begins)
        kept.release(stream)
    held.append(kept.open(EVERY, "last", 0, always))
    answer = asked()
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "60")
    assert not any(each.is_replaced for each in held)


@contextmanager
def remembering(folder: Path, path: str = "") -> Iterator[tuple[Registry, Callable[[str, int], list[SkillRevision]]]]:
    """A registry of a folder, and the changes of a skill once there are so many, with the files of `path` kept."""

    def changes(of: str, count: int) -> list[SkillRevision]:
        registry.refresh()
        until(lambda: len(found.of(of)) >= count)
        return found.of(of)

    with Registry([folder]) as registry:
        found = Revisions(registry)
        found.start()
        until(lambda: not path or path in found._kept)
        yield registry, changes
        until(lambda: found._size == sum(map(history._size, [*found._kept.values()])))


def test_each_change_is_one_difference_the_newest_first(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", body="one\n")
    with remembering(tmp_path, "a") as (_, changes):
        write_skill(tmp_path / "a", body="two\n", scripts__run_sh="#!/bin/sh\n")
        (first,) = changes("a", 1)
        assert first.kind == "changed" and "script new: scripts/run.sh" in first.first
        assert "-one" in first.lines and "+two" in first.lines
        shutil.rmtree(tmp_path / "a")
        assert [each.kind for each in changes("a", 2)] == ["removed", "changed"]
        write_skill(tmp_path / "a", body="three\n")
        assert changes("a", 3)[0].kind == "added" and changes("b", 0) == []


def test_what_was_not_kept_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_KEPT", 0)
    write_skill(tmp_path / "a", body="one\n", old_md="x")
    write_skill(tmp_path / "a" / "inner")
    with remembering(tmp_path) as (_, changes):
        write_skill(tmp_path / "a", body="two\n", new_md="x")
        (tmp_path / "a" / "old.md").unlink()
        write_skill(tmp_path / "a" / "inner", body="other\n")
        (only,) = changes("a", 1)
    assert {*only.lines} == {"file added: new.md", "file removed: old.md", "file changed: SKILL.md"}


def test_a_skill_inside_of_another_is_no_part_of_its_history(tmp_path: Path) -> None:
    """Nor is one whose manifest is no file any more."""
    inner = write_skill(tmp_path / "outer" / "inner", body="secret one\n", notes_md="secret\n")
    write_skill(tmp_path / "outer", body="one\n")
    with remembering(tmp_path, "outer/inner") as (_, changes):
        write_skill(tmp_path / "outer", body="two\n")
        write_skill(inner, body="secret two\n", notes_md="secret too\n")
        changes("outer/inner", 1)
        (first,) = changes("outer", 1)
        (inner / "SKILL.md").unlink()
        (inner / "SKILL.md").mkdir()
        write_skill(tmp_path / "outer", body="three\n")
        second = changes("outer", 2)[0]
    assert "+two" in first.lines and "+three" in second.lines
    assert "secret" not in repr((first, second)) and "inner" not in repr((first, second))
