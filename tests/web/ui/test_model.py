"""The view of what a model sees, compared with what a host receives."""

from __future__ import annotations

import json
from pathlib import Path

import anyio

from catalog.forest import skill_md, skills, write_files
from dialects.overviews import build_overview
from mcp_skills_server.dialects import jsonrpc, runtime
from mcp_skills_server.dialects.table import AUTO, TABLE
from mcp_skills_server.proposals.store import ProposalStore
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.ui.pages import model
from web.in_process import app_serving
from web.ui.serving import get, make_context, visible_text
from wire import FIXTURES, Era, serving

LIMIT = runtime.OVERVIEW_CHARACTERS


def test_model_view_equals_what_a_host_receives(tmp_path: Path, era: Era) -> None:
    async def method_answers() -> list[model.MethodAnswer]:
        return [answer async for answer in model.method_answers(context, model.ERAS[era], [AUTO, *TABLE])]

    context = make_context(FIXTURES, settings=Settings(proposals=ProposalStore(tmp_path)))
    shown = {(answer.method, answer.dialect): answer for answer in anyio.run(method_answers)}
    for extension in (False, True):
        with serving(FIXTURES, "--proposals", tmp_path, era=era, extension=extension, opened=False) as wire:
            instructions, _ = model.channels(context)
            assert wire.open()["instructions"] == instructions.text
            for method in ("tools/list", "prompts/list"):
                assert shown[method, ""].raw == jsonrpc.dump(wire.request(method)), method  # in the same order
            dialect = "sep-2640" if extension else AUTO
            assert json.loads(shown["skills/list", dialect].raw) == wire.request("skills/list")
    tools = shown["tools/list", ""]
    assert (tools.items, tools.more) == (7, False)
    short = shown["prompts/list", ""]
    assert short.text == json.dumps(json.loads(short.raw), indent=2, ensure_ascii=False)
    longest = tools._replace(raw=json.dumps("x" * 19_998).encode())
    too_long = tools._replace(raw=json.dumps("x" * 19_999).encode())
    assert len(longest.text) == 20_000
    assert too_long.text[20_000:] == "\n..."


def test_cut_skills_are_counted_and_named() -> None:
    for count in (3, 60, 400, 3_000):
        overview = build_overview(count, folders=0 if count < 300 else 20)
        for shown in (runtime.in_instructions(overview, LIMIT, scripts=False), runtime.in_loading(overview, LIMIT)):
            channel = model.channel("x", shown.text, LIMIT, overview, shown)
            assert channel.whole + channel.cut + channel.named + channel.unnamed == count
            assert len(channel.examples) == min(100, channel.cut + channel.unnamed)
            for example in channel.examples:
                assert (example.name in shown.text) == (example.shown != "not named"), example


def test_withheld_skills_are_listed_and_channels_need_tools_and_skills(tmp_path: Path) -> None:
    withheld = skill_md("two", "disable-model-invocation: true")
    context = make_context(write_files(tmp_path / "skills", skills("one") | {"two/SKILL.md": withheld}))
    assert model.withheld(context) == ["two"]
    instructions, description = model.channels(context)
    assert (instructions.title, description.title) == ("Instructions", "Description of the tool skills_load")
    assert "two" not in instructions.text and "two" not in description.text
    without_tools = make_context(tmp_path / "skills", settings=Settings(tools=False))
    without_skills = make_context(write_files(tmp_path / "none", {}))
    assert list(model.channels(without_tools)) == list(model.channels(without_skills)) == []


def test_view_selects_era_and_dialect(tmp_path: Path) -> None:
    write_files(tmp_path, skills("one"))
    with app_serving(tmp_path, page=True) as server:
        modern = visible_text(get(server, "/ui/model?era=modern&dialect=sep-2640"))
        legacy = visible_text(get(server, "/ui/model?era=legacy&dialect=nonsense"))
        assert "1 skill here" in modern and "1 with the whole description." in modern
        assert "io.modelcontextprotocol/serverInfo" in modern
        assert "io.modelcontextprotocol/serverInfo" not in legacy
        assert '"skills": [' in modern and '"skills": [' in legacy
        assert "one token for 4 bytes of UTF-8" in modern
    with app_serving(tmp_path, page=True, tools=False) as server:
        for view in ("model", "tools?tool=skills_list&call=1"):
            assert "offers no tools" in visible_text(get(server, f"/ui/{view}"))
