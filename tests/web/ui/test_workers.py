"""The page of several workers: whichever answers shows what all of them did, and what one did that is gone."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import pytest

from programs import LOOSE, loose
from web.http_wire import Server, client
from web.test_grants import ANN, BOB, configure
from web.ui.serving import get, words
from web.ui.test_grants import ADMIN, GRANTS
from web.ui.test_live import following
from web.workers.test_serving import COUNT, NEW, one_of_each, until, worker_of, workers, working
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows cannot pass a socket on")
SCRIPTS = """
[[grant]]
who = ["token:bob"]
skills = ["finance/**"]
may = ["scripts"]
"""

WAIT = "import os, time\nparent = os.getppid()\nwhile os.getppid() == parent:\n    time.sleep(0.05)\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A skill with a script, another one, and two tokens."""
    write_skill(tmp_path / "skills" / "finance" / "refunds", scripts__pay_py="print('paid')\n", scripts__wait_py=WAIT)
    write_skill(tmp_path / "skills" / "tea")
    (tmp_path / "tokens").write_text(f"ann={ANN}\nbob={BOB}\n")
    (tmp_path / "tokens").chmod(0o600)
    return tmp_path


@pytest.fixture
def where() -> Iterator[Path]:
    with TemporaryDirectory(prefix="w") as folder:
        yield Path(folder)


def seen(server: Server, view: str, token: str | None = BOB) -> set[str]:
    """The words of a view, as each worker has them: new connections come to all."""
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    return {words(get(server, f"/ui/{view}", **bearer)) for _ in range(NEW)}


def requests_of(pages: set[str], who: str) -> set[int]:
    """How many requests of MCP somebody made in the legacy era, as each of these pages has it."""
    rows = [re.search(rf"{who} 127\.0\.0\.1 wire mcp, legacy ([\d,]+) ", each) for each in pages]
    return {0 if row is None else int(row[1]) for row in rows}


def kill_one(server: Server) -> int:
    """Kill a worker; its number."""
    ended = r"worker (\d) ended by SIGKILL"
    before = len(re.findall(ended, server.stderr))
    os.kill(min(workers(server)), signal.SIGKILL)
    return int(server.said(ended, times=before + 1)[1]) - 1


def test_clients_of_all_workers_are_shown_and_those_of_one_go_with_it(place: Path) -> None:
    with working("--config", configure(place, GRANTS + ADMIN), "--ui") as server, ExitStack() as stack:
        ones, made = one_of_each(server, stack, token=ANN), {0: 10, 1: 40}
        for number, one in ones.items():
            for _ in range(made[number]):
                one.request("skills/list")
        until(lambda: requests_of(seen(server, "clients"), "token:ann") == {50})
        left = {made[1 - kill_one(server)]}
        until(lambda: requests_of(seen(server, "clients"), "token:ann") == left)
        server.said(r"worker \d accepts connections", times=COUNT + 1)
        assert requests_of(seen(server, "clients"), "token:ann") == left
        for view in ("clients", "runs"):
            assert {get(server, f"/ui/{view}", Authorization=f"Bearer {ANN}").status for _ in range(NEW)} == {403}
        assert server.signal(signal.SIGTERM)[0] == 0


@loose
def test_runs_of_all_workers_are_shown_and_stay_when_one_is_gone(place: Path) -> None:
    given = ("--config", configure(place, GRANTS + ADMIN + SCRIPTS), "--ui", "--allow-scripts", *LOOSE)
    with working(*given) as server, client(server, "modern", token=BOB) as bob:
        handles: dict[int, str] = {}
        while len(handles) < COUNT:
            loaded = bob.request("tools/call", {"name": "skills_load", "arguments": {"names": ["finance/refunds"]}})
            session = loaded["structuredContent"]["session"]
            handles.setdefault(worker_of(session), session)
        for session in handles.values():
            assert not run(bob, "pay.py", session).get("isError")
        until(lambda: all(each.count("scripts/pay.py") == COUNT for each in seen(server, "runs")))
        waiting = threading.Thread(target=_run_to_no_end, args=(server, handles[0]))
        waiting.start()
        until(lambda: all(each.count("goes on") == 1 for each in seen(server, "runs")))
        while (dead := kill_one(server)) != 0:
            server.said(rf"worker {dead + 1} accepts connections", times=2)
        waiting.join(DEADLINE)
        until(lambda: all("goes on" not in each for each in seen(server, "runs")))
        server.said(r"worker 1 accepts connections", times=2)
        for page in seen(server, "runs"):
            assert (page.count("scripts/pay.py"), page.count("scripts/wait.py"), page.count("unknown")) == (COUNT, 1, 1)
        with client(server, "modern", token=BOB) as again:
            run(again, "pay.py", handles[1])
        until(lambda: all(each.count("scripts/pay.py") == COUNT + 1 for each in seen(server, "runs")))


def run(one: Any, script: str, session: str) -> Any:
    given = {"path": f"skill://finance/refunds/scripts/{script}", "session": session}
    return one.request("tools/call", {"name": "skills_run_script", "arguments": given})


def _run_to_no_end(server: Server, session: str) -> None:
    with client(server, "modern", token=BOB) as one, suppress(OSError, HTTPException):
        run(one, "wait.py", session)


def test_every_worker_shows_the_same_changes_also_one_that_came_later(place: Path) -> None:
    with working("--config", configure(place, GRANTS + ADMIN), "--ui") as server:
        for number in range(5):
            with following(server, Authorization=f"Bearer {BOB}") as stream:
                write_skill(place / "skills" / "finance" / f"new-{number}")
                assert stream.event() == "change"
                heard = stream.reply.readline().decode().removeprefix("data: ").strip()
            for page in seen(server, f"live?part=1&after={heard}"):
                assert f"finance/new-{number}" in page
        (before,) = seen(server, "live?part=1")
        dead = kill_one(server)
        server.said(rf"worker {dead + 1} accepts connections", times=2)
        assert seen(server, "live?part=1") == {before} and before.count("appeared") == 5
        assert {each.count("appeared") for each in seen(server, "live?part=1", ANN)} == {5}
        write_skill(place / "skills" / "tea", description="Makes green tea.")
        until(lambda: all("changed tea" in each for each in seen(server, "live?part=1")))
        assert not any("tea" in each for each in seen(server, "live?part=1", ANN))


def test_who_heard_of_a_change_that_never_was_waits_no_longer_than_a_second(place: Path) -> None:
    with working(place / "skills", "--ui") as server:
        begun = monotonic()
        assert "Nothing has changed" in words(get(server, "/ui/live?part=1&after=9999999999999999999"))
        assert monotonic() - begun < DEADLINE


def test_nothing_is_left_behind_whoever_ends_first(place: Path, where: Path) -> None:
    with working(place / "skills", "--ui", environment={"TMPDIR": str(where)}) as server:
        with client(server, "modern") as one:
            one.request("skills/list")
        assert len([*where.rglob("clients_*")]) == COUNT
        server.process.kill()
        until(lambda: not [*where.iterdir()])
