"""The configuration file: TOML whose keys are the names of options, `[[source]]` for what holds of one root, `[oauth]`
for whose tokens are taken, `[[grant]]` for who may read what, and `[quota]` for how much one may take.

What is wrong with one is found at once, all of it, and said with its line. What each key takes: `config_keys`. This
module is imported only where there is such a file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, TypeAlias, TypeGuard, cast

import click

from mcp_skills_server.access.grants import EVERY_SKILL, Grant
from mcp_skills_server.access.quotas import QuotaSettings
from mcp_skills_server.access.settings import OAuthSettings
from mcp_skills_server.commands.config_keys import (
    NO_RESOURCE,
    TABLES,
    Key,
    WrongValueError,
    has_resource,
    in_words,
    oauth_settings,
    option_keys,
    parameters,
)
from mcp_skills_server.commands.fields import LocatedType
from mcp_skills_server.commands.options import RootType
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import SkillsServerError, clipped
from mcp_skills_server.hosts.tomltext import lines_of
from mcp_skills_server.model import printable
from mcp_skills_server.sources.kinds import kind_of

_MOST_BYTES: Final = 1 << 20
_STREAM: Final = "-"
"""What stands where a path would, for stdin or stdout."""
_PAGE: Final = "docs/configuration.md lists the keys"
_Place: TypeAlias = "tuple[str | int, ...]"
_AT: Final = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, slots=True)
class ConfigurationFault:
    """One thing that is wrong.

    Attributes:
        line: from 1; 0 where it is of the file as a whole.
        key: as it stands in the file, `source.refresh` for one of a table; "" where there is none.
        what: what is wrong there. It shows no value, which may be a secret.
        hint: what to do.
    """

    line: int
    key: str
    what: str
    hint: str

    def show(self, file: str) -> str:
        """One line: file, line, key, what, hint."""
        place = f"{file}:{self.line}" if self.line else file
        return printable(f"{place}: {f'{clipped(self.key)}: ' if self.key else ''}{self.what}; {self.hint}")


class ConfigurationError(SkillsServerError, ValueError):
    """A configuration file cannot be used. `faults` are all that is wrong with it, in the order of their lines."""

    def __init__(self, file: str, faults: Sequence[ConfigurationFault]) -> None:
        more = f" (and {len(faults) - 1:,} more; see 'mcp-skills-server config check')" if len(faults) > 1 else ""
        super().__init__(faults[0].show(file) + more)
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class SourceRules:
    """What holds of one root alone.

    Attributes:
        scripts: whether its scripts may run; None where nothing is said of it.
        require_signature: keys, of which one must have signed its skills.
        refresh_s: seconds between two looks at it; None for what holds of all.
        line: where the file says it.
    """

    scripts: bool | None = None
    require_signature: tuple[str, ...] = ()
    refresh_s: float | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a file says.

    Attributes:
        file: its path, absolute.
        values: by the name of the option's field; paths are absolute.
        sources: the rules of single roots, by the root as `values` has it.
        lines: where each of `values` stands, the table of `oauth`, and each key of `quotas`, as `quota.streams`.
        oauth: whose access tokens are taken; None where nothing is said of it.
        grants: who may do what; None where the file does not say it.
        grant_lines: where each of them stands.
        quotas: how much one may take; the defaults where nothing is said of it.
        raw: its bytes.
    """

    file: str
    values: Mapping[str, Any]
    sources: Mapping[str, SourceRules] = field(default_factory=dict[str, SourceRules])
    lines: Mapping[str, int] = field(default_factory=dict[str, int])
    oauth: OAuthSettings | None = None
    grants: tuple[Grant, ...] | None = None
    grant_lines: tuple[int, ...] = field(default=(), compare=False)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    raw: bytes = field(default=b"", compare=False, repr=False)

    def rules_of(self, root: str) -> SourceRules | None:
        """Return the rules of a root, however its path is written; None where there are none."""
        return self.sources.get(_absolute(root, os.getcwd()))


