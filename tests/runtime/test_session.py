"""Sessions as an orchestrator uses them: on a real disk, through the tools that a model calls."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from catalog.forest import DEADLINE, loaded, plant, skill_md, skills
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects import runtime as told
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.format import uris
from mcp_skills_server.model import SKILL_MD, Skill, Standing
from mcp_skills_server.runtime import session as session_module
from mcp_skills_server.runtime.scripts import Outcome
from mcp_skills_server.runtime.session import Runtime, RuntimeSettings, Session
from wire import FIXTURES

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
PDF = skill_md("pdf-processing", "allowed-tools: Read", "license: MIT", body="Read [the guide](references/guide.md).")
WORKSHOP = {
    "pdf-processing/SKILL.md": PDF,
    "pdf-processing/references/guide.md": "Fill in the form.\nThen sign it.\n",
    "pdf-processing/references/my notes.md": "Mind the gap.\n",
    "pdf-processing/scripts/extract.py": "print('extracted')\n",
    "pdf-processing/assets/icon.png": PNG,
    "pdf-processing/assets/form.bin": b"\0\1\2",
    "data-analysis/SKILL.md": skill_md("data-analysis", body="Look at the data first."),
    "data-analysis/references/guide.md": "Draw it.\n",
    "data-analysis/scripts/plot.sh": "echo plotted\n",
    "acme/billing/refunds/SKILL.md": skill_md("refunds", body="Ask for the receipt."),
}
NAMES = ["refunds", "data-analysis", "pdf-processing"]
"""Of the workshop's skills, by skill path."""


@pytest.fixture
def anyio_backend() -> str:
    """The loop that the server runs on."""
    return "asyncio"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """The workshop, after its first scan."""
    return loaded(plant(tmp_path, WORKSHOP))


@pytest.fixture
def session(registry: Registry) -> Session:
    """A conversation over the workshop, bound by its host."""
    return Runtime(registry).session()


async def ask(session: Session, tool: str, /, **arguments: Any) -> Any:
    """What a tool answers when it could do what was asked; its structure keeps the tool's output schema."""
    result: Any = await session.call(tool, arguments)
    assert "isError" not in result, result["content"][0]["text"]
    (definition,) = [each for each in session.tools() if each["name"] == told.canonical(tool)]
    if "outputSchema" in definition:
        schema: Any = definition["outputSchema"]
        Draft202012Validator(schema).validate(result["structuredContent"])
    return result


