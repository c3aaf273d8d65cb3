"""`fetch`, `lock`, `outdated` and `diff` once with every kind of source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result

from commands.calls import exit_code, invoke
from mcp_skills_server.model import SIGNATURE_FILE
from mcp_skills_server.provenance.signatures import sign
from provenance.test_signatures import keys
from sources.hostile import KINDS, Member, Place
from sources.publishers import skill_md
from tables import each_row
from wire import write_skill

FETCHED = [
    pytest.param(name, marks=[pytest.mark.needs_program(kind.program)] if kind.program else [])
    for name, kind in KINDS.items()
    if not kind.is_own
]


@contextmanager
def folder(path: Path) -> Iterator[Place]:
    def publish(text: str, _: object) -> None:
        write_skill(path / "own" / "good").joinpath("SKILL.md").write_bytes(skill_md("good", text))

    publish("first", ())
    yield Place(str(path / "own"), publish)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(*words: str) -> Result:
    return invoke(*words, "--allow-private", "--allow-http")


@pytest.mark.parametrize("name", ["folder", *FETCHED])
def test_every_kind_is_locked_and_compared(name: str, here: Path) -> None:
    with KINDS[name].open(here) if name in KINDS else folder(here) as place:
        place.publish("first", ())
        assert exit_code(run("lock", place.given, "--output", "skills.lock")) == 0
        assert exit_code(run("outdated", "--lock", "skills.lock")) == 0
        place.publish("second", ())
        assert exit_code(run("outdated", "--lock", "skills.lock")) == 1
        seen = run("diff", "--lock", "skills.lock")
        assert exit_code(seen) == 1 and "good: changed" in seen.stdout
        assert exit_code(run("update", "--lock", "skills.lock")) == 0
        assert exit_code(run("diff", "--lock", "skills.lock")) == 0


@pytest.mark.parametrize("name", FETCHED)
def test_every_kind_is_fetched(name: str, here: Path) -> None:
    with KINDS[name].open(here) as place:
        place.publish("first", ())
        assert exit_code(run("fetch", place.given, "--output", "to")) == 0
        assert (here / "to" / "good" / "SKILL.md").read_bytes() == skill_md("good", "first")
        place.publish("second", ())
        seen = run("diff", "to", place.given)
        assert exit_code(seen) == 1 and "-first" in seen.stdout and "+second" in seen.stdout
        again = [place.given] if name == "mcp" else []  # a command is started for no record
        done = run("fetch", *again, "--output", "to", "--update")
        assert exit_code(done) == 0 and "1 updated" in done.stderr
        assert exit_code(run("diff", "to", place.given)) == 0


def test_no_command_is_started_for_a_record(here: Path) -> None:
    with KINDS["mcp"].open(here) as place:
        assert exit_code(run("fetch", place.given, "--output", "to")) == 0
    (record,) = (here / "to" / ".mcp-skills" / "sources").glob("*.json")
    text = record.read_text(encoding="utf-8")
    record.write_text(text.replace("mcp+stdio:python", "mcp+stdio:touch ran"), encoding="utf-8")
    done = run("fetch", "--output", "to", "--update")
    assert "mcp+stdio:python" in text and not (here / "ran").exists()
    assert "no command is started for a record" in str(done.exception)


@pytest.mark.parametrize("name", FETCHED)
def test_what_is_not_signed_is_not_written(name: str, here: Path) -> None:
    private, public = keys(here / "keys")
    signature = Member(SIGNATURE_FILE, sign({"SKILL.md": skill_md("bad")}, private))
    with KINDS[name].open(here) as place:
        place.publish("first", [signature])
        done = run("fetch", place.given, "--output", "to", "--require-signature", str(public))
        assert exit_code(done) == 1
        assert [line for line in done.stderr.splitlines() if "refused: good: it has no signature" in line]
        assert done.stderr.count("refused:") == 1
        assert [path.name for path in (here / "to").iterdir() if path.name[0] != "."] == ["bad"]


@each_row(
    ("given", "way"), [("git+https://git.example/a", "credential helpers"), ("oci://r.example/a:1", "docker login")]
)
def test_a_token_is_for_sites_and_the_message_names_the_way(
    given: str, way: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "x")
    assert way in str(run("fetch", given, "--output", "to", "--token-env", "A_TOKEN").exception)
