"""What came of a run: the `Run` of one that has ended or was not begun. Nothing that runs is imported here."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, cast

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.skills_protocol.results import Run
from mcp_skills_server.model import Json
from mcp_skills_server.runtime.scripts.launch import NOT_STARTED

if TYPE_CHECKING:
    from mcp_skills_server.runtime.scripts.outcome import Outcome

BLOBS_OUT: Final = "output_blobs"
"""Where, in the work directory, a run leaves files that are to become blobs."""
MAX_SUMMARY: Final = 200
"""Characters of a summary."""
MAX_RESULT: Final = 1 << 20
"""Bytes of the JSON that a function may return."""
_MAX_LOGS: Final = 4000
_NODE: Final = "Node.js v"


def failed(kind: str, message: str) -> Run:
    """Return a run that was not begun."""
    return Run(_new_id(), message[:MAX_SUMMARY], error=(kind, message))


def ended(
    title: str, outcome: Outcome, result: bytes | None, blobs: tuple[str, ...], *, called: bool, remark: str
) -> Run:
    """Return a run that has ended, well or not.

    Args:
        title: what the summary calls what ran.
        outcome: how its process ended.
        result: what the launcher wrote down, if a function was called and that is there.
        blobs: identifiers of what it left as blobs.
        called: whether a function was called; else it was run as a program, and its output is what it printed.
        remark: appended to its log.
    """
    logs = (outcome.stdout if called else "") + outcome.stderr + remark
    output, error = _returned(result) if called else (_printed(outcome), None)
    last = _reason(outcome.stderr, ours=outcome.exit_code in {None, NOT_STARTED})
    if outcome.timed_out:
        error = ("timeout", "the run was ended after its time limit")
    elif outcome.exit_code == NOT_STARTED and not (called and result is not None):
        error = ("not_started", last or "it could not be started")
    elif outcome.exit_code != 0 and error is None:
        how = "was ended" if outcome.exit_code is None else f"ended with exit code {outcome.exit_code}"
        error = ("execution_failed", last or f"{title} {how}")
    elif called and error is None and result is None:
        error = ("execution_failed", f"it ended without a result, or with one of more than {MAX_RESULT:,} bytes")
    elif not called and outcome.stdout_truncated:
        error = ("output_too_long", f"it printed more than is kept; leave large output as files in {BLOBS_OUT}")
    done = f"{title} completed in {outcome.duration_ms} ms."
    summary = done if error is None else " ".join(error[1].split())[:MAX_SUMMARY] or error[0]
    return Run(_new_id(), summary, None if error else output, blobs, logs[-_MAX_LOGS:], error)


def _new_id() -> str:
    return f"run_{secrets.token_hex(8)}"


def _returned(result: bytes | None) -> tuple[Json, tuple[str, str] | None]:
    """Return the output that the launcher wrote down, and the error."""
    if result is None:
        return None, None
    try:
        report = jsonrpc.parse(result)
        if isinstance(report, dict):
            fields = cast(dict[str, Any], report)
            error = fields.get("error")
            if isinstance(error, dict):
                of = cast(dict[str, Any], error)
                return None, (str(of.get("type"))[:MAX_SUMMARY], str(of.get("message"))[:_MAX_LOGS])
            if "output" in fields:
                return cast(Json, fields["output"]), None
    except jsonrpc.JsonError:
        pass
    return None, ("execution_failed", "what the entry point left as its result cannot be read")


def _printed(outcome: Outcome) -> Json:
    """Return what a program printed: JSON if it is JSON, else text."""
    try:
        return cast(Json, jsonrpc.parse(outcome.stdout.encode("utf-8", "replace")))
    except jsonrpc.JsonError:
        return outcome.stdout


def _reason(stderr: str, *, ours: bool) -> str:
    """The line that says why: the last one that is neither indented, as in a stack of calls, nor Node's last line."""
    from mcp_skills_server.runtime.scripts.outcome import OURS  # what ran has imported it

    lines = stderr.splitlines()
    if not ours:  # advice is no reason
        lines = [line for line in lines if not line.startswith(OURS)]
    lines = [line.rstrip() for line in lines if line.strip() and not line.startswith(_NODE)]
    plain = [line for line in lines if not line[0].isspace()]
    return next(reversed(plain or lines), "").strip()[:_MAX_LOGS]
