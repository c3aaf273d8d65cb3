"""Run a command on a `PATH` without some programs: `python tools/without.py bwrap -- make test`.

Each folder of `PATH` that has one of them is replaced by a folder of links to its other files. All other folders stay
unchanged. `PYTHON`, with which `make` builds `.venv`, is the `python3` of the original `PATH`. The exit code is that of
the command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def path_without(names: set[str], path: str, links: Path) -> str:
    """Return this `PATH` without these programs. `links` is a new folder for links to the others."""
    folders: list[str] = []
    for number, folder in enumerate(path.split(os.pathsep)):
        kept = folder
        if any(os.path.lexists(os.path.join(folder, name)) for name in names):
            filtered = links / str(number)
            filtered.mkdir()
            for found in os.listdir(folder):
                if found not in names:
                    (filtered / found).symlink_to(os.path.abspath(os.path.join(folder, found)))
            kept = str(filtered)
        folders.append(kept)
    return os.pathsep.join(folders)


def main(words: list[str]) -> int:
    split = words.index("--") if "--" in words else 0
    names, command = set(words[:split]), words[split + 1 :]
    if not names or not command:
        print("usage: python tools/without.py PROGRAM... -- COMMAND [ARGUMENT]...", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="without-") as links:
        os.chmod(links, 0o755)  # tests start programs as other users
        environment = {**os.environ, "PATH": path_without(names, os.environ["PATH"], Path(links))}
        python = None if "python3" in names else shutil.which("python3")
        if python is not None:
            # `make` builds a virtual environment with it, which must not point into a temporary folder.
            environment.setdefault("PYTHON", python)
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
