"""`scripts`: run a script as a server would, and approve scripts of fetched skills."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
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
from mcp_skills_server.runtime.scripts.runner import DryRun, RunRequest

_PLAIN: Final = frozenset(("HOME", "LANG", "PATH", "SKILL_DIR", "SKILL_WORKSPACE", "TMPDIR"))


@click.group()
def scripts() -> None:
    """Run a script of a skill as a server would, and approve scripts of fetched skills.

    \b
    Examples:
      mcp-skills-server scripts run ~/skills csv-profiling scripts/profile_csv.py -- a.csv
      mcp-skills-server scripts approve https://example.com refunds
    """


class RunOptions(SandboxOptions, ExecutionOptions, RootOptions):
    files: tuple[str, ...] = many(
        "Copy this file into the work directory, too, under its name.",
        "FILE",
        "--file",
        type=click.Path(exists=True, dir_okay=False),
    )
    explain: bool = flag("Run nothing; print what would be executed, and what it may see.")


@scripts.command(cls=Grouped)
@click.argument("root")
@click.argument("words", nargs=-1, required=True, metavar="[SKILL] SCRIPT [ARGS]...")
@takes(RunOptions)
def run(options: RunOptions, root: str, words: tuple[str, ...]) -> int:
    """Run SCRIPT of SKILL as `serve --allow-scripts` would, in the sandbox, with ARGS.

    SKILL is the skill's name or its path, which a ROOT of one skill does not need; SCRIPT is the
    path of a file in it. Options of the script stand behind `--`. The script sees copies of the
    files that ARGS name, and no others of yours, and reads your stdin, if that is no terminal. A
    skill that was fetched needs its approval here, too. The exit code is that of the script; 1
    where it was ended.

    \b
    Examples:
      mcp-skills-server scripts run ~/skills csv-profiling scripts/profile_csv.py -- a.csv
      mcp-skills-server scripts run ~/skills csv-profiling scripts/profile_csv.py --explain
    """
    registry = load_registry([root], options)
    skills = [*registry.snapshot.skills.values()]
    if len(skills) == 1 and words[0] in skills[0].files and words[0] != skills[0].name:
        words = (skills[0].name, *words)
    if len(words) == 1:
        example = "'scripts run ~/skills refunds pay.py'"
        raise UsageError(f"run takes a skill and a script, as in {example}")
    skill, script, *args = words
    target = named_skill(registry, skill)
    copies = _copies(options, args)
    # The user who types the command allows the run; a client of a server does not.
    # `run` has no options of `serve` about approval, so its own are copied one by one.
    chosen = {name: value for name, value in vars(options).items() if hasattr(RuntimeOptions, name)}
    allowed = RuntimeOptions(**chosen, allow_scripts=True)
    with Runtime(registry, scripts=script_settings(allowed)) as runtime:
        runner = runtime.scripts
        if runner is None:
            raise UsageError("scripts cannot run here")
        workspace = runner.workspace()
        if options.explain:
            request = RunRequest(skill=target, path=script, args=args)
            _say_explained(runner.explain(request, workspace))
            return 0
        sizes = {name: os.path.getsize(file) for name, file in copies.items()}
        fill = partial(_copy, copies)
        stdin = _piped_stdin()
        request = RunRequest(skill=target, path=script, args=args, fill=fill, stdin=stdin)
        outcome = anyio.run(runner.run, request, workspace)
    if outcome.stdout:
        say_lines(outcome.stdout.removesuffix("\n"))
    if outcome.stderr:
        say_lines(outcome.stderr.removesuffix("\n"), err=True)
    for file in outcome.files:
        if sizes.get(file.path) == file.size:
            continue  # its time may be that of the run
        remark(f"it made {file.path} ({file.size:,} bytes), which goes with its work directory")
    return 1 if outcome.exit_code is None else outcome.exit_code


def _copies(options: RunOptions, args: list[str]) -> Mapping[str, str]:
    """Return the user's files by the paths of their copies, to which the arguments are changed."""
    copies: dict[str, str] = {}
    for file in options.files:
        _add_copy(copies, os.path.basename(file), file)
    for position, arg in enumerate(args):
        option, equals, file = "", "", arg
        if arg.startswith("-"):  # the file may be the value of an option
            option, equals, file = arg.rpartition("=")
        if file in copies or not os.path.isfile(file):
            continue
        name, real = os.path.normpath(file), Path(os.path.realpath(file))
        if any(real.is_relative_to(os.path.realpath(shared)) for shared in options.script_folders):
            name = str(real)  # the script has this folder
        else:
            if os.path.isabs(name) or name.startswith(os.pardir):
                name = os.path.basename(name)
            _add_copy(copies, name, file)
        args[position] = f"{option}{equals}{name}"
    return copies


def _add_copy(copies: dict[str, str], name: str, file: str) -> None:
    if not os.path.samefile(copies.setdefault(name, file), file):
        raise UsageError(f"two files have the same name {name}; rename one of them")


def _copy(copies: Mapping[str, str], folder: str) -> None:
    for name, file in copies.items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        shutil.copyfile(file, os.path.join(folder, name))


def _piped_stdin() -> int | None:
    """Return the reading end of a pipe with what stdin has; None if that is a terminal.

    Through the descriptor of a file or a folder a script could leave the sandbox.
    """
    if sys.stdin.isatty():
        return None
    reader, writer = os.pipe()
    threading.Thread(target=_pump, args=(writer,), name="stdin", daemon=True).start()
    return reader


def _pump(writer: int) -> None:
    with suppress(OSError), open(writer, "wb") as pipe:  # the script may end before stdin does
        while chunk := os.read(sys.stdin.fileno(), 1 << 16):
            pipe.write(chunk)
            pipe.flush()


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


@scripts.command()
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
      mcp-skills-server scripts approve https://example.com refunds
      mcp-skills-server scripts approve https://example.com refunds --revoke
    """
    example = "'scripts approve https://example.com refunds'"
    usage = f"approve takes roots and then a skill, as in {example}"
    roots, name = roots_and_last(arguments, usage)
    registry = load_registry(roots, options, proved=not options.revoke)
    skill = named_skill(registry, name)
    digest = registry.digest_over(skill)
    if skill.origin is None:
        raise UsageError(f"{skill.path} is in your own folder; its scripts need no approval")
    origin = canonical(skill.origin)
    if not origin:
        raise UsageError(f"{skill.path}: its record of origin cannot be read; fetch it again")
    if options.digest is not None and options.digest != digest:
        raise UsageError(f"{skill.path} now has the digest {digest}; read the skill again")
    file = Path(options.approvals) if options.approvals is not None else default_file()

    def changed(known: tuple[Approval, ...]) -> list[Approval]:
        others = [
            approval
            for approval in known
            if (approval.origin, approval.skill) != (origin, skill.path)
        ]
        if options.revoke:
            # the digest alone allows scripts, so an approval at another path would still hold
            return [other for other in others if (other.origin, other.digest) != (origin, digest)]
        return [*others, Approval(origin, skill.path, digest, float(int(time.time())))]

    update(file, changed)
    if options.revoke:
        say(f"{skill.path} from {origin}: no longer approved")
        return
    say(f"{skill.path} from {origin}: approved with the digest {digest}")
    for path in dialect.scripts_of(skill):
        say(f"  {path}")
