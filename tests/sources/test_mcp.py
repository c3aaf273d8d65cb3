"""Another MCP server as a source: proved, followed, and refused where it cannot be proved."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import pytest
from anyio import to_thread

from forkserver import run
from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources import mcp
from mcp_skills_server.sources.kinds import kind_of, split
from mcp_skills_server.sources.mcp import McpServer
from mcp_skills_server.sources.source import (
    Bounds,
    FetchLimits,
    FetchSettings,
    SourceError,
    SourceSettings,
    UnacceptableError,
)
from sources.hostile import KINDS, Member
from tables import each_row
from web.http_wire import http_serving
from wire import COMMAND, DEADLINE, FIXTURES, serving, write_skill

FAKE = """
import json, sys
answers = json.loads(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method = message["method"]
    key = method if method != "resources/read" else message["params"]["uri"]
    out = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        out["result"] = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "fake", "version": "1"},
            "capabilities": {"resources": {}, "extensions": {"io.modelcontextprotocol/skills": {}}}}
    elif key in answers:
        out["result"] = answers[key]
    else:
        out["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(out), flush=True)
"""


def ours(*roots: Path) -> str:
    """A root that is this program, serving these roots."""
    return "mcp+stdio:" + shlex.join([*COMMAND, "serve", *map(str, roots)])


def skill_md(name: str) -> str:
    return f"---\nname: {name}\ndescription: Does a thing.\n---\n\n# {name}\n"


def fake(tmp_path: Path, files: Mapping[str, Mapping[str, str]], digests: Mapping[str, str] | None = None) -> str:
    """A root that is a server of these files by skill; `digests` replace the true ones by URI."""
    answers: dict[str, Any] = {}
    entries: list[dict[str, Any]] = []
    for name, texts in files.items():
        resources: list[dict[str, Any]] = []
        for path, text in texts.items():
            uri = f"skill://{name}/{path}"
            digest = (digests or {}).get(uri, f"sha256:{sha256(text.encode()).hexdigest()}")
            resources.append({"uri": uri, "digest": digest, "size": len(text.encode())})
            answers[uri] = {"contents": [{"uri": uri, "text": text}]}
        frontmatter = {"name": name, "description": "Does a thing."}
        entries.append({"uri": f"skill://{name}/SKILL.md", "frontmatter": frontmatter, "resources": resources})
    answers["skills/list"] = {"skills": entries, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    program = tmp_path / "fake.py"
    program.write_text(FAKE, encoding="utf-8")
    return "mcp+stdio:" + shlex.join([sys.executable, str(program), json.dumps(answers)])


def kept(tmp_path: Path) -> tuple[object, ...]:
    return "--cache-dir", tmp_path / "cache", "--first-load", "60"


def listed(tmp_path: Path, root: str, *more: str) -> tuple[int, str, str]:
    words = [*COMMAND, "list", root, "--cache-dir", str(tmp_path / "cache"), *more]
    done = run(words, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_skills_of_a_command_are_served_with_the_same_bytes(tmp_path: Path) -> None:
    with serving(FIXTURES) as direct:
        wanted = {each["frontmatter"]["name"]: each for each in direct.request("skills/list")["skills"]}
    with serving(ours(FIXTURES), *kept(tmp_path)) as wire:
        found = {each["frontmatter"]["name"]: each for each in wire.request("skills/list")["skills"]}
        assert found.keys() == wanted.keys()
        for name, entry in found.items():
            assert sorted(each["digest"] for each in entry["resources"]) == sorted(
                each["digest"] for each in wanted[name]["resources"]
            )


def test_an_edit_at_the_other_server_is_followed(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    with (
        http_serving(tmp_path / "skills") as other,
        serving(f"mcp+http://127.0.0.1:{other.port}/mcp", "--cache-dir", tmp_path / "cache", "--refresh", "1") as wire,
    ):
        assert [each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"]] == ["one"]
        write_skill(tmp_path / "skills" / "two")
        wire.until("notifications/skills/list_changed")
        assert len(wire.request("skills/list")["skills"]) == 2
        shutil.rmtree(tmp_path / "skills" / "one")
        wire.until("notifications/skills/list_changed")
        assert [each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"]] == ["two"]


def test_a_notification_of_another_server_is_followed_at_once_in_the_era_of_today(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    with (
        http_serving(tmp_path / "skills") as other,
        serving(f"mcp+http://127.0.0.1:{other.port}/mcp", *kept(tmp_path), "--refresh", "3600") as wire,
    ):
        assert len(wire.request("skills/list")["skills"]) == 1
        for number in (2, 3):
            write_skill(tmp_path / "skills" / f"more-{number}")
            wire.until("notifications/skills/list_changed")
            assert len(wire.request("skills/list")["skills"]) == number


def test_a_notification_of_another_server_is_followed_at_once_in_the_era_before(tmp_path: Path) -> None:
    with (
        KINDS["mcp"].open(tmp_path) as place,
        serving(place.given, *kept(tmp_path), "--refresh", "3600") as wire,
    ):
        assert len(wire.request("skills/list")["skills"]) == 1
        place.publish("second", [Member("more.md")])
        wire.until("notifications/skills/list_changed")
        assert {each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"]} == {"good", "bad"}


class QuietHandler(BaseHTTPRequestHandler):
    """Answers with a body, and logs nothing."""

    def answer(self, kind: str, raw: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        own = {"Content-Type": kind, "Content-Length": str(len(raw)), "Mcp-Session-Id": "x"}
        for name, value in (own | headers).items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(raw)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        pass


@each_row(
    "headers, size, why",
    [({"Content-Encoding": "deflate"}, 1000, "compressed"), ({}, 5000, "more than 4,096 bytes")],
)
def test_an_answer_over_http_is_bounded_and_never_decompressed(
    tmp_path: Path, headers: Mapping[str, str], size: int, why: str
) -> None:
    class Handler(QuietHandler):
        def do_POST(self) -> None:
            self.answer("application/json", b" " * size, **headers)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        settings = SourceSettings(tmp_path, fetch=FetchSettings(limits=FetchLimits(skill_bytes=2048)))
        source = McpServer(f"mcp+http://127.0.0.1:{other.server_port}/mcp", settings)
        with pytest.raises(UnacceptableError, match=why):
            anyio.run(source.resolve)
        other.shutdown()


def test_a_server_that_ends_each_stream_at_once_is_not_asked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "_STREAMS_APART_S", 0.2)
    asked: list[float] = []
    asked_often = threading.Event()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            asked.append(monotonic())
            if len(asked) == 4:
                asked_often.set()
            event = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            self.answer("text/event-stream", f"id: 1\nretry: 0\ndata: {event}\n\n".encode())

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            out: dict[str, Any] = {"jsonrpc": "2.0", "id": message.get("id")}
            if message["method"] == "initialize":
                about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "fake", "version": "1"}}
                out["result"] = {**about, "capabilities": {"resources": {}}}
            elif message["method"] == "resources/list":
                out["result"] = {"resources": []}
            else:
                out["error"] = {"code": -32601, "message": "no such method"}
            self.answer("application/json", json.dumps(out).encode(), 200 if "id" in message else 202)

    async def listen(source: McpServer) -> None:
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as work:
                work.start_soon(source.listen, lambda: None)
                await to_thread.run_sync(asked_often.wait)
                work.cancel_scope.cancel()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        anyio.run(listen, McpServer(f"mcp+http://127.0.0.1:{other.server_port}/mcp", SourceSettings(tmp_path)))
        other.shutdown()
    assert asked[3] - asked[0] >= 0.5  # three pauses of 0.2 s, less what a request takes


def test_a_file_that_is_never_served_costs_its_skill_alone(tmp_path: Path) -> None:
    files = {"good": {"SKILL.md": skill_md("good")}, "bad": {"SKILL.md": skill_md("bad"), ".envrc": "x"}}
    code, out, said = listed(tmp_path, fake(tmp_path, files))
    assert code == 0 and "good" in out and "bad" not in out and ".envrc" in said


def test_a_file_that_is_not_what_was_listed_costs_its_skill_alone(tmp_path: Path) -> None:
    files = {name: {"SKILL.md": skill_md(name), "a.md": "text"} for name in ("good", "bad")}
    root = fake(tmp_path, files, {"skill://bad/a.md": f"sha256:{'0' * 64}"})
    code, out, said = listed(tmp_path, root)
    assert code == 0 and "good" in out and "bad" not in out
    assert "mcp+stdio:python/bad: error" in said and "source-refused" in said


def test_a_token_is_sent_to_the_server_that_wants_one_and_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "skills" / "one")
    token = "very-secret-0123456789"
    with http_serving(tmp_path / "skills", environment={"MCP_SKILLS_TOKENS": f"us={token}"}) as other:
        root = f"mcp+http://127.0.0.1:{other.port}/mcp"
        config = tmp_path / "c.toml"
        config.write_text(f'[[source]]\nfrom = "{root}"\ntoken-env = "THEIRS"\n', encoding="utf-8")
        where = ("--config", config, "--cache-dir", tmp_path / "cache", "--log-level", "debug")
        monkeypatch.setenv("THEIRS", token)
        with serving(*where) as wire:
            assert [each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"]] == ["one"]
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


@each_row("path", ["../../outside.md", "a/../../b.md", "%2e%2e/x.md", "con.md\\..\\x"])
def test_no_name_leads_out_of_the_cache(tmp_path: Path, path: str) -> None:
    files = {"good": {"SKILL.md": skill_md("good")}, "evil": {"SKILL.md": skill_md("evil"), path: "x"}}
    _, out, _ = listed(tmp_path, fake(tmp_path, files))
    assert "good" in out and not [*tmp_path.rglob("outside.md"), *tmp_path.rglob("x.md"), *tmp_path.rglob("b.md")]


@each_row(
    "given",
    [
        "mcp+http://skills.example/mcp",
        "mcp+https://",
        "mcp+ftp://a.example/",
        "mcp+stdio:",
        'mcp+stdio:server "open',
        "mcp+https://me:secret@a.example/mcp",
    ],
)
def test_what_is_no_server_is_refused_in_one_line(tmp_path: Path, given: str) -> None:
    assert kind_of(given).name == "MCP server"
    with pytest.raises(UsageError) as refused:
        McpServer(given, SourceSettings(tmp_path))
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


def test_neither_arguments_nor_queries_are_shown(tmp_path: Path) -> None:
    settings = SourceSettings(tmp_path)
    assert McpServer("mcp+stdio:/opt/bin/server --key secret", settings).origin == "mcp+stdio:server"
    assert "secret" not in McpServer("mcp+https://a.example/mcp?key=secret", settings).origin


def test_a_variable_with_roots_may_name_a_server() -> None:
    assert split("/a:mcp+https://b.example:8443/mcp:mcp+stdio:server x") == [
        "/a",
        "mcp+https://b.example:8443/mcp",
        "mcp+stdio:server x",
    ]
