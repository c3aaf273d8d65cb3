"""Sessions: instructions, tool definitions and tool calls, over skills on disk."""

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

from catalog.forest import DEADLINE, load_registry, skill_md, skills, write_files
from dialects.build import JSON, skill
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.dialects import runtime as dialect
from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.format import uris
from mcp_skills_server.model import SKILL_MD, Standing
from mcp_skills_server.runtime.offering import Offering
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.scripts.runner import RunRequest
from mcp_skills_server.runtime.scripts.workspace import Workspace
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.runtime.settings import RuntimeSettings
from mcp_skills_server.runtime.tool_arguments import path_in
from runtime.support import (
    PDF_SKILL_MD,
    PNG,
    SKILL_FILES,
    FakeScripts,
    active_names,
    call_tool,
    error_of,
    listed_names,
    read_text,
    text_of,
    unexpected_call,
)
from tables import each_row
from wire import FIXTURES

pytestmark = pytest.mark.anyio


async def run_error(session: Session, path: str) -> str:
    return await error_of(session, "skills_run_script", {"path": path})


@pytest.fixture
def scripts(registry: Registry) -> FakeScripts:
    return FakeScripts(registry)


@pytest.fixture
def script_runtime(registry: Registry, scripts: Any) -> Runtime:
    """A runtime whose sessions may run scripts."""
    runtime = Runtime(registry)
    runtime.scripts = runtime.whole.scripts = scripts
    return runtime


@pytest.fixture
def script_session(script_runtime: Runtime) -> Session:
    """A session that may run scripts."""
    return script_runtime.session()


@pytest.fixture
async def pdf_session(session: Session) -> Session:
    """A session with pdf-processing loaded."""
    await call_tool(session, "skills_load", names=["pdf-processing"])
    return session


@pytest.mark.requirement("RT-2", "RT-4", "RT-6", "RT-13", "RT-15", "RT-21", "RT-23", "X-16")
async def test_session_loads_reads_runs_and_switches_skills(script_session: Session) -> None:
    session = script_session
    first = await session.instructions()
    assert "<name>pdf-processing</name>" in first
    assert "<active_skills>" not in first
    receipt = await call_tool(session, "skills.load", names=["pdf-processing"])
    digest = f"sha256:{sha256(PDF_SKILL_MD.encode()).hexdigest()}"
    assert receipt["structuredContent"] == {
        "active_skills": [{
            "name": "pdf-processing", "location": "skill://pdf-processing/SKILL.md",
            "root_dir": "skill://pdf-processing", "digest": digest,
            "properties": {
                "name": "pdf-processing", "description": "Tells how pdf-processing is done and when to use it.",
                "allowed-tools": "Read", "license": "MIT",
            },
        }]
    }  # fmt: skip
    assert "Read [the guide]" not in json.dumps(receipt)
    second = await session.instructions()
    assert second.startswith(first)
    assert '<skill name="pdf-processing">\nRead [the guide](references/guide.md).' in second
    assert "license: MIT" not in second
    guide = await call_tool(session, "skills-readresource", path="references/guide.md")
    assert guide == {"content": [{"type": "text", "text": "Fill in the form.\nThen sign it.\n"}]}
    outcome = await call_tool(session, "skills.run_script", path="scripts/extract.py")
    assert outcome["structuredContent"]["exit_code"] == 0
    receipt = await call_tool(session, "skills.load", names=["data-analysis"], mode="replace")
    assert active_names(receipt) == session.active_skills == ["data-analysis"]
    third = await session.instructions()
    assert "Look at the data first." in third
    assert "Read [the guide]" not in third
    assert third.startswith(first)
    assert await read_text(session, "references/guide.md") == "Draw it.\n"
    receipt = await call_tool(session, "skills.load", names=["pdf-processing"], mode="add")
    assert active_names(receipt) == session.active_skills == ["data-analysis", "pdf-processing"]
    receipt = await call_tool(session, "skills.unload", all=True)
    assert receipt["structuredContent"] == {"active_skills": []}
    assert await session.instructions() == first


