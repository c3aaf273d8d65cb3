"""Recent changes, their event streams, and the diffs of a skill's history."""

from __future__ import annotations

import http.client
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.lowlevel
import pytest
from starlette.requests import Request

from catalog.forest import load_registry, skill_md, skills, write_files
from mcp_skills_server.access.grants import Grant, Pattern, Permissions
from mcp_skills_server.access.quota import Owner, Streams
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import GrantedSkills
from mcp_skills_server.model import Changes, Skill
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.ui import changes as ui_changes
from mcp_skills_server.web.ui import revisions as ui_revisions
from mcp_skills_server.web.ui.changes import Change, ChangeStream, Live
from mcp_skills_server.web.ui.pages import live
from mcp_skills_server.web.ui.revisions import Revisions, SkillRevision
from web.http_wire import Server, wait_until
from web.ui.serving import get, make_context, page_serving, visible_text
from wire import DEADLINE, write_skill


async def allow() -> bool:
    return True


def appeared(*paths: str) -> tuple[Change, ...]:
    """Return the changes of a scan that finds these skills for the first time."""
    return tuple(Change("appeared", path) for path in paths)


def skill_set_of(path: str) -> SkillSet:
    """Return a set of skills that contains the skill at `path` only, or all for "*"."""
    pattern = Pattern("**" if path == "*" else path)
    return GrantedSkills(Mock(), Permissions([Grant(("*",), (pattern,))]))


ALL_SKILLS, MY_SKILLS = skill_set_of("*"), skill_set_of("mine")


def test_changes_after_first_scan_are_recorded_by_kind_and_files(tmp_path: Path) -> None:
    def write_and_scan(**files: str) -> None:
        """Change these files and 40 other skills in one scan, which is a burst."""
        others = {f"other-{number}/a.txt": "".join(files) for number in range(40)}
        write_files(tmp_path, files | others)
        registry.refresh()

    write_files(tmp_path, skills("a", "a/b", "two", *(f"other-{number}" for number in range(40))))
    write_files(tmp_path, {"a/b/c.txt": "c"})
    live_changes, registry = Live(Streams()), Registry([tmp_path])
    live_changes.follow(registry)
    registry.load()
    assert live_changes.latest(registry) == [], "the first scan is no change"
    write_and_scan(**{"a/b/c.txt": "d"})
    write_and_scan(**{"a/b/c.txt": "e", "a/b.txt": "b", "new/SKILL.md": skill_md("other")})
    write_and_scan(**{f"two/{number}": "" for number in range(6)})
    shutil.rmtree(tmp_path / "a" / "b")
    shutil.rmtree(tmp_path / "two")
    registry.refresh()
    latest = [change for change in live_changes.latest(registry) if "other" not in change.path]
    assert [change._replace(number=0, time=0.0) for change in latest] == [
        Change("vanished", "two"),
        Change("vanished", "a/b"),
        Change("changed", "two", ("0", "1", "2", "3", "4"), 1),
        Change("appeared", "new"),
        Change("changed", "a/b", ("c.txt",)),
        Change("changed", "a", ("b.txt",)),
        Change("changed", "a/b", ("c.txt",)),
    ]
    numbers = [change.number for change in latest]
    assert numbers[0] == numbers[1] > numbers[2] > numbers[3] == numbers[5] > numbers[6] > 0


def test_changes_kept_and_shown_are_bounded_and_numbers_increase() -> None:
    changes, other, last = Live(Streams()), skill_set_of("other"), 0
    changes.note(appeared("other"))
    assert (changes.latest(MY_SKILLS), changes.number(MY_SKILLS)) == ([], 0)
    for _ in range(3):
        changes.note(appeared("other", *(f"skill-{number:04}" for number in range(998)), "mine"))
        (latest,) = changes.latest(MY_SKILLS)
        assert latest.number == changes.number(MY_SKILLS) > last
        assert changes.number(other) == latest.number, "a number reveals nothing about other skills"
        last = latest.number
    for _ in range(201):
        changes.note(appeared("mine"))
    assert [change.path for change in changes.latest(MY_SKILLS)] == ["mine"] * 200


async def remaining(stream: ChangeStream) -> list[str]:
    with anyio.fail_after(DEADLINE):
        return [line async for line in stream.lines]


async def started_stream(changes: Live, skills: SkillSet, owner: str = "a") -> ChangeStream:
    stream = ChangeStream(changes, skills, Owner(owner), changes.number(skills), allow)
    assert (await anext(stream.lines)).startswith("retry:")
    return stream


