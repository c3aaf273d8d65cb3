"""`diff`: compare two roots, or a lock file with its sources as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mcp_skills_server.commands.fields import option, takes
from mcp_skills_server.commands.lock import Moved, SourceOffer, moves, offered, read_lock
from mcp_skills_server.commands.options import SignedRootOptions, reading
from mcp_skills_server.commands.printing import say, say_lines
from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.kinds import kind_of

if TYPE_CHECKING:
    from mcp_skills_server.model import Skill
    from mcp_skills_server.provenance.difference import Difference, Files


class DiffOptions(SignedRootOptions):
    """All options of `diff`."""

    lock: str | None = option(None, "Compare what this lock file names with what is there now.", metavar="FILE")


@click.command()
@click.argument("pair", nargs=-1, metavar="[A B]")
@takes(DiffOptions)
def diff(options: DiffOptions, pair: tuple[str, ...]) -> int:
    """Show what is different between two roots, A and B, or between a lock file and the newest.

    Of each skill a reviewer sees first what decides when it is used and what it may do: description, allowed-tools,
    scripts, hidden text, links. Then come the other fields and a unified diff of the text files. Exit code 0 where
    nothing is different, 1 where something is.

    \b
    Examples:
      mcp-skills-server diff ./skills git+https://git.example/acme/skills
      mcp-skills-server diff --lock skills.lock
    """
    said = click.get_current_context().get_parameter_source("lock") is ParameterSource.COMMANDLINE
    if pair and said:
        raise UsageError("diff takes two roots or --lock FILE, not both")
    if options.lock is not None and not pair:
        return int(sum(map(_shown, _since_lock(options.lock, options))) > 0)
    if len(pair) != 2:
        raise UsageError("diff takes two roots, as in 'diff A B', or --lock FILE")
    with ExitStack() as opened:
        before, after = (_alone(opened, each, options) for each in pair)
        return int(sum(map(_shown, _between(before, after, None))) > 0)


def _since_lock(path: str, options: SignedRootOptions) -> Iterable[Difference]:
    with moves(read_lock(path), options) as moved:
        for each in moved:
            yield from _since(each, options)


def _since(moved: Moved, options: SignedRootOptions) -> Iterable[Difference]:
    from mcp_skills_server.provenance.difference import Difference

    source, kinds = moved.source, moved.kinds
    if kinds and kind_of(source.given).keeps_history:
        with ExitStack() as opened:
            yield from _between(_alone(opened, source.given, options, source.revision), moved.offer, {*kinds})
        return
    for skill, kind in kinds.items():
        if kind == "added":
            yield from _between(None, moved.offer, {skill})
        else:
            yield Difference(skill, kind, (), ("its locked text is no longer to be had from this source",))


def _alone(opened: ExitStack, root: str, options: SignedRootOptions, pin: str | None = None) -> SourceOffer:
    _, (offer,) = opened.enter_context(offered([root], options, pin))
    return offer


def _between(before: SourceOffer | None, after: SourceOffer, only: set[str] | None) -> Iterable[Difference]:
    from mcp_skills_server.provenance.difference import compare

    there: Mapping[str, Skill] = before.skills if before is not None else {}
    for path in sorted(there.keys() | after.skills.keys()):
        if only is not None and path not in only:
            continue
        if before is not None and path in there and path in after.skills and _same(before, after, path):
            continue
        found = compare(path, None if before is None else _files(before, path), _files(after, path))
        if found is not None:
            yield found


def _same(before: SourceOffer, after: SourceOffer, path: str) -> bool:
    """Tell whether nothing is different; the digests that are known already say so without the bytes."""
    one, other = before.skills[path], after.skills[path]
    modes = [(each, file.executable) for each, file in one.files.items()]
    if modes != [(each, file.executable) for each, file in other.files.items()]:
        return False
    with reading():
        return before.registry.digest_over(one) == after.registry.digest_over(other)


def _files(offer: SourceOffer, path: str) -> Files | None:
    skill = offer.skills.get(path)
    if skill is None:
        return None
    with reading():
        read = offer.registry.read_all(skill)
    return {each: (raw, skill.files[each].executable) for each, raw in read.items()}


def _shown(found: Difference) -> bool:
    say(f"{found.path}: {found.kind}")
    for line in found.first:
        say(f"  {line}")
    say_lines("\n".join(found.rest) if found.rest else "")
    return True
