"""`fetch`, `lock`, `outdated` and `diff` with every kind of fetched source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result

from commands.calls import exit_code, invoke
from mcp_skills_server.model import SIGNATURE_FILE
from mcp_skills_server.provenance.signatures import sign
from provenance.test_signatures import key_pair
from sources.hostile import KINDS, Member
from sources.publishers import skill_md
from tables import each_row

FETCHED = [
    pytest.param(name, marks=[pytest.mark.needs_program(kind.program)] if kind.program else [])
    for name, kind in KINDS.items()
    if not kind.is_own
]


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(*words: str) -> Result:
    return invoke(*words, "--allow-private", "--allow-http")


@pytest.mark.parametrize("name", FETCHED)
def test_source_is_locked_compared_and_updated(name: str, cwd: Path) -> None:
    with KINDS[name].open(cwd) as source:
        source.publish("first", ())
        assert exit_code(run("lock", source.given, "--output", "skills.lock")) == 0
        options = ["--lock", "skills.lock"]
        if name == "mcp":  # the lock file starts no command, so the operator's own file names it
            (cwd / "own.toml").write_text(f"roots = [{json.dumps(source.given)}]\n", encoding="utf-8")
            assert "that a lock file" in str(run("update", "--check", *options).exception)
            options += ["--config", "own.toml"]
        assert exit_code(run("update", "--check", *options)) == 0
        source.publish("second", ())
        assert exit_code(run("update", "--check", *options)) == 1
        done = run("diff", *options)
        assert exit_code(done) == 1 and "good: changed" in done.stdout
        assert exit_code(run("update", *options)) == 0
        assert exit_code(run("diff", *options)) == 0


@pytest.mark.parametrize("name", FETCHED)
def test_source_is_fetched_and_updated(name: str, cwd: Path) -> None:
    with KINDS[name].open(cwd) as source:
        source.publish("first", ())
        assert exit_code(run("fetch", source.given, "--output", "to")) == 0
        assert (cwd / "to" / "good" / "SKILL.md").read_bytes() == skill_md("good", "first")
        source.publish("second", ())
        done = run("diff", "to", source.given)
        assert exit_code(done) == 1
        assert "-first" in done.stdout and "+second" in done.stdout
        # An update starts no command from its record, so the source is given again.
        sources = [source.given] if name == "mcp" else []
        done = run("fetch", *sources, "--output", "to", "--update")
        assert exit_code(done) == 0 and "1 updated" in done.stderr
        assert exit_code(run("diff", "to", source.given)) == 0


def test_fetch_starts_no_command_that_a_record_names(cwd: Path) -> None:
    with KINDS["mcp"].open(cwd) as source:
        assert exit_code(run("fetch", source.given, "--output", "to")) == 0
    (record,) = (cwd / "to" / ".mcp-skills" / "sources").glob("*.json")
    text = record.read_text(encoding="utf-8")
    record.write_text(text.replace("mcp+stdio:python", "mcp+stdio:touch ran"), encoding="utf-8")
    done = run("fetch", "--output", "to", "--update")
    assert "mcp+stdio:python" in text and not (cwd / "ran").exists()
    assert "no command that a lock file or a record names is started" in str(done.exception)


@pytest.mark.parametrize("name", FETCHED)
def test_unsigned_skill_is_not_written(name: str, cwd: Path) -> None:
    private, public = key_pair(cwd / "keys")
    # A source has the skills `good` and `bad`; only `bad` gets a signature here.
    signature = Member(SIGNATURE_FILE, sign({"SKILL.md": skill_md("bad")}, private))
    with KINDS[name].open(cwd) as source:
        source.publish("first", [signature])
        done = run("fetch", source.given, "--output", "to", "--require-signature", str(public))
        assert exit_code(done) == 1
        assert "refused: good: it has no signature" in done.stderr
        assert done.stderr.count("refused:") == 1
        assert [path.name for path in (cwd / "to").iterdir() if path.name[0] != "."] == ["bad"]


@each_row(("source", "alternative"), [
    ("git+https://git.example/a", "credential helpers"), ("oci://r.example/a:1", "docker login"),
])  # fmt: skip
def test_token_for_git_or_registry_is_refused_with_the_alternative(
    source: str, alternative: str, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "x")
    done = run("fetch", source, "--output", "to", "--token-env", "A_TOKEN")
    assert alternative in str(done.exception)
