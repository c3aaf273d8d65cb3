"""Sessions as an orchestrator uses them: on a real disk, through the tools that a model calls."""

from __future__ import annotations

import base64
import json
import re
import shutil
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.forest import DEADLINE, loaded, plant, skill_md, skills
from dialects.build import JSON, skill
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.dialects import runtime as told
from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.format import uris
from mcp_skills_server.model import SKILL_MD, Standing
from mcp_skills_server.runtime.runtime import Runtime, RuntimeSettings
from mcp_skills_server.runtime.scripts.workspace import Workspace
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.runtime.tool_arguments import path_in
from runtime.workshop import PDF, PNG, WORKSHOP, Scripts, active, ask, forbidden, listed, refused, text
from tables import each_row
from wire import FIXTURES

pytestmark = pytest.mark.anyio


@pytest.fixture
def scripts(registry: Registry) -> Scripts:
    return Scripts(registry)


@pytest.fixture
def able(registry: Registry, scripts: Scripts) -> Session:
    runtime = Runtime(registry)
    runtime.scripts = scripts  # pyright: ignore[reportAttributeAccessIssue]
    return runtime.session()


@pytest.mark.requirement("RT-2", "RT-4", "RT-6", "RT-13", "RT-15", "RT-21", "RT-23", "X-16")
async def test_a_conversation_chooses_loads_uses_and_switches(able: Session) -> None:
    first = await able.instructions()
    assert "<name>pdf-processing</name>" in first
    assert "<active_skills>" not in first
    assert able.active_skills == []
    assert "No skill is loaded" in await refused(able, "skills.read", {"path": "references/guide.md"})
    receipt = await ask(able, "skills.load", names=["pdf-processing"])
    assert receipt["structuredContent"] == {
        "active_skills": [{
            "name": "pdf-processing", "location": "skill://pdf-processing/SKILL.md",
            "root_dir": "skill://pdf-processing", "digest": f"sha256:{sha256(PDF.encode()).hexdigest()}",
            "properties": {
                "name": "pdf-processing", "description": "Tells how pdf-processing is done and when to use it.",
                "allowed-tools": "Read", "license": "MIT",
            },
        }]
    }  # fmt: skip
    assert "Read [the guide]" not in json.dumps(receipt)
    second = await able.instructions()
    assert second.startswith(first)
    assert '<skill name="pdf-processing">\nRead [the guide](references/guide.md).' in second
    assert "license: MIT" not in second
    guide = await ask(able, "skills-readresource", path="references/guide.md")
    assert guide == {"content": [{"type": "text", "text": "Fill in the form.\nThen sign it.\n"}]}
    outcome = await ask(able, "skills.run_script", path="scripts/extract.py", args=["--in", "a.pdf"])
    assert outcome["structuredContent"]["exit_code"] == 0
    receipt = await ask(able, "skills.load", names=["data-analysis"], mode="replace")
    assert active(receipt) == able.active_skills == ["data-analysis"]
    third = await able.instructions()
    assert "Look at the data first." in third
    assert "Read [the guide]" not in third
    assert third.startswith(first)
    assert text(await ask(able, "skills.read", path="references/guide.md")) == "Draw it.\n"
    assert "not loaded" in await refused(able, "skills.read", {"path": SKILL_MD, "skill": "pdf-processing"})
    receipt = await ask(able, "skills.unload", all=True)
    assert receipt["structuredContent"] == {"active_skills": []}
    assert await able.instructions() == first


@pytest.mark.requirement("RT-2", "RT-23", "MCP-26", "X-17")
async def test_sessions_know_nothing_of_each_other_and_loading_changes_no_tool(registry: Registry) -> None:
    runtime = Runtime(registry)
    one, other = runtime.session(), runtime.session()
    before = json.dumps(one.tools())
    assert "session" not in (await ask(one, "skills_load", names=["pdf-processing"]))["structuredContent"]
    assert json.dumps(one.tools()) == before
    assert other.active_skills == []
    assert one.session_id != other.session_id
    assert "<active_skills>" not in await other.instructions()
    assert '"session"' not in json.dumps([tool["inputSchema"] for tool in one.tools()])
    assert "session" in await refused(one, "skills_load", {"names": ["refunds"], "session": one.session_id})


