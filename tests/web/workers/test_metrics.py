"""Metrics of several workers: one scrape shows the sums of all, and no count goes back when one is killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from web.http_wire import Server
from web.test_metrics import scraped, value
from web.workers.test_serving import COUNT, NEW, one_of_each, until, where, workers, working
from wire import DEADLINE, write_skill

__all__ = ("where",)

LISTED = 'mcp_server_operation_duration_seconds_count{error_type="",mcp_method_name="skills/list"}'


def listed(server: Server) -> set[float]:
    """How many listings were counted, as several scrapes say, of whichever worker."""
    return {value(scraped(server), LISTED) for _ in range(NEW)}


def test_one_scrape_shows_the_sums_of_all_and_they_never_go_back(tmp_path: Path, where: Path) -> None:
    write_skill(tmp_path / "skills" / "first")
    with working(tmp_path / "skills", "--metrics", environment={"TMPDIR": str(where)}) as server:
        with ExitStack() as stack:
            ones = one_of_each(server, stack)
            for number, one in ones.items():
                for _ in range(3 + number):
                    one.request("skills/list")
            count = float(sum(3 + number for number in ones))
            assert listed(server) == {count}
            os.kill(min(workers(server)), signal.SIGKILL)
            server.said("ended by SIGKILL")
            assert listed(server) == {count}
            server.said(r"worker \d accepts connections", times=COUNT + 1)
            for one in one_of_each(server, stack).values():
                one.request("skills/list")
            assert listed(server) == {count + COUNT}
        text = scraped(server)
        seen = {*re.findall(r'^process_open_fds\{process="(\w+)"\}', text, re.MULTILINE)}
        assert seen == {"supervisor", *map(str, range(COUNT))}
        assert server.signal(signal.SIGTERM)[0] == 0
    assert [*where.iterdir()] == []


def test_a_file_that_is_not_whole_costs_its_own_counts_alone(tmp_path: Path, where: Path) -> None:
    write_skill(tmp_path / "skills" / "first")
    with working(tmp_path / "skills", "--metrics", environment={"TMPDIR": str(where)}) as server:
        with ExitStack() as stack:
            ones = one_of_each(server, stack)
            for one in ones.values():
                one.request("skills/list")
        assert listed(server) == {float(len(ones))}
        (mine,) = where.rglob("histogram_0.db")
        mine.with_name("histogram_8.db").write_bytes(b"")  # of a process that makes it just now
        mine.with_name("histogram_9.db").write_bytes(b"\x10" + bytes(7) + b"\xff" * 32)
        assert listed(server) == {float(len(ones))}
        os.truncate(mine, 0)
        mine.write_bytes(mine.with_name("histogram_9.db").read_bytes())
        for each in workers(server):  # of which one has this file
            os.kill(each, signal.SIGKILL)
        server.said(r"worker \d accepts connections", times=2 * COUNT)
        assert listed(server) == {float(len(ones) - 1)}


def test_a_difference_of_the_catalogue_is_counted_once(tmp_path: Path) -> None:
    write_skill(tmp_path / "first")
    appeared = 'skills_catalogue_changes_total{change="appeared"}'
    with working(tmp_path, "--metrics") as server:
        write_skill(tmp_path / "second")
        until(lambda: all(value(scraped(server), "skills_served") == 2 for _ in range(NEW)))
        assert value(scraped(server), appeared) == 1


def test_at_an_address_of_their_own_the_supervisor_shows_all(tmp_path: Path, where: Path) -> None:
    write_skill(tmp_path / "skills" / "first")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    given = ("--metrics-address", f"127.0.0.1:{port}")
    with working(tmp_path / "skills", *given, environment={"TMPDIR": str(where)}) as server, ExitStack() as stack:
        for one in one_of_each(server, stack).values():
            one.request("skills/list")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as answer:
            assert value(answer.read().decode(), LISTED) == COUNT
        assert server.send("GET", "/metrics").status == 404
        server.process.kill()  # and the last worker leaves nothing behind
        until(lambda: not [*where.iterdir()])
