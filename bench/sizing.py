"""Measure what one process costs, for the table of docs/operate.md: `python -m bench.sizing [--sizes 100,1000,10000]`.

For each number of skills: memory after a listing and a first search, and at most; the processor time of requests over
HTTP; the memory of a legacy session. Memory and processor time depend little on other load.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
from pathlib import Path

from bench.client import Era, HttpClient
from bench.generate import generate, questions, tool_calls
from bench.rounds import list_all
from bench.subjects import OURS, Start, own

SESSIONS = 1_000
REQUESTS = 500


def start(folder: Path, era: Era) -> HttpClient:
    """Start this server with an empty cache."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    subject = next(subject for subject in own() if subject.key == OURS)
    cache = tempfile.mkdtemp(dir=folder)
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "XDG_STATE_HOME": cache}
    return HttpClient(subject.command(Start(folder / "skills", folder, port)), era, port, environment)


def measure(skills: int) -> None:
    """Print the memory of one process, and the processor time of its requests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder / "skills", skills)
        with start(folder, "modern") as client:
            client.open()
            list_all(client, skills, None)
            listed = client.resident() / 1e6
            calls = questions(skills, 200) | tool_calls(skills, 2 * REQUESTS)
            client.request(*calls["search"][0])
            searched = client.resident() / 1e6
            print(f"{skills:,} skills: {listed:.0f} MB after a listing, {searched:.0f} after a search", flush=True)
            for key, requests in calls.items():
                prepared = [client.prepare(*request) for request in requests]
                client.load(prepared[:REQUESTS], REQUESTS)  # the first requests read what later ones find
                cost = client.load(prepared[-REQUESTS:], 4 * REQUESTS).processor
                print(f"  {key}: {cost * 1e3:.2f} ms of processor, {1 / cost:,.0f} a second of a core", flush=True)
            print(f"  {client.peak() / 1e6:.0f} MB at most", flush=True)
        with start(folder, "legacy") as client:
            client.open()
            list_all(client, skills, None)
            before = client.resident()
            for _ in range(SESSIONS):
                client.open_session()
            growth = client.resident() - before
            print(f"  a legacy session without a stream: {growth / SESSIONS / 1e3:.1f} kB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100,1000,10000")
    for size in parser.parse_args().sizes.split(","):
        measure(int(size))


if __name__ == "__main__":
    main()
