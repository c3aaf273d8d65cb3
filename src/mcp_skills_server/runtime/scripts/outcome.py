"""What came of a run: what the script did, and what the server has to remark on it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Final, Literal

from mcp_skills_server.dialects.runtime.words import WORKSPACE
from mcp_skills_server.model import Json
from mcp_skills_server.runtime.scripts.advice import advice
from mcp_skills_server.runtime.scripts.output_files import OutputFile
from mcp_skills_server.runtime.scripts.processes import Ended
from mcp_skills_server.runtime.scripts.sandbox import Bubblewrap

OURS: Final = "mcp-skills-server:"
"""What the lines of stderr begin with that the server has added."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a script did.

    Attributes:
        path: the script's path in the skill.
        exit_code: its exit code; 128 and the number of the signal that ended it; 127 when it could not be started;
            None when the server ended it.
        stdout: what it wrote, with U+FFFD for what is not UTF-8.
        stderr: likewise; the server's own remarks are lines at its end that begin with `mcp-skills-server:`.
        duration_ms: how long it ran.
        timed_out: the server ended it because its time was over.
        stdout_truncated: it wrote more than is kept.
        stderr_truncated: likewise.
        sandbox: what it ran in.
        user: the number of the user that it was to the kernel; None where there are none.
        sandbox_gaps: what of a whole sandbox this machine does not have, in words.
        files: files of the work directory that are new or changed since it began.
        files_not_shown: how many more of them there are.
    """

    path: str
    exit_code: int | None
    stdout: str
    stderr: str
    duration_ms: int
    timed_out: bool
    stdout_truncated: bool
    stderr_truncated: bool
    sandbox: Literal["bubblewrap", "none"]
    user: int | None = None
    sandbox_gaps: tuple[str, ...] = ()
    files: tuple[OutputFile, ...] = ()
    files_not_shown: int = 0

    def as_json(self) -> dict[str, Json]:
        """The same JSON-safe, with files as they are read again."""
        files: list[Json] = [{"path": WORKSPACE + each.path, "size": each.size} for each in self.files]
        return {**asdict(self), "sandbox_gaps": [*self.sandbox_gaps], "files": files}


def outcome_of(
    path: str, ended: Ended, remarks: str, sandbox: Bubblewrap | None, files: tuple[tuple[OutputFile, ...], int]
) -> Outcome:
    """The outcome of a run.

    Args:
        path: the script's path.
        ended: what it did.
        remarks: lines of the server's own, for the end of stderr.
        sandbox: what it ran in; None for none.
        files: the files that it left, and how many more there are.
    """
    between = "\n" if remarks and ended.stderr and not ended.stderr.endswith("\n") else ""
    owner = None if sandbox is None else sandbox.user
    return Outcome(
        path,
        ended.exit_code,
        ended.stdout,
        f"{ended.stderr}{between}{remarks}",
        ended.duration_ms,
        ended.timed_out,
        ended.stdout_truncated,
        ended.stderr_truncated,
        "none" if sandbox is None else "bubblewrap",
        _user() if owner is None else owner,
        () if sandbox is None else sandbox.gaps,
        *files,
    )


def remarks_on(ended: Ended, reason: str | None, timeout_s: float, *, network_closed: bool) -> list[str]:
    """What to add to the stderr of a script, without the beginning and end of lines.

    Args:
        ended: what it did.
        reason: why the server ended it before its time, if it did.
        timeout_s: its time limit.
        network_closed: whether scripts have no network here.
    """
    remarks: list[str] = []
    if ended.timed_out:
        remarks.append(f"the script was ended after its time limit of {timeout_s:g} s")
    if ended.stopped:
        remarks.append(f"the script was ended because {reason}")
    if ended.exit_code:
        remarks += advice(ended.stderr, network_closed=network_closed)
    return remarks


def as_line(remark: str) -> str:
    """A remark of the server as a line of stderr."""
    return f"{OURS} {remark}\n"


def _user() -> int | None:
    return os.geteuid() if hasattr(os, "geteuid") else None
