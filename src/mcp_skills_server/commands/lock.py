"""`lock`, `outdated`, `update` and `diff`: pin sources to revisions, and show later changes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import click
from click.core import ParameterSource

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.fields import option, output_format, takes
from mcp_skills_server.commands.logs import log_to_stderr
from mcp_skills_server.commands.look import report_absent
from mcp_skills_server.commands.opening import UNFETCHED, if_path, open_roots, read_lock
from mcp_skills_server.commands.options import SignedRootOptions, roots_argument
from mcp_skills_server.commands.printing import remark, say, say_json, say_lines
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.model import Skill, Standing
from mcp_skills_server.provenance import lock as lock_file
from mcp_skills_server.provenance.difference import Difference, Files, compare
from mcp_skills_server.provenance.lock import LockedSource, is_pinned_elsewhere
from mcp_skills_server.sources.kinds import kind_of

_DEFAULT: Final = "skills.lock"
Kind: TypeAlias = Literal["changed", "added", "removed"]
_KINDS: Final[tuple[Kind, ...]] = ("changed", "added", "removed")


class UpdateOptions(SignedRootOptions):
    lock: str = option(_DEFAULT, "The lock file.", metavar="FILE")


class LockOptions(SignedRootOptions):
    output: str = option(_DEFAULT, "The file to write.", metavar="FILE")


class OutdatedOptions(UpdateOptions):
    form: Literal["text", "json"] = output_format("text", "json")


class DiffOptions(SignedRootOptions):
    lock: str | None = option(None, "Compare this lock file with its sources now.", metavar="FILE")


class SourceOffer(NamedTuple):
    """A source at one moment, with the skills served of it; `revision` is "" for a folder."""

    given: str
    revision: str
    skills: dict[str, Skill]
    registry: Registry

    def locked(self) -> LockedSource:
        """Return the source's entry of a lock file."""
        digests = {path: self.registry.digest_over(skill) for path, skill in self.skills.items()}
        return LockedSource(self.given, self.revision, digests)

    def files(self, path: str) -> Files | None:
        """Return the files of a skill, or None if the source has no such skill."""
        skill = self.skills.get(path)
        if skill is None:
            return None
        texts = self.registry.read_all(skill)
        return {file: (raw, skill.files[file].executable) for file, raw in texts.items()}


class SourceChange(NamedTuple):
    """A source: its locked entry, its newest entry, its offer now, and the kind of each change."""

    source: LockedSource
    newest: LockedSource
    state: SourceOffer
    kinds: dict[str, Kind]

    def of_kind(self, kind: Kind) -> list[str]:
        """Return the paths of the skills with this kind of change."""
        return [path for path, its_kind in self.kinds.items() if its_kind == kind]

    def as_json(self) -> dict[str, object]:
        """Return the change as `outdated` prints it."""
        revisions = {"locked": self.source.revision, "newest": self.newest.revision}
        changes = {kind: self.of_kind(kind) for kind in _KINDS}
        return {"from": self.source.given, **revisions, **changes}


def _change_kinds(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, Kind]:
    """Return the kind of change of each skill whose digest differs, by path, in their order."""
    kinds: dict[str, Kind] = {
        path: "changed" for path in before.keys() & now.keys() if before[path] != now[path]
    }
    kinds |= dict.fromkeys(now.keys() - before.keys(), "added")
    kinds |= dict.fromkeys(before.keys() - now.keys(), "removed")
    return dict(sorted(kinds.items()))


