"""The conformance suite: its scenarios for skills, and all that it asks of a revision of the protocol."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from tools.interop.checks import Check, parse_checks
from tools.interop.installation import CONFORMANCE
from tools.interop.places import MODULES, NODE
from tools.interop.processes import call
from tools.interop.server import ERAS

SCENARIOS: Final = {
    "sep-2640-skills-enumeration": 32,
    "sep-2640-skills-directory": 7,
    "sep-2640-skills-manifest": 6,
}
"""The conformance scenarios for skills, and how many checks each has: fewer would mean that it gave up half-way."""
MAY_SKIP: Final = {
    "legacy": frozenset({"sep-2640-skills-list-cache-attributes", "sep-2640-skills-get-cache-attributes"}),
    "modern": frozenset[str](),
}
"""The only checks for skills that may be skipped: these attributes begin with 2026-07-28."""
_RESULTS = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[0-9-]+Z")


def scenario_of(directory: str) -> str | None:
    """The scenario whose results are in a directory of this name."""
    found = _RESULTS.fullmatch(directory)
    return found[1] if found else None


def required_scenarios(raw: Mapping[str, Any]) -> set[str]:
    """The server scenarios of a requirement set, scored or not."""
    extra = {each["scenario"] for each in raw.get("not_scored") or () if each["leg"] == "server"}
    return set(raw["server"]) | extra


def not_run(scenarios: Iterable[str], checks: Iterable[Check]) -> list[Check]:
    """A failure for each scenario that left no check behind."""
    seen = {check.scenario for check in checks}
    return [Check(each, "ran", "FAILURE", "no result") for each in sorted(set(scenarios) - seen)]


def too_few(checks: Sequence[Check], scenario: str, least: int) -> list[Check]:
    """A failure if a scenario has fewer checks than it should."""
    seen = len({check.id for check in checks})
    return [Check(scenario, "every check", "FAILURE", f"{seen} of {least} checks")] if seen < least else []


def _conformance(url: str, *arguments: str) -> list[Check]:
    """Run the conformance suite and read every check that it wrote."""
    program = MODULES / CONFORMANCE / "dist" / "index.js"
    with tempfile.TemporaryDirectory() as directory:
        # 1 says that a check failed; which ones, and whether that is a surprise, is for us to find.
        call([str(NODE), str(program), "server", "--url", url, "-o", directory, *arguments], good=(0, 1))
        checks: list[Check] = []
        for path in sorted(Path(directory).glob("*/checks.json")):
            if scenario := scenario_of(path.parent.name):
                checks += parse_checks(scenario, json.loads(path.read_text(encoding="utf-8")))
    return checks


def skills_scenarios(url: str, era: str) -> list[Check]:
    """The conformance scenarios for skills in one era."""
    checks: list[Check] = []
    for scenario, least in SCENARIOS.items():
        seen = _conformance(url, "--scenario", scenario, "--spec-version", ERAS[era], "--force")
        checks += [*seen, *too_few(seen, scenario, least)]
    return checks


def base_suite(url: str, era: str) -> list[Check]:
    """Everything that a revision of the protocol asks of a server."""
    path = MODULES / CONFORMANCE / "requirements" / f"{ERAS[era]}.yaml"
    wanted = required_scenarios(yaml.safe_load(path.read_text(encoding="utf-8")))
    checks = _conformance(url, "--requirements", ERAS[era])
    return [*checks, *not_run(wanted, checks)]
