"""`evaluate --outputs`: what skills change in a model's outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from mcp_skills_server.authoring import lift
from mcp_skills_server.authoring.lift import GradedRun, OutputEval, OutputJudge
from mcp_skills_server.catalog.bundle import without_nested
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.fields import count, flag, option, text
from mcp_skills_server.commands.opening import load_registry
from mcp_skills_server.commands.options import RootOptions
from mcp_skills_server.commands.printing import remark, say, say_json, say_table
from mcp_skills_server.durable import replace_file
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import EVALS, Skill, Standing
from mcp_skills_server.proposals.intake import files_of
from mcp_skills_server.provenance.difference import Files

_EVALS_FILE = f"{EVALS}evals.json"


class OutputOptions(RootOptions, heading="Outputs"):
    outputs: bool = flag(
        "With --judge: do the prompts of evals/evals.json with each skill, without it and with its "
        "last version, and grade the outputs by their assertions. Exit with 1 if a skill harms."
    )
    against: str | None = text(
        "With --outputs: the root of the last version, in place of git's.",
        "PATH",
        type=click.Path(exists=True),
    )
    max_calls: int = count(
        200, "With --outputs: refuse to begin if more runs of the judge are needed."
    )
    max_usd: float | None = option(
        None,
        "With --outputs: begin no run once the judge has reported this cost.",
        type=click.FloatRange(min=0, min_open=True),
        metavar="USD",
    )
    benchmark: str | None = text(
        "With --outputs: the folder for DIR/SKILL/benchmark.json, in skill-creator's form.",
        "DIR",
        type=click.Path(file_okay=False),
    )


def evaluate_outputs(
    options: OutputOptions,
    registry: Registry,
    judge: OutputJudge,
    answers: Index,
    *,
    runs: int,
    form: Literal["table", "json"],
) -> int:
    """Measure each skill that has evals, print the results, and return the exit code.

    Raises:
        UsageError: no skill has evals, they need too many runs, or the judge fails.
    """
    folder = _benchmark_folder(options, registry)
    planned = _planned(options, registry, runs)
    slots = [slot for plan in planned for slot in plan.slots]
    gradings = iter(judge.grade([(question, number) for *_, question, number in slots]))
    reports: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    for plan in planned:
        results = [
            GradedRun(of_eval, configuration, number, next(gradings))
            for of_eval, configuration, _, number in plan.slots
        ]
        lift.remember(answers, plan.files, lift.notes(results))
        skill = plan.skill
        report = lift.benchmark(skill.name, registry.place(skill), results, runs)
        reports.append(report)
        rows += _rows(skill.path, results)
        if folder is not None:
            _write(folder / skill.path / "benchmark.json", report)
    if form == "json":
        usage = {"cost_usd": judge.cost_usd, "judge_runs": judge.program_runs}
        say_json({"benchmarks": reports, **usage})
    else:
        say_table(("SKILL", "CONFIGURATION", "PASSED", "95 %", "DIFFERENCE", "VERDICT"), rows)
        say("the bands take assertions as independent of each other; see docs/lift.md")
    verdicts = [one["verdict"] for each in reports for one in each["lift"]["comparisons"].values()]
    return int("harms" in verdicts)


class _Plan(NamedTuple):
    """The runs for one skill: eval, configuration, question and number of each."""

    skill: Skill
    files: Files
    slots: Sequence[tuple[OutputEval, str, bytes, int]]


def _planned(options: OutputOptions, registry: Registry, runs: int) -> list[_Plan]:
    old_root = load_registry((options.against,), options) if options.against else None
    plans: list[_Plan] = []
    snapshot = registry.snapshot
    for path in snapshot.paths(Standing.LENIENT):
        skill = snapshot.skills[path]
        if _EVALS_FILE not in skill.files:
            continue
        root = registry.roots[skill.root]
        own = without_nested(skill, skill.nested, root)
        files = files_of(registry, own)
        evals = lift.read_evals(files[_EVALS_FILE][0], root.show(own.files[_EVALS_FILE].location))
        if not evals:
            remark(f"passed over: {path}: its evals have no assertions")
            continue
        versions: dict[str, Files | None] = {lift.WITH: files, lift.WITHOUT: None}
        if old_root is not None:
            old = _in_root(old_root, path)
        else:
            old = lift.last_version(root.path, registry.place(skill), skill.nested, files)
        if old is None:
            remark(f"{path}: there is no last version to compare with")
        else:
            versions[lift.OLD] = old
        slots = [
            (of_eval, configuration, lift.question_of(of_eval, skill.name, version, files), number)
            for of_eval in evals
            for configuration, version in versions.items()
            for number in range(1, runs + 1)
        ]
        plans.append(_Plan(skill, files, slots))
    if not plans:
        hint = 'write {"evals": [{"prompt": "...", "expectations": ["..."]}]}'
        raise UsageError(f"no skill has an {_EVALS_FILE} with assertions; {hint}")
    return plans


def _in_root(registry: Registry, path: str) -> Files | None:
    """Return the files of the skill of this path, or of the only skill there."""
    skills = registry.snapshot.skills
    skill = skills.get(path)
    if skill is None and len(skills) == 1:
        skill = next(iter(skills.values()))
    if skill is None:
        return None
    return files_of(registry, without_nested(skill, skill.nested, registry.roots[skill.root]))


def _benchmark_folder(options: OutputOptions, registry: Registry) -> Path | None:
    if options.benchmark is None:
        return None
    folder = Path(os.path.realpath(options.benchmark))
    for skill in registry.snapshot.skills.values():
        if folder.is_relative_to(registry.place(skill)):
            fault = f"--benchmark {options.benchmark}: lies in the skill {skill.path}"
            raise UsageError(f"{fault}; name a folder outside")
    return folder


def _write(file: Path, report: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, (json.dumps(report, ensure_ascii=False, indent=2) + "\n").encode(), None)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written ({error.strerror})") from None


def _rows(path: str, results: Sequence[GradedRun]) -> list[tuple[str, ...]]:
    compared = lift.comparisons(results)
    rows: list[tuple[str, ...]] = []
    for configuration in (lift.WITH, *compared):
        passed, total = lift.totals(results, configuration)
        low, high = lift.wilson(passed, total)
        difference = verdict = ""
        if configuration in compared:
            found = compared[configuration]
            difference = f"{found.difference:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
            verdict = found.verdict
        band = f"{low:.0%} to {high:.0%}"
        rows.append((path, configuration, f"{passed:,}/{total:,}", band, difference, verdict))
    return rows
