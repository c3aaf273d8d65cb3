"""The catalogue over HTTP: all skills, in the order of a search, filtered, in parts."""

from __future__ import annotations

import html
import json
from pathlib import Path
from urllib.parse import quote

from catalog.forest import loaded, plant, skill_md
from mcp_skills_server.dialects import runtime
from mcp_skills_server.web.ui.pages import triggers
from tables import each_row
from web.http_wire import Server, client, until
from web.ui.serving import get, names, page_serving, words
from web.ui.views import look_at
from wire import FIXTURES, write_skill


def shown(server: Server, query: str = "") -> list[str]:
    reply = get(server, f"/ui/{query}")
    assert reply.status == 200
    return names(reply)


def test_every_skill_is_a_link_with_its_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "team" / "refunds")
    write_skill(tmp_path / "a b&c", name="ampersand")
    with page_serving(tmp_path) as server:
        reply = get(server, "/ui/")
        assert names(reply) == ["a%20b%26c", "team/refunds"]
        assert '<a href="/ui/skills/team/refunds"><bdi>refunds</bdi></a>' in reply.body.decode()
        assert get(server, "/ui/skills/a%20b%26c").status == 200
        assert "2 skills" in words(reply)


def test_a_search_has_the_order_of_skills_search_and_says_why(tmp_path: Path) -> None:
    question = "a customer wants money back"
    with page_serving(FIXTURES) as server, client(server, "modern") as one:
        answer = one.request("tools/call", {"name": "skills_search", "arguments": {"query": question}})
        found = [each["name"] for each in answer["structuredContent"]["skills"]]
        reply = get(server, f"/ui/?q={quote(question)}")
        ours = [each.rpartition("/")[2] for each in names(reply)]
        assert found and ours[: len(found)] == [each.rpartition("/")[2] for each in found]
        assert "Found by description: customer" in words(reply)


def test_what_is_left_out_is_there_with_its_reason_and_what_to_do(tmp_path: Path) -> None:
    write_skill(tmp_path / "fine")
    write_skill(tmp_path / "torn").joinpath("SKILL.md").write_text("no frontmatter at all", encoding="utf-8")
    write_skill(tmp_path / "Loud", name="Loud")
    with page_serving(tmp_path) as server:
        reply = get(server, "/ui/?problem=left-out")
        assert names(reply) == ["Loud", "torn"]
        assert words(reply).count("left out") >= 2
        assert shown(server, "?q=torn") == ["torn"]
        assert 'class="hint"' in reply.body.decode()
        assert "hidden by" not in words(reply)


def test_a_skill_that_another_hides_is_said(tmp_path: Path) -> None:
    write_skill(tmp_path / "one" / "same")
    write_skill(tmp_path / "two" / "same")
    with page_serving(tmp_path / "one", tmp_path / "two") as server:
        reply = get(server, "/ui/")
        assert names(reply) == ["same"] and "shadowed" in words(reply)
        assert str(tmp_path) not in reply.body.decode()  # where folders lie is the operator's matter


def test_filters_by_source_tag_and_problem(tmp_path: Path) -> None:
    write_skill(tmp_path / "one" / "a", description='x\ntags: ["red", "green"]')
    write_skill(tmp_path / "one" / "b", description="x\nunknown-field: 1")
    write_skill(tmp_path / "two" / "c", description='x\ntags: ["red"]')
    with page_serving(tmp_path / "one", tmp_path / "two") as server:
        for query, paths in (
            ("source=0", "ab"), ("source=1", "c"), ("tag=red", "ac"), ("tag=red&source=1", "c"), ("tag=none", ""),
            ("problem=any&source=0", "ab"), ("q=a&tag=green", "a"),
        ):  # fmt: skip
            assert shown(server, f"?{query}") == [*paths], query
        for wrong in ("?source=%00", "?from=-1", "?from=99999999999", "?used=x", "?q=%ff%fe", "?problem=%3Cb%3E"):
            assert get(server, f"/ui/{wrong}").status == 200, wrong


def test_filters_by_use(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "a")
    write_skill(tmp_path / "skills" / "b")
    store = f"sqlite:{tmp_path / 'usage.db'}"
    with page_serving(tmp_path / "skills", "--usage", store) as server:
        with client(server, "modern") as one:
            one.read("skill://a/SKILL.md")
        until(lambda: shown(server, "?used=used") == ["a"])  # it is written once a second, and read every five
        assert shown(server, "?used=never") == ["b"]
        get(server, "/ui/skills/b")
        assert "Loaded 1 times" in words(get(server, "/ui/skills/a"))
        shown_usage = words(get(server, "/ui/usage"))
        assert "Of 2 skills 1 was not used in the last 30 days" in shown_usage
        assert "a 1 0 0 0 1 " in shown_usage and "b 0 0 0 0 0 never" in shown_usage
    with page_serving(tmp_path / "skills", "--usage", store) as server:
        assert shown(server, "?used=never") == ["b"]  # to look at a skill is not to use it


def test_a_long_list_comes_in_parts(tmp_path: Path) -> None:
    for number in range(250):
        write_skill(tmp_path / f"skill-{number:05}", description=f"Does thing number {number} of many.", body="x" * 500)
    with page_serving(tmp_path) as server:
        first = get(server, "/ui/")
        assert len(names(first)) == 100 and len(first.body) < 500_000
        assert names(get(server, "/ui/?from=200")) == [f"skill-{number:05}" for number in range(200, 250)]
        assert 'href="/ui/?from=100"' in first.body.decode()
        found = get(server, "/ui/?q=number&part=1")
        assert len(names(found)) == 100 and "<html" not in found.body.decode()
        assert html.unescape(found.body.decode()).count("/ui/?q=number&from=100") == 1
        again = get(server, "/ui/?q=number&from=100")
        assert not {*names(found)} & {*names(again)}