@pytest.mark.anyio
async def test_burst_of_changes_is_one_event_and_withheld_change_is_none() -> None:
    changes, received = Live(Streams()), list[str]()
    stream = await started_stream(changes, MY_SKILLS)

    async def receive() -> None:
        received.append(await anext(stream.lines))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            for _ in range(3):
                changes.note(appeared("other"))
                await anyio.wait_all_tasks_blocked()
            assert received == []
            await anyio.to_thread.run_sync(changes.note, appeared("mine"))
        numbers = [changes.number(MY_SKILLS)]
        for _ in range(2):
            changes.note(appeared("mine"))
        await receive()
    numbers.append(changes.number(MY_SKILLS))
    assert received == [f"id: {number}\nevent: change\ndata: {number}\n\n" for number in numbers]
    changes.close()
    assert await remaining(stream) == []


@pytest.mark.anyio
async def test_idle_stream_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ui_changes.HEARTBEAT_S == 30
    monkeypatch.setattr(ui_changes, "HEARTBEAT_S", 0.01)
    stream = await started_stream(Live(Streams()), ALL_SKILLS)
    assert [await anext(stream.lines) for _ in range(2)] == [":\n\n"] * 2
    await stream.lines.aclose()


@contextmanager
def open_stream(server: Server, **headers: str) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
        connection.request("GET", "/ui/live/events", headers=headers)
        yield connection.getresponse()


def next_event(stream: http.client.HTTPResponse) -> str:
    """Return the name of the next named event, or "" at the end of the stream."""
    while line := stream.readline():
        if line.startswith(b"event:"):
            return line.decode().partition(" ")[2].strip()
    return ""


def test_two_hundred_streams_are_served_and_all_receive_a_change(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with page_serving(tmp_path) as server, ExitStack() as stack:
        assert server.send("HEAD", "/ui/live/events").status == 200, "HEAD opens no stream"
        streams = [stack.enter_context(open_stream(server)) for _ in range(200)]
        assert {stream.status for stream in streams} == {200}
        assert {stream.headers["Cache-Control"] for stream in streams} == {"no-store"}
        assert "Nothing has changed." in visible_text(get(server, "/ui/live"))
        write_skill(tmp_path / "two", name="other")
        assert {next_event(stream) for stream in streams} == {"change"}
        page = get(server, "/ui/live?part=1")
        assert (
            "appeared two not listed Models still get it by tools." in visible_text(page) and b"<html" not in page.body
        )
        assert server.signal(signal.SIGTERM) == 0
        # A stream that was cut off would raise IncompleteRead.
        assert {stream.read()[:6] for stream in streams} == {b"data: "}


def test_disconnected_client_releases_its_stream(tmp_path: Path) -> None:
    context, open_streams = make_context(write_files(tmp_path, skills("one"))), list[int]()

    async def disconnect() -> dict[str, Any]:
        open_streams.append(len(context.site.live.streams))
        return {"type": "http.disconnect"}

    async def serve() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "client": None}
        response = await live.events(Request(scope), context)
        with anyio.fail_after(DEADLINE):
            await response(scope, disconnect, lambda _: anyio.lowlevel.checkpoint())

    anyio.run(serve)
    assert open_streams == [1]
    assert len(context.site.live.streams) == 0


def test_stream_is_refused_when_other_owners_hold_all_streams_of_any_protocol(tmp_path: Path) -> None:
    def respond(query: str = "") -> Any:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}
        return anyio.run(live.events, Request({**scope, "query_string": query.encode()}), context)

    settings = Settings(streams=Streams(4))
    context = make_context(write_files(tmp_path, skills("one")), settings=settings)
    changes = context.site.live
    for number in range(3):
        settings.streams.open(number, Owner(f"{number}"))
    changes.note(appeared("one"))
    last = changes.last_number
    # A number with more than 19 digits, or of other than ASCII digits, is ignored.
    for after, start in (("9" * 19, int("9" * 19)), ("9" * 20, last), ("\u00b2", last)):
        stream = respond(f"after={after}")
        assert (stream.status_code, stream._after) == (200, start)
        settings.streams.release(stream)
    settings.streams.open("last", Owner("last"))
    refusal = respond()
    assert (refusal.status_code, refusal.headers["Retry-After"]) == (503, "10")
    assert refusal.body == b"Too many streams: the server's limit of 4 is reached; try again later (quota streams)\n"
    assert len(settings.streams) == 4


@contextmanager
def recorded_revisions(folder: Path, kept: str = "") -> Iterator[Callable[[str, int], list[SkillRevision]]]:
    """Record the history of a folder, once the files of the skill at `kept` are kept.

    The yielded function scans, and waits until a skill has a number of revisions.
    """

    def revisions_of(path: str, count: int) -> list[SkillRevision]:
        registry.refresh()
        wait_until(lambda: len(revisions.latest(path)) >= count)
        return revisions.latest(path)

    with Registry([folder]) as registry:
        revisions = Revisions(registry)
        revisions.start()
        wait_until(lambda: not kept or kept in revisions._kept)
        yield revisions_of
        wait_until(lambda: revisions._size == sum(map(ui_revisions._size, [*revisions._kept.values()])))


