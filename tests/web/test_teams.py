"""Attacks by one principal on another's sessions and skills, and on the audit log."""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from pathlib import Path

import anyio
import pytest

from catalog.forest import skills, write_files
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.runtime.sessions import UnknownSessionError
from mcp_skills_server.telemetry.audit import AuditLog
from mcp_skills_server.telemetry.events import Event
from runtime.test_shared_sessions import Replica, Store
from web.http_wire import Server, client, http_serving
from wire import write_skill

BOB = Principal("token", "bob")


@pytest.mark.parametrize("owner", ["\u00e9", "\ud800"])
def test_session_record_with_invalid_owner_is_ignored(tmp_path: Path, owner: str) -> None:
    tree, store = write_files(tmp_path, skills("a")), Store()
    handle = "h" * 24
    store.texts[handle] = json.dumps({"version": 1, "owner": owner, "since": 0, "skills": []})

    async def opened() -> None:
        with pytest.raises(UnknownSessionError):
            await Replica(tree, store).sessions.open(handle, "ann", "ann")

    anyio.run(opened)


ANNS = "anns-made-up-token-0123456789"


def write_anew(file: Path, text: str) -> None:
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    os.replace(fresh, file)


def test_legacy_session_gets_no_notification_of_a_lost_group(tmp_path: Path) -> None:
    for path in ("finance/tax", "tea"):
        write_skill(tmp_path / "skills" / path)
    tokens, file = tmp_path / "tokens", tmp_path / "c.toml"
    write_anew(tokens, f"ann={ANNS} groups=finance\n")
    grants = "".join(
        f"[[grant]]\nwho = ['{who}']\nskills = ['{skills}']\n"
        for who, skills in (("group:finance", "finance/**"), ("token:ann", "tea"))
    )
    file.write_text(f"roots = ['skills']\ntoken-file = 'tokens'\n{grants}")
    tax, tea = "skill://finance/tax/SKILL.md", "skill://tea/SKILL.md"
    with http_serving("--config", file) as server, client(server, "legacy", token=ANNS) as ann:
        ann.hear(tax, tea)
        write_anew(tokens, f"ann={ANNS}\n")
        server.wait_for_log("the tokens were reloaded")
        assert [each["name"] for each in ann.request("prompts/list")["prompts"]] == ["tea"]
        stream = ann.follow()
        stream.until("notifications/resources/updated", tax)  # that it is gone
        write_skill(tmp_path / "skills" / "finance" / "tax", description="Counts what is owed.")
        server.wait_for_log("finance/tax.*changed|changed.*finance/tax")
        write_skill(tmp_path / "skills" / "tea", description="Makes green tea.")
        assert not [uri for _, uri in stream.until("notifications/resources/updated", tea) if uri == tax]


def rpc(server: Server, method: str, token: str = ANNS, **params: object) -> dict[str, object]:
    sent = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    return json.loads(server.send("POST", "/rpc", sent, headers).body)


def test_files_laid_out_for_inline_code_are_audited(tmp_path: Path, sandbox_mode: str) -> None:
    write_skill(tmp_path / "skills" / "tax", rates_md="19 percent\n")
    (tmp_path / "tokens").write_text(f"ann={ANNS}\n")
    (tmp_path / "tokens").chmod(0o600)
    audit = tmp_path / "audit"
    options = ("--rpc", "--allow-scripts", "--allow-code", "--sandbox", sandbox_mode, "--audit-log", audit)
    with http_serving(tmp_path / "skills", "--token-file", tmp_path / "tokens", *options) as server:
        (listed,) = [e for e in rpc(server, "list_skills")["result"]["skills"] if "tax" in e["name"]]
        code = "import os, pathlib\nfor f in pathlib.Path(os.environ['SKILL_DIR']).rglob('*.md'): print(f.read_text())"
        arguments = {"language": "python", "code": code, "mount_skills": [listed["name"]]}
        done = rpc(server, "run_code", **arguments)
    assert "19 percent" in json.dumps(done), done
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {"tax"} <= {each.get("skill") for each in events}, events


def test_chunk_ends_only_where_a_proxy_sees_its_end() -> None:
    """Earlier versions of h11 accept any two bytes as the end of a chunk: request smuggling behind a proxy."""
    with Path("pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    assert any(re.fullmatch(r"h11>=0\.(1[6-9]|[2-9]\d)", each) for each in dependencies)


def test_unauthenticated_requests_do_not_fill_the_audit_log(tmp_path: Path) -> None:
    audit = AuditLog(str(tmp_path / "audit"))
    for _ in range(2_000):
        audit.record(
            Event(time.time(), "http", "POST", "refused", address="192.0.2.1", reason="no-token", request="0" * 16)
        )
    assert (tmp_path / "audit").stat().st_size < 64 << 10
    later = Event(time.time() + 90, "http", "POST", "refused", address="192.0.2.1", reason="no-token")
    audit.record(later)
    last = json.loads((tmp_path / "audit").read_text(encoding="utf-8").splitlines()[-1])
    assert last["left_out"] == 1_980


SECRET = {"MCP_SKILLS_REFRESH_SECRET": "0123456789abcdef-secret"}


def test_rejected_webhooks_do_not_fill_the_log(tmp_path: Path) -> None:
    """Repeated refusals of unauthenticated clients are counted, not written one by one (REPEATS)."""
    write_skill(tmp_path / "published" / "thing")
    options = ("--allow-private", "--allow-http", "--cache-dir", str(tmp_path / "cache"))
    with (
        http_serving(tmp_path / "published") as site,
        http_serving(f"http://127.0.0.1:{site.port}", *options, environment=SECRET) as server,
    ):
        answers = [server.send(path="/refresh", body=b"{}").status for _ in range(300)]
        assert answers[0] == 401
        assert set(answers) == {401, 429}
        server.wait_for_log("/refresh: refused")
        assert len([line for line in server.stderr.splitlines() if "/refresh: refused" in line]) < 50
