"""Tests that need optional programs: only an absent program skips them, and the summary names it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wire import ROOT

DEADLINE = 120.0
CONFTEST = "from programs import pytest_configure, pytest_runtest_setup, pytest_terminal_summary\n"
TESTS = """
import pytest

@pytest.mark.needs_program("xfrob")
def test_one(): ...

@pytest.mark.parametrize("way", ["with", pytest.param("without", marks=pytest.mark.needs_program("xfrob", "xquux"))])
def test_two(way): ...
"""


def install(folder: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def suite(*arguments: str | Path, path: str, within: Path) -> tuple[int, list[str]]:
    """Run pytest with this `PATH`; return its exit code and last lines.

    It has a temporary folder of its own: from the shared one it would remove, before it ends, what earlier runs left
    there, which may take minutes.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    environment |= {"PATH": path, "PYTHONPATH": str(ROOT / "tests")}
    if within != ROOT:
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins take most of the time
    with tempfile.TemporaryDirectory(prefix="suite-") as temporary:
        command += ["--basetemp", temporary]
        done = subprocess.run(
            command, cwd=within, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n", "2"]])
def test_summary_names_absent_programs_and_skipped_tests(tmp_path: Path, workers: list[str]) -> None:
    """A small suite that uses the mark."""
    own, programs = tmp_path / "own", tmp_path / "bin"
    install(own, "conftest.py", CONFTEST)
    install(own, "test_own.py", TESTS)
    install(programs, "xquux")
    code, lines = suite(*workers, "-ra", "--strict-markers", path=str(programs), within=own)
    assert code == 0 and lines[-1].startswith("1 passed, 2 skipped")
    message = ["xfrob is not installed: all 2 tests that need it were skipped"]
    assert [line for line in lines if "is not installed" in line] == [lines[-2]] == message
    install(programs, "xfrob")
    code, lines = suite(*workers, path=str(programs), within=own)
    assert code == 0 and lines[-1].startswith("3 passed") and not any("not installed" in line for line in lines)


def test_broken_bubblewrap_fails_its_tests(tmp_path: Path) -> None:
    """Only an absent program skips a test; one that does not work fails it."""
    install(tmp_path / "bin", "bwrap", "#!/bin/sh\necho bwrap: no such option >&2\nexit 1\n")
    broken = (
        "tests/runtime/scripts/test_sandbox.py::test_outcome_names_gaps_of_the_sandbox",
        "tests/runtime/scripts/test_sandbox.py::test_certificates_are_present_and_private_keys_absent[setpriv]",
        "tests/runtime/scripts/test_runner.py::test_outcome_has_exit_code_and_output[bubblewrap]",
        "tests/rpc/test_execution.py::test_output_files_of_a_run_become_blobs[required]",
    )
    code, lines = suite(*broken, path=f"{tmp_path / 'bin'}:{os.environ['PATH']}", within=ROOT)
    assert code == 1 and lines[-1].startswith("3 failed, 1 error in "), lines[-12:]


def without(hidden: list[str], code: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run code with these programs hidden."""
    command = [sys.executable, ROOT / "tools" / "without.py", *hidden, "--", sys.executable, "-c", code]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON"} | {"PATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_only_the_named_program_is_hidden(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        install(tmp_path / folder, f"only-{folder}", f"#!/bin/sh\necho {folder}\n")
    for folder in ("a", "b"):
        install(tmp_path / folder, "hidden")
    code = (
        "import os, shutil, subprocess\nprint(os.environ['PATH'].split(':')[2], shutil.which('hidden'))\n"
        "print([subprocess.check_output(['only-' + each]).decode().strip() for each in 'abc'])\nraise SystemExit(7)\n"
    )
    done = without(["hidden"], code, ":".join(str(tmp_path / folder) for folder in ("a", "b", "c")))
    assert (done.returncode, done.stdout) == (7, f"{tmp_path / 'c'} None\n['a', 'b', 'c']\n"), done.stderr


def test_environment_built_while_a_program_is_hidden_stays_valid(tmp_path: Path) -> None:
    for name in ("python3", "hidden"):
        install(tmp_path / "bin", name)
    for hidden, kept in (["hidden"], tmp_path / "bin" / "python3"), (["hidden", "python3"], None):
        done = without(hidden, "import os\nprint(os.environ.get('PYTHON'))\n", str(tmp_path / "bin"))
        assert (done.returncode, done.stdout) == (0, f"{kept}\n"), done.stderr
