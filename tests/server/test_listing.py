"""The order of lists of skills, and hosts that show the first skills of `skills/list` by themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import load_registry, skill_md, write_files
from dispatching import Direct, dispatching
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.dialects import sep2640
from mcp_skills_server.server import listing
from mcp_skills_server.server.requests import Settings
from tables import each_row
from wire import EXTENSION, Era, write_skill

LIMIT = 524_288
"""Bytes of entries that Claude Code reads."""
MODERN: Era = "modern"


def write(root: Path, count: int, blanks: int = 0, **fields: str) -> list[str]:
    """Write skills `s000` to `s{count}`; a field of `blanks` characters, and those of each name in `fields`."""
    names = [f"s{number:03}" for number in range(count)]
    for name in names:
        more = fields.get(name, f"note: {'x' * blanks}" if blanks else "")
        write_files(root, {f"{name}/SKILL.md": skill_md(name, more)})
    return names


@contextmanager
def native_host(root: Path, **options: Any) -> Iterator[tuple[Direct, str]]:
    """Yield a host that shows skills by itself, and the server's instructions."""
    options = {"era": MODERN, "extension": True, "host": "claude-code"} | options
    with dispatching(root, opened=False, **options) as wire:
        yield wire, wire.open().get("instructions", "")


def json_bytes(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def read_like_claude_code(wire: Direct, pages: int = 20, skills: int = 100) -> list[str]:
    """Return the names of the skills that Claude Code 2.1.332 takes from `skills/list`."""
    names: list[str] = []
    cursor: Mapping[str, Any] = {}
    size = 0
    for _ in range(pages):
        page = wire.request("skills/list", cursor)
        for entry in page["skills"]:
            size += json_bytes(entry)
            if size > LIMIT or len(names) == skills:
                return names
            names.append(entry["frontmatter"]["name"])
        if "nextCursor" not in page:
            break
        cursor = {"cursor": page["nextCursor"]}
    return names


def listed_in(instructions: str) -> list[str]:
    return re.findall("<name>(.*)</name>", instructions)


def tool_names(wire: Direct) -> list[str]:
    return [tool["name"] for tool in wire.request("tools/list")["tools"]]


# Rows: skills, characters of a field of each, and further settings.
CAPPED = [
    pytest.param(103, 0, {}, id="skills"),
    pytest.param(12, 50_000, {}, id="bytes"),
    pytest.param(24, 0, {"page_size": 1}, id="pages"),
]


@pytest.mark.parametrize(("count", "blanks", "settings"), CAPPED)
def test_skills_that_a_native_host_does_not_read_are_listed_once_and_loaded(
    tmp_path: Path, count: int, blanks: int, settings: dict[str, Any]
) -> None:
    names = write(tmp_path, count, blanks)
    with native_host(tmp_path, **settings) as (wire, instructions):
        read, rest = read_like_claude_code(wire), listed_in(instructions)
        assert rest and [*read, *rest] == names
        assert {"skills_search", "skills_load"} <= {*tool_names(wire)}
        assert [prompt["name"] for prompt in wire.request("prompts/list")["prompts"]] == rest
        shown = json.dumps(wire.request("tools/list"))
        assert not [name for name in read if name in shown]
        found = wire.call("skills_search", query=rest[-1].replace("s", "s "))["structuredContent"]
        assert rest[-1] in json.dumps(found)
        loaded = wire.call("skills_load", names=[rest[-1]])["structuredContent"]["active_skills"]
        assert [skill["name"] for skill in loaded] == [rest[-1]]


def test_byte_limit_is_exact(tmp_path: Path) -> None:
    """Letters outside ASCII count as UTF-8, and a listing of exactly the limit is read whole."""
    names = write(tmp_path, 10, 52_000)
    write_skill(tmp_path / "s000", description="é" * 900)
    blanks = 50_000
    for excess in (None, None, 0, 1):  # the size of the file is in its entry, too
        write_files(tmp_path, {"s009/SKILL.md": skill_md("s009", f"note: {'x' * blanks}")})
        skills = load_registry(tmp_path).snapshot.skills
        size = sum(json_bytes(sep2640.entry(skills[name])) for name in names)
        if excess is not None:
            assert size == LIMIT + excess
            with native_host(tmp_path) as (wire, instructions):
                assert read_like_claude_code(wire) == names[: 10 - excess]
                assert listed_in(instructions) == ["s009"][:excess]
        blanks += LIMIT + (excess or 0) - size + (excess == 0)


def test_entries_are_measured_once_for_each_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 103)
    measured: list[str] = []
    entry = listing.table.entry
    monkeypatch.setattr(
        listing.table,
        "entry",
        lambda context, dialects: measured.append(context.skill.path) or entry(context, dialects),
    )
    with native_host(tmp_path) as (wire, _):
        for method in ("tools/list", "prompts/list", "server/discover", "tools/list"):
            wire.request(method)
        assert len(measured) == 100


