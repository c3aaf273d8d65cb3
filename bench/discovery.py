"""Discovery: requests a second beside a constant answer, and what it takes to publish a large catalogue.

`python -m bench.discovery`. The floor is a Starlette app under uvicorn, with our settings of it, that answers the same
bytes with the same headers from memory. Both are loaded by one process of its own, in turn.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Final

from bench.bare import bare_scan
from bench.client import BenchError
from bench.commands import Cost, whole
from bench.generate import generate, skill_name
from bench.http import Load, Server, ours
from bench.report import Row, Run
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.publish.static import StaticSite

_INDEX: Final = "/.well-known/agent-skills/index.json"
_CONNECTIONS: Final = (1, 32)
_GOAL: Final = 1.3
_NOT_REPEATED: Final = frozenset(("date", "server", "connection"))
_PATIENCE_S: Final = 60.0
_EDITS: Final = 5
_MS: Final = 1e3
_MB: Final = 1e6


# The floor


def _serve_constants(path: Path) -> None:
    """Be the floor: answer each path of a JSON file with its headers and the bytes of the file that it names."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    def route(place: str, headers: dict[str, str], body: bytes) -> Route:
        async def answer(_: Request) -> Response:
            return Response(body, headers=headers)

        return Route(place, answer)

    constants: dict[str, Any] = json.loads(path.read_bytes())
    app = Starlette(
        routes=[route(place, each["headers"], Path(each["body"]).read_bytes()) for place, each in constants.items()]
    )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that TCP_NODELAY gets set
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    logging.basicConfig(level=logging.WARNING)
    # Told in the words that `Server` waits for.
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, limit_concurrency=1000, timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])


# The measurements


