"""The user's cache and state directories, on Linux by XDG."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_skills_server.directories import cache_directory, state_directory


@pytest.mark.skipif(sys.platform in {"darwin", "win32"}, reason="these systems have folders of their own")
@pytest.mark.parametrize(("variable", "directory", "usual"), [
    ("XDG_CACHE_HOME", cache_directory, ".cache"), ("XDG_STATE_HOME", state_directory, ".local/state"),
])  # fmt: skip
def test_directories_follow_xdg(
    variable: str, directory: Callable[[], Path], usual: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(variable, raising=False)
    assert directory() == tmp_path / usual / "mcp-skills-server"
    for value, place in (("", tmp_path / usual), ("/c", Path("/c"))):
        monkeypatch.setenv(variable, value)
        assert directory() == place / "mcp-skills-server"
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="containers run Linux")
def test_user_without_home_gets_container_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_user(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", no_such_user)
    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert cache_directory() == Path("/.cache/mcp-skills-server")
    assert state_directory() == Path("/.local/state/mcp-skills-server")
