"""`approve`: allow the scripts of one skill from elsewhere, as it stands now."""

from __future__ import annotations

import time
from pathlib import Path

import click

from mcp_skills_server.commands.fields import flag, option, takes
from mcp_skills_server.commands.opening import make_registry
from mcp_skills_server.commands.options import RootOptions, named_skill, roots_and_last
from mcp_skills_server.commands.printing import say
from mcp_skills_server.commands.runtime_options import ApprovalOptions
from mcp_skills_server.errors import StaleFileError, UsageError


class ApproveOptions(ApprovalOptions, RootOptions):
    """All options of `approve`."""

    digest: str | None = option(
        None, "Approve only what has this digest, as the server's message has it.", metavar="DIGEST"
    )
    revoke: bool = flag("Take the approval back.")


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="ROOT... SKILL")
@takes(ApproveOptions)
def approve(options: ApproveOptions, arguments: tuple[str, ...]) -> None:
    """Let scripts of one skill of a site or an archive run, as long as no file of it changes.

    SKILL is the skill's name or its path. The server runs them if it was started with --allow-scripts and
    --allow-scripts-of ORIGIN; a running one need not be started again. Read the skill first.

    \b
    Examples:
      mcp-skills-server show https://example.com refunds
      mcp-skills-server approve https://example.com refunds
      mcp-skills-server approve https://example.com refunds --revoke
    """
    from mcp_skills_server.dialects import runtime
    from mcp_skills_server.runtime.scripts.approvals import Approval, change, default_file
    from mcp_skills_server.runtime.scripts.policy import canonical

    roots, name = roots_and_last(
        arguments, "approve takes one or more roots and then a skill, as in 'approve https://example.com refunds'"
    )
    registry = make_registry(roots, options, proved=not options.revoke)
    registry.load()
    skill = named_skill(registry, name)
    try:
        found = registry.digest_over(skill)
    except StaleFileError as error:
        raise UsageError(f"{error.path}: cannot be read ({error.reason or 'it changed'}); try again") from None
    if skill.origin is None:
        raise UsageError(f"{skill.path} is in one of your own folders; its scripts need no approval")
    origin = canonical(skill.origin)
    if not origin:
        raise UsageError(f"{skill.path}: its record of origin cannot be read; fetch it again")
    if options.digest is not None and options.digest != found:
        raise UsageError(f"{skill.path} has the digest {found} and not the one given; read the skill again")
    file = Path(options.approvals) if options.approvals is not None else default_file()

    def others(known: tuple[Approval, ...]) -> list[Approval]:
        return [each for each in known if (each.origin, each.skill) != (origin, skill.path)]

    if options.revoke:
        change(file, lambda known: [each for each in others(known) if (each.origin, each.digest) != (origin, found)])
        say(f"{skill.path} from {origin}: not approved any more")
        return
    approval = Approval(origin, skill.path, found, float(int(time.time())))
    change(file, lambda known: [*others(known), approval])
    say(f"{skill.path} from {origin}: approved with the digest {found}")
    for path in runtime.scripts_of(skill):
        say(f"  {path}")
