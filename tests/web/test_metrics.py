"""Metrics of a real server, as promtool and Prometheus read them."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from ports import free_port
from web.http_wire import Server, bearing, client, http_serving, refused
from wire import DEADLINE, write_skill


def scraped(server: Server) -> str:
    reply = server.send("GET", "/metrics")
    assert reply.status == 200 and (reply.headers["Content-Type"] or "").startswith("text/plain")
    return reply.body.decode()


def value(text: str, line: str) -> float:
    found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
    assert found, (line, text)
    return float(found[1])


def use(server: Server) -> None:
    with client(server, "modern") as one:
        one.request("skills/list")
        one.read("skill://a/SKILL.md")
        one.read("skill://a/notes.md")
        one.post(one.message("no/such/method"))


def test_requests_and_uses_are_counted_under_the_names_of_the_conventions(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", notes_md="other")
    write_skill(tmp_path / "b", name="torn", description='"')
    with http_serving(tmp_path, "--metrics") as server:
        use(server)
        text = scraped(server)
    count = "mcp_server_operation_duration_seconds_count"
    assert value(text, f'{count}{{error_type="",mcp_method_name="resources/read"}}') == 2
    assert value(text, f'{count}{{error_type="refused",mcp_method_name="_OTHER"}}') == 1
    assert value(text, 'skills_uses_total{action="load",skill="a"}') == 1
    assert value(text, 'skills_uses_total{action="read",skill="a"}') == 1
    assert value(text, "skills_served") + value(text, "skills_left_out") == 2
    assert value(text, "skills_problems") >= 1
    assert "no/such/method" not in text


@pytest.mark.needs_program("promtool")
def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", notes_md="other")
    with http_serving(tmp_path, "--metrics") as server:
        use(server)
        lines = scraped(server).splitlines(keepends=True)
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
    for wrong, said in (("9464", "write HOST:PORT"), ("127.0.0.1:99999", "write HOST:PORT"), ("192.0.2.1:1", "cannot")):
        assert said in refused(tmp_path, "--metrics-address", wrong)