@pytest.mark.requirement("ASG-16", "ASG-23")
@each_row("files", [{}, {"mute/SKILL.md": "---\nname: mute\n---\nDo it.\n"}])
async def test_without_a_described_skill_there_is_neither_word_nor_tool(tmp_path: Path, files: dict[str, str]) -> None:
    session = Runtime(loaded(plant(tmp_path, files))).session()
    assert await session.instructions() == ""
    assert session.tools() == []
    assert "Unknown skill: 'a'" in await refused(session, "skills_load", {"names": ["a"]})
    assert text(await session.call("skills_list")) == "No skill matches."
    assert text(await session.call("skills_search", {"query": "mute"})).startswith("No skill matches.")


@pytest.mark.requirement("RT-22", "X-15")
async def test_where_no_host_binds_the_session_its_handle_and_the_bodies_travel_in_results(registry: Registry) -> None:
    session = Session(Runtime(registry), hosted=False)
    first = await ask(session, "skills_load", names=["pdf-processing"])
    second = await ask(session, "skills_load", names=["data-analysis"], mode="add")
    for receipt in (first, second):
        assert receipt["structuredContent"]["session"] == session.session_id
        assert session.session_id in text(receipt)
    assert "Read [the guide]" in text(first)
    (entry,) = first["structuredContent"]["active_skills"]
    assert "instructions" not in entry and "references/guide.md\nassets/form.bin" in text(first)
    assert "Read [the guide]" not in json.dumps(second) and "Look at the data first." in text(second)
    either = await session.call("skills_load", {"names": ["pdf-processing"]}, client="mcp")
    (entry,) = either["structuredContent"]["active_skills"]
    assert entry["instructions"].startswith("Read [the guide]")
    rest = ["assets/form.bin", "assets/icon.png", "references/my notes.md", "scripts/extract.py"]
    assert entry["files"] == ["references/guide.md", *rest]
    assert "session" in await refused(Session(Runtime(registry), hosted=False), "skills_read", {"path": SKILL_MD})


async def test_the_pages_of_the_list_are_the_whole_list(tmp_path: Path) -> None:
    hidden = {f"s{number}x/SKILL.md": skill_md(f"s{number}x", "disable-model-invocation: true") for number in (0, 3, 6)}
    names = [f"s{number}" for number in range(7)]
    session = Runtime(loaded(plant(tmp_path, skills(*names) | hidden))).session()
    for limit in (1, 2, 3, 6, 7, 8, 200):
        found: list[str] = []
        page = await ask(session, "skills_list", limit=limit)
        found += listed(page)
        while "next_after" in page["structuredContent"]:
            assert len(listed(page)) == limit
            after = page["structuredContent"]["next_after"]
            assert f'after="{after}"' in text(page)
            page = await ask(session, "skills_list", limit=limit, after=after)
            assert listed(page)
            found += listed(page)
        assert found == names
    assert listed(await ask(session, "skills_list", after="s5/gone")) == ["s6"]
    things = {f"g{n:02}/thing-{n}/SKILL.md": skill_md(f"thing-{n}", f"tags: [t{n % 13:02}]") for n in range(51)}
    session = Runtime(loaded(plant(tmp_path, things))).session()
    assert len(listed(await ask(session, "skills_list"))) == 50
    assert len(listed(await ask(session, "skills_search", query="thing"))) == 5
    unknown = await refused(session, "skills_load", {"names": ["thingy"]})
    assert re.search(r"nearest: thing-\d+, thing-\d+, thing-\d+$", unknown)
    advice = text(await ask(session, "skills_search", query="thicket"))
    assert re.search(r"Nearest names: thing-\d+, thing-\d+, thing-\d+\.", advice)
    assert all(f": {', '.join(f'{letter}{number:02}' for number in range(12))}." in advice for letter in "tg")


async def test_a_search_follows_the_catalogue(tmp_path: Path, session: Session, registry: Registry) -> None:
    assert listed(await ask(session, "skills_search", query="process a pdf"))[0] == "pdf-processing"
    assert len(listed(await ask(session, "skills_search", query="pdf data refunds", limit=2))) == 2
    nothing = await ask(session, "skills_search", query="origami")
    advice = "Try other keywords, in the language of the skills; skills_list goes through all of them. Groups: acme."
    assert (text(nothing), listed(nothing)) == (f"No skill matches.\n{advice}", [])
    assert nothing["structuredContent"] == {"skills": [], "note": advice}
    near = text(await ask(session, "skills_search", query="professor"))
    assert near == f"No skill matches.\n{advice}".replace("Groups", "Nearest names: pdf-processing. Groups")
    plant(tmp_path, skills("origami"))
    registry.refresh()
    assert listed(await ask(session, "skills_search", query="origami")) == ["origami"]
    assert "<name>origami</name>" in await session.instructions()
    assert "origami" in json.dumps(session.tools())


