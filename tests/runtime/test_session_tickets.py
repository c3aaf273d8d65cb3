"""Session tickets: sessions that go on in the next process of a server over stdio."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace as Clock
from typing import Any

import pytest

from catalog.forest import load_registry, skill_md, skills, write_files
from mcp_skills_server.catalog.recalls import Advisory, Recalls
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.runtime import session_tickets
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.session_tickets import TicketSessions
from mcp_skills_server.runtime.sessions import IDLE_S, UnknownSessionError
from runtime.support import call_tool, error_of

pytestmark = pytest.mark.anyio
ODD = "acme/a b,c.d%2e ü"


@pytest.fixture(autouse=True)
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the key in a fresh state directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mcp-skills-server" / "session-key"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = skills("b", "c") | {f"{ODD}/SKILL.md": skill_md("odd"), f"{ODD}/notes.md": "Odd.\n", "c/notes.md": "C.\n"}
    return write_files(tmp_path / "root", files)


def next_process(*roots: Path) -> TicketSessions:
    """Return the sessions of a new process on these roots."""
    return TicketSessions(Runtime(load_registry(*roots)))


async def load(sessions: TicketSessions, *names: str, session: Session | None = None) -> tuple[Session, str]:
    """Load skills beside the loaded ones; return the session and its new ticket."""
    loading = session or sessions.new()
    result = await call_tool(loading, "skills_load", names=list(names), mode="add")
    sessions.store(loading, None)
    return loading, result["structuredContent"]["session"]


def is_known(sessions: TicketSessions, ticket: str, owner: str | None = None) -> bool:
    try:
        sessions.find(ticket, owner)
    except UnknownSessionError:
        return False
    return True


async def test_next_process_tells_of_a_skill_that_is_recalled_meanwhile(root: Path) -> None:
    first = next_process(root)
    _, ticket = await load(first, "b", "c")
    _, other = await load(first, "c")
    recalled = first.runtime.registry.snapshot.skills["b"].digests["SKILL.md"]
    registry = Registry([root], recalls=Recalls([Advisory(recalled, "it is bad", "low")]))
    registry.load()
    sessions = TicketSessions(Runtime(registry))
    session = sessions.find(ticket, None)
    assert "RECALLED (low): the skill b" in str(await call_tool(session, "skills_list"))
    assert session.active_skills == ["c"]
    assert "RECALLED" not in str(await call_tool(session, "skills_list"))
    assert "RECALLED" not in str(await call_tool(sessions.find(other, None), "skills_list"))


@pytest.mark.requirement("RT-15", "X-15", "MCP-11")
async def test_next_process_goes_on_with_the_loaded_skills_alone(root: Path) -> None:
    _, ticket = await load(next_process(root), "b", "odd")
    session = next_process(root).find(ticket, None)
    read: Any = await session.call("skills_read", {"path": "notes.md"})
    assert read["content"][0]["text"] == "Odd.\n"
    assert session.active_skills == ["b", "odd"]
    refused = await error_of(session, "skills_read", {"path": "notes.md", "skill": "c"})
    assert "is not loaded" in refused and refused.endswith("Loaded now: b, odd")
    await call_tool(session, "skills_unload", all=True)
    empty = next_process(root).find(next_process(root).handle_of(session), None)
    assert "No skill is loaded" in await error_of(empty, "skills_read", {"path": "SKILL.md"})


async def test_open_session_has_its_latest_skills_whatever_its_ticket_says(root: Path) -> None:
    sessions = next_process(root)
    session, first = await load(sessions, "b")
    _, second = await load(sessions, "c", session=session)
    assert sessions.find(first, None) is sessions.find(second, None) is session
    assert sessions.find(session.session_id, None) is session
    assert first.startswith(session.session_id) and first != second


async def test_skills_of_a_ticket_are_looked_up_anew(root: Path) -> None:
    _, ticket = await load(next_process(root), "b", "c")
    (root / "c" / "SKILL.md").write_text(skill_md("c", body="New."))
    (root / "b" / "SKILL.md").unlink()
    session = next_process(root).find(ticket, None)
    read: Any = await session.call("skills_read", {"path": "SKILL.md"})
    assert "New." in read["content"][0]["text"]
    assert session.active_skills == ["c"]


async def test_altered_foreign_and_expired_tickets_are_unknown(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, ticket = await load(next_process(root), "b")
    identifier, issued, signature, names = ticket.split(".", 3)
    assert (identifier, names) == (session.session_id, "b")
    sessions = next_process(root)
    for altered in (
        identifier, f"{identifier}.", f"{ticket},c", ticket.replace(".b", ".c"), f"{identifier}.{issued}..b",
        f"{identifier}.{issued}.{signature[:-1]}.b", f"{identifier}.{issued}.{signature}", f"{identifier}....",
        f"{identifier}.1{issued}.{signature}.b", f"{identifier}.{issued}.{signature}.", "", ".", "...", "\ud800...",
        f"x{ticket}", f"{identifier}.zz.{signature}.b", f"{identifier}.{issued}.é{signature}.b",
    ):  # fmt: skip
        assert not is_known(sessions, altered), altered
    assert not is_known(next_process(root, write_files(tmp_path / "other", skills("d"))), ticket)
    monkeypatch.setattr(session_tickets, "time", clock := Clock(time=lambda: int(issued, 16) + IDLE_S))
    assert is_known(next_process(root), ticket)
    for now in (int(issued, 16) + IDLE_S + 1, int(issued, 16) - IDLE_S - 1):
        clock.time = lambda now=now: now
        assert not is_known(next_process(root), ticket)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert is_known(sessions, ticket)
    assert not is_known(sessions, ticket, "token:alice")  # it is open now, for another owner
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert not is_known(next_process(root), ticket)


def test_processes_that_begin_at_once_share_one_key(root: Path, key_file: Path) -> None:
    barrier, keys = threading.Barrier(8), []

    def begin() -> None:
        sessions = next_process(root)
        barrier.wait()
        keys.append(sessions._ticket("a", "0", "b"))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8 and len(set(keys)) == 1
    assert [path.name for path in key_file.parent.iterdir()] == ["session-key"]
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert len(key_file.read_bytes()) == 32


def spoil(key_file: Path, fault: str) -> None:
    """Put something else in the place of the key."""
    key_file.parent.mkdir(parents=True)
    if fault == "no folder":
        key_file.parent.rmdir()
        key_file.parent.write_text("")
        return
    key_file.write_bytes(os.urandom({"short": 5, "long": 33}.get(fault, 32)))
    key_file.chmod(0o666 if fault == "writable" else 0o600)


@pytest.mark.parametrize(("fault", "words"), [
    ("no folder", "File exists"), ("short", "holds no key; remove it"), ("long", "holds no key; remove it"),
    ("writable", "is writable by other users; remove it"),
])  # fmt: skip
async def test_session_ends_with_its_process_without_a_key_of_ones_own(
    root: Path, key_file: Path, caplog: pytest.LogCaptureFixture, fault: str, words: str
) -> None:
    caplog.set_level("INFO")
    spoil(key_file, fault)
    sessions = next_process(root)
    session, ticket = await load(sessions, "b")
    assert sessions.find(ticket, None) is session
    assert not is_known(next_process(root), ticket)
    assert words in caplog.text
