"""`recall`: who was given what an advisory recalls; and what a recall does to lock files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click import MissingParameter

from commands.calls import exit_code, invoke, json_of, names_served, refusal
from mcp_skills_server.catalog.recalls import parse_advisories
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model.digests import digest_of
from tables import each_row
from wire import FIXTURES, ROOT, serving, write_skill

REASON = "it deletes what it should keep"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("bad", "good"):
        write_skill(tmp_path / "root" / name, references__guide_md=f"How {name} works.\n")
    return tmp_path / "root"


def digest_over(root: Path, name: str) -> str:
    with Registry([root]) as registry:
        return registry.digest_over(registry.snapshot.skills[name])


def advisories(folder: Path, *digests: str) -> Path:
    text = "version = 1\n"
    for digest in digests:
        text += f'[[advisory]]\ndigest = "{digest}"\nreason = "{REASON}"\nseverity = "critical"\n'
    file = folder / "advisories.toml"
    file.write_text(text)
    return file


def test_recall_names_each_host_that_was_given_the_version_or_file(root: Path, tmp_path: Path) -> None:
    log, guide = tmp_path / "audit.jsonl", root / "bad" / "references" / "guide.md"
    whole, of_guide = digest_over(root, "bad"), digest_of(guide.read_bytes())
    for host, name in (("one", "bad"), ("two", "good"), ("three", "bad")):
        with serving(root, "--audit-log", log, host=host) as wire:
            wire.call("skills_load", names=[name])
            if host == "three":
                wire.call("skills_read", path="references/guide.md")
    guide.write_text("Another version.\n")
    with serving(root, "--audit-log", log, host="late") as wire:
        wire.call("skills_load", names=["bad"])
    rows = json_of("recall", "--advisories", advisories(tmp_path, whole), log)
    assert {(row["host"], row["skill"], row["digest"], row["times"]) for row in rows} == {
        ("one", "bad", whole, 1), ("three", "bad", whole, 2),
    }  # fmt: skip
    rows = json_of("recall", "--advisories", advisories(tmp_path, of_guide), log)
    assert [(row["host"], row["digest"]) for row in rows] == [("three", of_guide)]
    done = invoke("recall", "--advisories", advisories(tmp_path, whole), log)
    assert exit_code(done) == 1
    assert f"recalled (critical): {REASON}" in done.stdout
    assert "late" not in done.stdout
    done = invoke("recall", "--advisories", advisories(tmp_path, digest_of(b"")), log)
    assert exit_code(done) == 0
    assert "nobody was given what is recalled" in done.stdout


def test_recall_says_which_lines_of_a_log_it_cannot_read(tmp_path: Path) -> None:
    digest, log = digest_of(b"x"), tmp_path / "audit.jsonl"
    record = {"time": "2026-11-29T12:00:00.000Z", "event": "load", "host": "a\x07b", "skill": "s", "digest": digest}
    lines = [b"{", b"[1]", b"[" * 100_000, json.dumps(record).encode(), b"\xff"]
    log.write_bytes(b"\n".join(lines) + b"\n")
    done = invoke("recall", "--advisories", advisories(tmp_path, digest), log)
    assert exit_code(done) == 1
    assert "cannot be read, and may name more" in done.stderr
    assert "2026-11-29" in done.stdout
    assert "\x07" not in done.stdout


def test_recall_needs_advisories_and_a_log(tmp_path: Path) -> None:
    assert "give --advisories FILE" in refusal("recall", "x")
    file = advisories(tmp_path)
    assert isinstance(invoke("recall", "--advisories", file).exception, MissingParameter)
    assert "cannot be read (No such file or directory)" in refusal("recall", "--advisories", file, tmp_path / "none")
    file.write_text("version = 2\n")
    assert "its version is 2, and this program reads 1; see docs/recall.md" in refusal(
        "list", "--advisories", file, "."
    )


def test_locked_skill_that_is_recalled_is_refused_with_a_code_of_its_own(root: Path, tmp_path: Path) -> None:
    lock, file = tmp_path / "skills.lock", advisories(tmp_path)
    invoke("lock", root, "--output", lock)
    assert names_served("--lock", lock, "--advisories", file) == ["bad", "good"]
    advisories(tmp_path, digest_over(root, "bad"))
    assert names_served("--lock", lock, "--advisories", file) == ["good"]
    message = refusal("serve", "--lock", lock, "--frozen", "--advisories", file)
    assert f"bad cannot be served: it is recalled (critical): {REASON} [lock-recalled]" in message
    again = invoke("lock", root, "--output", lock, "--advisories", file)
    assert "not locked" in again.stderr
    assert REASON in again.stderr
    assert names_served("--lock", lock) == ["good"]


def test_recalled_skill_is_published_nowhere_and_its_earlier_archive_goes(root: Path, tmp_path: Path) -> None:
    output, file = tmp_path / "public", advisories(tmp_path, digest_over(root, "bad"))

    def archives() -> int:
        return len([*output.glob(".well-known/agent-skills/bad/*/*")])

    invoke("publish", root, "--output", output)
    assert archives() == 1
    (root / "bad" / "references" / "guide.md").write_text("Another version.\n")
    invoke("publish", root, "--output", output)
    assert archives() == 2
    assert exit_code(invoke("publish", root, "--output", output, "--advisories", file)) == 0
    assert archives() == 1
    advisories(tmp_path, digest_over(root, "bad"))
    for command in (("publish", root, "--output", output), ("package", root, "--output", tmp_path / "a.mcpb")):
        done = invoke(*command, "--advisories", file)
        assert exit_code(done) == 0
        assert f"it is recalled (critical): {REASON}" in done.stderr
    assert archives() == 0


@each_row("text, fault", [
    ("advisory = []", "version is missing"),
    ("version = 2", "version is 2"),
    ("version = true", "version is True"),
    ("version = 1\nmore = 1", "unknown keys: more"),
    ("version = 1\n[advisory]\n", "not a list of tables"),
    ("version = 1\nadvisory = [1]", "advisory 1 is not a table"),
    ("version = 1\n[[advisory]]\ndigest = 'sha256:1'", "advisory 1: 'digest' is not"),
    (f"version = 1\n[[advisory]]\ndigest = '{digest_of(b'').upper()}'", "'sha256:' and 64 hex digits in lower case"),
    ("version = 1\n[[advisory]]\nfoo = 1", "advisory 1 has unknown keys: foo"),
    (f"version = 1\n[[advisory]]\ndigest = '{digest_of(b'')}'", "'severity' is not one of low, medium, high, critical"),
    (f"version = 1\n[[advisory]]\ndigest = '{digest_of(b'')}'\nseverity = []", "'severity' is not one of"),
    (f"version = 1\n[[advisory]]\ndigest = '{digest_of(b'')}'\nseverity = 'low'", "'reason' is not one line"),
    (f"version = 1\n[[advisory]]\ndigest = '{digest_of(b'')}'\nseverity = 'low'\nreason = 'a\\nb'", ""),
    (f"version = 1\n[[advisory]]\ndigest = '{digest_of(b'')}'\nseverity = 'low'\nreason = \"a\\nb\"", "not one line"),
    (f"version = 1\n[[advisory]]\ndigest = '{digest_of(b'')}'\nseverity = 'low'\nreason = 'a'\nreplacement = 1",
     "'replacement' is not one line"),
    ("version = ", "Invalid value"),
])  # fmt: skip
def test_invalid_file_of_advisories_is_refused_with_the_place(text: str, fault: str) -> None:
    if not fault:
        assert parse_advisories(text)
        return
    with pytest.raises(ValueError, match=fault):
        parse_advisories(text)


def test_example_recalls_one_skill_of_the_fixtures() -> None:
    every = {skill["name"] for skill in json_of("list", FIXTURES)["skills"]}
    left = {
        skill["name"]
        for skill in json_of("list", FIXTURES, "--advisories", ROOT / "examples/advisories.toml")["skills"]
    }
    assert every - left == {"polite-greetings"}
