"""What the page says that a model sees is what a host is really given."""

from __future__ import annotations

import json
from pathlib import Path

import anyio

from catalog.forest import plant, skill_md
from dialects.overviews import made_up
from mcp_skills_server.dialects import runtime
from mcp_skills_server.dialects.table import AUTO, TABLE
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.ui.pages import model
from web.ui.serving import get, page_serving, words
from web.ui.views import look_at
from wire import FIXTURES, Era, serving

LIMIT = runtime.OVERVIEW_CHARACTERS


def answers(era: Era, folder: Path) -> dict[tuple[str, str], model.MethodAnswer]:
    look = look_at(folder)

    async def all_of() -> list[model.MethodAnswer]:
        dialects = [AUTO, *TABLE]
        return [each async for each in model.method_answers(look, model.ERAS[era], dialects)]

    return {(each.method, each.dialect): each for each in anyio.run(all_of)}


def test_a_host_gets_just_these_instructions_and_answers(era: Era) -> None:
    shown = answers(era, FIXTURES)
    for extension in (False, True):
        with serving(FIXTURES, era=era, extension=extension, opened=False) as wire:
            hello = wire.open()
            instructions, _ = model.channels(look_at(FIXTURES))
            assert hello["instructions"] == instructions.text
            for method in ("tools/list", "prompts/list"):
                assert json.loads(shown[method, ""].raw) == wire.request(method), method
            dialect = "sep-2640" if extension else AUTO
            assert json.loads(shown["skills/list", dialect].raw) == wire.request("skills/list")


def test_entries_are_those_of_the_answer() -> None:
    found = answers("modern", FIXTURES)["tools/list", ""]
    sent = json.loads(found.raw)
    assert found.items == len(sent["tools"]) == 5 and not found.more
    assert json.loads(found.text) == sent


def test_a_long_answer_is_shown_in_part() -> None:
    found = model.MethodAnswer("x", "", json.dumps({"x": ["word"] * 40_000}).encode(), 1, more=False)
    assert len(found.text) < 20_010 and found.text.endswith("...")


def test_what_was_cut_is_counted_and_named() -> None:
    for count in (3, 60, 400, 3_000):
        overview = made_up(count, folders=0 if count < 300 else 20)
        for shown in (runtime.in_instructions(overview, LIMIT, scripts=False), runtime.in_loading(overview, LIMIT)):
            found = model.channel("x", shown.text, LIMIT, overview, shown)
            assert found.whole + found.cut + found.named + found.unnamed == count
            assert len(found.examples) == min(model.MOST_CUT, found.cut + found.unnamed)
            for each in found.examples:
                named = each.name in shown.text
                assert named == (each.shown != "not named"), each


def test_what_models_are_not_offered_is_named_and_without_tools_nothing_is_shown(tmp_path: Path) -> None:
    plant(
        tmp_path, {"one/SKILL.md": skill_md("one"), "two/SKILL.md": skill_md("two", "disable-model-invocation: true")}
    )
    look = look_at(tmp_path)
    assert model.withheld(look) == ["two"]
    assert [each.title for each in model.channels(look)] == ["Instructions", "Description of the tool skills_load"]
    assert all("two" not in each.text for each in model.channels(look))
    assert list(model.channels(look_at(tmp_path, settings=Settings(tools=False)))) == []
    assert list(model.channels(look_at(plant(tmp_path / "none", {})))) == []


def test_the_view_has_each_era_and_each_protocol(tmp_path: Path) -> None:
    plant(tmp_path, {"one/SKILL.md": skill_md("one")})
    with page_serving(tmp_path) as server:
        modern = words(get(server, "/ui/model?era=modern&dialect=sep-2640"))
        legacy = words(get(server, "/ui/model?era=legacy&dialect=nonsense"))
        assert "1 skill here" in modern and "1 with the whole description." in modern
        assert "io.modelcontextprotocol/serverInfo" in modern and "io.modelcontextprotocol/serverInfo" not in legacy
        assert '"skills": [' in modern and '"skills": [' in legacy
        assert "one token for 4 bytes of UTF-8" in modern
    with page_serving(tmp_path, "--no-tools") as server:
        assert "offers no tools" in words(get(server, "/ui/model"))
