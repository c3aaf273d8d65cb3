"""MCP server as a source: digests, notifications, tokens, limits and refusal."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import sys
from pathlib import Path
from time import monotonic

import anyio
import pytest

from commands.calls import names_served
from dispatching import local_serving
from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources import mcp
from mcp_skills_server.sources.kinds import kind_of
from mcp_skills_server.sources.mcp import McpServer
from mcp_skills_server.sources.source import (
    Bounds,
    FetchLimits,
    FetchSettings,
    SourceError,
    SourceSettings,
    UnacceptableError,
    UnreachableError,
)
from sources.fetching import listed_names, open_follower, run_command, skill_names
from sources.hostile import KINDS, Member, mcp_server
from sources.publishers import Publisher, digest, redirect, respond_with, skill_md
from tables import each_row
from web.http_wire import http_serving
from wire import DEADLINE, EXTENSION, serving, write_skill


def options(tmp_path: Path) -> list[str]:
    return ["--cache-dir", str(tmp_path / "cache"), "--refresh", "3600", "--first-load", "60"]


def test_edit_at_http_server_is_followed_by_notification(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    with (
        http_serving(tmp_path / "skills") as other,
        local_serving(f"mcp+http://127.0.0.1:{other.port}/mcp", *options(tmp_path)) as wire,
    ):
        assert listed_names(wire) == ["one"]
        write_skill(tmp_path / "skills" / "two")
        wire.until("notifications/skills/list_changed")
        assert listed_names(wire) == ["one", "two"]
        shutil.rmtree(tmp_path / "skills" / "one")
        wire.until("notifications/skills/list_changed")
        assert listed_names(wire) == ["two"]


def test_edit_at_legacy_server_is_followed_by_notification(tmp_path: Path) -> None:
    with KINDS["mcp"].open(tmp_path) as place, local_serving(place.given, *options(tmp_path)) as wire:
        assert listed_names(wire) == ["good"]
        place.publish("second", [Member("more.md")])
        wire.until("notifications/skills/list_changed")
        assert listed_names(wire) == ["bad", "good"]


@each_row(("headers", "size", "reason"), [
    ({"content_encoding": "deflate"}, 1000, "compressed"), ({}, 5000, "more than 4,096 bytes"),
])  # fmt: skip
def test_large_or_compressed_http_response_is_refused(
    tmp_path: Path, headers: dict[str, str], size: int, reason: str
) -> None:
    with Publisher() as other:
        other.routes["/mcp"] = respond_with(b" " * size, content_type="application/json", **headers)
        settings = SourceSettings(tmp_path, fetch=FetchSettings(limits=FetchLimits(skill_bytes=2048)))
        with pytest.raises(UnacceptableError, match=reason):
            anyio.run(McpServer(f"mcp+{other.url}/mcp", settings).resolve)


def test_redirect_to_another_origin_gets_no_request(tmp_path: Path) -> None:
    """The SDK follows none either; this holds if another version, or an HTTP client's default, does."""

    async def get(url: str) -> None:
        async with mcp.http_client(url, "", connect_s=DEADLINE, max_bytes=1024) as client:
            assert (await client.post(f"{url}/here", follow_redirects=True)).status_code == 200
            await client.post(url, follow_redirects=True)

    with Publisher() as site, Publisher() as other:
        site.routes["/mcp/here"] = redirect("/there", 307)
        site.routes["/there"] = respond_with()
        site.routes["/mcp"] = redirect(f"{other.url}/mcp", 307)
        with pytest.raises(UnacceptableError, match=f"it leads to {other.url}, another origin"):
            anyio.run(get, f"{site.url}/mcp")
        with pytest.raises(SourceError):
            anyio.run(McpServer(f"mcp+{site.url}/mcp", SourceSettings(tmp_path)).resolve)
        assert other.requests == []


@pytest.mark.requirement("S40-55")
def test_server_of_an_unknown_revision_is_a_named_problem(tmp_path: Path) -> None:
    given = mcp_server(tmp_path, {"good": {"SKILL.md": skill_md("good")}})
    answers = json.loads((tmp_path / "answers.json").read_text())
    answers["initialize"]["capabilities"]["extensions"] = {EXTENSION: {"revision": "2"}}
    answers["resources/list"] = {"resources": [{"uri": "skill://good/SKILL.md", "name": "good"}]}
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    done = run_command("fetch", given, "--output", tmp_path / "out", code=2)
    assert "the server's skills extension has the unknown revision '2', so its resources are used" in done.stderr
    assert not (tmp_path / "out" / "good").exists()


STUBBORN = """
exec 9>"$1"; trap '' HUP INT TERM
sleep 100 <&- >&- &
shift; exec "$@"
"""
"""A program that ignores signals, and leaves another. Both hold a FIFO open."""


def wait_for_end_of_writers(fifo: int) -> None:
    assert select.select([fifo], [], [], DEADLINE)[0], "a process still holds the FIFO open"
    assert os.read(fifo, 1) == b""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@each_row("end", [signal.SIGTERM, signal.SIGKILL, None])
