"""`lock`, `update` and `diff`: pin sources to revisions, and show later changes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, Literal

import click
from click.core import ParameterSource

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.fields import flag, option, output_format, takes
from mcp_skills_server.commands.lock_files import if_path, read_lock
from mcp_skills_server.commands.logs import log_to_stderr
from mcp_skills_server.commands.look import report_absent
from mcp_skills_server.commands.opening import UNFETCHED, open_roots
from mcp_skills_server.commands.options import SignedRootOptions, roots_argument
from mcp_skills_server.commands.printing import remark, say, say_json, say_lines
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.model import Standing
from mcp_skills_server.provenance import lock as lock_file
from mcp_skills_server.provenance.difference import Difference, compare
from mcp_skills_server.provenance.lock import LockedSource
from mcp_skills_server.provenance.updates import (
    KINDS,
    SourceChange,
    SourceOffer,
    compare_sources,
    merge_entries,
    without_hidden,
)
from mcp_skills_server.sources.kinds import kind_of
from mcp_skills_server.sources.oci.reference import TAGS

_DEFAULT: Final = "skills.lock"


class UpdateOptions(SignedRootOptions):
    lock: str = option(_DEFAULT, "The lock file.", metavar="FILE")
    update_check: bool = flag(
        "Write nothing; only show what has changed in the sources.", "--check"
    )
    form: Literal["text", "json"] = output_format("text", "json")


class LockOptions(SignedRootOptions):
    output: str = option(_DEFAULT, "The file to write.", metavar="FILE")


class DiffOptions(SignedRootOptions):
    lock: str | None = option(None, "Compare this lock file with its sources now.", metavar="FILE")


def _open_sources(
    given: Sequence[str],
    options: SignedRootOptions,
    pin: str | None = None,
    *,
    commands: Iterable[str] = (),
) -> list[SourceOffer]:
    """Open these roots together, as `serve` does: an earlier root hides equal paths of later ones.

    Skills without a signature that the options or a `[[source]]` require are not locked, and named
    on stderr. `pin` is the revision of each root, None for the newest. Of the commands among the
    roots, only those in `commands` or in the configuration file are started.
    """
    log_to_stderr("warning")
    configured = options.config.values.get("roots", ()) if options.config else ()
    opened = open_roots(given, options, pin=pin, commands=[*commands, *configured])
    registry, revisions = opened.registry, dict[str, str]()
    if opened.mirrors is not None:
        opened.mirrors.fetch(proved=True)
        for follower in opened.mirrors.followers:
            if not follower.state.revision:
                raise UsageError(f"{follower.name}: {UNFETCHED}; try again later")
            revisions[os.path.abspath(follower.path)] = follower.state.revision
    registry.load()
    if len(registry.roots) < len(given):
        shown = ", ".join(given)
        raise UsageError(f"{shown}: two of these are the same folder; name it once")
    snapshot = registry.snapshot
    for problem in snapshot.problems:
        if problem.code.startswith("signature-"):
            remark(f"not locked: {problem.path}: {problem.message}")
    offers = [
        SourceOffer(text, revisions.get(root.given, ""), {}, registry)
        for text, root in zip(given, registry.roots, strict=True)
    ]
    for path in snapshot.paths(Standing.LENIENT):
        skill = snapshot.skills[path]
        offers[skill.root].skills[path] = skill
    return offers


def _changes(path: str, options: SignedRootOptions) -> list[SourceChange]:
    """Return the changes of each source of a lock file."""
    locked = read_lock(path)
    given = list(dict.fromkeys(source.given for source in locked))
    return compare_sources(locked, _open_sources(given, options))


def _write_lock(path: str, sources: Sequence[LockedSource]) -> None:
    """Replace a lock file; relative paths are rewritten to start from its folder."""
    folder = os.path.dirname(path) or "."

    def from_folder(given: str) -> str:
        if os.path.isabs(given):
            return given
        return Path(os.path.relpath(given, folder)).as_posix()

    moved = [replace(source, given=if_path(from_folder, source.given)) for source in sources]
    lock_file.write(Path(path), moved)


@click.command()
@roots_argument
@takes(LockOptions)
def lock(options: LockOptions, roots: tuple[str, ...]) -> int:
    """Write a lock file: the revision of each ROOT now, and the digest of each of its skills.

    `serve --lock` serves exactly these skills. A skill that cannot be served, or is hidden by that
    of an earlier ROOT, is not locked but named on stderr. A ROOT without any skill is an error, and
    nothing is written.

    \b
    Examples:
      mcp-skills-server lock git+https://git.example/acme/skills ./our-skills
      mcp-skills-server serve --lock skills.lock --frozen
    """
    if click.get_current_context().get_parameter_source("roots") is ParameterSource.DEFAULT_MAP:
        # The configuration makes paths absolute; in a lock file they are relative to it.
        roots = tuple(if_path(os.path.relpath, root) for root in roots)
    given = [*dict.fromkeys(roots)]
    offers = _open_sources(given, options, commands=given)
    registry = offers[0].registry
    sources = [offer.locked() for offer in offers]
    _remark_not_locked(registry)
    if report_absent(registry)[0]:
        remark(f"{options.output} was not written")
        return 1
    _write_lock(options.output, sources)
    count = sum(len(source.skills) for source in sources)
    remark(f"{options.output}: {plural(count, 'skill')} of {plural(len(sources), 'source')}")
    return 0


def _remark_not_locked(registry: Registry) -> None:
    for path, skill in registry.snapshot.skills.items():
        if skill.standing is Standing.UNUSABLE:
            reason = next((problem.message for problem in skill.problems), "")
            remark(f"not locked: {path}, which cannot be served: {reason}")
    for problem in registry.problems():
        is_lost = problem.skill and problem.skill not in registry.snapshot.skills
        is_error = problem.severity == "error" and not problem.code.startswith("signature-")
        if problem.code == "shadowed" or (is_lost and is_error):
            remark(f"not locked: {problem.path}: {problem.message}")


@click.command()
@click.argument("names", nargs=-1, metavar="[SOURCE|SKILL]...")
@takes(UpdateOptions)
def update(options: UpdateOptions, names: tuple[str, ...]) -> int:
    """Update the pins of a lock file to the current state of its sources, and show what changed.

    SOURCE is a source as the lock file has it, SKILL the name or path of one of its skills, to
    update it alone; without any, everything is updated. With --check the exit code is 0 if nothing
    is new, 1 if something is.

    \b
    Examples:
      mcp-skills-server update --check
      mcp-skills-server update
      mcp-skills-server update refunds
    """
    changes = _changes(options.lock, options)
    chosen = _named(changes, names, options.lock)
    is_new = any(change.kinds for change in chosen)
    if options.form == "json":
        say_json([_as_json(change) for change in chosen])
    elif is_new:
        _say_changes(chosen)
    else:
        named = f" of {', '.join(names)}" if names else ""
        remark(f"nothing{named} is new: the skills match {options.lock}")
    if options.update_check:
        return int(is_new)
    entries: list[LockedSource] = []
    for change, part in zip(changes, chosen, strict=True):
        entries += change.entries(part.kinds, keeps_history=_keeps_history(change.source))
    kept, hidden = without_hidden(merge_entries(entries))
    for line in hidden:
        remark(f"not locked: {line}")
    _write_lock(options.lock, kept)
    return 0


def _named(
    changes: Sequence[SourceChange], names: Sequence[str], lock: str
) -> Sequence[SourceChange]:
    """Return the sources with only the changes of these sources and skills; all without names."""
    if not names:
        return changes
    sources = {change.source.given for change in changes}
    paths = {path for change in changes for path in (*change.source.skills, *change.newest.skills)}
    wanted = {name if name in sources else _path_of(name, paths, lock) for name in names}
    chosen: list[SourceChange] = []
    for change in changes:
        kinds = change.kinds
        if change.source.given not in wanted:
            kinds = {path: kind for path, kind in kinds.items() if path in wanted}
        chosen.append(change._replace(kinds=kinds))
    return chosen


def _as_json(change: SourceChange) -> dict[str, object]:
    revisions = {"locked": change.source.revision, "newest": change.newest.revision}
    paths = {kind: change.paths(kind) for kind in KINDS}
    return {"from": change.source.given, **revisions, **paths}


def _say_changes(changes: Iterable[SourceChange]) -> None:
    for change in changes:
        if change.kinds:
            versions = (change.source.revision, change.newest.revision)
            before, after = (version.removeprefix("sha256:")[:12] for version in versions)
            move = f" {before} -> {after}" if before != after else ""
            say(f"{change.source.given}:{move}")
        for kind in KINDS:
            for path in change.paths(kind):
                say(f"  {kind:8} {path}")


def _path_of(name: str, paths: Collection[str], lock: str) -> str:
    """Return the path of the skill of this name or path, or raise UsageError."""
    if name in paths:
        return name
    matching = sorted(path for path in paths if path.endswith(f"/{name}"))
    if len(matching) > 1:
        raise UsageError(f"{name}: several skills have this name; write {' or '.join(matching)}")
    if not matching:
        hint = "'update --check' shows what is new"
        raise UsageError(f"{name}: {lock} has no such source or skill; {hint}")
    return matching[0]


@click.command()
@click.argument("pair", nargs=-1, metavar="[A B]")
@takes(DiffOptions)
def diff(options: DiffOptions, pair: tuple[str, ...]) -> int:
    """Show the differences between two roots, A and B, or between a lock file and its sources.

    For each skill, changes of its use and permissions come first: description, allowed-tools,
    scripts, hidden text, links. Then come the other fields and a unified diff of the text files.
    Exit code 0 if nothing is different, 1 if something is.

    \b
    Examples:
      mcp-skills-server diff ./skills git+https://git.example/acme/skills
      mcp-skills-server diff --lock skills.lock
    """
    source = click.get_current_context().get_parameter_source("lock")
    if pair and source is ParameterSource.COMMANDLINE:  # elsewhere --lock is for other commands
        raise UsageError("diff takes two roots or --lock FILE, not both")
    if options.lock is not None and not pair:
        changes = _changes(options.lock, options)
        shown = chain.from_iterable(_differences_since(change, options) for change in changes)
    elif len(pair) == 2:
        (before,), (after,) = (_open_sources([source], options, commands=pair) for source in pair)
        shown = _between(before, after, before.skills.keys() | after.skills.keys())
    else:
        raise UsageError("diff takes two roots, as in 'diff A B', or --lock FILE")
    is_different = False
    for difference in shown:
        is_different = True
        say(f"{difference.path}: {difference.kind}")
        for line in difference.important:
            say(f"  {line}")
        say_lines("\n".join(difference.others))
    return int(is_different)


def _differences_since(change: SourceChange, options: SignedRootOptions) -> Iterable[Difference]:
    source, kinds = change.source, change.kinds
    if kinds and _keeps_history(source):
        (before,) = _open_sources([source.given], options, source.revision)
        yield from _between(before, change.offer, kinds)
        return
    for skill, kind in kinds.items():
        if kind == "added":
            yield from _between(None, change.offer, [skill])
        else:
            yield Difference(skill, kind, (), ("the source no longer has the locked text",))


def _keeps_history(source: LockedSource) -> bool:
    """Tell whether earlier revisions of a source can be fetched."""
    return kind_of(source.given).keeps_history and not source.revision.startswith(TAGS)


def _between(
    before: SourceOffer | None, after: SourceOffer, paths: Iterable[str]
) -> Iterable[Difference]:
    """Yield the differences of the skills at these paths between two moments of a source."""
    for path in sorted(paths):
        old = before.files(path) if before is not None else None
        difference = compare(path, old, after.files(path))
        if difference is not None:
            yield difference