async def refused(session: Session, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
    """What a tool says when the model must do something else: one line, and no structure beside it."""
    result: Any = await session.call(tool, arguments)
    assert result.keys() == {"content", "isError"}
    assert result["isError"] is True
    (block,) = result["content"]
    assert block["type"] == "text"
    assert len(block["text"].splitlines()) == 1
    return block["text"]


def text(result: Any) -> str:
    """A result's text."""
    return result["content"][0]["text"]


def active(result: Any) -> list[str]:
    """The names in a receipt."""
    return [each["name"] for each in result["structuredContent"]["active_skills"]]


def listed(result: Any) -> list[str]:
    """The names in a listing."""
    return [each["name"] for each in result["structuredContent"]["skills"]]


class Held:
    """Holds back the first reading of a body, in its thread, until it is let go; later ones go ahead at once."""

    def __init__(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go = threading.Event()
        self._reached = threading.Event()
        self._body = registry.body
        monkeypatch.setattr(registry, "body", self._held)
        monkeypatch.setattr(registry, "has_body", lambda _: self._reached.is_set())

    def _held(self, skill: Skill) -> Any:
        if not self._reached.is_set():
            self._reached.set()
            assert self._go.wait(DEADLINE)
        return self._body(skill)

    async def during(self, first: Callable[[], Awaitable[Any]], second: Callable[[], Awaitable[Any]]) -> list[Any]:
        """What both answer, the second asked while the first is held back."""
        answers: list[Any] = [None, None]

        async def keep(place: int, work: Callable[[], Awaitable[Any]]) -> None:
            answers[place] = await work()

        try:
            with anyio.fail_after(DEADLINE):
                async with anyio.create_task_group() as group:
                    group.start_soon(keep, 0, first)
                    assert await to_thread.run_sync(self._reached.wait, DEADLINE)
                    group.start_soon(keep, 1, second)
                    await anyio.wait_all_tasks_blocked()
                    self._go.set()
        finally:
            self._go.set()
        return answers


def long_md(name: str, word: str = "Do it.") -> str:
    """A SKILL.md that is parsed off the event loop."""
    return skill_md(name, body=f"{word}\n" + "And more of the same.\n" * 1000)


# The flow of the specification


@pytest.mark.requirement("RT-2", "RT-4", "RT-6", "RT-13", "RT-15", "RT-21", "RT-23")
async def test_a_conversation_chooses_loads_uses_and_switches(tmp_path: Path, registry: Registry) -> None:
    runtime = Runtime(registry)
    scripts = Scripts(registry)
    runtime.scripts = scripts  # pyright: ignore[reportAttributeAccessIssue]
    session = runtime.session()

    # Choose: what is there is told, and nothing of it is loaded.
    first = await session.instructions()
    assert "<name>pdf-processing</name>" in first
    assert "<active_skills>" not in first
    assert session.active_skills == []
    assert "No skill is loaded" in await refused(session, "skills.read", {"path": "references/guide.md"})

    # Load.
    receipt = await ask(session, "skills.load", names=["pdf-processing"])
    assert receipt["structuredContent"] == {
        "active_skills": [
            {
                "name": "pdf-processing",
                "location": "skill://pdf-processing/SKILL.md",
                "root_dir": "skill://pdf-processing",
                "digest": f"sha256:{sha256(PDF.encode()).hexdigest()}",
                "properties": {
                    "name": "pdf-processing",
                    "description": "Tells how pdf-processing is done and when to use it.",
                    "allowed-tools": "Read",
                    "license": "MIT",
                },
            }
        ]
    }
    assert "Read [the guide]" not in json.dumps(receipt)

    # Use.
    second = await session.instructions()
    assert second.startswith(first)
    assert '<skill name="pdf-processing">\nRead [the guide](references/guide.md).' in second
    assert "license: MIT" not in second
    guide = await ask(session, "skills.read", path="references/guide.md")
    assert guide == {"content": [{"type": "text", "text": "Fill in the form.\nThen sign it.\n"}]}
    outcome = await ask(session, "skills.run_script", path="scripts/extract.py", args=["--in", "a.pdf"])
    assert outcome["structuredContent"]["exit_code"] == 0

    # Switch.
    receipt = await ask(session, "skills.load", names=["data-analysis"], mode="replace")
    assert active(receipt) == session.active_skills == ["data-analysis"]
    third = await session.instructions()
    assert "Look at the data first." in third
    assert "Read [the guide]" not in third
    assert third.startswith(first)
    assert text(await ask(session, "skills.read", path="references/guide.md")) == "Draw it.\n"
    assert "not loaded" in await refused(session, "skills.read", {"path": SKILL_MD, "skill": "pdf-processing"})

    # Done.
    receipt = await ask(session, "skills.unload", all=True)
    assert receipt["structuredContent"] == {"active_skills": []}
    assert await session.instructions() == first


@pytest.mark.requirement("RT-2")
async def test_sessions_know_nothing_of_each_other(registry: Registry) -> None:
    runtime = Runtime(registry)
    one, other = runtime.session(), runtime.session()
    await ask(one, "skills_load", names=["pdf-processing"])
    assert other.active_skills == []
    assert one.session_id != other.session_id
    assert "<active_skills>" not in await other.instructions()


async def test_a_session_reads_the_skills_if_nobody_has(tmp_path: Path) -> None:
    registry = Registry([plant(tmp_path, WORKSHOP)])
    session = Runtime(registry).session()
    assert listed(await ask(session, "skills_list")) == NAMES


@pytest.mark.requirement("MCP-26", "X-17")
async def test_loading_changes_no_tool(session: Session) -> None:
    before = json.dumps(session.tools())
    await ask(session, "skills_load", names=["pdf-processing"])
    assert json.dumps(session.tools()) == before


@pytest.mark.requirement("RT-23")
async def test_a_hosted_session_is_no_argument_of_any_tool(session: Session) -> None:
    assert '"session"' not in json.dumps([tool["inputSchema"] for tool in session.tools()])
    assert "session" not in (await ask(session, "skills_load", names=["refunds"]))["structuredContent"]
    assert "session" in await refused(session, "skills_load", {"names": ["refunds"], "session": session.session_id})


@pytest.mark.requirement("ASG-23")
async def test_without_skills_there_is_neither_word_nor_tool(tmp_path: Path) -> None:
    session = Runtime(loaded(tmp_path)).session()
    assert await session.instructions() == ""
    assert session.tools() == []
    assert "Unknown skill: 'a'" in await refused(session, "skills_load", {"names": ["a"]})
    assert text(await session.call("skills_list")) == "No skill fits."
    assert text(await session.call("skills_search", {"query": "anything"})) == "No skill fits."


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
    assert entry["instructions"].startswith("Read [the guide]")
    assert entry["files"] == [
        "references/guide.md",
        "assets/form.bin",
        "assets/icon.png",
        "references/my notes.md",
        "scripts/extract.py",
    ]
    assert "Read [the guide]" not in json.dumps(second)
    assert "Look at the data first." in text(second)
    assert "session" in await refused(Session(Runtime(registry), hosted=False), "skills_read", {"path": SKILL_MD})


# Loading


@pytest.mark.requirement("RT-10")
async def test_replacing_is_what_loading_does(session: Session) -> None:
    await ask(session, "skills_load", names=["pdf-processing", "refunds"])
    assert active(await ask(session, "skills_load", names=["data-analysis"])) == ["data-analysis"]


@pytest.mark.requirement("RT-10", "RT-7")
async def test_adding_keeps_the_order_and_each_skill_once(session: Session) -> None:
    await ask(session, "skills_load", names=["refunds", "pdf-processing", "refunds"])
    assert session.active_skills == ["refunds", "pdf-processing"]
    receipt = await ask(session, "skills_load", names=["data-analysis", "refunds"], mode="add")
    assert active(receipt) == session.active_skills == ["refunds", "pdf-processing", "data-analysis"]
    shown = await session.instructions()
    assert re.findall(r'<skill name="(.*)">', shown) == session.active_skills


async def test_many_names_are_refused_before_they_are_looked_for(session: Session) -> None:
    words = await refused(session, "skills_load", {"names": [f"wrong-{number}" for number in range(10_000)]})
    assert "too long (maxItems: 64)" in words and len(words) < 600
    words = await refused(session, "skills_load", {"names": [f"wrong-{number}" for number in range(64)]})
    assert words.count("Unknown skill") == 3


@pytest.mark.requirement("X-30")
@pytest.mark.parametrize("mode", ["replace", "add"])
async def test_with_one_unknown_name_nothing_is_loaded(session: Session, mode: str) -> None:
    await ask(session, "skills_load", names=["refunds"])
    before = await session.instructions()
    names = ["data-analysis", "pdf-procesing", "no-such-thing"]
    words = await refused(session, "skills_load", {"names": names, "mode": mode})
    assert words.startswith("Nothing was loaded.")
    assert "Unknown skill: 'pdf-procesing'; nearest: pdf-processing" in words
    assert "'no-such-thing'" in words
    assert session.active_skills == ["refunds"]
    assert await session.instructions() == before


@pytest.mark.requirement("X-30")
async def test_when_a_body_cannot_be_had_nothing_is_loaded(
    session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(session, "skills_load", names=["refunds"])
    body = registry.body

    def failing(skill: Skill) -> Any:
        if skill.name == "pdf-processing":
            raise StaleFileError(str(Path(registry.place(skill)) / SKILL_MD))
        return body(skill)

    monkeypatch.setattr(registry, "body", failing)
    words = await refused(session, "skills_load", {"names": ["data-analysis", "pdf-processing"]})
    assert "try again" in words
    assert session.active_skills == ["refunds"]


async def test_a_name_without_likeness_points_to_the_list(session: Session) -> None:
    assert "skills_list shows what there is" in await refused(session, "skills_load", {"names": ["zzzzqqqq"]})


@pytest.mark.requirement("RT-8", "RT-9", "X-30")
async def test_at_most_eight_skills_are_loaded(tmp_path: Path) -> None:
    session = Runtime(loaded(plant(tmp_path, skills(*(f"s{number}" for number in range(10)))))).session()
    eight = [f"s{number}" for number in range(8)]
    assert len(active(await ask(session, "skills_load", names=eight))) == 8
    words = await refused(session, "skills_load", {"names": ["s8"], "mode": "add"})
    assert "At most 8 skills" in words and "would make 9" in words and "Load fewer" in words
    assert "skills_unload" in words and ", ".join(eight) in words
    assert session.active_skills == eight
    assert active(await ask(session, "skills_load", names=["s0", "s7"], mode="add")) == eight
    assert "Load fewer" in await refused(session, "skills_load", {"names": [f"s{number}" for number in range(9)]})
    assert active(await ask(session, "skills_load", names=["s8"])) == ["s8"]


@pytest.mark.requirement("RT-8", "RT-9")
async def test_the_operator_sets_the_cap(registry: Registry) -> None:
    session = Runtime(registry, RuntimeSettings(max_loaded=1)).session()
    words = await refused(session, "skills_load", {"names": ["refunds", "data-analysis"]})
    assert "At most 1 skill" in words and "Load fewer" in words
    assert active(await ask(session, "skills_load", names=["refunds", "acme/billing/refunds"])) == ["refunds"]


FORMS = [
    "refunds",
    "acme/billing/refunds",
    "skill://acme/billing/refunds/SKILL.md",
    "skill://acme/billing/refunds",
    "skill://acme/billing/refunds/",
    "SKILL://acme/billing/refunds/SKILL.md",
]


@pytest.mark.requirement("RT-1", "RT-11")
@pytest.mark.parametrize("form", FORMS)
async def test_a_skill_is_found_by_name_path_and_location(session: Session, form: str) -> None:
    (entry,) = (await ask(session, "skills_load", names=[form]))["structuredContent"]["active_skills"]
    assert entry["name"] == "refunds"
    assert entry["location"] == "skill://acme/billing/refunds/SKILL.md"
    assert entry["root_dir"] == "skill://acme/billing/refunds"


@pytest.mark.parametrize(
    "form",
    [
        "",
        "Refunds",
        "acme/billing",
        "skill://",
        "skill://acme/billing",
        "skill://pdf-processing/references/guide.md",
        "skill://acme/billing/../billing/refunds",
        "file:///acme",
        "/",
        "\ud800",
    ],
)
async def test_nothing_else_names_a_skill(session: Session, form: str) -> None:
    assert "Unknown skill" in await refused(session, "skills_load", {"names": [form]})


@pytest.mark.requirement("RT-1", "RT-3", "RT-11")
async def test_agents_that_work_on_the_disk_are_told_absolute_paths(registry: Registry) -> None:
    session = Runtime(registry, RuntimeSettings(absolute_paths=True)).session()
    place = Path(registry.roots[0].path) / "pdf-processing"
    assert f"<location>{place / SKILL_MD}</location>" in await session.instructions()
    for form in (str(place / SKILL_MD), "skill://pdf-processing/SKILL.md", "pdf-processing"):
        (entry,) = (await ask(session, "skills_load", names=[form]))["structuredContent"]["active_skills"]
        assert (entry["location"], entry["root_dir"]) == (str(place / SKILL_MD), str(place))
    assert "Unknown skill" in await refused(session, "skills_load", {"names": [str(place / "no" / SKILL_MD)]})
    assert listed(await ask(session, "skills_list")) == NAMES


@pytest.mark.requirement("RT-3")
async def test_paths_of_the_disk_are_told_to_nobody_else(tmp_path: Path, session: Session) -> None:
    answers = [await ask(session, "skills_load", names=["pdf-processing"]), await ask(session, "skills_list")]
    assert str(tmp_path) not in json.dumps([*answers, session.tools(), await session.instructions()])
    path = str(tmp_path / "pdf-processing" / SKILL_MD)
    assert "Unknown skill" in await refused(session, "skills_load", {"names": [path]})


async def test_skills_that_share_a_name_go_by_their_paths(tmp_path: Path) -> None:
    session = Runtime(loaded(plant(tmp_path, skills("x/report", "y/report")))).session()
    words = await refused(session, "skills_load", {"names": ["report"]})
    assert words.endswith("Several skills are named 'report'; ask for one of: x/report, y/report")
    assert active(await ask(session, "skills_load", names=["y/report"])) == ["y/report"]
    assert listed(await ask(session, "skills_list")) == ["x/report", "y/report"]
    shown = await session.instructions()
    assert "<name>x/report</name>" in shown and '<skill name="y/report">' in shown
    assert text(await ask(session, "skills_read", path=SKILL_MD, skill="y/report")).startswith("---")


async def test_a_loaded_skill_keeps_the_name_that_was_told(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("x/report")))
    session = Runtime(registry).session()
    assert active(await ask(session, "skills_load", names=["report"])) == ["report"]
    plant(tmp_path, skills("y/report"))
    registry.refresh()
    (name,) = session.active_skills
    assert text(await ask(session, "skills_read", path=SKILL_MD, skill=name)).startswith("---")
    assert active(await ask(session, "skills_unload", names=[name])) == []


@pytest.mark.requirement("X-2")
async def test_a_skill_that_breaks_a_rule_is_served_with_its_problems(tmp_path: Path) -> None:
    odd = {"odd/SKILL.md": skill_md("Odd_Name", body="Do it oddly."), "odd/data.bin": b"\0"}
    registry = loaded(plant(tmp_path, odd | skills("fine")))
    session = Runtime(registry).session()
    assert registry.snapshot.skills["odd"].standing is Standing.LENIENT
    listing = await ask(session, "skills_list")
    assert listed(listing) == ["fine", "Odd_Name"]
    fine, marked = listing["structuredContent"]["skills"]
    assert "problems" not in fine
    assert any("holds" in each for each in marked["problems"])
    receipt = await ask(session, "skills_load", names=["fine", "Odd_Name"])
    fine, marked = receipt["structuredContent"]["active_skills"]
    assert "problems" not in fine and marked["problems"]
    assert f"The skill Odd_Name has problems: {marked['problems'][0]}" in text(receipt)
    assert "Do it oddly." in await session.instructions()
    # Nobody serves it as a resource, so there is nothing to link to.
    assert len((await ask(session, "skills_read", path="data.bin"))["content"]) == 1


@pytest.mark.requirement("X-2", "ASG-17")
async def test_a_skill_that_cannot_be_read_is_no_skill(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, {"broken/SKILL.md": "---\nname: broken\n"} | skills("fine")))
    session = Runtime(registry, RuntimeSettings(absolute_paths=True)).session()
    for form in ("broken", "skill://broken/SKILL.md", str(Path(registry.roots[0].path) / "broken" / SKILL_MD)):
        assert "Unknown skill" in await refused(session, "skills_load", {"names": [form]})
    assert listed(await ask(session, "skills_list")) == ["fine"]
    assert listed(await ask(session, "skills_search", query="broken")) == []
    assert "broken" not in await session.instructions()


async def test_the_location_of_a_broken_skill_in_a_skill_means_neither(tmp_path: Path) -> None:
    session = Runtime(loaded(plant(tmp_path, skills("outer") | {"outer/inner/SKILL.md": "---\n"}))).session()
    for form in ("skill://outer/inner", "skill://outer/inner/SKILL.md"):
        assert "Unknown skill" in await refused(session, "skills_load", {"names": [form]})


@pytest.mark.requirement("ASG-22")
async def test_what_only_the_user_may_start_is_hidden_from_the_model(tmp_path: Path) -> None:
    hidden = {"release/SKILL.md": skill_md("release", "disable-model-invocation: true", body="Ship it.")}
    session = Runtime(loaded(plant(tmp_path, hidden | skills("report")))).session()
    assert listed(await ask(session, "skills_list")) == ["report"]
    assert listed(await ask(session, "skills_search", query="release")) == []
    assert "release" not in await session.instructions()
    assert "release" not in json.dumps(session.tools())
    assert "nearest: release" not in await refused(session, "skills_load", {"names": ["releas"]})
    # Asked for by its very name, as a user does.
    assert active(await ask(session, "skills_load", names=["release"])) == ["release"]
    assert "Ship it." in await session.instructions()


@pytest.mark.requirement("ASG-16")
async def test_a_skill_without_a_description_is_not_offered(tmp_path: Path) -> None:
    session = Runtime(loaded(plant(tmp_path, {"mute/SKILL.md": "---\nname: mute\n---\nDo it.\n"}))).session()
    assert await session.instructions() == ""
    assert session.tools() == []
    assert text(await session.call("skills_list")) == "No skill fits."


@pytest.mark.requirement("RT-12")
async def test_a_body_is_read_once(session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    monkeypatch.setattr(registry, "read", forbidden)
    monkeypatch.setattr(registry, "body", forbidden)
    assert await session.instructions() == await session.instructions()


def forbidden(*_: Any) -> Any:
    """Stands for what must not be done."""
    raise AssertionError("this must not be done")


# Unloading


@pytest.mark.requirement("RT-14")
async def test_what_is_named_is_unloaded_and_what_is_absent_is_no_error(session: Session) -> None:
    await ask(session, "skills_load", names=["refunds", "pdf-processing", "data-analysis"])
    receipt = await ask(session, "skills_unload", names=["pdf-processing", "no-such-thing", "pdf-processing"])
    assert active(receipt) == session.active_skills == ["refunds", "data-analysis"]
    assert "digest" in receipt["structuredContent"]["active_skills"][0]
    assert active(await ask(session, "skills_unload", names=["no-such-thing"])) == ["refunds", "data-analysis"]
    assert "pdf-processing" not in (await session.instructions()).partition("<active_skills>")[2]


@pytest.mark.requirement("RT-14")
@pytest.mark.parametrize("arguments", [{"all": True}, {"all": True, "names": ["refunds"]}, {"all": True, "names": []}])
async def test_all_are_unloaded(session: Session, arguments: dict[str, Any]) -> None:
    await ask(session, "skills_load", names=["refunds", "pdf-processing"])
    assert active(await ask(session, "skills_unload", **arguments)) == []
    assert active(await ask(session, "skills_unload", **arguments)) == []


@pytest.mark.requirement("RT-14")
@pytest.mark.parametrize("arguments", [{}, {"all": False}, {"names": []}, {"all": False, "names": []}])
async def test_unloading_nothing_is_told_what_it_takes(session: Session, arguments: dict[str, Any]) -> None:
    await ask(session, "skills_load", names=["refunds"])
    words = await refused(session, "skills_unload", arguments)
    assert "names" in words and "all=true" in words
    assert session.active_skills == ["refunds"]


@pytest.mark.requirement("RT-11", "RT-14")
@pytest.mark.parametrize("form", FORMS)
async def test_what_loads_a_skill_unloads_it_too(session: Session, form: str) -> None:
    await ask(session, "skills_load", names=[form])
    assert active(await ask(session, "skills_unload", names=[form])) == []


# Listing and searching


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


async def test_a_search_finds_what_the_words_mean(session: Session) -> None:
    assert listed(await ask(session, "skills_search", query="process a pdf"))[0] == "pdf-processing"
    assert len(listed(await ask(session, "skills_search", query="pdf data refunds", limit=2))) == 2
    nothing = await ask(session, "skills_search", query="zzzzqqqq")
    assert (text(nothing), listed(nothing)) == ("No skill fits.", [])


async def test_a_search_follows_the_catalogue(tmp_path: Path, session: Session, registry: Registry) -> None:
    assert listed(await ask(session, "skills_search", query="origami")) == []
    plant(tmp_path, skills("origami"))
    registry.refresh()
    assert listed(await ask(session, "skills_search", query="origami")) == ["origami"]
    assert "<name>origami</name>" in await session.instructions()
    assert "origami" in json.dumps(session.tools())


# Reading


@pytest.mark.requirement("RT-16")
async def test_reading_means_the_skill_that_was_loaded_last_unless_told(session: Session) -> None:
    await ask(session, "skills_load", names=["pdf-processing", "data-analysis"])
    path = "references/guide.md"
    assert text(await ask(session, "skills_read", path=path)) == "Draw it.\n"
    for form in ("pdf-processing", "skill://pdf-processing/SKILL.md"):
        assert text(await ask(session, "skills_read", path=path, skill=form)).startswith("Fill in")
    await ask(session, "skills_unload", names=["data-analysis"])
    assert text(await ask(session, "skills_read", path=path)).startswith("Fill in")


@pytest.mark.requirement("RT-15", "X-30")
async def test_only_loaded_skills_are_read(session: Session) -> None:
    words = await refused(session, "skills_read", {"path": SKILL_MD})
    assert "No skill is loaded; call skills_load" in words
    assert "No skill is loaded" in await refused(session, "skills_read", {"path": SKILL_MD, "skill": "refunds"})
    await ask(session, "skills_load", names=["data-analysis"])
    words = await refused(session, "skills_read", {"path": SKILL_MD, "skill": "refunds"})
    assert "'refunds' is not loaded; call skills_load" in words
    assert "Loaded now: data-analysis" in words
    assert "Unknown skill: 'refnds'; nearest: refunds" in await refused(
        session, "skills_read", {"path": SKILL_MD, "skill": "refnds"}
    )


@pytest.mark.requirement("RT-17")
@pytest.mark.parametrize(
    ("path", "raw"), [("references/guide.md", None), ("scripts/extract.py", None), (SKILL_MD, PDF.encode())]
)
async def test_any_text_of_a_skill_is_read_exactly(session: Session, path: str, raw: bytes | None) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    wanted = WORKSHOP[f"pdf-processing/{path}"]
    assert text(await ask(session, "skills_read", path=path)) == wanted
    assert raw is None or text(await ask(session, "skills_read", path=path)).encode() == raw


@pytest.mark.requirement("RT-17")
async def test_pictures_and_other_files_are_read_as_fits(session: Session, registry: Registry) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    (picture,) = (await ask(session, "skills_read", path="assets/icon.png"))["content"]
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(picture["data"], validate=True) == PNG
    _, link = (await ask(session, "skills_read", path="assets/form.bin"))["content"]
    assert link["type"] == "resource_link"
    found = uris.find(registry.snapshot, link["uri"], Standing.VALID)
    assert found is not None and found[0].files[found[1]].size == 3


@pytest.mark.requirement("RT-17")
async def test_the_operator_says_how_much_a_call_returns(registry: Registry) -> None:
    session = Runtime(registry, RuntimeSettings(result_characters=20, media_bytes=10)).session()
    await ask(session, "skills_load", names=["pdf-processing"])
    part, note = (await ask(session, "skills_read", path="references/guide.md"))["content"]
    assert part["text"].rstrip("\n") == "Fill in the form."
    assert "go on with start_line=2" in note["text"]
    rest = await ask(session, "skills_read", path="references/guide.md", start_line=2)
    assert text(rest).rstrip("\n") == "Then sign it."
    _, link = (await ask(session, "skills_read", path="assets/icon.png"))["content"]
    assert link["type"] == "resource_link"


async def test_lines_of_a_text_are_chosen(session: Session) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    part = await ask(session, "skills_read", path="references/guide.md", start_line=1.0, max_lines=1)
    assert text(part).rstrip("\n") == "Fill in the form."
    words = await refused(session, "skills_read", {"path": "references/guide.md", "start_line": 3})
    assert "has 2 lines" in words


@pytest.mark.requirement("RT-17")
@pytest.mark.parametrize(
    "path",
    [
        "references/my notes.md",
        "./references/my notes.md",
        "skill://pdf-processing/references/my notes.md",
        uris.uri("pdf-processing", "references/my notes.md"),
    ],
)
async def test_a_file_is_found_by_path_and_by_uri(session: Session, path: str) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    assert text(await ask(session, "skills_read", path=path)) == "Mind the gap.\n"


async def test_a_directory_is_told_what_it_holds(session: Session) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    for path in ("references", "references/", "./references"):
        words = await refused(session, "skills_read", {"path": path})
        assert "is a directory; there is: references/guide.md, references/my notes.md" in words


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("references/giude.md", "references/guide.md"),
        ("guide.md", "references/guide.md"),
        ("zzzz", "SKILL.md, assets/form.bin, assets/icon.png, references/guide.md"),
        ("", "SKILL.md, assets/form.bin"),
        (".", "SKILL.md, assets/form.bin"),
    ],
)
async def test_an_unknown_path_is_told_the_nearest(session: Session, path: str, near: str) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    words = await refused(session, "skills_read", {"path": path})
    assert "is no file of the skill pdf-processing" in words
    assert near in words


