"""What the system refuses: watches, instances, permissions. Under its real limits, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from catalog.forest import DEADLINE, plant, skills
from wire import COMMAND, Wire

TESTS = Path(__file__).parent.parent.parent
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
LOWER = 'echo "$2" > /proc/sys/user/$1 && shift 2 && exec "$@"'


@cache
def _can(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE).returncode == 0
    except OSError:
        return False


needs_namespace = pytest.mark.skipif(
    not _can(*NAMESPACE, "sh", "-c", LOWER, "sh", "max_inotify_watches", "3", "true"),
    reason="no user namespace to lower limits in",
)


def confined(scenario: str, root: Path, *arguments: str, by: list[str]) -> list[str]:
    """Run a scenario of confined.py; what it logged."""
    command = [*by, sys.executable, "-W", "error", str(TESTS / "catalog/confined.py"), scenario, str(root), *arguments]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@needs_namespace
@pytest.mark.parametrize(
    ("name", "number", "limit"),
    [
        ("max_inotify_watches", "3", "fs.inotify.max_user_watches is 3"),
        ("max_inotify_instances", "0", "fs.inotify.max_user_instances is 0"),
    ],
)
def test_without_events_the_folders_are_looked_at_until_there_are_some(
    tmp_path: Path, name: str, number: str, limit: str
) -> None:
    first, second = confined("limit", tmp_path, name, number, by=NAMESPACE)
    assert limit in first and "sysctl" in first and "polled about once a second" in first
    assert "file events work again" in second


@needs_namespace
def test_a_limit_that_new_directories_reach_is_said_too(tmp_path: Path) -> None:
    first, second = confined("reached", tmp_path, by=NAMESPACE)
    assert "fs.inotify.max_user_watches is 5" in first
    assert "file events work again" in second


@needs_namespace
@pytest.mark.parametrize(("name", "number"), [("max_inotify_watches", "3"), ("max_inotify_instances", "0")])
def test_a_client_hears_of_new_skills_without_events_and_the_operator_reads_one_line(
    tmp_path: Path, name: str, number: str
) -> None:
    plant(tmp_path, skills("one", "two", "three"))
    command = [*NAMESPACE, "sh", "-c", LOWER, "sh", name, number, *COMMAND, "serve", str(tmp_path)]
    wire = Wire(command)
    try:
        wire.open()
        wire.request("skills/list")
        plant(tmp_path, skills("four"))
        wire.until("notifications/skills/list_changed")
        shutil.rmtree(tmp_path / "one")
        wire.until("notifications/skills/list_changed")
        assert sorted(skill["name"] for skill in wire.every_skill()) == ["four", "three", "two"]
        assert wire.close() == 0
    finally:
        wire.kill()
    said = wire.stderr.decode()
    assert said.count("inotify") == 2 and "Traceback" not in said  # once the word, once the limit's name
    assert len([line for line in said.splitlines() if "WARNING" in line]) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_a_directory_that_may_be_read_again_is_followed_again(tmp_path: Path) -> None:
    by: list[str] = []
    if os.geteuid() == 0:
        by = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
        if not _can(*by, "true"):
            pytest.skip("root cannot give up its rights here")
    assert "the root cannot be read" in "".join(confined("permissions", tmp_path, by=by))


@needs_namespace
def test_what_is_mounted_and_unmounted_is_followed(tmp_path: Path) -> None:
    assert confined("mounts", tmp_path, by=NAMESPACE) == []
