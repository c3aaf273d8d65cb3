"""A program that is run to its end."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.interop.places import CACHE

LONGEST_RUN_S = 180


class RefereeError(Exception):
    """A referee could not be installed or did not do its work."""


def call(
    command: Sequence[str], *, seconds: float = LONGEST_RUN_S, good: Iterable[int] = (0,), home: bool = False
) -> str:
    """Run to the end and return stdout. With `home`, what it remembers stays below `.interop/`.

    Raises:
        RefereeError: it ended otherwise than it should, or not in time.
    """
    # For each thread its own, because a referee that remembers something is alone with it.
    own = CACHE / "home" / threading.current_thread().name
    if home:
        own.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(own)} if home else None
    name = " ".join(Path(part).name for part in command[:3])
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RefereeError(f"{name} ... did not end within {seconds:.0f} s") from None
    if done.returncode not in good:
        raise RefereeError(f"{name} ... ended with {done.returncode}: {(done.stderr or done.stdout)[-1500:].strip()}")
    return done.stdout
