"""The page: how soon its catalogue comes and follows what is typed, what that transfers, and what open pages cost.

`python -m bench.ui`. Typing is measured over HTTP, and in Chromium from the key to the rows, where there is one.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from bench.client import BenchError
from bench.generate import generate
from bench.http import Server, ours
from bench.report import Row, Run

_TYPED: Final = ("refund report for a customer", "check invoice totals by month", "export the ledger")
_STREAMS: Final = 200
_PATIENCE_S: Final = 60.0
_MS: Final = 1e3
_KB: Final = 1e3


def _ask(server: Server, path: str) -> tuple[float, float, bytes]:
    """Seconds to the first byte of the body and to the last, and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_PATIENCE_S)
    try:
        connection.connect()
        start = perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        first = answer.read(1)
        begun = perf_counter() - start
        body = first + answer.read()
        if answer.status != 200:
            raise BenchError(f"GET {path}: {answer.status}")
        return begun, perf_counter() - start, body
    finally:
        connection.close()


def _wait_until_ready(server: Server) -> None:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        try:
            _ask(server, "/readyz")
            _ask(server, "/ui/?q=ledger&part=1")  # which waits for the index of words
            return
        except BenchError:
            time.sleep(0.1)
    raise BenchError("the server was never ready")


def _slow(times: list[float]) -> float:
    return sorted(times)[round(0.99 * (len(times) - 1))]


def catalogue(server: Server, size: int, rounds: int) -> Iterator[Row]:
    """The first page: its first byte, and all that is transferred before anything is asked for."""
    times = [_ask(server, "/ui/") for _ in range(rounds)]
    first = [each[0] * _MS for each in times]
    yield Row("catalogue, first byte, p50", size, rounds, median(first), None, "ms", most=100)
    yield Row("catalogue, first byte, p99", size, rounds, _slow(first), None, "ms", most=100)
    parts = [len(_ask(server, f"/ui/{path}")[2]) for path in ("", "static/ui.js", "static/ui.css")]
    yield Row("catalogue, transferred with script and style", size, 1, sum(parts) / _KB, None, "kB", most=500)


def typing(server: Server, size: int) -> Iterator[Row]:
    """What every further letter costs, as the page's script asks for it."""
    asked = [text[:end].replace(" ", "+") for text in _TYPED for end in range(1, len(text) + 1)]
    times = [_ask(server, f"/ui/?q={each}&part=1")[1] * _MS for each in asked]
    yield Row("filter as you type, answer, p50", size, len(times), median(times), None, "ms", most=100)
    yield Row("filter as you type, answer, p99", size, len(times), _slow(times), None, "ms", most=100)


def in_browser(server: Server, size: int) -> Iterator[Row]:
    """From a key to its rows on the page, with the pause in which the script waits for another key."""
    program = shutil.which("chromium")
    if program is None:
        print("bench: no chromium, so nothing is typed in a browser", file=sys.stderr, flush=True)
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/ui/")
        times: list[float] = page.evaluate(
            """async texts => {
              const field = document.getElementById("q"), results = document.getElementById("results"), times = [];
              for (const text of texts) for (let end = 1; end <= text.length; end++) {
                const shown = new Promise(done => {
                  const seen = new MutationObserver(() => { seen.disconnect(); requestAnimationFrame(done); });
                  seen.observe(results, { childList: true });
                });
                const start = performance.now();
                field.value = text.slice(0, end);
                field.dispatchEvent(new InputEvent("input", { bubbles: true }));
                await shown;
                times.push(performance.now() - start);
              }
              return times;
            }""",
            [each.replace(" ", "-") for each in _TYPED],  # a space at the end asks for nothing new
        )
        browser.close()
    yield Row("filter as you type, key to rows in Chromium, p50", size, len(times), median(times), None, "ms", most=100)
    yield Row("filter as you type, key to rows in Chromium, p99", size, len(times), _slow(times), None, "ms", most=100)


def _cpu_ms(pid: int) -> float:
    """Milliseconds of CPU that a process has used, of its own and of the system's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * _MS


def open_pages(server: Server, size: int, seconds: float) -> Iterator[Row]:
    """CPU while nothing changes, with open pages and with none; one thousandth of a second is a tenth of a percent."""

    def idle() -> float:
        before = _cpu_ms(server.pid)
        time.sleep(seconds)
        return (_cpu_ms(server.pid) - before) / seconds

    without = idle()
    memory = server.rss()
    held: list[http.client.HTTPConnection] = []
    for _ in range(_STREAMS):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_PATIENCE_S)
        connection.request("GET", "/ui/live/events")
        connection.getresponse().fp.readline()
        held.append(connection)
    with_pages = idle()
    each = (server.rss() - memory) / _STREAMS
    for connection in held:
        connection.close()
    what = f"CPU a second while nothing changes, {_STREAMS} open pages"
    yield Row(what, size, 1, with_pages, None, "ms", most=without + 5)
    yield Row("CPU a second while nothing changes, none", size, 1, without, None, "ms")
    yield Row("memory of an open page", size, _STREAMS, each / _KB, None, "kB")


def main() -> int:
    """Measure, print one table and, when asked, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.ui", description="The page.")
    parser.add_argument("--size", type=int, default=10_000, help="how many skills are served (default 10000)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args()
    run = Run()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as scratch:
        root = Path(scratch) / "skills"
        generate(root, options.size)
        with ours(root, "--ui", "--usage", "off", "--cache-dir", str(Path(scratch) / "cache")) as server:
            _wait_until_ready(server)
            rows += catalogue(server, options.size, 20 if options.quick else 200)
            rows += typing(server, options.size)
            rows += in_browser(server, options.size)
            rows += open_pages(server, options.size, 5 if options.quick else 35)
    run.tell(rows, "medians unless p99 is said", options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