@pytest.mark.requirement("RT-17", "MCP-55")
@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "references/../../secret.txt",
        "references/../references/guide.md",
        "{top}/secret.txt",
        "{top}/pdf-processing/SKILL.md",
        "/etc/passwd",
        "%2e%2e/secret.txt",
        "..%2fsecret.txt",
        "..\\secret.txt",
        "skill://pdf-processing/../secret.txt",
        "skill://pdf-processing/%2e%2e/secret.txt",
        "skill://data-analysis/references/guide.md",
        "file:///etc/passwd",
        "references/guide.md\0",
        "//references/guide.md",
    ],
)
async def test_no_path_leads_out_of_the_skill_or_to_the_disk(
    tmp_path: Path, session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "secret.txt").write_text("do not tell")
    await ask(session, "skills_load", names=["data-analysis", "pdf-processing"])
    for place, name in ((disk, "read"), (registry, "read"), (registry, "refresh")):
        monkeypatch.setattr(place, name, forbidden)
    words = await refused(session, "skills_read", {"path": path.replace("{top}", str(tmp_path))})
    assert "is no file of the skill" in words
    assert "do not tell" not in words


@pytest.mark.requirement("RT-17")
async def test_a_file_that_changed_a_moment_ago_is_read_as_it_is_now(tmp_path: Path, session: Session) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    await ask(session, "skills_read", path="references/guide.md")
    (tmp_path / "pdf-processing/references/guide.md").write_text("All of it is new.\n")
    assert text(await ask(session, "skills_read", path="references/guide.md")) == "All of it is new.\n"