@pytest.mark.requirement("RT-2", "RT-23", "MCP-26", "X-17")
async def test_sessions_are_isolated_and_loading_changes_no_tool(registry: Registry) -> None:
    runtime = Runtime(registry)
    session, other = runtime.session(), runtime.session()
    before = json.dumps(session.tools())
    receipt = await call_tool(session, "skills_load", names=["pdf-processing"])
    assert "session" not in receipt["structuredContent"]
    assert json.dumps(session.tools()) == before
    assert other.active_skills == []
    assert session.session_id != other.session_id
    assert "<active_skills>" not in await other.instructions()
    assert '"session"' not in json.dumps([tool["inputSchema"] for tool in session.tools()])
    arguments = {"names": ["refunds"], "session": session.session_id}
    assert "session" in await error_of(session, "skills_load", arguments)


@pytest.mark.requirement("ASG-16", "ASG-23")
@each_row("files", [{}, {"mute/SKILL.md": "---\nname: mute\n---\nDo it.\n"}])
async def test_session_without_usable_skills_has_no_tools(tmp_path: Path, files: dict[str, str]) -> None:
    session = Runtime(load_registry(write_files(tmp_path, files))).session()
    assert await session.instructions() == ""
    assert session.tools() == []
    assert "Unknown skill: 'a'" in await error_of(session, "skills_load", {"names": ["a"]})
    assert text_of(await session.call("skills_list")) == "No skill matches."
    found = text_of(await session.call("skills_search", {"query": "mute"}))
    assert found.startswith("No skill matches.")


@pytest.mark.requirement("RT-22", "X-15")
async def test_results_carry_handle_and_bodies_unless_session_is_hosted(registry: Registry) -> None:
    session = Session(Runtime(registry).whole, hosted=False)
    first = await call_tool(session, "skills_load", names=["pdf-processing"])
    second = await call_tool(session, "skills_load", names=["data-analysis"], mode="add")
    for receipt in (first, second):
        assert receipt["structuredContent"]["session"] == session.session_id
        assert session.session_id in text_of(receipt)
    assert "Read [the guide]" in text_of(first)
    assert "references/guide.md\nassets/form.bin" in text_of(first)
    (entry,) = first["structuredContent"]["active_skills"]
    assert "instructions" not in entry
    assert "Read [the guide]" not in json.dumps(second)
    assert "Look at the data first." in text_of(second)
    structured = await session.call("skills_load", {"names": ["pdf-processing"]}, client="mcp")
    (entry,) = structured["structuredContent"]["active_skills"]
    assert entry["instructions"].startswith("Read [the guide]")
    rest = ["assets/form.bin", "assets/icon.png", "references/my notes.md", "scripts/extract.py"]
    assert entry["files"] == ["references/guide.md", *rest]
    unloaded = Session(Runtime(registry).whole, hosted=False)
    assert "session" in await error_of(unloaded, "skills_read", {"path": SKILL_MD})


async def test_list_pages_have_each_offered_skill_once(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(7)]
    files = skills(*names)
    for hidden in ("s0x", "s3x", "s6x"):
        files[f"{hidden}/SKILL.md"] = skill_md(hidden, "disable-model-invocation: true")
    session = Runtime(load_registry(write_files(tmp_path, files))).session()
    for limit in (1, 2, 3, 6, 7, 8, 200):
        page = await call_tool(session, "skills_list", limit=limit)
        found = listed_names(page)
        while "next_after" in page["structuredContent"]:
            assert len(listed_names(page)) == limit
            after = page["structuredContent"]["next_after"]
            assert f'after="{after}"' in text_of(page)
            page = await call_tool(session, "skills_list", limit=limit, after=after)
            assert listed_names(page)
            found += listed_names(page)
        assert found == names
    assert listed_names(await call_tool(session, "skills_list", after="s5/gone")) == ["s6"]


