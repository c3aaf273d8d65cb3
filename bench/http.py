# noqa: A005, it is run as bench.http
"""HTTP: requests a second and their times beside the floor, and what a thousand sessions leave behind.

`python -m bench.http`. The floor is the same SDK's lowlevel server over its own streamable HTTP, with our settings of
uvicorn, answering constants of the same bytes. Both are loaded by one process of its own, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Protocol

from bench.client import REPOSITORY, BenchError, resident
from bench.generate import generate, questions
from bench.report import Row, Run

_WHO: Final = {"name": "bench", "version": "0"}
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": _WHO,
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO: Final = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _WHO}
_CONNECTIONS: Final = (1, 32)
_SESSIONS: Final = 1000
_PATIENCE_S: Final = 60.0
_MS: Final = 1e3
_KB: Final = 1e3
_MB: Final = 1e6


# The two servers


class Server:
    """A server process that listens on a free port of loopback. Leaving the context ends it.

    Args:
        arguments: what follows `python`.
    """

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=REPOSITORY
        )
        assert self._process.stderr is not None
        seen = b""
        while not (found := re.search(rb"listening on http://[^:]+:(\d+)/mcp", seen)):
            line = self._process.stderr.readline()
            if not line:
                raise BenchError(f"the server ended: {seen.decode(errors='replace')}")
            seen += line
        self.port = int(found[1])
        # A line a request: a pipe that nobody reads would stop it.
        threading.Thread(target=self._process.stderr.read, daemon=True).start()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self._process.pid

    def rss(self) -> int:
        """Bytes of memory that the server holds now."""
        return resident(self._process.pid)


def ours(root: Path, *options: str) -> Server:
    """Our server over a folder."""
    return Server("-m", "mcp_skills_server", "serve", str(root), "--transport", "http", "--port", "0", *options)


def floor(constants: Path) -> Server:
    """The floor, answering the constants of a file."""
    return Server("-m", "bench.http", "--serve-constants", str(constants))


def _serve_constants(path: Path, port: int) -> None:
    """Be the floor."""
    import socket

    import uvicorn
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
    from starlette.applications import Starlette
    from starlette.routing import Route

    from bench.floor import make_server

    manager = StreamableHTTPSessionManager(app=make_server(json.loads(path.read_bytes())))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))], lifespan=lifespan)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that TCP_NODELAY gets set
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(2048)
    logging.basicConfig(level=logging.WARNING)
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        limit_concurrency=1000,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])


# The load, in a process of its own


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of requests told.

    Attributes:
        times: seconds from the first byte sent to the last received, of each request.
        rate: requests a second.
        answer: body of the last answer.
    """

    times: list[float]
    rate: float
    answer: bytes


class Listening(Protocol):
    """Something that listens on loopback."""

    port: int


class Load:
    """The process that asks. It keeps its connections to each server open between rounds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.http", "--load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            text=True,
        )

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def ask(self, server: Listening, requests: list[str], count: int) -> Round:
        """Send each request over a connection of its own, again and again, `count` times in all."""
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"port": server.port, "requests": requests, "count": count}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("the load ended")
        seen = json.loads(line)
        if "error" in seen:
            raise BenchError(seen["error"])
        return Round(seen["times"], count / seen["seconds"], seen["answer"].encode())


class _Connection(asyncio.Protocol):
    """HTTP/1.1, as little of it as a load needs: a request out, a whole response in."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._head = -1
        self._length: int | None = None
        self._whole: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """Send a request; the future has the whole response, head and body."""
        assert self._transport is not None
        self._received, self._head, self._length = bytearray(), -1, None
        self._whole = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._whole

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._head < 0:
            self._head = self._received.find(b"\r\n\r\n")
            if self._head < 0:
                return
            found = re.search(rb"\r\ncontent-length: *(\d+)", bytes(self._received[: self._head]), re.IGNORECASE)
            self._length = int(found[1]) if found else None
        if self._length is None:
            whole = self._received.endswith(b"\r\n0\r\n\r\n")
        else:
            whole = len(self._received) >= self._head + 4 + self._length
        if whole and self._whole is not None:
            self._whole.set_result(bytes(self._received))
            self._whole = None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.open = False
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(BenchError(f"the connection was lost after {bytes(self._received)[:300]!r}"))


