"""`list` and `show`: the skills of a folder, and their problems."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from mcp_skills_server.catalog.dot_folders import PassedOver, passed_over
from mcp_skills_server.catalog.index import code_mark, decode_problems
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.tree import ignored_in
from mcp_skills_server.commands.fields import takes
from mcp_skills_server.commands.opening import load_registry, make_registry
from mcp_skills_server.commands.options import (
    TableOptions,
    TextOptions,
    named_skill,
    optional_roots,
    roots_and_last,
)
from mcp_skills_server.commands.printing import (
    progress,
    remark,
    say,
    say_folded,
    say_json,
    say_lines,
    say_table,
)
from mcp_skills_server.commands.welcome import usual_roots
from mcp_skills_server.errors import listed
from mcp_skills_server.format import identity
from mcp_skills_server.format.uris import uri
from mcp_skills_server.installation import shell_command
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Standing
from mcp_skills_server.model.skill import whole_digest
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.validation.explanations import EXPLANATIONS

_OF_A_KIND: Final = 20
_PLACES: Final = 3
_COLOURS: Final = {"error": "red", "warning": "yellow", "note": "cyan"}
_FINDINGS: Final = "findings"
"""The kind of the findings in the index."""


def run_deep_checks(registry: Registry, skills: Collection[Skill]) -> None:
    """Run the deep checks of these skills; the registry keeps the results.

    Of a large set the registry's index keeps them, too, for the next process.
    """
    index = registry.index
    keys: dict[Skill, bytes] = {}
    if index is not None and len(skills) >= index.least:
        keys = {skill: _findings_key(registry, skill) for skill in skills}
    kept = index.memos(_FINDINGS, keys.values()) if index is not None else {}
    fresh: dict[bytes, bytes] = {}
    for skill in progress(skills, "Checking skills"):
        with suppress(KeyError, ValueError, TypeError, RecursionError):
            registry.checks.remember(skill, decode_problems(kept[keys[skill]]))
            continue
        problems = registry.checks.problems_of(skill)
        # the folder may have changed since the key was made
        if skill in keys and keys[skill] == _findings_key(registry, skill):
            fresh[keys[skill]] = json.dumps(problems).encode()
    if index is not None and fresh:
        index.save_memos(_FINDINGS, fresh)


def _findings_key(registry: Registry, skill: Skill) -> bytes:
    """Return a digest of all that the findings of a skill's deep checks depend on."""
    root = registry.roots[skill.root]
    located = root.locate(skill.directory)
    given = [
        (code_mark(), registry.limits, root.shown),
        (skill.path, skill.directory, skill.standing, skill.nested, skill.empty),
        [(path, file.size, file.digest, file.executable) for path, file in skill.files.items()],
        ignored_in(located.base, located.rest),
    ]
    return hashlib.sha256(json.dumps(given).encode()).digest()


