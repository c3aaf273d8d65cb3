"""The view of what a model sees, compared with what a host receives."""

from __future__ import annotations

import json
from pathlib import Path

import anyio

from catalog.forest import skill_md, skills, write_files
from commands.calls import json_of
from dispatching import dispatching
from mcp_skills_server.authoring.context import CONTEXTS
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.table import AUTO, TABLE
from mcp_skills_server.proposals.store import ProposalStore
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.ui.pages import model
from web.in_process import app_serving
from web.ui.serving import get, make_context, visible_text
from wire import FIXTURES, Era, write_skill


def test_model_view_equals_what_a_host_receives(tmp_path: Path, era: Era) -> None:
    async def method_answers() -> list[model.MethodAnswer]:
        return [answer async for answer in model.method_answers(context, model.ERAS[era], [AUTO, *TABLE])]

    context = make_context(FIXTURES, settings=Settings(proposals=ProposalStore(tmp_path)))
    shown = {(answer.method, answer.dialect): answer for answer in anyio.run(method_answers)}
    for extension in (False, True):
        with dispatching(
            FIXTURES, proposals=ProposalStore(tmp_path), era=era, extension=extension, opened=False
        ) as wire:
            (instructions, *_), _ = model.unasked(context, CONTEXTS["generic"])
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


def test_texts_and_cut_skills_are_those_of_the_chosen_host(tmp_path: Path) -> None:
    texts = {f"s{number}": f"Use when thing {number} is. {'More of it. ' * number}" for number in range(40)}
    for name, description in texts.items():
        write_skill(tmp_path / name, description=description)
    context = make_context(tmp_path)
    for host in ("generic", "gemini-cli", "codex"):
        shown, parts = model.unasked(context, CONTEXTS[host])
        wanted = json_of("context", tmp_path, "--host", host)
        assert [each.text for each in shown] == [each["text"] for each in wanted["unasked"]], host
        assert {part: [each.name for each in offers] for part, offers in parts.items()} == wanted["skills"], host


def test_withheld_skills_are_listed_and_channels_need_tools_and_skills(tmp_path: Path) -> None:
    withheld = skill_md("two", "disable-model-invocation: true")
    context = make_context(write_files(tmp_path / "skills", skills("one") | {"two/SKILL.md": withheld}))
    assert model.withheld(context) == ["two"]
    texts, parts = model.unasked(context, CONTEXTS["generic"])
    assert {"Instructions of the server", "Tool skills_load"} <= {each.title for each in texts}
    assert {part: [each.name for each in offers] for part, offers in parts.items() if offers} == {"whole": ["one"]}
    without_tools = make_context(tmp_path / "skills", settings=Settings(tools=False))
    without_skills = make_context(write_files(tmp_path / "none", {}))
    for none in (without_tools, without_skills):
        assert model.unasked(none, CONTEXTS["generic"])[0] == []


def test_view_selects_era_and_dialect(tmp_path: Path) -> None:
    write_files(tmp_path, skills("one"))
    with app_serving(tmp_path, "--ui") as server:
        modern = visible_text(get(server, "/ui/model?era=modern&dialect=sep-2640"))
        legacy = visible_text(get(server, "/ui/model?era=legacy&dialect=nonsense"))
        assert "1 skill here" in modern and "1 with the whole description, " in modern
        assert "io.modelcontextprotocol/serverInfo" in modern
        assert "io.modelcontextprotocol/serverInfo" not in legacy
        assert '"skills": [' in modern and '"skills": [' in legacy
        assert "one token for 4 bytes of UTF-8" in modern
    with app_serving(tmp_path, "--ui", "--no-tools") as server:
        for view in ("model", "tools?tool=skills_list&call=1"):
            assert "offers no tools" in visible_text(get(server, f"/ui/{view}"))