async def test_list_and_search_and_suggestions_have_default_limits(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for number in range(51):
        text = skill_md(f"thing-{number}", f"tags: [t{number % 13:02}]")
        files[f"g{number:02}/thing-{number}/SKILL.md"] = text
    session = Runtime(load_registry(write_files(tmp_path, files))).session()
    assert len(listed_names(await call_tool(session, "skills_list"))) == 50
    assert len(listed_names(await call_tool(session, "skills_search", query="thing"))) == 5
    unknown = await error_of(session, "skills_load", {"names": ["thingy"]})
    assert re.search(r"nearest: thing-\d+, thing-\d+, thing-\d+$", unknown)
    advice = text_of(await call_tool(session, "skills_search", query="thicket"))
    assert re.search(r"Nearest names: thing-\d+, thing-\d+, thing-\d+\.", advice)
    for letter in "tg":  # tags and groups
        assert f": {', '.join(f'{letter}{number:02}' for number in range(12))}." in advice


async def test_search_follows_changes_and_advises_when_nothing_matches(
    tmp_path: Path, session: Session, registry: Registry
) -> None:
    found = await call_tool(session, "skills_search", query="process a pdf")
    assert listed_names(found)[0] == "pdf-processing"
    found = await call_tool(session, "skills_search", query="pdf data refunds", limit=2)
    assert len(listed_names(found)) == 2
    advice = "Try other keywords, in the language of the skills; skills_list goes through all of them. Groups: acme."
    nothing = await call_tool(session, "skills_search", query="origami")
    assert text_of(nothing) == f"No skill matches.\n{advice}"
    assert nothing["structuredContent"] == {"skills": [], "note": advice}
    near = text_of(await call_tool(session, "skills_search", query="professor"))
    with_name = advice.replace("Groups", "Nearest names: pdf-processing. Groups")
    assert near == f"No skill matches.\n{with_name}"
    write_files(tmp_path, skills("origami"))
    registry.refresh()
    assert listed_names(await call_tool(session, "skills_search", query="origami")) == ["origami"]
    assert "origami" in json.dumps(session.tools())


@pytest.mark.requirement("RT-15", "RT-16", "X-30")
async def test_read_uses_latest_loaded_skill_unless_one_is_named(session: Session) -> None:
    for arguments in ({"path": SKILL_MD}, {"path": SKILL_MD, "skill": "refunds"}):
        message = await error_of(session, "skills_read", arguments)
        assert "No skill is loaded; call skills_load" in message
    await call_tool(session, "skills_load", names=["pdf-processing", "data-analysis"])
    path = "references/guide.md"
    assert await read_text(session, path) == "Draw it.\n"
    for name in ("pdf-processing", "skill://pdf-processing/SKILL.md"):
        assert (await read_text(session, path, skill=name)).startswith("Fill in")
    await call_tool(session, "skills_unload", names=["data-analysis"])
    assert (await read_text(session, path)).startswith("Fill in")
    assert await error_of(session, "skills_read", {"path": SKILL_MD, "skill": "refunds"}) == (
        "The skill 'refunds' is not loaded; call skills_load with it first. Loaded now: pdf-processing"
    )
    message = await error_of(session, "skills_read", {"path": SKILL_MD, "skill": "refnds"})
    assert "Unknown skill: 'refnds'; nearest: refunds" in message


@pytest.mark.requirement("RT-17")
@each_row(("file", "requested"), [
    ("references/guide.md", "references/guide.md"), ("scripts/extract.py", "scripts/extract.py"),
    (SKILL_MD, SKILL_MD), ("references/my notes.md", "./references/my notes.md"),
    ("references/my notes.md", "skill://pdf-processing/references/my notes.md"),
    ("references/my notes.md", uris.uri("pdf-processing", "references/my notes.md")),
])  # fmt: skip
async def test_text_file_is_read_by_path_or_uri(pdf_session: Session, file: str, requested: str) -> None:
    content = await read_text(pdf_session, requested)
    assert content == SKILL_FILES[f"pdf-processing/{file}"]


@pytest.mark.requirement("RT-17")
async def test_image_is_embedded_up_to_limit_and_other_binary_file_linked(
    pdf_session: Session, registry: Registry
) -> None:
    _, picture = (await call_tool(pdf_session, "skills_read", path="assets/icon.png"))["content"]
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(picture["data"], validate=True) == PNG
    _, link = (await call_tool(pdf_session, "skills_read", path="assets/form.bin"))["content"]
    assert link["type"] == "resource_link"
    found = uris.find(registry.snapshot, link["uri"], Standing.VALID)
    assert found is not None
    skill, path = found
    assert skill.files[path].size == 3
    for size, kind in ((1 << 20, "image"), ((1 << 20) + 1, "resource_link")):
        write_files(Path(registry.roots[0].path), {"pdf-processing/assets/icon.png": PNG.ljust(size, b"\0")})
        registry.refresh()
        content = (await call_tool(pdf_session, "skills_read", path="assets/icon.png"))["content"]
        assert content[-1]["type"] == kind


@pytest.mark.requirement("RT-17")
async def test_operator_settings_limit_lengths_of_text_and_media(registry: Registry) -> None:
    session = Runtime(registry, RuntimeSettings(result_characters=20, media_bytes=10)).session()
    await call_tool(session, "skills_load", names=["pdf-processing"])
    guide = "references/guide.md"
    for options in ({}, {"start_line": 1.0, "max_lines": 1}):
        part, note = (await call_tool(session, "skills_read", path=guide, **options))["content"]
        assert part["text"].rstrip("\n") == "Fill in the form."
        assert "go on with start_line=2" in note["text"]
    _, link = (await call_tool(session, "skills_read", path="assets/icon.png"))["content"]
    assert link["type"] == "resource_link"


DIRECTORY_HINT = "is a directory; there is: references/guide.md, references/my notes.md"
NO_FILE = "is not a file of the skill pdf-processing"
NEAREST_HINT = f"{NO_FILE}; nearest: references/guide.md"
FILES_HINT = f"{NO_FILE}; there is: SKILL.md, assets/form.bin, assets/icon.png"


@each_row(("path", "message"), [
    ("references", DIRECTORY_HINT), ("references/", DIRECTORY_HINT), ("./references", DIRECTORY_HINT),
    ("references/giude.md", NEAREST_HINT), ("guide.md", NEAREST_HINT),
    ("zzzz", FILES_HINT), ("", FILES_HINT), (".", FILES_HINT),
])  # fmt: skip
async def test_unknown_path_is_refused_with_hint(pdf_session: Session, path: str, message: str) -> None:
    assert message in await error_of(pdf_session, "skills_read", {"path": path})


def test_suggested_paths_are_limited() -> None:
    for count, end in ((40, ", f39"), (41, ", f39 ...")):
        paths = [f"f{number}" for number in range(count)]
        with pytest.raises(RequestError, match=rf"there is: f0, .*{re.escape(end)}$"):
            path_in(skill("a"), "zzzz", paths)
    with pytest.raises(RequestError, match=r"nearest: (guide\d,? ?){3}$"):
        path_in(skill("a"), "guide", [f"guide{number}" for number in range(4)])


@pytest.mark.requirement("RT-17", "MCP-55")
async def test_path_traversal_is_refused_without_disk_access(
    tmp_path: Path, session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.txt").write_text("confidential")
    await call_tool(session, "skills_load", names=["data-analysis", "pdf-processing"])
    for target, name in ((disk, "read"), (registry, "read"), (registry, "refresh")):
        monkeypatch.setattr(target, name, unexpected_call)
    for path in (
        "../secret.txt", "references/../../secret.txt", "references/../references/guide.md", f"{tmp_path}/secret.txt",
        f"{tmp_path}/pdf-processing/SKILL.md", "/etc/passwd", "%2e%2e/secret.txt", "..%2fsecret.txt",
        "..\\secret.txt", "skill://pdf-processing/../secret.txt", "skill://pdf-processing/%2e%2e/secret.txt",
        "skill://data-analysis/references/guide.md", "file:///etc/passwd", "references/guide.md\0",
        "//references/guide.md",
    ):  # fmt: skip
        message = await error_of(session, "skills_read", {"path": path})
        assert "is not a file of the skill" in message, path
        assert "confidential" not in message, path


@pytest.mark.requirement("RT-17")
async def test_read_returns_file_as_edited_after_the_scan(
    tmp_path: Path, pdf_session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide, path = tmp_path / "pdf-processing/references/guide.md", "references/guide.md"
    await call_tool(pdf_session, "skills_read", path=path)
    guide.write_text("All of it is new.\n")
    assert await read_text(pdf_session, path) == "All of it is new.\n"
    guide.unlink()
    message = await error_of(pdf_session, "skills_read", {"path": path})
    assert "is not a file of the skill" in message
    assert "references/my notes.md" in message
    # A file that changes during every retry is refused.
    monkeypatch.setattr(registry, "read", Mock(side_effect=StaleFileError("/nowhere")))
    message = await error_of(pdf_session, "skills_read", {"path": SKILL_MD})
    assert "try again" in message
    assert "nowhere" not in message


async def test_load_follows_changes_after_the_scan(tmp_path: Path, session: Session) -> None:
    await call_tool(session, "skills_load", names=["data-analysis", "pdf-processing"])
    shutil.rmtree(tmp_path / "pdf-processing")
    assert "is not loaded" in await error_of(session, "skills_read", {"path": "references/guide.md"})
    assert "<active_skills>" in await session.instructions()
    assert session.active_skills == ["data-analysis"]
    assert await read_text(session, "references/guide.md") == "Draw it.\n"
    changed = skill_md("refunds", body="Ask for nothing.")
    (tmp_path / "acme/billing/refunds" / SKILL_MD).write_text(changed)
    receipt = await call_tool(session, "skills_load", names=["refunds"])
    (entry,) = receipt["structuredContent"]["active_skills"]
    assert entry["digest"] == f"sha256:{sha256(changed.encode()).hexdigest()}"
    assert "Ask for nothing." in await session.instructions()


@each_row(("tool", "arguments", "message"), [
    ("skills_load", None, "'names' is a required property. skills_load takes: names (required), mode"),
    ("skills_load", {"names": "refunds"}, "Argument names: 'refunds' is not of type 'array'"),
    ("skills_load", {"names": ["refunds"], "mode": "merge"}, "'replace', 'add'"),
    ("skills_unload", {"all": "yes"}, "all: 'yes' is not of type 'boolean'. skills_unload takes: names, all"),
    ("skills_list", {"limit": 0}, "limit: 0 is less than the minimum of 1. skills_list takes: after, limit"),
    ("skills_search", {"query": None}, "'query' is a required property. skills_search takes: query (req"),
    ("skills_load", {"names": [None]}, "Argument names.0: null is not of type 'string'. skills_load takes"),
    ("skills_search", {"query": [True, "ä"]}, """query: [true, "ä"] is not of type 'string'"""),
    ("skills_read", {"path": "a", "start_line": 0}, "skills_read takes: path (required), skill, start_line, max_"),
    ("skills_run_script", {"path": "a", "env": {"A": 1}}, "Argument env.A: 1"),
])  # fmt: skip
async def test_invalid_arguments_are_refused_with_parameters_of_tool(
    session: Session, tool: str, arguments: dict[str, Any] | None, message: str
) -> None:
    assert message in await error_of(session, tool, arguments)


async def test_message_about_invalid_arguments_is_short_and_encodable(session: Session) -> None:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    for arguments in (
        {"path": "x", "env": {"a\nb": 1}}, {"path": "x", "env": {"\ud800": 1}}, {"path": "x", "env": {"a" * 10_000: 1}},
        {"path": "x", "a\nb" * 5_000: 1}, {"path": ["x" * 10_000]}, {"path": deep},
    ):  # fmt: skip
        message = await error_of(session, "skills_run_script", arguments)
        assert "skills_run_script takes: " in message
        assert len(message.encode()) < 1000
    message = await error_of(session, "skills_run_script", {"path": "x", "env": {"a" * 200: 1}})
    assert message.startswith(f"Argument env.{'a' * 96}: 1 is not of type")


@each_row("name", ["", "skills", "skills_delete", "Skills_Load", "x" * 10_000, "a\nb", "\ud800"])
async def test_unknown_tool_is_refused_with_names_of_tools(session: Session, name: str) -> None:
    message = await error_of(session, name, {})
    assert message.startswith("Unknown tool")
    assert "skills_load" in message
    assert "skills_run_script" not in message
    assert len(message.encode()) < 1000


STRINGS = (
    st.sampled_from(["csv-profiling", "refunds", "polite-greetings", SKILL_MD, "scripts/check_columns.sh", "scripts"])
    | st.sampled_from(["skill://csv-profiling", "skill://csv-profiling/%00", "skill://%ff", "../x", "[", '"', "\ud800"])
    | st.text(max_size=20)
)
NUMBERS = st.integers(1, 300) | st.integers(1, 10**30) | st.floats(1, 1e308)
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "names": st.lists(STRINGS, max_size=4), "args": st.lists(STRINGS, max_size=3), "all": st.booleans(),
    "mode": st.sampled_from(["replace", "add"]), "env": st.dictionaries(st.text(max_size=5), STRINGS, max_size=2),
    "limit": NUMBERS, "start_line": NUMBERS, "max_lines": NUMBERS, "timeout_s": NUMBERS | st.floats(0, 1),
}  # fmt: skip
"""Plausible values of the arguments that are not strings."""


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a tool's name, and arguments of which each is plausible or any JSON."""
    known = st.sampled_from([*dialect.argument_schemas(), "skills.load", "skills-readresource"])
    name = draw(known | st.text(max_size=12))
    tool = dialect.canonical(name)
    schema: Any = dialect.argument_schemas()[tool] if tool else {"properties": {"path": {}}}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for key in schema["properties"]:
        optional[key] = PLAUSIBLE.get(key, STRINGS)
        if draw(st.booleans()):
            optional[key] |= JSON
    required = {key: optional.pop(key) for key in schema.get("required", ()) if draw(st.integers(0, 9))}
    arguments = draw(st.fixed_dictionaries(required, optional=optional))
    if draw(st.integers(0, 9)) == 0:
        arguments |= draw(st.dictionaries(st.text(max_size=9), JSON, max_size=2))
    return name, arguments


@pytest.fixture(scope="module")
def fixture_runtime() -> Runtime:
    return Runtime(load_registry(Path(FIXTURES)))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(requests=st.lists(calls(), min_size=1, max_size=3), hosted=st.booleans())
def test_session_answers_any_call_with_a_result(
    fixture_runtime: Runtime, requests: list[tuple[str, dict[str, Any]]], hosted: bool
) -> None:
    async def call_all() -> None:
        session = Session(fixture_runtime.whole, hosted=hosted)
        await session.call("skills_load", {"names": ["csv-profiling", "polite-greetings"]})
        for name, arguments in requests:
            result: Any = await session.call(name, arguments)
            assert json.dumps(result, ensure_ascii=False).encode()
            assert result["content"]
            assert all(block["type"] for block in result["content"])
            assert result.get("isError", True) is True
            assert len(session.active_skills) <= fixture_runtime.settings.max_loaded
            assert await session.instructions()
        assert session.calls == 0

    anyio.run(call_all)


@pytest.mark.requirement("X-29")
async def test_run_script_is_absent_and_refused_by_default(session: Session) -> None:
    assert "skills_run_script" not in [tool["name"] for tool in session.tools()]
    assert "skills_run_script" not in await session.instructions()
    for _ in range(2):
        assert "--allow-scripts" in await run_error(session, "scripts/extract.py")
        await call_tool(session, "skills_load", names=["pdf-processing"])


@pytest.mark.requirement("RT-18", "RT-19")
async def test_run_script_passes_arguments_on(
    script_session: Session, scripts: FakeScripts, registry: Registry
) -> None:
    assert "skills_run_script" in [tool["name"] for tool in script_session.tools()]
    assert "skills_run_script" in await error_of(script_session, "unknown")
    await call_tool(script_session, "skills_load", names=["pdf-processing"])
    reported: list[float] = []

    async def progress(seconds: float) -> None:
        reported.append(seconds)

    given: dict[str, Any] = {"args": ["--in", "a b"], "env": {"KEY": "v"}, "workdir": "out", "timeout_s": 2.5}
    arguments = {"path": "./scripts/extract.py", **given}
    result: Any = await script_session.call("skills.run_script", arguments, progress=progress)
    assert result["structuredContent"]["stdout"] == "print('extracted')\n"
    await call_tool(script_session, "skills_run_script", path="scripts/extract.py")
    full, default = scripts.runs
    skill = registry.snapshot.skills["pdf-processing"]
    assert full.request == RunRequest(skill=skill, path="scripts/extract.py", **given)
    assert full.workspace == scripts.workspaces[0]
    assert reported == [1.0]
    assert default.request == RunRequest(skill=skill, path="scripts/extract.py")


@pytest.mark.requirement("RT-15", "RT-16", "RT-18", "X-29", "X-30")
async def test_only_script_of_loaded_skill_is_run(script_session: Session, scripts: FakeScripts) -> None:
    assert "No skill is loaded" in await run_error(script_session, "scripts/extract.py")
    await call_tool(script_session, "skills_load", names=["data-analysis", "pdf-processing"])
    arguments = {"path": "scripts/x.sh", "skill": "refunds"}
    assert "'refunds' is not loaded" in await error_of(script_session, "skills_run_script", arguments)
    for path in (
        "extract.py", "scripts/", "scripts", "references/guide.md", SKILL_MD, "assets/form.bin",
        "scripts/../assets/form.bin", "../data-analysis/scripts/plot.sh", "scripts/../../data-analysis/scripts/plot.sh",
        "skill://data-analysis/scripts/plot.sh", "/bin/sh", "scripts/%65xtract.py", "scripts/extract.py --in a", "",
    ):  # fmt: skip
        assert ": scripts/extract.py" in await run_error(script_session, path)
    await call_tool(script_session, "skills_load", names=["refunds"])
    assert "it has no file below scripts/" in await error_of(
        script_session, "skills_run_script", {"path": "scripts/x.sh"}
    )
    assert scripts.runs == []
    assert scripts.workspaces == []
    await call_tool(script_session, "skills_load", names=["data-analysis", "refunds"])
    await call_tool(script_session, "skills_run_script", path="scripts/plot.sh", skill="data-analysis")
    assert [run.request.skill.name for run in scripts.runs] == ["data-analysis"]


async def test_session_has_one_work_directory_until_close(
    script_runtime: Runtime, script_session: Session, scripts: FakeScripts
) -> None:
    other = script_runtime.session()
    for session in (script_session, script_session, other):
        await call_tool(session, "skills_load", names=["pdf-processing"])
        await call_tool(session, "skills_run_script", path="scripts/extract.py")
    first, second = scripts.workspaces
    assert [run.workspace for run in scripts.runs] == [first, first, second]
    script_session.close()
    script_session.close()
    assert first.close.call_count == 1
    assert second.close.call_count == 0
    assert script_session.active_skills == []
    script_runtime.close()
    assert scripts.close.call_count == 1


async def test_output_file_is_read_up_to_16_mib(
    tmp_path: Path, script_session: Session, scripts: FakeScripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    monkeypatch.setattr(scripts, "workspace", lambda: Workspace(str(work), Mock()))
    await call_tool(script_session, "skills_load", names=["pdf-processing"])
    message = await error_of(script_session, "skills_read", {"path": "/workspace/out.txt"})
    assert message.startswith("/workspace/ is empty: no script of this session has run in this process")
    assert script_session.scripts_at == ""
    for _ in range(2):
        await call_tool(script_session, "skills_run_script", path="scripts/extract.py")
    assert script_session.scripts_at == "here"
    most = 16 << 20
    write_files(work, {"out.txt": "one\ntwo\n", "out.bin": bytes(most), "more.bin": bytes(most + 1)})
    assert await read_text(script_session, "/workspace/out.txt", start_line=2) == "two\n"
    message = await error_of(script_session, "skills_read", {"path": "/workspace/out.bin"})
    assert "octet-stream, 16,777,216 bytes" in message
    message = await error_of(script_session, "skills_read", {"path": "/workspace/more.bin"})
    assert "has 16,777,217 bytes, and at most 16,777,216 are read" in message


@pytest.mark.requirement("RT-18")
async def test_script_runs_as_edited_after_the_scan(
    tmp_path: Path, script_session: Session, scripts: FakeScripts
) -> None:
    await call_tool(script_session, "skills_load", names=["pdf-processing"])
    script = tmp_path / "pdf-processing/scripts/extract.py"
    script.write_text("print('all of it is new')\n")
    result = await call_tool(script_session, "skills_run_script", path="scripts/extract.py")
    assert result["structuredContent"]["stdout"] == "print('all of it is new')\n"
    assert scripts.attempts == 2
    assert len(scripts.runs) == 1
    script.unlink()
    assert "it has no file below" in await run_error(script_session, "scripts/extract.py")
    assert len(scripts.runs) == 1


async def test_concurrent_calls_see_only_skills_of_their_callers_view(registry: Registry) -> None:
    grants = [Grant(("group:all",), (Pattern("**"),)), Grant(("token:ann",), (Pattern("acme/**"),))]
    shared, views = Runtime(registry), Views(registry, Grants(grants, local=False))
    wide = shared.offerings.get(views.for_principal(Principal("token", "ann", groups=frozenset({"all"}))))
    narrow = shared.offerings.get(views.for_principal(Principal("token", "ann")))
    session = Sessions(shared).new(offering=wide)
    wide_answers: list[str] = []
    narrow_answers: list[str] = []

    async def call(answers: list[str], offering: Offering, tool: str, **arguments: object) -> None:
        answers.append(json.dumps(await session.call(tool, arguments, offering=offering)))

    await call(wide_answers, wide, "skills_load", names=["pdf-processing"])
    assert "pdf-processing" in wide_answers.pop()
    call_wide = partial(call, wide_answers, wide)
    call_narrow = partial(call, narrow_answers, narrow)
    with anyio.fail_after(DEADLINE):
        # The lock of changes is held, so all calls wait at their await of a file.
        async with anyio.create_task_group() as tasks, session.loaded._changing:
            for _ in range(2):
                tasks.start_soon(partial(call_wide, "skills_load", names=["data-analysis"]))
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(partial(call_narrow, "skills_load", names=["refunds"], mode="add"))
                tasks.start_soon(partial(call_narrow, "skills_load", names=["data-analysis"]))
                tasks.start_soon(partial(call_narrow, "skills_unload", names=["refunds"]))
                tasks.start_soon(partial(call_narrow, "skills_read", path="SKILL.md"))
                await anyio.wait_all_tasks_blocked()
    assert len(wide_answers) == 2
    assert len(narrow_answers) == 8
    for answer in wide_answers:
        assert "Look at the data first" in answer or "data-analysis" in answer
    for answer in narrow_answers:
        assert "pdf" not in answer
        assert "Look at the data" not in answer
        assert "data-analysis" not in answer or "Unknown skill" in answer
