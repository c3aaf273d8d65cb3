"""`--quick` of the benchmarks of whole commands: a small round with real processes, and fewer of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wire import DEADLINE, ROOT


@pytest.mark.parametrize(("bench", "rounds"), [("validate", "1"), ("fetch", "2")])
def test_a_quick_run_has_fewer_rounds(bench: str, rounds: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{bench}", "--quick", "--size", "3"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert {tuple(row[2:4]) for row in rows[2:]} == {("3", rounds)}
