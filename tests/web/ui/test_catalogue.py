"""The views of the catalogue and the trigger playground: search, filters, pages."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote

import pytest

from catalog.forest import skill_md, write_files
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.search import Hit
from mcp_skills_server.web.ui.addresses import start_of
from mcp_skills_server.web.ui.pages import catalogue, tools, triggers
from runtime.embeddings import tiny
from web.http_wire import Reply, Server, client, wait_until
from web.in_process import app_serving
from web.ui.serving import cookie_of, get, make_context, render_view, skill_paths, text_of, visible_text
from wire import FIXTURES, write_skill


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Skills of all kinds in two roots, which no test changes."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    write_skill(one / "a", description='Makes <b>tea</b>.\ntags: ["red", "green"]')
    write_skill(one / "c d&e", name="ampersand", body="x" * 4_000)
    write_skill(one / "Loud", name="Loud")
    write_skill(one / "torn").joinpath("SKILL.md").write_text("no frontmatter at all", encoding="utf-8")
    write_skill(two / "group" / "files", description="x\nmetadata:\n  tags: tiny", a_md="a", b_md="b")
    for root in (one, two):
        write_skill(root / "same", description='x\ntags: ["red"]\nunknown-field: 1')
    with app_serving(one, two, "--ui") as started:
        yield started


def listed_paths(server: Server, query: str = "") -> list[str]:
    reply = get(server, f"/ui/{query}")
    assert reply.status == 200
    return skill_paths(reply)


def test_catalogue_filters_and_sorts_including_skills_not_listed_or_not_served(server: Server) -> None:
    every = ["Loud", "a", "c%20d%26e", "group/files", "same", "torn"]
    # Unknown sort keys and page numbers are ignored. Unknown filter values match nothing.
    for query, paths in (
        ("", every), ("source=0", [*every[:3], *every[4:]]), ("source=1", ["group/files"]), ("tag=red", ["a", "same"]),
        ("tag=red&source=1", []), ("tag=tiny", ["group/files"]), ("tag=none", []),
        ("problem=left-out", ["Loud", "c%20d%26e", "torn"]), ("problem=name-mismatch", ["c%20d%26e"]),
        ("q=torn", ["torn"]), ("q=tea&tag=green", ["a"]), ("sort=nonsense", every), ("source=%00", []),
        ("q=%ff%fe", []), ("from=-1", every), ("from=99999999999", every), ("used=x", every), ("problem=%3Cb%3E", []),
    ):  # fmt: skip
        assert listed_paths(server, f"?{query}") == paths, query
    assert listed_paths(server, "?sort=tokens")[0] == "c%20d%26e"
    assert listed_paths(server, "?sort=files")[0] == "group/files"
    assert listed_paths(server, "?sort=name")[:3] == ["Loud", "a", "c%20d%26e"]
    assert {*listed_paths(server, "?problem=any")} >= {"Loud", "same", "torn"}
    assert get(server, "/ui/skills/c%20d%26e").status == 200


@pytest.mark.needs_program("git")
def test_catalogue_and_live_know_changes_of_before_by_git_or_files(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *words], cwd=tmp_path / "repo", check=True)

    now = time.time()
    write_skill(tmp_path / "repo" / "skills" / "old", more_md="x")
    write_skill(tmp_path / "repo" / "skills" / "fresh")
    git("init", "-q")
    for name, date in (("old", "2001-02-03T12:00:00Z"), ("fresh", f"@{now - 3_600:.0f} +0000")):
        git("add", f"skills/{name}")
        git("commit", "-q", "-m", name, "--date", date)
    write_skill(tmp_path / "files" / "middle")
    os.utime(tmp_path / "files" / "middle" / "SKILL.md", (1.5e9, 1.5e9))
    with app_serving(tmp_path / "repo" / "skills", tmp_path / "files", "--ui") as server:
        wait_until(lambda: "2001-02-03" in text_of(get(server, "/ui/")))
        assert listed_paths(server, "?sort=changed") == ["fresh", "middle", "old"]
        assert listed_paths(server, "?sort=-changed") == ["old", "middle", "fresh"]
        assert listed_paths(server, "?since=day") == ["fresh"]
        live = visible_text(get(server, "/ui/live")).partition("Before that")[2]
        assert live.index("fresh") < live.index("middle versions 2017-07-14") < live.index("old versions 2001-02-03")
        assert "2001-02-03" in visible_text(get(server, "/ui/skills/old"))
        write_skill(tmp_path / "repo" / "skills" / "old", body="Other\n")
        wait_until(lambda: listed_paths(server, "?sort=changed")[0] == "old")


def test_catalogue_filters_by_the_last_visit(server: Server, tmp_path: Path) -> None:
    def visit(cookie: str = "") -> tuple[Reply, str]:
        reply = get(server, "/ui/?since=visit", Cookie=f"skills-ui-visits={cookie}")
        return reply, cookie_of(reply).partition("=")[2]

    now = int(time.time())
    first, cookie = visit()
    assert b"Since my last visit" not in first.body and len(skill_paths(first)) == 6
    assert cookie.partition(".")[0] == "0" and now <= int(cookie.partition(".")[2]) <= now + 60
    assert visit(cookie)[1].partition(".")[0] == "0", "the same visit"
    later, cookie = visit(f"{now - 90_000}.{now - 80_000}")
    assert cookie.partition(".")[0] == str(now - 80_000) and b"Since my last visit" in later.body
    assert len(skill_paths(later)) == 6
    assert skill_paths(visit(f"{now + 600}.{now + 600}")[0]) == []
    for invalid in ("x", "1.2.3", "-1.5", "\u0661.1", "9" * 400 + ".1"):
        assert visit(invalid.encode().decode("latin-1"))[0].status == 200, invalid
    assert "Set-Cookie" not in get(server, "/ui/?part=1").headers


def test_sorted_column_says_its_direction(server: Server) -> None:
    for sort, direction, other in (
        ("name", "ascending", "-name"), ("-name", "descending", "name"), ("tokens", "descending", "-tokens"),
        ("-changed", "ascending", "changed"),
    ):  # fmt: skip
        page = text_of(get(server, f"/ui/?sort={sort}"))
        (head,) = re.findall(r'aria-sort="(\w+)"><a href="/ui/\?sort=([-\w]+)">', page)
        assert head == (direction, other)
    assert listed_paths(server, "?sort=-tokens")[-1] == "c%20d%26e"


def test_catalogue_searches_by_meaning_with_embeddings(tmp_path: Path) -> None:
    write_skill(tmp_path / "alpha", description="All about an automobile")
    with tiny.endpoint() as models:
        options = ("--embeddings", models.url, "--embeddings-model", "tiny")
        with app_serving(tmp_path, *options, "--ui") as server:
            wait_until(lambda: listed_paths(server, "?q=driving+a+lorry") == ["alpha"])


def test_catalogue_has_links_json_and_skills_not_listed_or_not_served(server: Server) -> None:
    page = get(server, "/ui/").body.decode()
    for part in (
        '<a href="/ui/skills/group/files"><bdi>files</bdi></a>', 'href="/ui/?sort=tokens"', 'href="/ui/?tag=tiny"',
        'class="hint"',
    ):  # fmt: skip
        assert part in page, part
    text = visible_text(page)
    assert "6 skills" in text and "left out" not in text
    assert "not listed Models still get it by tools. the name" in text and "not served the file" in text
    # One skill shadows another, but folders are not shown to viewers who are no administrators.
    assert "shadowed" in text and "/two" not in page
    assert 'href="/ui/?q=tea&amp;format=json"' in get(server, "/ui/?q=tea").body.decode()
    reply = get(server, "/ui/?q=tea&format=json")
    assert reply.headers["Content-Type"] == "application/json"
    (row,) = json.loads(reply.body)
    assert (row["path"], row["description"], row["files"]) == ("a", "Makes <b>tea</b>.", 1)
    assert [bool(row["left_out"]) for row in json.loads(get(server, "/ui/?format=json").body)] == [1, 0, 1, 0, 0, 1]


def test_search_has_the_ranking_of_skills_search_with_reasons() -> None:
    query = "a customer wants money back"
    with app_serving(FIXTURES, "--ui") as server, client(server, "modern") as mcp:
        result = mcp.call("skills_search", query=query)
        expected = [skill["name"].rpartition("/")[2] for skill in result["structuredContent"]["skills"]]
        reply = get(server, f"/ui/?q={quote(query)}")
        names = [path.rpartition("/")[2] for path in skill_paths(reply)]
        assert expected
        assert names[: len(expected)] == expected
        assert "Found by description: customer" in visible_text(reply)
        assert "No skill matches. Similar names: meeting-notes" in visible_text(get(server, "/ui/?q=meetxxx"))


def test_long_catalogue_is_paginated(tmp_path: Path) -> None:
    for number in range(250):
        write_skill(tmp_path / f"skill-{number:05}", description=f"Does thing number {number} of many.", body="x" * 500)
    with app_serving(tmp_path, "--ui") as server:
        first = get(server, "/ui/")
        assert len(skill_paths(first)) == 100 and len(first.body) < 500_000
        assert skill_paths(get(server, "/ui/?from=200")) == [f"skill-{number:05}" for number in range(200, 250)]
        assert 'href="/ui/?from=100"' in text_of(first)
        fragment = text_of(get(server, "/ui/?q=number&part=1"))
        assert len(skill_paths(fragment)) == 100
        assert "<html" not in fragment
        assert html.unescape(fragment).count("/ui/?q=number&from=100") == 1
        assert not {*skill_paths(fragment)} & {*listed_paths(server, "?q=number&from=100")}


def test_ranking_has_reasons_and_similar_skills(tmp_path: Path) -> None:
    for name, description in (
        ("pdf-forms", "Fills forms of PDF files"), ("pdf-filler", "Fills forms of PDF files and prints them"),
        ("kubernetes", "Peels pears"), ("secret", "Fills forms of PDF files\ndisable-model-invocation: true"),
    ):  # fmt: skip
        write_skill(tmp_path / name, description=description)
    context = make_context(tmp_path)
    places = triggers.rank(context, "fill this PDF form for me").places
    assert {place.skill.path for place in places} == {"pdf-forms", "pdf-filler"}
    assert places[0].share == 1 > places[1].share > 0
    for place in places:
        assert "pdf" in dict(place.why)["description"]
        (similar,) = place.near
        assert similar.share > 0.6 and {"fills", "forms", "pdf"} <= {*similar.words}
        assert {place.skill.path, similar.other.path} == {"pdf-forms", "pdf-filler"}
    assert triggers.rank(context, "zzzz qqqq") == triggers.Ranking(nearest=[])
    assert [skill.path for skill in triggers.rank(context, "kuberxxxs").nearest] == ["kubernetes"]


def test_playground_accepts_any_prompt(server: Server) -> None:
    assert "Enter a prompt." in visible_text(get(server, "/ui/try"))
    page = get(server, "/ui/try?prompt=makes+tea")
    assert skill_paths(page) == ["a"] and "<b>tea</b></p>" not in page.body.decode().split("Found by")[0]
    assert "No skill matches." in visible_text(get(server, "/ui/try?prompt=%22%27%3Cscript%3E+qqqq"))
    assert get(server, f"/ui/try?prompt={'x' * 8_000}").status == 200


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


def test_catalogue_names_skills_in_no_plugin(tmp_path: Path) -> None:
    plugins = {".claude-plugin/marketplace.json": json.dumps({"name": "m", "plugins": []})}
    write_files(tmp_path, {**plugins, "extra/jam/SKILL.md": skill_md("jam")})
    page = visible_text(render_view(catalogue.page, make_context(tmp_path)))
    assert "the skill at extra/jam is not part of any plugin of marketplace.json" in page


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
    assert [len(rank.near) for rank in places] == [4] * 5 + [0] * 15
    assert (places[0].share, places[1].words[-12:]) == (1.0, " of the best")
    page = render_view(triggers.page, make_context(tmp_path), "prompt=paint+a+fence")
    assert len(skill_paths(page)) == 20
    assert "of the best" in visible_text(page)