def _get(server: Server, path: str) -> tuple[dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise BenchError(f"{path}: {response.status}")
        return {name.lower(): value for name, value in response.headers.items()}, body
    finally:
        connection.close()


def requests(load: Load, scratch: Path, size: int, count: int, rounds: int) -> Iterator[Row]:
    """Requests a second of the index and of artifacts, small and large, one by one and many at once."""
    root = scratch / f"requests-{size}"
    generate(root, size)
    large = root / "large"
    large.mkdir()
    (large / "SKILL.md").write_text("---\nname: large\ndescription: One megabyte.\n---\n", encoding="utf-8")
    (large / "data.bin").write_bytes(bytes(range(256)) * 4096)
    with ours(root) as server:
        index = json.loads(_get(server, _INDEX)[1])["skills"]
        urls = {entry["name"]: entry["url"] for entry in index}
        asked = {
            "index": _INDEX,
            "artifact of 10 kB": urls[skill_name(size // 2)],
            "artifact of 1 MB": urls["large"],
            "file of 0.1.0": f"/.well-known/skills/{skill_name(size // 2)}/SKILL.md",
        }
        constants: dict[str, Any] = {}
        bodies: dict[str, bytes] = {}
        for number, path in enumerate(asked.values()):
            headers, bodies[path] = _get(server, path)
            place = scratch / f"body-{number}"
            place.write_bytes(bodies[path])
            kept = {name: value for name, value in headers.items() if name not in _NOT_REPEATED}
            constants[path] = {"headers": kept, "body": str(place)}
        (scratch / "constants.json").write_text(json.dumps(constants), encoding="utf-8")
        with Server("-m", "bench.discovery", "--serve-constants", str(scratch / "constants.json")) as floor:
            for name, path in asked.items():
                if _get(floor, path)[1] != bodies[path]:
                    raise BenchError("the floor answers something else")
                few = max(rounds * 4, count // (1 + len(bodies[path]) // 50_000))
                request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
                for connections in _CONNECTIONS:
                    pairs: list[tuple[float, float]] = []
                    for _ in range(rounds):
                        mine = load.ask(server, [request] * connections, few)
                        pairs.append((mine.rate, load.ask(floor, [request] * connections, few).rate))
                    ratio = median(bare / mine for mine, bare in pairs)
                    rate = median(bare for _, bare in pairs)
                    # As times, so that less is better: what the floor does in a second takes us so many times longer.
                    yield Row(
                        f"{name}, {len(bodies[path]):,} bytes, {connections} at once, time for each",
                        *(size, few * rounds, _MS * ratio / rate, _MS / rate, "ms", _GOAL),
                    )


def live(scratch: Path, size: int) -> Iterator[Row]:
    """What the first index costs, and the first after an edit, in a process that has scanned."""
    root = scratch / f"live-{size}"
    generate(root, size)
    registry = Registry([root])
    registry.load()
    publication = Publication(registry)
    start = perf_counter()
    edition = publication.edition()
    cold = perf_counter() - start
    if len(edition.skills) != size:
        raise BenchError("some were left out")
    warm: list[float] = []
    for number in range(10):
        path = root / skill_name(number * 7 % size) / "SKILL.md"
        with open(path, "a", encoding="utf-8") as file:
            file.write("One line more.\n")
        registry.refresh([str(path)])
        start = perf_counter()
        if publication.edition() is edition:
            raise BenchError("the edit was not seen")
        warm.append(perf_counter() - start)
    yield Row("live: first index, scanned before", size, 1, cold * _MS, None, "ms")
    yield Row("live: index after one edit", size, len(warm), median(warm) * _MS, None, "ms")


def memory(scratch: Path, size: int) -> Iterator[Row]:
    """What a server holds more when it has published."""
    root = scratch / f"live-{size}"
    with ours(root) as server:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
        while True:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                break
        connection.close()
        before = server.rss()
        _get(server, _INDEX)
        yield Row("live: memory that the first index adds", size, 1, (server.rss() - before) / _MB, None, "MB")


def tree(scratch: Path, size: int) -> Iterator[Row]:
    """Publishing as files: the whole command, and the part of it that writes, beside `cp -r` of the same tree.

    The other floor is a look at all files by their stat results, of the skills alone and with the tree: a file of
    either may have changed. After an edit it is measured in turn with it.
    """
    root, output = scratch / f"live-{size}", scratch / f"public-{size}"
    command = [sys.executable, "-m", "mcp_skills_server", "publish", str(root), "--output", str(output)]

    def run() -> Cost:
        done, cost = whole(command)
        if done.returncode or not re.search(rf"published {size} skills", done.stderr):
            raise BenchError(done.stderr)
        return cost

    def walk(*places: Path) -> Cost:
        wall, cpu = perf_counter(), process_time()
        for place in places:
            bare_scan(str(place), ())
        return Cost(perf_counter() - wall, process_time() - cpu)

    cold = run()
    start = perf_counter()
    subprocess.run(["cp", "-r", str(output), str(scratch / f"copy-{size}")], check=True)
    copied = perf_counter() - start
    again, edited, alone, both = ([run()], list[Cost](), list[Cost](), list[Cost]())
    for number in range(_EDITS):
        with open(root / skill_name(size // 2 + number) / "SKILL.md", "a", encoding="utf-8") as file:
            file.write("One line more.\n")
        edited.append(run())
        again.append(run())
        alone.append(walk(root))
        both.append(walk(root, output))
    yield Row("publish from cold, whole command", size, 1, cold.wall * _MS, copied * _MS, "ms")
    for number, kind in enumerate(Cost._fields):
        same, one, skills, tree = (median(each[number] for each in side) * _MS for side in (again, edited, alone, both))
        yield Row(f"publish again, beside a stat walk with the tree: {kind}", size, len(again), same, tree, "ms")
        yield Row(f"publish after one edit, beside the same: {kind}", size, _EDITS, one, tree, "ms")
        yield Row(f"the same, beside a stat walk of the skills: {kind}", size, _EDITS, one, skills, "ms")
    registry = Registry([root])
    registry.load()
    publication = Publication(registry)
    publication.edition()
    start = perf_counter()
    if StaticSite(str(output)).check(publication):
        raise BenchError("the tree is not current")
    yield Row("of that: comparing the tree", size, 1, (perf_counter() - start) * _MS, None, "ms")


def main() -> int:
    """Measure, print one table and, when asked, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.discovery", description="Discovery beside its floors.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and 1,000 skills at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--serve-constants", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_constants:
        _serve_constants(options.serve_constants)
        return 0
    run = Run()
    rows: list[Row] = []
    count, rounds, large = (400, 3, 1000) if options.quick else (3000, 7, 10_000)
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as name:
        scratch = Path(name)
        with Load() as load:
            rows.extend(requests(load, scratch, 100, count, rounds))
        for part in (live, memory, tree):
            rows.extend(part(scratch, large))
    run.tell(rows, into=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
