"""`validate`: what is wrong with skills, how to fix it, and what each rule means."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, get_args

import click

from mcp_skills_server.authoring import context as contexts
from mcp_skills_server.authoring import reports
from mcp_skills_server.authoring.notes import MAX_TEXT, notes
from mcp_skills_server.authoring.scanners import scan
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.codes import CODES
from mcp_skills_server.commands.fields import flag, many, output_format, takes
from mcp_skills_server.commands.look import clustered, report_absent, run_deep_checks, say_problem
from mcp_skills_server.commands.opening import make_registry
from mcp_skills_server.commands.options import RootOptions, optional_roots
from mcp_skills_server.commands.printing import (
    reader_gone,
    remark,
    say,
    say_json,
    say_lines,
    say_table,
    writing,
)
from mcp_skills_server.commands.welcome import usual_roots
from mcp_skills_server.durable import replace_file
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.format.nearest import nearest
from mcp_skills_server.model import SKILL_MD, Problem, Skill
from mcp_skills_server.provenance.difference import unified
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.validation import explanations, fixes, suppressions

_OF_SEVERAL: Final = frozenset(("shadowed", "name-shared", "dependency-unresolved"))
"""Codes of problems between skills: those of all roots together, as `serve` reads them."""


Form = Literal["text", "json", "github", "gitlab", "junit", "sarif"]


class ValidateOptions(RootOptions):
    form: Form = output_format(
        *get_args(Form), words="How to print; github: annotations for a workflow."
    )
    strict: bool = flag("Warnings count as errors.")
    select: tuple[str, ...] = many("Report only codes with this prefix.", "CODE")
    ignore: tuple[str, ...] = many("Do not report codes with this prefix.", "CODE")
    fix: bool = flag("Show the safe corrections as a diff, and write them after confirmation.")
    yes: bool = flag("With --fix: write without confirmation.")
    validate_watch: bool = flag(
        "Keep running, and report again after each change, until Ctrl-C.", "--watch"
    )
    scanners: tuple[str, ...] = many(
        "Also run this program on each ROOT and report what it finds. It writes SARIF to stdout, "
        "or to the file that stands for {output}.",
        "COMMAND",
        "--scanner",
    )
    rules: bool = flag("List the rules, and check nothing.")
    explain: tuple[str, ...] = many(
        "Say what this rule means, why, and how to fix it, and check nothing.", "CODE"
    )
    schema: bool = flag("Print the JSON schema of the frontmatter, for editors; check nothing.")


@dataclass(frozen=True, slots=True)
class _Correction:
    """A local SKILL.md before and after its safe corrections, and the findings they resolve."""

    file: Path
    shown: str
    before: str
    after: str
    done: Sequence[Problem]


@dataclass(slots=True)
class _Report:
    """The findings of one check of all roots, sorted by place, and the safe corrections.

    `skills` includes those that another one hides; `passed_over` has those skipped in dot folders.
    """

    skills: Sequence[Skill]
    empty: Sequence[str]
    passed_over: Sequence[dict[str, Any]]
    problems: list[Problem] = field(default_factory=list[Problem])
    notes: list[Problem] = field(default_factory=list[Problem])
    suppressed: list[tuple[Problem, str]] = field(default_factory=list[tuple[Problem, str]])
    corrections: list[_Correction] = field(default_factory=list[_Correction])

    def is_ok(self, *, strict: bool) -> bool:
        """Return True if the command exits with 0."""
        return not self.empty and not any(
            strict or problem.severity == "error" for problem in self.problems
        )


@click.command()
@optional_roots
@takes(ValidateOptions)
@click.pass_context
def validate(context: click.Context, options: ValidateOptions, roots: tuple[str, ...]) -> int:
    """Check every skill at each ROOT against the Agent Skills rules, and say how to fix faults.

    A ROOT is a skill, its SKILL.md, a folder of skills, an archive, or an address
    (docs/sources.md). Without one it takes the usual folders that have skills. Each is looked at
    alone, and then all together, in the order given: which skill hides which. Exit code 1 when
    there are errors, or when a ROOT has no skill. Notes are advice, and count for nothing. Notes of
    one kind share a line, as do more than 20 other problems of one kind in a skill; `--format json`
    has each.

    \b
    Examples:
      mcp-skills-server validate ./my-skill
      mcp-skills-server validate ~/skills --strict --format github
      mcp-skills-server validate ./my-skill --fix
      mcp-skills-server validate --explain name-mismatch
    """
    if options.rules or options.explain or options.schema:
        _say_rules(options)
        return 0
    if options.fix and not roots:  # the usual folders may be those of other programs
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    roots = roots or usual_roots()
    for code in (*options.select, *options.ignore):
        if not any(known.startswith(code) for known in CODES) and not options.scanners:
            raise UsageError(f"no rule has a code that begins with {code!r}; --rules lists all")
    if options.validate_watch and options.fix:
        raise UsageError("--watch and --fix exclude each other; give one of them")
    if options.validate_watch:
        return _follow(options, roots)
    registry = make_registry(roots, options, indexed=True)
    registry.load()
    registry.save_index()
    report = _check_roots(registry, options)
    if options.fix and _fix(report.corrections, ask=not options.yes):
        registry.refresh()
        report = _check_roots(registry, options)
    _print(registry, report, options)
    return int(not report.is_ok(strict=options.strict))


def _check_roots(registry: Registry, options: ValidateOptions) -> _Report:
    empty, passed_over = report_absent(registry)
    # Check each root alone first: a skill that another root hides may be served without that root.
    alone = [registry.of_root(root) for root in registry.roots]
    skills = [skill for snapshot in alone for skill in snapshot.skills.values()]
    run_deep_checks(registry, skills)
    # of all roots together only what one root alone cannot have, such as a hidden skill
    problems: set[Problem] = {
        problem for problem in registry.problems() if problem.code in _OF_SEVERAL
    }
    for snapshot in alone:
        problems.update(
            problem for problem in registry.problems(snapshot) if problem.code not in _OF_SEVERAL
        )
    problems.update(notes(registry, skills))
    for snapshot in alone:  # `registry.problems` has no notes
        problems.update(problem for problem in snapshot.problems if problem.severity == "note")
    for root in registry.roots:
        if root.origin is None:
            for command in options.scanners:
                problems.update(scan(command, root.path, root.show))
    report = _Report(skills, empty, passed_over)
    suppression = _suppression_of(registry, skills)
    for problem in sorted(problems, key=lambda it: (it.path, it.line or 0, it.code, it.message)):
        is_ignored = bool(options.ignore) and problem.code.startswith(options.ignore)
        if is_ignored or not problem.code.startswith(options.select or ("",)):
            continue
        if reason := suppression(problem):
            report.suppressed.append((problem, reason))
        elif problem.severity == "note":
            report.notes.append(problem)
        else:
            report.problems.append(problem)
    report.corrections += _corrections(registry, report)
    return report


def _suppression_of(registry: Registry, skills: Sequence[Skill]) -> Callable[[Problem], str]:
    """Return a function that finds the reason in these skills' files to suppress a problem."""
    files = {
        registry.roots[skill.root].show(file.location): file
        for skill in skills
        for file in skill.files.values()
    }

    @cache
    def reasons(path: str) -> Mapping[tuple[str, int | None], str]:
        file = files.get(path)
        if file is None or file.size > MAX_TEXT:
            return {}
        try:
            return suppressions.find(registry.read(file).decode("utf-8", "replace"))
        except OSError:
            return {}

    def suppression(problem: Problem) -> str:
        path = problem.path
        if problem.line is not None:
            return suppressions.reason_for(problem, reasons(path))
        while (manifest := os.path.join(path, SKILL_MD)) not in files:
            parent = os.path.dirname(path)
            if parent == path:
                break
            path = parent
        return suppressions.reason_for(problem, reasons(manifest))

    return suppression


