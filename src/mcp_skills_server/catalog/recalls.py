"""Recalls: a file of advisories that withdraw skills by digest, and the check that applies it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, cast

from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.codes import problem
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Skill, printable
from mcp_skills_server.model.decoding import load_tables
from mcp_skills_server.model.digests import is_digest
from mcp_skills_server.model.skill import whole_digest

_SEVERITIES: Final = ("low", "medium", "high", "critical")
"""The severities of an advisory, in the words of CVSS."""
_VERSION: Final = 1
_MAX_BYTES: Final = 1 << 20
_MAX_CHARACTERS: Final = 300
"""The maximum length of a reason or a replacement, which models are shown."""


class Advisory(NamedTuple):
    """A recall of one digest: of a file, or of all files of a skill as lock files have it.

    `replacement` is the path or name of the skill to load instead, "" for none.
    """

    digest: str
    reason: str
    severity: str
    replacement: str = ""

    def __str__(self) -> str:
        return f"recalled ({self.severity}): {self.reason}"


class Recalls:
    """The advisories in force. `is_locked` gives refusals the code for skills of a lock file."""

    def __init__(self, advisories: Iterable[Advisory] = (), *, is_locked: bool = False) -> None:
        self._code = "lock-recalled" if is_locked else "recalled"
        self.advisories: Mapping[str, Advisory] = {}  # never changed: threads read it
        self._refused: dict[str, Advisory] = {}
        """The latest refusal by the path of the skill, for sessions that know only the path."""
        self.replace(advisories)

    def replace(self, advisories: Iterable[Advisory]) -> bool:
        """Replace the advisories, for `Registry.recall`; tell whether they differ."""
        before, by_digest = self.advisories, {advisory.digest: advisory for advisory in advisories}
        self.advisories = by_digest
        return by_digest != before

    def advisory_on(self, skill: Skill | str, digest: str = "") -> Advisory | None:
        """Return the advisory on a skill of any scan, or None.

        Of a path it is that on `digest`, or that on the skill which was refused there last.
        """
        advisories = self.advisories
        if isinstance(skill, str):
            refused = self._refused.get(skill)
            return advisories.get(refused.digest if refused and not digest else digest)
        digests = {*skill.digests.values(), whole_digest(skill)} if advisories else set[str]()
        recalled = digests & advisories.keys()
        return advisories[min(recalled)] if recalled else None  # every replica takes the same one

    def refuse(self, skill: Skill, whole: Skill) -> GateRefusal | None:
        """Refuse a recalled skill, also if only `whole`, with its refused nested skills, is."""
        advisory = self.advisory_on(skill) or self.advisories.get(whole_digest(whole))
        if advisory is None:
            return None
        self._refused[skill.path] = advisory
        return GateRefusal(problem(self._code, f"it is {advisory}"))


def _is_line(value: object) -> bool:
    is_text = isinstance(value, str) and value.strip() == value and value.isprintable()
    return is_text and 0 < len(cast("str", value)) <= _MAX_CHARACTERS


_LINE: Final = f"one line of 1 to {_MAX_CHARACTERS} characters"
_FORMS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "digest": (is_digest, "'sha256:' and 64 hex digits in lower case"),
    "severity": (_SEVERITIES.__contains__, f"one of {', '.join(_SEVERITIES)}"),
    "reason": (_is_line, _LINE),
    "replacement": (lambda value: value == "" or _is_line(value), _LINE),
}


def parse_advisories(text: str) -> tuple[Advisory, ...]:
    """Parse the text of a file of advisories.

    Raises:
        ValueError: it is invalid; the message has the reason and the place.
    """
    advisories: list[Advisory] = []
    for number, entry in enumerate(load_tables(text, _VERSION, "advisory"), 1):
        fields = {"replacement": "", **entry}
        if unknown := fields.keys() - _FORMS:
            raise ValueError(f"advisory {number} has unknown keys: {', '.join(sorted(unknown))}")
        for key, (fits, form) in _FORMS.items():
            if not fits(fields.get(key)):
                raise ValueError(f"advisory {number}: {key!r} is not {form}")
        advisories.append(Advisory(**fields))
    return tuple(advisories)


def read_advisories(path: str | None) -> tuple[Advisory, ...]:
    """Read a file of advisories; none without a file.

    Raises:
        UsageError: the file is missing, unreadable or invalid.
    """
    if path is None:
        return ()
    try:
        raw, _ = read_regular(Path(path), _MAX_BYTES)
        return parse_advisories(raw.decode())
    except OSError as error:
        fault = f"cannot be read ({error.strerror}); give another --advisories"
    except ValueError as error:
        fault = f"no valid file of advisories: {printable(str(error))}; see docs/recall.md"
    raise UsageError(f"{printable(path)}: {fault}")
