"""The result of a run, with the server's remarks and its advice on common failures."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Final, Literal

from mcp_skills_server.dialects.runtime.words import WORKSPACE
from mcp_skills_server.model import Json
from mcp_skills_server.runtime.scripts.output_files import OutputFile, OutputFiles
from mcp_skills_server.runtime.scripts.processes import ProcessResult
from mcp_skills_server.runtime.scripts.sandbox import Bubblewrap

OURS: Final = "mcp-skills-server:"
"""The prefix of lines that the server adds to stderr."""
_END: Final = 16 << 10
"""The last characters of stderr that are searched for errors, which come last."""
_NETWORK: Final = re.compile(
    r"Network is unreachable|Temporary failure in name resolution|Name or service not known"
    r"|Could not resolve host|EAI_AGAIN|ENETUNREACH|ENOTFOUND|No address associated with hostname"
    r"|unable to resolve host address"
)
_MODULE: Final = re.compile(
    r"No module named '?([\w.]{1,100})|Cannot find (?:module|package) '([^'\n]{1,100})'"
    r"|cannot load such file -- (\S{1,100})|Can't locate (\S{1,100}) in @INC"
)
_PROGRAM: Final = re.compile(
    r"(?:^|: )([\w.+-]{1,64}): (?:command )?not found$"
    r"|No such file or directory: '([\w+-]{1,64}(?:\.\d{1,4}){0,3})'$",  # not data.csv
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a script.

    `stdout` and `stderr` have U+FFFD for bytes that are not UTF-8. The server's remarks are lines
    at the end of `stderr` with the prefix `mcp-skills-server:`.
    """

    path: str
    exit_code: int | None  # as that of `ProcessResult`
    stdout: str
    stderr: str
    duration_ms: int
    timed_out: bool
    stdout_truncated: bool
    stderr_truncated: bool
    sandbox: Literal["bubblewrap", "none"]
    user: int | None = None  # the user id in the kernel; None on systems without user ids
    sandbox_gaps: tuple[str, ...] = ()  # messages about features that this machine lacks
    files: tuple[OutputFile, ...] = ()  # new or changed in the work directory since the start
    files_not_shown: int = 0  # the number of further such files

    def as_json(self) -> dict[str, Json]:
        """Return the outcome as JSON, with file paths in the form that the read tool takes."""
        files: list[Json] = [
            {"path": WORKSPACE + file.path, "size": file.size} for file in self.files
        ]
        return {**asdict(self), "sandbox_gaps": [*self.sandbox_gaps], "files": files}


def outcome_of(
    path: str, ended: ProcessResult, remarks: str, sandbox: Bubblewrap | None, files: OutputFiles
) -> Outcome:
    """Return the outcome of a run, with the server's remarks appended to stderr."""
    between = ""
    if remarks and ended.stderr and not ended.stderr.endswith("\n"):
        between = "\n"
    user, kind, gaps = None, "none", ()
    if sandbox is not None:
        user, kind, gaps = sandbox.user, "bubblewrap", sandbox.gaps
    if user is None and hasattr(os, "geteuid"):
        user = os.geteuid()
    return Outcome(
        path,
        ended.exit_code,
        ended.stdout,
        f"{ended.stderr}{between}{remarks}",
        ended.duration_ms,
        ended.timed_out,
        ended.stdout_truncated,
        ended.stderr_truncated,
        kind,
        user,
        gaps,
        files.listed,
        files.others,
    )


def remarks_on(
    ended: ProcessResult, reason: str | None, timeout_s: float, *, network_closed: bool
) -> list[str]:
    """Return the server's remarks on a run; `reason` is why the server stopped it, if it did."""
    remarks: list[str] = []
    if ended.timed_out:
        remarks.append(f"the script was ended after its time limit of {timeout_s:g} s")
    if ended.stopped:
        remarks.append(f"the script was ended because {reason}")
    if ended.exit_code:
        remarks += advice(ended.stderr, network_closed=network_closed)
    return remarks


def as_line(remark: str) -> str:
    """Format a remark of the server as a line of stderr."""
    return f"{OURS} {remark}\n"


def advice(stderr: str, *, network_closed: bool) -> list[str]:
    """Return lines of advice on the network, package and program errors in stderr."""
    end = stderr[-_END:]
    lines: list[str] = []
    if network_closed and _NETWORK.search(end):
        lines.append(
            "scripts have no network here; the operator of this server can allow it with "
            "--script-network"
        )
    module, program = _MODULE.search(end), _PROGRAM.search(end)
    if module:
        lines.append(
            f"the package {_first(module)} is missing; the operator of this server can name a "
            "program that has it, such as the Python of a virtual environment, with "
            "--interpreter .EXT=PROGRAM"
        )
    elif program:
        lines.append(
            f"the program {_first(program)} is not available to scripts; they see only the "
            "system's programs, so the operator of this server must install it for all users"
        )
    return lines


def _first(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group)