async def test_a_file_that_vanished_a_moment_ago_is_told_of(tmp_path: Path, session: Session) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    (tmp_path / "pdf-processing/references/guide.md").unlink()
    words = await refused(session, "skills_read", {"path": "references/guide.md"})
    assert "is no file of the skill" in words
    assert "references/my notes.md" in words


async def test_a_skill_that_vanished_a_moment_ago_is_loaded_no_more(tmp_path: Path, session: Session) -> None:
    await ask(session, "skills_load", names=["data-analysis", "pdf-processing"])
    shutil.rmtree(tmp_path / "pdf-processing")
    assert "is not loaded" in await refused(session, "skills_read", {"path": "references/guide.md"})
    assert "<active_skills>" in await session.instructions()
    assert session.active_skills == ["data-analysis"]
    assert text(await ask(session, "skills_read", path="references/guide.md")) == "Draw it.\n"


async def test_a_skill_that_changed_a_moment_ago_is_loaded_as_it_is_now(tmp_path: Path, session: Session) -> None:
    changed = skill_md("refunds", body="Ask for nothing.")
    (tmp_path / "acme/billing/refunds" / SKILL_MD).write_text(changed)
    receipt = await ask(session, "skills_load", names=["refunds"])
    digest = f"sha256:{sha256(changed.encode()).hexdigest()}"
    assert receipt["structuredContent"]["active_skills"][0]["digest"] == digest
    assert "Ask for nothing." in await session.instructions()


