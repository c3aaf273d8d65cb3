"""The audit log: its records, its rate limit, and unwritable files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from commands.calls import refusal
from dispatching import local_serving
from mcp_skills_server.errors import UsageError
from mcp_skills_server.telemetry import audit as audit_module
from mcp_skills_server.telemetry.audit import AuditLog
from mcp_skills_server.telemetry.events import Event, NotRecordedError, Outcome, Use
from web.http_wire import bearer_header, client, http_serving, wait_until
from web.in_process import app_serving
from wire import WireError, write_skill

FULL_DEVICE = Path("/dev/full")
SECRET = "0123456789abcdef"
needs_full_device = pytest.mark.skipif(not FULL_DEVICE.exists(), reason="no /dev/full here")
LOAD = Use("load", "a", "SKILL.md", "sha256:1")
READ = Use("read", "a", "b.md", "sha256:2")
RUN = Use("run", "a", "scripts/x.py", "sha256:3")


def records_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def entries_of(file: Path) -> list[tuple[Any, ...]]:
    return [(record["event"], record["outcome"], record.get("file")) for record in records_of(file)]


def event(outcome: Outcome = "ok", *uses: Use, method: str = "resources/read") -> Event:
    return Event(time=1_800_000_000.25, protocol="mcp", method=method, outcome=outcome, uses=uses, principal="token:a")


def test_record_has_principal_action_file_and_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, synced = tmp_path / "audit", list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    audit = AuditLog(str(file))
    audit.record(event("ok", LOAD, READ))
    audit.record(event("begun", RUN, method="tools/call"))
    audit.record(event("refused", Use("", "a", "SKILL.md", "sha256:1"), RUN, method="tools/call"))
    audit.record(event("refused", Use("", "a", "SKILL.md", "sha256:1"), method="tools/call"))
    audit.record(event(method="initialize"))
    audit.record(event(method="tools/list"))
    audit.record(event("ok", Use("", "a", "SKILL.md", "sha256:1"), method="skills/get"))  # no content was sent
    assert entries_of(file) == [
        ("load", "ok", "SKILL.md"),
        ("read", "ok", "b.md"),
        ("run", "begun", "scripts/x.py"),
        ("run", "refused", "scripts/x.py"),  # its result was an error
        ("refuse", "refused", "SKILL.md"),
        ("admit", "ok", None),
    ]
    assert records_of(file)[0] == {
        "time": "2027-01-15T08:00:00.250Z", "event": "load", "outcome": "ok", "principal": "token:a", "protocol": "mcp",
        "method": "resources/read", "skill": "a", "file": "SKILL.md", "digest": "sha256:1",
    }  # fmt: skip
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(synced) == 1, "only a run is synced to disk"
    required = AuditLog(str(tmp_path / "required"), required=True)
    required.record(event("begun", READ))
    required.record(event("ok", READ))
    assert entries_of(tmp_path / "required") == [("read", "begun", "b.md")], "once, before the content is sent"
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        audit = AuditLog("-")
        for _ in range(2):
            audit.record(event(method="initialize"))
            audit.reopen()  # without effect on stdout
        audit.record(event("begun", RUN))
    assert [record["event"] for record in records_of(tmp_path / "out")] == ["admit", "admit", "run"]
    assert len(synced) == 1


@needs_full_device
def test_records_of_refused_unauthenticated_clients_are_rate_limited(tmp_path: Path) -> None:
    audit, full = AuditLog(str(tmp_path / "audit")), AuditLog(str(FULL_DEVICE))
    unauthenticated = {"principal": None, "address": "10.0.0.9", "reason": "token"}
    for moment in (*[100] * 25, *range(160, 182), 159.5):  # the clock is set back at the end
        for log in (audit, full):
            log.record(event("refused")._replace(time=moment, **unauthenticated))
    left_out = [record.get("left_out") for record in records_of(tmp_path / "audit")]
    assert left_out == [None] * 20 + [5] + [None] * 19 + [2]
    assert full.lost == 25 + 22 + 1
    for more in ({"principal": "token:a"}, {"reason": ""}):  # authenticated, or not refused
        other = AuditLog(str(tmp_path / "other"))
        for _ in range(25):
            other.record(event("ok", READ)._replace(**{**unauthenticated, **more}))
    assert len(records_of(tmp_path / "other")) == 50


def test_rate_limit_remembers_most_recent_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_MAX_STRANGERS", 2)
    audit, file = AuditLog(str(tmp_path / "audit")), tmp_path / "audit"
    for address, count in (("a", 21), ("b", 1), ("a", 1), ("c", 1), ("a", 1), ("c", 1), ("d", 1), ("a", 1)):
        for _ in range(count):
            audit.record(event("refused")._replace(principal=None, address=address, reason="token"))
    assert [record["address"] for record in records_of(file)[20:]] == ["b", "c", "c", "d", "a"]


@needs_full_device
def test_unwritable_log_refuses_runs_but_not_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    link, good = tmp_path / "audit", tmp_path / "good"
    link.symlink_to(FULL_DEVICE)
    audit, why = AuditLog(str(link)), "No space left on device"
    assert audit.state == f"audit log {link}: written"
    for _ in range(3):
        audit.record(event("ok", READ))
        with pytest.raises(NotRecordedError, match="Nothing was run"):
            audit.record(event("begun", RUN))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert f"({why}); no script runs until it can, reads are served unrecorded" in caplog.text
    assert audit.state == f"audit log {link}: cannot be written ({why}); 3 lines were lost"
    with pytest.raises(NotRecordedError):
        AuditLog(str(link), required=True).record(event("begun", READ))
    assert caplog.messages[-1].endswith("and no file is read")
    link.unlink()
    link.symlink_to(tmp_path / "no" / "folder")
    audit.record(event("ok", READ))  # before SIGHUP the old file stays open
    audit.reopen()
    audit.record(event("ok", READ))
    assert audit.state.endswith("(No such file or directory); 5 lines were lost")
    link.unlink()
    link.symlink_to(good)
    open_files = len(os.listdir("/proc/self/fd"))
    audit.record(event("begun", RUN))
    assert entries_of(good) == [("run", "begun", "scripts/x.py")]
    good.rename(tmp_path / "moved")
    audit.record(event("begun", RUN))
    assert not good.exists() and len(os.listdir("/proc/self/fd")) == open_files
    assert "is written again; 5 lines" in caplog.messages[-1]
    assert len(caplog.records) == 3


@needs_full_device
@pytest.mark.parametrize("required", [False, True])
def test_full_disk_counts_losses_or_refuses_reads_until_reopened(tmp_path: Path, required: bool) -> None:
    write_skill(tmp_path / "skills" / "a")
    link, good = tmp_path / "audit", tmp_path / "good"
    link.symlink_to(FULL_DEVICE)
    options = ["--audit-log", link, "--metrics", *(["--audit-required"] if required else [])]
    with app_serving(tmp_path / "skills", *options) as server, client(server, "modern") as mcp:
        if required:
            with pytest.raises(WireError, match="audit log of this server cannot be written"):
                mcp.read("skill://a/SKILL.md")
            refusal = mcp.call("skills_load", names=["a"])
            assert refusal["isError"]
            assert "audit log" in refusal["content"][0]["text"]
        else:
            assert mcp.read("skill://a/SKILL.md")
        assert server.send("GET", "/.well-known/skills/a/SKILL.md").status == (503 if required else 200)
        state = server.send("GET", "/readyz?verbose").body.decode().splitlines()[-1]
        found = re.search(r"cannot be written \(No space left on device\); (\d+) lines were lost$", state)
        assert found
        assert int(found[1]) >= (1 if required else 3), state
        metrics = server.send("GET", "/metrics").body.decode()
        assert float(re.findall(r"^skills_audit_lost (\S+)$", metrics, re.MULTILINE)[0]) >= int(found[1])
        link.unlink()
        link.symlink_to(good)
        server.reload()
        wait_until(lambda: not mcp.call("skills_load", names=["a"]).get("isError") and good.exists())
        assert "load" in {record["event"] for record in records_of(good)}
        assert server.stderr.count("cannot be written") == 1


@needs_full_device
def test_script_is_not_run_if_it_cannot_be_recorded(tmp_path: Path, sandbox_mode: str) -> None:
    write_skill(tmp_path / "a", scripts__x_py="print('ran')\n")
    with local_serving(tmp_path, "--audit-log", FULL_DEVICE, "--allow-scripts", "--sandbox", sandbox_mode) as wire:
        session = wire.call("skills_load", names=["a"])["structuredContent"]["session"]
        refusal = wire.call("skills_run_script", path="scripts/x.py", session=session)
    assert refusal["isError"]
    assert "Nothing was run" in refusal["content"][0]["text"]


def test_record_after_a_partial_write_is_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first write is partial, its continuation fails."""
    file, write, writes = tmp_path / "audit", os.write, list[bytes]()
    audit = AuditLog(str(file))

    def fail_second(descriptor: int, raw: bytes) -> int:
        writes.append(raw)
        if len(writes) == 1:
            return write(descriptor, raw[:20])
        if len(writes) == 2:
            raise OSError(28, "No space left on device")
        return write(descriptor, raw)

    monkeypatch.setattr(os, "write", fail_second)
    audit.record(event(method="initialize"))
    audit.record(event(method="initialize"))
    first, second = file.read_text(encoding="utf-8").splitlines()
    assert len(first) == 20
    assert json.loads(second)["event"] == "admit"