async def _load() -> None:
    """Be the load: jobs in on stdin, times out on stdout."""
    connections: dict[tuple[int, int], _Connection] = {}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        job = json.loads(line)
        try:
            seen = await asyncio.wait_for(_job(connections, **job), _PATIENCE_S)
        except (BenchError, OSError, TimeoutError) as error:
            seen = {"error": repr(error)}
        print(json.dumps(seen), flush=True)


async def _job(
    connections: dict[tuple[int, int], _Connection], port: int, requests: list[str], count: int
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    for number in range(len(requests)):
        if (port, number) not in connections or not connections[port, number].open:
            _, connections[port, number] = await loop.create_connection(_Connection, "127.0.0.1", port)
    times: list[float] = []
    left = count
    answer = b""

    async def work(connection: _Connection, request: bytes) -> None:
        nonlocal left, answer
        while left > 0:
            left -= 1
            start = perf_counter()
            answer = await connection.ask(request)
            times.append(perf_counter() - start)

    start = perf_counter()
    works = (work(connections[port, number], request.encode()) for number, request in enumerate(requests))
    await asyncio.gather(*works)
    return {"times": times, "seconds": perf_counter() - start, "answer": answer.decode(errors="replace")}


# The measurements


@dataclass(frozen=True, slots=True)
class Http:
    """What to measure with.

    Attributes:
        load: the process that asks.
        size: how many skills.
        quick: fewer repeats.
        scratch: a temporary directory.
        root: the folder of skills in it.
    """

    load: Load
    size: int
    quick: bool
    scratch: Path
    root: Path


def request(message: dict[str, Any], headers: dict[str, str], method: str = "POST") -> str:
    """A request of any era, as the load sends it."""
    body = json.dumps(message, separators=(",", ":")) if message else ""
    lines = [
        f"{method} /mcp HTTP/1.1",
        "Host: localhost",
        "Accept: application/json, text/event-stream",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines) + "\r\n\r\n" + body


def modern_request(method: str, params: dict[str, Any]) -> str:
    """A request of the modern era, as the load sends it."""
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    if "uri" in params and method == "resources/read":
        headers["Mcp-Name"] = params["uri"]
    return request({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": _META}}, headers)


def legacy_request(session: str, method: str, params: dict[str, Any] | None = None, identifier: int | None = 1) -> str:
    """A request of a legacy session, as the load sends it."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    message |= ({} if identifier is None else {"id": identifier}) | ({} if params is None else {"params": params})
    return request(message, {"MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": session})


def _open_session(load: Load, server: Server) -> str:
    """A legacy session, with hands shaken."""
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
    answer = load.ask(server, [request(message, {})], 1).answer
    found = re.search(rb"mcp-session-id: *(\w+)", answer, re.IGNORECASE)
    if found is None:
        raise BenchError(f"no session was opened: {answer[:300]!r}")
    session = found[1].decode()
    load.ask(server, [legacy_request(session, "notifications/initialized", identifier=None)], 1)
    return session


def _result(answer: bytes) -> dict[str, Any]:
    seen = json.loads(answer[answer.index(b'{"jsonrpc"') : answer.rindex(b"}") + 1])
    if "result" not in seen:
        raise BenchError(f"no result: {answer[:500]!r}")
    return seen["result"]


def requests(bench: Http) -> Iterator[Row]:
    """Warm requests in the modern era, and one of them in legacy sessions."""
    asked = questions(bench.size)
    with ours(bench.root) as mine:
        answers = {key: _result(bench.load.ask(mine, [modern_request(*each)], 1).answer) for key, each in asked.items()}
        constants = bench.scratch / "constants.json"
        constants.write_text(json.dumps(answers), encoding="utf-8")
        with floor(constants) as bare:
            pair = (mine, bare)
            for key, what in (
                ("skills/list", "skills/list, a page"),
                ("skills/get name", "skills/get by name"),
                ("resources/read", "resources/read"),
            ):
                modern = modern_request(*asked[key])
                yield from _beside(bench, pair, f"{what}, modern", lambda _, asked=modern: asked)

            def in_a_session(server: Server) -> str:
                return legacy_request(_open_session(bench.load, server), "skills/list", {})

            yield from _beside(bench, pair, "skills/list, a page, legacy", in_a_session)


def _beside(bench: Http, pair: tuple[Server, Server], what: str, request: Callable[[Server], str]) -> Iterator[Row]:
    """Rounds to one side and the other in turn: the middle, the slowest hundredth, the rate."""
    for connections in _CONNECTIONS:
        sides = [[request(server) for _ in range(connections)] for server in pair]
        each, rounds = (100 if connections == 1 else 640), (3 if bench.quick else 10)
        warm = [
            bench.load.ask(server, asked, 4 * connections).answer for server, asked in zip(pair, sides, strict=True)
        ]
        if len(warm[0]) - len(warm[1]) not in range(-256, 256):
            raise BenchError(f"{what}: the floor's answer is not of the same size")
        seen: tuple[list[Round], list[Round]] = ([], [])
        for number in range(rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                seen[side].append(bench.load.ask(pair[side], sides[side], each))
        n = rounds * each
        label = f"{what}, {connections} connection{'s' if connections > 1 else ''}"
        times = [sorted(time for one in side for time in one.times) for side in seen]
        middle = [median(side) * _MS for side in times]
        slow = [side[round(0.99 * (n - 1))] * _MS for side in times]
        rate = [median(one.rate for one in side) for side in seen]
        yield Row(f"{label}, p50", bench.size, n, middle[0], middle[1], "ms", 1.3)
        yield Row(f"{label}, p99", bench.size, n, slow[0], slow[1], "ms", 1.3)
        yield Row(f"{label}, requests", bench.size, rounds, rate[0], rate[1], "/s")


def sessions(bench: Http) -> Iterator[Row]:
    """What legacy sessions leave behind when their clients have ended them; the floor is the memory before them.

    Once one after the other, and twice all at once: what the first time leaves is room that the second one uses.
    """
    load, size, count = bench.load, bench.size, _SESSIONS // 5 if bench.quick else _SESSIONS
    with ours(bench.root, "--max-sessions", str(count)) as server:
        _come_and_go(load, server, 20)
        before = server.rss()
        for _ in range(count):
            _come_and_go(load, server, 1)
        after = server.rss()
        what = f"memory after {count:,} legacy sessions"
        yield Row(f"{what}, one after the other", size, count, after / _MB, before / _MB, "MB", 1.1)
        during = _come_and_go(load, server, count)
        yield Row(
            f"memory for each of {count:,} open sessions", size, count, (during - after) / count / _KB, None, "kB"
        )
        first = server.rss()
        yield Row(f"{what}, all at once", size, count, first / _MB, before / _MB, "MB", 1.1)
        _come_and_go(load, server, count)
        second = server.rss()
        yield Row(f"{what} more, beside the first {count:,}", size, count, second / _MB, first / _MB, "MB", 1.1)


def _come_and_go(load: Load, server: Server, count: int) -> int:
    """Open so many sessions, use each, end all; the memory while all were open."""
    opened = [_open_session(load, server) for _ in range(count)]
    for session in opened:
        load.ask(server, [legacy_request(session, "skills/list", {})], 1)
    during = server.rss()
    for session in opened:
        answer = load.ask(server, [request({}, {"Mcp-Session-Id": session}, "DELETE")], 1).answer
        if not answer.startswith(b"HTTP/1.1 200"):
            raise BenchError(f"a session was not ended: {answer[:300]!r}")
    return during


def main() -> int:
    """Measure, print one table and, when asked, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.http", description="HTTP beside its floor.")
    parser.add_argument("--size", type=int, default=1000, help="how many skills are served (default 1000)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--serve-constants", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_constants:
        _serve_constants(options.serve_constants, options.port)
        return 0
    if options.load:
        asyncio.run(_load())
        return 0
    run = Run()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as scratch, Load() as load:
        bench = Http(load, options.size, options.quick, Path(scratch), Path(scratch, "skills").resolve())
        generate(bench.root, bench.size)
        for measure in (requests, sessions):
            print(f"bench: {measure.__name__} over HTTP", file=sys.stderr, flush=True)
            rows.extend(measure(bench))
    run.tell(rows, "medians unless p99 is said", options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
