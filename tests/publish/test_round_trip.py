"""Round trip: publish, fetch and publish again give the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forkserver
from web.http_wire import http_serving
from wire import COMMAND, DEADLINE, FIXTURES

INDEX = Path(".well-known") / "agent-skills" / "index.json"


def run(*arguments: str | Path) -> None:
    forkserver.run([*COMMAND, *map(str, arguments)], timeout=DEADLINE, check=True)


@pytest.mark.requirement("WK-14", "WK-18", "WK-48")
def test_publish_fetch_publish_gives_the_same_index_and_files(tmp_path: Path) -> None:
    first, copies, second = tmp_path / "first", tmp_path / "copies", tmp_path / "second"
    run("publish", FIXTURES, "--output", first)
    with http_serving(FIXTURES) as live:
        address = f"http://127.0.0.1:{live.port}"
        assert live.send("GET", f"/{INDEX.as_posix()}").body == (first / INDEX).read_bytes()
        run("fetch", address, "--output", copies, "--allow-private")
    run("publish", copies, "--output", second)
    # Entries are in the order of skill paths, which a fetch flattens.
    entries = [
        sorted(json.loads((site / INDEX).read_bytes())["skills"], key=lambda entry: entry["name"])
        for site in (first, second)
    ]
    assert entries[0] == entries[1] and len(entries[0]) == len(list(FIXTURES.rglob("SKILL.md")))
    for skill in (path.parent for path in FIXTURES.rglob("SKILL.md")):
        for path in (each for each in skill.rglob("*") if each.is_file()):
            assert (copies / skill.name / path.relative_to(skill)).read_bytes() == path.read_bytes()
