"""What the page says that a model sees is what a host is really given."""

from __future__ import annotations

import html
import re
from pathlib import Path

from catalog.forest import plant, skill_md, skills
from dialects.overviews import made_up
from mcp_skills_server.dialects import runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.ui.pages import model
from web.http_wire import client
from web.ui.serving import get, look_at, page_serving, words
from wire import FIXTURES

LIMIT = runtime.OVERVIEW_CHARACTERS


def test_the_texts_are_those_that_a_host_gets(tmp_path: Path) -> None:
    with page_serving(FIXTURES) as server, client(server, "modern", opened=False) as host:
        instructions = host.open()["instructions"]
        (load,) = (tool for tool in host.request("tools/list")["tools"] if tool["name"] == runtime.LOAD)
        page = get(server, "/ui/model").body.decode()
        shown = re.findall(r'<pre[^>]*id="text-\d">(.*?)</pre>', page, re.DOTALL)
        assert [html.unescape(each) for each in shown] == [instructions, load["description"]]
        assert "one token for 4 bytes of UTF-8" in words(page)
    with page_serving(plant(tmp_path, skills("one")), "--no-tools") as server:
        for view in ("model", "tools?tool=skills_list&call=1"):
            assert "offers no tools" in words(get(server, f"/ui/{view}"))


def test_what_was_cut_is_counted_and_named() -> None:
    for count in (3, 60, 400, 3_000):
        overview = made_up(count, folders=0 if count < 300 else 20)
        for shown in (runtime.in_instructions(overview, LIMIT, scripts=False), runtime.in_loading(overview, LIMIT)):
            found = model.channel("x", shown.text, LIMIT, overview, shown)
            assert found.whole + found.cut + found.named + found.unnamed == count
            assert len(found.examples) == min(model.MOST_CUT, found.cut + found.unnamed)
            for each in found.examples:
                assert (each.name in shown.text) == (each.shown != "not named"), each


def test_what_models_are_not_offered_is_named_and_without_tools_nothing_is_shown(tmp_path: Path) -> None:
    withheld = skill_md("two", "disable-model-invocation: true")
    look = look_at(plant(tmp_path / "skills", skills("one") | {"two/SKILL.md": withheld}))
    assert model.withheld(look) == ["two"]
    assert [each.title for each in model.channels(look)] == ["Instructions", "Description of the tool skills_load"]
    assert all("two" not in each.text for each in model.channels(look))
    assert list(model.channels(look_at(tmp_path / "skills", settings=Settings(tools=False)))) == []
    assert list(model.channels(look_at(plant(tmp_path / "none", {})))) == []
