"""Errors of sources, by whose fault they are: the publisher's or the network's.

The first stays until the publisher or the caller's settings change; the second may be gone a minute later. What is
wrong with bytes that did arrive is reported by the packages that read them (IndexRefusedError, ProofFailedError,
ArchiveRefusedError), and all of those are the publisher's. Messages are one line for people and never hold a token, a
query or a password.
"""

from __future__ import annotations

from mcp_skills_server.errors import SkillsServerError


class SourceError(SkillsServerError):
    """A source cannot be had now."""


class UnacceptableError(SourceError, ValueError):
    """The publisher answers with what is not taken, or leads to where the settings do not allow to go.

    Attributes:
        code: of the Problem that says so.
    """

    code = "source-refused"


class ContentRefusedError(UnacceptableError):
    """Content that is named by its digest is refused. It never changes: there is no use in asking again."""


class UnsignedCommitError(UnacceptableError):
    """A commit has no signature by one of the signers that are required."""

    code = "commit-unsigned"


class RewrittenError(UnacceptableError):
    """A branch was rewritten, or a tag moved. Judged anew at each look: another process may have accepted it."""


class AbsentError(UnacceptableError):
    """There is nothing at this address: 404, 410, or the web page that some sites answer for everything."""


class RollbackError(SourceError):
    """The publisher went back to a state that it had before.

    It is judged anew each time: another process may have been allowed to take it.
    """


class UnreachableError(SourceError, OSError):
    """No answer, half of one, or "not now"."""
