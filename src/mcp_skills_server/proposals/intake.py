"""Intake of proposals: validate what a model wrote, and store it for a reviewer.

A proposal is served only once it is approved. Each refusal says what to do, since a model reads it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from mcp_skills_server.catalog.bundle import without_nested
from mcp_skills_server.catalog.recalls import Recalls
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.durable import write_folder
from mcp_skills_server.errors import RequestError, listed, quoted
from mcp_skills_server.format import hidden, identity, ignored
from mcp_skills_server.format.archive import ArchiveRefusedError, check_paths
from mcp_skills_server.format.file_names import folded
from mcp_skills_server.model import SKILL_MD, Skill, Snapshot
from mcp_skills_server.proposals.store import Proposal, ProposalStore
from mcp_skills_server.provenance.difference import Files, compare

MAX_FILES: Final = 100
MAX_BYTES: Final = 512 << 10
"""Bytes of all files of a proposal together: a reviewer has to read them."""
MAX_LINES: Final = 2_000
"""Lines of one file; no diff is shown of a longer one."""
_MAX_REASON: Final = 2_000
_MAX_SHOWN: Final = 10
_MAX_SHOWN_LINES: Final = 60
"""Lines of the diff against the served skill that a model is shown."""


def propose(
    registry: Registry,
    store: ProposalStore,
    draft: Proposal,
    files: Mapping[str, str | None],
    seen: Snapshot,
) -> Proposal:
    """Validate a proposal, store it and return it as stored, or raise RequestError.

    The draft has `name`, `principal`, `reason`, `host`, and for a change `base`. `files` are those
    to add or replace, by path in the skill; None removes a file. `seen` are the skills that the
    proposer may read: no refusal tells of others, and `approve` refuses what conflicts with them.
    """
    if len(draft.reason) > _MAX_REASON or not draft.reason.strip():
        wanted = f"a reason, of at most {_MAX_REASON:,} characters, for the reviewer"
        raise RequestError(f"give {wanted}")
    if hidden.count_in_name(draft.reason):
        raise RequestError("the reason holds characters that a reviewer cannot see; leave them out")
    _check_texts(files)
    written = {path: text.encode() for path, text in files.items() if text is not None}
    removed = tuple(sorted(files.keys() - written))
    skill = seen.skills.get(draft.name)
    root, before = _root_and_files(registry, seen, draft, written, removed)
    after = with_proposal(before, written, removed)
    _check_tree(after)
    if after == before:
        raise RequestError("the proposal changes nothing")
    with trial(registry, draft.name, root, after) as alone:
        problems = error_texts(alone)
        if not problems and [*alone.snapshot.skills] != [place_in(root, draft.name)]:
            problems.append(f"no scan finds it; leave out {ignored.VENV_MARKER}")
    if problems:
        fault = f"the skill would not be valid: {'; '.join(problems)}"
        raise RequestError(f"{fault}. Correct this and propose it again")
    folder, base_files = place_in(root, draft.name), ""
    if skill is not None:
        folder, base_files = skill.directory, registry.digest_over(skill)
    located, host = os.path.join(root.path, folder), draft.host[:200]
    proposal = replace(draft, host=host, root=root.path, place=located, removed=removed)
    return store.add(replace(proposal, base_files=base_files), written)


def with_proposal(before: Files, written: Mapping[str, bytes], removed: Sequence[str]) -> Files:
    """Return the files of a skill with a proposal applied; written files are not executable."""
    kept = {path: file for path, file in before.items() if path not in removed}
    return kept | {path: (raw, False) for path, raw in written.items()}


def files_of(registry: Registry, skill: Skill) -> Files:
    """Return the current files of a skill; raise RequestError if they change during the read."""
    try:
        read = registry.read_all(skill)
    except OSError:
        raise RequestError(f"{skill.path} is being changed; try again in a moment") from None
    return {path: (raw, skill.files[path].executable) for path, raw in read.items()}


@contextmanager
def trial(registry: Registry, name: str, root: Root, files: Files) -> Generator[Registry]:
    """Yield a registry of this one skill, in a temporary folder, as `registry` would serve it."""
    with tempfile.TemporaryDirectory(prefix="mcp-skills-proposal-") as folder:
        write_folder(Path(folder, place_in(root, name)), files)
        recalls = Recalls(registry.recalls.advisories.values())
        with Registry([folder], registry.limits, recalls=recalls) as alone:
            yield alone


def place_in(root: Root, name: str) -> str:
    """Return the folder, relative to the root, of a new skill with the path `name`.

    Paths of a plugin begin with its name, which is no folder. A trial has no plugin's manifest, so
    there it is the path, too.
    """
    if root.layout is None:
        return name
    return name.partition("/")[2]


def error_texts(registry: Registry) -> list[str]:
    """Return the errors that `validate` finds in the skill of a trial, as text."""
    top = f"{registry.roots[0].shown}/"
    errors = [problem for problem in registry.problems() if problem.severity == "error"]
    return [str(error).replace(top, "") for error in errors][:_MAX_SHOWN]


def _check_texts(files: Mapping[str, str | None]) -> None:
    if not files:
        raise RequestError("the proposal has no files; give at least one")
    if len(files) > MAX_FILES:
        raise RequestError(f"a proposal has at most {MAX_FILES} files; propose less")
    try:
        total = sum(len((text or "").encode()) for text in files.values())
        check_paths(files)
    except UnicodeEncodeError:
        fault = "a file has a lone surrogate, which is not valid text; write plain text"
        raise RequestError(fault) from None
    except ArchiveRefusedError as error:
        raise RequestError(f"{error}; name files by plain paths in the skill") from None
    if total > MAX_BYTES:
        fault = f"a proposal has at most {MAX_BYTES:,} bytes, so that a person can read it"
        raise RequestError(f"{fault}; propose less")
    unserved = ignored.ignored(files)
    if unserved:
        fault = f"{listed(unserved)}: files of such names are never served"
        raise RequestError(f"{fault}; leave them out")
    for path, given in files.items():
        shown, text = quoted(path), given or ""
        if hidden.count(text) or "\0" in text:
            fault = f"{shown} holds characters that a reviewer cannot see"
            raise RequestError(f"{fault}; leave them out")
        if len(text.splitlines()) > MAX_LINES:
            fault = f"{shown} has more than {MAX_LINES:,} lines"
            raise RequestError(f"{fault}; split it, because a person has to read it")
        folder, _, name = path.rpartition("/")
        if folded(name) == folded(SKILL_MD) and (folder or name != SKILL_MD):
            rule = f"a proposal is for one skill, whose {SKILL_MD} lies at its top"
            raise RequestError(f"{shown}: {rule}")


def _root_and_files(
    registry: Registry,
    seen: Snapshot,
    draft: Proposal,
    written: Mapping[str, bytes],
    removed: Sequence[str],
) -> tuple[Root, Files]:
    """Return the skill's root and current files, none for a new skill; refuse an outdated base."""
    skill = seen.skills.get(draft.name)
    if skill is None:
        if draft.base or removed:
            fault = f"there is no skill {quoted(draft.name)} to change"
            raise RequestError(f"{fault}; leave out base for a new one")
        return _root_for(registry, seen, draft.name), {}
    if skill.origin is not None:
        fault = f"{skill.path} comes from {identity.origin(skill)}"
        raise RequestError(f"{fault}; propose the change to its publisher")
    root = registry.roots[skill.root]
    # Nested skills that the proposer may not read have no files here, and stay as they are.
    own = without_nested(skill, skill.nested, root)
    if (
        own.files.keys() != skill.files.keys()
        or not skill.directory
        or root.locate(skill.directory).link
    ):
        fault = f"{skill.path} is a root by itself, or a link, or has skills in it"
        raise RequestError(f"{fault}, and can only be changed by hand; tell the user")
    before = files_of(registry, skill)
    missing = [path for path in removed if path not in before]
    if missing:
        raise RequestError(f"{skill.path} has no file {listed(missing)} to remove")
    current = ""
    if SKILL_MD in skill.files:
        current = skill.files[SKILL_MD].digest
    if draft.base != current:
        remedy, lines = "give its digest as base", list[str]()
        if draft.base:
            remedy = "it has changed since; make your change to its current text"
        difference = compare(skill.path, before, with_proposal(before, written, removed))
        if difference is not None:
            lines = [*difference.others[:_MAX_SHOWN_LINES]]
        fault = f"there is a skill {skill.path} with the digest {current}"
        raise RequestError("\n".join([f"{fault}; {remedy}", *lines]))
    return root, before


