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
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import tomli_w
from filelock import FileLock

from mcp_skills_server.durable import read_regular, replace_file, untrusted_reason, write_folder
from mcp_skills_server.errors import REPEATS, RequestError, SkillsServerError, UsageError
from mcp_skills_server.model import Json

if TYPE_CHECKING:
    from mcp_skills_server.proposals.branches import Branches

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
_MOST_RECORD: Final = 64 << 10
_MOST_FILE: Final = 1 << 20
MOST_PER_PRINCIPAL: Final = 20
"""Pending proposals of one principal."""
MOST_PENDING: Final = 200
"""Pending proposals of all principals."""


class ProposalError(SkillsServerError, ValueError):
    """The record of a proposal cannot be decoded. The message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposal, without its files.

    Attributes:
        id: the unguessable name of its folder.
        name: the path of the skill that it is for.
        principal: the proposer: "token:laptop", "local", or an address without authentication.
        host: the name that the proposer's host gives itself; "" if it gives none.
        proposed: the time of the proposal, in UTC, in ISO 8601.
        base: digest of the SKILL.md that it changes; "" for a new skill.
        base_files: digest over all files of the skill that it changes; "" for a new skill.
        root: absolute folder of the skill's root.
        place: absolute folder of the skill itself.
        removed: paths of files that it removes.
        reviewer: the principal who decided; "" while it is pending.
        decided: the time of the decision; "" while it is pending.
    """

    id: str
    name: str
    principal: str
    reason: str
    host: str = ""
    proposed: str = ""
    base: str = ""
    base_files: str = ""
    root: str = ""
    place: str = ""
    removed: tuple[str, ...] = ()
    state: State = "pending"
    reviewer: str = ""
    message: str = ""
    decided: str = ""

    @property
    def is_new(self) -> bool:
        """Return True if the proposal is for a new skill."""
        return not self.base

    def as_json(self) -> dict[str, Json]:
        """Return the proposal as JSON; a pending one has no fields of a decision."""
        decision = {
            key: getattr(self, key) for key in ("proposed", "reviewer", "message", "decided")
        }
        return {
            "id": self.id,
            "name": self.name,
            "principal": self.principal,
            "state": self.state,
            "reason": self.reason,
            "base": self.base or None,
            **{key: value for key, value in decision.items() if value},
        }


def encode(proposal: Proposal) -> bytes:
    """Return the record of a proposal as TOML."""
    return tomli_w.dumps({key: value for key, value in asdict(proposal).items() if value}).encode()


def decode(raw: bytes) -> Proposal:
    """Return the proposal of a record; raise ProposalError if the record is invalid."""
    try:
        found: Mapping[str, Any] = tomllib.loads(raw.decode())
    except ValueError:
        raise ProposalError("the record is not valid TOML") from None
    removed: Any = found.get("removed", [])
    texts = {
        each.name: found.get(each.name, "") for each in fields(Proposal) if each.name != "removed"
    }
    if (
        not all(isinstance(value, str) for value in (*texts.values(), *removed))
        or texts["state"] not in STATES
    ):
        raise ProposalError("the record has a field that is not text, or an unknown state")
    return Proposal(**texts, removed=tuple(removed))