def test_each_principal_gets_tools_for_its_own_listing(tmp_path: Path) -> None:
    write(tmp_path, 103)
    few, many = (Pattern("s00*"),), (Pattern("**"),)
    grants = Grants([Grant(("token:ann",), few), Grant(("token:bob",), many)], local=False)
    views, settings = Views(load_registry(tmp_path), grants), Settings()
    counts: list[int] = []
    for name in ("ann", "bob"):
        skill_set = views.for_principal(Principal("token", name))
        host = listing.host_listing(skill_set, settings, "claude-code", {EXTENSION: {}})
        assert host is not None
        counts.append(len({*skill_set.snapshot.skills} - host.shown(skill_set.snapshot)))
    assert counts == [0, 3]


# Preferred skills come first


def pages_of(wire: Direct, method: str, key: str) -> Iterator[Sequence[str]]:
    cursor: Mapping[str, Any] = {}
    while True:
        page = wire.request(method, cursor)
        yield [str(re.search(r"s\d{3}", json.dumps(entry))[0]) for entry in page[key]]  # type: ignore[index]
        if "nextCursor" not in page:
            return
        cursor = {"cursor": page["nextCursor"]}


@pytest.mark.requirement("S40-22")
@each_row("method", ["skills/list", "resources/list"])
def test_preferred_skills_come_first_and_each_skill_once(tmp_path: Path, method: str) -> None:
    write(tmp_path, 10, s008="tags: [team]", s003="metadata: {tags: team}")
    how: dict[str, Any] = {"preferred_tags": ("team",), "preferred_paths": ("s006", "gone"), "page_size": 2}
    with dispatching(tmp_path, **how) as wire:
        seen = [*pages_of(wire, method, method.partition("/")[0])]
    first = ["s003", "s006", "s008"]
    others = [f"s{number:03}" for number in (0, 1, 2, 4, 5, 7, 9)]
    assert [name for page in seen for name in page] == first + others
    assert {len(page) for page in seen} == {2}


@pytest.mark.requirement("S40-22", "S76-5")
def test_changes_between_pages_neither_skip_nor_repeat_others(tmp_path: Path) -> None:
    write(tmp_path, 10, s002="tags: [team]", s008="tags: [team]")
    registry = Registry([tmp_path])
    registry.load()
    with dispatching(registry=registry, preferred_tags=("team",), page_size=3) as wire:
        pages = pages_of(wire, "skills/list", "skills")
        assert [*next(pages)] == ["s002", "s008", "s000"]
        (tmp_path / "s000/SKILL.md").unlink()  # the skill of the cursor
        (tmp_path / "s002/SKILL.md").unlink()
        write_files(tmp_path, {"s055/SKILL.md": skill_md("s055"), "s001x/SKILL.md": skill_md("s001x", "tags: [team]")})
        registry.refresh()
        later = ["s001", *(f"s{number:03}" for number in (3, 4, 5, 6, 7, 9)), "s055"]
        assert [name for page in pages for name in page] == later


def test_order_of_a_principal_does_not_show_what_others_use(tmp_path: Path) -> None:
    write(tmp_path, 3)
    registry = load_registry(tmp_path)
    granted = Views(registry, Grants([Grant(("*",), (Pattern("s00*"),))], local=False)).for_principal(None)
    settings = Settings(preferred_paths=("s002",))
    for skill_set, first in ((registry, "s002"), (granted, "s000")):
        skills, _ = listing.order_of(skill_set, settings).page(skill_set.snapshot, 1)
        assert [skill.path for skill in skills] == [first]
