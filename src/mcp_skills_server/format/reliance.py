"""`freshness.toml`: what a skill relies on, and the state of it that a person confirmed. Pure."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from mcp_skills_server.errors import quoted
from mcp_skills_server.model.decoding import load_toml

FRESHNESS_FILE: Final = "freshness.toml"
_MAX_RELIANCES: Final = 50
_MAX_TEXT: Final = 500
Kind: TypeAlias = Literal["files", "packages", "urls", "tools"]
_REQUIREMENT: Final = re.compile(r"(@?[A-Za-z0-9][\w./-]*+)\s*+([<>=!].*+)?")
_BOUND: Final = re.compile(r"\s*+(>=|<=|==|!=|>|<)\s*+([0-9][\w.+!-]*+)\s*+")
_VERSION: Final = re.compile(r"[vV]?([0-9]{1,18}(?:\.[0-9]{1,18})*+)(.*+)", re.DOTALL)
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*+")
_URL: Final = re.compile(r"https://[^\s/?#@\\]++(?:[/?][^\s\\]*+)?")
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
    ">": operator.gt, "<": operator.lt,
}  # fmt: skip


class Reliance(NamedTuple):
    """A thing that a skill relies on.

    Attributes:
        target: a pattern of files, a requirement of a package, a URL, or the name of a tool.
        server: the MCP server of a tool: an https URL, or a name that the command line explains.
        seen: the state that was confirmed, a digest or a version; "" before the first time.
        line: its line in the file, or None.
    """

    kind: Kind
    target: str
    server: str = ""
    seen: str = ""
    line: int | None = None

    @property
    def named(self) -> str:
        """Its text in messages."""
        return f"{self.target} of {self.server}" if self.server else self.target

    @property
    def key(self) -> str:
        """Its key in the table `seen`."""
        return f"{self.kind} {self.named}"

    @property
    def package(self) -> str:
        """The name of a package without the bounds of its version."""
        match = _REQUIREMENT.match(self.target)
        return match[1] if match else ""

    @property
    def bounds(self) -> Sequence[tuple[str, str]]:
        """Operators and versions in the requirement of a package."""
        match = _REQUIREMENT.match(self.target)
        return _BOUND.findall(match[2] or "") if match and self.kind == "packages" else []

    def is_met(self, state: str) -> bool:
        """Tell whether a state is what the skill needs; "" is the state of what is missing.

        A package with bounds needs a version within them, whatever version was seen. Anything else
        must be as it was seen.
        """
        if not self.bounds or not state:
            return bool(state) and state == self.seen
        for version in state.split(", "):  # Cargo and npm can lock several
            order = _order_of(version)
            if all(_COMPARE[sign](order, _order_of(bound)) for sign, bound in self.bounds):
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
            if fault := _fault_of(entry):
                raise ValueError(fault)
            entries.append(entry._replace(seen=str(seen.get(entry.key, ""))))
    if len(entries) > _MAX_RELIANCES:
        raise ValueError(f"it has more than {_MAX_RELIANCES} entries")
    return entries


def confirm(text: str, states: Mapping[Reliance, str]) -> str:
    """Return the text of a `freshness.toml` with these states in its table `seen`, its last one.

    Raises:
        ValueError: another table follows.
    """
    before = parse_reliances(text)
    head = re.split(r"(?m)^[ \t]*+\[seen\]", text, maxsplit=1)[0].rstrip()
    rows = [f"{_text(entry.key)} = {_text(states.get(entry, entry.seen))}" for entry in before]
    edited = "\n".join([head, "", "[seen]", *rows, ""])
    if [entry.key for entry in parse_reliances(edited)] != [entry.key for entry in before]:
        raise ValueError("its table [seen] is not the last one; move it to the end")
    return edited


def normal_name(package: str) -> str:
    """Return the name of a Python package or a crate in the form that its lock file has."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no table")
    return cast("dict[str, Any]", value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # also a TOML string, as the text is printable


def _fault_of(entry: Reliance) -> str:
    """Return what is wrong with the texts of an entry, or ""."""
    target, address = quoted(entry.target), entry.server or entry.target
    if entry.kind == "files":
        steps = entry.target.lower().split("/")
        if not {"", ".", "..", ".git"}.isdisjoint(steps) or re.search(r"[\\:]", entry.target):
            return f"{target} is no path below the repository; write one such as src/**/*.py"
    elif entry.kind == "packages":
        match = _REQUIREMENT.fullmatch(entry.target)
        bounds = (match[2] or "==0") if match else ""
        if not all(map(_BOUND.fullmatch, bounds.split(","))):
            return f"{target} is no requirement; write one such as httpx>=0.27,<1"
    elif not _URL.fullmatch(address) and not (entry.server and _SERVER_NAME.fullmatch(address)):
        return f"{quoted(address)} is no https URL; write one without a password"
    return ""


def _order_of(version: str) -> tuple[list[int], bool]:
    """Return a sort key: the release numbers, then a pre-release before the release."""
    match = _VERSION.match(version)
    if match is None:
        return [], False
    numbers = [*map(int, match[1].split("."))]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers, not match[2] or match[2].lower().startswith(("+", ".post", "-post"))
