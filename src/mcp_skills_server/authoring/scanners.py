"""External scanners of a folder, which print their findings in SARIF 2.1.0."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from mcp_skills_server.authoring.programs import MAX_OUTPUT, parse_command, run_program
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import Problem, Severity
from mcp_skills_server.model.decoding import load_json

_OUTPUT: Final = "{output}"
_SCAN_S: Final = 600.0
_OK_CODES: Final = (0, 1)
"""Exit codes of a successful scan; 1 means that there are findings."""
_LEVELS: Final[dict[str, Severity]] = {
    "error": "error",
    "warning": "warning",
    "note": "note",
    "none": "note",
}
_NO_FINDING: Final = ("pass", "notApplicable")
"""Kinds of SARIF results that tell that nothing was found."""


def scan(command: str, folder: str, show: Callable[[str], str]) -> list[Problem]:
    """Run a scanner on a folder and return its findings.

    Args:
        command: the program with its arguments, in the quoting of a shell. The folder is appended;
            `{output}` stands for the SARIF file to write, without it stdout is read.
        folder: the folder, absolute.
        show: returns a path below the folder as the operator would type it.

    Raises:
        UsageError: the program does not exist or fails, or its output is not SARIF.
    """
    words = parse_command("--scanner", command)
    with tempfile.TemporaryDirectory(prefix="skills-scan-") as scratch:
        output = Path(scratch, "findings.sarif")
        words = [word.replace(_OUTPUT, str(output)) for word in words]
        raw = run_program([*words, folder], _SCAN_S, ok_codes=_OK_CODES)
        try:
            if output.exists():
                raw, _ = read_regular(output, MAX_OUTPUT)
            return list(_read_sarif(raw, folder, show))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"did not write valid SARIF 2.1.0 ({clipped(str(error))})"
            raise UsageError(f"{os.path.basename(words[0])} {reason}") from None


def _read_sarif(raw: bytes, folder: str, show: Callable[[str], str]) -> Iterator[Problem]:
    """Yield the findings of a SARIF log that are not suppressed there."""
    log: dict[str, Any] = load_json(raw)
    for run in cast("list[dict[str, Any]]", log["runs"]):
        driver = run["tool"]["driver"]
        name = str(driver["name"])
        known = cast("list[dict[str, Any]]", driver.get("rules") or [])
        rules: dict[Any, dict[str, Any]] = {rule["id"]: rule for rule in known}
        for result in cast("list[dict[str, Any]]", run.get("results") or []):
            if result.get("suppressions") or result.get("kind") in _NO_FINDING:
                continue
            level = _level(result, rules.get(result.get("ruleId")) or {})
            code = f"{name}/{result.get('ruleId') or 'finding'}"
            path, line = _place(result, folder)
            message = str(result["message"].get("text") or code)
            yield Problem(code, level, " ".join(message.split()), "", line, show(path))


def _level(result: dict[str, Any], rule: dict[str, Any]) -> Severity:
    """Return the severity of a finding: its own, or the default of its kind or rule."""
    level: Any = result.get("level")
    if not level and result.get("kind", "fail") != "fail":
        level = "none"
    default: dict[str, Any] = rule.get("defaultConfiguration") or {}
    level = level or default.get("level")
    return _LEVELS.get(str(level), "warning")


def _place(result: dict[str, Any], folder: str) -> tuple[str, int | None]:
    """Return the path in the folder and the line of a finding; "" for one without a place."""
    locations: list[dict[str, Any]] = result.get("locations") or []
    if not locations:
        return "", None
    physical: dict[str, Any] = locations[0].get("physicalLocation") or {}
    region: dict[str, Any] = physical.get("region") or {}
    artifact: dict[str, Any] = physical.get("artifactLocation") or {}
    line: Any = region.get("startLine")
    if not isinstance(line, int):
        line = None
    path = unquote(urlsplit(str(artifact.get("uri") or "")).path)
    for base in (folder, os.getcwd()):
        inside = os.path.relpath(os.path.join(base, path), folder)
        is_below = inside != "." and not inside.startswith("..")
        if is_below and os.path.lexists(os.path.join(folder, inside)):
            return inside.replace(os.sep, "/"), line
    return "", None