def _print(registry: Registry, report: _Report, options: ValidateOptions) -> None:
    everything = [*report.problems, *report.notes]
    if options.form == "json":
        say_json(
            {
                "ok": report.is_ok(strict=options.strict),
                "skills": len(report.skills),
                "problems": [problem._asdict() for problem in report.problems],
                "notes": [note._asdict() for note in report.notes],
                "suppressed": [
                    problem._asdict() | {"reason": why} for problem, why in report.suppressed
                ],
                "passed_over": report.passed_over,
            }
        )
    elif options.form == "sarif":
        fixed = {
            problem: (correction.before, correction.after)
            for correction in report.corrections
            for problem in correction.done
        }
        say_json(reports.sarif(everything, fixed))
    elif options.form == "gitlab":
        say_json(reports.gitlab(everything))
    elif options.form == "junit":
        say_lines(reports.junit(everything, sorted({skill.path for skill in report.skills})))
    else:
        if options.form == "github":
            for problem in everything:
                say(reports.github(problem))
        else:
            for problem in clustered(everything):
                say_problem(problem)
        _say_counts(report, err=options.form == "github")
        _remark_cut(registry)


def _say_counts(report: _Report, *, err: bool) -> None:
    errors = sum(problem.severity == "error" for problem in report.problems)
    counts = [
        plural(len(report.skills), "skill"),
        plural(errors, "error"),
        plural(len(report.problems) - errors, "warning"),
    ]
    if report.notes:
        counts.append(plural(len(report.notes), "note"))
    if report.suppressed:
        counts.append(f"{len(report.suppressed):,} suppressed")
    say(", ".join(counts), err=err)
    if fixable := sum(len(correction.done) for correction in report.corrections):
        remark(f"{plural(fixable, 'finding')} of these --fix can correct")


