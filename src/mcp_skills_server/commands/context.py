"""`context`: what the model of a host is shown of the skills."""

from __future__ import annotations

from typing import Any, Literal

import click

from mcp_skills_server.commands.fields import choice, many, option, output_format, takes
from mcp_skills_server.commands.opening import make_registry
from mcp_skills_server.commands.options import RootOptions, named_skill, roots
from mcp_skills_server.commands.printing import remark, say, say_json, say_lines


class ContextOptions(RootOptions):
    """All options of `context`."""

    host: str = choice(
        "generic", "claude-code", "codex", "gemini-cli", "opencode", words="The host. generic: one that cuts nothing."
    )
    skills: tuple[str, ...] = many(
        "Also show what loading this skill brings. May be repeated.", "--skill", metavar="NAME"
    )
    budget: int | None = option(
        None, "Exit with 1 where what is shown unasked takes more.", type=click.IntRange(min=0), metavar="TOKENS"
    )
    form: Literal["text", "json"] = output_format("text", "json")


@click.command()
@roots
@takes(ContextOptions)
def context(options: ContextOptions, roots: tuple[str, ...]) -> int:
    """Show what the model of a host is shown of the skills below each ROOT, character for character, and its tokens.

    Unasked is what stands in each request of the host; with --skill also what a call of skills_load brings. Texts are
    those after the cuts of the host that were measured (docs/hosts.md).

    \b
    Examples:
      mcp-skills-server context ~/skills
      mcp-skills-server context ~/skills --host claude-code --skill refunds
      mcp-skills-server context ~/skills --host gemini-cli --budget 4000
    """
    import anyio

    from mcp_skills_server.authoring import context as contexts
    from mcp_skills_server.authoring.tokens import counter
    from mcp_skills_server.runtime.runtime import Runtime

    host = contexts.HOSTS[options.host]
    registry = make_registry(roots, options)
    registry.load()
    with Runtime(registry) as runtime:
        shown = contexts.unasked(runtime, host)
        parts = contexts.parts_shown(shown, runtime.briefing.overview.offers)
        wanted = [named_skill(registry, name) for name in options.skills]
        brought = [anyio.run(contexts.loaded, runtime, host, skill) for skill in wanted]
    count, rule = counter()
    total = sum(count(each.text) for each in shown)
    over = options.budget is not None and total > options.budget
    names = {part: [name for name, has in parts.items() if has == part] for part in ("whole", "shortened", "absent")}
    if options.form == "json":
        texts: dict[str, Any] = {
            key: [
                {"title": each.title, "text": each.text, "cut_characters": each.cut, "tokens": count(each.text)}
                for each in found
            ]
            for key, found in (("unasked", shown), ("loaded", brought))
        }
        say_json(
            {"host": options.host, "version": host.version, **texts, "skills": names}
            | {"tokens": total, "token_rule": rule, "ok": not over}
        )
        return int(over)
    for each in (*shown, *brought):
        cut = f"; the host leaves out {each.cut:,} characters" if each.cut else ""
        say(f"=== {each.title}: {len(each.text):,} characters, {count(each.text):,} tokens{cut}")
        say_lines(each.text)
        say("")
    say(f"{options.host}: {total:,} tokens unasked ({rule})")
    counts = f"{len(names['whole']):,} stand with their description, {len(names['shortened']):,} with less"
    say(f"of the skills {counts}, {len(names['absent']):,} are absent: skills_search finds them")
    if over:
        remark(f"{total:,} tokens are more than the budget of {options.budget:,}")
    return int(over)
