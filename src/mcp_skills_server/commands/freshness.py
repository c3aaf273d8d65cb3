"""`freshness`: which skills rely on something that has changed since they were confirmed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, get_args

import anyio
import click

from mcp_skills_server.authoring import reports
from mcp_skills_server.catalog.freshness import Judgement
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.fields import count, flag, output_format, takes
from mcp_skills_server.commands.look import say_problem
from mcp_skills_server.commands.opening import load_registry
from mcp_skills_server.commands.options import RootOptions, roots_argument
from mcp_skills_server.commands.printing import remark, say, say_json, writing
from mcp_skills_server.durable import replace_file
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.format import frontmatter
from mcp_skills_server.format.reliance import FRESHNESS_FILE, parse_reliances
from mcp_skills_server.hosts import tomltext
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Standing

_VERIFIED: Final = re.compile(rb"(?m)^([ \t]++verified:[ \t]*+)[^\s#]++")
Form = Literal["text", "json", "sarif"]


class FreshnessOptions(RootOptions):
    form: Form = output_format(*get_args(Form))
    freshness_online: bool = flag(
        "Also ask URLs and MCP servers, each once, whatever number of skills names it.", "--online"
    )
    max_requests: int = count(100, "The most URLs and servers that are asked.")
    freshness_update: bool = flag(
        "Confirm: write the present state of what the skills rely on.", "--update"
    )


@click.command()
@roots_argument
@takes(FreshnessOptions)
def freshness(options: FreshnessOptions, roots: tuple[str, ...]) -> int:
    """Report skills below each ROOT that rely on something that has changed.

    A skill says what it relies on in a file freshness.toml: files of its git repository, packages
    in its lock files, and with --online URLs and tools of MCP servers. --update confirms the
    present state, once a person has compared the skill with it. ROOT may be the folder of one
    skill. Exit code 1 when a skill is stale.

    \b
    Examples:
      mcp-skills-server freshness .claude/skills --format sarif
      mcp-skills-server freshness .claude/skills/refunds --update
    """
    registry = load_registry(roots, options)
    skills = [registry.snapshot.skills[path] for path in registry.snapshot.paths(Standing.UNUSABLE)]
    judged = [*map(registry.freshness.judge, skills)]
    judged = [judgement for judgement in judged if judgement.shown]
    if options.freshness_online:
        judged = _asked(judged, options)
    if options.freshness_update:
        judged = [_update(registry, judgement) for judgement in judged]
    problems = [problem for judgement in judged for problem in judgement.problems]
    is_ok = all(problem.severity == "note" for problem in problems)
    _print(judged, problems, options.form, is_ok=is_ok)
    unasked = sum(len(judgement.entries) - len(judgement.states) for judgement in judged)
    if unasked:
        hint = "" if options.freshness_online else "; --online asks URLs and servers"
        remark(f"{plural(unasked, 'item')} not judged{hint}")
    return int(not is_ok)


def _asked(judged: Sequence[Judgement], options: FreshnessOptions) -> list[Judgement]:
    """Return the judgements with the states of URLs and tools, as far as they can be asked."""
    from mcp_skills_server.sources.reliances import ask
    from mcp_skills_server.sources.source import FetchSettings, OriginPolicy

    trust = OriginPolicy(frozenset(), options.allow_private, options.allow_http)
    entries = [entry for judgement in judged for entry in judgement.entries]
    states, refused = anyio.run(ask, entries, FetchSettings(trust=trust), options.max_requests)
    for line in refused:
        remark(line)
    asked: list[Judgement] = []
    for judgement in judged:
        own = {entry: states[entry.key] for entry in judgement.entries if entry.key in states}
        asked.append(judgement._replace(states={**judgement.states, **own}))
    return asked


def _update(registry: Registry, judged: Judgement) -> Judgement:
    """Write the present states, and today's date into metadata.verified if no problem is left."""
    text = judged.text
    try:
        for entry, now in judged.states.items():
            if now:
                text = tomltext.put(text, "seen", entry.kind, {entry.name: now})
        parse_reliances(text)
    except (UsageError, ValueError) as error:
        raise UsageError(f"{judged.shown}: {error}") from None
    _write(registry, judged.skill, FRESHNESS_FILE, text.encode())
    states = {entry._replace(seen=now): now for entry, now in judged.states.items()}
    confirmed = judged._replace(states=states)
    if not confirmed.problems and len(states) == len(judged.entries):
        _write_date(registry, judged.skill)
    return confirmed


def _write_date(registry: Registry, skill: Skill) -> None:
    """Write today's date into metadata.verified, if that is there and on a line of its own."""
    raw = registry.read(skill.files[SKILL_MD])
    before = frontmatter.parse(raw).frontmatter or {}
    metadata, today = before.get("metadata"), str(datetime.now(UTC).date())
    if not isinstance(metadata, dict) or metadata.get("verified", today) == today:
        return
    edited = _VERIFIED.sub(rb'\g<1>"' + today.encode() + b'"', raw, count=1)
    wanted = {**before, "metadata": {**metadata, "verified": today}}
    if frontmatter.parse(edited).frontmatter == wanted:
        _write(registry, skill, SKILL_MD, edited)
    else:
        remark(f"{skill.path}: write the date of today into metadata.verified")


def _write(registry: Registry, skill: Skill, name: str, raw: bytes) -> None:
    file = skill.files[name]
    base, _, rest = registry.roots[file.root].locate(file.location)
    path = Path(base, rest)
    with writing(str(path), "check its permissions"):
        replace_file(path, raw, path.stat().st_mode & 0o777)


def _print(
    judged: Sequence[Judgement], problems: Sequence[Problem], form: Form, *, is_ok: bool
) -> None:
    skills = [judgement.skill.path for judgement in judged]
    if form == "json":
        rows = [problem._asdict() for problem in problems]
        say_json({"ok": is_ok, "skills": skills, "problems": rows})
    elif form == "sarif":
        say_json(reports.sarif(problems, {}))
    else:
        for problem in problems:
            say_problem(problem)
        stale = len({problem.skill for problem in problems if problem.severity != "note"})
        say(f"{plural(len(skills), 'skill')} with {FRESHNESS_FILE}, {stale} stale")