def _root_for(registry: Registry, seen: Snapshot, name: str) -> Root:
    """Return the first root that takes new skills; refuse a path in or around one `seen`."""
    try:
        check_paths([f"{name}/{SKILL_MD}"])
    except ArchiveRefusedError as error:
        raise RequestError(f"{error}; name the new skill as in 'billing/refunds'") from None
    if ignored.ignored([name]):
        fault = f"{quoted(name)} is not a name that is served"
        raise RequestError(f"{fault}; name the new skill as in 'billing/refunds'")
    check_apart(seen, name)
    for root in registry.roots:
        is_a_skill = "" in {skill.directory for skill in registry.of_root(root).skills.values()}
        if root.origin is None and root.layout is None and not is_a_skill:
            return root
    fault = "no folder that is served here takes new skills"
    raise RequestError(f"{fault}; tell the user what you would have proposed")


def check_apart(snapshot: Snapshot, name: str, refusal: type[RequestError] = RequestError) -> None:
    """Raise a refusal if a new skill of this path would lie in or around one of a snapshot."""
    new = folded(f"{name}/")
    for path in snapshot.skills:
        other = folded(f"{path}/")
        if new.startswith(other) or other.startswith(new):
            fault = f"{quoted(name)} would lie in or around another skill"
            raise refusal(f"{fault}; propose it under another name")


def _check_tree(after: Files) -> None:
    """Refuse names that a platform cannot hold or tell apart, and a tree without a SKILL.md."""
    try:
        check_paths(after)
    except ArchiveRefusedError as error:
        raise RequestError(f"{error}; name files by plain paths in the skill") from None
    if SKILL_MD not in after:
        raise RequestError(f"a skill needs a {SKILL_MD}")
