"""What the system refuses: watches, instances, permissions. Under its real limits, in a process of its own.

The scenarios run as a program with limits or rights that no test runner has. Each prints what was logged, and fails
when what should be noticed is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from catalog.following import changes_show, edit, hearing, serves, version, watching
from catalog.forest import DEADLINE, plant, skills
from mcp_skills_server.catalog.watch import watcher as module
from wire import COMMAND, Wire

TESTS = Path(__file__).parent.parent.parent
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
LOWER = 'echo "$2" > /proc/sys/user/$1 && shift 2 && exec "$@"'


@cache
def can(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE).returncode == 0
    except OSError:
        return False


needs_namespace = pytest.mark.skipif(
    not can(*NAMESPACE, "sh", "-c", LOWER, "sh", "max_inotify_watches", "3", "true"),
    reason="no user namespace to lower limits in",
)


LIMITS = Path("/proc/sys/user")


def limit(root: Path, name: str, number: str) -> None:
    file = LIMITS / name
    before = file.read_text()
    file.write_text(number)
    plant(root, skills("one", "two/three", "four"))
    module._RETRY_S = 0.3
    with hearing() as heard, watching(root) as (_, seen):
        print(heard.next())
        changes_show(seen, root, "one", "four", "two/three")
        file.write_text(before)
        print(heard.next())
        edit(root, "one", 3)
        seen.until(version("one", 3))
    assert heard.records.empty()


def reached(root: Path) -> None:
    plant(root, skills("one", "two/three"))
    (LIMITS / "max_inotify_watches").write_text("5")
    module._RETRY_S = 0.3
    with hearing() as heard, watching(root) as (_, seen):
        edit(root, "one", 2)
        seen.until(version("one", 2))
        assert heard.records.empty()
        plant(root, skills("four/five", "six/seven"))
        seen.until(serves("four/five", "one", "six/seven", "two/three"))
        print(heard.next())
        edit(root, "six/seven", 2)
        seen.until(version("six/seven", 2))
        shutil.rmtree(root / "six")
        shutil.rmtree(root / "four")
        print(heard.next())
    assert heard.records.empty()


def permissions(root: Path) -> None:
    plant(root, skills("one", "two/three", "four/five", "six/seven"))
    (root / "two").chmod(0)
    (root / "four").chmod(0o444)
    try:
        with watching(root) as (registry, seen):
            assert serves("one", "six/seven")(registry)
            for name in ("two", "four"):
                (root / name).chmod(0o755)
            seen.until(serves("four/five", "one", "six/seven", "two/three"))
            for number, path in enumerate(("two/three", "four/five"), 2):
                edit(root, path, number)
                seen.until(version(path, number))
            (root / "six").chmod(0)
            seen.until(serves("four/five", "one", "two/three"))
            (root / "six").chmod(0o755)
            seen.until(serves("four/five", "one", "six/seven", "two/three"))
            edit(root, "six/seven", 2)
            seen.until(version("six/seven", 2))
            with hearing() as heard:
                root.chmod(0)
                print(heard.next())
                root.chmod(0o755)
                edit(root, "one", 2)
                seen.until(version("one", 2))
                edit(root, "two/three", 9)
                seen.until(version("two/three", 9))
    finally:
        for path in (root, root / "two", root / "four", root / "six"):
            path.chmod(0o755)


def mounts(root: Path) -> None:
    plant(root, skills("one", "two/three"))
    with watching(root, reconcile=0.5) as (_, seen):
        subprocess.run(["mount", "-t", "tmpfs", "none", root], check=True)
        seen.until(serves())
        plant(root, skills("inner/four"))
        seen.until(serves("inner/four"))
        subprocess.run(["umount", root], check=True)
        seen.until(serves("one", "two/three"))
        subprocess.run(["mount", "-t", "tmpfs", "none", root / "two"], check=True)
        seen.until(serves("one"))
        plant(root, skills("two/five"))
        seen.until(serves("one", "two/five"))
        subprocess.run(["umount", root / "two"], check=True)
        seen.until(serves("one", "two/three"))
        edit(root, "two/three", 2)
        seen.until(version("two/three", 2))


def confined(file: str, scenario: str, root: Path, *arguments: str, by: list[str]) -> list[str]:
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
def test_without_events_the_folders_are_polled_meanwhile(tmp_path: Path, name: str, number: str, limit: str) -> None:
    first, second = confined(__file__, "limit", tmp_path, name, number, by=NAMESPACE)
    assert limit in first and "sysctl" in first and "polled about once a second" in first
    assert "file events work again" in second


@needs_namespace
def test_a_limit_that_new_directories_reach_is_said_too(tmp_path: Path) -> None:
    first, second = confined(__file__, "reached", tmp_path, by=NAMESPACE)
    assert "fs.inotify.max_user_watches is 5" in first
    assert "file events work again" in second


@needs_namespace
@pytest.mark.parametrize(("name", "number"), [("max_inotify_watches", "3"), ("max_inotify_instances", "0")])
def test_without_events_a_client_hears_all_and_the_operator_reads_one_line(
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
        if not can(*by, "true"):
            pytest.skip("root cannot give up its rights here")
    assert "the root cannot be read" in "".join(confined(__file__, "permissions", tmp_path, by=by))


@needs_namespace
def test_what_is_mounted_and_unmounted_is_followed(tmp_path: Path) -> None:
    assert confined(__file__, "mounts", tmp_path, by=NAMESPACE) == []


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
