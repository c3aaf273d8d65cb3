"""The log of a server over HTTP: one line a request, with the id that its answer carries, and no secret."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from web.http_wire import JSON, bearing, client, http_serving, token_file
from web.ui.serving import page_serving
from wire import write_skill

SECRET = "0123456789abcdef-secret"
BODY = "Only who asks for this skill may read this."


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_request_is_one_line_with_the_id_of_its_answer(tmp_path: Path, level: str) -> None:
    write_skill(tmp_path / "skills" / "a", body=BODY)
    options = ("--token-file", token_file(tmp_path, f"ops={SECRET}"), "--log-format", "json", "--log-level", level)
    with http_serving(tmp_path / "skills", *options) as server:
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "read_skill_file", "params": {"name": "a", "path": "SKILL.md"}}
        answered = server.send("POST", "/rpc", json.dumps(rpc).encode(), JSON | bearing(SECRET))
        refused = server.send("POST", "/rpc", b"{}", bearing("wrong") | {"X-Request-Id": "mine"})
        with client(server, "modern", token=SECRET) as one:
            one.request("skills/list")
            server.said('"method": "skills/list"')
    found: list[dict[str, Any]] = [json.loads(line) for line in server.stderr.splitlines()]
    (line,) = [each for each in found if each.get("method") == "read_skill_file"]
    assert line["request"] == answered.headers["X-Request-Id"] and re.fullmatch("[0-9a-f]{16}", line["request"])
    told = {"level": "info", "principal": "token:ops", "address": "127.0.0.1", "outcome": "ok"}
    assert line == line | told
    assert line["skills"] == ["a"] and line["milliseconds"] > 0 and line["time"].endswith("Z")
    assert refused.status == 401 and re.fullmatch("[0-9a-f]{16}", refused.headers["X-Request-Id"] or "")
    assert [each["method"] for each in found if each.get("protocol") == "mcp"][-1] == "skills/list"
    assert all(secret not in server.stderr for secret in (SECRET, BODY, "mine", "Bearer wrong"))


def test_text_is_the_form_unless_another_is_asked_for(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with http_serving(tmp_path) as server, client(server, "modern") as one:
        one.request("skills/list")
        server.said("skills/list: ok in ")


def test_a_view_of_a_skill_is_a_line_that_names_the_skill_and_nothing_else_of_the_address(tmp_path: Path) -> None:
    write_skill(tmp_path / "acme" / "refunds", notes_md="Notes.\n")
    write_skill(tmp_path / "acme" / "large", big_txt="x" * ((1 << 20) + 1))
    (tmp_path / "acme" / "broken" / "SKILL.md").mkdir(parents=True)
    views = [
        ("skills/acme/refunds?token=secret", "GET /ui/skills of acme/refunds: ok in "),
        ("skills/acme/refunds?there=secret", "GET /ui/skills of acme/refunds: ok in "),
        ("skills/acme/broken", "GET /ui/skills of acme/broken: ok in "),
        ("skills/acme/secret", "GET /ui/skills: refused in "),
        ("files/acme/refunds?file=notes.md", "GET /ui/files of acme/refunds: ok in "),
        ("files/acme/large?file=big.txt", "GET /ui/files of acme/large: ok in "),
        ("raw/acme/refunds?file=notes.md", "GET /ui/raw of acme/refunds: ok in "),
        ("history/acme/refunds?secret", "GET /ui/history of acme/refunds: ok in "),
        ("sources?secret", "GET /ui/sources: ok in "),
    ]
    with page_serving(tmp_path, "--log-level", "info") as server:
        for asked, _ in views:
            server.send("GET", f"/ui/{asked}")
        server.said("GET /ui/sources")
    lines = [line for line in server.stderr.splitlines() if "GET /ui/" in line and "/ui/problems" not in line]
    found = [line.partition("INFO: ")[2] for line in lines]
    assert [line[: len(said)] for line, (_, said) in zip(found, views, strict=True)] == [said for _, said in views]
    assert "secret" not in server.stderr
