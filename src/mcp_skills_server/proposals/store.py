"""Store of proposals: skills and changes that models wrote, in a folder, for a reviewer.

A proposal is a directory with `proposal.toml` and the proposed files in `files`; an approved one
also keeps the files that it replaced, in `before`. No scan of a root reaches the folder, so that
nothing in it is ever served.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import tomli_w
from filelock import FileLock

from mcp_skills_server.durable import replace_file, untrusted_reason, write_folder
from mcp_skills_server.errors import REPEATS, RequestError, UsageError
from mcp_skills_server.model import Json
from mcp_skills_server.model.decoding import load_toml

logger = logging.getLogger(__name__)

State: TypeAlias = Literal["pending", "approved", "rejected"]
STATES: Final[tuple[State, ...]] = ("pending", "approved", "rejected")

LOCAL: Final = "local"
"""The principal of a proposer or reviewer on this machine."""
_RECORD: Final = "proposal.toml"
_FILES: Final = "files"
BEFORE: Final = "before"
_LOCK: Final = ".lock"
_ID: Final = re.compile(r"[0-9]{8}-[0-9a-f]{12}")
MAX_PER_PRINCIPAL: Final = 20
"""Pending proposals of one principal."""
MAX_PENDING: Final = 200
"""Pending proposals of all principals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposal, without its files. Times are in UTC, in ISO 8601."""

    id: str  # the unguessable name of its folder
    name: str  # the path of the skill that it is for
    principal: str  # the proposer: "token:laptop", "local", or an address without authentication
    reason: str
    host: str = ""  # the name that the proposer's host gives itself
    proposed: str = ""  # the time of the proposal
    base: str = ""  # digest of the SKILL.md that it changes; "" for a new skill
    base_files: str = ""  # digest over all files of the skill that it changes
    root: str = ""  # absolute folder of the skill's root
    place: str = ""  # absolute folder of the skill itself
    removed: tuple[str, ...] = ()  # paths of files that it removes
    state: State = "pending"
    reviewer: str = ""  # the principal who decided
    message: str = ""  # of the reviewer
    decided: str = ""  # the time of the decision

    @property
    def is_new(self) -> bool:
        """Return True if the proposal is for a new skill."""
        return not self.base

    def as_json(self) -> dict[str, Json]:
        """Return the proposal as JSON; a pending one has no fields of a decision."""
        always = ("id", "name", "principal", "state", "reason")
        decision = ("proposed", "reviewer", "message", "decided")
        return {
            **{key: getattr(self, key) for key in always},
            "base": self.base or None,
            **{key: getattr(self, key) for key in decision if getattr(self, key)},
        }


def encode(proposal: Proposal) -> bytes:
    """Return the record of a proposal as TOML."""
    return tomli_w.dumps({key: value for key, value in asdict(proposal).items() if value}).encode()


def decode(raw: bytes) -> Proposal:
    """Return the proposal of a record; raise ValueError if the record is invalid."""
    record: Mapping[str, Any] = load_toml(raw.decode())
    removed: Any = record.get("removed", [])
    names = [field.name for field in fields(Proposal) if field.name != "removed"]
    texts = {name: record.get(name, "") for name in names}
    is_text = all(isinstance(value, str) for value in (*texts.values(), *removed))
    if not is_text or texts["state"] not in STATES:
        raise ValueError("the record has a field that is not text, or an unknown state")
    return Proposal(**texts, removed=tuple(removed))


class ProposalStore:
    """Store of proposals in a folder that several processes share, made with mode 0700 if missing.

    `add_branch` also keeps a new proposal with its files in git, or raises RequestError.
    UsageError says that the folder cannot be used, or that others may write in it.
    """

    def __init__(
        self,
        folder: Path,
        add_branch: Callable[[Proposal, Mapping[str, bytes]], None] | None = None,
    ) -> None:
        self.folder = folder
        self._add_branch = add_branch
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fault = untrusted_reason(os.stat(folder))
        except OSError as error:
            fault = f"cannot be used ({error.strerror})"
        if fault:
            raise UsageError(
                f"--proposals {folder}: {fault}; name a folder of your own (chmod 700)"
            )

    def locked(self) -> FileLock:
        """Return a lock against decisions and additions by other processes and threads."""
        return FileLock(self.folder / _LOCK, mode=0o600)

    def list(self) -> list[Proposal]:
        """Return all proposals, newest first; skip and log folders without a valid record."""
        proposals, names = list[Proposal](), list[str]()
        with suppress(OSError):
            names = os.listdir(self.folder)
        for name in filter(_ID.fullmatch, names):
            try:
                proposals.append(self._read(name))
            except (OSError, ValueError) as error:
                folder = self.folder / name
                logger.warning("%s: is not a proposal (%s)", folder, error, extra=REPEATS)
        return sorted(
            proposals, key=lambda proposal: (proposal.proposed, proposal.id), reverse=True
        )

    def get(self, id_: str) -> Proposal:
        """Return the proposal with this id; raise RequestError if there is none."""
        with suppress(OSError, ValueError):
            if _ID.fullmatch(id_):
                return self._read(id_)
        raise RequestError(f"there is no proposal {id_[:40]!r}; 'proposals list' shows all")

    def _read(self, name: str) -> Proposal:
        proposal = decode((self.folder / name / _RECORD).read_bytes())
        if proposal.id != name:
            raise ValueError("its record has another id")
        return proposal

    def files(self, proposal: Proposal, which: str = _FILES) -> dict[str, bytes]:
        """Return the proposed files, or with `BEFORE` the replaced ones, by path in the skill."""
        top = self.folder / proposal.id / which
        files: dict[str, bytes] = {}
        for here, _, names in os.walk(top):
            for name in names:
                path = Path(here, name)
                files[path.relative_to(top).as_posix()] = path.read_bytes()
        return files

    def add(self, proposal: Proposal, files: Mapping[str, bytes]) -> Proposal:
        """Write a new proposal atomically, and return it with its id and time.

        RequestError says that too many proposals are pending, or that the disk or git fails.
        """
        now = datetime.now(UTC)
        id_ = f"{now:%Y%m%d}-{secrets.token_hex(6)}"
        added = replace(proposal, id=id_, proposed=now.isoformat(timespec="milliseconds"))
        written = {_RECORD: (encode(added), False)}
        written |= {f"{_FILES}/{path}": (raw, False) for path, raw in files.items()}
        try:
            with self.locked():
                pending = [other for other in self.list() if other.state == "pending"]
                _check_quota(pending, proposal.principal)
                write_folder(self.folder / id_, written)
                try:
                    if self._add_branch is not None:
                        self._add_branch(added, files)
                except (RequestError, OSError):
                    shutil.rmtree(self.folder / id_)
                    raise
        except OSError as error:
            line = "%s: a proposal cannot be written (%s)"
            logger.error(line, self.folder, error.strerror, extra=REPEATS)
            fault = "the proposal cannot be stored: the server cannot write it; tell its operator"
            raise RequestError(fault) from None
        return added

    def keep_before(self, proposal: Proposal, files: Mapping[str, bytes]) -> None:
        """Store the files that an approval is about to replace, unless that was done before."""
        folder = self.folder / proposal.id / BEFORE
        if files and not folder.exists():
            write_folder(folder, {path: (raw, False) for path, raw in files.items()})

    def decide(self, proposal: Proposal, state: State, reviewer: str, message: str) -> Proposal:
        """Record a decision; return the decided proposal. Enter `locked` first; may be repeated."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        decided = replace(proposal, state=state, reviewer=reviewer, message=message, decided=now)
        try:
            replace_file(self.folder / proposal.id / _RECORD, encode(decided), 0o600)
        except OSError as error:
            fault = f"the decision on {proposal.id} cannot be recorded ({error.strerror})"
            raise RequestError(f"{fault}; make space and decide again") from None
        return decided


def _check_quota(pending: Sequence[Proposal], principal: str) -> None:
    if sum(proposal.principal == principal for proposal in pending) >= MAX_PER_PRINCIPAL:
        fault = f"{MAX_PER_PRINCIPAL} of your proposals wait for a decision already"
        raise RequestError(f"{fault}; wait until some are decided")
    if len(pending) >= MAX_PENDING:
        fault = f"{MAX_PENDING} proposals wait for a decision already"
        raise RequestError(f"{fault}; ask a reviewer to decide on some")