@each_row(
    ("question", "expected"),
    [
        ("refund", {"name": ["refund"], "description": ["refund"]}),
        ("refunds money", {"name": ["refunds"], "description": ["refunds", "money"]}),
        ("the of and", {}),
        ("", {}),
        ("nothing like it", {}),
    ],
)
def test_reasons_name_the_texts_that_have_the_words(
    tmp_path: Path, question: str, expected: dict[str, list[str]]
) -> None:
    write_skill(tmp_path / "refunds", description="Handles a refund of money.", body="# Steps\n\nDo it.\n")
    found = dict(triggers.matched_fields(loaded(tmp_path).snapshot.skills["refunds"], question))
    assert {key: [*value] for key, value in found.items() if key in {"name", "description"}} == expected


def test_the_list_is_sorted_by_a_column_and_tags_lead_to_their_skills(tmp_path: Path) -> None:
    write_skill(tmp_path / "small", description="Is small.\nmetadata:\n  tags: tiny")
    write_skill(tmp_path / "big", body="x" * 4_000)
    write_skill(tmp_path / "many", a_md="a", b_md="b")
    with page_serving(tmp_path) as server:
        assert shown(server, "?sort=tokens")[0] == "big"
        assert shown(server, "?sort=files")[0] == "many"
        assert shown(server, "?sort=name") == shown(server, "?sort=nonsense") == ["big", "many", "small"]
        first = get(server, "/ui/").body.decode()
        assert 'href="/ui/?sort=tokens"' in first and 'href="/ui/?tag=tiny"' in first
        assert names(get(server, "/ui/?tag=tiny")) == ["small"]


def test_every_list_has_a_link_to_itself_as_json(tmp_path: Path) -> None:
    write_skill(tmp_path / "one", description="Makes <b>tea</b>.")
    write_skill(tmp_path / "two", description="Bakes bread.")
    with page_serving(tmp_path) as server:
        assert 'href="/ui/?q=tea&amp;format=json"' in get(server, "/ui/?q=tea").body.decode()
        answer = get(server, "/ui/?q=tea&format=json")
        assert answer.headers["Content-Type"] == "application/json"
        (row,) = json.loads(answer.body)
        assert (row["path"], row["description"], row["files"]) == ("one", "Makes <b>tea</b>.", 1)
        assert [row["name"] for row in json.loads(get(server, "/ui/?format=json").body)] == ["one", "two"]


# The trigger playground


def described(name: str, description: str, *more: str) -> dict[str, str]:
    text = "\n".join(["---", f"name: {name}", f"description: {description}", *more, "---", "", "Do it.", ""])
    return {f"{name}/SKILL.md": text}


def test_the_order_is_that_of_the_search_of_a_model() -> None:
    look = look_at(FIXTURES)
    for prompt in ("handle a refund request from a customer", "csv", "refunds", "What is in this table of numbers?"):
        found = look.runtime.searches.of(look.runtime.skill_set).find(
            prompt, triggers.MOST_RANKS, runtime.is_offered, by_meaning=True
        )
        places = triggers.rank(look, prompt).places
        assert [each.skill for each in places] == found and found
        assert all(0 <= each.share <= 1 for each in places)
        assert max(each.share for each in places) == 1


def test_why_a_skill_is_found_and_which_is_near(tmp_path: Path) -> None:
    plant(
        tmp_path,
        described("pdf-forms", "Fills forms of PDF files")
        | described("pdf-filler", "Fills forms of PDF files and prints them")
        | described("pears", "Peels pears"),
    )
    places = triggers.rank(look_at(tmp_path), "fill this PDF form for me").places
    assert {each.skill.path for each in places} == {"pdf-forms", "pdf-filler"}
    for each in places:
        assert "pdf" in dict(each.why)["description"]
        (near,) = each.near
        assert near.share > 0.6 and {"fills", "forms", "pdf"} <= {*near.words}
        assert {each.skill.path, near.other.path} == {"pdf-forms", "pdf-filler"}


def test_what_models_are_not_offered_is_in_no_ranking(tmp_path: Path) -> None:
    plant(
        tmp_path,
        described("tea", "Makes tea") | described("secret-tea", "Makes tea", "disable-model-invocation: true"),
    )
    assert [each.skill.path for each in triggers.rank(look_at(tmp_path), "makes tea").places] == ["tea"]


def test_where_nothing_fits_names_that_look_alike_are_shown(tmp_path: Path) -> None:
    plant(tmp_path, {"kubernetes/SKILL.md": skill_md("kubernetes")})
    found = triggers.rank(look_at(tmp_path), "kubernets")
    assert [each.path for each in (*found.nearest, *(each.skill for each in found.places))] == ["kubernetes"]
    assert triggers.rank(look_at(tmp_path), "zzzz qqqq") == triggers.Ranking(nearest=[])


def test_the_view_needs_no_script_and_takes_any_text(tmp_path: Path) -> None:
    plant(tmp_path, described("tea", "Makes <b>tea</b>"))
    with page_serving(tmp_path) as server:
        assert "Enter a prompt." in words(get(server, "/ui/try"))
        page = get(server, "/ui/try?prompt=makes+tea")
        assert names(page) == ["tea"] and "<b>tea</b></p>" not in page.body.decode().split("Found by")[0]
        assert "No skill matches." in words(get(server, "/ui/try?prompt=%22%27%3Cscript%3E+qqqq"))
        assert get(server, f"/ui/try?prompt={'x' * 8_000}").status == 200
