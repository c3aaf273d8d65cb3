"""Switched-off skills of a folder, listed in `skills-off.txt` in the root, one a line.

Every command and server that reads the folder stops serving them. The page writes the file; people
may, too.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Final

from mcp_skills_server.durable import read_regular, replace_file
from mcp_skills_server.errors import REPEATS, RequestError

logger = logging.getLogger(__name__)

SWITCHES: Final = "skills-off.txt"
_HEAD: Final = "# Folders of skills that are switched off, one a line.\n"
_MAX_BYTES: Final = 1 << 20
_lock = threading.Lock()
"""Serializes the changes of a file by this process."""


def switched_off(root: str, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the folders of switched-off skills in `root`; `known` if the file is unreadable."""
    try:
        return _read(root)
    except OSError as error:
        text = "%s: cannot be read (%s); what it switched off before stays off (skills: %d)"
        file = os.path.join(root, SWITCHES)
        if os.path.lexists(file):  # the root itself may be unreadable, which the scan reports
            logger.warning(text, file, error.strerror, len(known), extra=REPEATS)
        return known


def _read(root: str) -> frozenset[str]:
    try:
        raw, _ = read_regular(os.path.join(root, SWITCHES), _MAX_BYTES)
    except FileNotFoundError:
        return frozenset()
    if b"\0" in raw:
        raise OSError(errno.EILSEQ, "not UTF-8")
    lines = (line.strip().strip("/") for line in raw.decode("utf-8-sig", "replace").splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


def switch(root: str, location: str, *, on: bool) -> None:
    """Switch the skill in a folder on or off; the file loses its comments.

    Raises:
        RequestError: the file cannot be read or written, or has no line for such a folder.
    """
    file = Path(root, SWITCHES)
    # the file has one folder a line, in UTF-8, and `_read` strips a line and skips comments
    lines = location.encode("utf-8", "replace").decode().splitlines()
    if lines != [location] or location != location.strip() or location.startswith("#"):
        raise RequestError(f"{SWITCHES} cannot name this folder; rename the folder first.")
    try:
        with _lock:
            off = _read(root) - {location}
            if not on:
                off |= {location}
            if off:
                text = _HEAD + "".join(f"{directory}\n" for directory in sorted(off))
                replace_file(file, text.encode(), None)
            else:
                file.unlink(missing_ok=True)
    except OSError as error:
        raise RequestError(f"{SWITCHES} cannot be changed ({error.strerror}).") from None
