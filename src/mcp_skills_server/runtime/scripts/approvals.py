"""The approvals file: an allow-list of fetched skills whose scripts may run, by digest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from mcp_skills_server.directories import state_directory
from mcp_skills_server.durable import read_regular, replace_file, untrusted_reason
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable
from mcp_skills_server.model.decoding import load_json

_MAX_BYTES: Final = 16 << 20
_LAST_MOMENT: Final = 1e11
"""An epoch time in the year 5138, beyond which a date is invalid."""
_LOCK_S: Final = 10.0
"""The timeout of the file lock, in seconds."""


@dataclass(frozen=True, slots=True)
class Approval:
    """An entry of the approvals file: the exact content of a skill whose scripts may run."""

    origin: str  # in the form of `policy.canonical`
    skill: str  # the skill path at the time of approval
    digest: str  # `sha256:` and 64 hex digits over all files
    approved_at: float  # epoch seconds

    @property
    def day(self) -> str:
        """Return the day of the approval, in UTC."""
        return time.strftime("%Y-%m-%d", time.gmtime(self.approved_at))


def default_file() -> Path:
    """Return the path of the default approvals file, in the user's state directory."""
    return state_directory() / "approvals.json"


def read(path: Path) -> tuple[Approval, ...]:
    """Return the approvals in a file; none if the file does not exist.

    Raises:
        UsageError: it is unreadable, invalid, or writable by others.
    """
    try:
        raw, status = read_regular(path, _MAX_BYTES)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _unusable(path, f"cannot be read ({error.strerror}); check it") from None
    if untrusted_reason(status):
        remedy = "chown it to yourself or root, and chmod it to 0600"
        raise _unusable(path, f"others may write it; {remedy}")
    try:
        content = cast(dict[str, Any], load_json(raw))
        if content["version"] != 1:
            raise ValueError(content["version"])
        return tuple(
            Approval(
                str(entry["origin"]),
                str(entry["skill"]),
                str(entry["digest"]),
                _epoch_seconds(entry["approved_at"]),
            )
            for entry in content["approvals"]
        )
    except (ValueError, KeyError, TypeError):
        problem = "this is not an approvals file; give another --approvals"
        raise _unusable(path, problem) from None


def _unusable(path: Path, problem: str) -> UsageError:
    return UsageError(f"{printable(str(path))}: {problem}")


def _epoch_seconds(value: Any) -> float:
    """Return the value as epoch seconds; raise ValueError if no date can show it."""
    if not 0 <= float(value) < _LAST_MOMENT:
        raise ValueError
    return float(value)


def update(path: Path, edit: Callable[[tuple[Approval, ...]], Sequence[Approval]]) -> None:
    """Apply `edit` to the approvals of a file atomically, under a lock against lost updates.

    The file and the lock file beside it have mode 0600.

    Raises:
        UsageError: the file cannot be read or written, or another process keeps it locked.
    """
    from filelock import FileLock, Timeout  # late: a server only reads, and starts faster

    path = path.resolve()  # changes the target of a symlink, and keeps the link
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_LOCK_S, mode=0o600):
            approvals = [asdict(approval) for approval in edit(read(path))]
            text = json.dumps({"version": 1, "approvals": approvals}, indent=1)
            replace_file(path, text.encode(), 0o600)
    except Timeout:
        raise _unusable(path, "another process is changing it; try again") from None
    except OSError as error:
        problem = f"cannot be written ({error.strerror}); give another --approvals"
        raise _unusable(path, problem) from None
