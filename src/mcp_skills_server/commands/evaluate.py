"""`evaluate` and `context`: the skills a model is shown, and those it would load."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import click

from mcp_skills_server.authoring import context as contexts
from mcp_skills_server.authoring import evaluation
from mcp_skills_server.authoring.evaluation import CaseResult, RankingJudge, TriggerCase
from mcp_skills_server.authoring.judges import CommandJudge
from mcp_skills_server.authoring.tokens import token_counter
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.commands.fields import many, option, takes, text
from mcp_skills_server.commands.opening import load_registry
from mcp_skills_server.commands.options import TextOptions, index_of, named_skill, roots_argument
from mcp_skills_server.commands.outputs import OutputOptions, evaluate_outputs, remark_cost
from mcp_skills_server.commands.printing import (
    progress,
    remark,
    say,
    say_json,
    say_lines,
    say_table,
)
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import RequestError, UsageError, plural
from mcp_skills_server.format import identity
from mcp_skills_server.model import Skill, Standing
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.search_text import matched_fields

_MAX_BYTES: Final = 16 << 20
_COLUMNS: Final = ("figure", "value", "basis")


class EvaluateOptions(OutputOptions):
    evaluate_prompt: str | None = text(
        "Show the skills that this prompt finds, in order, and the matching words; judge no set. "
        "Exit with 1 if none.",
        "TEXT",
        "--prompt",
    )
    min_pass: float = option(
        1.0,
        "Exit with 1 if a smaller share of the cases passes.",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
    )
    threshold: float = option(
        0.5,
        "With --judge: the share of runs from which on a prompt triggers a skill.",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="SHARE",
    )


@click.command()
@roots_argument
@takes(EvaluateOptions)
def evaluate(options: EvaluateOptions, roots: tuple[str, ...]) -> int:
    """Judge trigger sets: whether each prompt leads to the skill that it should, and to no other.

    A trigger set is a JSON array of {"query": ..., "should_trigger": true}; in evals.json each
    prompt should trigger. By default a prompt triggers the skill that skills_search ranks first.
    Exit code 1 if too few cases pass.

    \b
    Examples:
      mcp-skills-server evaluate ~/skills
      mcp-skills-server evaluate ~/skills --prompt "refund the customer"
      mcp-skills-server evaluate ~/skills --cases 'triggers/*.json' --min-pass 0.9
      mcp-skills-server evaluate ~/skills --judge 'python examples/judges/openai.py' --format junit
      mcp-skills-server evaluate ~/skills --outputs --judge 'python judge.py' --benchmark results
    """
    registry = load_registry(roots, options)
    if options.evaluate_prompt is not None:
        return _rank(options, registry, options.evaluate_prompt)
    if options.outputs:
        return evaluate_outputs(options, registry)
    cases = _given_cases(registry, options.cases) if options.cases else _own_cases(registry)
    if not cases:
        hint = "write one, or name one with --cases FILE"
        raise UsageError(f"there is no trigger set: no skill has an evals/*.json; {hint}")
    with Runtime(registry) as runtime:
        by_program = _program(options, runtime)
        judge = by_program or RankingJudge(runtime.whole.search)
        judged = evaluation.evaluate(cases, judge, registry.snapshot, options.threshold)
        results = [*progress(judged, "Judging", len(cases))]
    if options.form == "json":
        report = evaluation.as_json(results)
        if by_program is not None:
            report |= {"cost_usd": by_program.cost_usd, "judge_runs": by_program.program_runs}
        say_json(report)
    elif options.form == "junit":
        say_lines(evaluation.as_junit(results))
    else:
        _say_results(results)
    if by_program is not None:
        remark_cost(by_program)
    totals = evaluation.summary(results)
    return int(totals.passed / totals.total < options.min_pass)


def _usable(registry: SkillSet) -> list[Skill]:
    snapshot = registry.snapshot
    return [snapshot.skills[path] for path in snapshot.paths(Standing.LENIENT)]


def _program(options: EvaluateOptions, runtime: Runtime) -> CommandJudge | None:
    if options.judge is None:
        return None
    return CommandJudge(
        options.judge,
        runtime.whole.briefing.instructions(),
        _usable(runtime.registry),
        runs=options.runs,
        concurrency=options.concurrency,
        timeout_s=options.judge_timeout,
        answers=index_of(options.cache_dir),
    )


def _own_cases(registry: Registry) -> list[tuple[Skill, TriggerCase]]:
    """Return the cases in the skills' evals folders; report and skip JSON for other purposes.

    Raises:
        UsageError: a trigger set there is malformed.
    """
    own: list[tuple[Skill, TriggerCase]] = []
    for skill in _usable(registry):
        show = registry.roots[skill.root].show
        cases, troubles = evaluation.own_cases(registry.read, skill, show)
        own += cases
        for trouble in troubles:
            if not isinstance(trouble, evaluation.NoTriggerSetError):
                raise trouble
            remark(f"passed over: {trouble}")
    return own


def _given_cases(registry: Registry, patterns: Sequence[str]) -> list[tuple[Skill, TriggerCase]]:
    given: list[tuple[Skill, TriggerCase]] = []
    for pattern in patterns:
        for name in sorted(glob.glob(pattern, recursive=True)) or [pattern]:
            file = Path(name)
            try:
                raw, _ = read_regular(name, _MAX_BYTES, wait=True)
            except OSError as error:
                hint = "name a file with a trigger set"
                raise UsageError(f"{name}: cannot be read ({error.strerror}); {hint}") from None
            cases = evaluation.read_cases(raw, name)
            given += [(_skill_of(registry, case.skill, file), case) for case in cases]
    return given


def _skill_of(registry: Registry, named: str, file: Path) -> Skill:
    """Return the skill that a case is about, by the file's place, the case or the file's name."""
    snapshot = registry.snapshot
    path = os.path.realpath(file)
    for skill in sorted(snapshot.skills.values(), key=registry.place, reverse=True):  # inner first
        if path.startswith(registry.place(skill) + os.sep):
            return skill
    for name in filter(None, (named, file.stem)):
        with suppress(RequestError):
            return identity.require(snapshot, name, Standing.LENIENT)
    if len(snapshot.skills) == 1:
        return next(iter(snapshot.skills.values()))
    hint = 'name the file as the skill, or add "skill": "NAME"'
    raise UsageError(f"{file}: nothing says which skill {named or 'it'} is; {hint}")


def _say_results(results: Sequence[CaseResult]) -> None:
    rows: list[tuple[str, ...]] = []
    colours: dict[int, str] = {}
    for skill, of_skill in evaluation.by_skill(results).items():
        totals = evaluation.summary(of_skill)
        if totals.passed < totals.total:
            colours[len(rows)] = "yellow"
        shares = (_percent(totals.hit_at_1), _percent(totals.hit_at_5))
        counts = (str(totals.total), str(totals.passed))
        rows.append((skill.path, *counts, *shares, str(totals.false_triggers)))
    say_table(("SKILL", "CASES", "PASSED", "HIT@1", "HIT@5", "FALSE"), rows, colours=colours)
    for result in results:
        if not result.passed:
            wanted = "should trigger" if result.case.should_trigger else "should not trigger"
            reason = evaluation.failure_reason(result)
            say(f"{result.skill.path}: {wanted}: {result.case.query!r}: {reason}")
    totals = evaluation.summary(results)
    shares = f"hit@1 {_percent(totals.hit_at_1)}, hit@5 {_percent(totals.hit_at_5)}"
    passed = f"{totals.passed:,} of {plural(totals.total, 'case')} passed"
    say(f"{passed}; {shares}; {totals.false_triggers:,} false triggers")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _rank(options: EvaluateOptions, registry: Registry, prompt: str) -> int:
    """Print the skills that a prompt finds, in order, and the matching words; 1 if none."""
    others = options.judge is not None or options.cases or options.outputs
    if others or options.form == "junit":
        hint = "leave out --judge, --cases, --outputs and --format junit"
        raise UsageError(f"--prompt shows how skills rank for one prompt; {hint}")
    with Runtime(registry) as runtime:
        hits = RankingJudge(runtime.whole.search).ranked(prompt)
    ranks: list[dict[str, Any]] = []
    for hit in hits:
        words = dict(matched_fields(hit.skill, prompt))
        ranks.append({"path": hit.skill.path, "score": hit.score, "words": words})
    if options.form == "json":
        say_json({"prompt": prompt, "places": ranks})
        return int(not hits)
    rows: list[tuple[str, ...]] = []
    for number, rank in enumerate(ranks, 1):
        matches = "; ".join(f"{name}: {' '.join(words)}" for name, words in rank["words"].items())
        score = "name" if rank["score"] is None else f"{rank['score']:.2f}"
        rows.append((str(number), rank["path"], score, matches))
    say_table(("PLACE", "SKILL", "SCORE", "WORDS"), rows, empty=f"no skill fits {prompt!r}")
    return int(not hits)


class ContextOptions(TextOptions):
    context_host: str = option(
        "generic", "The host; generic cuts nothing.", "--host", type=click.Choice(contexts.CONTEXTS)
    )
    skills: tuple[str, ...] = many("Also show the result of loading this skill.", "NAME", "--skill")
    budget: int | None = option(
        None,
        "Exit with 1 if the text shown unasked has more tokens.",
        type=click.IntRange(min=0),
        metavar="TOKENS",
    )


@click.command()
@roots_argument
@takes(ContextOptions)
def context(options: ContextOptions, roots: tuple[str, ...]) -> int:
    """Show the exact text that a host gives its model about skills below each ROOT, with tokens.

    Unasked is what stands in each request of the host; with --skill also what a call of skills_load
    brings. Texts are those after the cuts of the host. Each of its figures was measured with the
    real program, or is assumed, which the end of the output and docs/hosts.md tell.

    \b
    Examples:
      mcp-skills-server context ~/skills
      mcp-skills-server context ~/skills --host claude-code --skill refunds
      mcp-skills-server context ~/skills --host gemini-cli --budget 4000
    """
    host = contexts.CONTEXTS[options.context_host]
    registry = load_registry(roots, options)
    with Runtime(registry) as runtime:
        offering = runtime.whole
        shown = contexts.shown_unasked(offering, host)
        parts = contexts.parts_shown(shown, offering.briefing.overview.offers)
        wanted = [named_skill(registry, name) for name in options.skills]
        brought = [anyio.run(contexts.shown_on_load, offering, host, skill) for skill in wanted]
    count, rule = token_counter()
    total = sum(count(text.text) for text in shown)
    over = options.budget is not None and total > options.budget
    names = {part: [offer.name for offer in offers] for part, offers in parts.items()}
    if options.form == "json":
        say_json(
            {
                "host": options.context_host,
                "version": host.version,
                "figures": [dict(zip(_COLUMNS, row, strict=True)) for row in host.figures()],
                "unasked": _with_tokens(shown, count),
                "loaded": _with_tokens(brought, count),
                "skills": names,
                "tokens": total,
                "token_rule": rule,
                "ok": not over,
            }
        )
        return int(over)
    for shown_text in (*shown, *brought):
        _say_text(shown_text, count(shown_text.text))
    say(f"{options.context_host}: {total:,} tokens unasked ({rule})")
    full, less, absent = (f"{len(of_part):,}" for of_part in names.values())
    say(f"of the skills {full} have their description there, {less} less, {absent} are absent")
    say_table(tuple(map(str.upper, _COLUMNS)), host.figures())
    if over:
        remark(f"{total:,} tokens are more than the budget of {options.budget:,}")
    return int(over)


def _with_tokens(
    texts: Sequence[contexts.ShownText], count: Callable[[str], int]
) -> list[dict[str, Any]]:
    return [text._asdict() | {"tokens": count(text.text)} for text in texts]


def _say_text(shown: contexts.ShownText, tokens: int) -> None:
    cut = ""
    if shown.cut_characters:
        cut = f"; the host cuts {shown.cut_characters:,} characters"
    say(f"=== {shown.title}: {len(shown.text):,} characters, {tokens:,} tokens{cut}")
    say_lines(shown.text)
    say("")