def _corrections(registry: Registry, report: _Report) -> Iterator[_Correction]:
    by_place: dict[str, list[Problem]] = {}
    for problem in filter(fixes.has_fix, report.problems):
        by_place.setdefault(problem.path, []).append(problem)
    for skill in report.skills:
        root, file = registry.roots[skill.root], skill.files.get(SKILL_MD)
        if root.origin is not None or file is None or file.size > MAX_TEXT:
            continue
        shown = root.show(file.location)
        if shown not in by_place:
            continue
        try:
            before = registry.read(file).decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        folder = os.path.basename(registry.place(skill))
        after, done = fixes.fix_text(before, by_place[shown], folder)
        if done:
            base, _, rest = root.locate(file.location)
            yield _Correction(Path(base, rest), shown, before, after, done)


def _fix(corrections: Sequence[_Correction], *, ask: bool) -> bool:
    """Show the safe corrections and write them; return True if anything was written."""
    for correction in corrections:
        say_lines(unified(correction.shown, correction.before, correction.after), err=True)
    if not corrections:
        remark("there is nothing that --fix can correct")
        return False
    if ask and not sys.stdin.isatty():
        remark("nothing was written; give --yes to write these")
        return False
    if ask and not click.confirm("Write these?", err=True):
        return False
    for correction in corrections:
        with writing(correction.shown, "check its permissions"):
            replace_file(
                correction.file,
                correction.after.encode(),
                stat.S_IMODE(os.stat(correction.file).st_mode),
            )
    remark(f"{plural(len(corrections), 'file')} corrected")
    return True


def _follow(options: ValidateOptions, roots: tuple[str, ...]) -> int:
    """Report after each change, until Ctrl-C or until the reader of stdout has gone."""
    registry = make_registry(roots, options)
    changed = threading.Event()
    changed.set()
    registry.subscribe(lambda _: changed.set(), problems=True)
    with Watcher(registry):
        while not reader_gone.is_set():
            changed.wait()
            changed.clear()
            _print(registry, _check_roots(registry, options), options)
            say("")
    return 0


def _remark_cut(registry: Registry) -> None:
    """Print on stderr how many descriptions hosts show to models in full, if not all."""
    with Runtime(registry) as runtime:
        texts = contexts.shown_unasked(runtime.whole, contexts.CONTEXTS["generic"])
        parts = contexts.parts_shown(texts, runtime.whole.briefing.overview.offers)
    whole, cut = len(parts["whole"]), len(parts["shortened"]) + len(parts["absent"])
    if cut:
        remark(
            f"{whole:,} of {whole + cut:,} descriptions stand whole in what hosts show unasked; "
            "'context' and 'show' say what stands of each"
        )


def _say_rules(options: ValidateOptions) -> None:
    """Print the JSON schema of the frontmatter, or the rules: all, or the explained ones."""
    codes = options.explain
    if options.schema:
        schema = resources.files("mcp_skills_server.validation").joinpath("frontmatter.schema.json")
        say_lines(schema.read_text().rstrip())
        return
    for code in codes:
        if code not in CODES:
            near = nearest(code, CODES)
            hint = f"did you mean {near[0]}?" if near else "--rules lists all"
            raise UsageError(f"there is no rule {code!r}; {hint}")
    if options.form == "json":
        say_json([_explained(code) for code in CODES if not codes or code in codes])
    elif codes:
        say_lines("\n".join(map(explanations.markdown, codes)))
    else:
        what = {code: row.what for code, row in explanations.EXPLANATIONS.items()}
        rows = [(code, row.severity, what[code]) for code, row in CODES.items()]
        say_table(("CODE", "SEVERITY", "WHAT"), rows)


def _explained(code: str) -> dict[str, Any]:
    row = CODES[code]
    about = {"code": code, "severity": row.severity, "fix": row.hint, "rule": row.cites or None}
    return about | explanations.EXPLANATIONS[code]._asdict()
