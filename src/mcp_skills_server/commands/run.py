"""`run` and `approve`: run a script as a server would, and approve scripts of fetched skills."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import click

from mcp_skills_server.commands.fields import Grouped, flag, many, takes, text
from mcp_skills_server.commands.opening import load_registry
from mcp_skills_server.commands.options import RootOptions, named_skill, roots_and_last
from mcp_skills_server.commands.printing import remark, say, say_lines
from mcp_skills_server.commands.runtime_options import (
    ApprovalOptions,
    ExecutionOptions,
    RuntimeOptions,
    SandboxOptions,
    script_settings,
)
from mcp_skills_server.dialects import runtime as dialect
from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.scripts.approvals import Approval, default_file, update
from mcp_skills_server.runtime.scripts.policy import canonical
from mcp_skills_server.runtime.scripts.runner import DryRun

_PLAIN: Final = frozenset(("HOME", "LANG", "PATH", "SKILL_DIR", "SKILL_WORKSPACE", "TMPDIR"))


class RunOptions(SandboxOptions, ExecutionOptions, RootOptions):
    files: tuple[str, ...] = many(
        "Copy this file into the work directory of the script, which sees no others of yours.",
        "FILE",
        "--file",
        type=click.Path(exists=True, dir_okay=False),
    )
    explain: bool = flag("Run nothing; print what would be executed, and what it may see.")


@click.command(cls=Grouped)
@click.argument("root")
@click.argument("skill")
@click.argument("script")
@click.argument("args", nargs=-1)
@takes(RunOptions)
def run(options: RunOptions, root: str, skill: str, script: str, args: tuple[str, ...]) -> int:
    """Run SCRIPT of SKILL as `serve --allow-scripts` would, in the sandbox, with ARGS.

    SKILL is the skill's name or its path, SCRIPT the path of a file in it. Options of the script
    stand behind `--`. A skill that was fetched needs its approval here, too. The exit code is that
    of the script; 1 where it was ended.

    \b
    Examples:
      mcp-skills-server run ~/skills csv-profiling scripts/profile_csv.py --file a.csv -- a.csv
      mcp-skills-server run ~/skills csv-profiling scripts/profile_csv.py --explain
    """
    registry = load_registry([root], options)
    found = named_skill(registry, skill)
    # The user who types the command allows the run; a client of a server does not.
    chosen = {name: value for name, value in vars(options).items() if hasattr(RuntimeOptions, name)}
    allowed = RuntimeOptions(**chosen, allow_scripts=True)
    with Runtime(registry, scripts=script_settings(allowed)) as runtime:
        scripts = runtime.scripts
        if scripts is None:
            raise UsageError("scripts cannot run here")
        workspace = scripts.workspace()
        if options.explain:
            _say_explained(scripts.explain(found, script, workspace, args))
            return 0
        copies = {os.path.basename(file): os.path.getsize(file) for file in options.files}
        if len(copies) < len(options.files):
            raise UsageError("--file: two files have the same name; rename one of them")
        fill = partial(_copy, options.files)
        outcome = anyio.run(partial(scripts.run, found, script, workspace, args=args, fill=fill))
    if outcome.stdout:
        say_lines(outcome.stdout.removesuffix("\n"))
    if outcome.stderr:
        say_lines(outcome.stderr.removesuffix("\n"), err=True)
    for file in outcome.files:
        if copies.get(file.path) == file.size:
            continue  # its time may be that of the run
        remark(f"it made {file.path} ({file.size:,} bytes), which goes with its work directory")
    return 1 if outcome.exit_code is None else outcome.exit_code


def _copy(files: Sequence[str], folder: str) -> None:
    for file in files:
        shutil.copyfile(file, os.path.join(folder, os.path.basename(file)))


def _say_explained(explained: DryRun) -> None:
    command, box = explained.command, explained.sandbox
    say(f"command:   {' '.join(command.argv)}")
    say(f"sandbox:   {'none: it has all rights of this user' if box is None else 'bubblewrap'}")
    for gap in () if box is None else box.gaps:
        say(f"           without {gap}")
    if box is not None:
        say("reads:     the files of the skill, the programs and libraries of the system")
        places = ["its work directory", "its temporary files", *map(str, explained.folders)]
        say(f"writes:    {', '.join(places)}")
    say(f"network:   {'yes' if explained.network or box is None else 'no'}")
    for name, value in sorted(command.env.items()):
        # values of other variables may be secrets
        say(f"variable:  {name}={value}" if name in _PLAIN else f"variable:  {name}")
    for name, value in sorted(command.limits.items()):
        say(f"limit:     {name} {value:,}")


class ApproveOptions(ApprovalOptions, RootOptions):
    digest: str | None = text("Approve only this digest, as in the server's message.", "DIGEST")
    revoke: bool = flag("Revoke the approval.")


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="ROOT... SKILL")
@takes(ApproveOptions)
def approve(options: ApproveOptions, arguments: tuple[str, ...]) -> None:
    """Let scripts of one skill of a site or an archive run, as long as no file of it changes.

    SKILL is the skill's name or its path. The server runs them if it was started with
    --allow-scripts and --allow-scripts-of ORIGIN; a running one need not be restarted. Read the
    skill first.

    \b
    Examples:
      mcp-skills-server show https://example.com refunds
      mcp-skills-server approve https://example.com refunds
      mcp-skills-server approve https://example.com refunds --revoke
    """
    usage = "approve takes roots and then a skill, as in 'approve https://example.com refunds'"
    roots, name = roots_and_last(arguments, usage)
    registry = load_registry(roots, options, proved=not options.revoke)
    skill = named_skill(registry, name)
    found = registry.digest_over(skill)
    if skill.origin is None:
        raise UsageError(f"{skill.path} is in your own folder; its scripts need no approval")
    origin = canonical(skill.origin)
    if not origin:
        raise UsageError(f"{skill.path}: its record of origin cannot be read; fetch it again")
    if options.digest is not None and options.digest != found:
        raise UsageError(f"{skill.path} now has the digest {found}; read the skill again")
    file = Path(options.approvals) if options.approvals is not None else default_file()

    def changed(known: tuple[Approval, ...]) -> list[Approval]:
        others = [each for each in known if (each.origin, each.skill) != (origin, skill.path)]
        if options.revoke:
            return [each for each in others if (each.origin, each.digest) != (origin, found)]
        return [*others, Approval(origin, skill.path, found, float(int(time.time())))]

    update(file, changed)
    if options.revoke:
        say(f"{skill.path} from {origin}: no longer approved")
        return
    say(f"{skill.path} from {origin}: approved with the digest {found}")
    for path in dialect.scripts_of(skill):
        say(f"  {path}")
