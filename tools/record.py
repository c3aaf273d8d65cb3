"""`make record`: write down what independent clients say to the server, in tests/server/recorded.jsonl.

The referees of tools/interop/ talk to a real server through a tee. Of each only requests are kept, and of those with
the same shape a few; no address and no path. Each row is a conversation as it could be held over a pipe: what was
said over HTTP is one for each session, and one for all requests of the modern era.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import h11

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.interop.installation import PYTHON_PACKAGES, install, install_python, unavailable
from tools.interop.places import ROOT
from tools.interop.runs import perform, runs
from tools.interop.server import SERVE, serving

OUTPUT: Final = ROOT / "tests" / "server" / "recorded.jsonl"
MOST_ALIKE: Final = 2
"""Requests of one shape that are kept of one referee's conversation."""
LONGEST: Final = 1 << 20
"""Bytes of the file."""
_ADDRESS: Final = re.compile(r"127\.0\.0\.1|localhost:\d|/tmp/|/home/|/root/|/work/|file://")
_HANDLE: Final = re.compile(r'(?<=\\"session\\":\\")[\w-]{24}(?=\\")|(?<=\\"session\\": \\")[\w-]{24}(?=\\")')
"""What a session of the tools is called, in a message within a row: drawn by lot, and gone."""
_MODERN: Final = "2026-07-28"


@dataclass(frozen=True, slots=True)
class Said:
    """A POST: the revision of MCP that its header names, "" for none, and its body."""

    version: str
    body: bytes


# Pure


def shape(message: object) -> str:
    """What a message has in common with others that differ in their values alone."""
    if not isinstance(message, dict):
        return type(message).__name__
    params = message.get("params")
    given = params if isinstance(params, dict) else {}
    arguments = given.get("arguments")
    fields = [sorted(given), sorted(arguments) if isinstance(arguments, dict) else None]
    return json.dumps([message.get("method"), sorted(message), given.get("name") if arguments else None, fields])


def thinned(lines: Iterable[bytes]) -> list[str]:
    """A conversation without what is said more often than it teaches anything."""
    seen: Counter[str] = Counter()
    out: list[str] = []
    for line in lines:
        try:
            kind = shape(json.loads(line))
        except ValueError:
            kind = "garbage"
        seen[kind] += 1
        if seen[kind] <= MOST_ALIKE:
            out.append(line.decode("utf-8", "surrogateescape"))
    return out


def sessions(said: Iterable[Said]) -> Iterator[list[bytes]]:
    """The messages over HTTP: those of legacy clients from one handshake to the next, and all of the modern era."""
    out: list[bytes] = []
    modern: list[bytes] = []
    for each in said:
        line = each.body.replace(b"\n", b" ")
        if each.version >= _MODERN:
            modern.append(line)
            continue
        if b'"initialize"' in line and out:
            yield out
            out = []
        out.append(line)
    yield from (each for each in (out, modern) if each)


def rows(by: str, lines: Iterable[list[bytes]], said: Iterable[Said]) -> Iterator[dict[str, Any]]:
    """What is kept of a referee."""
    for conversation in (*lines, *sessions(said)):
        if kept := thinned(conversation):
            yield {"by": by, "lines": kept}


def distinct(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row once, whoever said it first; none that names an address or a path."""
    out: dict[str, dict[str, Any]] = {}
    for each in found:
        row = json.loads(_HANDLE.sub("HANDLE-OF-24-CHARACTERS-", json.dumps(each)))
        text = json.dumps({**row, "by": ""})
        if not _ADDRESS.search(text):
            out.setdefault(text, row)
    return list(out.values())


# The tees


def tee(folder: Path, command: list[str]) -> int:
    """Run a server over stdio, and keep what is said to it in a new file of a folder."""
    copied = folder / f"{time.time_ns():020}"
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process, copied.open("wb", buffering=0) as copy:
        assert process.stdin is not None
        while chunk := os.read(0, 1 << 16):
            copy.write(chunk)
            process.stdin.write(chunk)
            process.stdin.flush()
        process.stdin.close()
        return process.wait()


class _Proxy(socketserver.ThreadingTCPServer):
    """Passes connections on to a server, and keeps the requests in the order in which they came."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 100

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.to = urlsplit(url)
        self.said: list[Said] = []


class _Passing(socketserver.BaseRequestHandler):
    server: _Proxy

    def handle(self) -> None:
        reader = h11.Connection(h11.SERVER)
        with socket.create_connection((self.server.to.hostname, self.server.to.port)) as onward:
            back = threading.Thread(target=_pump, args=(onward, self.request), daemon=True)
            back.start()
            request: h11.Request | None = None
            body = b""
            try:
                while chunk := self.request.recv(1 << 16):
                    reader.receive_data(chunk)
                    while type(event := reader.next_event()) not in (type(h11.NEED_DATA), type(h11.PAUSED)):
                        if isinstance(event, h11.Request):
                            request, body = event, b""
                        elif isinstance(event, h11.Data):
                            body += event.data
                        elif isinstance(event, h11.EndOfMessage) and request is not None:
                            self._keep(request, body)
                            reader.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                            reader.send(h11.EndOfMessage())
                            if reader.our_state is h11.DONE and reader.their_state is h11.DONE:
                                reader.start_next_cycle()
                        else:
                            break
                    onward.sendall(chunk)
                onward.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # either side has left
            back.join(5)

    def _keep(self, request: h11.Request, body: bytes) -> None:
        if request.method == b"POST" and request.target.split(b"?")[0] == b"/mcp":
            version = dict(request.headers).get(b"mcp-protocol-version", b"")
            self.server.said.append(Said(version.decode("latin-1"), body))


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def _proxy(url: str) -> Iterator[_Proxy]:
    with _Proxy(url) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)


def record(scratch: Path) -> Iterator[dict[str, Any]]:
    """Have every referee of MCP talk, and yield what it said."""
    pythons = {suite: install_python(suite) for suite in PYTHON_PACKAGES}
    plain = list(SERVE)
    numbers = itertools.count()
    with serving([]) as url, _proxy(url) as proxy:
        where = f"http://127.0.0.1:{proxy.server_address[1]}/mcp"
        for run in runs(where, pythons):
            if run.suite in {"vercel", "fastmcp-server"}:
                continue  # what the one speaks is not MCP, and the other has a server of its own
            folder = scratch / str(next(numbers))
            folder.mkdir()
            SERVE[:] = [sys.executable, str(Path(__file__)), "--tee", str(folder), *plain]
            proxy.said.clear()
            checks = perform(run)
            lines = [path.read_bytes().splitlines() for path in sorted(folder.iterdir())]
            by = f"{run.referee}, {run.version}, {run.era}"
            print(
                f"record: {by}, {run.transport}: {len(checks)} checks, {len(proxy.said)} requests, {len(lines)} pipes",
                flush=True,
            )
            yield from rows(by, lines, list(proxy.said))


def main() -> int:
    """Record, and write the file; 1 if nobody can be recorded here."""
    if sys.argv[1:2] == ["--tee"]:
        return tee(Path(sys.argv[2]), sys.argv[3:])
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if reason := unavailable():
        print(f"record: {reason}")
        return 1
    install()
    with tempfile.TemporaryDirectory() as scratch:
        kept = distinct(record(Path(scratch)))
    text = "".join(json.dumps(row) + "\n" for row in kept)
    if len(text) > LONGEST:
        raise SystemExit(f"record: {len(text):,} bytes, and at most {LONGEST:,} are kept; lower MOST_ALIKE")
    OUTPUT.write_text(text, encoding="utf-8", newline="")
    print(f"record: {len(kept)} conversations, {len(text):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
