"""What is printed of many problems: the first of a kind, and how many more there are."""

from __future__ import annotations

import json
from pathlib import Path

from commands.calls import invoke
from mcp_skills_server.codes import problem
from mcp_skills_server.commands.look import shortened
from mcp_skills_server.model import Problem
from tables import each_row
from wire import write_skill

MOST = 20


def of(skill: str, count: int, code: str = "link-outside", folder: str = "top") -> list[Problem]:
    return [problem(code, "it is one").at(f"{folder}/{skill}/d/{number:05}", skill) for number in range(count)]


@each_row(
    "few",
    [
        *(of("a", count) for count in (0, 1, MOST, MOST + 1)),
        [*of("a", MOST), *of("b", MOST), *of("a", MOST, "file-irregular")],
    ],
)
def test_a_few_of_each_skill_and_kind_are_all_there(few: list[Problem]) -> None:
    assert list(shortened(few)) == few


def test_of_many_the_first_stand_there_and_the_count_of_the_others_in_their_place() -> None:
    many, others = of("a", 40_000), of("b", 3)
    *first, rest, one, two, three = shortened([*many, *others])
    assert first == many[:MOST] and [one, two, three] == others
    assert str(rest) == (
        "top/a/d: warning: 39,980 more problems of this kind; '--format json' shows each [link-outside]"
    )
    assert rest.skill == "a"
    *_, rest = shortened([*of("", 30), *of("", 30, folder="/other")])
    assert rest.path == "." and rest.message.startswith("40 more ")


@each_row("form", ["text", "github", "json"])
def test_a_skill_of_many_bad_files_is_a_few_lines(tmp_path: Path, form: str) -> None:
    folder = write_skill(tmp_path / "a")
    for number in range(600):
        (folder / f"link-{number:03}").symlink_to("/")
    done = invoke("validate", tmp_path, "--format", form)
    if form == "json":
        assert len(json.loads(done.stdout)["problems"]) == 600
        return
    lines = done.stdout.splitlines()
    assert len(lines) <= MOST + 2 and "600 warnings" in done.output
    assert "link-019" in lines[MOST - 1] and "580 more problems of this kind" in lines[MOST]


@each_row(("command", "folder", "name"), [("show", "a", ["a"]), ("list", ".", [])])
def test_other_commands_print_no_more(tmp_path: Path, command: str, folder: str, name: list[str]) -> None:
    for each in ("a", "b"):
        write_skill(tmp_path / each)
    for number in range(60):
        (tmp_path / folder / f"link-{number:02}").symlink_to("/")
    lines = invoke(command, tmp_path, *name).output.splitlines()
    found = [line for line in lines if "[link-outside]" in line]
    assert len(found) == MOST + 1 and "40 more problems of this kind" in found[-1]
