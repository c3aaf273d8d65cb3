"""Approval of proposals: replace the folder of a skill atomically.

The new folder is built beside the old one, with hard links to unchanged files; then the two
exchange names. If an edit raced with the exchange, it is detected and the names are exchanged back.
A killed process leaves the old skill or the proposed one; approving again then records the
decision.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from mcp_skills_server.catalog.bundle import without_nested
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.dialects.runtime import SCRIPTS
from mcp_skills_server.durable import exchange, sync_paths
from mcp_skills_server.errors import RequestError, listed
from mcp_skills_server.format import media
from mcp_skills_server.format.file_names import folded
from mcp_skills_server.format.ignored import STATE_DIR
from mcp_skills_server.format.manifest import SKILL_TOML
from mcp_skills_server.model import SKILL_MD, Skill
from mcp_skills_server.proposals.intake import check_apart, files_of, place_in, with_proposal
from mcp_skills_server.proposals.store import LOCAL, Proposal, ProposalStore
from mcp_skills_server.provenance.difference import Files
from mcp_skills_server.runtime.scripts.interpreters import is_program

_FOR_MODEL: Final = ("references/", "assets/")
"""Folders of text for the model."""
_SOURCE: Final = ("text/x-", "text/javascript", "text/jsx", "application/x-", "application/sql")
"""Beginnings of the media types of programs."""
_MOVED: Final = (
    "changed since this was proposed; reject it and say so, and its proposer can propose it again"
)


class UnwritableError(RequestError):
    """Raised if a proposal cannot be written where it belongs; the message may name folders."""


def approve(
    registry: Registry,
    store: ProposalStore,
    id_: str,
    *,
    reviewer: str,
    message: str = "",
    scripts: bool = False,
) -> Proposal:
    """Write a proposal into its root, rescan it, and record the approval.

    The reviewer is a principal, who may not approve his own proposal, or `LOCAL`, the folder's
    owner. `scripts` means that he has read the proposal's scripts, and accepts them. RequestError
    says why the proposal cannot be approved.
    """
    with store.locked():
        proposal = _pending(store, id_)
        if proposal.principal == reviewer != LOCAL:
            raise RequestError(f"{id_} is your own proposal; another person has to approve it")
        written = store.files(proposal)
        registry.refresh()
        _, skill, folder = _target(registry, proposal)
        before: Files = {}
        if skill is not None:
            before = files_of(registry, skill)
        after = with_proposal(before, written, proposal.removed)
        brought = scripts_in(before, after)
        if brought and not scripts:
            fault = f"{id_} brings scripts, or what they load ({listed(brought)})"
            raise RequestError(f"{fault}; read these files, and accept them too (--scripts)")
        is_written = skill is not None and before == after
        if is_written and not (proposal.is_new and before.keys() != written.keys()):
            shutil.rmtree(_staging_path(folder, proposal), ignore_errors=True)
        else:
            _write(registry, store, proposal, after)
        decided = store.decide(proposal, "approved", reviewer, message)
    registry.refresh()
    return decided


def reject(store: ProposalStore, id_: str, *, reviewer: str, message: str = "") -> Proposal:
    """Record the rejection of a proposal; raise RequestError if it is decided already."""
    with store.locked():
        return store.decide(_pending(store, id_), "rejected", reviewer, message)


def _pending(store: ProposalStore, id_: str) -> Proposal:
    proposal = store.get(id_)
    if proposal.state != "pending":
        raise RequestError(f"{id_} is {proposal.state} already, by {proposal.reviewer}")
    return proposal


def scripts_in(before: Files, after: Files) -> list[str]:
    """Return the paths of the files of a change that could run, or that a script may load, sorted.

    In a skill with scripts that is every file but text for the model; with its first script also
    those that it had before.
    """
    if not _has_scripts(after):
        return []
    known: Files = before if _has_scripts(before) else {}
    return [
        path
        for path, file in sorted(after.items())
        if known.get(path) != file and not _is_for_model(path, file[0])
    ]


def _has_scripts(files: Files) -> bool:
    return any(
        folded(path).startswith(SCRIPTS) or folded(path) == SKILL_TOML or is_program(raw)
        for path, (raw, _) in files.items()
    )


def _is_for_model(path: str, raw: bytes) -> bool:
    """Tell whether a file is text that no script of the skill runs or imports."""
    kind = media.media_type(path) or ""
    is_text = media.is_text(kind) and not kind.startswith(_SOURCE) and not is_program(raw)
    return path == SKILL_MD or (path.startswith(_FOR_MODEL) and is_text)


def _target(registry: Registry, proposal: Proposal) -> tuple[Root, Skill | None, Path]:
    """Return the root that a proposal is for, its skill of that path, if any, and the folder."""
    for root in registry.roots:
        if root.path == os.path.realpath(proposal.root) and root.origin is None:
            skill = registry.of_root(root).skills.get(proposal.name)
            if skill is None:
                return root, None, Path(root.path, place_in(root, proposal.name))
            own = without_nested(skill, skill.nested, root)
            return root, own, Path(root.path, skill.directory)
    raise UnwritableError(f"{proposal.root} is not a folder served here; name it with --root")


def _write(registry: Registry, store: ProposalStore, proposal: Proposal, after: Files) -> None:
    """Replace the folder of a skill, or make a new one; a failure leaves the folder as it was."""
    root, skill, folder = _target(registry, proposal)
    staging = _staging_path(folder, proposal)
    is_ours = True  # `staging`, which may then be removed
    try:
        shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
        if skill is None:
            if not proposal.is_new:
                raise RequestError(f"{proposal.name} no longer exists; reject the proposal")
            check_apart(registry.snapshot, proposal.name, UnwritableError)
            _make_parents(Path(root.path), folder)
            staging.mkdir()
            _write_files(staging, after, (), folder.parent)
            staging.rename(folder)
            return
        if proposal.is_new:
            raise RequestError(f"the skill {proposal.name} exists by now; reject the proposal")
        stamps = _stamps(folder)
        if registry.digest_over(skill) != proposal.base_files or root.locate(skill.directory).link:
            raise RequestError(f"{proposal.name} {_MOVED}")
        before = files_of(registry, skill)
        replaced = {path: file[0] for path, file in before.items() if after.get(path) != file}
        fresh = {path: file for path, file in after.items() if before.get(path) != file}
        inner = tuple(folded(f"{nested}/") for nested in skill.nested)
        for path in sorted(fresh.keys() - before):
            if folded(path).startswith(inner) or os.path.lexists(folder / path):
                raise UnwritableError(f"{path} is no file of {proposal.name}; reject the proposal")
        store.keep_before(proposal, replaced)
        shutil.copytree(folder, staging, symlinks=True, copy_function=os.link)
        _write_files(staging, fresh, before.keys() - after, folder)
        exchange(staging, folder)
        if _stamps(staging) != stamps:
            # `staging` is the edited folder now: keep it if exchanging back fails
            is_ours = False
            exchange(staging, folder)
            is_ours = True
            raise RequestError(f"{proposal.name} {_MOVED}")
    except OSError as error:
        remedy = "apply it by hand ('proposals show')"
        if not is_ours:
            remedy = f"the former content is in {staging}; move it back"
        fault = f"{folder}: cannot be replaced ({error.strerror or error})"
        raise UnwritableError(f"{fault}; {remedy}") from None
    finally:
        if is_ours:
            shutil.rmtree(staging, ignore_errors=True)


def _staging_path(folder: Path, proposal: Proposal) -> Path:
    """Return the path at which the new folder is built; no scan enters it, even with `--hidden`."""
    return folder.with_name(f"{STATE_DIR}-{proposal.id}")


def _make_parents(top: Path, folder: Path) -> None:
    """Make the folders above a new skill; refuse a link or a skill among them."""
    here = top
    for name in folder.relative_to(top).parts[:-1]:
        here /= name
        with suppress(FileExistsError):
            here.mkdir()
            _give_to_owner([here], here.parent)
        if here.is_symlink() or not here.is_dir() or os.path.lexists(here / SKILL_MD):
            raise UnwritableError(f"{here} is not a folder, or is a skill; reject the proposal")
    if os.path.lexists(folder):
        raise UnwritableError(f"{folder} already exists; reject the proposal, or move it away")


def _write_files(staging: Path, fresh: Files, gone: Iterable[str], like: Path) -> None:
    """Write the files of a proposal into the new folder, none executable, and sync them to disk."""
    for path in gone:
        (staging / path).unlink()
    for path, (raw, _) in fresh.items():
        target = staging / path
        if target.parent.resolve() != staging.resolve() / Path(path).parent:
            raise UnwritableError(f"{path} lies behind a link; reject the proposal")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a hard link to the served file, which must not change
        target.write_bytes(raw)
    _give_to_owner([staging, *staging.rglob("*")], like)
    sync_paths([*(str(staging / path) for path in fresh), str(staging)])


def _give_to_owner(places: Iterable[Path], like: Path) -> None:
    """Give new files and folders to the owner of the folder `like`, if root approves."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        owner = like.stat()
        for path in places:
            if path.is_dir() or path.lstat().st_nlink == 1:  # not a link to an unchanged file
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _stamps(folder: Path) -> Mapping[str, object]:
    """Return inode, size and mtime of each file in a folder, by relative path, to detect edits."""
    places = (os.path.join(here, name) for here, _, names in os.walk(folder) for name in names)
    status = {os.path.relpath(path, folder): os.lstat(path) for path in places}
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in status.items()}
