"""A proposal: a new skill, or a change of one, that a model wrote and a reviewer decides on."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, TypeAlias

import tomli_w

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.model import Json

State: TypeAlias = Literal["pending", "approved", "rejected"]
STATES: Final[tuple[State, ...]] = ("pending", "approved", "rejected")

LOCAL: Final = "local"
"""The proposer, or the reviewer, at this machine."""


class ProposalError(SkillsServerError, ValueError):
    """The text is no record of a proposal. The message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One proposal, without its files.

    Attributes:
        id: its unguessable name in the folder of proposals.
        name: the skill path that it is for.
        principal: the proposer: "token:laptop", "local", or an address where no proof is required.
        reason: why it is proposed, in the proposer's words.
        host: what the proposer's host calls itself; "" where it does not say.
        proposed: when, in UTC, as ISO 8601 has it.
        base: digest of the SKILL.md that it changes; "" for a new skill.
        base_files: digest over all files of the skill that it changes; "" for a new skill.
        root: absolute folder of the root that the skill is in, or is for.
        place: absolute folder of the skill itself.
        removed: paths of files that it removes.
        state: what became of it.
        reviewer: who decided; "" while it is pending.
        message: what the reviewer says.
        decided: when; "" while it is pending.
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
        """Return whether it is for a skill that is not there yet."""
        return not self.base

    def as_json(self) -> dict[str, Json]:
        """Return it for a program or a model. Of a decision that is not made yet nothing is there."""
        known: dict[str, Json] = {
            "id": self.id,
            "name": self.name,
            "principal": self.principal,
            "state": self.state,
            "reason": self.reason,
            "base": self.base or None,
        }
        decision: dict[str, Json] = {
            "proposed": self.proposed,
            "reviewer": self.reviewer,
            "message": self.message,
            "decided": self.decided,
        }
        return known | {key: value for key, value in decision.items() if value}


def encode(proposal: Proposal) -> bytes:
    """Return the record as TOML."""
    return tomli_w.dumps({key: value for key, value in asdict(proposal).items() if value}).encode()


def decode(raw: bytes) -> Proposal:
    """Return the proposal of a record.

    Raises:
        ProposalError: it is none.
    """
    try:
        found: Mapping[str, Any] = tomllib.loads(raw.decode())
    except ValueError:
        raise ProposalError("the record is no TOML") from None
    removed: Any = found.get("removed", [])
    texts = {each.name: found.get(each.name, "") for each in fields(Proposal) if each.name != "removed"}
    if not all(isinstance(value, str) for value in (*texts.values(), *removed)) or texts["state"] not in STATES:
        raise ProposalError("the record has a field that is no text, or an unknown state")
    return Proposal(**texts, removed=tuple(removed))
