"""What the page takes, keeps and lists, without a server: so much at most, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
from starlette.datastructures import QueryParams
from starlette.requests import Request

from catalog.forest import loaded, plant, skill_md
from mcp_skills_server.codes import problem
from mcp_skills_server.model import Skill, Snapshot
from mcp_skills_server.runtime.search import Hit
from mcp_skills_server.web.ui.context import Context, start_of
from mcp_skills_server.web.ui.pages import catalogue, problems, skill, tools, triggers
from mcp_skills_server.web.ui.pages.history import Revisions
from mcp_skills_server.web.ui.sign_in import form_of
from tables import each_row
from web.ui.serving import make_context, skill_paths, words
from wire import write_skill


def shown(view: Any, context: Context, query: str = "") -> str:
    """The HTML of a view."""
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": query.encode()})
    return bytes(anyio.run(view, request, context).body).decode()


@each_row(
    ("most", "over"),
    [("a=" + "x" * 65_534, "a=" + "x" * 65_535), ("&".join(["a=b"] * 10), "&".join(["a=b"] * 11)), ("a=b", "a=\u00e4")],
)
def test_a_form_is_small(most: str, over: str) -> None:
    def form(raw: bytes) -> dict[str, str] | None:
        async def receive() -> Any:
            return {"type": "http.request", "body": raw, "more_body": False}

        return anyio.run(form_of, Request({"type": "http", "method": "POST", "headers": []}, receive))

    assert (form(most.encode()) or {}).keys() == {"a"} and form(over.encode()) is None


def test_fields_of_a_query_are_numbers_lists_and_texts_of_some_length(tmp_path: Path) -> None:
    given = ("999999", "1000000", "-1", "\u00b2", "")
    assert [start_of({"from": each}) for each in given] == [999_999, 0, 0, 0, 0]
    for kind, text, value in (
        ("integer", "9" * 9, 999_999_999), ("integer", "9" * 10, "9" * 10), ("integer", "x", "x"), ("string", "1", "1"),
        ("array", " a, ,b", ["a", "b"]), ("boolean", "true", True), ("boolean", "no", False),
    ):  # fmt: skip
        assert tools._value(text, kind) == value
    cases = triggers.cases_of("\n".join(["x" * 2_001, " - y", "-", *map(str, range(19))]))
    assert [len(each.query) for each in cases[:2]] == [2_000, 1] and len(cases) == 20
    assert [each.should_trigger for each in cases[:3]] == [True, False, True]
    page = shown(tools.page, make_context(tmp_path), f"tool=skills_search&arg.query={'x' * 4_001}")
    assert f'"{"x" * 4_000}"' in page or f">{'x' * 4_000}<" in page


def test_so_much_is_kept_of_changes(tmp_path: Path) -> None:
    def of(size: int) -> Skill:
        """A skill with so many lines in a file."""
        write_skill(tmp_path / f"a{size}", lines_md="x\n" * size)
        registry.refresh()
        return registry.snapshot.skills[f"a{size}"]

    def noted(size: int) -> tuple[int, bool]:
        kept._note(0.0, "a", None, before)
        kept._note(0.0, "a", before, of(size))
        return len(kept.of("a")[0].lines), kept.of("a")[0].is_whole

    registry = loaded(tmp_path)
    kept, before = Revisions(registry), of(0)
    more = noted(10)[0] - 10
    assert [noted(500 - more), noted(501 - more)] == [(500, True), (500, False)]
    for number in range(1_001):
        kept._note(float(number), f"s{number}", None, before)
    assert [len(kept.of(path)) for path in ("a", "s0", "s1", "s1000")] == [0, 0, 1, 1]
    for number in range(21):
        kept._note(float(number), "a", *((None, before) if number % 2 else (before, None)))
    assert [each.time for each in kept.of("a")] == [*range(20, 0, -1)]
    for size, is_kept in ((256 << 10, True), ((256 << 10) + 2, False)):
        assert (len(kept._read(of(size // 2))["lines.md"][0]) == size) is is_kept
    for size, left in ((32 << 20, ["b"]), ((32 << 20) + 1, [])):
        kept = Revisions(registry)
        kept._keep("b", {"f": (bytes(size), False)})
        assert [*kept._kept] == left


def test_lists_of_the_catalogue_end(tmp_path: Path) -> None:
    tags = f"tags: {json.dumps([f't{number}' for number in range(201)])}"
    paths = [f"kubernetes-{number}" for number in range(7)]
    titles = [f"title: {title}" for title in ("Ships", paths[1])]
    files = {
        f"{path}/SKILL.md": skill_md(path, tags, *titles[number : number + 1]) for number, path in enumerate(paths)
    }
    registry = loaded(plant(tmp_path, files))
    lost = [problem("root-missing", "is gone").at(f"/{number}", "") for number in range(101)]
    registry.snapshot = Snapshot(dict(registry.snapshot.skills), tuple(lost))
    context = make_context(registry=registry)
    facets = catalogue._facets_of(context, problems.survey_of(context))
    assert (len(facets["tags"]), len(facets["places"]), facets["left_out"]) == (200, 100, 0)
    assert facets["sources"] == [("0", tmp_path.name, 7)]
    rows = json.loads(shown(catalogue.page, context, "format=json"))
    assert [(len(row["tags"]), row["title"], row["files"]) for row in rows[:2]] == [(20, "Ships", 1), (20, None, 1)]
    found = catalogue._find(context, catalogue.ListQuery.of(QueryParams("q=kuberxxxs")), problems.survey_of(context))
    assert (found["rows"], len(found["nearest"])) == ([], 6)
    assert len(triggers.rank(context, "kuberxxxs").nearest) == 6


def test_a_skill_has_so_many_copies_failures_and_neighbours_that_are_named(tmp_path: Path) -> None:
    queries = [{"query": f"peel pears n{number}", "should_trigger": True} for number in range(101)]
    for number in range(22):
        write_skill(tmp_path / f"p{number:02}" / "tea", description="Brews tea of leaves, hot.")
    for number in range(7):
        write_skill(tmp_path / f"kind-{number}", description="Paints a fence with a brush and green paint.")
    write_skill(
        tmp_path / "kind-0",
        description="Paints a fence with a brush and green paint.",
        evals__a_json=json.dumps(queries),
    )
    context = make_context(tmp_path)
    found = context.snapshot.skills
    assert len(skill._copies(context, found["p00/tea"])) == 19
    report = skill._author_report(context, found["kind-0"])
    assert (len(report.failed), len(report.neighbours)) == (100, 5)


def test_a_rank_in_words() -> None:
    named: list[Any] = [SimpleNamespace(name=name) for name in "ab"]
    first, second = hits = [Hit(named[0], 1.0), Hit(named[1], 0.86)]
    for found, place, said in (
        ([], None, "nothing found"), (hits, None, "not found; first is a"), (hits, 1, "rank 2, after a"),
        (hits, 0, "first, but close to b"), ([first, second._replace(score=0.85)], 0, "first by far"),
        ([first], 0, "first by far"), ([first._replace(score=None), second], 0, "first by far"),
        ([first, second._replace(score=None)], 0, "first by far"),
    ):  # fmt: skip
        assert triggers._in_words(found, place) == said


def test_a_ranking_has_twenty_ranks_of_which_five_are_compared_with_three(tmp_path: Path) -> None:
    for number in range(21):
        write_skill(tmp_path / f"paint-{number:02}", description=f"Paints a fence with green paint, way {number}.")
    places = triggers.rank(make_context(tmp_path), "paint a fence").places
    assert len(places) == 20 and [len(each.near) for each in places] == [3] * 5 + [0] * 15
    assert (places[0].share, places[1].words[-12:]) == (1.0, " of the best")
    page = shown(triggers.page, make_context(tmp_path), "prompt=paint+a+fence")
    assert len(skill_paths(page)) == 20 and "of the best" in words(page)