def read(path: str, *, again: bool = False) -> Configuration:
    """Parse the file at this path. `again` refuses a FIFO, for which a running server would wait for ever.

    Raises:
        ConfigurationError: it cannot be read, or something is wrong with it.
    """
    try:
        raw, _ = read_regular(path, _MOST_BYTES, wait=not again)
    except OSError as error:
        fault = ConfigurationFault(
            0, "", f"it cannot be read ({error.strerror})", "give the path of a TOML file that you may read"
        )
        raise ConfigurationError(path, [fault]) from None
    if len(raw) > _MOST_BYTES:
        fault = ConfigurationFault(
            0, "", f"it has more than {_MOST_BYTES:,} bytes", "give the path of a configuration file"
        )
        raise ConfigurationError(path, [fault])
    return parse(raw, path)


def parse(raw: bytes, path: str) -> Configuration:
    """Return the same of its bytes; relative paths are from the folder of `path`.

    Raises:
        ConfigurationError: something is wrong with it.
    """
    try:
        text = raw.decode().removeprefix("\ufeff")
        given = tomllib.loads(text)
    except UnicodeDecodeError as error:
        fault = ConfigurationFault(
            raw.count(b"\n", 0, error.start) + 1, "", "this is not UTF-8", "save the file as UTF-8"
        )
        raise ConfigurationError(path, [fault]) from None
    except RecursionError:
        raise ConfigurationError(path, [ConfigurationFault(0, "", "it is nested too deeply", _PAGE)]) from None
    except ValueError as error:  # also a number that is too long
        raise ConfigurationError(path, [_syntax(raw, str(error))]) from None
    reading = _FileReading(lines_of(text))
    options = reading.options(given)
    tables = {name: reading.tables(name, given[name]) for name in TABLES if name in given}
    reading.check_sources(tables.get("source", []), options.get("roots", []))
    reading.check_grants(tables.get("grant", []))
    oauth = given.get("oauth")
    if isinstance(oauth, dict) and not has_resource(cast("dict[str, Any]", oauth)):
        reading.blame(("oauth", "audience"), *NO_RESOURCE)
    if reading.faults:
        raise ConfigurationError(path, sorted(reading.faults, key=lambda each: each.line))
    return _configuration(options, tables, os.path.abspath(path), reading, raw)


# What is wrong


def _syntax(raw: bytes, message: str) -> ConfigurationFault:
    found = _AT.search(message)
    line = raw.rstrip().count(b"\n") + 1
    if found is not None and found[1]:
        line = int(found[1])
    reason = _AT.sub("", message)
    return ConfigurationFault(
        line, "", f"this is not TOML: {reason[:1].lower()}{reason[1:]}", "write key = value; text is in quotes"
    )


