"""Attacks by one principal on another's sessions and skills, and on the audit log."""

from __future__ import annotations

import json
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
from web.http_wire import client, http_serving, token_file
from wire import ROOT, write_skill

BOB = Principal("token", "bob")


@pytest.mark.parametrize("owner", ["\u00e9", "\ud800"])
def test_session_record_with_invalid_owner_is_ignored(tmp_path: Path, owner: str) -> None:
    tree, store = write_files(tmp_path, skills("a")), Store()
    handle = "h" * 24
    store.texts[handle] = json.dumps({"version": 1, "owner": owner, "since": 0, "skills": []})

    async def open_session() -> None:
        with pytest.raises(UnknownSessionError):
            await Replica(tree, store).call("list", handle, "ann")

    anyio.run(open_session)


TOKEN = "anns-made-up-token-0123456789"


def test_legacy_session_gets_no_notification_of_a_lost_group(tmp_path: Path) -> None:
    for path in ("finance/tax", "tea"):
        write_skill(tmp_path / "skills" / path)
    file = tmp_path / "c.toml"
    token_file(tmp_path, f"ann={TOKEN} groups=finance")
    grants = "".join(
        f"[[grant]]\nwho = ['{who}']\nskills = ['{skills}']\n"
        for who, skills in (("group:finance", "finance/**"), ("token:ann", "tea"))
    )
    file.write_text(f"roots = ['skills']\ntoken-file = 'tokens'\n{grants}")
    tax, tea = "skill://finance/tax/SKILL.md", "skill://tea/SKILL.md"
    with http_serving("--config", file) as server, client(server, "legacy", token=TOKEN) as ann:
        ann.hear(tax, tea)
        token_file(tmp_path, f"ann={TOKEN}")
        server.wait_for_log("the tokens were reloaded")
        assert [each["name"] for each in ann.request("prompts/list")["prompts"]] == ["tea"]
        stream = ann.follow()
        stream.until("notifications/resources/updated", tax)  # it was removed from her view
        write_skill(tmp_path / "skills" / "finance" / "tax", description="Counts what is owed.")
        server.wait_for_log("skill finance/tax: changed")
        write_skill(tmp_path / "skills" / "tea", description="Makes green tea.")
        assert not [uri for _, uri in stream.until("notifications/resources/updated", tea) if uri == tax]


def test_files_mounted_for_inline_code_are_audited(tmp_path: Path, sandbox_mode: str) -> None:
    write_skill(tmp_path / "skills" / "tax", rates_md="19 percent\n")
    audit = tmp_path / "audit"
    options = ("--rpc", "--allow-scripts", "--allow-code", "--sandbox", sandbox_mode, "--audit-log", audit)
    with http_serving(tmp_path / "skills", "--token-file", token_file(tmp_path, f"ann={TOKEN}"), *options) as server:
        (listed,) = [
            each for each in server.rpc("list_skills", token=TOKEN)["result"]["skills"] if "tax" in each["name"]
        ]
        code = "import os, pathlib\nfor f in pathlib.Path(os.environ['SKILL_DIR']).rglob('*.md'): print(f.read_text())"
        arguments = {"language": "python", "code": code, "mount_skills": [listed["name"]]}
        done = server.rpc("run_code", token=TOKEN, **arguments)
    assert "19 percent" in json.dumps(done), done
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {"tax"} <= {each.get("skill") for each in events}, events


def test_required_h11_rejects_malformed_chunk_ends() -> None:
    """Before 0.16, h11 accepts any two bytes as the end of a chunk: request smuggling."""
    with (ROOT / "pyproject.toml").open("rb") as file:
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


WEBHOOK_SECRET = {"MCP_SKILLS_REFRESH_SECRET": "0123456789abcdef-secret"}


def test_rejected_webhooks_do_not_fill_the_log(tmp_path: Path) -> None:
    """Repeated refusals of unauthenticated clients are counted, not logged one by one."""
    write_skill(tmp_path / "published" / "thing")
    options = ("--allow-private", "--allow-http", "--cache-dir", str(tmp_path / "cache"))
    with (
        http_serving(tmp_path / "published") as site,
        http_serving(f"http://127.0.0.1:{site.port}", *options, environment=WEBHOOK_SECRET) as server,
    ):
        answers = [server.send(path="/refresh", body=b"{}").status for _ in range(300)]
        assert answers[0] == 401
        assert set(answers) == {401, 429}
        server.wait_for_log("/refresh: refused")
        assert len([line for line in server.stderr.splitlines() if "/refresh: refused" in line]) < 50
