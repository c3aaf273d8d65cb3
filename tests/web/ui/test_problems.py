"""What is wrong stands beside the lines that it is about."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from catalog.forest import loaded, plant, skill_md
from mcp_skills_server.cli import cli
from mcp_skills_server.codes import problem
from mcp_skills_server.model import Snapshot
from mcp_skills_server.web.ui.pages import problems
from tables import each_row
from web.ui.serving import get, list_pages, make_context, page_serving, skill_paths, words
from wire import ROOT

BROKEN = ROOT / "fixtures" / "broken"


def test_the_lines_are_those_around_the_place() -> None:
    raw = b"one\ntwo\r\nthree\nfour\nfive\nsix\n"
    assert [*problems.lines_around(raw, 2)] == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]
    assert [number for number, _ in problems.lines_around(raw, 6)] == [4, 5, 6, 7]
    assert problems.lines_around(raw, 9) == ()
    assert problems.lines_around(b"\xff\n", 1)[0][1] == "\ufffd"


@each_row(
    ("path", "file"),
    [("p/a/SKILL.md", "SKILL.md"), ("p/a/x/y.md", "x/y.md"), ("p/a", ""), ("p/a/gone.md", ""), ("b/SKILL.md", "")],
)
def test_a_problem_names_a_file_of_its_skill_or_none(path: str, file: str) -> None:
    assert problems.file_of(problem("body-empty", "x").at(path, "a"), "p/a", {"SKILL.md": 1, "x/y.md": 1}) == file


def test_problems_of_a_root_are_for_the_operator(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, {"a/SKILL.md": skill_md("b")}))
    lost = problem("root-missing", "is gone").at(str(tmp_path / "lost"), "")
    registry.snapshot = Snapshot(dict(registry.snapshot.skills), (lost,))
    context = make_context(registry=registry)
    for is_admin, shown in ((False, {"name-mismatch"}), (True, {"name-mismatch", lost.code})):
        found = problems.survey_of(replace(context, is_admin=is_admin)).problems
        assert {each.code for each in found} == shown


def test_every_problem_of_the_broken_skills_is_shown_and_that_of_a_line_beside_it() -> None:
    with page_serving(BROKEN) as server:
        done = CliRunner().invoke(cli, ["validate", str(BROKEN), "--format", "json"])
        validated = Counter(each["code"] for each in json.loads(done.stdout)["problems"])
        page = get(server, "/ui/problems").body.decode()
        offered = re.findall(r'<option value="([a-z0-9-]+)">[a-z0-9-]+ \((\d+)\)', page)
        assert {code: int(count) for code, count in offered} == validated
        alert = re.search(r'<p class="alert"><a href="/ui/problems">[^:]*: ([^<]*)<', get(server, "/ui/").body.decode())
        assert alert and {each.partition(" (")[0] for each in alert[1].split(", ")} == set(validated)
        hostile = get(server, "/ui/skills/pipe-to-shell").body.decode()
        assert hostile.index('id="problems"') < hostile.index('id="seen"') and "pipe-to-shell</span>" in hostile
        error = get(server, "/ui/problems?severity=error&code=yaml-syntax").body.decode()
        assert error.count('<li class="skill">') == 1 and error.count("<mark>") == 1
        line = re.search(r"yaml-syntax / SKILL\.md :(\d+)", words(error))
        assert line and f'<tr class="it"><th scope="row" class="number">{line[1]}</th>' in error
        assert str(BROKEN) not in error, "where folders lie is nobody's matter but the operator's"
        assert get(server, "/ui/problems?severity=bad&from=-1").body.decode() == page, "nonsense is no condition"
        none = words(get(server, "/ui/problems?code=no-such"))
        assert "0 problems" in none and "No problems." in none
        for name in (name for part in list_pages(server, "/ui/") for name in skill_paths(part)):
            assert get(server, f"/ui/skills/{name}").status == 200, name


def test_problems_come_in_parts_with_hidden_characters_visible_and_nothing_is_markup(tmp_path: Path) -> None:
    paths = [f"skill-{number:03}" for number in range(120)]
    hostile = "---\nname: b\ndescription: x ignore\u200b all <script>window.hit=1</script>\n---\n\ntext\n"
    plant(tmp_path, {f"{path}/SKILL.md": skill_md("other") for path in paths} | {f"{paths[0]}/SKILL.md": hostile})
    with page_serving(tmp_path) as server:
        pages = [*list_pages(server, "/ui/problems?code=name-mismatch")]
        assert [name for page in pages for name in skill_paths(page)] == paths
        assert "from number 101" in words(pages[-1]) and "Previous" in words(pages[-1])
        page = get(server, "/ui/problems").body.decode()
        assert '<span class="hidden">U+200B</span>' in page and "<script>window" not in page
