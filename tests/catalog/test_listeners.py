"""Who is called when the catalogue changes, and when."""

from __future__ import annotations

from pathlib import Path

from catalog.forest import plant, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Changes


def test_listeners_hear_of_the_first_scan_and_then_of_what_changed_until_they_leave(tmp_path: Path) -> None:
    plant(tmp_path, skills("a"))
    registry, heard = Registry([tmp_path]), list[Changes]()
    leave = registry.subscribe(heard.append)
    registry.load()
    assert [list(changes.after) for changes in heard] == [["a"]]
    registry.refresh()
    plant(tmp_path, skills("b"))
    registry.refresh()
    assert [list(changes.after) for changes in heard] == [["a"], ["b"]]
    leave()
    leave()
    plant(tmp_path, skills("c"))
    registry.refresh()
    assert len(heard) == 2


def test_a_first_scan_that_finds_nothing_is_heard_of_too(tmp_path: Path) -> None:
    registry, heard = Registry([tmp_path]), list[Changes]()
    registry.subscribe(heard.append)
    registry.load()
    assert heard == [Changes({}, {})]
