"""Commands that must succeed and lines that must be true, printed as they come."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class ImageError(Exception):
    """Something is not as it should be."""


class Steps:
    """Prints what is done and seen."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def step(self, text: str) -> None:
        """A heading, with the time since the start."""
        print(f"\n[{time.monotonic() - self._begun:5.1f} s] {text}", flush=True)

    def saw(self, text: str) -> None:
        """A line below it."""
        print(f"          {text}", flush=True)

    def check(self, condition: bool, text: str) -> None:
        """A line that must be true.

        Raises:
            ImageError: it is not.
        """
        if not condition:
            raise ImageError(text)
        self.saw(f"ok  {text}")


def run(arguments: Sequence[str | Path], **options: Any) -> str:
    """Run a command and return its stdout; its stderr is shown only when it fails.

    Raises:
        ImageError: it fails.
    """
    done = subprocess.run([str(each) for each in arguments], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        reported = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise ImageError(f"{arguments[0]} failed with {done.returncode}: {' '.join(map(str, arguments))}\n{reported}")
    return done.stdout.strip()
