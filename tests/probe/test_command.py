"""The command `probe`: targets, output formats, exit codes, and servers that do not answer."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from commands.calls import run
from mcp_skills_server.commands import probe
from mcp_skills_server.probe import connection
from mcp_skills_server.probe.rules import Verdicts, rules
from sources.publishers import Publisher, ReceivedRequest, redirect, respond_with
from tables import each_row
from web.http_wire import http_serving, token_file
from wire import COMMAND, EXTENSION, ROOT, write_skill

TOKEN = "made-up-secret-of-the-probe"
HELLO = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private"} | {
    "capabilities": {"resources": {}, "extensions": {EXTENSION: {}}},
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "odd", "version": "1"}},
}
ODD_SERVER = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "server/discover":
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": HELLO}), flush=True)
    elif request["method"] == "initialize":
        sys.exit()
    else:
        THEN
"""
"""A server that answers the handshake of the modern era, and then does something else."""


def serve(*roots: Path) -> str:
    return shlex.join([*COMMAND, "serve", *map(str, roots), "--log-level", "error"])


def odd_server(folder: Path, then: str) -> str:
    file = folder / "odd.py"
    file.write_text(ODD_SERVER.replace("HELLO", repr(HELLO)).replace("THEN", then))
    return shlex.join([sys.executable, str(file)])