@pytest.mark.requirement("RT-15", "RT-16", "X-30")
async def test_reading_means_the_skill_that_was_loaded_last_unless_told(session: Session) -> None:
    for arguments in ({"path": SKILL_MD}, {"path": SKILL_MD, "skill": "refunds"}):
        assert "No skill is loaded; call skills_load" in await refused(session, "skills_read", arguments)
    await ask(session, "skills_load", names=["pdf-processing", "data-analysis"])
    path = "references/guide.md"
    assert text(await ask(session, "skills_read", path=path)) == "Draw it.\n"
    for form in ("pdf-processing", "skill://pdf-processing/SKILL.md"):
        assert text(await ask(session, "skills_read", path=path, skill=form)).startswith("Fill in")
    await ask(session, "skills_unload", names=["data-analysis"])
    assert text(await ask(session, "skills_read", path=path)).startswith("Fill in")
    words = await refused(session, "skills_read", {"path": SKILL_MD, "skill": "refunds"})
    assert "'refunds' is not loaded; call skills_load" in words and "Loaded now: pdf-processing" in words
    words = await refused(session, "skills_read", {"path": SKILL_MD, "skill": "refnds"})
    assert "Unknown skill: 'refnds'; nearest: refunds" in words


@pytest.fixture
async def using(session: Session) -> Session:
    await ask(session, "skills_load", names=["pdf-processing"])
    return session


@pytest.mark.requirement("RT-17")
@each_row(
    ("file", "asked"),
    [
        ("references/guide.md", "references/guide.md"), ("scripts/extract.py", "scripts/extract.py"),
        (SKILL_MD, SKILL_MD), ("references/my notes.md", "./references/my notes.md"),
        ("references/my notes.md", "skill://pdf-processing/references/my notes.md"),
        ("references/my notes.md", uris.uri("pdf-processing", "references/my notes.md")),
    ],
)  # fmt: skip
async def test_any_text_is_read_exactly_by_its_path_or_its_uri(using: Session, file: str, asked: str) -> None:
    assert text(await ask(using, "skills_read", path=asked)) == WORKSHOP[f"pdf-processing/{file}"]


@pytest.mark.requirement("RT-17")
async def test_files_are_read_as_fits_and_as_the_operator_says(using: Session, registry: Registry) -> None:
    _, picture = (await ask(using, "skills_read", path="assets/icon.png"))["content"]
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(picture["data"], validate=True) == PNG
    _, link = (await ask(using, "skills_read", path="assets/form.bin"))["content"]
    found = uris.find(registry.snapshot, link["uri"], Standing.VALID)
    assert link["type"] == "resource_link" and found is not None and found[0].files[found[1]].size == 3
    short = Runtime(registry, RuntimeSettings(result_characters=20, media_bytes=10)).session()
    await ask(short, "skills_load", names=["pdf-processing"])
    for more in ({}, {"start_line": 1.0, "max_lines": 1}):
        part, note = (await ask(short, "skills_read", path="references/guide.md", **more))["content"]
        assert part["text"].rstrip("\n") == "Fill in the form." and "go on with start_line=2" in note["text"]
    rest = await ask(short, "skills_read", path="references/guide.md", start_line=2)
    assert text(rest).rstrip("\n") == "Then sign it."
    assert "has 2 lines" in await refused(short, "skills_read", {"path": "references/guide.md", "start_line": 3})
    _, link = (await ask(short, "skills_read", path="assets/icon.png"))["content"]
    assert link["type"] == "resource_link"
    for size, kind in ((1 << 20, "image"), ((1 << 20) + 1, "resource_link")):
        plant(Path(registry.roots[0].path), {"pdf-processing/assets/icon.png": PNG.ljust(size, b"\0")})
        registry.refresh()
        assert (await ask(using, "skills_read", path="assets/icon.png"))["content"][-1]["type"] == kind


