"""A copy of the tree in which the source is changed and tests are run: what `mutants` and `threats` are made of."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import venv
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = Path("src") / "mcp_skills_server"
# One test after the other and no xdist: the order is the same each time.
OPTIONS: Final = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-seed=0")
"""What pytest is started with in a copy."""
_SKIPPED: Final = {
    *(".git", ".venv", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis", ".interop", ".hosts"),
    *(".peers", ".site"),
}


class Bench:
    """A copy of the tree in which changes are made, with a virtual environment whose first folder is the copy's."""

    def __init__(self, place: Path) -> None:
        self.tree = place / "tree"
        self._said = place / "said"
        shutil.copytree(ROOT, self.tree, symlinks=True, ignore=lambda _, names: _SKIPPED.intersection(names))
        venv.create(self.tree / ".venv", symlinks=True, with_pip=False)
        folders = self.tree / "src", sysconfig.get_path("purelib")
        own = next((self.tree / ".venv").glob("lib/python*/site-packages"))
        (own / "first.pth").write_text("".join(f"{folder}\n" for folder in folders))
        self.python = self.tree / ".venv" / "bin" / "python"
        script = self.python.with_name("mcp-skills-server")
        script.write_text(f"#!{self.python}\nfrom mcp_skills_server.__main__ import main\nmain()\n")
        script.chmod(0o755)

    def passes(self, tests: Sequence[str], timeout: float | None) -> bool | None:
        """Whether these tests pass; None if they do not end in time."""
        with open(self._said, "wb") as said:
            run = subprocess.Popen(
                [self.python, "-m", "pytest", *OPTIONS, *tests],
                cwd=self.tree,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return run.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            return None
        finally:
            if hasattr(os, "killpg"):
                with suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)  # what the tests started and a change kept from ending
            run.wait()

    def failed(self) -> str:
        """The lines of the last run that name what failed."""
        lines = self._said.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if line.startswith(("FAILED", "ERROR", "E  ")))

    @contextmanager
    def changed(self, path: str, made: Callable[[bytes], bytes]) -> Generator[None]:
        """While this is entered a file has the text that `made` makes of its own.

        Args:
            path: the file, from the root of the project.
            made: from the text to the changed one.
        """
        file = self.tree / path
        source = file.read_bytes()
        try:
            _write(file, made(source))
            yield
        finally:
            _write(file, source)


def _write(module: Path, source: bytes) -> None:
    module.write_bytes(source)
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
        compiled.unlink()  # it counts as fresh for a text of the same size and second