class _FileReading:
    """Reads the values of one file, and collects the faults in them.

    Args:
        lines: where each key stands.
    """

    def __init__(self, lines: Mapping[_Place, int]) -> None:
        self._lines = lines
        self.faults: list[ConfigurationFault] = []

    def line(self, *place: str | int) -> int:
        """Return the line of a key, or of the nearest table around it; 0 where neither is known."""
        return next((self._lines[place[:end]] for end in range(len(place), 0, -1) if place[:end] in self._lines), 0)

    def blame(self, place: _Place, what: str, hint: str) -> None:
        """Note a fault."""
        key = ".".join(each for each in place if isinstance(each, str))
        self.faults.append(ConfigurationFault(self.line(*place), key, what, hint))

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a file gives for options, by key."""
        return self._values(
            {key: each for key, each in given.items() if key not in TABLES}, option_keys(), [*option_keys(), *TABLES]
        )

    def tables(self, name: str, given: Any) -> list[dict[str, Any]]:
        """Return the tables of this name."""
        table = TABLES[name]
        found: Any = given if table.is_array else [given]
        if not _are_tables(found) or len(found) < table.least:
            self.blame((name,), f"this is {in_words(given)}", table.form)
            return []
        out: list[dict[str, Any]] = []
        for number, each in enumerate(found):
            at: _Place = (name, number) if table.is_array else (name,)
            out.append(self._values(each, table.keys, [*table.keys], at))
            for key, known in table.keys.items():
                if known.missing and key not in each:
                    self.blame((*at, key), "it is missing", f"write {known.missing}")
        return out

    def _values(
        self, given: Mapping[str, Any], keys: Mapping[str, Key], known: Sequence[str], at: _Place = ()
    ) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, value in given.items():
            if name not in keys:
                near = _nearest(name, known)
                hint = f"write {near}" if near else _PAGE
                if not near and not at and isinstance(value, dict):
                    hint = f"put its keys at the top of the file; {_PAGE}"
                self.blame((*at, name), "there is no such key", hint)
                continue
            try:
                out[name] = keys[name].read(value)
            except WrongValueError as error:
                self.blame((*at, name), str(error), f"write {keys[name].takes}")
        return out

    def check_sources(self, sources: Sequence[Mapping[str, Any]], roots: Sequence[str]) -> None:
        """Note the sources that stand twice, or whose refresh says nothing."""
        seen = {*roots}
        for number, source in enumerate(sources):
            root = source.get("from")
            if root is None:
                continue
            if root in seen:
                self.blame(("source", number, "from"), "this root stands twice", "name it once")
            seen.add(root)
            kind = kind_of(root)
            if "refresh" in source and not kind.is_asked:
                what = f"nobody asks a {kind.name} so often: it is watched, or says itself how long it holds"
                self.blame(("source", number, "refresh"), what, "leave it out")

    def check_grants(self, grants: Sequence[Mapping[str, Any]]) -> None:
        """Note the grants of administration of some skills alone."""
        for number, grant in enumerate(grants):
            skills = [each.text for each in grant.get("skills", ())]
            if "admin" in grant.get("may", ()) and skills and EVERY_SKILL not in skills:
                what = "admin is about all skills, and this grant is about some"
                hint = f'write skills = ["{EVERY_SKILL}"], or leave out admin'
                self.blame(("grant", number, "may"), what, hint)


def _are_tables(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(each, dict) for each in cast("list[Any]", value))


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return the key that was probably meant: of an option as on the command line or of a variable, or with a slip."""
    plain = name.lower().replace("_", "-").removeprefix("--").removeprefix("mcp-skills-")
    for each in (plain, plain.removeprefix("no-")):
        if each in known:
            return each
    return next(iter(get_close_matches(plain, known, 1)), "")


# What is made of it


def _configuration(
    options: Mapping[str, Any],
    tables: Mapping[str, Sequence[dict[str, Any]]],
    file: str,
    reading: _FileReading,
    raw: bytes,
) -> Configuration:
    folder = os.path.dirname(file)
    sources: dict[str, SourceRules] = {}
    for number, each in enumerate(tables.get("source", ())):
        keys = tuple(os.path.join(folder, key) for key in each.get("require-signature", ()))
        line = reading.line("source", number)
        sources[_absolute(each["from"], folder)] = SourceRules(each.get("scripts"), keys, each.get("refresh"), line)
    granted = tables.get("grant", ())
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in options.items():
        parameter = parameters()[key]
        name = parameter.name or ""
        values[name], lines[name] = _from_here(parameter, value, folder), reading.line(key)
    if sources:
        values["roots"] = [*values.get("roots", ()), *sources]
        lines.setdefault("roots", reading.line("source"))
    oauth = None
    if "oauth" in tables:
        oauth, lines["oauth"] = oauth_settings(tables["oauth"][0]), reading.line("oauth")
    (quota,) = tables.get("quota") or [{}]
    lines |= {f"quota.{key}": reading.line("quota", key) for key in quota}
    return Configuration(
        file=file,
        values=values,
        sources=sources,
        lines=lines,
        oauth=oauth,
        grants=tuple(
            Grant(tuple(each["who"]), tuple(each["skills"]), frozenset(each.get("may", ()))) for each in granted
        )
        or None,
        grant_lines=tuple(reading.line("grant", number) for number in range(len(granted))),
        quotas=QuotaSettings(**{key.replace("-", "_"): value for key, value in quota.items()}),
        raw=raw,
    )


def _from_here(parameter: click.Parameter, value: Any, folder: str) -> Any:
    """Return a value with paths that do not depend on where a command is started."""
    if isinstance(value, list):
        return [_from_here(parameter, each, folder) for each in cast("list[Any]", value)]
    if isinstance(parameter.type, RootType):
        return _absolute(value, folder)
    if isinstance(parameter.type, LocatedType):
        return parameter.type.located(value, folder)
    is_path = isinstance(parameter.type, click.Path) and value != _STREAM
    return os.path.normpath(os.path.join(folder, value)) if is_path else value


def _absolute(root: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, root)) if kind_of(root).is_path else root
