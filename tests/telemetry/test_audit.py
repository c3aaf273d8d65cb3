"""The audit log: who did what with which bytes, and what happens where it cannot be written."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from forkserver import run
from mcp_skills_server.errors import UsageError
from mcp_skills_server.telemetry import audit as audit_module
from mcp_skills_server.telemetry.audit import AuditLog
from mcp_skills_server.telemetry.events import Event, NotRecordedError, Outcome, Use
from web.http_wire import bearing, client, http_serving, until
from wire import COMMAND, DEADLINE, WireError, serving, write_skill

FULL = Path("/dev/full")
SECRET = "0123456789abcdef"
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
LOAD = Use("load", "a", "SKILL.md", "sha256:1")
READ = Use("read", "a", "b.md", "sha256:2")
RUN = Use("run", "a", "scripts/x.py", "sha256:3")


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def recorded(file: Path) -> list[tuple[Any, ...]]:
    return [(each["event"], each["outcome"], each.get("file")) for each in lines(file)]


def event(outcome: Outcome = "ok", *uses: Use, method: str = "resources/read") -> Event:
    return Event(time=1_800_000_000.25, protocol="mcp", method=method, outcome=outcome, uses=uses, principal="token:a")


def test_a_line_says_who_what_and_which_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, synced = tmp_path / "audit", list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    audit = AuditLog(str(file))
    audit.record(event("ok", LOAD, READ))
    audit.record(event("begun", RUN, method="tools/call"))
    audit.record(event("refused", Use("", "a", "SKILL.md", "sha256:1"), method="tools/call"))
    audit.record(event(method="initialize"))
    audit.record(event(method="tools/list"))
    audit.record(event("ok", Use("", "a", "SKILL.md", "sha256:1"), method="skills/get"))  # no byte of a file was given
    assert recorded(file) == [
        ("load", "ok", "SKILL.md"),
        ("read", "ok", "b.md"),
        ("run", "begun", "scripts/x.py"),
        ("refuse", "refused", "SKILL.md"),
        ("admit", "ok", None),
    ]
    assert lines(file)[0] == {
        "time": "2027-01-15T08:00:00.250Z", "event": "load", "outcome": "ok", "principal": "token:a", "protocol": "mcp",
        "method": "resources/read", "skill": "a", "file": "SKILL.md", "digest": "sha256:1",
    }  # fmt: skip
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(synced) == 1, "only a run waits for the disk"
    required = AuditLog(str(tmp_path / "required"), required=True)
    required.record(event("begun", READ))
    required.record(event("ok", READ))
    assert recorded(tmp_path / "required") == [("read", "begun", "b.md")], "once, and before the bytes"
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        audit = AuditLog("-")
        for _ in range(2):
            audit.record(event(method="initialize"))
            audit.reopen()  # which is for files
        audit.record(event("begun", RUN))
    assert [each[0] for each in recorded(tmp_path / "out")] == ["admit", "admit", "run"] and len(synced) == 1


@needs_full
def test_refused_strangers_do_not_fill_the_disk(tmp_path: Path) -> None:
    audit, full = AuditLog(str(tmp_path / "audit")), AuditLog(str(FULL))
    stranger = {"principal": None, "address": "10.0.0.9", "reason": "token"}
    for moment in (*[100] * 25, *range(160, 182), 159.5):  # at the end the clock was set back
        for log in (audit, full):
            log.record(event("refused")._replace(time=moment, **stranger))
    assert [each.get("left_out") for each in lines(tmp_path / "audit")] == [None] * 20 + [5] + [None] * 19 + [2]
    assert full.lost == 25 + 22 + 1
    for more in ({"principal": "token:a"}, {"reason": ""}):  # who is known, and who is let in
        other = AuditLog(str(tmp_path / "other"))
        for _ in range(25):
            other.record(event("ok", READ)._replace(**{**stranger, **more}))
    assert len(lines(tmp_path / "other")) == 50


def test_of_many_strangers_the_latest_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_MOST_STRANGERS", 2)
    audit, file = AuditLog(str(tmp_path / "audit")), tmp_path / "audit"
    for address, count in (("a", 21), ("b", 1), ("a", 1), ("c", 1), ("a", 1), ("c", 1), ("d", 1), ("a", 1)):
        for _ in range(count):
            audit.record(event("refused")._replace(principal=None, address=address, reason="token"))
    assert [each["address"] for each in lines(file)[20:]] == ["b", "c", "c", "d", "a"]


@needs_full
def test_where_it_cannot_be_written_runs_are_refused_and_reads_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, good = tmp_path / "audit", tmp_path / "good"
    link.symlink_to(FULL)
    audit, why = AuditLog(str(link)), "No space left on device"
    assert audit.state == f"audit log {link}: written"
    for _ in range(3):
        audit.record(event("ok", READ))
        with pytest.raises(NotRecordedError, match="Nothing was run"):
            audit.record(event("begun", RUN))
    assert [each.levelno for each in caplog.records] == [logging.ERROR]
    assert f"({why}); no script runs until it can, reads are served unrecorded" in caplog.text
    assert audit.state == f"audit log {link}: cannot be written ({why}); 3 lines were lost"
    with pytest.raises(NotRecordedError):
        AuditLog(str(link), required=True).record(event("begun", READ))
    assert caplog.messages[-1].endswith("and no file is read")
    link.unlink()
    link.symlink_to(tmp_path / "no" / "folder")
    audit.record(event("ok", READ))  # nobody has said that it was moved
    audit.reopen()
    audit.record(event("ok", READ))
    assert audit.state.endswith("(No such file or directory); 5 lines were lost")
    link.unlink()
    link.symlink_to(good)
    open_files = len(os.listdir("/proc/self/fd"))
    audit.record(event("begun", RUN))
    assert recorded(good) == [("run", "begun", "scripts/x.py")]
    good.rename(tmp_path / "moved")
    audit.record(event("begun", RUN))
    assert not good.exists() and len(os.listdir("/proc/self/fd")) == open_files
    assert "is written again; 5 lines" in caplog.messages[-1] and len(caplog.records) == 3


@needs_full
@pytest.mark.parametrize("required", [False, True])
def test_on_a_full_disk_lines_are_counted_or_reads_are_refused_until_there_is_another_file(
    tmp_path: Path, required: bool
) -> None:
    write_skill(tmp_path / "skills" / "a")
    link, good, call = tmp_path / "audit", tmp_path / "good", {"name": "skills_load", "arguments": {"names": ["a"]}}
    link.symlink_to(FULL)
    options = ["--audit-log", link, "--metrics", *(["--audit-required"] if required else [])]
    with http_serving(tmp_path / "skills", *options) as server, client(server, "modern") as one:
        if required:
            with pytest.raises(WireError, match="audit log of this server cannot be written"):
                one.read("skill://a/SKILL.md")
            loaded = one.request("tools/call", call)
            assert loaded["isError"] and "audit log" in loaded["content"][0]["text"]
        else:
            assert one.read("skill://a/SKILL.md")
        assert server.send("GET", "/.well-known/skills/a/SKILL.md").status == (503 if required else 200)
        state = server.send("GET", "/readyz?verbose").body.decode().splitlines()[-1]
        found = re.search(r"cannot be written \(No space left on device\); (\d+) lines were lost$", state)
        assert found and int(found[1]) >= (1 if required else 3), state  # who was let in, and refused or what was read
        shown = server.send("GET", "/metrics").body.decode()
        assert float(re.findall(r"^skills_audit_lost (\S+)$", shown, re.MULTILINE)[0]) >= int(found[1])
        link.unlink()
        link.symlink_to(good)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: not one.request("tools/call", call).get("isError") and good.exists())
        assert "load" in {each["event"] for each in lines(good)} and server.stderr.count("cannot be written") == 1


@needs_full
def test_a_script_whose_run_cannot_be_recorded_is_not_run(tmp_path: Path, sandbox_mode: str) -> None:
    write_skill(tmp_path / "a", scripts__x_py="print('ran')\n")
    with serving(tmp_path, "--audit-log", FULL, "--allow-scripts", "--sandbox", sandbox_mode) as wire:
        loaded = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["a"]}})
        arguments = {"path": "scripts/x.py", "session": loaded["structuredContent"]["session"]}
        refused = wire.request("tools/call", {"name": "skills_run_script", "arguments": arguments})
    assert refused["isError"] and "Nothing was run" in refused["content"][0]["text"]


def test_a_line_that_was_cut_off_spoils_none_that_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write, left = tmp_path / "audit", os.write, [20, -1]
    audit = AuditLog(str(file))

    def short(descriptor: int, raw: bytes) -> int:
        most = left.pop(0) if left else len(raw)
        if most < 0:
            raise OSError(28, "No space left on device")
        return write(descriptor, raw[:most])

    monkeypatch.setattr(os, "write", short)
    audit.record(event(method="initialize"))
    audit.record(event(method="initialize"))
    first, second = file.read_text(encoding="utf-8").splitlines()
    assert len(first) == 20 and json.loads(second)["event"] == "admit"


def test_where_it_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    nowhere, skill = str(tmp_path / "no" / "audit"), str(write_skill(tmp_path / "a"))
    with pytest.raises(UsageError, match="cannot be written"):
        AuditLog(nowhere)
    for words, said in (
        (("serve", skill, "--audit-log", "-"), "stdout belongs to the protocol"),
        (("serve", skill, "--audit-required"), "give --audit-log FILE too"),
        (("rpc", skill, "--audit-log", "-"), "stdout belongs to the protocol"),
    ):
        done = run([*COMMAND, *words], capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_over_stdio_loads_reads_runs_and_refusals_are_recorded(tmp_path: Path, era: Any, sandbox_mode: str) -> None:
    folder, file = tmp_path / "skills", tmp_path / "audit"
    write_skill(folder / "a", body="Secret body.", notes_md="other", scripts__x_py="print('ran')\n")
    with serving(folder, "--audit-log", file, "--allow-scripts", "--sandbox", sandbox_mode, era=era) as wire:
        loaded = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["a"]}})
        handle = loaded["structuredContent"]["session"]
        wire.request("resources/read", {"uri": "skill://a/notes.md"})
        arguments = {"path": "scripts/x.py", "session": handle, "args": ["a-secret-argument"]}
        ran = wire.request("tools/call", {"name": "skills_run_script", "arguments": arguments})
        assert "ran" in ran["structuredContent"]["stdout"]
        wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["no-such-thing"]}})
        for method, params in (
            ("resources/read", {"uri": "skill://no-such-thing/x"}),
            ("resources/read", {}),
            ("none", {}),
        ):
            with pytest.raises(WireError):
                wire.request(method, params)
    assert recorded(file) == [
        ("admit", "ok", None),
        ("load", "ok", "SKILL.md"),
        ("read", "ok", "notes.md"),
        ("run", "begun", "scripts/x.py"),
        ("run", "ok", "scripts/x.py"),
        *[("refuse", "refused", None)] * 4,
    ]
    read = lines(file)[2]
    assert read["digest"] == "sha256:" + hashlib.sha256(b"other").hexdigest() and read["host"] == "wire"
    text = file.read_text(encoding="utf-8")
    assert all(each not in text for each in ("Secret body", handle, "a-secret-argument", "no-such-thing", "ran"))


def test_over_http_the_bearer_and_the_address_are_recorded_also_on_stdout(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    bearer = bearing(SECRET)
    with http_serving(tmp_path, "--audit-log", "-", environment={"MCP_SKILLS_TOKENS": f"ops={SECRET}"}) as server:
        index = json.loads(server.send("GET", "/.well-known/agent-skills/index.json", headers=bearer).body)
        server.send("GET", index["skills"][0]["url"], headers=bearer)
        server.send("GET", "/.well-known/agent-skills/none/x", headers=bearer)
        names = [each["name"] for each in server.rpc("list_skills", token=SECRET)["result"]["skills"]]
        name = next(each for each in names if each.endswith("a"))
        server.rpc("read_skill_file", token=SECRET, name=name, path="SKILL.md")
        assert server.process.stdout is not None
        load, refuse, rpc = (json.loads(server.process.stdout.readline()) for _ in range(3))
    assert (load["event"], load["skill"], load["principal"], load["address"]) == ("load", "a", "token:ops", "127.0.0.1")
    assert (refuse["event"], refuse["protocol"]) == ("refuse", "discovery")
    assert (rpc["event"], rpc["protocol"], rpc["principal"]) == ("load", "skills-protocol", "token:ops")
    assert "host" not in rpc and SECRET not in repr((load, refuse, rpc))
