"""Limits of the input, the stored history and the lists of the web UI."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
from starlette.datastructures import QueryParams
from starlette.requests import Request

from catalog.forest import load_registry, skill_md, write_files
from mcp_skills_server.codes import problem
from mcp_skills_server.model import Skill, Snapshot
from mcp_skills_server.runtime.search import Hit
from mcp_skills_server.web.ui.context import start_of
from mcp_skills_server.web.ui.pages import catalogue, problems, skill, tools, triggers
from mcp_skills_server.web.ui.pages.history import Revisions, SkillRevision
from mcp_skills_server.web.ui.sign_in import form_of
from tables import each_row
from web.ui.serving import make_context, render_view, skill_paths, visible_text
from wire import write_skill


@each_row(
    ("most", "over"),
    [("a=" + "x" * 65_534, "a=" + "x" * 65_535), ("&".join(["a=b"] * 10), "&".join(["a=b"] * 11)), ("a=b", "a=\u00e4")],
)
def test_form_is_bounded_in_bytes_and_fields(most: str, over: str) -> None:
    def form(raw: bytes) -> dict[str, str] | None:
        async def receive() -> Any:
            return {"type": "http.request", "body": raw, "more_body": False}

        return anyio.run(form_of, Request({"type": "http", "method": "POST", "headers": []}, receive))

    assert (form(most.encode()) or {}).keys() == {"a"} and form(over.encode()) is None


def test_query_fields_are_parsed_within_bounds(tmp_path: Path) -> None:
    assert start_of({"from": "999999"}) == 999_999
    assert [start_of({"from": text}) for text in ("1000000", "-1", "\u00b2", "")] == [0, 0, 0, 0]
    for kind, text, value in (
        ("integer", "9" * 9, 999_999_999), ("integer", "9" * 10, "9" * 10), ("integer", "x", "x"), ("string", "1", "1"),
        ("array", " a, ,b", ["a", "b"]), ("boolean", "true", True), ("boolean", "no", False),
    ):  # fmt: skip
        assert tools._value(text, kind) == value
    cases = triggers.cases_of("\n".join(["x" * 2_001, " - y", "-", *map(str, range(19))]))
    assert len(cases) == 20
    assert [len(case.query) for case in cases[:2]] == [2_000, 1]
    assert [case.should_trigger for case in cases[:3]] == [True, False, True]
    page = render_view(tools.page, make_context(tmp_path), f"tool=skills_search&arg.query={'x' * 4_001}")
    assert f'"{"x" * 4_000}"' in page or f">{'x' * 4_000}<" in page


def test_history_is_bounded_in_lines_skills_revisions_and_bytes(tmp_path: Path) -> None:
    def skill_of(count: int) -> Skill:
        """Write a skill with a file of `count` lines."""
        write_skill(tmp_path / f"a{count}", lines_md="x\n" * count)
        registry.refresh()
        return registry.snapshot.skills[f"a{count}"]

    def revision_of(count: int) -> SkillRevision:
        """Note a change that adds `count` lines."""
        revisions._note(0.0, "a", None, empty)
        revisions._note(0.0, "a", empty, skill_of(count))
        return revisions.of("a")[0]

    registry = load_registry(tmp_path)
    revisions, empty = Revisions(registry), skill_of(0)
    headers = len(revision_of(10).lines) - 10
    for count, is_whole in ((500 - headers, True), (501 - headers, False)):
        assert len(revision_of(count).lines) == 500
        assert revision_of(count).is_whole is is_whole
    for number in range(1_001):
        revisions._note(float(number), f"s{number}", None, empty)
    assert [len(revisions.of(path)) for path in ("a", "s0", "s1", "s1000")] == [0, 0, 1, 1]
    for number in range(21):
        before, after = (None, empty) if number % 2 else (empty, None)
        revisions._note(float(number), "a", before, after)
    assert [revision.time for revision in revisions.of("a")] == [*range(20, 0, -1)]
    for size, is_kept in ((256 << 10, True), ((256 << 10) + 2, False)):
        assert (len(revisions._read(skill_of(size // 2))["lines.md"][0]) == size) is is_kept
    for size, kept in ((32 << 20, ["b"]), ((32 << 20) + 1, [])):
        revisions = Revisions(registry)
        revisions._keep("b", {"f": (bytes(size), False)})
        assert [*revisions._kept] == kept


def test_catalogue_lists_are_bounded(tmp_path: Path) -> None:
    tags = f"tags: {json.dumps([f't{number}' for number in range(201)])}"
    paths = [f"kubernetes-{number}" for number in range(7)]
    titles = [f"title: {title}" for title in ("Ships", paths[1])]
    files = {
        f"{path}/SKILL.md": skill_md(path, tags, *titles[number : number + 1]) for number, path in enumerate(paths)
    }
    registry = load_registry(write_files(tmp_path, files))
    root_problems = [problem("root-missing", "is gone").at(f"/{number}", "") for number in range(101)]
    registry.snapshot = Snapshot(dict(registry.snapshot.skills), tuple(root_problems))
    context = make_context(registry=registry)
    facets = catalogue._facets_of(context, problems.survey_of(context))
    assert (len(facets["tags"]), len(facets["places"]), facets["left_out"]) == (200, 100, 0)
    assert facets["sources"] == [("0", tmp_path.name, 7)]
    rows = json.loads(render_view(catalogue.page, context, "format=json"))
    assert [(len(row["tags"]), row["title"], row["files"]) for row in rows[:2]] == [(20, "Ships", 1), (20, None, 1)]
    listing = catalogue._find(context, catalogue.ListQuery.of(QueryParams("q=kuberxxxs")), problems.survey_of(context))
    assert (listing["rows"], len(listing["nearest"])) == ([], 6)
    assert len(triggers.rank(context, "kuberxxxs").nearest) == 6


def test_copies_failures_and_neighbours_of_a_skill_are_bounded(tmp_path: Path) -> None:
    queries = [{"query": f"peel pears n{number}", "should_trigger": True} for number in range(101)]
    for number in range(22):
        write_skill(tmp_path / f"p{number:02}" / "tea", description="Brews tea of leaves, hot.")
    for number in range(7):
        description = "Paints a fence with a brush and green paint."
        write_skill(tmp_path / f"kind-{number}", description=description, evals__a_json=json.dumps(queries))
    context = make_context(tmp_path)
    skills = context.snapshot.skills
    assert len(skill._copies(context, skills["p00/tea"])) == 19
    report = skill._author_report(context, skills["kind-0"])
    assert (len(report.failed), len(report.neighbours)) == (100, 5)


def test_rank_is_described_in_words() -> None:
    a, b = (SimpleNamespace(name=name) for name in "ab")
    first, second = hits = [Hit(cast("Skill", a), 1.0), Hit(cast("Skill", b), 0.86)]
    for ranking, rank, description in (
        ([], None, "nothing found"), (hits, None, "not found; first is a"), (hits, 1, "rank 2, after a"),
        (hits, 0, "first, but close to b"), ([first, second._replace(score=0.85)], 0, "first by far"),
        ([first], 0, "first by far"), ([first._replace(score=None), second], 0, "first by far"),
        ([first, second._replace(score=None)], 0, "first by far"),
    ):  # fmt: skip
        assert triggers._in_words(ranking, rank) == description


def test_ranking_has_twenty_ranks_and_compares_first_five(tmp_path: Path) -> None:
    for number in range(21):
        write_skill(tmp_path / f"paint-{number:02}", description=f"Paints a fence with green paint, way {number}.")
    places = triggers.rank(make_context(tmp_path), "paint a fence").places
    assert [len(rank.near) for rank in places] == [3] * 5 + [0] * 15
    assert (places[0].share, places[1].words[-12:]) == (1.0, " of the best")
    page = render_view(triggers.page, make_context(tmp_path), "prompt=paint+a+fence")
    assert len(skill_paths(page)) == 20
    assert "of the best" in visible_text(page)
