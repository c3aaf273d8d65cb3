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

from catalog.forest import loaded, plant, skill_md
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


def bare(change: Change) -> Change:
    """A change without when it was found."""
    return change._replace(number=0, time=0.0)


def reading(path: str) -> SkillSet:
    """A set of skills that is the skill of this path alone; "*" for all."""
    permissions = SimpleNamespace(can_read=lambda each: path in ("*", each))
    return cast("SkillSet", SimpleNamespace(permissions=permissions))


EVERY = reading("*")


def followed(*roots: Path) -> tuple[Live, Registry]:
    kept, registry = Live(), loaded(*roots)
    kept.follow(registry)
    return kept, registry


# What is kept


def test_what_the_first_scan_finds_is_no_change(tmp_path: Path) -> None:
    plant(tmp_path, {"one/SKILL.md": skill_md("one")})
    kept, registry = Live(), Registry([tmp_path], quiet_s=0)
    kept.follow(registry)
    registry.load()
    assert kept.latest(registry) == []


def test_each_change_is_kept_with_what_it_is_whenever_somebody_looks_first(tmp_path: Path) -> None:
    plant(tmp_path, {"one/SKILL.md": skill_md("one"), "two/SKILL.md": skill_md("two")})
    kept, registry = followed(tmp_path)
    plant(tmp_path, {"one/a.txt": "a", "three/SKILL.md": skill_md("other")})
    registry.refresh()
    shutil.rmtree(tmp_path / "two")
    registry.refresh()
    latest = kept.latest(registry)
    assert [bare(each) for each in latest] == [
        Change("vanished", "two"),
        Change("appeared", "three"),
        Change("changed", "one", ("a.txt",)),
    ]
    assert latest[0].number > latest[1].number == latest[2].number > 0


@pytest.mark.parametrize("others", [0, 40])
def test_files_of_a_skill_inside_are_that_ones_alone(tmp_path: Path, others: int) -> None:
    def write(**files: str) -> None:
        """Have these files and those of some other skills changed, in one scan."""
        more = {f"other-{number}/a.txt": "".join(files) for number in range(others)}
        plant(tmp_path, {**files, **more})
        registry.refresh()

    plant(tmp_path, {"a/SKILL.md": skill_md("a"), "a/b/SKILL.md": skill_md("b"), "a/b/c.txt": "c"})
    plant(tmp_path, {f"other-{number}/SKILL.md": skill_md(f"other-{number}") for number in range(others)})
    kept, registry = followed(tmp_path)
    write(**{"a/b/c.txt": "d"})
    write(**{"a/b/c.txt": "e", "a/b.txt": "b"})
    shutil.rmtree(tmp_path / "a" / "b")
    registry.refresh()
    found = [bare(each) for each in reversed(kept.latest(registry)) if each.path.startswith("a")]
    assert found == [
        Change("changed", "a/b", ("c.txt",)),
        Change("changed", "a", ("b.txt",)),
        Change("changed", "a/b", ("c.txt",)),
        Change("vanished", "a/b"),
    ]


def test_never_more_are_kept_than_so_many_and_numbers_only_grow() -> None:
    kept, seen = Live(), 0
    mine, other = reading("mine"), reading("other")
    for _ in range(3):
        kept.note(came("mine", *(f"skill-{number:04}" for number in range(MOST_KEPT - 2)), "other"))
        assert len(kept.latest(mine)) == 1 and kept.latest(mine)[0].number == kept.number(mine) > seen
        assert kept.number(other) == kept.number(mine), "it tells how many others there were"
        seen = kept.number(mine)


def test_a_set_of_skills_has_what_is_about_them_and_no_more_than_so_many() -> None:
    kept, mine = Live(), reading("mine")
    kept.note(came("other"))
    assert (kept.latest(mine), kept.number(mine)) == ([], 0)
    for _ in range(MOST_SHOWN + 1):
        kept.note(came("mine"))
    assert len(kept.latest(mine)) == MOST_SHOWN and {each.path for each in kept.latest(mine)} == {"mine"}


# Streams


async def rest(lines: AsyncGenerator[str]) -> list[str]:
    with anyio.fail_after(DEADLINE):
        return [each async for each in lines]


async def opened(kept: Live, skills: SkillSet, owner: str = "a") -> tuple[ChangeStream, AsyncGenerator[str]]:
    stream = kept.open(skills, owner, kept.number(skills), always)
    lines = stream.lines
    assert (await anext(lines)).startswith("retry:")
    return stream, lines


@pytest.mark.anyio
async def test_a_burst_is_one_line_and_a_line_has_nothing_but_a_number() -> None:
    kept = Live()
    _, lines = await opened(kept, EVERY)
    await anyio.to_thread.run_sync(kept.note, came("secret-a", "secret-b"))
    await anyio.to_thread.run_sync(kept.note, came("secret-c"))
    number = kept.number(EVERY)
    with anyio.fail_after(DEADLINE):
        assert await anext(lines) == f"id: {number}\nevent: change\ndata: {number}\n\n"
    kept.close()
    assert await rest(lines) == []


@pytest.mark.anyio
async def test_a_change_of_other_skills_is_no_line() -> None:
    kept, mine, heard = Live(), reading("mine"), list[str]()
    _, lines = await opened(kept, mine)

    async def hear() -> None:
        heard.append(await anext(lines))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear)
            for _ in range(3):
                kept.note(came("other"))
                await anyio.wait_all_tasks_blocked()
            assert heard == []
            kept.note(came("mine"))
    assert heard == [f"id: {kept.number(mine)}\nevent: change\ndata: {kept.number(mine)}\n\n"]


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
async def test_a_stream_ends_when_its_viewer_may_not_look_any_more() -> None:
    kept, may = Live(), True

    async def stays() -> bool:
        return may

    lines = kept.open(EVERY, "a", 0, stays).lines
    await anext(lines)
    may = False
    kept.note(came("secret"))
    assert await rest(lines) == [], "not even that something changed"


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
        assert {each.reply.status for each in streams} == {200}
        assert {each.reply.headers["Cache-Control"] for each in streams} == {"no-store"}
        assert "Nothing has changed." in words(get(server, "/ui/live"))
        write_skill(tmp_path / "two", name="other")
        assert {each.event() for each in streams} == {"change"}
        page = get(server, "/ui/live?part=1")
        assert "appeared two left out" in words(page) and b"<html" not in page.body
        assert server.signal(signal.SIGTERM)[0] == 0
        # None was cut off, which would be an IncompleteRead.
        assert {each.reply.read()[:6] for each in streams} == {b"data: "}


def test_whoever_leaves_gives_the_place_back(tmp_path: Path) -> None:
    look = look_at(plant(tmp_path, {"one/SKILL.md": skill_md("one")}))
    left = False

    async def leave(_: object = None) -> dict[str, Any]:
        nonlocal left
        assert len(look.site.live) == 1
        left = True
        return {"type": "http.disconnect"}

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "client": None}
        response = await live.events(Request(scope), look)
        with anyio.fail_after(DEADLINE):
            await response(scope, leave, lambda _: anyio.lowlevel.checkpoint())

    anyio.run(ask)
    assert left and len(look.site.live) == 0
