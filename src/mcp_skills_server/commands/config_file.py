"""Configuration file: TOML whose keys are the names of options, and four kinds of tables.

The tables are `[[source]]`, `[[grant]]`, `[oauth]` and `[[quota]]`. Parsing reports every fault of
a file at once, each with its line. This module is imported only if there is a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeGuard, cast

import click

from mcp_skills_server.access.grants import WHO, Grant
from mcp_skills_server.access.quota import QuotaTable
from mcp_skills_server.access.settings import OAuthSettings
from mcp_skills_server.commands.fields import RootType, key_of, located, traits_of
from mcp_skills_server.commands.printing import more_suffix
from mcp_skills_server.commands.source_rules import SourceRules
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import SkillsServerError, clipped
from mcp_skills_server.format.nearest import nearest
from mcp_skills_server.hosts.tomltext import lines_of
from mcp_skills_server.model import keys, printable
from mcp_skills_server.model.decoding import load_toml
from mcp_skills_server.model.keys import ContradictionError, Key, WrongValueError
from mcp_skills_server.sources.kinds import kind_of

READERS: Final = ("serve", "rpc", "acp")
"""The commands whose options are keys of the file."""
_MAX_BYTES: Final = 1 << 20
_PAGE: Final = "docs/configuration.md lists the keys"
_AT: Final = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)$")
_TABLES: Final[Mapping[str, type[SourceRules | Grant | OAuthSettings | QuotaTable]]] = {
    "source": SourceRules,
    "grant": Grant,
    "oauth": OAuthSettings,
    "quota": QuotaTable,
}
"""The settings that are built from each table."""

_Place: TypeAlias = "tuple[str | int, ...]"


@dataclass(frozen=True, slots=True)
class ConfigurationFault:
    """A fault and its remedy; `line` is 0 and `key` "" for a fault of the file as a whole.

    No part shows a value, which may be a secret.
    """

    line: int
    key: str
    what: str
    hint: str

    def show(self, file: str) -> str:
        """Return the fault as one line: file, line, key, what, hint."""
        parts = [file, f"{self.what}; {self.hint}"]
        if self.key:
            parts.insert(1, clipped(self.key))
        if self.line:
            parts[0] = f"{file}:{self.line}"
        return printable(": ".join(parts))


class ConfigurationError(SkillsServerError, ValueError):
    """A configuration file cannot be used. `faults` has all its faults, in the order of lines."""

    def __init__(self, file: str, faults: Sequence[ConfigurationFault]) -> None:
        more = more_suffix(len(faults) - 1, "; see 'mcp-skills-server config check'")
        super().__init__(faults[0].show(file) + more)
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The parsed content of a configuration file; paths are absolute."""

    file: str
    values: Mapping[str, Any]
    """Values of options by field name."""
    sources: Mapping[str, SourceRules]
    """Rules of single roots, by the root as in `values`, in the order of the tables."""
    grants: tuple[Grant, ...] | None
    oauth: OAuthSettings | None
    quotas: tuple[QuotaTable, ...]
    lines: Mapping[_Place, int]

    def __str__(self) -> str:
        return self.file

    def place(self, *key: str | int) -> str:
        """Return file and line of a key, such as `("grant", 0)` for the first `[[grant]]`."""
        return f"{self.file}:{_line(self.lines, key)}"

    def rules_of(self, root: str) -> SourceRules | None:
        """Return the rules of a root, however its path is written; None if it has none."""
        return self.sources.get(_absolute(root, os.getcwd()))


# Keys of options


def command_named(name: str) -> click.Command:
    """Return the command of this name among `READERS`."""
    return getattr(import_module(f"mcp_skills_server.commands.{name}"), name)


def parameters() -> Mapping[str, click.Parameter]:
    """Return the options and arguments that a file can set, by key."""
    params: dict[str, click.Parameter] = {}
    for name in READERS:
        for param in command_named(name).params:
            if traits_of(param).in_file:
                params.setdefault(key_of(param), param)
    return params


