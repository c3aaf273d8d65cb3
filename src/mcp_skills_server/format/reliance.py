"""`freshness.toml`: what a skill relies on, and the state of it that a person confirmed. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from mcp_skills_server.errors import quoted
from mcp_skills_server.model.decoding import load_toml

FRESHNESS_FILE: Final = "freshness.toml"
_MAX_RELIANCES: Final = 50
_MAX_TEXT: Final = 500
Kind: TypeAlias = Literal["files", "packages", "urls", "tools"]
_REQUIREMENT: Final = re.compile(r"(@?[A-Za-z0-9][\w./-]*+) *+([<>=].*+)?")
_NUMBERS: Final = re.compile(r"[0-9.]{1,50}+")
_BOUND: Final = re.compile(r" *+(>=|==|<) *+([0-9][0-9.]{0,49}+) *+")
_URL: Final = re.compile(r"https?://[^\s/?#@\\]++(?:[/?][^\s\\]*+)?")
_COMPARE: Final = {">=": operator.ge, "==": operator.eq, "<": operator.lt}


class Reliance(NamedTuple):
    """A thing that a skill relies on.

    Attributes:
        target: a pattern of files, a requirement of a package, a URL, or the name of a tool.
        server: the URL of the MCP server of a tool.
        seen: the state that was confirmed, a digest or a version; "" before the first time.
        line: its line in the file, or None.
    """

    kind: Kind
    target: str
    server: str = ""
    seen: str = ""
    line: int | None = None

    @property
    def name(self) -> str:
        """Its key in the table `[seen.KIND]`."""
        return f"{self.target} of {self.server}" if self.server else self.target

    @property
    def key(self) -> str:
        """Its text in messages."""
        return f"{self.kind} {self.name}"

    @property
    def is_local(self) -> bool:
        """True if its state is in the repository."""
        return self.kind in {"files", "packages"}

    @property
    def requirement(self) -> tuple[str, Sequence[tuple[str, str]]]:
        """The name of a package, and the bounds of its version as operators and numbers."""
        match = _REQUIREMENT.fullmatch(self.target)
        if match is None or self.kind != "packages":
            return "", ()
        bounds = map(_BOUND.fullmatch, (match[2] or "").split(","))
        return match[1], [(bound[1], bound[2]) for bound in bounds if bound]

    def is_met(self, state: str) -> bool:
        """Tell whether a state is what the skill needs; "" is the state of what is missing.

        A package with bounds needs a version within them, whatever version was seen. Anything else
        must be as it was seen.
        """
        _, bounds = self.requirement
        if not bounds or not state:
            return bool(state) and state == self.seen
        for version in map(_order_of, state.split(", ")):  # Cargo can lock several
            if all(_COMPARE[sign](version, _order_of(bound)) for sign, bound in bounds):
                return True
        return False


def parse_reliances(text: str) -> list[Reliance]:
    """Return the entries of a `freshness.toml`.

    Raises:
        ValueError: it has another form. The message is one line.
    """
    tables = load_toml(text)
    seen = _table(tables.pop("seen", {}), "seen")
    lists = _table(tables.pop("relies-on", {}), "relies-on")
    servers = _table(lists.pop("tools", {}), "tools")
    if unknown := [*tables, *(lists.keys() - set(get_args(Kind)))]:
        raise ValueError(f"{quoted(unknown[0])} is no key; write {', '.join(get_args(Kind))}")
    groups: list[tuple[Any, str, Any]] = [(kind, "", rows) for kind, rows in lists.items()]
    groups += [("tools", server, rows) for server, rows in servers.items()]
    lines = text.splitlines()
    entries: list[Reliance] = []
    for kind, server, rows in groups:
        for target in cast("list[Any]", rows if isinstance(rows, list) else [None]):
            if not isinstance(target, str) or not target.isprintable() or len(target) > _MAX_TEXT:
                raise ValueError(f"{kind} is no list of texts of up to {_MAX_TEXT} characters")
            line = next((n for n, text in enumerate(lines, 1) if target in text), None)
            entry = Reliance(kind, target, server, line=line)
            if not _is_valid(entry):
                raise ValueError(f"{quoted(entry.key)} is none of these: {_FORMS[kind]}")
            known = _table(seen.get(kind, {}), f"seen.{kind}").get(entry.name, "")
            entries.append(entry._replace(seen=str(known)))
    if len(entries) > _MAX_RELIANCES:
        raise ValueError(f"it has more than {_MAX_RELIANCES} entries")
    return entries


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no table")
    return cast("dict[str, Any]", value)


_FORMS: Final[Mapping[Kind, str]] = {
    "files": "a path or pattern below the repository, such as src/**/*.py with at most one **",
    "packages": "a package, or one with bounds such as httpx>=0.27,<1",
    "urls": "an https URL without a password",
    "tools": "the name of a tool, in the list of the https URL of its server",
}


def _is_valid(entry: Reliance) -> bool:
    if entry.kind == "files":
        steps = entry.target.lower().split("/")
        if steps.count("**") > 1:  # each would multiply the folders that are read
            return False
        return {"", ".", "..", ".git"}.isdisjoint(steps) and not re.search(r"[\\:]", entry.target)
    if entry.kind == "packages":
        match = _REQUIREMENT.fullmatch(entry.target)
        bounds = (match[2] or "==0") if match else ""
        return all(map(_BOUND.fullmatch, bounds.split(",")))
    return _URL.fullmatch(entry.server or entry.target) is not None


def _order_of(version: str) -> list[int]:
    """Return the numbers of a version as a sort key; a pre-release counts as its release."""
    match = _NUMBERS.match(version.lstrip("vV"))
    numbers = [int(number or 0) for number in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
