"""What the page says that a model sees is what a host is really given."""

from __future__ import annotations

import json
from pathlib import Path

import anyio

from catalog.forest import plant, skill_md, skills
from dialects.overviews import made_up
from mcp_skills_server.dialects import jsonrpc, runtime
from mcp_skills_server.dialects.table import AUTO, TABLE
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.ui.pages import model
from web.ui.serving import get, make_context, page_serving, words
from wire import FIXTURES, Era, serving

LIMIT = runtime.OVERVIEW_CHARACTERS


def test_a_host_gets_just_these_instructions_and_answers(era: Era) -> None:
    async def answers() -> list[model.MethodAnswer]:
        return [each async for each in model.method_answers(context, model.ERAS[era], [AUTO, *TABLE])]

    context = make_context(FIXTURES)
    shown = {(each.method, each.dialect): each for each in anyio.run(answers)}
    for extension in (False, True):
        with serving(FIXTURES, era=era, extension=extension, opened=False) as wire:
            instructions, _ = model.channels(context)
            assert wire.open()["instructions"] == instructions.text
            for method in ("tools/list", "prompts/list"):
                assert shown[method, ""].raw == jsonrpc.dump(wire.request(method)), method  # in the same order
            dialect = "sep-2640" if extension else AUTO
            assert json.loads(shown["skills/list", dialect].raw) == wire.request("skills/list")
    tools = shown["tools/list", ""]
    assert (tools.items, tools.more) == (5, False)
    assert tools.text == json.dumps(json.loads(tools.raw), indent=2, ensure_ascii=False)
    whole, part = (tools._replace(raw=json.dumps("x" * size).encode()).text for size in (19_998, 19_999))
    assert (len(whole), part[20_000:]) == (20_000, "\n..."), "a long answer is shown in part"


def test_what_was_cut_is_counted_and_named() -> None:
    for count in (3, 60, 400, 3_000):
        overview = made_up(count, folders=0 if count < 300 else 20)
        for shown in (runtime.in_instructions(overview, LIMIT, scripts=False), runtime.in_loading(overview, LIMIT)):
            found = model.channel("x", shown.text, LIMIT, overview, shown)
            assert found.whole + found.cut + found.named + found.unnamed == count
            assert len(found.examples) == min(100, found.cut + found.unnamed)
            for each in found.examples:
                assert (each.name in shown.text) == (each.shown != "not named"), each


def test_what_models_are_not_offered_is_named_and_without_tools_nothing_is_shown(tmp_path: Path) -> None:
    withheld = skill_md("two", "disable-model-invocation: true")
    context = make_context(plant(tmp_path / "skills", skills("one") | {"two/SKILL.md": withheld}))
    assert model.withheld(context) == ["two"]
    assert [each.title for each in model.channels(context)] == ["Instructions", "Description of the tool skills_load"]
    assert all("two" not in each.text for each in model.channels(context))
    assert list(model.channels(make_context(tmp_path / "skills", settings=Settings(tools=False)))) == []
    assert list(model.channels(make_context(plant(tmp_path / "none", {})))) == []


def test_the_view_has_each_era_and_each_protocol(tmp_path: Path) -> None:
    plant(tmp_path, skills("one"))
    with page_serving(tmp_path) as server:
        modern = words(get(server, "/ui/model?era=modern&dialect=sep-2640"))
        legacy = words(get(server, "/ui/model?era=legacy&dialect=nonsense"))
        assert "1 skill here" in modern and "1 with the whole description." in modern
        assert "io.modelcontextprotocol/serverInfo" in modern and "io.modelcontextprotocol/serverInfo" not in legacy
        assert '"skills": [' in modern and '"skills": [' in legacy
        assert "one token for 4 bytes of UTF-8" in modern
    with page_serving(tmp_path, "--no-tools") as server:
        for view in ("model", "tools?tool=skills_list&call=1"):
            assert "offers no tools" in words(get(server, f"/ui/{view}"))
