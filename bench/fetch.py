"""How long it takes to fetch a thousand skills from a server on this machine, beside `curl` of the same bytes.

`python -m bench.fetch`. The skills are those of `bench.generate`, packed; the server is a process of its own that
answers from memory. curl writes the same artifacts to files, as many at a time, and neither proves, unpacks nor
synchronizes them; without curl, the floor is a loop of httpx2 in a process of its own. Each run is a new process over
an empty folder, ours and the floor's in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.client import REPOSITORY, BenchError
from bench.commands import Cost, whole
from bench.generate import generate, skill_name
from bench.report import Row, Run
from mcp_skills_server.dialects.wellknown import DIRECTORY, INDEX, SCHEMA
from mcp_skills_server.format import archive

CONNECTIONS: Final = 6
_MS: Final = 1e3


def publish(root: Path, site: Path, size: int) -> list[str]:
    """Write a site of `size` skills; the paths of its artifacts."""
    generate(root, size)
    entries: list[dict[str, Any]] = []
    for name in map(skill_name, range(size)):
        folder = root / name
        files = {
            path.relative_to(folder).as_posix(): (path.read_bytes(), False)
            for path in folder.rglob("*")
            if path.is_file()
        }
        suffix, raw = archive.pack(files)
        place = f"{DIRECTORY}{name}{suffix}"
        target = site / place[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(raw)
        head = files["SKILL.md"][0].decode().split("\n")[2].removeprefix("description: ")
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        entries.append({"name": name, "type": "archive", "description": head, "url": place, "digest": digest})
    (site / DIRECTORY[1:] / INDEX).write_text(json.dumps({"$schema": SCHEMA, "skills": entries}), encoding="utf-8")
    return [entry["url"] for entry in entries]


def _answers(site: Path) -> dict[bytes, bytes]:
    """The whole response for each path."""
    answers: dict[bytes, bytes] = {}
    for path in site.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(raw)}\r\ncontent-type: application/octet-stream\r\n\r\n"
            answers[b"/" + path.relative_to(site).as_posix().encode()] = head.encode() + raw
    return answers


async def _serve(answers: dict[bytes, bytes]) -> None:
    """Answer GET from memory, HTTP/1.1 with connections that stay open."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                writer.write(answers.get(asked.split(b" ", 2)[1], b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The origin of a server of this site."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.fetch", "--serve", str(site)], stdout=subprocess.PIPE, cwd=REPOSITORY
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def ours(origin: str, output: Path) -> Cost:
    """What one `fetch` takes."""
    command = [sys.executable, "-m", "mcp_skills_server", "fetch", origin, "--output", str(output), "--allow-private"]
    return _timed([*command, "--connections", str(CONNECTIONS)])


def floor(origin: str, paths: list[str], output: Path) -> Cost:
    """What one process takes that downloads the same into files."""
    output.mkdir()
    listed = output.with_suffix(".txt")
    urls = [f"{origin}{DIRECTORY}{INDEX}", *(origin + path for path in paths)]
    curl = shutil.which("curl")
    if curl is None:
        listed.write_text("\n".join(urls), encoding="utf-8")
        return _timed([sys.executable, "-m", "bench.fetch", "--download", str(listed), str(output)])
    lines = (f'url = "{url}"\noutput = "{output / url.rpartition("/")[2]}"\n' for url in urls)
    listed.write_text("".join(lines), encoding="utf-8")
    return _timed([curl, "--silent", "--fail", "--parallel", "--parallel-max", str(CONNECTIONS), "-K", str(listed)])


async def _download(listed: str, output: Path) -> None:
    import httpx2

    urls = iter(listed.split("\n"))
    async with httpx2.AsyncClient(trust_env=False) as client:

        async def work() -> None:
            for url in urls:
                (output / url.rpartition("/")[2]).write_bytes((await client.get(url)).content)

        await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


def _timed(command: list[str]) -> Cost:
    done, cost = whole(command)
    if done.returncode:
        raise BenchError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return cost


def measure(size: int, rounds: int, scratch: Path) -> Iterator[Row]:
    """Fetch all, then fetch again what is current."""
    paths = publish(scratch / "skills", scratch / "site", size)
    with served(scratch / "site") as origin:
        cold: list[Cost] = []
        warm: list[Cost] = []
        beside: list[Cost] = []
        for number in range(rounds):
            output = scratch / f"ours-{number}"
            cold.append(ours(origin, output))
            warm.append(ours(origin, output))
            beside.append(floor(origin, paths, scratch / f"floor-{number}"))
            if len(os.listdir(output)) != size + 1:
                raise BenchError(f"{output} has {len(os.listdir(output))} entries")
    name = "curl" if shutil.which("curl") else "httpx2"
    for number, kind in enumerate(Cost._fields):
        first, again, under = (median(each[number] for each in side) * _MS for side in (cold, warm, beside))
        yield Row(f"fetch into an empty folder, beside {name}: {kind}", size, rounds, first, under, "ms")
        yield Row(f"fetch again, all is current: {kind}", size, rounds, again, None, "ms")


def main() -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.fetch", description="Fetching skills beside curl.")
    parser.add_argument("--size", type=int, default=1000, help="number of generated skills")
    parser.add_argument("--rounds", type=int, help="runs of each side (default 5)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--download", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(_answers(options.serve)))
        return 0
    if options.download:
        listed, output = options.download
        asyncio.run(_download(listed.read_text(encoding="utf-8"), output))
        return 0
    run = Run()
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as scratch:
        rows = list(measure(options.size, options.rounds or (2 if options.quick else 5), Path(scratch)))
    run.tell(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
