"""Scanners of others: a program is run on a folder, and its findings are read from SARIF 2.1.0."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import Problem, Severity, printable

_OUTPUT: Final = "{output}"
_TIMEOUT_S: Final = 600.0
_MOST_BYTES: Final = 64 << 20
_FAILED: Final = 2
"""From this exit code on a scanner failed; 1 says that it found something."""
_LEVELS: Final[dict[str, Severity]] = {"error": "error", "warning": "warning", "note": "note", "none": "note"}


def scan(command: str, folder: str, show: Callable[[str], str]) -> list[Problem]:
    """Run a scanner on a folder and return what it finds.

    Args:
        command: the program with its arguments, in the quoting of a shell; no shell runs it. The folder is added at
            the end; `{output}` stands for a file that it writes SARIF to, else it writes to stdout.
        folder: the folder, absolute.
        show: returns a place below the folder as the operator would type it.

    Raises:
        UsageError: there is no such program, it failed, or what it wrote is no SARIF.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--scanner {command}: cannot be taken apart ({error}); close the quotation mark") from None
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise UsageError(f"--scanner {command}: there is no such program; install it, or give its path")
    with tempfile.TemporaryDirectory(prefix="skills-scan-") as scratch:
        output = Path(scratch, "findings.sarif")
        arguments = [each.replace(_OUTPUT, str(output)) for each in words[1:]]
        try:
            ended = subprocess.run(  # noqa: S603 - the operator names the program, and no shell runs it
                [program, *arguments, folder], capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"the scanner {words[0]} did not end within {_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise UsageError(f"the scanner {words[0]} could not be started ({error.strerror})") from None
        if ended.returncode >= _FAILED or ended.returncode < 0:
            lines = ended.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing on stderr"]
            raise UsageError(f"the scanner {words[0]} failed with {ended.returncode}: {clipped(printable(lines[-1]))}")
        raw = output.read_bytes() if output.exists() else ended.stdout
    try:
        return list(read_sarif(raw[:_MOST_BYTES], folder, show))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"the scanner {words[0]} wrote what is no SARIF 2.1.0 ({clipped(str(error))})") from None


def read_sarif(raw: bytes, folder: str, show: Callable[[str], str]) -> Iterator[Problem]:
    """Yield the findings of a SARIF log that are not suppressed there.

    Raises:
        ValueError: it is none; so are the other errors of reading a value that is not there.
    """
    log: dict[str, Any] = json.loads(raw)
    for run in cast("list[dict[str, Any]]", log["runs"]):
        name = str(run["tool"]["driver"]["name"])
        for result in cast("list[dict[str, Any]]", run.get("results") or []):
            if result.get("suppressions"):
                continue
            level = _LEVELS.get(str(result.get("level") or "warning"), "warning")
            code = f"{name}/{result.get('ruleId') or 'finding'}"
            place, line = _place(result, folder)
            message = str(result["message"].get("text") or code)
            yield Problem(code, level, " ".join(message.split()), "", line, show(place) if place else show(""))


def _place(result: dict[str, Any], folder: str) -> tuple[str, int | None]:
    """Return where in the folder a finding lies, "" for nowhere in particular, and its line."""
    locations: list[dict[str, Any]] = result.get("locations") or []
    if not locations:
        return "", None
    physical: dict[str, Any] = locations[0].get("physicalLocation") or {}
    region: dict[str, Any] = physical.get("region") or {}
    artifact: dict[str, Any] = physical.get("artifactLocation") or {}
    line: Any = region.get("startLine")
    path = unquote(urlsplit(str(artifact.get("uri") or "")).path)
    for base in (folder, os.getcwd()):
        inside = os.path.relpath(os.path.join(base, path), folder)
        if not inside.startswith("..") and os.path.lexists(os.path.join(folder, inside)):
            return inside.replace(os.sep, "/"), line if isinstance(line, int) else None
    return "", None
