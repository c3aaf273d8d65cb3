"""Metrics of a real server, as promtool and Prometheus read them; and its log."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from web.http_wire import JSON, bearing, client, http_serving, refused, token_file
from web.ui.serving import page_serving
from wire import DEADLINE, write_skill


@pytest.fixture
def text(tmp_path: Path) -> str:
    """The metrics of a server that was used."""
    write_skill(tmp_path / "a", notes_md="other")
    write_skill(tmp_path / "b", name="torn", description='"')
    with http_serving(tmp_path, "--metrics") as server, client(server, "modern") as one:
        one.request("skills/list")
        one.read("skill://a/SKILL.md")
        one.read("skill://a/notes.md")
        one.post(one.message("no/such/method"))
        reply = server.send("GET", "/metrics")
    assert reply.status == 200 and reply.headers["Content-Type"].startswith("text/plain")
    return reply.body.decode()


def test_requests_and_uses_are_counted_under_the_names_of_the_conventions(text: str) -> None:
    def value(line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
        assert found, (line, text)
        return float(found[1])

    count = "mcp_server_operation_duration_seconds_count"
    assert value(f'{count}{{error_type="",mcp_method_name="resources/read"}}') == 2
    assert value(f'{count}{{error_type="refused",mcp_method_name="_OTHER"}}') == 1
    assert value('skills_uses_total{action="load",skill="a"}') == 1
    assert value('skills_uses_total{action="read",skill="a"}') == 1
    assert value("skills_served") + value("skills_left_out") == 2
    assert value("skills_problems") >= 1
    assert "no/such/method" not in text


@pytest.mark.needs_program("promtool")
def test_promtool_finds_nothing_wrong(text: str) -> None:
    lines = text.splitlines(keepends=True)
    ours = "".join(line for line in lines if re.match(r"(# (HELP|TYPE) )?(mcp_|skills_)", line))
    done = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_there_is_no_such_path_unless_it_is_asked_for_and_a_token_is_wanted_there_too(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with http_serving(tmp_path) as server:
        assert server.send("GET", "/metrics").status == 404
    with http_serving(tmp_path, "--metrics", environment={"MCP_SKILLS_TOKENS": "ops=0123456789abcdef"}) as server:
        assert server.send("GET", "/metrics").status == 401
        assert server.send("GET", "/metrics", headers=bearing("0123456789abcdef")).status == 200


def test_they_may_have_an_address_of_their_own(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    port = free_port()
    options = ("--metrics-address", f"127.0.0.1:{port}", "--allowed-host", "metrics.example")
    with http_serving(tmp_path, *options) as server:
        assert server.send("GET", "/metrics").status == 404
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as answer:
            assert b"skills_served" in answer.read()
        for host, status in (("evil.example", 403), (f"localhost:{port}", 200), ("metrics.example:80", 200)):
            with closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as one:
                one.request("GET", "/metrics", headers={"Host": host})
                answer = one.getresponse()
                assert (answer.status, b"skills_served" in answer.read()) == (status, status == 200)
    malformed = ("9464", "127.0.0.1:99999", "127.0.0.1:\u00b2")
    for wrong, said in (*((each, "write HOST:PORT") for each in malformed), ("192.0.2.1:1", "cannot")):
        assert said in refused(tmp_path, "--metrics-address", wrong)


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