def test_own_server_is_probed_over_pipes_in_both_eras(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    done = run("probe", serve(tmp_path), "--strict", "--answer-timeout", 60)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.startswith("0 rules broken, "), done
    assert done.stdout.endswith("modern era: 1 skill\nlegacy era: 1 skill\n")
    assert "MCP-51" not in done.stdout and "MCP-45" in done.stdout  # HTTP alone has an Origin


def test_own_server_is_probed_over_http_in_both_eras_with_a_token(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    tokens = token_file(tmp_path, f"team={TOKEN}")
    with http_serving(tmp_path / "skills", "--token-file", tokens) as server:
        url = f"http://127.0.0.1:{server.port}/mcp"
        done = run("probe", url, "--token-env", "PROBE_TOKEN", "--strict", PROBE_TOKEN=TOKEN)
        refused = run("probe", url)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "MCP-45" not in done.stdout and "MCP-51" in done.stdout  # a command alone has a stdin
    assert refused.returncode == 2 and "status 401; give a token by --token-env" in refused.stderr, refused
    assert TOKEN not in done.stdout + done.stderr + refused.stderr


def test_line_that_is_no_message_is_a_finding_over_pipes(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    talkative = shlex.join(["sh", "-c", f"echo ready; exec {serve(tmp_path)}"])
    done = run("probe", f"mcp+stdio:{talkative}", "--answer-timeout", 60)
    assert done.returncode == 1
    assert done.stdout.startswith("mcp+stdio:sh: error: stdout has 'ready'; only messages are on stdout"), done
    assert "[MCP-50]\n1 rule broken, " in done.stdout


def test_command_that_outlives_its_stdin_is_a_warning_and_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_END_S", 0.2)
    write_skill(tmp_path / "one")
    lasting = shlex.join(["sh", "-c", f"{serve(tmp_path)}; exec sleep 600"])
    done = run("probe", lasting, "--answer-timeout", 60)
    assert done.returncode == 0
    assert "warning: it still ran 5 s after its stdin was closed" in done.stdout, done
    assert run("probe", lasting, "--answer-timeout", 60, "--strict").returncode == 1


@each_row(("command", "reason"), [
    ("true", "no answer, since the command closed its pipes"),
    ("sleep 600", "no answer within 0.5 s"),
    ("yes", "1,000 messages came, and no answer"),
    ("cat /dev/zero", "an answer has more than 65,536 bytes"),
])  # fmt: skip
def test_command_that_is_no_server_is_one_line(command: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_ANSWER", 1 << 16)
    monkeypatch.setattr(connection, "_END_S", 0.2)
    seconds = "0.5" if command.startswith("sleep") else "60"
    done = run("probe", command, "--answer-timeout", seconds)
    assert (done.returncode, done.stdout) == (2, ""), done
    program = command.split(maxsplit=1)[0]
    reasons = f"modern era: {reason}; legacy era: {reason}"
    assert done.stderr == f"mcp-skills-server: mcp+stdio:{program}: no server of skills answers; {reasons}\n"


@each_row(("then", "reason"), [
    ("sys.exit()", "no answer, since the command closed its pipes"),
    ("sys.stdout.write('x' * 70_000 + chr(10)); sys.stdout.flush()", "an answer has more than 65,536 bytes"),
    ("print('[' * 20_000, flush=True); sys.exit()", "no answer, since the command closed its pipes"),
])  # fmt: skip
def test_server_that_stops_answering_is_a_finding(
    then: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_ANSWER", 1 << 16)
    monkeypatch.setattr(connection, "_END_S", 0.2)
    done = run("probe", odd_server(tmp_path, then), "--answer-timeout", 60)
    assert done.returncode == 1, done
    assert f"error: skills/list: {reason}; each request gets one response" in done.stdout
    assert f"modern era: it ended early: {reason}\n" in done.stderr


@each_row(("response", "reason"), [
    (respond_with(b"<html>", 200, content_type="text/html"), "no response, status 200"),
    (respond_with(b"x" * 70_000, 200, content_type="application/json"), "an answer has more than 65,536 bytes"),
    (respond_with(b"", 500), "no response, status 500"),
    (respond_with(b"[" * 20_000, 200, content_type="application/json"), "no response, status 200"),
    (b"", "no answer within 0.5 s"),
])  # fmt: skip
def test_site_that_is_no_server_is_one_line(response: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MAX_ANSWER", 1 << 16)
    with Publisher() as site:
        site.routes["/mcp"] = response
        done = run("probe", f"{site.url}/mcp", "--answer-timeout", "60" if response else "0.5")
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.count("\n") == 1 and reason in done.stderr, done


def test_program_that_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "garbage"
    file.write_text("no program")
    file.chmod(0o755)
    done = run("probe", str(file))
    fault = f"{file} cannot be started (Exec format error); correct the command"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"mcp-skills-server: {fault}\n")


def test_end_of_a_session_that_fails_is_no_fault() -> None:
    server = {"protocolVersion": "2025-11-25", "serverInfo": HELLO["_meta"], "capabilities": HELLO["capabilities"]}

    def answer(request: ReceivedRequest) -> list[bytes]:
        if request.method == "DELETE":
            return []
        called = json.loads(request.body)
        response: dict[str, Any] = {"jsonrpc": "2.0", "id": called.get("id")}
        if called["method"] == "initialize":
            response["result"] = server
        else:
            response["error"] = {"code": -32601, "message": "no such method"}
        raw = json.dumps(response).encode()
        headers = {"content_type": "application/json", "mcp_session_id": "made-up", "connection": "close"}
        return [respond_with(raw, 200, **headers)]

    with Publisher() as site:
        site.routes["/mcp"] = answer
        done = run("probe", f"{site.url}/mcp", "--allow-http")
        assert [request.method for request in site.requests][-1] == "DELETE"
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done


def test_token_is_not_sent_to_where_a_redirect_leads() -> None:
    with Publisher() as site, Publisher() as other:
        site.routes["/mcp"] = redirect(f"{other.url}/mcp", 307)
        done = run("probe", f"{site.url}/mcp", "--token-env", "PROBE_TOKEN", PROBE_TOKEN=TOKEN)
        assert other.requests == []
    assert done.returncode == 2 and "status 307" in done.stderr and TOKEN not in done.stderr


@each_row(("words", "fault"), [
    (["http://skills.example/mcp"], "write mcp+https://HOST/mcp"),
    (["https://user:made-up@skills.example/mcp"], "an address is no place for a password"),
    (["https://skills.example/mcp", "--token-env", "NO_SUCH_VARIABLE"], "no such variable"),
    (["no-such-program --flag"], "there is no program 'no-such-program'"),
    (["'"], "close its quotes"),
])  # fmt: skip
def test_impossible_target_is_wrong_usage(words: list[str], fault: str) -> None:
    done = run("probe", *words)
    assert (done.returncode, done.stdout) == (2, "") and fault in done.stderr and done.stderr.count("\n") == 1, done
    assert "made-up" not in done.stderr


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the probe find a broken MUST in both eras, and a broken SHOULD in the legacy one."""

    async def probed(_url: str, _words: list[str], is_modern: bool, _options: Any) -> Verdicts:
        made = Verdicts()
        made.judge("S40-18", False, "skill://one/a.md: size 1, not 2")
        made.judge("MCP-15", True, "")
        made.judge("S40-6", is_modern, "gh://one/SKILL.md")
        made.stopped += ["it ended early: no answer within 10 s"] * is_modern
        return made

    monkeypatch.setattr(probe, "_probe", probed)


TARGET = "https://skills.example/mcp?key=secret"


@pytest.mark.usefixtures("verdicts")
def test_text_has_rule_sentence_and_era() -> None:
    done = run("probe", TARGET)
    assert done.returncode == 1
    assert done.stdout.splitlines()[:2] == [
        (
            "https://skills.example/mcp: warning: legacy era: gh://one/SKILL.md; URIs have the scheme skill:// "
            "(SEP-2640, Resource mapping) [S40-6]"
        ),
        (
            "https://skills.example/mcp: error: skill://one/a.md: size 1, not 2; each file has the SHA-256 digest and "
            "the size of its bytes (SEP-2640, Resources) [S40-18]"
        ),
    ]
    assert "secret" not in done.stdout


def test_text_has_five_findings_of_a_rule_and_the_number_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def probed(_url: str, _words: list[str], _is_modern: bool, _options: Any) -> Verdicts:
        made = Verdicts()
        for number in range(9):
            made.judge("S40-18", False, f"skill://one/{number}.md: size 1, not 2")
        return made

    monkeypatch.setattr(probe, "_probe", probed)
    lines = run("probe", TARGET).stdout.splitlines()
    assert sum("[S40-18]" in line for line in lines) == 5
    assert lines[5] == "4 more of S40-18; --format json has them"


@pytest.mark.usefixtures("verdicts")
def test_json_has_a_verdict_for_each_rule() -> None:
    report = json.loads(run("probe", TARGET, "--format", "json").stdout)
    assert report["ok"] is False and report["eras"] == {"modern": 0, "legacy": 0}
    assert [problem["code"] for problem in report["problems"]] == ["S40-6", "S40-18"]
    assert report["stopped"] == {"modern": ["it ended early: no answer within 10 s"], "legacy": []}
    by_id = {rule["id"]: rule for rule in report["rules"]}
    assert [by_id[id_]["verdict"] for id_ in ("S40-18", "MCP-15", "S40-13")] == ["failed", "passed", "not seen"]
    assert by_id.keys() == rules().keys() and by_id["S40-18"]["level"] == "MUST"
    assert by_id["S40-18"]["source"] == "SEP-2640, Resources"


@pytest.mark.usefixtures("verdicts")
def test_junit_skips_what_was_not_seen() -> None:
    suite = ElementTree.fromstring(run("probe", TARGET, "--format", "junit").stdout)[0]
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert (cases["S40-18"], cases["MCP-15"], cases["S40-13"]) == (["failure"], [], ["skipped"])
    assert suite.get("tests") == str(len(rules())) and suite.get("failures") == "2"


@pytest.mark.usefixtures("verdicts")
def test_sarif_has_the_address_and_the_rule() -> None:
    (log,) = json.loads(run("probe", TARGET, "--format", "sarif").stdout)["runs"]
    assert [result["ruleId"] for result in log["results"]] == ["S40-6", "S40-18"]
    location = log["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "https://skills.example/mcp"}


def test_rules_are_those_of_the_requirements() -> None:
    lines = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8").splitlines()
    known = {line.split(" | ")[0]: line.split(" | ")[1] for line in lines if line.count(" | ") >= 4}
    for id_, rule in rules().items():
        is_must = known[id_].upper().startswith("MUST")
        assert rule["level"] == ("MUST" if is_must else "SHOULD") and rule["says"] and rule["source"], id_
