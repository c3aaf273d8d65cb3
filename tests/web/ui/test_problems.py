"""The view of problems, with the lines that they are about."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from click.testing import CliRunner

from catalog.forest import skill_md, write_files
from mcp_skills_server.cli import cli
from mcp_skills_server.codes import problem
from mcp_skills_server.web.ui.pages import problems
from tables import each_row
from web.http_wire import bearer_header, token_file
from web.in_process import app_serving
from web.test_grants import ANN, BOB, configure
from web.ui.serving import get, grant, list_pages, skill_paths, text_of, visible_text
from wire import ROOT, write_skill

BROKEN = ROOT / "fixtures" / "broken"


def test_excerpt_has_two_lines_before_and_after_its_place() -> None:
    raw = b"one\ntwo\r\nthree\nfour\nfive\nsix\n"
    assert [*problems.lines_around(raw, 2)] == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]
    assert [number for number, _ in problems.lines_around(raw, 6)] == [4, 5, 6, 7]
    assert problems.lines_around(raw, 9) == ()
    assert problems.lines_around(b"\xff\n", 1)[0][1] == "\ufffd"


@each_row(
    ("path", "file"),
    [("p/a/SKILL.md", "SKILL.md"), ("p/a/x/y.md", "x/y.md"), ("p/a", ""), ("p/a/gone.md", ""), ("b/SKILL.md", "")],
)
def test_problem_is_assigned_to_a_file_of_its_skill(path: str, file: str) -> None:
    assert problems.file_of(problem("body-empty", "x").at(path, "a"), "p/a", {"SKILL.md": 1, "x/y.md": 1}) == file


def test_problems_equal_those_of_validate_and_mark_their_lines() -> None:
    with app_serving(BROKEN, "--ui") as server:
        result = CliRunner().invoke(cli, ["validate", str(BROKEN), "--format", "json"])
        expected = Counter(problem["code"] for problem in json.loads(result.stdout)["problems"])
        reply = get(server, "/ui/problems")
        assert reply.headers["Refresh"] is None, "validation has finished"
        page = text_of(reply)
        options = re.findall(r'<option value="([a-z0-9-]+)">[a-z0-9-]+ \((\d+)\)', page)
        assert {code: int(count) for code, count in options} == expected
        alert = re.search(r'<p class="alert"><a href="/ui/problems">[^:]*: ([^<]*)<', text_of(get(server, "/ui/")))
        assert alert
        assert {part.partition(" (")[0] for part in alert[1].split(", ")} == set(expected)
        hostile = text_of(get(server, "/ui/skills/pipe-to-shell"))
        assert hostile.index('id="problems"') < hostile.index('id="seen"') and "pipe-to-shell</span>" in hostile
        error = text_of(get(server, "/ui/problems?severity=error&code=yaml-syntax"))
        assert error.count('<li class="skill">') == 1 and error.count("<mark>") == 1
        line = re.search(r"yaml-syntax / SKILL\.md :(\d+)", visible_text(error))
        assert line and f'<tr class="it"><th scope="row" class="number">{line[1]}</th>' in error
        assert str(BROKEN) not in error, "folders are shown to administrators only"
        assert text_of(get(server, "/ui/problems?severity=bad&from=-1")) == page, "invalid filters are ignored"
        none = visible_text(get(server, "/ui/problems?code=no-such"))
        assert "0 problems" in none and "No problems." in none
        for part in list_pages(server, "/ui/"):
            for path in skill_paths(part):
                assert get(server, f"/ui/skills/{path}").status == 200, path


def test_skills_that_are_alike_are_notes(tmp_path: Path) -> None:
    for path, description in (
        ("pdf-forms", "Fills forms of PDF files"), ("pdf-filler", "Fills forms of PDF files and prints them"),
        ("one/tea", "Brews green tea."), ("two/tea", "Brews green tea."), ("alone", "Paints a fence."),
        ("hr/secret", "Fills forms of PDF files at once"),
    ):  # fmt: skip
        write_skill(tmp_path / "skills" / path, description=description)
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    grants = grant("bob", "pdf-*", "*/tea", "alone") + grant("ann", "**", may=["admin"])
    with app_serving("--config", configure(tmp_path, grants), "--ui") as server:

        def notes(token: str) -> tuple[list[str], str]:
            reply = get(server, "/ui/problems?severity=note", **bearer_header(token))
            return skill_paths(reply), visible_text(reply)

        paths, text = notes(BOB)
        assert sorted(paths) == ["one/tea", "pdf-filler", "pdf-forms", "two/tea"]
        assert "100% of the words that decide are also those of 'two/tea'" in text and "secret" not in text
        assert "description-overlap (4)" in text
        assert "hr/secret" in notes(ANN)[0]
        assert "description-overlap" not in visible_text(get(server, "/ui/problems", **bearer_header(ANN)))


def test_problems_are_paginated_and_escaped_with_hidden_characters_visible(tmp_path: Path) -> None:
    paths = [f"skill-{number:03}" for number in range(120)]
    hostile = "---\nname: b\ndescription: x ignore\u200b all <script>window.hit=1</script>\n---\n\ntext\n"
    write_files(tmp_path, {f"{path}/SKILL.md": skill_md("other") for path in paths} | {f"{paths[0]}/SKILL.md": hostile})
    with app_serving(tmp_path, "--ui") as server:
        pages = [*list_pages(server, "/ui/problems?code=name-mismatch")]
        assert skill_paths("".join(pages)) == paths
        assert "from number 101" in visible_text(pages[-1]) and "Previous" in visible_text(pages[-1])
        page = text_of(get(server, "/ui/problems"))
        assert '<span class="hidden">U+200B</span>' in page and "<script>window" not in page