@each_row(
    ("path", "said"),
    [
        *((path, "is a directory; there is: references/guide.md, references/my notes.md")
          for path in ("references", "references/", "./references")),
        *((path, "is not a file of the skill pdf-processing; nearest: references/guide.md")
          for path in ("references/giude.md", "guide.md")),
        *((path, "is not a file of the skill pdf-processing; there is: SKILL.md, assets/form.bin, assets/icon.png")
          for path in ("zzzz", "", ".")),
    ],
)  # fmt: skip
async def test_an_unknown_path_is_told_the_nearest(using: Session, path: str, said: str) -> None:
    assert said in await refused(using, "skills_read", {"path": path})


def test_so_many_paths_are_named() -> None:
    for count, shown in ((40, ", f39"), (41, ", f39 ...")):
        paths = [f"f{number}" for number in range(count)]
        with pytest.raises(RequestError, match=rf"there is: f0, .*{re.escape(shown)}$"):
            path_in(skill("a"), "zzzz", paths)
    with pytest.raises(RequestError, match=r"nearest: (guide\d,? ?){3}$"):
        path_in(skill("a"), "guide", [f"guide{number}" for number in range(4)])


@pytest.mark.requirement("RT-17", "MCP-55")
async def test_no_path_leads_out_of_the_skill_or_to_the_disk(
    tmp_path: Path, session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.txt").write_text("do not tell")
    await ask(session, "skills_load", names=["data-analysis", "pdf-processing"])
    for place, name in ((disk, "read"), (registry, "read"), (registry, "refresh")):
        monkeypatch.setattr(place, name, forbidden)
    for path in (
        "../secret.txt", "references/../../secret.txt", "references/../references/guide.md", f"{tmp_path}/secret.txt",
        f"{tmp_path}/pdf-processing/SKILL.md", "/etc/passwd", "%2e%2e/secret.txt", "..%2fsecret.txt",
        "..\\secret.txt", "skill://pdf-processing/../secret.txt", "skill://pdf-processing/%2e%2e/secret.txt",
        "skill://data-analysis/references/guide.md", "file:///etc/passwd", "references/guide.md\0",
        "//references/guide.md",
    ):  # fmt: skip
        words = await refused(session, "skills_read", {"path": path})
        assert "is not a file of the skill" in words and "do not tell" not in words, path


@pytest.mark.requirement("RT-17")
async def test_a_file_that_changed_a_moment_ago_is_read_as_it_is_now(
    tmp_path: Path, using: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide, path = tmp_path / "pdf-processing/references/guide.md", "references/guide.md"
    await ask(using, "skills_read", path=path)
    guide.write_text("All of it is new.\n")
    assert text(await ask(using, "skills_read", path=path)) == "All of it is new.\n"
    guide.unlink()
    words = await refused(using, "skills_read", {"path": path})
    assert "is not a file of the skill" in words and "references/my notes.md" in words
    monkeypatch.setattr(registry, "read", Mock(side_effect=StaleFileError("/nowhere")))
    words = await refused(using, "skills_read", {"path": SKILL_MD})
    assert "try again" in words and "nowhere" not in words  # it never holds still


async def test_a_skill_that_changed_a_moment_ago_is_loaded_as_it_is_now(tmp_path: Path, session: Session) -> None:
    await ask(session, "skills_load", names=["data-analysis", "pdf-processing"])
    shutil.rmtree(tmp_path / "pdf-processing")
    assert "is not loaded" in await refused(session, "skills_read", {"path": "references/guide.md"})
    assert "<active_skills>" in await session.instructions()
    assert session.active_skills == ["data-analysis"]
    assert text(await ask(session, "skills_read", path="references/guide.md")) == "Draw it.\n"
    changed = skill_md("refunds", body="Ask for nothing.")
    (tmp_path / "acme/billing/refunds" / SKILL_MD).write_text(changed)
    (entry,) = (await ask(session, "skills_load", names=["refunds"]))["structuredContent"]["active_skills"]
    assert entry["digest"] == f"sha256:{sha256(changed.encode()).hexdigest()}"
    assert "Ask for nothing." in await session.instructions()


@each_row(
    ("tool", "arguments", "wrong"),
    [
        ("skills_load", None, "'names' is a required property. skills_load takes: names (required), mode"),
        ("skills_load", {"names": "refunds"}, "Argument names: 'refunds' is not of type 'array'"),
        ("skills_load", {"names": ["refunds"], "mode": "merge"}, "'replace', 'add'"),
        ("skills_unload", {"all": "yes"}, "all: 'yes' is not of type 'boolean'. skills_unload takes: names, all"),
        ("skills_list", {"limit": 0}, "limit: 0 is less than the minimum of 1. skills_list takes: after, limit"),
        ("skills_list", {"limit": True}, "Argument limit: True is not of type 'integer'"),
        ("skills_search", {"query": None}, "query: None is not of type 'string'. skills_search takes: query (req"),
        ("skills_read", {"path": "a", "start_line": 0}, "skills_read takes: path (required), skill, start_line, max_"),
        ("skills_read", {"path": "a", "max_lines": 1.5}, "Argument max_lines: 1.5"),
        ("skills_run_script", {"path": "a", "args": "-v"}, "skills_run_script takes: path (required), skill, args"),
        ("skills_run_script", {"path": "a", "env": {"A": 1}}, "Argument env.A: 1"),
    ],
)  # fmt: skip
async def test_wrong_arguments_are_told_what_the_tool_takes(
    session: Session, tool: str, arguments: dict[str, Any] | None, wrong: str
) -> None:
    assert wrong in await refused(session, tool, arguments)


async def test_words_about_wrong_arguments_are_short_and_can_be_written(session: Session) -> None:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    for arguments in (
        {"path": "x", "env": {"a\nb": 1}}, {"path": "x", "env": {"\ud800": 1}}, {"path": "x", "env": {"a" * 10_000: 1}},
        {"path": "x", "a\nb" * 5_000: 1}, {"path": ["x" * 10_000]}, {"path": deep},
    ):  # fmt: skip
        words = await refused(session, "skills_run_script", arguments)
        assert "skills_run_script takes: " in words and len(words) < 1000
        assert words.encode()
    words = await refused(session, "skills_run_script", {"path": "x", "env": {"a" * 200: 1}})
    assert words.startswith(f"Argument env.{'a' * 96}: 1 is not of type")


@each_row("name", ["", "skills", "skills_delete", "Skills_Load", "x" * 10_000, "a\nb", "\ud800"])
async def test_an_unknown_tool_is_told_the_tools(session: Session, name: str) -> None:
    words = await refused(session, name, {})
    assert words.startswith("Unknown tool") and "skills_load" in words
    assert len(words) < 1000
    assert words.encode()


WORDS = (
    st.sampled_from(["csv-profiling", "refunds", "polite-greetings", SKILL_MD, "scripts/check_columns.sh", "scripts"])
    | st.sampled_from(["skill://csv-profiling", "skill://csv-profiling/%00", "skill://%ff", "../x", "[", '"', "\ud800"])
    | st.text(max_size=20)
)
NUMBERS = st.integers(1, 300) | st.integers(1, 10**30) | st.floats(1, 1e308)
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "names": st.lists(WORDS, max_size=4), "args": st.lists(WORDS, max_size=3), "all": st.booleans(),
    "mode": st.sampled_from(["replace", "add"]), "env": st.dictionaries(st.text(max_size=5), WORDS, max_size=2),
    "limit": NUMBERS, "start_line": NUMBERS, "max_lines": NUMBERS, "timeout_s": NUMBERS | st.floats(0, 1),
}  # fmt: skip
"""Arguments that are no words."""


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A tool and arguments for it, likely ones or wild ones or some of both."""
    known = st.sampled_from([*told.argument_schemas(), "skills.load", "skills-readresource"])
    name = draw(known | st.text(max_size=12))
    tool = told.canonical(name)
    schema: Any = told.argument_schemas()[tool] if tool else {"properties": {"path": {}}}
    likely = {key: LIKELY.get(key, WORDS) for key in schema["properties"]}
    taken = {key: one if draw(st.booleans()) else one | JSON for key, one in likely.items()}
    required = {key: taken.pop(key) for key in schema.get("required", ()) if draw(st.integers(0, 9))}
    arguments = draw(st.fixed_dictionaries(required, optional=taken))
    if draw(st.integers(0, 9)) == 0:
        arguments |= draw(st.dictionaries(st.text(max_size=9), JSON, max_size=2))
    return name, arguments


@pytest.fixture(scope="module")
def shared() -> Runtime:
    """What sessions over the fixtures share, for tests that change nothing on the disk."""
    return Runtime(loaded(Path(FIXTURES)))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(said=st.lists(calls(), min_size=1, max_size=3), hosted=st.booleans())
def test_nothing_that_a_model_says_raises(
    shared: Runtime, said: list[tuple[str, dict[str, Any]]], hosted: bool
) -> None:
    async def talk() -> None:
        session = Session(shared, hosted=hosted)
        await session.call("skills_load", {"names": ["csv-profiling", "polite-greetings"]})
        for name, arguments in said:
            result: Any = await session.call(name, arguments)
            assert json.dumps(result, ensure_ascii=False).encode()
            assert result["content"] and all(block["type"] for block in result["content"])
            assert result.get("isError", True) is True
            assert len(session.active_skills) <= shared.settings.max_loaded
            assert await session.instructions()
        assert session.calls == 0

    anyio.run(talk)


@pytest.mark.requirement("X-29")
async def test_unless_the_operator_allows_scripts_there_are_none(session: Session) -> None:
    assert "skills_run_script" not in [tool["name"] for tool in session.tools()]
    assert "skills_run_script" not in await session.instructions()
    for _ in range(2):
        assert "--allow-scripts" in await refused(session, "skills_run_script", {"path": "scripts/extract.py"})
        await ask(session, "skills_load", names=["pdf-processing"])


@pytest.mark.requirement("RT-18", "RT-19")
async def test_a_script_is_run_with_what_the_model_says(able: Session, scripts: Scripts) -> None:
    assert "skills_run_script" in [tool["name"] for tool in able.tools()]
    await ask(able, "skills_load", names=["pdf-processing"])
    beats: list[float] = []

    async def beat(seconds: float) -> None:
        beats.append(seconds)

    said = {"args": ["--in", "a b"], "env": {"KEY": "v"}, "workdir": "out", "timeout_s": 2.5}
    result: Any = await able.call("skills.run_script", {"path": "./scripts/extract.py", **said}, progress=beat)
    assert result["structuredContent"]["stdout"] == "print('extracted')\n"
    await ask(able, "skills_run_script", path="scripts/extract.py")
    (skill, path, workspace, more), (*_, bare) = scripts.asked
    assert (skill.path, path, workspace) == ("pdf-processing", "scripts/extract.py", scripts.made[0])
    assert more == {**said, "progress": beat, "owner": None, "permissions": None} and beats == [1.0]
    assert bare == {**dict.fromkeys(more), "args": (), "workdir": "."}


@pytest.mark.requirement("RT-15", "RT-16", "RT-18", "X-30")
async def test_only_scripts_of_loaded_skills_are_run(able: Session, scripts: Scripts) -> None:
    assert "No skill is loaded" in await refused(able, "skills_run_script", {"path": "scripts/extract.py"})
    await ask(able, "skills_load", names=["pdf-processing"])
    words = await refused(able, "skills_run_script", {"path": "scripts/plot.sh", "skill": "data-analysis"})
    assert "'data-analysis' is not loaded" in words
    await ask(able, "skills_load", names=["data-analysis"], mode="add")
    assert (await ask(able, "skills_run_script", path="scripts/plot.sh"))["structuredContent"]["exit_code"] == 0
    await ask(able, "skills_run_script", path="scripts/extract.py", skill="pdf-processing")
    assert [skill.name for skill, *_ in scripts.asked] == ["data-analysis", "pdf-processing"]


@pytest.mark.requirement("RT-18", "X-29")
async def test_only_files_below_scripts_are_run(able: Session, scripts: Scripts) -> None:
    await ask(able, "skills_load", names=["data-analysis", "pdf-processing"])
    for path in (
        "extract.py", "scripts/", "scripts", "references/guide.md", SKILL_MD, "assets/form.bin",
        "scripts/../assets/form.bin", "../data-analysis/scripts/plot.sh", "scripts/../../data-analysis/scripts/plot.sh",
        "skill://data-analysis/scripts/plot.sh", "/bin/sh", "scripts/%65xtract.py", "scripts/extract.py --in a", "",
    ):  # fmt: skip
        assert ": scripts/extract.py" in await refused(able, "skills_run_script", {"path": path})
    await ask(able, "skills_load", names=["refunds"])
    assert "it has no file below scripts/" in await refused(able, "skills_run_script", {"path": "scripts/x.sh"})
    assert scripts.asked == [] and scripts.made == []


async def test_a_session_has_one_work_directory_and_closes_it(able: Session, scripts: Scripts) -> None:
    other = able._runtime.session()
    for session in (able, able, other):
        await ask(session, "skills_load", names=["pdf-processing"])
        await ask(session, "skills_run_script", path="scripts/extract.py")
    first, second = scripts.made
    assert [workspace for _, _, workspace, _ in scripts.asked] == [first, first, second]
    able.close()
    able.close()
    assert (first.close.call_count, second.close.call_count) == (1, 0)
    assert able.active_skills == []
    able._runtime.close()
    assert scripts.close.call_count == 1


async def test_what_a_script_left_is_read_up_to_a_bound(
    tmp_path: Path, able: Session, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    monkeypatch.setattr(scripts, "workspace", lambda: Workspace(str(work), Mock()))
    await ask(able, "skills_load", names=["pdf-processing"])
    words = await refused(able, "skills_read", {"path": "/workspace/out.txt"})
    assert words == "No script has run in this session, so there is nothing in /workspace/"
    assert (able.scripts_at, able.script_moves) == ("", 0)
    for _ in range(2):
        await ask(able, "skills_run_script", path="scripts/extract.py")
    assert (able.scripts_at, able.script_moves) == ("here", 1)
    plant(work, {"out.txt": "one\ntwo\n", "out.bin": b"\0" * (16 << 20), "more.bin": b"\0" * ((16 << 20) + 1)})
    assert text(await ask(able, "skills_read", path="/workspace/out.txt", start_line=2)) == "two\n"
    assert "octet-stream, 16,777,216 bytes" in await refused(able, "skills_read", {"path": "/workspace/out.bin"})
    words = await refused(able, "skills_read", {"path": "/workspace/more.bin"})
    assert "has 16,777,217 bytes, and at most 16,777,216 are read" in words


@pytest.mark.requirement("RT-18")
async def test_a_script_that_changed_a_moment_ago_runs_as_it_is_now(
    tmp_path: Path, able: Session, scripts: Scripts
) -> None:
    await ask(able, "skills_load", names=["pdf-processing"])
    (tmp_path / "pdf-processing/scripts/extract.py").write_text("print('all of it is new')\n")
    result = await ask(able, "skills_run_script", path="scripts/extract.py")
    assert result["structuredContent"]["stdout"] == "print('all of it is new')\n"
    assert scripts.tries == 2 and len(scripts.asked) == 1
    (tmp_path / "pdf-processing/scripts/extract.py").unlink()
    assert "it has no file below" in await refused(able, "skills_run_script", {"path": "scripts/extract.py"})
    assert len(scripts.asked) == 1


async def test_calls_of_one_conversation_are_each_answered_from_the_view_of_whoever_made_it(registry: Registry) -> None:
    all_of_it, some = Principal("token", "ann", groups=frozenset({"all"})), Principal("token", "ann")
    grants = [Grant(("group:all",), (Pattern("**"),)), Grant(("token:ann",), (Pattern("acme/**"),))]
    shared, views = Runtime(registry), Views(registry, Grants(grants, local=False))
    wide, narrow = shared.restricted_to(views.of(all_of_it)), shared.restricted_to(views.of(some))
    session = Sessions(shared).new(runtime=wide)
    answers: dict[str, str] = {}

    async def ask_as(name: str, of: Runtime, tool: str, **arguments: object) -> None:
        answers[name] = json.dumps(await session.call(tool, arguments, of=of))

    await ask_as("first", wide, "skills_load", names=["pdf-processing"])
    assert "pdf-processing" in answers["first"]
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks, session._active._changing:  # they stand where a file is awaited
            for number in range(2):
                tasks.start_soon(partial(ask_as, f"wide {number}", wide, "skills_load", names=["data-analysis"]))
                await anyio.wait_all_tasks_blocked()
                adding = partial(ask_as, f"added {number}", narrow, "skills_load", mode="add")
                tasks.start_soon(partial(adding, names=["refunds"]))
                tasks.start_soon(partial(ask_as, f"named {number}", narrow, "skills_load", names=["data-analysis"]))
                tasks.start_soon(partial(ask_as, f"left {number}", narrow, "skills_unload", names=["refunds"]))
                tasks.start_soon(partial(ask_as, f"read {number}", narrow, "skills_read", path="SKILL.md"))
                await anyio.wait_all_tasks_blocked()
    for name, answer in answers.items():
        if name.startswith("wide"):
            assert "Look at the data first" in answer or "data-analysis" in answer
        elif name != "first":
            assert "pdf" not in answer and "Look at the data" not in answer, name
            assert "data-analysis" not in answer or "Unknown skill" in answer, name