def _key(parameter: click.Parameter) -> Key:
    kind = parameter.type
    if isinstance(parameter, click.Argument) or parameter.multiple:
        example = (parameter.metavar or parameter.name or "").upper().strip("[.]")
        return Key(f'a list of text, such as ["{example}"]', keys.list_of(keys.text))
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return keys.FLAG
    if isinstance(kind, click.Choice):
        choices = [str(choice) for choice in kind.choices]
        return Key(f"one of {keys.quoted(choices)}", keys.one_of(choices))
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        is_whole = isinstance(kind, click.IntRange)
        return keys.number(kind.min or 0, kind.max, is_whole=is_whole, above=kind.min_open)
    return Key("text in quotes")


# Parsing


def read(path: str, *, again: bool = False) -> Configuration:
    """Parse the file at this path. `again` refuses a FIFO, which would block a running server.

    Raises:
        ConfigurationError: the file cannot be read, or has a fault.
    """
    try:
        raw, _ = read_regular(path, _MAX_BYTES, wait=not again)
    except OSError as error:
        hint = "give the path of a TOML file that you may read"
        raise _one_fault(path, 0, f"it cannot be read ({error.strerror})", hint) from None
    return parse(raw, path)


def parse(raw: bytes, path: str) -> Configuration:
    """Parse the bytes of a file; relative paths are resolved from the folder of `path`.

    Raises:
        ConfigurationError: the file has a fault.
    """
    try:
        text = raw.decode().removeprefix("\ufeff")
        given = load_toml(text)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _one_fault(path, line, "this is not UTF-8", "save the file as UTF-8") from None
    except ValueError as error:  # also a number that is too long
        reason, match = _AT.sub("", str(error)), _AT.search(str(error))
        line = raw.rstrip().count(b"\n") + 1
        if match is not None and match[1]:
            line = int(match[1])
        what = f"this is not TOML: {reason[:1].lower()}{reason[1:]}"
        raise _one_fault(path, line, what, "write key = value; text is in quotes") from None
    file = os.path.abspath(path)
    reading = _FileReading(lines_of(text), os.path.dirname(file))
    options = {key: value for key, value in given.items() if key not in _TABLES}
    known = {key: _key(param) for key, param in parameters().items()}
    values = reading.values(options, known)
    tables = {name: reading.tables(name, given[name]) if name in given else {} for name in _TABLES}
    reading.check(tables, values.get("roots", ()))
    if reading.faults:
        raise ConfigurationError(path, sorted(reading.faults, key=lambda fault: fault.line))
    return _configuration(values, tables, reading.lines, file)


def _one_fault(path: str, line: int, what: str, hint: str) -> ConfigurationError:
    return ConfigurationError(path, [ConfigurationFault(line, "", what, hint)])


def _line(lines: Mapping[_Place, int], key: _Place) -> int:
    """Return the line of a key, or of the nearest table around it; 0 if neither is known."""
    while key and key not in lines:
        key = key[:-1]
    return lines.get(key, 0)


