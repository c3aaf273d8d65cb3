"""Another MCP server as a source: proved, followed, and refused where it cannot be proved."""

from __future__ import annotations

import shlex
import shutil
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic

import anyio
import pytest

from forkserver import run
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
)
from sources.hostile import KINDS, Member, mcp_server
from sources.publishers import Publisher, answer, skill_md
from tables import each_row
from web.http_wire import http_serving
from wire import COMMAND, FIXTURES, Wire, serving, write_skill


def ours(*roots: Path) -> str:
    """A root that is this program, serving these roots."""
    return "mcp+stdio:" + shlex.join([*COMMAND, "serve", *map(str, roots)])


def listed(tmp_path: Path, root: str) -> tuple[int, str, str]:
    words = [*COMMAND, "list", root, "--cache-dir", str(tmp_path / "cache")]
    done = run(words, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def following(root: str, tmp_path: Path) -> AbstractContextManager[Wire]:
    return serving(root, "--cache-dir", tmp_path / "cache", "--refresh", "3600", "--first-load", "60")


def names(wire: Wire) -> list[str]:
    return sorted(each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"])


def test_the_skills_of_a_command_are_served_with_the_same_bytes(tmp_path: Path) -> None:
    def digests(wire: Wire) -> dict[str, list[str]]:
        found = wire.request("skills/list")["skills"]
        return {each["frontmatter"]["name"]: sorted(file["digest"] for file in each["resources"]) for each in found}

    ours = "mcp+stdio:" + shlex.join([*COMMAND, "serve", str(FIXTURES)])
    with serving(FIXTURES) as direct, following(ours, tmp_path) as wire:
        assert digests(wire) == digests(direct)


def test_an_edit_at_the_other_server_is_followed_at_once_by_its_notifications(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    with (
        http_serving(tmp_path / "skills") as other,
        following(f"mcp+http://127.0.0.1:{other.port}/mcp", tmp_path) as wire,
    ):
        assert names(wire) == ["one"]
        write_skill(tmp_path / "skills" / "two")
        wire.until("notifications/skills/list_changed")
        assert names(wire) == ["one", "two"]
        shutil.rmtree(tmp_path / "skills" / "one")
        wire.until("notifications/skills/list_changed")
        assert names(wire) == ["two"]


def test_a_notification_of_another_server_is_followed_at_once_in_the_era_before(tmp_path: Path) -> None:
    with KINDS["mcp"].open(tmp_path) as place, following(place.given, tmp_path) as wire:
        assert names(wire) == ["good"]
        place.publish("second", [Member("more.md")])
        wire.until("notifications/skills/list_changed")
        assert names(wire) == ["bad", "good"]


@each_row(
    ("headers", "size", "why"),
    [({"content_encoding": "deflate"}, 1000, "compressed"), ({}, 5000, "more than 4,096 bytes")],
)
def test_an_answer_over_http_is_bounded_and_never_decompressed(
    tmp_path: Path, headers: dict[str, str], size: int, why: str
) -> None:
    with Publisher() as other:
        other.routes["/mcp"] = answer(b" " * size, content_type="application/json", **headers)
        settings = SourceSettings(tmp_path, fetch=FetchSettings(limits=FetchLimits(skill_bytes=2048)))
        with pytest.raises(UnacceptableError, match=why):
            anyio.run(McpServer(f"mcp+{other.url}/mcp", settings).resolve)


def test_a_server_that_ends_each_stream_is_not_asked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK opens a stream that has ended anew, at once if the server says so."""
    monkeypatch.setattr(mcp, "_STREAMS_APART_S", 0.2)

    async def reopen(url: str) -> float:
        async with McpServer(f"mcp+{url}", SourceSettings(tmp_path))._http() as client:
            begun = monotonic()
            for _ in range(3):
                await client.post(url)
                await client.get(url)
            return monotonic() - begun

    with Publisher() as other:
        other.routes["/mcp"] = answer(b"id: 1\nretry: 0\n\n", content_type="text/event-stream")
        assert anyio.run(reopen, f"{other.url}/mcp") >= 0.4


def test_a_file_that_is_not_what_was_listed_costs_its_skill_alone(tmp_path: Path) -> None:
    files = {name: {"SKILL.md": skill_md(name), "a.md": b"text"} for name in ("good", "bad")}
    files["evil"] = {"SKILL.md": skill_md("evil"), "%2e%2e/x.md": b"x"}
    code, out, said = listed(tmp_path, mcp_server(tmp_path, files, {"skill://bad/a.md": f"sha256:{'0' * 64}"}))
    assert code == 0 and "good" in out and "bad" not in out
    assert "mcp+stdio:python/bad: error" in said and "source-refused" in said
    assert not [*tmp_path.rglob("x.md")]


def test_a_token_is_sent_to_its_server_and_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "skills" / "one")
    token = "very-secret-0123456789"
    with http_serving(tmp_path / "skills", environment={"MCP_SKILLS_TOKENS": f"us={token}"}) as other:
        root = f"mcp+http://127.0.0.1:{other.port}/mcp"
        config = tmp_path / "c.toml"
        config.write_text(f'[[source]]\nfrom = "{root}"\ntoken-env = "THEIRS"\n', encoding="utf-8")
        where = ("--config", config, "--cache-dir", tmp_path / "cache", "--log-level", "debug")
        monkeypatch.setenv("THEIRS", token)
        with serving(*where) as wire:
            assert names(wire) == ["one"]
            assert token.encode() not in wire.stderr
        shown = run([*COMMAND, "config", "show", "--config", str(config)], capture_output=True, text=True).stdout
        assert "token-env=THEIRS" in shown
        kept = [each.read_bytes() for each in (tmp_path / "cache").rglob("*") if each.is_file()]
        assert kept and token.encode() not in b"".join(kept)
        monkeypatch.delenv("THEIRS")
        done = run([*COMMAND, "serve", "--config", str(config)], capture_output=True, text=True, input="")
        assert done.returncode == 2 and "THEIRS" in done.stderr
        assert listed(tmp_path / "none", root)[0] == 2


def test_a_token_is_for_servers_at_an_address_alone(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[[source]]\nfrom = "https://a.example"\ntoken-env = "X"\n', encoding="utf-8")
    done = run([*COMMAND, "config", "check", str(config)], capture_output=True, text=True)
    assert done.returncode == 1 and "c.toml:3: source.token-env" in done.stdout


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    silent = "mcp+stdio:" + shlex.join([sys.executable, "-c", "import sys; sys.stdin.read()"])
    settings = SourceSettings(tmp_path, fetch=FetchSettings(bounds=Bounds(download_s=0.3)))
    with pytest.raises(SourceError, match=r"no answer within 0\.3 s"):
        anyio.run(McpServer(silent, settings).resolve)


@each_row(
    "given",
    [
        "mcp+http://skills.example/mcp", "mcp+https://", "mcp+ftp://a.example/", "mcp+stdio:",
        'mcp+stdio:server "open', "mcp+https://me:secret@a.example/mcp",
    ],
)  # fmt: skip
def test_what_is_no_server_is_refused_in_one_line(tmp_path: Path, given: str) -> None:
    assert kind_of(given).name == "MCP server"
    with pytest.raises(UsageError) as refused:
        McpServer(given, SourceSettings(tmp_path))
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


def test_neither_arguments_nor_queries_are_shown_or_name_a_folder(tmp_path: Path) -> None:
    settings = SourceSettings(tmp_path)
    command = "mcp+stdio:/opt/bin/server --url https://b.example/?key=secret"
    assert McpServer(command, settings).origin == "mcp+stdio:server"
    assert "secret" not in McpServer("mcp+https://a.example/mcp?key=secret", settings).origin
    assert len([*tmp_path.glob("listed/*")]) == 2 and not [*tmp_path.rglob("*secret*")]
