"""Reports on findings of `validate` in formats of CI systems: GitHub, GitLab, JUnit and SARIF."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree

import mcp_skills_server
from mcp_skills_server.codes import CODES
from mcp_skills_server.model import Problem, printable
from mcp_skills_server.validation import explanations

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "%SRCROOT%"
_ADDRESS: Final = re.compile(r"https?://|mcp\+stdio:")
_GITHUB: Final = {"error": "error", "warning": "warning", "note": "notice"}
_GITLAB: Final = {"error": "major", "warning": "minor", "note": "info"}


def github(problem: Problem) -> str:
    """Return a finding as a GitHub workflow command, which annotates its line."""

    def escaped(text: str, more: str = "") -> str:
        for character in "%\r\n" + more:
            text = text.replace(character, f"%{ord(character):02X}")
        return text

    spots = {"line": problem.line, "col": problem.column}
    spot = "".join(f",{key}={number}" for key, number in spots.items() if number)
    return (
        f"::{_GITHUB[problem.severity]} file={escaped(_path(problem), ':,')}{spot},"
        f"title={escaped(problem.code, ':,')}::{escaped(problem.text)}"
    )


def gitlab(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Return a report in GitLab's code quality format, which needs unique fingerprints."""
    report: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for problem in problems:
        fingerprint = _fingerprint(problem)
        counts[fingerprint] += 1
        if counts[fingerprint] > 1:  # a scanner has the same finding at several lines
            fingerprint += f"-{counts[fingerprint]}"
        finding = {
            "description": problem.text,
            "check_name": problem.code,
            "fingerprint": fingerprint,
            "severity": _GITLAB[problem.severity],
            "location": {"path": _path(problem), "lines": {"begin": problem.line or 1}},
        }
        report.append(finding)
    return report


def junit(problems: Sequence[Problem], skills: Iterable[str], skipped: Collection[str] = ()) -> str:
    """Return JUnit XML: a case for each skill, which fails on an error or a warning.

    Those in `skipped` were not judged.
    """
    by_skill: dict[str, list[Problem]] = {path: [] for path in skills}
    for problem in problems:
        by_skill.setdefault(problem.skill, []).append(problem)
    failed = sum(any(problem.severity != "note" for problem in own) for own in by_skill.values())
    counts = {"name": "skills", "tests": str(len(by_skill)), "failures": str(failed)}
    suite = ElementTree.Element("testsuite", counts)
    for path, own in by_skill.items():
        name = printable(path or "(no skill)")
        case = ElementTree.SubElement(suite, "testcase", classname="skills", name=name)
        faults = [problem for problem in own if problem.severity != "note"]
        if faults:
            failure = ElementTree.SubElement(case, "failure", message=printable(faults[0].text))
            failure.text = "\n".join(map(str, faults))
        if notes := [str(problem) for problem in own if problem.severity == "note"]:
            ElementTree.SubElement(case, "system-out").text = "\n".join(notes)
        if path in skipped:
            ElementTree.SubElement(case, "skipped")
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def sarif(problems: Iterable[Problem], fixed: Mapping[Problem, tuple[str, str]]) -> dict[str, Any]:
    """Return a SARIF 2.1.0 report, with paths relative to `%SRCROOT%`, the working directory.

    `fixed` has the text of a file before and after `--fix`, by the finding that it corrects.
    """
    reported = list(problems)
    codes = sorted({problem.code for problem in reported})
    rules = [_rule(code) for code in codes]
    driver: dict[str, Any] = {
        "name": "mcp-skills-server",
        "version": mcp_skills_server.__version__,
        "rules": rules,
    }
    ordered = [(problem, codes.index(problem.code)) for problem in reported]
    results = [_result(problem, rule, fixed.get(problem)) for problem, rule in ordered]
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _path(problem: Problem) -> str:
    """Return a problem's path as CI systems match it: from the working directory, without `./`."""
    path = problem.path
    if Path(path).is_relative_to(Path.cwd()):
        return os.path.relpath(path)
    return path.removeprefix("./")


def _fingerprint(problem: Problem) -> str:
    """Return a hash of a finding without its line, so that lines added above do not change it."""
    text = "\0".join((problem.code, _path(problem), problem.message))
    return hashlib.sha256(text.encode()).hexdigest()


def _rule(code: str) -> dict[str, Any]:
    row = CODES.get(code)
    if row is None:  # a rule of an external scanner, or of `probe`
        return {"id": code}
    explained = explanations.markdown(code)
    rule: dict[str, Any] = {
        "id": code,
        "shortDescription": {"text": row.hint},
        "help": {"text": explained, "markdown": explained},
        "defaultConfiguration": {"level": row.severity},
    }
    if risk := explanations.OWASP.get(code):
        rule["properties"] = {"tags": ["security", f"external/owasp-{risk.lower()}"]}
    return rule


def _result(problem: Problem, rule: int, fixed: tuple[str, str] | None) -> dict[str, Any]:
    artifact = {"uri": quote(_path(problem).replace("\\", "/")), "uriBaseId": _ROOT}
    if _ADDRESS.match(problem.path):
        artifact = {"uri": problem.path}
    region = {"startLine": problem.line or 1}
    if problem.column is not None:
        region["startColumn"] = problem.column
    location = {"artifactLocation": artifact, "region": region}
    result: dict[str, Any] = {
        "ruleId": problem.code,
        "ruleIndex": rule,
        "level": problem.severity,
        "message": {"text": problem.text},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"skillFinding/v1": _fingerprint(problem)},
    }
    if fixed is not None:
        before, after = fixed
        whole = {"startLine": 1, "startColumn": 1, "endLine": before.count("\n") + 1}
        whole["endColumn"] = len(before) - before.rfind("\n")
        replacement = {"deletedRegion": whole, "insertedContent": {"text": after}}
        changes = [{"artifactLocation": artifact, "replacements": [replacement]}]
        result["fixes"] = [{"description": {"text": problem.hint}, "artifactChanges": changes}]
    return result
