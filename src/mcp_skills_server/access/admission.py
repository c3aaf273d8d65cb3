"""What the proof of who asks comes to: an admission with its end, or the reason why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.errors import SkillsServerError


@dataclass(frozen=True, slots=True)
class Admission:
    """A client that is admitted.

    Attributes:
        principal: who it is.
        hashed: SHA-256 of what was borne, by which it can be taken away.
        expires: seconds since the epoch after which it is refused; infinite where it holds for good.
    """

    principal: Principal
    hashed: bytes
    expires: float = math.inf


class RefusedError(SkillsServerError):
    """The credential is refused. The message is for the operator's log, and has nothing of a token."""


class ScopeError(RefusedError):
    """Who asks is known, and the issuer did not let the bearer do this."""


class UnavailableError(SkillsServerError):
    """The credential cannot be verified now. `retry_after_s` is when to ask again."""

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
