"""Scanners of others: a program is run on a folder, and its findings are read from SARIF 2.1.0."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from mcp_skills_server.authoring.programs import run_program, words_of_command
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import Problem, Severity

_OUTPUT: Final = "{output}"
_TIMEOUT_S: Final = 600.0
_NO_FAILURE: Final = (0, 1)
"""With 1 a scanner says that it found something."""
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
    words = words_of_command("--scanner", command)
    with tempfile.TemporaryDirectory(prefix="skills-scan-") as scratch:
        output = Path(scratch, "findings.sarif")
        words = [each.replace(_OUTPUT, str(output)) for each in words]
        raw = run_program([*words, folder], _TIMEOUT_S, fine=_NO_FAILURE)
        if output.exists():
            raw = output.read_bytes()
    try:
        return list(read_sarif(raw, folder, show))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{os.path.basename(words[0])} wrote what is no SARIF 2.1.0 ({clipped(str(error))})") from None


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