def test_changed_files_without_kept_content_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui_revisions, "_MAX_KEPT", 0)
    write_skill(tmp_path / "a", body="one\n", old_md="x")
    write_skill(tmp_path / "a" / "inner")
    with recorded_revisions(tmp_path) as revisions_of:
        write_skill(tmp_path / "a", body="two\n", new_md="x")
        (tmp_path / "a" / "old.md").unlink()
        write_skill(tmp_path / "a" / "inner", body="other\n")
        (revision,) = revisions_of("a", 1)
        shutil.rmtree(tmp_path / "a")
        revisions_of("a", 2)
        write_skill(tmp_path / "a", body="three\n")
        assert [revision.kind for revision in revisions_of("a", 3)] == ["added", "removed", "changed"]
    assert {*revision.others} == {"file added: new.md", "file removed: old.md", "file changed: SKILL.md"}


@pytest.mark.parametrize("read", ["before the change is known", "after it"])
def test_change_during_the_first_reading_is_named(tmp_path: Path, read: str) -> None:
    """The files kept are then none at all, or those that came."""
    write_skill(tmp_path / "a", body="one\n", notes_md="x")
    with Registry([tmp_path]) as registry:
        registry.load()
        write_skill(tmp_path / "a", body="longer two\n")
        revisions = Revisions(registry)
        changes: list[Changes] = []
        registry.subscribe(changes.append)
        if read == "after it":
            registry.refresh()
        revisions._read_known()
        registry.refresh()
        (change,) = changes
        revisions._note(1.0, "a", change.before["a"], change.after["a"])
    (revision,) = revisions.latest("a")
    assert (revision.kind, *revision.others) == ("changed", "file changed: SKILL.md")


def test_nested_skill_is_not_part_of_outer_history(tmp_path: Path) -> None:
    """This includes a nested skill whose SKILL.md has become a folder."""
    inner = write_skill(tmp_path / "outer" / "inner", body="secret one\n", notes_md="secret\n")
    write_skill(tmp_path / "outer", body="one\n")
    with recorded_revisions(tmp_path, "outer/inner") as revisions_of:
        write_skill(tmp_path / "outer", body="two\n")
        write_skill(inner, body="secret two\n", notes_md="secret too\n")
        revisions_of("outer/inner", 1)
        (first,) = revisions_of("outer", 1)
        (inner / "SKILL.md").unlink()
        (inner / "SKILL.md").mkdir()
        write_skill(tmp_path / "outer", body="three\n")
        second = revisions_of("outer", 2)[0]
    assert "+two" in first.others and "+three" in second.others
    assert "secret" not in repr((first, second)) and "inner" not in repr((first, second))


def test_history_is_bounded_in_lines_skills_revisions_and_bytes(tmp_path: Path) -> None:
    def skill_of(count: int) -> Skill:
        write_skill(tmp_path / f"a{count}", lines_md="x\n" * count)
        registry.refresh()
        return registry.snapshot.skills[f"a{count}"]

    def revision_of(count: int) -> SkillRevision:
        """Note a change that adds `count` lines."""
        revisions._note(0.0, "a", None, empty)
        revisions._note(0.0, "a", empty, skill_of(count))
        return revisions.latest("a")[0]

    registry = load_registry(tmp_path)
    revisions, empty = Revisions(registry), skill_of(0)
    headers = len(revision_of(10).others) - 10
    for count, is_whole in ((500 - headers, True), (501 - headers, False)):
        assert len(revision_of(count).others) == 500
        assert revision_of(count).is_whole is is_whole
    for number in range(1_001):
        revisions._note(float(number), f"s{number}", None, empty)
    assert [len(revisions.latest(path)) for path in ("a", "s0", "s1", "s1000")] == [0, 0, 1, 1]
    for number in range(21):
        before, after = (None, empty) if number % 2 else (empty, None)
        revisions._note(float(number), "a", before, after)
    assert [revision.time for revision in revisions.latest("a")] == [*range(20, 0, -1)]
    for size, is_kept in ((256 << 10, True), ((256 << 10) + 2, False)):
        assert (len(revisions._read(skill_of(size // 2))["lines.md"][0]) == size) is is_kept
    for size, kept in ((32 << 20, ["b"]), ((32 << 20) + 1, [])):
        revisions = Revisions(registry)
        revisions._keep("b", {"f": (bytes(size), False)})
        assert [*revisions._kept] == kept