class ProposalStore:
    """Store of proposals in a folder that several processes share, made with mode 0700 if missing.

    Raises:
        UsageError: the folder cannot be used, or others may write in it.
    """

    def __init__(self, folder: Path, branches: Branches | None = None) -> None:
        self.folder = folder
        self._branches = branches
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fault = untrusted_reason(os.stat(folder))
        except OSError as error:
            raise UsageError(
                f"--proposals {folder}: cannot be used ({error.strerror}); name another folder"
            ) from None
        if fault:
            raise UsageError(
                f"--proposals {folder}: {fault}; name a folder of your own (chmod 700)"
            )

    def locked(self) -> FileLock:
        """Return a lock against decisions and additions by other processes and threads."""
        return FileLock(self.folder / _LOCK, mode=0o600)

    def list(self) -> list[Proposal]:
        """Return all proposals, newest first; skip and log folders without a valid record."""
        found: list[Proposal] = []
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir(self.folder)
        for name in filter(_ID.fullmatch, names):
            try:
                found.append(self._read(name))
            except (OSError, ProposalError) as error:
                logger.warning(
                    "%s: is not a proposal (%s)", self.folder / name, error, extra=REPEATS
                )
        return sorted(found, key=lambda each: (each.proposed, each.id), reverse=True)

    def get(self, id_: str) -> Proposal:
        """Return the proposal with this id; raise RequestError if there is none."""
        if _ID.fullmatch(id_):
            try:
                return self._read(id_)
            except (OSError, ProposalError):
                pass
        raise RequestError(
            f"there is no proposal {id_[:40]!r}; 'proposals list' shows what there is"
        )

    def _read(self, name: str) -> Proposal:
        raw, _ = read_regular(self.folder / name / _RECORD, _MOST_RECORD)
        found = decode(raw)
        if found.id != name:
            raise ProposalError("its record has another id")
        return found

    def files(self, proposal: Proposal, which: str = _FILES) -> dict[str, bytes]:
        """Return the proposed files, or with `BEFORE` the replaced ones, by path in the skill."""
        top = self.folder / proposal.id / which
        found: dict[str, bytes] = {}
        for here, _, names in os.walk(top):
            for name in names:
                place = Path(here, name)
                found[place.relative_to(top).as_posix()] = read_regular(place, _MOST_FILE)[0]
        return found

    def add(self, proposal: Proposal, files: Mapping[str, bytes]) -> Proposal:
        """Write a new proposal atomically, and return it with its id and time.

        Raises:
            RequestError: too many proposals are pending, or the disk or git fails.
        """
        now = datetime.now(UTC)
        id_ = f"{now:%Y%m%d}-{secrets.token_hex(6)}"
        made = replace(proposal, id=id_, proposed=now.isoformat(timespec="milliseconds"))
        written = {_RECORD: (encode(made), False)}
        written |= {f"{_FILES}/{path}": (raw, False) for path, raw in files.items()}
        try:
            with self.locked():
                _check_quota(
                    [each for each in self.list() if each.state == "pending"], proposal.principal
                )
                write_folder(self.folder / id_, written)
                if self._branches is not None:
                    self._add_branch(self._branches, made, files)
        except OSError as error:
            logger.error(
                "%s: a proposal cannot be written (%s)", self.folder, error.strerror, extra=REPEATS
            )
            raise RequestError(
                "the proposal cannot be stored: the server cannot write it; tell its operator"
            ) from None
        return made

    def _add_branch(
        self, branches: Branches, proposal: Proposal, files: Mapping[str, bytes]
    ) -> None:
        try:
            branches.add(proposal, files)
        except RequestError:
            shutil.rmtree(self.folder / proposal.id)
            raise

    def keep_before(self, proposal: Proposal, files: Mapping[str, bytes]) -> None:
        """Store the files that an approval is about to replace, unless that was done before."""
        place = self.folder / proposal.id / BEFORE
        if files and not place.exists():
            write_folder(place, {path: (raw, False) for path, raw in files.items()})

    def decide(self, proposal: Proposal, state: State, reviewer: str, message: str) -> Proposal:
        """Record a decision; return the decided proposal. Enter `locked` first; may be repeated."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        made = replace(proposal, state=state, reviewer=reviewer, message=message, decided=now)
        try:
            replace_file(self.folder / proposal.id / _RECORD, encode(made), 0o600)
        except OSError as error:
            words = (
                f"the decision on {proposal.id} cannot be recorded ({error.strerror}); make "
                "space and decide again"
            )
            raise RequestError(words) from None
        return made


def _check_quota(pending: Sequence[Proposal], principal: str) -> None:
    if sum(each.principal == principal for each in pending) >= MOST_PER_PRINCIPAL:
        raise RequestError(
            f"{MOST_PER_PRINCIPAL} of your proposals wait for a decision already; wait until some "
            "are decided"
        )
    if len(pending) >= MOST_PENDING:
        raise RequestError(
            f"{MOST_PENDING} proposals wait for a decision already; ask a reviewer to decide on "
            "some"
        )
