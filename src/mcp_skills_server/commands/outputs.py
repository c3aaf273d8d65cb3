"""`evaluate --outputs`: what skills change in a model's outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from mcp_skills_server.authoring import lift
from mcp_skills_server.authoring.judges import JudgeProgram
from mcp_skills_server.authoring.lift import OutputJudge
from mcp_skills_server.catalog.bundle import without_nested
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.fields import count, flag, many, output_format, seconds, text
from mcp_skills_server.commands.opening import load_registry
from mcp_skills_server.commands.options import RootOptions, index_of
from mcp_skills_server.commands.printing import remark, say, say_json
from mcp_skills_server.durable import replace_file
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import EVALS, Skill, Standing
from mcp_skills_server.proposals.intake import files_of
from mcp_skills_server.provenance.difference import Files

_EVALS_FILE = f"{EVALS}evals.json"


class OutputOptions(RootOptions):
    cases: tuple[str, ...] = many(
        "A trigger set to judge in place of those in the skills' evals folders: a file, or "
        "FILES*.json in quotes. A file that is named as a skill, or lies in its folder, is about "
        "that skill.",
        "FILE",
    )
    form: Literal["table", "json", "junit"] = output_format("table", "json", "junit")
    judge: str | None = text(
        "A program that chooses skills for a prompt, such as examples/judges/openai.py. By default "
        "the ranking of skills_search decides.",
        "COMMAND",
    )
    runs: int = count(3, "With --judge: how often each prompt is judged.")
    concurrency: int = count(4, "With --judge: how many runs there may be at once.")
    judge_timeout: float = seconds(120, "With --judge: how long one run may take.", above=True)
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
    benchmark: str | None = text(
        "With --outputs: the folder for DIR/SKILL/benchmark.json, in skill-creator's form.",
        "DIR",
        type=click.Path(file_okay=False),
    )


def evaluate_outputs(options: OutputOptions, registry: Registry) -> int:
    """Measure each skill that has evals, print the results, and return the exit code."""
    if options.judge is None or options.cases or options.form == "junit":
        hint = "give --judge COMMAND, and leave out --cases and --format junit"
        raise UsageError(f"--outputs grades evals/evals.json by a program; {hint}")
    plans, answers = _planned(options, registry), index_of(options.cache_dir)
    judge = OutputJudge(options.judge, "outputs", options.judge_timeout, answers)
    asked = [(question, run) for plan in plans for _, question, run in plan.slots]
    try:
        gradings = iter(judge.grade(asked, options.concurrency, options.max_calls))
    finally:
        remark_cost(judge)
    reports: list[dict[str, Any]] = []
    for plan in plans:
        runs = [{**labels, **next(gradings)} for labels, _, _ in plan.slots]
        report = lift.benchmark(plan.skill.name, registry.place(plan.skill), runs)
        lift.remember(answers, registry.digest_over(plan.skill), report)
        reports.append(report)
        for sentence in report["notes"] if options.form == "table" else ():
            say(f"{plan.skill.path}: {sentence}")
        if plan.target is not None:
            _write(plan.target, report)
    if options.form == "json":
        usage = {"cost_usd": judge.cost_usd, "judge_runs": judge.program_runs}
        say_json({"benchmarks": reports, **usage})
    return int(any(note.startswith("harms") for report in reports for note in report["notes"]))


def remark_cost(judge: JudgeProgram) -> None:
    """Say on stderr how often the judge ran, and what it cost."""
    cost = f"{judge.cost_usd:.4f} USD as far as it says so"
    remark(f"{judge.program_runs:,} runs of the judge, {cost}")
    if judge.uncached:
        remark(f"{judge.uncached:,} answers could not be cached, and are asked for again next time")


class _Plan(NamedTuple):
    """The runs for one skill: the labels in its benchmark, the question and the number of each."""

    skill: Skill
    slots: Sequence[tuple[dict[str, Any], bytes, int]]
    target: Path | None  # the file of its benchmark


def _planned(options: OutputOptions, registry: Registry) -> list[_Plan]:
    old_root = load_registry((options.against,), options) if options.against else None
    plans: list[_Plan] = []
    snapshot = registry.snapshot
    for path in snapshot.paths(Standing.LENIENT):
        skill = _alone(registry, snapshot.skills[path])
        if _EVALS_FILE not in skill.files:
            continue
        root, files = registry.roots[skill.root], files_of(registry, skill)
        where = root.show(skill.files[_EVALS_FILE].location)
        evals = lift.read_evals(files[_EVALS_FILE][0], where, files)
        if not evals:
            remark(f"passed over: {path}: its evals have no assertions")
            continue
        versions: dict[str, Files | None] = {lift.WITH: files, lift.WITHOUT: None}
        if old_root is not None:
            earlier = old_root.snapshot.skills.get(path)
            old = earlier and files_of(old_root, _alone(old_root, earlier))
        else:
            old = lift.last_version(root.path, registry.place(skill), skill.nested, files)
        if old is None:
            remark(f"{path}: there is no last version to compare with")
        else:
            versions[lift.OLD] = old
        slots: list[tuple[dict[str, Any], bytes, int]] = []
        for of_eval, (configuration, version) in product(evals, versions.items()):
            question = lift.question_of(of_eval, version, files)
            for number in range(1, options.runs + 1):
                labels = {"configuration": configuration, "run_number": number}
                slots.append(({**of_eval.named, **labels}, question, number))
        plans.append(_Plan(skill, slots, _target(options.benchmark, path, registry)))
    if not plans:
        hint = 'write {"evals": [{"prompt": "...", "expectations": ["..."]}]}'
        raise UsageError(f"no skill has an {_EVALS_FILE} with assertions; {hint}")
    return plans


def _alone(registry: Registry, skill: Skill) -> Skill:
    return without_nested(skill, skill.nested, registry.roots[skill.root])


def _target(folder: str | None, path: str, registry: Registry) -> Path | None:
    """Return where to write the benchmark of the skill at `path`; UsageError if in a root."""
    if folder is None:
        return None
    file = Path(os.path.realpath(Path(folder, path, "benchmark.json")))
    if any(file.is_relative_to(root.path) for root in registry.roots):
        raise UsageError(f"--benchmark {file}: lies in a root of skills; name a folder outside")
    return file


def _write(file: Path, report: dict[str, Any]) -> None:
    text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text.encode("utf-8", "replace"), None)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written ({error.strerror})") from None
