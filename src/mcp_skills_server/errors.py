"""Intentional errors of this package that reach a library's user, named by whose fault they are.

Each family has one response. A RequestError becomes a JSON-RPC error for the client, and a
UsageError one line on stderr with exit code 2. A StaleFileError makes the catalogue rescan. Other
modules define narrower subclasses of SkillsServerError. Any other exception is a bug.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, cast

PROGRAM: Final = "mcp-skills-server"
"""The name of this program, in messages and in configurations."""
MAX_ECHOED: Final = 200
"""The most characters of input that an error repeats, which bounds its length."""
_MAX_LISTED: Final = 20
_MAX_URI: Final = 16_384
"""The longest URI, in characters, that an error repeats in full."""

REPEATS: Final[Mapping[str, bool]] = {"repeats": True}
"""The logging `extra` of records that clients can cause at will: logged once a minute."""


def clipped(text: str, longest: int = MAX_ECHOED) -> str:
    """Truncate a text to `longest` characters for an error message."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def quoted(text: str) -> str:
    """Truncate and quote a text for an error message, escaping terminal control characters."""
    return repr(clipped(text))


def listed(names: Collection[str], most: int = _MAX_LISTED) -> str:
    """Return the first `most` names and the number of others, or "none", for a message."""
    shown = ", ".join(map(clipped, islice(names, most)))
    left = len(names) - most
    return f"{shown} and {left} more" if left > 0 else shown or "none"


def plural(count: int, what: str) -> str:
    """Return a count with its noun in singular or plural, as in "2 errors"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


class SkillsServerError(Exception):
    """Base class of all intentional errors of this package."""


class RequestError(SkillsServerError, ValueError):
    """An invalid request of a client; the message says what is wrong."""


class NotServedError(RequestError):
    """A request for a resource `uri` that is not served."""

    def __init__(self, uri: str) -> None:
        # Absent and forbidden files get the same message, so that clients cannot probe (S40-30).
        super().__init__(f"Resource not found: {clipped(uri)}")
        self.uri = uri if len(uri) <= _MAX_URI else clipped(uri)


class UnreadableError(RequestError):
    """A file that changed at each attempt to read it, or that the system refuses to read."""

    def __init__(self) -> None:
        super().__init__(
            "A file of the skill is being changed or cannot be read; try again in a moment"
        )


class UsageError(SkillsServerError, ValueError):
    """An impossible command of the operator, such as serving a folder that does not exist."""


class StaleFileError(SkillsServerError, OSError):
    """A scanned file changed, vanished or became unreadable, so that its skill needs a rescan.

    It is an OSError with the reason as `strerror` and the path as `filename`. Only callers that
    rescan need to distinguish it from other unreadable files.

    Attributes:
        reason: the system's error; None if the file changed.
    """

    def __init__(self, path: str, reason: str | None = None) -> None:
        super().__init__()
        self.path = self.filename = path
        self.reason = reason
        self.strerror = reason or "it keeps changing"

    def __str__(self) -> str:
        if self.reason:
            return f"{self.reason}: {self.path}"
        return f"changed since it was scanned: {self.path}; try again when it no longer changes"


def innermost(error: BaseException) -> BaseException:
    """Return the first non-group exception inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