def test_command_that_ignores_signals_ends_with_the_server_and_its_children(
    tmp_path: Path, end: signal.Signals | None
) -> None:
    os.mkfifo(path := tmp_path / "fifo")
    fifo = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    given = mcp_server(tmp_path, {"good": {"SKILL.md": skill_md("good")}}).removeprefix("mcp+stdio:")
    root = f"mcp+stdio:sh -c {shlex.quote(STUBBORN)} sh {path} {given}"
    with serving(root, *options(tmp_path)) as wire:
        assert listed_names(wire) == ["good"]
        if end is None:
            wire.process.stdin.close()
        else:
            wire.process.send_signal(end)
        wire.process.wait(DEADLINE)
        wait_for_end_of_writers(fifo)
    os.close(fifo)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_child_that_a_command_leaves_ends_after_each_poll(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "fifo")
    fifo = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    given = mcp_server(tmp_path, {"good": {"SKILL.md": skill_md("good")}}).removeprefix("mcp+stdio:")
    anyio.run(McpServer(f"mcp+stdio:sh -c {shlex.quote(STUBBORN)} sh {path} {given}", SourceSettings(tmp_path)).resolve)
    wait_for_end_of_writers(fifo)
    os.close(fifo)


def test_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="there is no program 'no-such-program'"):
        anyio.run(McpServer("mcp+stdio:no-such-program", SourceSettings(tmp_path)).resolve)


def test_reopening_of_ended_streams_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK reopens an ended stream, at once if the server requests `retry: 0`."""
    monkeypatch.setattr(mcp, "_STREAMS_APART_S", 0.2)

    async def reopen(url: str) -> float:
        async with mcp.http_client(url, "", connect_s=DEADLINE, max_bytes=1024) as client:
            start = monotonic()
            for _ in range(3):
                await client.post(url)
                await client.get(url)
            return monotonic() - start

    with Publisher() as other:
        other.routes["/mcp"] = respond_with(b"id: 1\nretry: 0\n\n", content_type="text/event-stream")
        assert anyio.run(reopen, f"{other.url}/mcp") >= 0.4


def test_file_with_wrong_digest_or_path_refuses_only_its_skill(tmp_path: Path) -> None:
    files = {name: {"SKILL.md": skill_md(name), "a.md": b"text"} for name in ("good", "bad")}
    files["evil"] = {"SKILL.md": skill_md("evil"), "%2e%2e/x.md": b"x"}
    wrong = {"skill://bad/a.md": f"sha256:{'0' * 64}"}
    root = mcp_server(tmp_path, files, wrong)
    done = run_command("list", root, "--cache-dir", tmp_path / "cache")
    assert "good" in done.stdout
    assert "bad" not in done.stdout
    assert "bad: 'skill://bad/a.md': the server's copy differs from its listing" in done.stderr
    assert not [*tmp_path.rglob("x.md")]


def test_skill_that_differed_from_its_listing_is_read_again(tmp_path: Path) -> None:
    listed, edited = ({"good": {"SKILL.md": skill_md("good"), "a.md": text}} for text in (b"as listed", b"edited..."))
    root = mcp_server(tmp_path, edited, {"skill://good/a.md": digest(b"as listed")})
    follower = open_follower(root, tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(UnreachableError, match="differs from its listing"):
            anyio.run(follower.refresh)
    mcp_server(tmp_path, listed)
    anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["good"]
    assert follower.state.revision


def test_token_is_sent_but_not_logged_displayed_or_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_skill(tmp_path / "skills" / "one")
    token = "very-secret-0123456789"
    with http_serving(tmp_path / "skills", environment={"MCP_SKILLS_TOKENS": f"us={token}"}) as other:
        root = f"mcp+http://127.0.0.1:{other.port}/mcp"
        config = tmp_path / "c.toml"
        config.write_text(f'[[source]]\nfrom = "{root}"\ntoken-env = "THEIRS"\n', encoding="utf-8")
        options = ("--config", config, "--cache-dir", tmp_path / "cache", "--first-load", "60")
        caplog.set_level("DEBUG")
        monkeypatch.setenv("THEIRS", token)
        assert names_served(*options) == ["one"]
        assert token not in caplog.text
        assert "token-env=THEIRS" in run_command("config", "show", "--config", config).stdout
        cached = [each.read_bytes() for each in (tmp_path / "cache").rglob("*") if each.is_file()]
        assert cached
        assert token.encode() not in b"".join(cached)
        monkeypatch.delenv("THEIRS")
        assert "THEIRS" in run_command("serve", "--config", config, code=2).stderr
        run_command("list", root, "--cache-dir", tmp_path / "none", code=2)


def test_silent_server_times_out(tmp_path: Path) -> None:
    silent = "mcp+stdio:" + shlex.join([sys.executable, "-c", "import sys; sys.stdin.read()"])
    settings = SourceSettings(tmp_path, fetch=FetchSettings(bounds=Bounds(download_s=0.3)))
    with pytest.raises(SourceError, match=r"no answer within 0\.3 s"):
        anyio.run(McpServer(silent, settings).resolve)


@each_row("given", [
    "mcp+http://skills.example/mcp", "mcp+https://", "mcp+ftp://a.example/", "mcp+stdio:",
    'mcp+stdio:server "open', "mcp+https://me:secret@a.example/mcp",
])  # fmt: skip
def test_malformed_root_is_refused_in_one_line(tmp_path: Path, given: str) -> None:
    assert kind_of(given).name == "MCP server"
    with pytest.raises(UsageError) as refused:
        McpServer(given, SourceSettings(tmp_path))
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_origin_and_cache_folder_hide_arguments_and_queries(tmp_path: Path) -> None:
    settings = SourceSettings(tmp_path)
    command = "mcp+stdio:/opt/bin/server --url https://b.example/?key=secret"
    assert McpServer(command, settings).origin == "mcp+stdio:server"
    assert "secret" not in McpServer("mcp+https://a.example/mcp?key=secret", settings).origin
    assert len([*tmp_path.glob("listed/*")]) == 2
    assert not [*tmp_path.rglob("*secret*")]
