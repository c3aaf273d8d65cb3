"""The trigger playground ranks as the search of a model does, and says why and what is near."""

from __future__ import annotations

from pathlib import Path

from catalog.forest import plant, skill_md
from mcp_skills_server.dialects import runtime
from mcp_skills_server.web.ui.pages import triggers
from web.ui.serving import get, names, page_serving, words
from web.ui.views import look_at
from wire import FIXTURES


def described(name: str, description: str, *more: str) -> dict[str, str]:
    text = "\n".join(["---", f"name: {name}", f"description: {description}", *more, "---", "", "Do it.", ""])
    return {f"{name}/SKILL.md": text}


def test_the_order_is_that_of_the_search_of_a_model() -> None:
    look = look_at(FIXTURES)
    for prompt in ("handle a refund request from a customer", "csv", "refunds", "What is in this table of numbers?"):
        found = look.runtime.searches.of(look.runtime.skill_set).find(
            prompt, triggers.MOST, runtime.is_offered, by_meaning=True
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
        assert "Nothing was asked yet." in words(get(server, "/ui/try"))
        page = get(server, "/ui/try?prompt=makes+tea")
        assert names(page) == ["tea"] and "<b>tea</b></p>" not in page.body.decode().split("Found by")[0]
        assert "No skill fits." in words(get(server, "/ui/try?prompt=%22%27%3Cscript%3E+qqqq"))
        assert get(server, f"/ui/try?prompt={'x' * 8_000}").status == 200
