"""Log of a registry: the first scan, then each change and problem."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from catalog.forest import Log, Patch, load_registry, skill_md, skills, unprivileged_user, write_files
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.report import report_to_log
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.format import yaml_reader
from mcp_skills_server.model import Changes, Standing
from mcp_skills_server.provenance.lock import LockedSource, Pins


@pytest.fixture(autouse=True)
def info_level(caplog: Log) -> None:
    caplog.set_level("INFO", "mcp_skills_server")


def reported(*roots: Path, limits: Limits | None = None) -> Registry:
    """Return a loaded registry that reports to the log."""
    registry = Registry(roots, limits)
    report_to_log(registry)
    registry.load()
    return registry


def test_first_scan_is_summarized_in_one_line_even_without_skills(tmp_path: Path, caplog: Log) -> None:
    one, two = write_files(tmp_path / "one", skills("a", "b")), write_files(tmp_path / "two", {})
    reported(one, write_files(tmp_path / "three", skills("c")))
    registry = reported(two)
    write_files(two, skills("a"))
    registry.refresh()
    first = f"serving 3 skills from {one}, {tmp_path / 'three'}"
    assert caplog.messages == [first, f"serving 0 skills from {two}", "skill a: added"]


@pytest.mark.requirement("ASG-9", "ASG-17", "ASG-18", "X-2")
def test_skills_not_listed_are_logged_with_place_reason_and_remedy(tmp_path: Path, caplog: Log) -> None:
    colon = "---\nname: colon\ndescription: Use this: for tests\n---\n"  # a warning that unlists the skill
    write_files(tmp_path / "one", skills("good") | {"bad/SKILL.md": "x", "colon/SKILL.md": colon})
    write_files(tmp_path / "two", skills("good"))
    reported(tmp_path / "one", tmp_path / "two")
    first, summary, bad, unlisted, shadowed = caplog.messages
    assert first.startswith("serving 1 of 3 skills from ")
    assert summary == (
        "1 skill not listed, 1 skill not served: "
        "frontmatter-missing (1), yaml-colon (1); 'mcp-skills-server validate' explains each"
    )
    assert bad.startswith(f"{tmp_path}/one/bad/SKILL.md:1: ")
    assert "begin the file with a line" in bad
    assert unlisted.startswith(f"{tmp_path}/one/colon/SKILL.md:3: ")
    assert "[yaml-colon]" in unlisted
    assert shadowed.startswith(f"{tmp_path}/two/good: ")
    assert "[shadowed]" in shadowed


def test_skills_not_listed_are_counted_by_reason(tmp_path: Path, caplog: Log) -> None:
    numbers = {f"m{number}/SKILL.md": skill_md(f"m{number}", "metadata: {version: 1}") for number in range(1200)}
    odd = {f"o{number}/SKILL.md": skill_md("other", "license: 5") for number in range(2)}
    registry = load_registry(write_files(tmp_path, numbers | odd | skills("good")))
    report_to_log(registry)
    (line,) = [text for text in caplog.messages if "not listed" in text]
    reasons = "metadata-type (1,200), name-mismatch (2)"
    start = "1,202 skills not listed: "
    assert line.startswith(f"{start}{reasons}; 'mcp-skills-server validate'")
    caplog.clear()
    report_to_log(registry, least=Standing.LENIENT)  # a dialect that lists them
    assert "not listed" not in caplog.text


def refreshed(caplog: Log, registry: Registry) -> list[tuple[str, str]]:
    """Refresh a registry, and return the level and text of each line that it logs."""
    caplog.clear()
    registry.refresh()
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_added_changed_and_removed_skills_are_logged_in_one_line_each(tmp_path: Path, caplog: Log) -> None:
    registry = reported(write_files(tmp_path, skills("a", "b")))
    write_files(tmp_path, skills("new") | {f"a/{number}.md": "x" for number in range(5)})
    assert refreshed(caplog, registry) == [
        ("INFO", "skill a: changed (0.md added, 1.md added, 2.md added and 2 more)"),
        ("INFO", "skill new: added"),
    ]
    write_files(tmp_path, {"b/SKILL.md": skill_md("b", "license: x")})
    assert refreshed(caplog, registry) == [("INFO", "skill b: changed (SKILL.md)")]
    (tmp_path / "a/3.md").unlink()
    assert refreshed(caplog, registry) == [("INFO", "skill a: changed (3.md removed)")]
    shutil.rmtree(tmp_path / "new")
    (tmp_path / "a/SKILL.md").unlink()
    assert refreshed(caplog, registry) == [
        ("INFO", f"skill a: removed: {tmp_path}/a/SKILL.md is gone"),
        ("INFO", "skill new: removed: its folder is gone"),
    ]
    assert refreshed(caplog, registry) == []


def test_broken_edit_and_its_repair_are_logged_in_one_line_each(tmp_path: Path, caplog: Log) -> None:
    registry = reported(write_files(tmp_path, skills("a", "b")))
    write_files(tmp_path, {"a/SKILL.md": skill_md("other"), "b/SKILL.md": "x", "c/SKILL.md": "y"})
    expected = [
        ("skill a: now not listed: ", "[name-mismatch]"),
        ("skill b: now not served: ", "[frontmatter-missing]"),
        ("skill c: found, not served: ", "[frontmatter-missing]"),
    ]
    for (level, text), (begin, code) in zip(refreshed(caplog, registry), expected, strict=True):
        assert level == "WARNING"
        assert text.startswith(f"{begin}{tmp_path}")
        assert text.endswith(code)
    write_files(tmp_path, skills("a", "b", "c"))
    repaired = [text for _, text in refreshed(caplog, registry)]
    assert repaired[:3] == ["skill a: now listed", "skill b: now served", "skill c: now served"]
    assert [text.startswith(f"no longer: {tmp_path}/") for text in repaired[3:]] == [True] * 3


def test_problem_that_changes_no_skill_is_logged_without_a_notification(tmp_path: Path, caplog: Log) -> None:
    registry = reported(write_files(tmp_path / "one", skills("a")), write_files(tmp_path / "two", skills("b")))
    notified: list[Changes] = []
    registry.subscribe(notified.append)
    (tmp_path / "one/link").symlink_to(tmp_path / "two")
    ((level, text),) = refreshed(caplog, registry)
    assert level == "WARNING"
    assert "[link-outside]" in text
    (tmp_path / "one/link").unlink()
    ((level, text),) = refreshed(caplog, registry)
    assert level == "INFO"
    assert text.startswith(f"no longer: {tmp_path}/one/link: ")
    write_files(tmp_path, skills("two/a"))
    ((_, text),) = refreshed(caplog, registry)
    assert "[shadowed]" in text
    assert notified == []
    write_files(tmp_path, {"two/b/SKILL.md": skill_md("b", "odd: 1")})
    assert "[field-unknown]" in refreshed(caplog, registry)[1][1]
    write_files(tmp_path, {"two/b/SKILL.md": skill_md("b", "# a note", "odd: 1")})
    assert refreshed(caplog, registry) == [("INFO", "skill b: changed (SKILL.md)")], "the problem only moved"


def test_newly_shadowed_skill_is_logged_with_the_shadowing_one(tmp_path: Path, caplog: Log) -> None:
    registry = reported(write_files(tmp_path / "one", {}), write_files(tmp_path / "two", skills("a/b", "c")))
    write_files(tmp_path, skills("one/a"))
    (level, text), added = refreshed(caplog, registry)
    assert added == ("INFO", "skill a: added")
    assert level == "WARNING"
    assert text.startswith("skill a/b: removed: ")
    assert f"is hidden by {tmp_path}/one/a, which comes first" in text


def test_skill_refused_by_a_gate_is_logged_with_the_reason(tmp_path: Path, caplog: Log) -> None:
    unlocked = load_registry(write_files(tmp_path, skills("a", "b", "c")))
    digests = {path: unlocked.digest_over(skill) for path, skill in unlocked.snapshot.skills.items()}
    registry = Registry([tmp_path], gate=Pins({str(tmp_path): LockedSource("", "", digests)}))
    registry.load()
    report_to_log(registry)
    caplog.clear()
    write_files(tmp_path, {"a/more.md": "x", "b/SKILL.md": "no frontmatter"})
    (_, refused), (_, broken) = refreshed(caplog, registry)
    reason = "error: its files are not those that the lock file names"
    assert refused.startswith(f"skill a: removed: {tmp_path}/a: {reason}")
    assert broken.startswith(f"skill b: removed: {tmp_path}/b/SKILL.md")
    assert broken.endswith("[frontmatter-missing]")


def test_renamed_skill_and_skill_replaced_by_a_link_are_logged(tmp_path: Path, caplog: Log) -> None:
    top = write_files(tmp_path / "top", {"SKILL.md": skill_md("top")})
    other = write_files(tmp_path / "other", skills("a"))
    registry = reported(top, other, limits=Limits(links=False))
    write_files(top, {"SKILL.md": skill_md("renamed")})
    (other / "a").rename(tmp_path / "elsewhere")
    (other / "a").symlink_to(tmp_path / "elsewhere")
    texts = [text for _, text in refreshed(caplog, registry)]
    assert "skill top: removed: its path is renamed now" in texts
    assert f"skill a: removed: {other}/a is a link that is not followed" in texts


def test_removed_target_of_a_link_is_logged(tmp_path: Path, caplog: Log) -> None:
    """`npx skills remove` leaves such a link in the folders of other hosts."""
    write_files(tmp_path, skills(".agents/a"))
    root = write_files(tmp_path / "root", {})
    (root / "a").symlink_to(tmp_path / ".agents/a")
    registry = reported(root)
    shutil.rmtree(tmp_path / ".agents/a")
    assert refreshed(caplog, registry) == [("INFO", f"skill a: removed: {root}/a is a link that is not followed")]


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no seteuid")
def test_skills_that_become_unreadable_are_logged_with_that_reason(open_path: Path, caplog: Log) -> None:
    write_files(open_path, skills("a", "group/b", "group/c"))
    with unprivileged_user(open_path):
        registry = reported(open_path)
        (open_path / "a").chmod(0)
        (open_path / "group").chmod(0o444)
        denied = refreshed(caplog, registry)
        (open_path / "a").chmod(0o755)
        (open_path / "group").chmod(0o755)
        allowed = refreshed(caplog, registry)
    for path, (level, text) in zip(("a", "group/b", "group/c"), denied[:3], strict=True):
        assert level == "WARNING"
        reason = "error: the directory cannot be opened"
        assert text.startswith(f"skill {path}: removed: {open_path}/{path}: {reason}")
        assert ("INFO", f"skill {path}: added") in allowed


def test_many_differences_are_logged_as_twenty_lines_and_a_count(tmp_path: Path, caplog: Log) -> None:
    registry = reported(write_files(tmp_path, skills(*(f"old{number}" for number in range(400)))))
    shutil.rmtree(tmp_path)
    write_files(tmp_path, skills(*(f"new{number}" for number in range(600))) | {"bad/SKILL.md": "x"})
    found = refreshed(caplog, registry)
    assert len(found) == 21
    assert found[0][1].startswith("skill bad: found, not served: ")
    assert "and 981 more skills and problems; skills: 601 added, 400 removed, 0 changed; " in found[-1][1]


def test_first_scan_logs_twenty_problems_and_a_count(tmp_path: Path, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(yaml_reader, "IS_FAST", False)
    registry = reported(write_files(tmp_path / "root", {f"bad{number}/SKILL.md": "x" for number in range(25)}))
    assert "lacks its C parser" in caplog.messages[0]
    assert caplog.messages[2].startswith("25 skills not served: frontmatter-missing (25); ")
    assert len(caplog.messages) == 24
    assert caplog.messages[-1] == "and 5 more problems; 'mcp-skills-server validate' shows all"
    shutil.rmtree(tmp_path / "root")
    ((_, text),) = refreshed(caplog, registry)
    assert "serving what was read before" in text
    assert refreshed(caplog, registry) == []


def test_log_of_changes_is_rate_limited(tmp_path: Path, caplog: Log) -> None:
    """The limit is 100 lines a minute; the other lines are counted."""
    write_files(tmp_path, skills("one", "two"))
    clock = [0.0]
    registry = Registry([tmp_path])
    report_to_log(registry, lambda: clock[0])
    registry.load()
    caplog.clear()

    def edit(count: int) -> None:
        for number in range(count):
            write_files(tmp_path, {"one/notes.md": f"{clock[0]} {number} {len(caplog.messages)}"})
            registry.refresh()

    edit(98)
    write_files(tmp_path, skills(*(f"new{number}" for number in range(25))))
    edit(1)
    assert len(caplog.messages) == 101
    assert caplog.messages[100].startswith("and 24 more skills and problems")
    write_files(tmp_path, skills(*(f"newer{number}" for number in range(30))))
    edit(50)
    assert len(caplog.messages) == 101
    clock[0] = 60.0
    edit(1)
    assert caplog.messages[101] == "80 more changes were not logged (limit: 100 lines a minute)"
    assert caplog.messages[102].startswith("skill one: changed")
    assert len(caplog.messages) == 103