async def test_what_never_holds_still_is_to_be_tried_again(
    session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])

    def failing(file: Any) -> bytes:
        raise StaleFileError("/nowhere")

    monkeypatch.setattr(registry, "read", failing)
    words = await refused(session, "skills_read", {"path": "references/guide.md"})
    assert "try again" in words and "nowhere" not in words


# Skills that change while they are loaded


@pytest.mark.requirement("RT-21", "RT-12")
async def test_an_edit_of_a_loaded_skill_shows_in_the_next_instructions(
    tmp_path: Path, session: Session, registry: Registry
) -> None:
    await ask(session, "skills_load", names=["refunds", "pdf-processing"])
    changed = skill_md("refunds", "license: MIT", body="Ask for nothing.")
    (tmp_path / "acme/billing/refunds" / SKILL_MD).write_text(changed)
    registry.refresh()
    shown = await session.instructions()
    assert "Ask for nothing." in shown and "Ask for the receipt." not in shown
    assert session.active_skills == ["refunds", "pdf-processing"]
    receipt = await ask(session, "skills_unload", names=["pdf-processing"])
    (entry,) = receipt["structuredContent"]["active_skills"]
    assert entry["properties"]["license"] == "MIT"
    assert entry["digest"] == f"sha256:{sha256(changed.encode()).hexdigest()}"


