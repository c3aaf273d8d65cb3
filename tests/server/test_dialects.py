"""A dialect that is added only to the table. The server's code names no dialect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server import Registry, RequestError, Settings, Skill, Snapshot
from mcp_skills_server.dialects import table
from mcp_skills_server.dialects.dialect import Dialect, EntryContext, EntryResult
from mcp_skills_server.model import Json, Standing
from server.sdk import attached_client, request
from wire import write_skill

pytestmark = pytest.mark.anyio


def by_number(snapshot: Snapshot, target: str, least: Standing) -> Skill:
    paths = snapshot.paths(least)
    if not target.isdecimal() or int(target) >= len(paths):
        raise RequestError(f"No skill has the number {target[:20]}")
    return snapshot.skills[paths[int(target)]]


def numbered(subject: EntryContext) -> dict[str, Json]:
    number = subject.snapshot.paths(subject.least).index(subject.skill.path)
    return {"number": number, "called": subject.skill.name}


TINY = Dialect(
    name="tiny", least=Standing.VALID, capabilities={"tiny": {}},
    extensions={"com.example/tiny": {"numbers": True}},
    entry=numbered, needs_served=lambda _: False, parameter="number", find=by_number,
    result=EntryResult(lambda entry: {"found": entry}),
    notifications={"tinyListChanged": "notifications/tiny/list_changed"},
)  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.TABLE, TINY.name, TINY)


async def test_added_dialect_is_declared_listed_and_found(tmp_path: Path, mode: Any) -> None:
    assert "tiny" in table.names()
    for name in ("b", "d"):
        write_skill(tmp_path / name)
    registry = Registry([tmp_path])
    async with attached_client(registry, mode, settings=Settings(dialect="tiny")) as client:
        extensions = client.server_capabilities.extensions or {}
        assert extensions == {"com.example/tiny": {"numbers": True}}
        listed = (await request(client, "skills/list"))["skills"]
        assert listed == [{"number": 0, "called": "b"}, {"number": 1, "called": "d"}]
        assert (await request(client, "skills/get", number="1"))["found"] == {"number": 1, "called": "d"}
        write_skill(tmp_path / "a")
        registry.refresh()
        # The cached entry of d is invalid: d was the second skill, and is now the third.
        assert (await request(client, "skills/get", number="2"))["found"] == {"number": 2, "called": "d"}
