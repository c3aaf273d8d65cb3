"""`run`: run a script of a skill as a server would."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import click

from mcp_skills_server.commands.fields import Grouped, flag, takes
from mcp_skills_server.commands.opening import make_registry
from mcp_skills_server.commands.options import RootOptions, named_skill, reading
from mcp_skills_server.commands.printing import remark, say, say_lines
from mcp_skills_server.commands.runtime_options import ExecutionOptions, RuntimeOptions, SandboxOptions, make_runtime
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.model import Skill

if TYPE_CHECKING:
    from mcp_skills_server.runtime.scripts.outcome import Outcome
    from mcp_skills_server.runtime.scripts.runner import Explained, Scripts
    from mcp_skills_server.runtime.scripts.workspace import Workspace


_PLAIN: Final = frozenset(("HOME", "LANG", "PATH", "SKILL_DIR", "SKILL_WORKSPACE", "TMPDIR"))


class RunOptions(SandboxOptions, ExecutionOptions, RootOptions):
    """All options of `run`."""

    explain: bool = flag("Run nothing; print what would be executed, and what it may see.")


@click.command(cls=Grouped)
@click.argument("root")
@click.argument("skill")
@click.argument("script")
@click.argument("args", nargs=-1)
@takes(RunOptions)
def run(options: RunOptions, root: str, skill: str, script: str, args: tuple[str, ...]) -> int:
    """Run SCRIPT of SKILL as `serve --allow-scripts` would, in the sandbox, with ARGS.

    SKILL is the skill's name or its path, SCRIPT the path of a file in it. Options of the script stand behind `--`. A
    skill that was fetched needs its approval here, too. The exit code is that of the script; 1 where it was ended.

    \b
    Examples:
      mcp-skills-server run ~/skills csv-profiling scripts/profile.py -- data.csv --quick
      mcp-skills-server run ~/skills csv-profiling scripts/profile.py --explain
    """
    import anyio

    from mcp_skills_server.runtime.runtime import RuntimeSettings

    registry = make_registry([root], options)
    registry.load()
    found = named_skill(registry, skill)
    # The user who types the command allows the run; a client of a server does not.
    chosen = {name: value for name, value in vars(options).items() if hasattr(RuntimeOptions, name)}
    with make_runtime(registry, RuntimeOptions(**chosen, allow_scripts=True), RuntimeSettings()) as runtime:
        scripts = runtime.scripts
        if scripts is None:
            raise UsageError("scripts cannot run here")
        workspace = scripts.workspace()
        try:
            with reading():
                if options.explain:
                    _say_explained(scripts.explain(found, script, workspace, args))
                    return 0
                outcome = anyio.run(partial(_run, scripts, found, script, workspace, args))
        except RequestError as error:
            raise UsageError(str(error)) from None
    if outcome.stdout:
        say_lines(outcome.stdout.removesuffix("\n"))
    if outcome.stderr:
        say_lines(outcome.stderr.removesuffix("\n"), err=True)
    for file in outcome.files:
        remark(f"it made {file.path} ({file.size:,} bytes), which is removed with its work directory")
    return 1 if outcome.exit_code is None else outcome.exit_code


async def _run(scripts: Scripts, skill: Skill, path: str, workspace: Workspace, args: tuple[str, ...]) -> Outcome:
    return await scripts.run(skill, path, workspace, args=args)


def _say_explained(explained: Explained) -> None:
    command, box = explained.command, explained.box
    say(f"command:   {' '.join(command.argv)}")
    say(f"sandbox:   {'none: it has all rights of this user' if box is None else 'bubblewrap'}")
    for gap in () if box is None else box.gaps:
        say(f"           without {gap}")
    if box is not None:
        say("reads:     the files of the skill, the programs and libraries of the system")
        say(f"writes:    its work directory, its temporary files{''.join(f', {each}' for each in explained.folders)}")
    say(f"network:   {'yes' if explained.network or box is None else 'no'}")
    for name, value in sorted(command.env.items()):
        say(f"variable:  {name}={value}" if name in _PLAIN else f"variable:  {name}")  # the others may be secrets
    for name, value in sorted(command.limits.items()):
        say(f"limit:     {name} {value:,}")