def test_file_that_cannot_be_opened_and_stdout_of_a_protocol_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        AuditLog(str(tmp_path / "no" / "audit"))
    assert "stdout belongs to the protocol" in refusal("rpc", write_skill(tmp_path / "a"), "--audit-log", "-")


def test_stdio_requests_are_recorded_without_content(tmp_path: Path, sandbox_mode: str) -> None:
    folder, file = tmp_path / "skills", tmp_path / "audit"
    write_skill(folder / "a", body="Secret body.", notes_md="other", scripts__x_py="print('ran')\n")
    (folder / "a" / "scripts" / "fail.py").write_text("raise SystemExit(3)\n")
    with local_serving(folder, "--audit-log", file, "--allow-scripts", "--sandbox", sandbox_mode) as wire:
        session = wire.call("skills_load", names=["a"])["structuredContent"]["session"]
        wire.request("resources/read", {"uri": "skill://a/notes.md"})
        result = wire.call("skills_run_script", path="scripts/x.py", session=session, args=["a-secret-argument"])
        assert "ran" in result["structuredContent"]["stdout"]
        assert wire.call("skills_run_script", path="scripts/fail.py", session=session)["isError"]
        wire.call("skills_load", names=["no-such-thing"])
        for method, params in (
            ("resources/read", {"uri": "skill://no-such-thing/x"}),
            ("resources/read", {}),
            ("none", {}),
        ):
            with pytest.raises(WireError):
                wire.request(method, params)
    assert entries_of(file) == [
        ("admit", "ok", None),
        ("load", "ok", "SKILL.md"),
        ("read", "ok", "notes.md"),
        ("run", "begun", "scripts/x.py"),
        ("run", "ok", "scripts/x.py"),
        ("run", "begun", "scripts/fail.py"),
        ("run", "refused", "scripts/fail.py"),
        *[("refuse", "refused", None)] * 4,
    ]
    assert records_of(file)[0]["host"] == "wire"
    read = records_of(file)[2]
    assert read["digest"] == "sha256:" + hashlib.sha256(b"other").hexdigest()
    assert read["host"] == "wire"
    text = file.read_text(encoding="utf-8")
    for content in ("Secret body", session, "a-secret-argument", "no-such-thing", "ran"):
        assert content not in text


