"""Why a download fails, named by whose fault it is: the publisher's or the network's.

The first stays until the publisher or the caller's settings change; the second may be gone a minute later. What is
wrong with bytes that did arrive is told by the rooms that read them (IndexRefused, ProofFailed, ArchiveRefused), and
all of those are the publisher's. Messages are one line for people and never hold a token, a query or a password.
"""

from __future__ import annotations

import re

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import SkillsServerError, UsageError
from mcp_skills_server.model import printable


class Unacceptable(SkillsServerError, ValueError):  # noqa: N818
    """The publisher answers with what is not taken, or leads to where the settings do not allow to go."""


class Absent(Unacceptable):
    """There is nothing at this address: 404, 410, or the web page that some sites answer for everything."""


class Unreachable(SkillsServerError, OSError):  # noqa: N818
    """No answer, half of one, or "not now".

    Attributes:
        retry_after_s: when the server asks to come again, in seconds, None where it does not say.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def bare(url: str) -> str:
    """A URL without what may be a secret: user name and password, query, fragment."""
    plain = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, slashes, rest = plain.partition("//")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"


def shown(url: str) -> str:
    """The same for people, not longer than a line."""
    plain = printable(bare(url))
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


def check(url: str) -> None:
    """Prove that an address of the operator's can be fetched from.

    Raises:
        UsageError: it is no http or https URL; the message shows no secret of it.
    """
    try:
        wellknown.absolute(url, url)
    except ValueError as error:
        raise UsageError(f"'{shown(url)}': {error}; give the URL of a site or of its index.json") from None
