"""The briefing: instructions and tool definitions of a registry, and news of changes."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from catalog.forest import load_registry, skill_md, skills, write_files
from dialects.build import skill
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Snapshot
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.runtime.briefing import Briefing, _fitting, _keywords_of
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.settings import RuntimeSettings
from tables import each_row

pytestmark = pytest.mark.anyio


def texts_of(briefing: Briefing) -> tuple[str, str]:
    return briefing.instructions(), str(briefing.tools(handles=True))


@pytest.mark.parametrize("paths", [[f"s{n}" for n in range(12)], [f"team-{n % 7}/skill-{n:03}" for n in range(700)]])
def test_briefing_before_scan_is_that_of_previous_process(
    tmp_path: Path, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    hidden = {"team-1/manual/SKILL.md": skill_md("manual", "disable-model-invocation: true")}
    root, index = write_files(tmp_path / "skills", skills(*paths) | hidden), Index(tmp_path / "index", 1)
    previous = Registry([root], index=index)
    previous.load()
    previous.save_index()
    registry = Registry([root], index=index)
    briefing = Runtime(registry).whole.briefing
    assert briefing.remember()
    before = texts_of(briefing)
    assert not registry.loaded.is_set()
    assert f"{len(paths)} skills here" in before[0]
    assert "manual" not in str(before)
    registry.load()
    assert texts_of(briefing) == before


def test_briefing_before_first_scan_names_no_skill(tmp_path: Path) -> None:
    for files, after in ((skills("a"), "1 skill here"), ({}, "")):
        registry = Registry([write_files(tmp_path / f"{len(files)}", files)], index=Index(tmp_path / "index", 1))
        briefing = Runtime(registry).whole.briefing
        assert not briefing.remember()
        assert briefing.instructions().startswith("Skills here")
        assert len(briefing.tools(handles=True)) == 5
        registry.load()
        assert briefing.instructions().startswith(after)
    assert texts_of(briefing) == ("", "[]")


def test_search_tool_description_has_keywords_for_hosts_with_tool_search(tmp_path: Path) -> None:
    many = {f"skill-of-a-long-name-{n}/SKILL.md": skill_md(f"skill-of-a-long-name-{n}") for n in range(147)}
    table = skill_md("tables", "tags: [spreadsheet]").replace("Tells", "Reads CSV and tells")
    registry = load_registry(write_files(tmp_path, many | {"tables/SKILL.md": table}))
    briefing = Runtime(registry).whole.briefing
    description = str(briefing.tools(handles=True, client=client_of("codex-mcp-client"))[1]["description"])
    keywords = description.split("There are skills about: ")[1].rstrip(".").split(", ")
    assert {"tables", "spreadsheet", "csv"} <= {*keywords}
    assert len(description) <= 4_000
    assert "csv" not in str(briefing.tools(handles=True)[1]["description"])
    short = Runtime(registry, RuntimeSettings(overview_characters=500)).whole.briefing
    tools = short.tools(handles=True, client=client_of("codex-mcp-client"))
    assert max(len(str(tool["description"])) for tool in tools) <= 500


def test_keywords_fill_the_limit_with_names_first() -> None:
    counts = Counter({"bcd": 1, "abcd": 1, "xyz": 2, "ab": 9, "the": 9})
    fits = {4: "", 5: "xyz", 10: "xyz", 11: "xyz abcd", 15: "xyz abcd", 16: "xyz abcd bcd"}
    assert {most: " ".join(_fitting(counts, most)) for most in fits} == fits
    for most, words in ((11, ["abc"]), (12, ["abc", "defgh"])):
        assert _keywords_of([skill("abc", description="Defgh abc.")], most) == words
    for length, count in ((1_998, 1), (1_999, 0)):
        assert len(_keywords_of([skill("x" * length, description="a")], 4_000)) == count


class Shown(NamedTuple):
    """A host that shows these skills by itself."""

    paths: frozenset[str]

    def shown(self, _: Snapshot) -> frozenset[str]:
        return self.paths


@each_row(("shown", "scripts", "listed", "tools"), [
    ("", False, "abc", 5), ("a", False, "bc", 5), ("ab", True, "c", 6), ("abc", False, "", 0), ("abc", True, "", 6),
])  # fmt: skip
def test_briefing_lists_the_skills_that_the_host_does_not_show(
    tmp_path: Path, shown: str, scripts: bool, listed: str, tools: int
) -> None:
    registry = load_registry(write_files(tmp_path, skills(*(f"skill-{name}" for name in "abc"))))
    briefing, host = (
        Briefing(registry, RuntimeSettings(), lambda: scripts),
        Shown(frozenset(f"skill-{x}" for x in shown)),
    )
    for _ in "made, then kept":
        instructions = briefing.instructions(host=host)
        definitions = briefing.tools(handles=True, host=host)
        assert len(definitions) == tools
        for text in (instructions, json.dumps(definitions)):
            assert {*re.findall(r"skill-([abc])\b", text)} == {*listed}
    assert bool(briefing.instructions(host=host)) is bool(listed)
    assert len(briefing.tools(handles=True)) == 5 + scripts  # another host's texts stay


def test_skill_with_preferred_tag_is_described_before_recently_used_ones(tmp_path: Path) -> None:
    text = "Use when a case comes up that is like this one and needs a sentence of some length"
    for number in range(80):  # too many for all descriptions
        tag = "tags: [team]\n" if number == 70 else ""
        fields = f"---\nname: s{number}\ndescription: {text}, {number}.\n{tag}---\n"
        write_files(tmp_path, {f"s{number}/SKILL.md": fields})
    for tags in ((), ("team",)):
        recent = [f"s{number}" for number in range(70)]
        settings = RuntimeSettings(preferred_tags=tags, preferred_paths=recent)
        briefing = Runtime(load_registry(tmp_path), settings).whole.briefing
        assert (f"- s70: {text}" in briefing.instructions()) is bool(tags)


def test_overview_names_roots_by_last_path_component(tmp_path: Path) -> None:
    roots = [write_files(tmp_path / root, skills(*(f"{root}-{n}" for n in range(30)))) for root in ("mine", "ours")]
    shown = Runtime(load_registry(*roots), RuntimeSettings(overview_characters=900)).whole.briefing.instructions()
    assert "\n- mine (30): mine-" in shown and "\n- ours (30): ours-" in shown
    assert str(tmp_path) not in shown


def test_news_counts_skills_added_and_removed_since_a_time(tmp_path: Path) -> None:
    registry = Registry([write_files(tmp_path, skills("a", "b"))])
    briefing = Runtime(registry).whole.briefing
    registry.load()
    times: list[float] = []
    assert briefing.news(0) is None
    unannounced = {"a/more.md": "x", "e/SKILL.md": skill_md("e", "disable-model-invocation: true")}
    for files, removed, news in (
        (skills("c", "d") | unannounced, "b", "2 added and 1 removed."),
        (skills("b"), "c", ": 1 added."),
        ({}, "d", "None"),
    ):
        write_files(tmp_path, files)
        (tmp_path / removed / "SKILL.md").unlink()
        registry.refresh()
        assert news in str(briefing.news(0))
        times.append(time.monotonic())
        assert briefing.news(times[-1]) is None
    assert "1 added and 2 removed." in str(briefing.news(times[0]))


def test_news_is_limited_and_ends_with_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load_registry(tmp_path)
    monkeypatch.setattr("mcp_skills_server.runtime.briefing._MAX_KEPT", 3)
    runtime, closed = Runtime(registry), Runtime(registry)
    closed.close()
    write_files(tmp_path, skills("f", "g", "h", "i", "j"))
    registry.refresh()
    assert "3 added or more." in str(runtime.whole.briefing.news(0))
    assert closed.whole.briefing.news(0) is None


async def test_only_search_and_load_results_carry_news(tmp_path: Path) -> None:
    registry = load_registry(write_files(tmp_path, skills("alpha")))
    runtime = Runtime(registry)
    session, hosted = Session(runtime.whole, hosted=False), runtime.session()
    calls = (("skills_search", {"query": "alpha"}), ("skills_load", {"names": ["alpha"]}))
    for name, arguments in calls:
        assert "changed" not in str(await session.call(name, arguments))
    write_files(tmp_path, skills("beta"))
    registry.refresh()
    for name, arguments in calls:
        result = await session.call(name, arguments)
        assert "1 added." in str(result["content"])
        assert "1 added." in str(result["structuredContent"])
        assert "changed" not in str(await hosted.call(name, arguments))  # each model call has the instructions
        assert "changed" not in str(await Session(runtime.whole, hosted=False).call(name, arguments))
    assert "changed" not in str(await session.call("skills_list"))