def test_admission_over_http_names_the_host_program(tmp_path: Path) -> None:
    skills = write_skill(tmp_path / "skills" / "a")
    with app_serving(skills, "--audit-log", tmp_path / "audit") as server, client(server, "modern") as wire:
        wire.request("server/discover")
    admitted = records_of(tmp_path / "audit")[0]
    assert (admitted["event"], admitted["host"]) == ("admit", "wire")


def test_http_requests_are_recorded_on_stdout_with_principal_and_address(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    bearer = bearer_header(SECRET)
    with http_serving(tmp_path, "--audit-log", "-", environment={"MCP_SKILLS_TOKENS": f"ops={SECRET}"}) as server:
        index = json.loads(server.send("GET", "/.well-known/agent-skills/index.json", headers=bearer).body)
        server.send("GET", index["skills"][0]["url"], headers=bearer)
        server.send("GET", "/.well-known/agent-skills/none/x", headers=bearer)
        names = [skill["name"] for skill in server.rpc("list_skills", token=SECRET)["result"]["skills"]]
        name = next(name for name in names if name.endswith("a"))
        server.rpc("read_skill_file", token=SECRET, name=name, path="SKILL.md")
        assert server.process.stdout is not None
        load, refuse, rpc = (json.loads(server.process.stdout.readline()) for _ in range(3))
    assert (load["event"], load["skill"], load["principal"], load["address"]) == ("load", "a", "token:ops", "127.0.0.1")
    assert (refuse["event"], refuse["protocol"]) == ("refuse", "discovery")
    assert (rpc["event"], rpc["protocol"], rpc["principal"]) == ("load", "skills-protocol", "token:ops")
    assert "host" not in rpc and SECRET not in repr((load, refuse, rpc))
