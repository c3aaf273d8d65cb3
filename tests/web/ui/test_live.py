"""Changes as they happen: what is kept of them, who hears of them, and that a stream costs nothing in between."""

from __future__ import annotations

import http.client
import shutil
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
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
from mcp_skills_server.runtime.quota import QuotaError
from mcp_skills_server.web.ui.pages import live
from mcp_skills_server.web.ui.pages.live import MOST_KEPT, MOST_SHOWN, Change, ChangeStream, Live
from web.http_wire import Server
from web.ui.serving import get, page_serving, words
from web.ui.views import look_at
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


# What is kept


def test_each_change_after_the_first_scan_is_kept_with_what_it_is(tmp_path: Path) -> None:
    def scan(**files: str) -> None:
        """Have these files and those of some other skills changed, in one scan."""
        plant(tmp_path, {**files, **{f"other-{number}/a.txt": "".join(files) for number in range(40)}})
        registry.refresh()

    plant(tmp_path, skills("a", "a/b", "two", *(f"other-{number}" for number in range(40))) | {"a/b/c.txt": "c"})
    kept, registry = Live(), Registry([tmp_path], quiet_s=0)
    kept.follow(registry)
    registry.load()
    assert kept.latest(registry) == [], "what the first scan finds is no change"
    scan(**{"a/b/c.txt": "d"})
    scan(**{"a/b/c.txt": "e", "a/b.txt": "b", "new/SKILL.md": skill_md("other")})
    shutil.rmtree(tmp_path / "a" / "b")
    shutil.rmtree(tmp_path / "two")
    registry.refresh()
    latest = [each for each in kept.latest(registry) if "other" not in each.path]
    assert [each._replace(number=0, time=0.0) for each in latest] == [
        Change("vanished", "two"),
        Change("vanished", "a/b"),
        Change("appeared", "new"),
        Change("changed", "a/b", ("c.txt",)),
        Change("changed", "a", ("b.txt",)),
        Change("changed", "a/b", ("c.txt",)),
    ]
    numbers = [each.number for each in latest]
    assert numbers[0] == numbers[1] > numbers[2] == numbers[4] > numbers[5] > 0


def test_only_so_many_changes_are_kept_and_shown_and_numbers_only_grow() -> None:
    kept, other, seen = Live(), reading("other"), 0
    kept.note(came("other"))
    assert (kept.latest(MINE), kept.number(MINE)) == ([], 0)
    for _ in range(3):
        kept.note(came("mine", *(f"skill-{number:04}" for number in range(MOST_KEPT - 2)), "other"))
        assert len(kept.latest(MINE)) == 1 and kept.latest(MINE)[0].number == kept.number(MINE) > seen
        assert kept.number(other) == kept.number(MINE), "it tells how many others there were"
        seen = kept.number(MINE)
    for _ in range(MOST_SHOWN + 1):
        kept.note(came("mine"))
    assert len(kept.latest(MINE)) == MOST_SHOWN and {each.path for each in kept.latest(MINE)} == {"mine"}


# Streams


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
async def test_the_end_of_a_server_ends_streams_that_wait_that_pause_and_that_come_later() -> None:
    kept = Live()
    _, waits = await opened(kept, EVERY)
    _, pauses = await opened(kept, EVERY)
    kept.note(came("a"))
    assert "change" in await anext(pauses)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rest, waits)
        tasks.start_soon(rest, pauses)
        await anyio.wait_all_tasks_blocked()
        kept.close()
    _, later = await opened(kept, EVERY)
    assert await rest(later) == []


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


def test_where_others_hold_all_places_a_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_STREAMS", 2)
    kept = Live(share=1)
    held = [kept.open(EVERY, owner, 0, always) for owner in "ab"]
    with pytest.raises(QuotaError):
        kept.open(EVERY, "c", 0, always)
    assert not any(each.is_replaced for each in held)


@pytest.mark.anyio
async def test_while_nothing_changes_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    assert live.HEARTBEAT_S == 30
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.01)
    _, lines = await opened(Live(), EVERY)
    assert [await anext(lines) for _ in range(2)] == [":\n\n"] * 2
    await lines.aclose()


# Over HTTP


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
