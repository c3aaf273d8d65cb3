"""A new dialect is its module and a row: nothing in the server names one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from catalog.forest import loaded
from mcp_skills_server import Registry, RequestError, Settings, Skill, Snapshot
from mcp_skills_server.dialects import table
from mcp_skills_server.dialects.dialect import Dialect, EntryContext, EntryResult
from mcp_skills_server.model import Json, Standing
from mcp_skills_server.server.notify import Notifier, Stream, notices
from server.sdk import ask, attached
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.anyio


def number_of(skill: Skill, snapshot: Snapshot, least: Standing) -> int:
    return snapshot.paths(least).index(skill.path)


def by_number(snapshot: Snapshot, target: str, least: Standing) -> Skill:
    paths = snapshot.paths(least)
    if not target.isdecimal() or int(target) >= len(paths):
        raise RequestError(f"No skill has the number {target[:20]}")
    return snapshot.skills[paths[int(target)]]


def numbered(subject: EntryContext) -> dict[str, Json]:
    return {"number": number_of(subject.skill, subject.snapshot, subject.least), "called": subject.skill.name}


TINY = Dialect(
    name="tiny",
    least=Standing.VALID,
    capabilities={"tiny": {}},
    extensions={"com.example/tiny": {"numbers": True}},
    entry=numbered,
    needs_served=lambda _: False,
    parameter="number",
    find=by_number,
    result=EntryResult(lambda entry: {"found": entry}),
    notifications={"tinyListChanged": "notifications/tiny/list_changed"},
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.TABLE, TINY.name, TINY)


@pytest.mark.usefixtures("tiny")
async def test_a_row_is_announced_listed_and_found(tmp_path: Path, mode: Any) -> None:
    assert "tiny" in table.names()
    for name in ("b", "d"):
        write_skill(tmp_path / name)
    registry = Registry([tmp_path])
    async with attached(registry, mode, settings=Settings(dialect="tiny")) as client:
        extensions = client.server_capabilities.extensions or {}
        assert extensions == {"com.example/tiny": {"numbers": True}}
        listed = (await ask(client, "skills/list"))["skills"]
        assert listed == [{"number": 0, "called": "b"}, {"number": 1, "called": "d"}]
        assert (await ask(client, "skills/get", number="1"))["found"] == {"number": 1, "called": "d"}
        write_skill(tmp_path / "a")
        registry.refresh()
        # What an entry varies with is looked at again: d was the second, and is the third now.
        assert (await ask(client, "skills/get", number="2"))["found"] == {"number": 2, "called": "d"}


@pytest.mark.usefixtures("tiny")
async def test_a_row_is_notified(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    registry, settings = loaded(tmp_path), Settings(dialect="tiny")
    write_skill(tmp_path / "b")
    method = "notifications/tiny/list_changed"
    assert (method, None) in notices(registry.refresh(), settings, tools=False)
    sent: list[dict[str, Any]] = []
    notifier = Notifier(settings)

    async def send(said: str, params: dict[str, Any] | None) -> None:
        sent.append({"method": said, "params": params})
        if len(sent) == 1:
            notifier.publish([("notifications/other", None), (method, None)])
            notifier.close()

    wanted = {"tinyListChanged": True, "skillsListChanged": True}
    with anyio.fail_after(DEADLINE):
        await notifier.listen(Stream(1, send, shared=False), wanted)
    assert sent[0]["params"]["notifications"] == {"tinyListChanged": True}
    assert [each["method"] for each in sent[1:]] == [method]


@pytest.mark.usefixtures("tiny")
async def test_a_row_joins_the_others_where_all_are_spoken(tmp_path: Path, mode: Any) -> None:
    write_skill(tmp_path / "a")
    async with attached(tmp_path, mode) as client:
        (entry,) = (await ask(client, "skills/list"))["skills"]
        assert entry["number"] == 0 and entry["name"] == "a" and entry["uri"] == "skill://a/SKILL.md"
        assert (await ask(client, "skills/get", number="0"))["found"] == entry
        assert (await ask(client, "skills/get", name="a"))["instructions"]