def clustered(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems in order, but only one for many of one rule and advice.

    Many are two notes, or more than 20 others of one skill.
    """
    given, clusters = list(problems), defaultdict[tuple[str, ...], list[Problem]](list)
    for problem in given:
        clusters[_cluster_of(problem)].append(problem)
    for problem in given:
        cluster = clusters[_cluster_of(problem)]
        if len(cluster) <= (1 if problem.severity == "note" else _OF_A_KIND):
            yield problem
        elif problem is cluster[0]:
            yield _summarized(cluster)


def _cluster_of(problem: Problem) -> tuple[str, ...]:
    skill = "" if problem.severity == "note" else problem.skill
    return problem.severity, problem.code, problem.hint, skill


def _summarized(cluster: Sequence[Problem]) -> Problem:
    """Return one problem with the number of these and the first places."""
    first = cluster[0]
    what = first.message
    if first.code in EXPLANATIONS and any(problem.message != what for problem in cluster):
        what = EXPLANATIONS[first.code].what
    # `commonpath` refuses absolute and relative paths together, and would shorten an address.
    start = os.path.commonprefix([problem.path for problem in cluster])  # noqa: RUF071
    folder = start.rpartition(os.sep)[0] or os.curdir
    places = {problem.place.removeprefix(folder + os.sep): None for problem in cluster}
    message = f"{what}, {len(cluster):,} times: {listed(places, _PLACES)}"
    return first._replace(path=folder, line=None, column=None, message=message)


def say_problem(problem: Problem, *, err: bool = False) -> None:
    """Print a problem, on a terminal with its severity in colour."""
    say_folded(str(problem), {problem.severity: _COLOURS[problem.severity]}, err=err)


def remark_problems(registry: Registry) -> None:
    """Print on stderr the number of problems of checked skills, and the command to list them."""
    summary = registry.checks.survey(registry.snapshot).summary
    if summary:
        roots = shell_command([root.shown for root in registry.roots])
        remark(f"{summary}; 'mcp-skills-server validate {roots}' shows each")


@click.command("list")
@optional_roots
@takes(TableOptions)
def list_(options: TableOptions, roots: tuple[str, ...]) -> int:
    """List the skills below each ROOT, with those that cannot be served.

    Without a ROOT it takes the usual folders that have skills, such as ~/.claude/skills.

    PROBLEMS counts what `validate` reports of each skill. Exit code 1 when a ROOT has no skill.

    \b
    Examples:
      mcp-skills-server list ~/skills
      mcp-skills-server list ~/skills --format json
    """
    registry = make_registry(roots or usual_roots(), options, indexed=True)
    registry.load()
    snapshot = registry.snapshot
    skills = [snapshot.skills[path] for path in snapshot.paths(Standing.UNUSABLE)]
    run_deep_checks(registry, skills)
    problems = registry.problems()
    counts = Counter(problem.skill for problem in problems)
    empty, passed = report_absent(registry)
    remote = [root for root in registry.roots if root.origin]
    sources = [{"root": root.shown, "revision": root.revision or None} for root in remote]
    if options.form == "json":
        say_json(
            {
                "skills": [_summary(registry, skill, counts[skill.path]) for skill in skills],
                "problems": [problem._asdict() for problem in problems],
                "passed_over": passed,
                "sources": sources,
            }
        )
        return int(bool(empty))
    if skills:
        _say_skills(registry, skills, counts)
    for root in remote:
        revision = root.revision or "unknown, since the copy is incomplete"
        say(f"{root.shown}: revision {revision}", err=True)
    for problem in clustered(snapshot.problems):
        say_problem(problem, err=True)
    remark_problems(registry)
    return int(bool(empty))


def _say_skills(registry: Registry, skills: Iterable[Skill], counts: Mapping[str, int]) -> None:
    """Print a table of skills; `counts` has the number of problems by path."""
    colours: dict[int, str] = {}
    rows: list[tuple[str, ...]] = []
    for skill in skills:
        count = counts[skill.path]
        state = str(count)
        if skill.standing < Standing.VALID:
            state += f" ({skill.standing.shown})"
            colours[len(rows)] = "red"
        elif registry.freshness.judge(skill).is_stale:
            state += " (stale)"
            colours[len(rows)] = "yellow"
        elif count:
            colours[len(rows)] = "yellow"
        version = identity.version(skill.frontmatter) or ""
        about = " ".join(skill.description.split())
        rows.append((skill.path, version, str(len(skill.files)), str(skill.size), state, about))
    header = ("PATH", "VERSION", "FILES", "BYTES", "PROBLEMS", "DESCRIPTION")
    say_table(header, rows, colours=colours)


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="ROOT... NAME")
@takes(TextOptions)
def show(options: TextOptions, arguments: tuple[str, ...]) -> None:
    """Show one skill whole: its metadata, files with digests, instructions and problems.

    NAME is the skill's name or its path below its root.

    \b
    Examples:
      mcp-skills-server show ~/skills refunds
      mcp-skills-server show ~/skills acme/billing/refunds --format json
    """
    usage = "show takes one or more roots and then a skill, as in 'show ~/skills refunds'"
    roots, name = roots_and_last(arguments, usage)
    registry = load_registry(roots, options)
    skill = named_skill(registry, name, Standing.UNUSABLE)
    registry.checks.problems_of(skill)
    problems = [
        *registry.checks.survey(registry.snapshot).by_skill.get(skill.path, ()),
        *registry.freshness.judge(skill).problems,
    ]
    readable = skill.standing > Standing.UNUSABLE
    with Runtime(registry) as runtime:
        listed = runtime.whole.briefing.shown_part(skill)
    details: dict[str, Any] = _summary(registry, skill, len(problems)) | {
        "frontmatter": dict(skill.frontmatter),
        "files": [
            {"path": path, "uri": uri(skill.path, path), "size": file.size, "digest": file.digest}
            for path, file in skill.files.items()
        ],
        "problems": [problem._asdict() for problem in problems],
        "digest": whole_digest(skill),
        "revision": registry.roots[skill.root].revision or None,
        "listed": listed,
        "instructions": registry.body(skill).text if readable and SKILL_MD in skill.files else "",
    }
    if options.form == "json":
        say_json(details)
        return
    details["models see"] = details.pop("listed")
    if skill.standing is Standing.LENIENT:
        details["standing"] += "; tools, prompts and the Skills Protocol have it"
    for key, value in details.items():
        if value and isinstance(value, str) and key != "instructions":
            say(f"{key + ':':13}{' '.join(value.split())}")
    say("")
    rows = [(path, str(file.size), file.digest or "") for path, file in skill.files.items()]
    say_table(("FILE", "BYTES", "DIGEST"), rows)
    for problem in clustered(problems):
        say_problem(problem)
    say("")
    say_lines(str(details["instructions"]))


def report_absent(registry: Registry) -> tuple[list[str], list[dict[str, Any]]]:
    """Print on stderr roots without skills and skills skipped in dot folders; return both.

    What is returned also has the skills in no plugin, which are problems.
    """
    passed = passed_over(registry)
    for skipped in passed:
        remark(str(skipped))
    empty: list[str] = []
    for root in registry.roots:
        snapshot = registry.of_root(root)
        if not snapshot.skills:
            empty.append(root.shown)
        unlisted = [
            problem.path for problem in snapshot.problems if problem.code == "plugin-unlisted"
        ]
        if unlisted:
            folders = tuple(
                Path(os.path.relpath(folder, root.shown)).as_posix() for folder in unlisted
            )
            passed.append(PassedOver(root.shown, len(folders), folders, reason="no-plugin"))
    for root in empty:
        if root not in {skipped_root.root for skipped_root in passed}:
            hint = "give a folder of skills, each with a SKILL.md, or begin one with 'new'"
            remark(f"no skill to serve at {root}; {hint}")
    return empty, [skipped_root._asdict() for skipped_root in passed]


def _summary(registry: Registry, skill: Skill, problems: int) -> dict[str, Any]:
    """Return the fields of a skill with this number of problems that `list` shows."""
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
        "problems": problems,
        "served": skill.standing is Standing.VALID,
        "standing": skill.standing.shown,
        "stale": registry.freshness.judge(skill).is_stale,
    }
