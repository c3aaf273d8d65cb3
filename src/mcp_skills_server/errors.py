"""The errors that this package raises on purpose, named by whose fault it is. Those here reach a
library's user.

Each family has one response: a RequestError becomes a JSON-RPC error for the client, a UsageError
becomes one line on stderr and exit code 2, a StaleFileError makes the catalogue look again. Other
modules add narrower ones, all of them a SkillsServerError. Whatever else is raised is a bug.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, cast

MOST_ECHOED: Final = 200
"""Characters that an error repeats of what it is about: a message must not grow with what was asked
for."""
_MOST_LISTED: Final = 20
_LONGEST_URI: Final = 16_384
"""Characters up to which a client finds the URI that it asked for in the error as it was."""

REPEATS: Final[Mapping[str, bool]] = {"repeats": True}
"""The `extra` of a line of the log that a client can cause as often as it likes: it is logged once
a minute."""


def clipped(text: str) -> str:
    """Return the text as an error repeats it: whole up to 200 characters, then its beginning."""
    return text if len(text) <= MOST_ECHOED else text[: MOST_ECHOED - 3] + "..."


def quoted(text: str) -> str:
    """Return the same in quotes, with escapes for what a terminal would act on."""
    return repr(clipped(text))


def listed(names: Collection[str]) -> str:
    """Return the first twenty of these as an error names them, and how many more there are; "none"
    of none."""
    shown = ", ".join(map(clipped, islice(names, _MOST_LISTED)))
    left = len(names) - _MOST_LISTED
    return f"{shown} and {left} more" if left > 0 else shown or "none"


def plural(count: int, what: str) -> str:
    """Return a number of things in words, as in "2 errors"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


class SkillsServerError(Exception):
    """Base of all errors that this package raises on purpose."""


class RequestError(SkillsServerError, ValueError):
    """The client asked for something that cannot be answered. The message names what was wrong."""


class NotServedError(RequestError):
    """The client asked for a resource that is not served. `uri` is the one that it asked for."""

    def __init__(self, uri: str) -> None:
        # The same words whether it is absent or forbidden, so that no client can probe the disk
        # (S40-30).
        super().__init__(f"Resource not found: {clipped(uri)}")
        self.uri = uri if len(uri) <= _LONGEST_URI else clipped(uri)


class UnreadableError(RequestError):
    """A file changed at each try to read it, or the system refuses it."""

    def __init__(self) -> None:
        super().__init__(
            "A file of the skill is being changed or cannot be read; try again in a moment"
        )


class UsageError(SkillsServerError, ValueError):
    """The operator asked for something that cannot be done, such as serving a folder that does not
    exist."""


def missing_extra(what: str, extra: str) -> UsageError:
    """Return the error where `what` wants an extra of this package that is not installed."""
    # By the clone and not by name: the package is on no index, where a stranger may take its name.
    return UsageError(
        f"the extra [{extra}] for {what} is not installed; in the clone: pip install '.[{extra}]'"
    )


class StaleFileError(SkillsServerError, OSError):
    """A file is no longer the one that was scanned: changed, vanished or unreadable. Scan its skill
    again.

    It is an OSError, with the reason and the path as its `strerror` and `filename`: only what scans
    again need tell it from any other file that cannot be read.

    Attributes:
        path: the file, absolute.
        reason: why the system refuses it, None where it changed.
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
    """Return the first error that is no group in an error of a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
