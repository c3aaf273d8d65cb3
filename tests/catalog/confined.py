"""Run by watch/test_watcher_limits.py in a process of its own, with limits or rights that no test runner has.

Prints what was logged. Fails when what should be noticed is not.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from catalog.following import edit, hearing, serves, version, watching
from catalog.forest import plant, skills

LIMITS = Path("/proc/sys/user")


def limit(root: Path, name: str, number: str) -> None:
    """Too low a limit of this user namespace, and then the old one again."""
    file = LIMITS / name
    before = file.read_text()
    file.write_text(number)
    plant(root, skills("one", "two/three", "four"))
    with hearing() as heard, watching(root, again=0.3) as (_, seen):
        print(heard.next())
        edit(root, "one", 2)
        seen.until(version("one", 2))
        plant(root, skills("five"))
        seen.until(serves("five", "four", "one", "two/three"))
        shutil.rmtree(root / "four")
        seen.until(serves("five", "one", "two/three"))
        file.write_text(before)
        print(heard.next())
        edit(root, "one", 3)
        seen.until(version("one", 3))
    assert heard.records.empty()


def reached(root: Path) -> None:
    """A limit that is reached while the watch goes on."""
    plant(root, skills("one", "two/three"))
    (LIMITS / "max_inotify_watches").write_text("5")
    with hearing() as heard, watching(root, again=0.3) as (_, seen):
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
    """Directories that may not be read for a while: at the start, later, and the root itself."""
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
    """File systems that are mounted over the root and over a directory in it, and taken away again."""

    def run(*command: str) -> None:
        status = os.spawnvp(os.P_WAIT, command[0], command)
        assert status == 0, command

    plant(root, skills("one", "two/three"))
    with watching(root, reconcile=0.5) as (_, seen):
        run("mount", "-t", "tmpfs", "none", str(root))
        seen.until(serves())
        plant(root, skills("inner/four"))
        seen.until(serves("inner/four"))
        run("umount", str(root))
        seen.until(serves("one", "two/three"))
        run("mount", "-t", "tmpfs", "none", str(root / "two"))
        seen.until(serves("one"))
        plant(root, skills("two/five"))
        seen.until(serves("one", "two/five"))
    with watching(root, reconcile=0.5) as (_, seen):
        run("umount", str(root / "two"))
        seen.until(serves("one", "two/three"))
        edit(root, "two/three", 2)
        seen.until(version("two/three", 2))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
