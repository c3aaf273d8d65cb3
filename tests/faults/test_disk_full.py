"""A disk that is full: one line that says so, nothing half done, and all goes on once there is space."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from catalog.watch.test_watcher_limits import NAMESPACE, TESTS, _can

pytestmark = pytest.mark.skipif(
    not _can(*NAMESPACE, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"),
    reason="no user namespace to mount a small disk in",
)


@pytest.mark.parametrize(
    "scenario",
    [
        "fetching",
        "publishing",
        "publishing_without_memory",
        "installing",
        "beginning",
        "caching",
        "setting_aside",
        pytest.param("running", marks=pytest.mark.needs_program("bwrap")),
    ],
)
def test_a_full_disk_costs_what_does_not_fit_and_nothing_else(scenario: str, tmp_path: Path) -> None:
    command = [*NAMESPACE, sys.executable, "-W", "error", str(TESTS / "faults" / "full.py"), scenario, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(TESTS), "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
