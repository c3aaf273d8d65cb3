"""`python -m bench.crowds`: measure one HTTP server under thousands of clients, each with an address of its own.

Scenarios:
    listeners: modern clients that listen, an edit, and the end of the process.
    storm: legacy clients that all connect at once and list, beside probes and one quiet client; then an edit, after
        which all of them list again.
    sessions: memory of the process before, during and after some rounds of sessions with streams.
    soak: principals with grants of their own that listen, and open sessions, list, search and load, while a skill is
        edited each second: growth of memory after the second minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import linear_regression
from time import perf_counter, process_time
from typing import Any, Final, Self

from bench.grants import own_grants

VERSIONS: Final = {"legacy": "2025-11-25", "modern": "2026-07-28"}
META: Final = "io.modelcontextprotocol/"
CHANGED: Final = b"notifications/skills/list_changed"
INFO: Final = {"name": "crowd", "version": "1"}
TIMEOUT_S: Final = 120.0
TOKEN: Final = "token-of-principal-{}"


def address(number: int) -> str:
    """Return the loopback address of a client; 127.0.x.y are left to others."""
    return f"127.{1 + number // 62_500}.{1 + number // 250 % 250}.{1 + number % 250}"


class RefusedError(Exception):
    """A response other than 200 and 202; `retry_s` is its Retry-After."""

    def __init__(self, status: int, retry_s: float) -> None:
        super().__init__(str(status))
        self.status, self.retry_s = status, retry_s


class Client:
    """One client of one era; each request has a connection of its own if it is a stream."""

    def __init__(self, port: int, source: str, era: str = "legacy", token: str | None = None) -> None:
        self.port, self.source, self.era, self.token = port, source, era, token
        self.session: str | None = None
        self.refusals = 0
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.heard: asyncio.StreamReader

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(self.source, 0), limit=1 << 20)

    def encode(self, method: str, message: dict[str, Any] | None) -> bytes:
        body = b"" if message is None else json.dumps(message).encode()
        lines = [f"{method} /mcp HTTP/1.1", "Host: localhost", "Accept: application/json, text/event-stream"]
        if message is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if self.token is not None:
            lines.append(f"Authorization: Bearer {self.token}")
        if self.era == "modern":
            assert message is not None
            lines += [f"MCP-Protocol-Version: {VERSIONS['modern']}", f"Mcp-Method: {message['method']}"]
        elif self.session:
            lines += [f"Mcp-Session-Id: {self.session}", f"MCP-Protocol-Version: {VERSIONS['legacy']}"]
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def head(self, reader: asyncio.StreamReader) -> dict[str, str]:
        raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in raw[1:])}
        headers["status"] = raw[0].split()[1]
        return headers

    async def send(self, message: dict[str, Any] | None, method: str = "POST") -> Any:
        """Send a message on the kept connection and return the decoded answer."""
        if self.writer is None or self.reader is None or self.reader.at_eof():
            self.reader, self.writer = await self.connect()
        self.writer.write(self.encode(method, message))
        headers = await self.head(self.reader)
        if headers.get("content-type") == "text/event-stream":
            raw = b""
            while (size := int(await self.reader.readline(), 16)) > 0:
                raw += await self.reader.readexactly(size + 2)
            await self.reader.readline()
            raw = raw[raw.index(b"data:") + 5 :].split(b"\r\n")[0]
        else:
            raw = await self.reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.close()
        if headers["status"] not in ("200", "202", "204"):
            raise RefusedError(int(headers["status"]), float(headers.get("retry-after", "nan")))
        self.session = headers.get("mcp-session-id", self.session)
        return json.loads(raw) if raw else None

    async def stream(self, message: dict[str, Any] | None) -> asyncio.StreamReader:
        """Open an event stream."""
        reader, self.kept = await self.connect()
        self.kept.write(self.encode("GET" if message is None else "POST", message))
        headers = await self.head(reader)
        if headers["status"] != "200":
            self.kept.close()
            raise RefusedError(int(headers["status"]), float(headers.get("retry-after", "nan")))
        return reader

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    async def persist(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat work until it is not refused with 503 or 429, nor its connection lost."""
        while True:
            try:
                return await work()
            except RefusedError as refused:
                if refused.status not in (429, 503):
                    raise
                self.refusals += 1
                await asyncio.sleep(refused.retry_s)
            except (OSError, asyncio.IncompleteReadError):
                self.refusals += 1
                self.close()
                await asyncio.sleep(0.2)

    async def open(self) -> None:
        """Do the handshake of the legacy era."""
        params = {"protocolVersion": VERSIONS["legacy"], "capabilities": {}, "clientInfo": INFO}
        await self.persist(lambda: self.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}))
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self.persist(lambda: self.send(message))

    async def list(self) -> int:
        """List all skills and return their number."""
        count, cursor = 0, None
        while True:
            params = {} if cursor is None else {"cursor": cursor}
            message = {"jsonrpc": "2.0", "id": 1, "method": "skills/list", "params": params}
            answer = await self.persist(lambda message=message: self.send(message))
            count += len(answer["result"]["skills"])
            cursor = answer["result"].get("nextCursor")
            if cursor is None:
                return count

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool and return its result."""
        params = {"name": name, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return (await self.persist(lambda: self.send(message)))["result"]

    async def end(self) -> None:
        """End the session."""
        await self.persist(lambda: self.send(None, "DELETE"))
        self.close()
        self.session = None

    async def listen(self) -> asyncio.StreamReader:
        """Open a listen stream of the modern era and await its acknowledgement."""
        meta = {
            META + "protocolVersion": VERSIONS["modern"],
            META + "clientInfo": INFO,
            META + "clientCapabilities": {},
        }
        params = {"notifications": {"skillsListChanged": True}, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
        reader = await self.persist(lambda: self.stream(message))
        await reader.readuntil(b"acknowledged")
        return reader


class Process:
    """A server process over HTTP."""

    def __init__(self, program: Sequence[str], root: Path, options: Sequence[str], probe_port: int | None) -> None:
        self.program, self.root, self.options, self.probe_port = program, root, options, probe_port
        self.log: list[str] = []

    async def __aenter__(self) -> Self:
        command = [*self.program, "serve", str(self.root), "--transport", "http", "--port", "0", "--usage", "off"]
        command += ["--access-log", "off", *self.options]
        if self.probe_port is not None:
            command += ["--probe-address", f"127.0.0.1:{self.probe_port}"]
        self.process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        self.port = 0
        assert self.process.stderr is not None
        while not self.port:
            line = (await self.process.stderr.readline()).decode()
            if not line:
                raise SystemExit("".join(self.log))
            self.log.append(line)
            if "listening on http://" in line:
                self.port = int(line.split("://")[1].split("/")[0].rpartition(":")[2])
        self.reading = asyncio.create_task(self.read())
        while await self.probe("/readyz") is None:  # noqa: ASYNC110, another process
            await asyncio.sleep(0.05)
        return self

    async def read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log.append(line.decode())

    async def probe(self, path: str) -> float | None:
        """Return the seconds of a probe, None if it is not answered with 200."""
        began = perf_counter()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.probe_port or self.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            status = (await reader.readline()).split()
            await reader.read()
            writer.close()
        except OSError:
            return None
        return perf_counter() - began if status[1:2] == [b"200"] else None

    def memory(self) -> float:
        """Return the resident memory in MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def processor(self) -> float:
        """Return the seconds of processor that the process took."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def end(self) -> float:
        """Send SIGTERM, and return the seconds until the exit."""
        began = perf_counter()
        self.process.send_signal(signal.SIGTERM)
        await self.process.wait()
        await self.reading
        return perf_counter() - began

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


def write_skill(root: Path, number: int, text: str = "") -> None:
    folder = root / f"skill-{number}"
    folder.mkdir(exist_ok=True)
    new = folder / "new"
    new.write_text(f"---\nname: skill-{number}\ndescription: Does thing {number}{text} when asked.\n---\nText.\n")
    new.replace(folder / "SKILL.md")


def show(name: str, value: float, unit: str) -> None:
    print(f"{name:60} {value:9.2f} {unit}", flush=True)


async def until_all(tasks: Sequence[Awaitable[Any]]) -> float:
    """Return the seconds until all of these have ended."""
    began = perf_counter()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*tasks)
    return perf_counter() - began


async def listeners(server: Process, count: int) -> None:
    """Measure modern listeners."""
    before = server.memory()
    clients = [Client(server.port, address(number), "modern") for number in range(count)]
    gate, readers = asyncio.Semaphore(100), []

    async def open_one(client: Client) -> None:
        async with gate:
            readers.append(await client.listen())

    try:
        show(f"{count:,} modern listeners: all open", await until_all([open_one(each) for each in clients]), "s")
    except TimeoutError:
        show(f"{count:,} modern listeners: open after {TIMEOUT_S:.0f} s", len(readers), "")
    show("memory of the process", server.memory(), "MB")
    show("growth for one of them", (server.memory() - before) / count * 1000, "kB")
    for _ in range(3):
        write_skill(server.root, 0, str(perf_counter()))
        try:
            show(
                "an edit until the last has heard", await until_all([each.readuntil(CHANGED) for each in readers]), "s"
            )
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            print(f"not all have heard: {error!r}")
    show("memory of the process", server.memory(), "MB")
    rest = asyncio.gather(*(each.read() for each in readers), return_exceptions=True)
    show("from SIGTERM until the exit", await server.end(), "s")
    ends = [each for each in await rest if isinstance(each, bytes) and b"resultType" in each]
    show("streams that ended with a result", len(ends), "")


class Herd:
    """Legacy clients in a process of their own, which does not delay what the main process measures."""

    def __init__(self, port: int, count: int) -> None:
        self.count, self._orders = count, multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=run_herd, args=(port, count, self._orders[1])
        )

    async def __aenter__(self) -> Self:
        self._process.start()
        await self.order("start")
        return self

    async def order(self, what: str) -> dict[str, float]:
        """Have the herd do this, and return what it measured."""
        self._orders[0].send(what)
        return await asyncio.to_thread(self._orders[0].recv)

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.join)


def run_herd(port: int, count: int, orders: Any) -> None:
    """Be the herd: do what is ordered."""
    asyncio.run(_run_herd([Client(port, address(number)) for number in range(count)], orders))


async def _run_herd(clients: list[Client], orders: Any) -> None:
    began, open_at, listed_at = 0.0, [0.0], [0.0]

    async def connect(client: Client) -> None:
        await client.open()
        client.heard = await client.persist(lambda: client.stream(None))
        open_at.append(perf_counter())
        await client.list()
        listed_at.append(perf_counter())

    async def follow(client: Client) -> None:
        await client.heard.readuntil(CHANGED)
        await client.list()
        listed_at.append(perf_counter())

    following: list[asyncio.Task[None]] = []
    while True:
        order, refusals = await asyncio.to_thread(orders.recv), sum(each.refusals for each in clients)
        began = perf_counter()
        if order == "connect":
            await until_all([connect(each) for each in clients])
        elif order == "follow":
            following = [asyncio.create_task(follow(each)) for each in clients]
            await asyncio.sleep(0.5)
        elif order == "list":
            await until_all(following)
        refusals = sum(each.refusals for each in clients) - refusals
        orders.send(
            {
                "processor": process_time(),
                "open": max(open_at) - began,
                "listed": max(listed_at) - began,
                "refusals": refusals,
            }
        )


async def storm(server: Process, count: int) -> None:
    """Measure legacy clients that connect at once, and list again after an edit."""
    quiet = Client(server.port, "127.0.0.9")
    await quiet.open()
    probes: list[float] = []
    waits: list[float] = []
    failed, used = 0, server.processor()

    async def probe() -> None:
        nonlocal failed
        while True:
            seconds = await server.probe("/healthz")
            if seconds is None:
                failed += 1
            else:
                probes.append(seconds)
            await asyncio.sleep(0.05)

    async def ask() -> None:
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
        while True:
            began = perf_counter()
            await quiet.persist(lambda: quiet.send(message))
            waits.append(perf_counter() - began)
            await asyncio.sleep(0.05)

    async def report() -> None:
        nonlocal used
        await asyncio.sleep(1)
        show("  processor of the server", server.processor() - used, "s")
        used = server.processor()
        show(f"  slowest of {len(probes)} /healthz ({failed} failed)", max(probes), "s")
        show(f"  slowest of {len(waits)} requests of a quiet client ({quiet.refusals} refused)", max(waits), "s")
        probes.clear()
        waits.clear()

    works = [asyncio.create_task(probe()), asyncio.create_task(ask())]
    async with Herd(server.port, count) as herd:
        await asyncio.sleep(1)
        print(f"{count:,} legacy clients, quiet for comparison")
        await report()
        seconds = await herd.order("connect")
        show(f"{count:,} legacy clients: all connected, with a stream", seconds["open"], "s")
        show(f"  until all have listed, {seconds['refusals']} refusals", seconds["listed"], "s")
        show("  processor of the clients", seconds["processor"], "s")
        await report()
        await herd.order("follow")
        waits.clear()
        write_skill(server.root, 0, str(perf_counter()))
        seconds = await herd.order("list")
        show(f"an edit until all have listed again, {seconds['refusals']} refusals", seconds["listed"], "s")
        await report()
        show("memory of the process", server.memory(), "MB")
        for work in works:
            work.cancel()
        show("from SIGTERM until the exit", await server.end(), "s")


async def sessions(server: Process, count: int) -> None:
    """Measure whether the memory of ended sessions is used again."""
    warm = Client(server.port, "127.0.0.9")
    await warm.open()
    await warm.list()
    await warm.end()
    show("memory of the process before", server.memory(), "MB")
    gate = asyncio.Semaphore(20)

    async def open_one(client: Client) -> None:
        async with gate:
            await client.open()
            client.heard = await client.persist(lambda: client.stream(None))
            await client.list()

    for number in range(1, 5):
        clients = [Client(server.port, address(source)) for source in range(count)]
        await until_all([open_one(client) for client in clients])
        show(f"round {number}: with {count:,} sessions and streams", server.memory(), "MB")
        for client in clients:
            await client.end()
            client.kept.close()
        await asyncio.sleep(1)
        show("  after they ended", server.memory(), "MB")


def write_grants(folder: Path, count: int) -> list[str]:
    """Write the tokens and the configuration of `count` principals with groups of their own; return the options."""
    tokens = [f"p{number}={TOKEN.format(number)} groups=g{number}\n" for number in range(count)]
    (folder / "tokens").write_text("".join(tokens))
    tables: list[str] = []
    for number in range(count):
        for grant in own_grants("**" if number % 2 else "some", number):
            skills = [pattern.text for pattern in grant.skills]
            tables.append(f"[[grant]]\nwho = {json.dumps(grant.who)}\nskills = {json.dumps(skills)}\n")
    (folder / "config.toml").write_text("\n".join(tables))
    return ["--token-file", str(folder / "tokens"), "--config", str(folder / "config.toml")]


async def soak(server: Process, count: int, minutes: float) -> None:
    """Measure the memory under principals with grants and an edit a second."""
    dice, began, calls = random.Random(1), perf_counter(), 0
    tokens = [TOKEN.format(number) for number in range(count)]
    listening = [Client(server.port, address(number), "modern", tokens[number]) for number in range(count)]
    readers = [await client.listen() for client in listening]
    conversations: dict[int, Any] = {}

    async def hear(reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 16):
            pass

    async def work() -> None:
        nonlocal calls
        while True:
            number = dice.randrange(count)
            client = Client(server.port, address(number), token=tokens[number])
            await client.open()
            await client.list()
            await client.call("skills_search", {"query": f"thing {dice.randrange(1000)} when asked"})
            arguments = {"names": [f"skill-{dice.randrange(100)}"]}
            if number in conversations:
                arguments["session"] = conversations[number]
            content = (await client.call("skills_load", arguments)).get("structuredContent", {})
            conversations[number] = content.get("session", conversations.get(number))
            await client.end()
            calls += 6

    async def edit() -> None:
        while True:
            await asyncio.sleep(1)
            write_skill(server.root, dice.randrange(100), f" {perf_counter()}")

    tasks = [asyncio.create_task(coroutine) for coroutine in (*map(hear, readers), edit(), *(work() for _ in range(4)))]
    samples: list[tuple[float, float]] = []
    while (perf_counter() - began) / 60 < minutes:
        await asyncio.sleep(15)
        samples.append(((perf_counter() - began) / 60, server.memory()))
        show(f"{calls:,} requests, {server.processor():.0f} s of processor, memory", server.memory(), "MB")
    for task in tasks:
        task.cancel()
    ended = [task for task in await asyncio.gather(*tasks, return_exceptions=True) if task is None]
    show("streams that ended early", len(ended), "")
    times = [time for time, _ in samples if time >= 2]
    sizes = [size for _, size in samples[-len(times) :]]
    show("growth after the second minute", linear_regression(times, sizes).slope, "MB a minute")


async def main() -> None:
    """Run the scenarios of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowds", description="One server under many clients.")
    parser.add_argument(
        "scenario", nargs="*", default=["listeners", "storm"], choices=["listeners", "storm", "sessions", "soak"]
    )
    parser.add_argument(
        "--clients", type=int, help="by default 5,000 listeners, a storm of 2,000, 1,000 sessions, a soak of 500"
    )
    parser.add_argument("--minutes", type=float, default=10, help="of the soak, more than 2")
    parser.add_argument("--skills", type=int, default=200)
    parser.add_argument("--program", default=f"{sys.executable} -m mcp_skills_server", help="the server's command")
    parser.add_argument("--no-probe-address", action="store_true", help="probe the server's own port")
    parser.add_argument("--log", action="store_true", help="show the server's log")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    for name in given.scenario:
        count = given.clients or {"listeners": 5000, "storm": 2000, "sessions": 1000, "soak": 500}[name]
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as settings:
            for number in range(given.skills):
                write_skill(Path(folder), number)
            options = ["--max-connections", str(2 * count + 100), "--max-sessions", str(count + 100)]
            if name == "soak":
                options += write_grants(Path(settings), count)
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            probe_port = None if given.no_probe_address else port
            print(f"load {os.getloadavg()[0]:.1f}")
            async with Process(given.program.split(), Path(folder), options, probe_port) as server:
                if name == "soak":
                    await soak(server, count, given.minutes)
                else:
                    await {"listeners": listeners, "storm": storm, "sessions": sessions}[name](server, count)
            with suppress(IndexError):
                levels = [line for line in server.log if "ERROR" in line or "Traceback" in line]
                show("lines of ERROR in the log", len(levels), "")
            if given.log:
                print("".join(server.log))


if __name__ == "__main__":
    asyncio.run(main())