def _open_sources(
    given: Sequence[str],
    options: SignedRootOptions,
    pin: str | None = None,
    *,
    commands: Iterable[str] = (),
) -> list[SourceOffer]:
    """Open these roots together, as `serve` does: an earlier root hides equal paths of later ones.

    Skills without a signature that the options or a `[[source]]` require are left out, and named
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
            remark(f"left out: {problem.path}: {problem.message}")
    offers = [
        SourceOffer(root, revisions.get(opened.given, ""), {}, registry)
        for root, opened in zip(given, registry.roots, strict=True)
    ]
    for path in snapshot.paths(Standing.LENIENT):
        skill = snapshot.skills[path]
        offers[skill.root].skills[path] = skill
    return offers


def _compare_with_lock(
    locked: Sequence[LockedSource], options: SignedRootOptions
) -> list[SourceChange]:
    """Return each source compared with its lock.

    If a source has two revisions, each entry keeps its own skills; the last one gets new skills.
    """
    last = {source.given: number for number, source in enumerate(locked)}
    newest = {
        open_source.given: (open_source, open_source.locked())
        for open_source in _open_sources([*last], options)
    }
    out: list[SourceChange] = []
    for number, source in enumerate(locked):
        offer, now = newest[source.given]
        wanted = {path for path in now.skills if not is_pinned_elsewhere(path, source, locked)}
        if last[source.given] != number:
            wanted = now.skills.keys() & source.skills.keys()
        skills = {path: digest for path, digest in now.skills.items() if path in wanted}
        kinds = _change_kinds(source.skills, skills)
        out.append(SourceChange(source, replace(now, skills=skills), offer, kinds))
    return out


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
    of an earlier ROOT, is left out and named on stderr. A ROOT without any skill is an error, and
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
    _remark_left_out(registry)
    if report_absent(registry)[0]:
        remark(f"{options.output} was not written")
        return 1
    _write_lock(options.output, sources)
    count = sum(len(source.skills) for source in sources)
    remark(f"{options.output}: {plural(count, 'skill')} of {plural(len(sources), 'source')}")
    return 0


def _remark_left_out(registry: Registry) -> None:
    for path, skill in registry.snapshot.skills.items():
        if skill.standing is Standing.UNUSABLE:
            reason = next((problem.message for problem in skill.problems), "")
            remark(f"left out: {path}, which cannot be served: {reason}")
    for problem in registry.problems():
        is_left_out = problem.skill and problem.skill not in registry.snapshot.skills
        is_error = problem.severity == "error" and not problem.code.startswith("signature-")
        if problem.code == "shadowed" or (is_left_out and is_error):
            remark(f"left out: {problem.path}: {problem.message}")


@click.command()
@takes(OutdatedOptions)
def outdated(options: OutdatedOptions) -> int:
    """Show what has changed in the sources of a lock file; change nothing.

    Exit code 0 if nothing is new, 1 if something is.

    \b
    Examples:
      mcp-skills-server outdated
      mcp-skills-server outdated --lock team/skills.lock --format json
    """
    moved = _compare_with_lock(read_lock(options.lock), options)
    is_new = any(change.kinds for change in moved)
    if options.form == "json":
        say_json([change.as_json() for change in moved])
        return int(is_new)
    for change in moved:
        if change.kinds:
            versions = (change.source.revision, change.newest.revision)
            before, after = (version.removeprefix("sha256:")[:12] for version in versions)
            move = f" {before} -> {after}" if before != after else ""
            say(f"{change.source.given}:{move}")
        for kind in _KINDS:
            for path in change.of_kind(kind):
                say(f"  {kind:8} {path}")
    if not is_new:
        remark(f"nothing is new: the skills match {options.lock}")
    return int(is_new)


@click.command()
@click.argument("names", nargs=-1, metavar="[SOURCE|SKILL]...")
@takes(UpdateOptions)
def update(options: UpdateOptions, names: tuple[str, ...]) -> None:
    """Update the pins of a lock file to the current state of its sources.

    SOURCE is a source as the lock file has it, SKILL the name or path of one of its skills, to
    update it alone; without any, everything is updated.

    \b
    Examples:
      mcp-skills-server update
      mcp-skills-server update refunds
    """
    locked = read_lock(options.lock)
    out: list[LockedSource] = []
    count = 0
    moved = _compare_with_lock(locked, options)
    sources = {source.given for source in locked}
    paths = {path for change in moved for path in (*change.source.skills, *change.newest.skills)}
    wanted = {name if name in sources else _path_of(name, paths, options.lock) for name in names}
    for change in moved:
        chosen = change.kinds
        if names and change.source.given not in wanted:
            chosen = {path: kind for path, kind in chosen.items() if path in wanted}
        out += _updated_entries(change, {*chosen})
        count += len(chosen)
        for path, kind in chosen.items():
            say(f"{kind:8} {path}")
    _write_lock(options.lock, _without_hidden(_merge_entries(out)))
    if not count:
        of = f" of {', '.join(names)}" if names else ""
        remark(f"nothing{of} is new: the skills match {options.lock}")


def _path_of(name: str, paths: Collection[str], lock: str) -> str:
    """Return the path of the skill of this name or path, or raise UsageError."""
    if name in paths:
        return name
    matching = sorted(path for path in paths if path.endswith(f"/{name}"))
    if len(matching) > 1:
        raise UsageError(f"{name}: several skills have this name; write {' or '.join(matching)}")
    if not matching:
        hint = "'outdated' shows what is new"
        raise UsageError(f"{name}: {lock} has no such source or skill; {hint}")
    return matching[0]


def _updated_entries(moved: SourceChange, chosen: set[str]) -> list[LockedSource]:
    """Return the lock file entries of a source after an update of the chosen skills."""
    rest = moved.kinds.keys() - chosen
    if not rest:
        return [moved.newest]
    if not chosen:
        return [moved.source]
    now = {path: digest for path, digest in moved.newest.skills.items() if path in chosen}
    kept = {path: digest for path, digest in moved.source.skills.items() if path not in chosen}
    if kind_of(moved.source.given).keeps_history:
        return [replace(moved.source, skills=kept), replace(moved.newest, skills=now)]
    return [replace(moved.newest, skills=kept | now)]


def _merge_entries(sources: Iterable[LockedSource]) -> list[LockedSource]:
    """Merge entries of the same source and revision; drop one without skills beside others."""
    out: dict[tuple[str, str], LockedSource] = {}
    for source in sources:
        key = source.given, source.revision
        if key in out:
            out[key] = replace(source, skills={**out[key].skills, **source.skills})
        else:
            out[key] = source
    entries = Counter(given for given, _ in out)
    return [source for source in out.values() if source.skills or entries[source.given] == 1]


def _without_hidden(sources: Sequence[LockedSource]) -> list[LockedSource]:
    """Drop and report skills whose path an earlier source has, as after an update of one source."""
    owners: dict[str, str] = {}
    out: list[LockedSource] = []
    for source in sources:
        kept = {
            path: digest
            for path, digest in source.skills.items()
            if owners.setdefault(path, source.given) == source.given
        }
        for path in sorted(source.skills.keys() - kept.keys()):
            remark(f"left out: {path} of {source.given}, which is hidden by that of {owners[path]}")
        out.append(replace(source, skills=kept))
    return out


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
    said = click.get_current_context().get_parameter_source("lock") is ParameterSource.COMMANDLINE
    if pair and said:
        raise UsageError("diff takes two roots or --lock FILE, not both")
    if options.lock is not None and not pair:
        moved = _compare_with_lock(read_lock(options.lock), options)
        differences = chain.from_iterable(_differences_since(change, options) for change in moved)
    elif len(pair) == 2:
        (before,), (after,) = (_open_sources([source], options, commands=pair) for source in pair)
        differences = _between(before, after, before.skills.keys() | after.skills.keys())
    else:
        raise UsageError("diff takes two roots, as in 'diff A B', or --lock FILE")
    is_different = False
    for difference in differences:
        is_different = True
        say(f"{difference.path}: {difference.kind}")
        for line in difference.important:
            say(f"  {line}")
        say_lines("\n".join(difference.others))
    return int(is_different)


def _differences_since(moved: SourceChange, options: SignedRootOptions) -> Iterable[Difference]:
    source, kinds = moved.source, moved.kinds
    if kinds and kind_of(source.given).keeps_history:
        (before,) = _open_sources([source.given], options, source.revision)
        yield from _between(before, moved.state, kinds)
        return
    for skill, kind in kinds.items():
        if kind == "added":
            yield from _between(None, moved.state, [skill])
        else:
            yield Difference(skill, kind, (), ("the source no longer has the locked text",))


def _between(
    before: SourceOffer | None, after: SourceOffer, paths: Iterable[str]
) -> Iterable[Difference]:
    for path in sorted(paths):
        old = before.files(path) if before is not None else None
        difference = compare(path, old, after.files(path))
        if difference is not None:
            yield difference
