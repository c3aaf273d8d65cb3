"""The command line. Nothing heavy is imported before a command needs it: a host starts us for every conversation.

stdout carries what was asked for, and under `serve` the protocol alone; every other word goes to stderr. Exit codes:
0 fine, 1 the input has errors, 2 wrong usage.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

import mcp_skills_server
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.scan import Limits
    from mcp_skills_server.model import Problem, Skill

_PROGRAM: Final = "mcp-skills-server"
_F = TypeVar("_F", bound=Callable[..., Any])


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. Bad usage is one line on stderr and exit code 2, never a traceback."""
    try:
        code = cli.main(arguments, prog_name=_PROGRAM, standalone_mode=False)
    except UsageError as error:
        _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else _PROGRAM
        _fail(f"{error.format_message()} See '{command} --help'.")
    except click.ClickException as error:
        _fail(error.format_message())
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    click.echo(f"{_PROGRAM}: {' '.join(message.split())}", err=True)
    sys.exit(2)


def _limits(command: _F) -> _F:
    """The options that bound a skill, with their environment variables."""
    for name, default, words in (
        ("depth", 6, "Levels of folders between a root and a skill."),
        ("bytes", 16 << 20, "Bytes of one skill, all files together."),
        ("files", 512, "Files of one skill."),
        ("skill-md", 1 << 20, "Bytes of a SKILL.md."),
    ):
        option = click.option(
            f"--max-{name}",
            type=click.IntRange(min=1),
            default=default,
            show_default=True,
            envvar=f"MCP_SKILLS_MAX_{name.upper().replace('-', '_')}",
            help=words,
        )
        command = option(command)
    return command


def _roots(command: _F) -> _F:
    return click.argument(
        "roots", nargs=-1, required=True, metavar="ROOT...", type=click.Path(), envvar="MCP_SKILLS_ROOTS"
    )(command)


def _registry(roots: tuple[str, ...], options: dict[str, Any]) -> Registry:
    from mcp_skills_server.catalog.registry import Registry

    return Registry(roots, _take_limits(options))


def _take_limits(options: dict[str, Any]) -> Limits:
    from mcp_skills_server.catalog.scan import Limits

    return Limits(*(options.pop(f"max_{name}") for name in ("skill_md", "files", "bytes", "depth")))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(mcp_skills_server.__version__, "-V", "--version", prog_name=_PROGRAM)
def cli() -> None:
    """Serve folders of Agent Skills (directories with a SKILL.md) to every MCP host.

    \b
    Examples:
      mcp-skills-server serve ~/skills          speak MCP on stdin and stdout
      mcp-skills-server list ~/skills           what would be served
      mcp-skills-server validate ~/skills       what is wrong, and how to mend it
    """


@cli.command()
@_roots
@click.option(
    "--dialect",
    type=click.Choice(["auto", "sep-2076", "sep-2640"]),
    default="auto",
    show_default=True,
    envvar="MCP_SKILLS_DIALECT",
    help="What skills/list and skills/get speak. auto: both, to each client what it can take.",
)
@click.option(
    "--watch/--no-watch",
    default=True,
    show_default=True,
    envvar="MCP_SKILLS_WATCH",
    help="Follow changes of the folders.",
)
@click.option(
    "--poll/--no-poll",
    default=False,
    show_default=True,
    envvar="MCP_SKILLS_POLL",
    help="Look at time stamps instead of waiting for events, for network file systems.",
)
@click.option(
    "--reconcile",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    envvar="MCP_SKILLS_RECONCILE",
    help="Look at everything again after so long, in case an event was lost.",
)
@click.option(
    "--page-size",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    envvar="MCP_SKILLS_PAGE_SIZE",
    help="Entries of one page of a listing.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    envvar="MCP_SKILLS_LOG_LEVEL",
    help="What is told on stderr.",
)
@_limits
def serve(roots: tuple[str, ...], **options: Any) -> None:
    """Serve the skills below each ROOT over MCP, on stdin and stdout.

    A ROOT is a folder that holds skills at any depth, or a skill itself. Of two skills with the same path the one of
    the earlier ROOT is served. Every option has an environment variable: MCP_SKILLS_PAGE_SIZE for --page-size, and
    MCP_SKILLS_ROOTS for the roots.

    \b
    Examples:
      mcp-skills-server serve ~/skills
      mcp-skills-server serve ./project-skills ~/skills --dialect sep-2640
      MCP_SKILLS_ROOTS=/skills mcp-skills-server serve
    """
    _log_to_stderr(options["log_level"])
    registry = _registry(roots, options)
    from mcp_skills_server.catalog.report import report_to_log

    report_to_log(registry)
    import anyio

    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.server.app import serve_stdio
    from mcp_skills_server.server.handlers import Settings

    settings = Settings(dialect=options["dialect"], page_size=options["page_size"])
    watcher = Watcher(registry, poll=options["poll"], reconcile=options["reconcile"]) if options["watch"] else None
    anyio.run(serve_stdio, registry, settings, watcher)
    # A client that has stopped reading may hold a thread in a write for ever, and would hold the process with it.
    sys.stderr.flush()
    os._exit(0)


