"""`list`, `show` and `validate`: what is in a folder, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from mcp_skills_server.commands.options import limits, make_registry, roots, sites
from mcp_skills_server.commands.printing import remark, say, say_json, say_lines
from mcp_skills_server.commands.progress import progress
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import identity
from mcp_skills_server.model import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.model import Problem, Skill

_OF_SEVERAL: Final = frozenset(("shadowed", "name-shared"))
"""What shows only when all roots are looked at together, as `serve` does."""
_UNLISTED: Final = {Standing.UNUSABLE: " (not served)", Standing.LENIENT: " (not listed)"}
_SERVED: Final = {
    Standing.UNUSABLE: "no",
    Standing.LENIENT: "only by tools, prompts and the Skills Protocol; it is in no listing",
    Standing.VALID: "yes",
}


@click.command("list")
@roots
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
@limits
def list_(roots: tuple[str, ...], form: str, **options: Any) -> None:
    """List the skills below each ROOT, with those that cannot be served.

    PROBLEMS counts what a look at SKILL.md alone shows; `validate` reads every file.

    \b
    Examples:
      mcp-skills-server list ~/skills
      mcp-skills-server list ~/skills --format json
    """
    registry = make_registry(roots, options)
    registry.load()
    snapshot = registry.snapshot
    skills = [snapshot.skills[path] for path in snapshot.paths(Standing.UNUSABLE)]
    passed = _tell_of_passed(registry)
    if form == "json":
        found = {"skills": [_summary(skill) for skill in skills], "problems": [_as_json(p) for p in snapshot.problems]}
        say_json(found | {"passed_over": passed})
        return
    rows = [("PATH", "VERSION", "FILES", "BYTES", "PROBLEMS", "DESCRIPTION")]
    for skill in skills:
        told = _summary(skill)
        about = " ".join(str(told["description"]).split())
        state = str(told["problems"]) + _UNLISTED.get(skill.standing, "")
        rows.append((skill.path, str(told["version"] or ""), str(told["files"]), str(told["bytes"]), state, about))
    if skills:
        _table(rows)
    elif not passed:
        remark("no skill: no folder there has a SKILL.md")
    for problem in snapshot.problems:
        say(str(problem), err=True)


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="ROOT... NAME")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)
@sites
@limits
def show(arguments: tuple[str, ...], form: str, **options: Any) -> None:
    """Show one skill whole: its metadata, files with digests, instructions and problems.

    NAME is the skill's name or its path below its root.

    \b
    Examples:
      mcp-skills-server show ~/skills refunds
      mcp-skills-server show ~/skills acme/billing/refunds --format json
    """
    from mcp_skills_server.errors import RequestError
    from mcp_skills_server.format.nearest import nearest
    from mcp_skills_server.format.uris import uri
    from mcp_skills_server.model import SKILL_MD

    if len(arguments) < 2:
        raise UsageError("show takes one or more roots and then the name of a skill, as in 'show ~/skills refunds'")
    registry = make_registry(arguments[:-1], options)
    registry.load()
    try:
        skill = identity.find(registry.snapshot, arguments[-1], Standing.UNUSABLE)
    except RequestError as error:
        names = dict.fromkeys(each for path, found in registry.snapshot.skills.items() for each in (found.name, path))
        near = nearest(arguments[-1], names)
        hint = f"did you mean {' or '.join(near)}?" if near else "'list' shows what there is"
        raise UsageError(f"{error}; {hint}") from None
    problems = _in_order({*skill.problems, *registry.lint(skill)})
    readable = skill.standing > Standing.UNUSABLE
    told: dict[str, Any] = _summary(skill) | {
        "frontmatter": dict(skill.frontmatter),
        "files": [
            {"path": path, "uri": uri(skill.path, path), "size": file.size, "digest": file.digest}
            for path, file in skill.files.items()
        ],
        "problems": [_as_json(problem) for problem in problems],
        "instructions": registry.body(skill).text if readable and SKILL_MD in skill.files else "",
    }
    if form == "json":
        say_json(told)
        return
    for key in ("path", "name", "title", "version", "uri", "origin", "description"):
        if told[key]:
            say(f"{key + ':':13}{' '.join(str(told[key]).split())}")
    say(f"{'served:':13}{_SERVED[skill.standing]}")
    say("")
    _table(
        [
            ("FILE", "BYTES", "DIGEST"),
            *((path, str(file.size), file.digest or "") for path, file in skill.files.items()),
        ]
    )
    for problem in problems:
        say(str(problem))
    say("")
    say_lines(str(told["instructions"]))


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="How to print; github: annotations for a workflow.",
)
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@sites
@limits
def validate(paths: tuple[str, ...], form: str, strict: bool, **options: Any) -> int:
    """Check every skill at each PATH against the Agent Skills rules, and say how to mend what is wrong.

    A PATH is a skill, its SKILL.md, a folder of skills, an archive, or the address of a site. Each is looked at
    alone, and then all together, in the order given: which skill hides which. Exit code 1 when there are errors.

    \b
    Examples:
      mcp-skills-server validate ./my-skill
      mcp-skills-server validate ~/skills --strict --format github
    """
    registry = make_registry(paths, options)
    registry.load()
    passed = _tell_of_passed(registry)
    # A root alone first: what another one hides is to be sound, too, and may be served without the other.
    alone = [(root, registry.of_root(root)) for root in registry.roots]
    found: set[Problem] = {each for each in registry.problems() if each.code in _OF_SEVERAL}
    for _, snapshot in alone:
        found.update(each for each in registry.problems(snapshot) if each.code not in _OF_SEVERAL)
    skills = [skill for _, snapshot in alone for skill in snapshot.skills.values()]
    for skill in progress(skills, length=len(skills), label="Checking skills"):
        found.update(registry.lint(skill))
    for root, snapshot in alone:
        if not snapshot.skills and root.shown not in {each["root"] for each in passed}:
            remark(f"no skill at {root.shown}: no folder there has a SKILL.md")
    count = len(skills)
    problems = _in_order(found)
    errors = sum(problem.severity == "error" for problem in problems)
    ok = not (problems if strict else errors)
    if form == "json":
        told = {"ok": ok, "skills": count, "problems": [_as_json(problem) for problem in problems]}
        say_json(told | {"passed_over": passed})
    else:
        for problem in problems:
            say(_annotation(problem) if form == "github" else str(problem))
        told = (_counted(count, "skill"), _counted(errors, "error"), _counted(len(problems) - errors, "warning"))
        say(", ".join(told), err=form == "github")
    return 0 if ok else 1


def _tell_of_passed(registry: Registry) -> list[dict[str, Any]]:
    """Say on stderr which skills were passed over with their dot folders, and return the same for a program."""
    from mcp_skills_server.catalog.dot_folders import passed_over

    passed = passed_over(registry)
    for each in passed:
        remark(str(each))
    return [each.as_json() for each in passed]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _summary(skill: Skill) -> dict[str, Any]:
    from mcp_skills_server.format.uris import uri
    from mcp_skills_server.model import SKILL_MD, Standing

    return {
        "name": skill.name,
        "path": skill.path,
        "uri": uri(skill.path, SKILL_MD),
        "title": identity.title(skill),
        "description": skill.description,
        "version": identity.version(skill.frontmatter),
        "files": len(skill.files),
        "bytes": skill.size,
        "origin": skill.origin,
        "problems": len(skill.problems),
        "served": skill.standing is Standing.VALID,
    }


def _in_order(problems: Iterable[Problem]) -> list[Problem]:
    """By place, what has no line first; the same each time, whatever order a set has."""
    return sorted(problems, key=lambda each: (each.path, each.line or 0, each.code, each.message))


def _as_json(problem: Problem) -> dict[str, Any]:
    return {
        "path": problem.path,
        "skill": problem.skill,
        "severity": problem.severity,
        "code": problem.code,
        "message": problem.text,
        "line": problem.line,
    }


def _annotation(problem: Problem) -> str:
    def escaped(text: str, more: str = "") -> str:
        for character in "%\r\n" + more:
            text = text.replace(character, f"%{ord(character):02X}")
        return text

    line = f",line={problem.line}" if problem.line is not None else ""
    return (
        f"::{problem.severity} file={escaped(problem.path, ':,')}{line},"
        f"title={escaped(problem.code, ':,')}::{escaped(problem.text)}"
    )


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        last = row[-1] if len(row[-1]) <= 100 else row[-1][:97] + "..."
        say("  ".join([*cells, last]).rstrip())
