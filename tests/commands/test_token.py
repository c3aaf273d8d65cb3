"""`token new`: print a token once, and store only its hash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commands.calls import invoke, refusal
from mcp_skills_server.access import tokens


def new(*words: str | Path) -> tuple[str, str]:
    """Run `token new`; return its stdout and stderr."""
    done = invoke("token", "new", *words)
    return done.stdout.strip(), done.stderr


def test_new_token_grants_access_and_rotates_without_a_gap(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    old, _ = new("laptop", "--token-file", file, "--group", "finance")
    assert old not in file.read_text()
    if os.name == "posix":
        assert file.stat().st_mode & 0o777 == 0o600
    fresh, _ = new("laptop", "--token-file", file, "--group", "finance")
    both = tokens.read_token_file(str(file)).require_valid()
    assert [tokens.find_token(both, token) for token in (old, fresh)] == both
    assert both[0].groups == both[1].groups == {"finance"}
    before = file.read_text()
    assert "laptop appears more than twice" in refusal("token", "new", "laptop", "--token-file", file)
    assert file.read_text() == before


def test_line_that_another_process_adds_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"one={'1' * 20}")  # without a line end
    read = tokens.read_tokens

    def read_slowly(text: str, source: str) -> tokens.TokenLines:
        if source == str(file):
            with file.open("a") as other:
                other.write(f"\nother={'2' * 20}\n")
        return read(text, source)

    monkeypatch.setattr(tokens, "read_tokens", read_slowly)
    new("two", "--token-file", file)
    lines = read(file.read_text(), str(file)).require_valid()
    assert [each.name for each in lines] == ["one", "other", "two"]


def test_token_without_a_file_is_printed_with_its_line(tmp_path: Path) -> None:
    token, stderr = new("ci", "--expires", "2027-01-31")
    assert "ci=sha256:" in stderr and "expires=2027-01-31" in stderr
    assert token not in stderr
    for words in (["no name"], ["ci", "--expires", "soon"], ["ci", "--group", "a b"]):
        assert refusal("token", "new", *words)
    wrong = tmp_path / "wrong"
    wrong.write_text("ci=short\n")
    os.mkfifo(tmp_path / "pipe")  # an open would block for a writer
    for file in (wrong, tmp_path / "no" / "tokens", tmp_path / "pipe"):
        assert str(file) in refusal("token", "new", "x", "--token-file", file)
    assert wrong.read_text() == "ci=short\n"
