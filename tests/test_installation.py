"""Installation of the program: the command that adds an extra, and caches that may be emptied."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commands.calls import invoke
from mcp_skills_server.installation import is_temporary, missing_extra, shell_command
from tables import each_row
from wire import write_skill

TAG = "CACHEDIR.TAG"
"""uv, pipx and virtualenv write it into each environment, too, beside the top of their caches."""


def environment(folder: Path, files: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of an environment with these files, and run in it."""
    prefix = folder / "tools/mcp-skills-server"
    prefix.mkdir(parents=True)
    for name in files.split():
        (prefix / name).touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    return prefix


@each_row(("files", "remedy"), [
    (f"{TAG} pipx_metadata.json", 'pipx inject mcp-skills-server ".[redis]"'),
    (f"{TAG} uv-receipt.toml", 'uv tool install --with ".[redis]" . (and --with every other extra that you use)'),
    (f"{TAG} pyvenv.cfg", "'/my bin/python' -m pip install \".[redis]\""),
    (f"../{TAG}", 'uvx --from ".[redis]" mcp-skills-server, or pipx run --spec ".[redis]" mcp-skills-server'),
])  # fmt: skip
def test_missing_extra_is_added_by_the_installer_that_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, remedy: str
) -> None:
    environment(tmp_path, files, monkeypatch)
    monkeypatch.setattr(sys, "executable", "/my bin/python")
    message = f"the extra [redis] for --redis is not installed; in the clone: {remedy}"
    assert str(missing_extra("--redis", "redis")) == message


@each_row(("files", "words", "warns"), [
    (f"../{TAG}", "--print", True), (f"../../{TAG}", "", True), (f"../{TAG}", "--uninstall", False),
    (f"../{TAG}", "--command mcp-skills-server", False), (TAG, "", False), ("pyvenv.cfg", "", False),
])  # fmt: skip
def test_install_from_a_cache_that_may_be_emptied_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, words: str, warns: bool
) -> None:
    environment(tmp_path, files, monkeypatch)
    assert is_temporary() == ("/" in files)
    write_skill(tmp_path / "skills/refunds")
    done = invoke("install", "cursor", tmp_path / "skills", "--config", tmp_path / "mcp.json", *words.split())
    assert done.exception is None
    assert ("is in a cache that may be emptied" in done.stderr) == warns


@each_row(("system", "words", "shown"), [
    ("linux", ["run", "/my skills", "C:\\x"], "run '/my skills' 'C:\\x'"),
    ("win32", ["run", "C:\\Users\\me\\.claude\\skills"], "run C:\\Users\\me\\.claude\\skills"),
    ("win32", ["run", "C:\\My Skills\\a&b", "x"], 'run "C:\\My Skills\\a&b" x'),
])  # fmt: skip
def test_suggested_command_can_be_pasted_into_the_systems_shell(
    monkeypatch: pytest.MonkeyPatch, system: str, words: list[str], shown: str
) -> None:
    """cmd.exe takes single quotes as letters of a path."""
    monkeypatch.setattr(sys, "platform", system)
    assert shell_command(words) == shown
