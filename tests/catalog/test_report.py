"""The log: what an operator reads of the first scan and of every error after it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from catalog.forest import Log, Patch, as_nobody, loaded, plant, skill_md, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.report import report_to_log
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.format import yaml_reader
from mcp_skills_server.model import Changes
from mcp_skills_server.provenance.lock import Pins
from wire import serving


@pytest.fixture(autouse=True)
def hears_all(caplog: Log) -> None:
    caplog.set_level("INFO", "mcp_skills_server")


def reported(*roots: Path, limits: Limits | None = None) -> Registry:
    registry = Registry(roots, limits)
    report_to_log(registry)
    registry.load()
    return registry


def test_the_first_scan_is_summed_up_in_one_line_also_if_there_is_no_skill(tmp_path: Path, caplog: Log) -> None:
    one, two = plant(tmp_path / "one", skills("a", "b")), plant(tmp_path / "two", {})
    reported(one, plant(tmp_path / "three", skills("c")))
    registry = reported(two)
    plant(two, skills("a"))
    registry.refresh()
    first = f"serving 3 skills from {one}, {tmp_path / 'three'}"
    assert caplog.messages == [first, f"serving 0 skills from {two}", "skill a: added"]


def test_of_several_roots_each_that_holds_no_skill_is_named(tmp_path: Path, caplog: Log) -> None:
    plant(tmp_path, {"empty/notes.md": "x", "hidden/.x/a/SKILL.md": skill_md("a")} | skills("full/b"))
    reported(*(tmp_path / name for name in ("empty", "hidden", "full")))
    first, dotted, empty = caplog.messages
    assert first.startswith("serving 1 skill from ") and dotted.startswith(f"{tmp_path}/hidden: 1 skill in folders")
    assert empty == f"{tmp_path}/empty: no skill: no folder there has a SKILL.md"


@pytest.mark.requirement("ASG-9", "ASG-17", "ASG-18", "X-2")
def test_what_is_not_served_is_told_with_place_reason_and_mend(tmp_path: Path, caplog: Log) -> None:
    colon = "---\nname: colon\ndescription: Use this: for tests\n---\n"  # a warning, and yet in no listing
    plant(tmp_path / "one", skills("good") | {"bad/SKILL.md": "x", "colon/SKILL.md": colon})
    plant(tmp_path / "two", skills("good"))
    reported(tmp_path / "one", tmp_path / "two")
    first, *seen = caplog.messages
    assert first.startswith("serving 1 skill from ")
    assert [message.split(": ", 1)[0] for message in seen] == [
        f"{tmp_path / 'one/bad/SKILL.md'}:1",
        f"{tmp_path / 'one/colon/SKILL.md'}:3",
        str(tmp_path / "two/good"),
    ]
    assert "begin the file with a line" in seen[0] and "[yaml-colon]" in seen[1] and "[shadowed]" in seen[2]


def lines(caplog: Log, registry: Registry) -> list[tuple[str, str]]:
    caplog.clear()
    registry.refresh()
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_skill_that_comes_changes_and_goes_is_one_line_each(tmp_path: Path, caplog: Log) -> None:
    registry = reported(plant(tmp_path, skills("a", "b")))
    plant(tmp_path, skills("new") | {f"a/{number}.md": "x" for number in range(5)})
    assert lines(caplog, registry) == [
        ("INFO", "skill a: changed (0.md added, 1.md added, 2.md added and 2 more)"),
        ("INFO", "skill new: added"),
    ]
    plant(tmp_path, {"b/SKILL.md": skill_md("b", "license: x")})
    assert lines(caplog, registry) == [("INFO", "skill b: changed (SKILL.md)")]
    (tmp_path / "a/3.md").unlink()
    assert lines(caplog, registry) == [("INFO", "skill a: changed (3.md removed)")]
    shutil.rmtree(tmp_path / "new")
    (tmp_path / "a/SKILL.md").unlink()
    assert lines(caplog, registry) == [
        ("INFO", f"skill a: removed: {tmp_path}/a/SKILL.md is gone"),
        ("INFO", "skill new: removed: its folder is gone"),
    ]
    assert lines(caplog, registry) == []


def test_a_broken_edit_is_one_line_with_the_reason_and_so_is_its_end(tmp_path: Path, caplog: Log) -> None:
    registry = reported(plant(tmp_path, skills("a", "b")))
    plant(tmp_path, {"a/SKILL.md": skill_md("other"), "b/SKILL.md": "x", "c/SKILL.md": "y"})
    found = lines(caplog, registry)
    assert [(level, text.split(f": {tmp_path}")[0], text[-40:].partition("[")[2]) for level, text in found] == [
        ("WARNING", "skill a: no longer listed", "name-mismatch]"),
        ("WARNING", "skill b: no longer served", "frontmatter-missing]"),
        ("WARNING", "skill c: found, not served", "frontmatter-missing]"),
    ]
    plant(tmp_path, skills("a", "b", "c"))
    found = lines(caplog, registry)
    assert [text for _, text in found][:3] == [f"skill {name}: served now" for name in "abc"]
    assert [text.startswith(f"no longer: {tmp_path}/") for _, text in found] == [False] * 3 + [True] * 3


def test_a_problem_that_comes_or_goes_alone_is_one_line_and_no_news_to_clients(tmp_path: Path, caplog: Log) -> None:
    registry = reported(plant(tmp_path / "one", skills("a")), plant(tmp_path / "two", skills("b")))
    heard: list[Changes] = []
    registry.subscribe(heard.append)
    (tmp_path / "one/link").symlink_to(tmp_path / "two")
    ((level, text),) = lines(caplog, registry)
    assert level == "WARNING" and "[link-outside]" in text
    (tmp_path / "one/link").unlink()
    ((level, text),) = lines(caplog, registry)
    assert level == "INFO" and text.startswith(f"no longer: {tmp_path}/one/link: ")
    plant(tmp_path, skills("two/a"))
    ((_, text),) = lines(caplog, registry)
    assert "[shadowed]" in text and heard == []
    plant(tmp_path, {"two/b/SKILL.md": skill_md("b", "odd: 1")})
    assert "[field-unknown]" in lines(caplog, registry)[1][1]
    plant(tmp_path, {"two/b/SKILL.md": skill_md("b", "# a note", "odd: 1")})
    assert lines(caplog, registry) == [("INFO", "skill b: changed (SKILL.md)")], "it only moved to another line"


def test_a_skill_that_is_hidden_later_is_one_line_that_says_by_what(tmp_path: Path, caplog: Log) -> None:
    registry = reported(plant(tmp_path / "one", {}), plant(tmp_path / "two", skills("a/b", "c")))
    plant(tmp_path, skills("one/a"))
    (level, text), (_, added) = lines(caplog, registry)
    assert level == "WARNING" and added == "skill a: added"
    assert text.startswith("skill a/b: removed: ") and f"is hidden by {tmp_path}/one/a, which comes first" in text


def test_a_skill_that_a_gate_refuses_is_removed_for_that_reason(tmp_path: Path, caplog: Log) -> None:
    """It was said to go by another path, or to lie behind a link."""
    unlocked = loaded(plant(tmp_path, skills("a", "b", "c")))
    digests = {path: unlocked.digest_over(skill) for path, skill in unlocked.snapshot.skills.items()}
    registry = Registry([tmp_path], gate=Pins({str(tmp_path): digests}, {}))
    registry.load()
    report_to_log(registry)
    caplog.clear()
    plant(tmp_path, {"a/more.md": "x", "b/SKILL.md": "no frontmatter"})
    (_, refused), (_, broken) = lines(caplog, registry)
    said = f"skill a: removed: {tmp_path}/a: error: its files are not those that the lock file names"
    assert refused.startswith(said)
    assert broken.startswith(f"skill b: removed: {tmp_path}/b/SKILL.md") and broken.endswith("[frontmatter-missing]")


def test_a_skill_that_moves_or_becomes_a_link_is_told_so(tmp_path: Path, caplog: Log) -> None:
    top = plant(tmp_path / "top", {"SKILL.md": skill_md("top")})
    other = plant(tmp_path / "other", skills("a"))
    registry = reported(top, other, limits=Limits(links=False))
    plant(top, {"SKILL.md": skill_md("renamed")})
    (other / "a").rename(tmp_path / "elsewhere")
    (other / "a").symlink_to(tmp_path / "elsewhere")
    said = [text for _, text in lines(caplog, registry)]
    assert "skill top: removed: its path is renamed now" in said
    assert f"skill a: removed: {other}/a is a link now" in said


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no seteuid")
def test_a_skill_that_loses_its_permission_is_one_line_that_says_so(open_path: Path, caplog: Log) -> None:
    plant(open_path, skills("a", "group/b", "group/c"))
    with as_nobody(open_path):
        registry = reported(open_path)
        (open_path / "a").chmod(0)
        (open_path / "group").chmod(0o444)
        found = lines(caplog, registry)
        (open_path / "a").chmod(0o755)
        (open_path / "group").chmod(0o755)
        back = lines(caplog, registry)
    paths = ("a", "group/b", "group/c")
    assert [(level, text.partition(": error: the directory cannot be opened")[0]) for level, text in found[:3]] == [
        ("WARNING", f"skill {path}: removed: {open_path}/{path}") for path in paths
    ]
    assert {text for _, text in back} >= {f"skill {path}: added" for path in paths}


def test_thousands_of_differences_are_the_first_twenty_and_a_count(tmp_path: Path, caplog: Log) -> None:
    registry = reported(plant(tmp_path, skills(*(f"old{number}" for number in range(400)))))
    shutil.rmtree(tmp_path)
    plant(tmp_path, skills(*(f"new{number}" for number in range(600))) | {"bad/SKILL.md": "x"})
    found = lines(caplog, registry)
    assert len(found) == 21
    assert found[0][1].startswith("skill bad: found, not served: ")
    assert "and 981 more skills and problems; skills: 601 added, 400 removed, 0 changed; " in found[-1][1]


def test_a_server_says_on_stderr_what_came_and_went(tmp_path: Path) -> None:
    with serving(plant(tmp_path, skills("b"))) as wire:
        wire.every_skill()
        for change in (skills("new"), {"b/SKILL.md": "x"}):
            plant(tmp_path, change)
            wire.until("notifications/skills/list_changed")
        assert wire.close() == 0
        seen = wire.stderr.decode()
    assert "INFO: skill new: added\n" in seen and "WARNING: skill b: no longer served: " in seen


def test_many_errors_are_counted_and_a_root_that_goes_is_told(tmp_path: Path, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(yaml_reader, "IS_FAST", False)
    registry = reported(plant(tmp_path / "root", {f"bad{number}/SKILL.md": "x" for number in range(25)}))
    assert "lacks its C parser" in caplog.messages[0] and len(caplog.messages) == 23
    assert caplog.messages[-1] == "and 5 more problems; 'mcp-skills-server validate' shows all"
    shutil.rmtree(tmp_path / "root")
    ((_, text),) = lines(caplog, registry)
    assert "serving what was read before" in text and lines(caplog, registry) == []


def test_a_writer_without_rest_fills_no_log(tmp_path: Path, caplog: Log) -> None:
    """A hundred lines a minute and a count of the others, whatever is written into the folder."""
    plant(tmp_path, skills("one", "two"))
    clock = [0.0]
    registry = Registry([tmp_path])
    report_to_log(registry, lambda: clock[0])
    registry.load()
    caplog.clear()

    def edit(count: int) -> None:
        for number in range(count):
            plant(tmp_path, {"one/notes.md": f"{clock[0]} {number} {len(caplog.messages)}"})
            registry.refresh()

    edit(98)
    plant(tmp_path, skills(*(f"new{number}" for number in range(25))))
    edit(1)
    assert len(caplog.messages) == 101 and caplog.messages[100].startswith("and 24 more skills and problems")
    plant(tmp_path, skills(*(f"newer{number}" for number in range(30))))
    edit(50)
    assert len(caplog.messages) == 101
    clock[0] = 60.0
    edit(1)
    assert caplog.messages[101] == "80 more changes were not logged (limit: 100 lines a minute)"
    assert caplog.messages[102].startswith("skill one: changed") and len(caplog.messages) == 103
