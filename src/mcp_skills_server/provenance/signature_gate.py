"""Whether a skill is signed as it should be, as a gate of the registry."""

from __future__ import annotations

from typing import Final

from mcp_skills_server.catalog.gates import Refusal
from mcp_skills_server.catalog.reader import Reader
from mcp_skills_server.codes import problem
from mcp_skills_server.model import Skill, Standing
from mcp_skills_server.provenance.proofs import Proofs
from mcp_skills_server.provenance.signatures import UnsignedError, Verifier

_MOST_PROVED: Final = 100_000


class SignatureGate:
    """Refuses skills that are not signed as they should be. What was proved once is not proved again.

    Args:
        verifier: proves them.
        proofs: where it is kept for the next start what was proved; None for nowhere.
    """

    def __init__(self, verifier: Verifier, proofs: Proofs | None = None) -> None:
        self._verifier = verifier
        self._kept = proofs
        self._asked: str | None = None
        """What decided about `_proved`: keys, and the day where one of them is a certificate."""
        self._proved: dict[str, Refusal | None] = {}

    def __call__(self, reader: Reader, skill: Skill) -> Refusal | None:
        """Why this skill is not served, None where it is signed as it is.

        Raises:
            StaleFileError: a file changed meanwhile or cannot be read.
        """
        if skill.standing is Standing.UNUSABLE:  # it may be of any size, and is served to nobody
            return Refusal(None)
        digest, asked = reader.digest_over(skill), self._verifier.asked()
        if asked != self._asked or len(self._proved) >= _MOST_PROVED:
            self._asked = asked
            self._proved.clear()
        if digest not in self._proved:
            self._proved[digest] = self._judge(reader, skill, digest, asked)
        return self._proved[digest]

    def _judge(self, reader: Reader, skill: Skill, digest: str, asked: str | None) -> Refusal | None:
        if self._kept is not None and asked is not None and self._kept.has(asked, digest):
            return None
        try:
            self._verifier.check(reader.read_all(skill))
        except UnsignedError as error:
            return Refusal(problem(error.code, str(error)))
        if self._kept is not None and asked is not None:
            self._kept.keep(asked, digest)
        return None
