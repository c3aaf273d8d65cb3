"""`freshness`: which skills rely on something that has changed since they were confirmed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

import click

from mcp_skills_server.authoring import reports
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.fields import flag, many, option, output_format, takes
from mcp_skills_server.commands.look import say_problem
from mcp_skills_server.commands.opening import load_registry
from mcp_skills_server.commands.options import RootOptions, named_skill, roots_argument
from mcp_skills_server.commands.printing import remark, say, say_json, say_lines, writing
from mcp_skills_server.durable import replace_file
from mcp_skills_server.errors import plural
from mcp_skills_server.format.reliance import (
    FRESHNESS_FILE,
    Reliance,
    confirm,
    parse_reliances,
    verified_on,
)
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Standing

_AGED: Final = "verified-age"
_VERIFIED: Final = re.compile(r"(?m)^([ \t]++verified:[ \t]*+)[^\r\n]*+")
Form = Literal["text", "json", "junit", "sarif"]


class FreshnessOptions(RootOptions):
    form: Form = output_format(*get_args(Form))
    freshness_skill: tuple[str, ...] = many("Only this skill.", "NAME", "--skill")
    freshness_update: bool = flag(
        "Confirm: write the present state of what the skills rely on.", "--update"
    )
    max_age: int | None = option(
        None,
        "Also report skills whose metadata.verified is older.",
        metavar="DAYS",
        type=click.IntRange(0),
    )


@dataclass(slots=True)
class _Judged:
    """A skill that says what it relies on, or when it was verified.

    Attributes:
        states: the present state of each entry that was asked.
    """

    skill: Skill
    entries: Sequence[Reliance] = ()
    states: dict[Reliance, str] = field(default_factory=dict[Reliance, str])
    problems: list[Problem] = field(default_factory=list[Problem])

    @property
    def unasked(self) -> int:
        """The number of entries that were not asked."""
        return len(self.entries) - len(self.states)


@click.command()
@roots_argument
@takes(FreshnessOptions)
def freshness(options: FreshnessOptions, roots: tuple[str, ...]) -> int:
    """Report skills below each ROOT that rely on something that has changed.

    A skill says what it relies on in a file freshness.toml: files of its git repository, and
    packages in its lock files. --update confirms the present state, once a person has compared the
    skill with it. Exit code 1 when a skill is stale.

    \b
    Examples:
      mcp-skills-server freshness .claude/skills --format sarif
      mcp-skills-server freshness .claude/skills --skill refunds --update
    """
    registry = load_registry(roots, options)
    skills = [registry.snapshot.skills[path] for path in registry.snapshot.paths(Standing.UNUSABLE)]
    if options.freshness_skill:
        names = options.freshness_skill
        skills = [named_skill(registry, name, Standing.UNUSABLE) for name in names]
    today = datetime.now(UTC).date()
    judged = [_judge(registry, skill) for skill in skills if registry.freshness.relies(skill)]
    if options.freshness_update:
        judged = [_update(registry, one, today) for one in judged]
    problems = [problem for one in judged for problem in one.problems]
    if options.max_age is not None:
        aged = (_age(registry, skill, today, options.max_age) for skill in skills)
        problems += filter(None, aged)
    is_ok = all(problem.severity == "note" for problem in problems)
    _print(judged, problems, options.form, is_ok=is_ok)
    return int(not is_ok)


def _judge(registry: Registry, skill: Skill) -> _Judged:
    judge = registry.freshness
    one = _Judged(skill)
    try:
        one.entries = parse_reliances(judge.text(skill))
        one.states |= judge.states(skill, one.entries)
    except (ValueError, OSError) as error:
        one.problems.append(judge.fault(skill, str(error)))
    found = (judge.judge(skill, *pair) for pair in one.states.items())
    one.problems += filter(None, found)
    return one


def _age(registry: Registry, skill: Skill, today: date, most: int) -> Problem | None:
    """Return the problem of a skill that was verified too long ago, or on no day of the past."""
    try:
        verified = verified_on(skill.frontmatter)
        text = "the date of metadata.verified is in the future"
        if verified is None or 0 <= (today - verified).days <= most:
            return None
        if verified < today:
            text = f"verified {(today - verified).days} days ago, on {verified}"
    except ValueError:
        text = "metadata.verified is no date such as 2026-05-31"
    path = registry.roots[skill.root].show(skill.files[SKILL_MD].location)
    hint = "read the skill again, and write today's date"
    return Problem(_AGED, "warning", text, hint, path=path, skill=skill.path)


def _update(registry: Registry, one: _Judged, today: date) -> _Judged:
    """Write the present states, and today's date into metadata.verified if nothing is left."""
    skill, judge = one.skill, registry.freshness
    present = {entry: state for entry, state in one.states.items() if state}
    if not present:
        return one
    try:
        edited = confirm(judge.text(skill), present)
    except (ValueError, OSError) as error:
        one.problems.append(judge.fault(skill, str(error)))
        return one
    _write(registry, skill, FRESHNESS_FILE, edited)
    one.problems = [
        problem
        for entry, state in one.states.items()
        if (problem := judge.judge(skill, entry._replace(seen=state), state))
    ]
    metadata = skill.frontmatter.get("metadata")
    is_dated = isinstance(metadata, dict) and "verified" in metadata
    if is_dated and not one.problems and not one.unasked:
        text = registry.read(skill.files[SKILL_MD]).decode()
        _write(registry, skill, SKILL_MD, _VERIFIED.sub(rf'\g<1>"{today}"', text, count=1))
    return one


def _write(registry: Registry, skill: Skill, name: str, text: str) -> None:
    file = skill.files[name]
    base, _, rest = registry.roots[file.root].locate(file.location)
    path = Path(base, rest)
    with writing(str(path), "check its permissions"):
        replace_file(path, text.encode(), path.stat().st_mode & 0o777)


def _print(
    judged: Sequence[_Judged], problems: Sequence[Problem], form: Form, *, is_ok: bool
) -> None:
    skills = [one.skill.path for one in judged]
    if form == "json":
        report = {"ok": is_ok, "skills": [*map(_as_json, judged)]}
        say_json(report | {"problems": [problem._asdict() for problem in problems]})
    elif form == "sarif":
        say_json(reports.sarif(problems, {}))
    elif form == "junit":
        say_lines(reports.junit(problems, skills))
    else:
        for problem in problems:
            say_problem(problem)
        stale = len({problem.skill for problem in problems if problem.severity != "note"})
        say(f"{plural(len(skills), 'skill')} with {FRESHNESS_FILE}, {stale} stale")
    if unasked := sum(one.unasked for one in judged):
        remark(f"{plural(unasked, 'item')} of the network not asked")


def _as_json(one: _Judged) -> dict[str, Any]:
    entries = [entry._asdict() | {"now": one.states.get(entry)} for entry in one.entries]
    return {"path": one.skill.path, "relies_on": entries}
