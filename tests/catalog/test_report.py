"""The log: what an operator reads of the first scan and of every error after it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from catalog.forest import plant, skill_md, skills
from mcp_skills_server.catalog import report
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.report import report_to_log


@pytest.fixture(autouse=True)
def hears_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mcp_skills_server")


def reported(*roots: Path) -> Registry:
    registry = Registry(roots)
    report_to_log(registry)
    registry.load()
    return registry


def test_the_first_scan_is_summed_up_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reported(plant(tmp_path / "one", skills("a", "b")), plant(tmp_path / "two", skills("c")))
    assert caplog.messages == [f"serving 3 skills from {tmp_path / 'one'}, {tmp_path / 'two'}"]


def test_that_there_is_no_skill_is_told_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = reported(tmp_path)
    assert caplog.messages == [f"serving 0 skills from {tmp_path}"]
    plant(tmp_path, skills("a"))
    registry.refresh()
    assert len(caplog.messages) == 1


@pytest.mark.requirement("ASG-9", "ASG-17", "ASG-18", "X-2")
def test_what_is_not_served_is_told_with_place_reason_and_mend(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path / "one", skills("good") | {"bad/SKILL.md": "x"})
    plant(tmp_path / "two", skills("good"))
    reported(tmp_path / "one", tmp_path / "two")
    first, *told = caplog.messages
    assert first.startswith("serving 1 skills")
    assert [message.split(": ", 1)[0] for message in told] == [
        f"{tmp_path / 'one/bad/SKILL.md'}:1",
        str(tmp_path / "two/good"),
    ]
    assert "begin the file with a line" in told[0] and "[shadowed]" in told[1]


def test_an_edit_is_told_only_when_it_brings_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = reported(plant(tmp_path, skills("a", "b")))
    caplog.clear()
    plant(tmp_path, {"a/SKILL.md": skill_md("a", "version: 2")})
    registry.refresh()
    assert caplog.messages == []
    plant(tmp_path, {"a/SKILL.md": skill_md("other", "version: 3")})
    registry.refresh()
    assert ["[name-mismatch]" in message for message in caplog.messages] == [True]


def test_a_root_that_goes_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = reported(plant(tmp_path / "root", skills("a")))
    caplog.clear()
    shutil.rmtree(tmp_path / "root")
    registry.refresh()
    registry.refresh()
    assert len(caplog.messages) == 1 and "serving what was read before" in caplog.messages[0]


def test_many_errors_are_cut_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reported(plant(tmp_path, {f"bad{number}/SKILL.md": "x" for number in range(25)}))
    assert len(caplog.messages) == 22
    assert caplog.messages[-1] == "and 5 more; 'mcp-skills-server validate' tells all"


def test_a_slow_yaml_parser_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "IS_FAST", False)
    reported(tmp_path)
    assert "lacks its C parser" in caplog.messages[0]