@pytest.mark.parametrize("becomes", [None, "---\nname: refunds\n"])
async def test_a_loaded_skill_that_is_removed_or_breaks_is_loaded_no_more(
    tmp_path: Path, session: Session, registry: Registry, becomes: str | None
) -> None:
    await ask(session, "skills_load", names=["refunds", "pdf-processing"])
    place = tmp_path / "acme/billing/refunds" / SKILL_MD
    place.unlink() if becomes is None else place.write_text(becomes)
    registry.refresh()
    assert "Ask for the receipt." not in await session.instructions()
    assert session.active_skills == ["pdf-processing"]
    assert active(await ask(session, "skills_unload", names=["refunds"])) == ["pdf-processing"]


async def test_a_loaded_skill_that_is_hidden_meanwhile_stays_loaded(
    tmp_path: Path, session: Session, registry: Registry
) -> None:
    await ask(session, "skills_load", names=["refunds"])
    hidden = skill_md("refunds", "disable-model-invocation: true", body="Ask the user.")
    (tmp_path / "acme/billing/refunds" / SKILL_MD).write_text(hidden)
    registry.refresh()
    shown = await session.instructions()
    assert "Ask the user." in shown and "<name>refunds</name>" not in shown


# Wrong arguments


@pytest.mark.parametrize(
    ("tool", "arguments", "wrong", "takes"),
    [
        ("skills_load", None, "'names' is a required property", "names (required), mode"),
        ("skills_load", {"names": "refunds"}, "Argument names: 'refunds' is not of type 'array'", "names (required)"),
        ("skills_load", {"names": [1]}, "Argument names.0: 1 is not of type 'string'", "names (required)"),
        ("skills_load", {"names": []}, "Argument names: ", "names (required)"),
        ("skills_load", {"names": ["refunds"], "mode": "merge"}, "'replace', 'add'", "names (required), mode"),
        ("skills_load", {"name": "refunds"}, "'name'", "names (required)"),
        ("skills_unload", {"all": "yes"}, "Argument all: 'yes' is not of type 'boolean'", "names, all"),
        ("skills_list", {"limit": 0}, "Argument limit: 0 is less than the minimum of 1", "after, limit"),
        ("skills_list", {"limit": 201}, "Argument limit: 201 is greater than the maximum of 200", "after, limit"),
        ("skills_list", {"limit": True}, "Argument limit: True is not of type 'integer'", "after, limit"),
        ("skills_search", {}, "'query' is a required property", "query (required), limit"),
        ("skills_search", {"query": None}, "Argument query: None is not of type 'string'", "query (required)"),
        ("skills_read", {}, "'path' is a required property", "path (required), skill, start_line, max_lines"),
        ("skills_read", {"path": "a", "start_line": 0}, "Argument start_line: ", "path (required)"),
        ("skills_read", {"path": "a", "max_lines": 1.5}, "Argument max_lines: 1.5", "path (required)"),
        ("skills_run_script", {"path": "a", "args": "-v"}, "Argument args: '-v'", "path (required), skill, args, env"),
        ("skills_run_script", {"path": "a", "env": {"A": 1}}, "Argument env.A: 1", "path (required)"),
        ("skills_run_script", {"path": "a", "timeout_s": 0}, "Argument timeout_s: 0", "path (required)"),
    ],
)
async def test_wrong_arguments_are_told_what_the_tool_takes(
    session: Session, tool: str, arguments: dict[str, Any] | None, wrong: str, takes: str
) -> None:
    words = await refused(session, tool, arguments)
    assert wrong in words
    assert f"{tool} takes: {takes}" in words


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "x", "env": {"a\nb": 1}},
        {"path": "x", "env": {"\ud800": 1}},
        {"path": "x", "env": {"a" * 10_000: 1}},
        {"path": "x", "a\nb" * 5_000: 1},
        {"path": ["x" * 10_000]},
    ],
)
async def test_words_about_wrong_arguments_are_short_and_can_be_written(
    session: Session, arguments: dict[str, Any]
) -> None:
    words = await refused(session, "skills_run_script", arguments)
    assert len(words) < 1000
    assert words.encode()


