"""File watcher under real system limits, permissions and mounts.

Each scenario runs in its own process, with limits or rights that a test runner does not have. It
prints what was logged, and fails when a change is not noticed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from catalog.forest import DEADLINE, skills, write_files
from catalog.watched import assert_changes_noticed, captured_log, edit_and_wait, serves, watching
from mcp_skills_server.catalog.watch import watcher as module

TESTS = Path(__file__).parent.parent.parent
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


@cache
def can_run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE).returncode == 0
    except OSError:
        return False


needs_namespace = pytest.mark.skipif(
    not can_run(*NAMESPACE, "sh", "-c", "echo 3 > /proc/sys/user/max_inotify_watches"), reason="no user namespace"
)
LIMITS = Path("/proc/sys/user")


def limited(root: Path, name: str, number: str) -> None:
    """Set a limit that is too low before the watch begins, and restore it later."""
    file = LIMITS / name
    before = file.read_text()
    file.write_text(number)
    write_files(root, skills("one", "two/three", "four"))
    module._RETRY_S = 0.3
    with captured_log() as log, watching(root) as (_, listener):
        print(log.next())
        assert_changes_noticed(listener, root, "one", "four", "two/three")
        file.write_text(before)
        print(log.next())
        edit_and_wait(listener, root, "one", 3)
    assert log.empty()


def limit_reached(root: Path) -> None:
    """Reach the limit by new directories, and delete them again."""
    write_files(root, skills("one", "two/three"))
    (LIMITS / "max_inotify_watches").write_text("5")
    module._RETRY_S = 0.3
    with captured_log() as log, watching(root) as (_, listener):
        edit_and_wait(listener, root, "one", 2)
        assert log.empty()
        write_files(root, skills("four/five", "six/seven"))
        listener.until(serves("four/five", "one", "six/seven", "two/three"))
        print(log.next())
        edit_and_wait(listener, root, "six/seven", 2)
        shutil.rmtree(root / "six")
        shutil.rmtree(root / "four")
        print(log.next())
    assert log.empty()


def permissions(root: Path) -> None:
    write_files(root, skills("one", "two/three", "four/five", "six/seven"))
    (root / "two").chmod(0)
    (root / "four").chmod(0o444)
    try:
        with watching(root) as (registry, listener):
            assert serves("one", "six/seven")(registry)
            for name in ("two", "four"):
                (root / name).chmod(0o755)
            listener.until(serves("four/five", "one", "six/seven", "two/three"))
            for number, path in enumerate(("two/three", "four/five"), 2):
                edit_and_wait(listener, root, path, number)
            (root / "six").chmod(0)
            listener.until(serves("four/five", "one", "two/three"))
            (root / "six").chmod(0o755)
            listener.until(serves("four/five", "one", "six/seven", "two/three"))
            edit_and_wait(listener, root, "six/seven", 2)
            with captured_log() as log:
                root.chmod(0)
                print(log.next())
                root.chmod(0o755)
                edit_and_wait(listener, root, "one", 2)
                edit_and_wait(listener, root, "two/three", 9)
    finally:
        for path in (root, root / "two", root / "four", root / "six"):
            path.chmod(0o755)


def mounts(root: Path) -> None:
    write_files(root, skills("one", "two/three"))
    with watching(root, reconcile=0.5) as (_, listener):
        subprocess.run(["mount", "-t", "tmpfs", "none", root], check=True)
        listener.until(serves())
        write_files(root, skills("inner/four"))
        listener.until(serves("inner/four"))
        subprocess.run(["umount", root], check=True)
        listener.until(serves("one", "two/three"))
        subprocess.run(["mount", "-t", "tmpfs", "none", root / "two"], check=True)
        listener.until(serves("one"))
        write_files(root, skills("two/five"))
        listener.until(serves("one", "two/five"))
        subprocess.run(["umount", root / "two"], check=True)
        listener.until(serves("one", "two/three"))
        edit_and_wait(listener, root, "two/three", 2)


def run_scenario(file: str, scenario: str, root: Path, *arguments: str, by: list[str]) -> list[str]:
    """Run a function of a test file in a process that `by` confines; return the printed lines."""
    command = [*by, sys.executable, "-W", "error", file, scenario, str(root), *arguments]
    environment = os.environ | {"PYTHONPATH": str(TESTS), "HOME": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@needs_namespace
@pytest.mark.parametrize(("name", "number", "limit"), [
    ("max_inotify_watches", "3", "fs.inotify.max_user_watches is 3"),
    ("max_inotify_instances", "0", "fs.inotify.max_user_instances is 0"),
])  # fmt: skip
def test_folders_are_polled_while_the_system_gives_no_events(
    tmp_path: Path, name: str, number: str, limit: str
) -> None:
    first, second = run_scenario(__file__, "limited", tmp_path, name, number, by=NAMESPACE)
    for words in (limit, "sysctl", "polled about once a second"):
        assert words in first
    assert "file events work again" in second


@needs_namespace
def test_limit_that_new_directories_reach_is_logged(tmp_path: Path) -> None:
    first, second = run_scenario(__file__, "limit_reached", tmp_path, by=NAMESPACE)
    assert "fs.inotify.max_user_watches is 5" in first
    assert "file events work again" in second


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_directory_is_watched_again_once_it_may_be_read_again(tmp_path: Path) -> None:
    by: list[str] = []
    if os.geteuid() == 0:
        rights = "-dac_override,-dac_read_search"
        by = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
        if not can_run(*by, "true"):
            pytest.skip("root cannot give up its rights here")
    assert "the root cannot be read" in "".join(run_scenario(__file__, "permissions", tmp_path, by=by))


@needs_namespace
def test_mounts_and_unmounts_are_noticed(tmp_path: Path) -> None:
    assert run_scenario(__file__, "mounts", tmp_path, by=NAMESPACE) == []


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