class _FileReading:
    """A reader of a file in `folder`, which collects faults; `lines` has the line of each key."""

    def __init__(self, lines: Mapping[_Place, int], folder: str) -> None:
        self.lines = lines
        self._folder = folder
        self.faults: list[ConfigurationFault] = []

    def blame(self, place: _Place, what: str, hint: str) -> None:
        """Record a fault."""
        key = ".".join(part for part in place if isinstance(part, str))
        self.faults.append(ConfigurationFault(_line(self.lines, place), key, what, hint))

    def tables(self, name: str, given: Any) -> dict[int, Any]:
        """Return the settings of the valid tables of this name by number, and record faults."""
        kind = _TABLES[name]
        table, is_list = kind.TABLE, isinstance(given, list)
        entries: Any = given if is_list else [given]
        is_count_wrong = len(entries) < table.least or (table.is_single and len(entries) != 1)
        if is_count_wrong or not _are_tables(entries):
            self.blame((name,), f"this is {keys.in_words(given)}", table.form)
            return {}
        settings: dict[int, Any] = {}
        for number, entry in enumerate(entries):
            at: _Place = (name, number) if is_list else (name,)
            count = len(self.faults)
            values = self.values(entry, table.keys, at)
            for key, known in table.keys.items():
                if known.missing and key not in entry:
                    self.blame((*at, key), "it is missing", f"write {known.missing}")
            if len(self.faults) > count:
                continue
            try:
                settings[number] = kind.from_table(values)
            except ContradictionError as error:
                self.blame((*at, error.key), str(error), error.hint)
        return settings

    def values(
        self, given: Mapping[str, Any], known: Mapping[str, Key], at: _Place = ()
    ) -> dict[str, Any]:
        """Return the values of valid keys, of the file itself or of the table `at`."""
        out: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                hint = _PAGE
                is_table = not at and isinstance(value, dict)
                names = [] if is_table else [*known]
                if near := _meant(name, names if at else [*names, *_TABLES]):
                    hint = f"write {near}"
                elif is_table:
                    hint = f"put its keys at the top of the file; {_PAGE}"
                self.blame((*at, name), "there is no such key", hint)
                continue
            try:
                out[name] = known[name].read(value)
            except WrongValueError as error:
                self.blame((*at, name), str(error), f"write {known[name].takes}")
        return out

    def check(self, tables: Mapping[str, Mapping[int, Any]], roots: Sequence[str]) -> None:
        """Record sources that are named twice, and a second quota of everybody."""
        paths = {_absolute(root, self._folder) for root in roots}
        for number, rules in tables["source"].items():
            path = _absolute(rules.root, self._folder)
            if path in paths:
                self.blame(("source", number, "from"), "this root occurs twice", "name it once")
            paths.add(path)
        defaults = [number for number, quota in tables["quota"].items() if not quota.who]
        for number in defaults[1:]:
            what = "an earlier table without who has the limits of everybody"
            self.blame(("quota", number), what, f"write who = {WHO}, or join the two")


def _configuration(
    options: Mapping[str, Any],
    tables: Mapping[str, Mapping[int, Any]],
    lines: Mapping[_Place, int],
    file: str,
) -> Configuration:
    """Return the configuration of a file without faults."""
    folder = os.path.dirname(file)
    known = parameters()
    values: dict[str, Any] = {}
    for key, value in options.items():
        parameter = known[key]
        values[parameter.name or ""] = _from_here(parameter, value, folder)
    sources: dict[str, SourceRules] = {}
    for rules in tables["source"].values():
        root = _absolute(rules.root, folder)
        sources[root] = rules.located(root, folder)
    if sources:
        values["roots"] = (*values.get("roots", ()), *sources)
        lines = {("roots",): _line(lines, ("source",)), **lines}
    return Configuration(
        file=file,
        values=values,
        sources=sources,
        grants=tuple(tables["grant"].values()) or None,
        oauth=next(iter(tables["oauth"].values()), None),
        quotas=tuple(tables["quota"].values()),
        lines=lines,
    )


def _are_tables(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(
        isinstance(entry, dict) for entry in cast("list[Any]", value)
    )


def _meant(name: str, known: Sequence[str]) -> str:
    """Return the known key meant by a misspelled one, or by one written as option or variable."""
    plain = name.lower().replace("_", "-").removeprefix("--").removeprefix("mcp-skills-")
    for spelled in (plain, plain.removeprefix("no-")):
        if spelled in known:
            return spelled
    return next(iter(nearest(plain, known, 1)), "")


def _from_here(parameter: click.Parameter, value: Any, folder: str) -> Any:
    """Return a value with its paths made absolute from `folder`."""
    if isinstance(value, tuple):
        return tuple(_from_here(parameter, item, folder) for item in cast("tuple[Any, ...]", value))
    if isinstance(parameter.type, RootType):
        return _absolute(value, folder)
    if isinstance(value, str):
        return located(parameter, value, folder)
    return value


def _absolute(root: str, folder: str) -> str:
    if kind_of(root).is_path:
        return os.path.normpath(os.path.join(folder, root))
    return root