async def test_one_call_loads_so_many_bytes_of_several_skills_and_any_one_skill(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ["data-analysis", "refunds"]
    size = sum(len(raw) for path in WORKSHOP if path.endswith("SKILL.md") and isinstance(raw := WORKSHOP[path], str))
    size -= len(PDF)
    monkeypatch.setattr(session_module, "MOST_BYTES", size)
    await ask(session, "skills_load", names=both)
    monkeypatch.setattr(session_module, "MOST_BYTES", size - 1)
    words = await refused(session, "skills_load", {"names": both})
    assert f"These skills have {size:,} bytes of instructions, and one call loads at most {size - 1:,}" in words
    monkeypatch.setattr(session_module, "MOST_BYTES", 1)
    await ask(session, "skills_load", names=["refunds"])


async def test_arguments_of_any_depth_are_refused(session: Session) -> None:
    deep: Any = "refunds"
    for _ in range(5_000):
        deep = [deep]
    assert "skills_load takes: " in await refused(session, "skills_load", {"names": deep})


@pytest.mark.parametrize("name", ["", "skills", "skills_delete", "Skills_Load", "x" * 10_000, "a\nb", "\ud800"])
async def test_an_unknown_tool_is_told_the_tools(session: Session, name: str) -> None:
    words = await refused(session, name, {})
    assert words.startswith("Unknown tool") and "skills_load" in words
    assert len(words) < 1000
    assert words.encode()


@pytest.mark.requirement("X-16")
async def test_a_tool_goes_by_any_of_its_names(session: Session) -> None:
    assert active(await ask(session, "skills-load", names=["pdf-processing"])) == ["pdf-processing"]
    assert text(await ask(session, "skills-readresource", path="references/guide.md")).startswith("Fill in")
    assert active(await ask(session, "skills.unload", all=True)) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WORDS = (
    st.sampled_from(["csv-profiling", "refunds", "polite-greetings", SKILL_MD, "scripts/check_columns.sh", "scripts"])
    | st.sampled_from(["skill://csv-profiling", "skill://csv-profiling/%00", "skill://%ff", "../x", "[", '"', "\ud800"])
    | st.text(max_size=20)
)
LIKELY = {
    "names": st.lists(WORDS, max_size=4),
    "mode": st.sampled_from(["replace", "add"]),
    "all": st.booleans(),
    "query": WORDS,
    "after": WORDS,
    "limit": st.integers(1, 300) | st.floats(1, 1e308),
    "path": WORDS,
    "skill": WORDS,
    "start_line": st.integers(1, 10**30) | st.floats(1, 1e308),
    "max_lines": st.integers(1, 10**30) | st.floats(1, 1e308),
    "args": st.lists(WORDS, max_size=3),
    "env": st.dictionaries(st.text(max_size=5), WORDS, max_size=2),
    "workdir": WORDS,
    "timeout_s": st.floats(0, 1e308) | st.integers(1, 10),
}
TOOLS = st.sampled_from([*told.argument_schemas(), "skills.load", "skills-readresource"]) | st.text(max_size=12)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A tool and arguments for it, likely ones or wild ones or some of both."""
    name = draw(TOOLS)
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


# Many calls at once


async def test_calls_at_once_are_all_answered(session: Session) -> None:
    await ask(session, "skills_load", names=["pdf-processing"])
    answers: list[Any] = []

    async def keep(tool: str, **arguments: Any) -> None:
        answers.append(await ask(session, tool, **arguments))

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(lambda: keep("skills_read", path="references/guide.md", skill="pdf-processing"))
                group.start_soon(lambda: keep("skills_search", query="data"))
                group.start_soon(lambda: keep("skills_load", names=["data-analysis"], mode="add"))
                group.start_soon(lambda: keep("skills_unload", names=["refunds"]))
                group.start_soon(session.instructions)
    assert len(answers) == 40
    assert session.active_skills == ["pdf-processing", "data-analysis"]
    assert session.calls == 0


async def test_skills_that_are_added_at_once_are_both_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = loaded(plant(tmp_path, {"a/SKILL.md": long_md("a")} | skills("b")))
    session = Runtime(registry).session()
    held = Held(registry, monkeypatch)
    await held.during(
        lambda: ask(session, "skills_load", names=["a"], mode="add"),
        lambda: ask(session, "skills_load", names=["b"], mode="add"),
    )
    assert sorted(session.active_skills) == ["a", "b"]


@pytest.mark.requirement("RT-8")
async def test_calls_at_once_keep_to_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = loaded(plant(tmp_path, {"a/SKILL.md": long_md("a")} | skills("b", "c", "d")))
    session = Runtime(registry, RuntimeSettings(max_loaded=2)).session()
    held = Held(registry, monkeypatch)
    answers = await held.during(
        lambda: session.call("skills_load", {"names": ["a", "b"], "mode": "add"}),
        lambda: session.call("skills_load", {"names": ["c", "d"], "mode": "add"}),
    )
    assert len(session.active_skills) == 2
    assert [answer.get("isError", False) for answer in answers].count(True) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "then"),
    [
        ("skills_load", {"names": ["b"]}, ["b"]),
        ("skills_load", {"names": ["b"], "mode": "add"}, ["a", "b"]),
        ("skills_unload", {"all": True}, []),
    ],
)
async def test_what_is_loaded_while_the_instructions_are_renewed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, arguments: dict[str, Any], then: list[str]
) -> None:
    registry = loaded(plant(tmp_path, {"a/SKILL.md": long_md("a", "Old.")} | skills("b")))
    session = Runtime(registry).session()
    await ask(session, "skills_load", names=["a"])
    (tmp_path / "a" / SKILL_MD).write_text(long_md("a", "New."))
    registry.refresh()
    held = Held(registry, monkeypatch)
    await held.during(session.instructions, lambda: ask(session, tool, **arguments))
    assert session.active_skills == then
    assert "Old." not in await session.instructions()


# Scripts


class Workspace:
    """Stands for a session's work directory."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        """As a work directory's."""
        self.closed += 1


class Scripts:
    """Stands for what runs scripts: reads them as the real one does, and remembers what it was asked."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.made: list[Workspace] = []
        self.asked: list[tuple[Skill, str, Workspace, dict[str, Any]]] = []
        self.tries = 0
        self.closed = 0

    def workspace(self) -> Workspace:
        """As that of the real one."""
        self.made.append(Workspace())
        return self.made[-1]

    def close(self) -> None:
        """As that of the real one."""
        self.closed += 1

    async def run(self, skill: Skill, path: str, workspace: Workspace, **more: Any) -> Outcome:
        """As that of the real one, but that nothing runs: the script is its own output."""
        self.tries += 1
        raw = self._registry.read(skill.files[path])
        self.asked.append((skill, path, workspace, more))
        if more["progress"] is not None:
            await more["progress"](1.0)
        return Outcome(path, 0, raw.decode(), "", 1, False, False, False, "none")


@pytest.fixture
def scripts(registry: Registry) -> Scripts:
    """What runs scripts here."""
    return Scripts(registry)


@pytest.fixture
def able(registry: Registry, scripts: Scripts) -> Session:
    """A conversation whose operator allows scripts."""
    runtime = Runtime(registry)
    runtime.scripts = scripts  # pyright: ignore[reportAttributeAccessIssue]
    return runtime.session()


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
    ((skill, path, workspace, more),) = scripts.asked
    assert (skill.path, path, workspace) == ("pdf-processing", "scripts/extract.py", scripts.made[0])
    assert {key: more[key] for key in said} == said
    assert more.keys() == {*said, "progress"}
    assert beats == [1.0]
    assert result["structuredContent"] == {
        "path": "scripts/extract.py",
        "exit_code": 0,
        "stdout": "print('extracted')\n",
        "stderr": "",
        "duration_ms": 1,
        "timed_out": False,
        "stdout_truncated": False,
        "stderr_truncated": False,
        "sandbox": "none",
        "user": None,
        "sandbox_gaps": [],
        "files": [],
        "files_not_shown": 0,
    }


async def test_what_the_model_leaves_out_is_left_to_the_operator(able: Session, scripts: Scripts) -> None:
    await ask(able, "skills_load", names=["pdf-processing"])
    await ask(able, "skills_run_script", path="scripts/extract.py")
    more = scripts.asked[0][3]
    assert list(more["args"]) == []
    assert not more["env"]
    assert more["workdir"] == "."
    assert more["timeout_s"] is None and more["progress"] is None


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
@pytest.mark.parametrize(
    "path",
    [
        "extract.py",
        "scripts/",
        "scripts",
        "references/guide.md",
        SKILL_MD,
        "assets/form.bin",
        "scripts/../assets/form.bin",
        "../data-analysis/scripts/plot.sh",
        "scripts/../../data-analysis/scripts/plot.sh",
        "skill://data-analysis/scripts/plot.sh",
        "/bin/sh",
        "scripts/%65xtract.py",
        "scripts/extract.py --in a",
        "",
    ],
)
async def test_only_files_below_scripts_are_run(able: Session, scripts: Scripts, path: str) -> None:
    await ask(able, "skills_load", names=["data-analysis", "pdf-processing"])
    assert ": scripts/extract.py" in await refused(able, "skills_run_script", {"path": path})
    assert scripts.asked == [] and scripts.made == []


async def test_a_skill_without_scripts_is_told_so(able: Session) -> None:
    await ask(able, "skills_load", names=["refunds"])
    words = await refused(able, "skills_run_script", {"path": "scripts/x.sh"})
    assert "it has no file below scripts/" in words


async def test_a_session_has_one_work_directory_and_closes_it(able: Session, scripts: Scripts) -> None:
    other = able._runtime.session()
    for session in (able, able, other):
        await ask(session, "skills_load", names=["pdf-processing"])
        await ask(session, "skills_run_script", path="scripts/extract.py")
    first, second = scripts.made
    assert [workspace for _, _, workspace, _ in scripts.asked] == [first, first, second]
    able.close()
    able.close()
    assert (first.closed, second.closed) == (1, 0)
    assert able.active_skills == []
    able._runtime.close()
    assert scripts.closed == 1


@pytest.mark.requirement("RT-18")
async def test_a_script_that_changed_a_moment_ago_runs_as_it_is_now(
    tmp_path: Path, able: Session, scripts: Scripts
) -> None:
    await ask(able, "skills_load", names=["pdf-processing"])
    (tmp_path / "pdf-processing/scripts/extract.py").write_text("print('all of it is new')\n")
    result = await ask(able, "skills_run_script", path="scripts/extract.py")
    assert result["structuredContent"]["stdout"] == "print('all of it is new')\n"
    assert scripts.tries == 2 and len(scripts.asked) == 1


async def test_a_script_that_vanished_a_moment_ago_is_told_of(tmp_path: Path, able: Session, scripts: Scripts) -> None:
    await ask(able, "skills_load", names=["pdf-processing"])
    (tmp_path / "pdf-processing/scripts/extract.py").unlink()
    assert "it has no file below" in await refused(able, "skills_run_script", {"path": "scripts/extract.py"})
    assert scripts.asked == []