def _log_to_stderr(level: str) -> None:
    import logging

    logging.basicConfig(stream=sys.stderr, format=f"{_PROGRAM}: %(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("mcp_skills_server").setLevel(level.upper())
    if level == "debug":
        logging.getLogger().setLevel(logging.DEBUG)


@cli.command("list")
@_roots
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
@_limits
def list_(roots: tuple[str, ...], form: str, **options: Any) -> None:
    """List the skills below each ROOT, with those that cannot be served.

    \b
    Examples:
      mcp-skills-server list ~/skills
      mcp-skills-server list ~/skills --format json
    """
    from mcp_skills_server.model import Standing

    registry = _registry(roots, options)
    registry.load()
    snapshot = registry.snapshot
    skills = [snapshot.skills[path] for path in snapshot.paths(Standing.UNUSABLE)]
    if form == "json":
        click.echo(json.dumps({"skills": [_summary(skill) for skill in skills]}, indent=2, ensure_ascii=False))
        return
    rows = [("PATH", "VERSION", "FILES", "BYTES", "PROBLEMS", "DESCRIPTION")]
    for skill in skills:
        told = _summary(skill)
        about = " ".join(str(told["description"]).split())
        state = str(told["problems"]) + ("" if told["served"] else " (not served)")
        rows.append((skill.path, str(told["version"] or ""), str(told["files"]), str(told["bytes"]), state, about))
    _table(rows)
    for problem in snapshot.problems:
        click.echo(str(problem), err=True)


@cli.command()
@click.argument("arguments", nargs=-1, required=True, metavar="ROOT... NAME")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)
@_limits
def show(arguments: tuple[str, ...], form: str, **options: Any) -> None:
    """Show one skill whole: its metadata, files with digests, instructions and problems.

    NAME is the skill's name or its path below its root.

    \b
    Examples:
      mcp-skills-server show ~/skills refunds
      mcp-skills-server show ~/skills acme/billing/refunds --format json
    """
    from mcp_skills_server.dialects import sep2076
    from mcp_skills_server.errors import RequestError
    from mcp_skills_server.format.uris import uri
    from mcp_skills_server.model import SKILL_MD, Standing

    if len(arguments) < 2:
        raise UsageError("show takes one or more roots and then the name of a skill, as in 'show ~/skills refunds'")
    registry = _registry(arguments[:-1], options)
    registry.load()
    try:
        skill = sep2076.find(registry.snapshot, arguments[-1], Standing.UNUSABLE)
    except RequestError as error:
        raise UsageError(f"{error}; 'list' shows what there is") from None
    problems = sorted({*skill.problems, *registry.inspect(skill)}, key=lambda each: (each.path, each.line or 0))
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
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    for key in ("path", "name", "title", "version", "uri", "description"):
        if told[key]:
            click.echo(f"{key + ':':13}{' '.join(str(told[key]).split())}")
    click.echo(f"{'served:':13}{'yes' if told['served'] else 'no'}\n")
    _table(
        [
            ("FILE", "BYTES", "DIGEST"),
            *((path, str(file.size), file.digest or "") for path, file in skill.files.items()),
        ]
    )
    for problem in problems:
        click.echo(str(problem))
    click.echo(f"\n{told['instructions']}")


@cli.command()
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
@_limits
def validate(paths: tuple[str, ...], form: str, strict: bool, **options: Any) -> int:
    """Check every skill at each PATH against the Agent Skills rules, and say how to mend what is wrong.

    A PATH is a skill, its SKILL.md, or a folder of skills. Exit code 1 when there are errors.

    \b
    Examples:
      mcp-skills-server validate ./my-skill
      mcp-skills-server validate ~/skills --strict --format github
    """
    limits = _take_limits(options)
    from mcp_skills_server.catalog.registry import Registry

    found: set[Problem] = set()
    count = 0
    for path in paths:
        registry = Registry([path], limits)
        registry.load()
        skills = registry.snapshot.skills.values()
        count += len(skills)
        found.update(registry.problems())
        for skill in skills:
            found.update(registry.inspect(skill))
        if not skills:
            click.echo(f"{_PROGRAM}: no skill at {path}: no folder there has a SKILL.md", err=True)
    problems = sorted(found, key=lambda each: (each.path, each.line or 0, each.code, each.message))
    errors = sum(problem.severity == "error" for problem in problems)
    ok = not (problems if strict else errors)
    if form == "json":
        told = {"ok": ok, "skills": count, "problems": [_as_json(problem) for problem in problems]}
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        for problem in problems:
            click.echo(_annotation(problem) if form == "github" else str(problem))
        click.echo(f"{count} skills, {errors} errors, {len(problems) - errors} warnings", err=form == "github")
    return 0 if ok else 1


def _summary(skill: Skill) -> dict[str, Any]:
    from mcp_skills_server.dialects import sep2076
    from mcp_skills_server.format.uris import uri
    from mcp_skills_server.model import SKILL_MD, Standing

    return {
        "name": skill.name,
        "path": skill.path,
        "uri": uri(skill.path, SKILL_MD),
        "title": sep2076.title(skill),
        "description": skill.description,
        "version": sep2076.version(skill.frontmatter),
        "files": len(skill.files),
        "bytes": skill.size,
        "problems": len(skill.problems),
        "served": skill.standing is Standing.VALID,
    }


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
        click.echo("  ".join([*cells, last]).rstrip())
