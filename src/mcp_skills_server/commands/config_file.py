"""Configuration file: TOML whose keys are the names of options, and four kinds of tables.

The tables are `[[source]]`, `[[grant]]`, `[oauth]` and `[[quota]]`. Parsing reports every fault of
a file at once, each with its line. This module is imported only if there is a file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, cast
from urllib.parse import urlsplit

import click

from mcp_skills_server.access.grants import EVERY_SKILL, MAY, Grant, Pattern, PatternError, is_who
from mcp_skills_server.access.quota import QuotaTable
from mcp_skills_server.access.settings import ALGORITHMS, OAuthSettings, is_secure
from mcp_skills_server.commands.fields import VARIABLE_NAME, RootType, key_of, located, traits_of
from mcp_skills_server.commands.printing import more_suffix
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import SkillsServerError, UsageError, clipped
from mcp_skills_server.format.nearest import nearest
from mcp_skills_server.hosts.tomltext import lines_of
from mcp_skills_server.model import printable
from mcp_skills_server.model.decoding import load_toml
from mcp_skills_server.sources.kinds import kind_of

READERS: Final = ("serve", "rpc", "acp")
"""The commands whose options are keys of the file."""
_MAX_BYTES: Final = 1 << 20
_PAGE: Final = "docs/configuration.md lists the keys"
_AT: Final = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)$")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_SECONDS: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h)")
_FIELDS: Final = {"skew": "skew_s", "refresh": "refresh_s"}
"""Field names of keys whose values are seconds."""
_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")
_ENDPOINT: Final = "https://skills.example/mcp"
_NO_RESOURCE: Final = "is not an https URL, so it cannot be the URL of the endpoint"

_Place: TypeAlias = "tuple[str | int, ...]"
_Reader: TypeAlias = Callable[[Any], Any]


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
class SourceRules:
    """Rules of one root, from a table `[[source]]`. None leaves a rule to the options."""

    scripts: bool | None = None
    require_signature: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    token_env: str = ""
    refresh_s: float | None = None
    optional: bool | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """The parsed content of a configuration file; paths are absolute."""

    file: str
    values: Mapping[str, Any]
    """Values of options by field name."""
    sources: Mapping[str, SourceRules]
    """Rules of single roots, by the root as in `values`, in the order of the tables."""
    grants: tuple[Grant, ...] | None
    oauth: Mapping[str, Any] | None
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


# Values of keys


class _WrongValueError(SkillsServerError, ValueError):
    """A value is invalid for its key. The message does not repeat it, since it may be a secret."""

    def __init__(self, reason: str = "it does not take this value") -> None:
        super().__init__(reason)


class _Key(NamedTuple):
    """A key: its valid values in words, their reader, and an example for a missing required key."""

    takes: str
    read: _Reader
    missing: str = ""


class _Table(NamedTuple):
    """A table, or with `is_array` at least `least` tables; `form` is the hint for a wrong value.

    `is_array` is None for one or more tables.
    """

    keys: Mapping[str, _Key]
    form: str
    is_array: bool | None = False
    least: int = 0


def _in_words(value: Any) -> str:
    kinds = {bool: "true or false", str: "text", int: "a number", float: "a number"}
    kinds |= {list: "a list", dict: "a table"}
    return kinds.get(cast("type[Any]", type(value)), "a date or a time")


def _of_kind(value: Any, *kinds: type) -> Any:
    """Return the value if its type is exactly one of `kinds`: a bool does not pass as an int."""
    if type(value) not in kinds:
        raise _WrongValueError(f"this is {_in_words(value)}")
    return value


def _text(value: Any) -> str:
    if not _of_kind(value, str).strip() or "\0" in value:
        raise _WrongValueError
    return value


def _text_that(fits: Callable[[str], object]) -> _Reader:
    def read(value: Any) -> str:
        if not fits(_text(value)):
            raise _WrongValueError
        return value

    return read


def _pattern(value: Any) -> Pattern:
    try:
        return Pattern(_of_kind(value, str))
    except PatternError as error:
        raise _WrongValueError(str(error)) from None


def _list_of(read: _Reader, *, least: int = 0) -> _Reader:
    def read_all(value: Any) -> tuple[Any, ...]:
        if len(_of_kind(value, list)) < least:
            raise _WrongValueError
        return tuple(map(read, value))

    return read_all


def _number(bounds: click.IntRange | click.FloatRange) -> _Reader:
    """Return the reader of a number in `bounds`: whole, or seconds, also as text with a unit."""
    kinds = (int,) if isinstance(bounds, click.IntRange) else (int, float)

    def read(value: Any) -> Any:
        if float in kinds and isinstance(value, str) and (seconds := _SECONDS.fullmatch(value)):
            value = float(seconds[1]) * _UNITS[seconds[2]]
        try:
            number = _of_kind(value, *kinds)
            if math.isfinite(number):
                return bounds.convert(number, None, None)
        except (click.BadParameter, OverflowError):
            pass
        raise _WrongValueError

    return read


def _one_of(names: Sequence[str]) -> _Reader:
    return _text_that(names.__contains__)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _flag(value: Any) -> bool:
    return _of_kind(value, bool)


_FLAG: Final = _Key("true or false", _flag)


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


def _key(parameter: click.Parameter) -> _Key:
    kind = parameter.type
    if isinstance(parameter, click.Argument) or parameter.multiple:
        example = (parameter.metavar or parameter.name or "").upper().strip("[.]")
        return _Key(f'a list of text, such as ["{example}"]', _list_of(_text))
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return _FLAG
    if isinstance(kind, click.Choice):
        choices = [str(choice) for choice in kind.choices]
        return _Key(f"one of {_quoted(choices)}", _one_of(choices))
    if not isinstance(kind, (click.IntRange, click.FloatRange)):
        return _Key("text in quotes", _text)
    bounds = ""
    if kind.min is not None:
        bounds = f" above {kind.min}" if kind.min_open else f" from {kind.min}"
    if kind.max is not None:
        bounds += f" to {kind.max}"
    if isinstance(kind, click.IntRange):
        return _Key(f"a whole number{bounds}", _number(kind))
    return _Key(f'a number{bounds}, or "90s", "5m", "1h"', _number(kind))


# Keys of tables

_WHO: Final = 'a list of "*", "local", "token:NAME", "user:SUBJECT" or "group:NAME"'
_GRANT_SKILLS: Final = 'a list of skill paths, such as ["acme/billing/**"]'
_PATTERNS: Final = 'a list of paths, names or tags of skills, such as ["acme/*", "draft"]'
_COUNT: Final = _Key("a whole number from 1", _number(click.IntRange(1, 1 << 40)))
_RATE: Final = _Key("a whole number from 1 to 1,000,000", _number(click.IntRange(1, 1_000_000)))
_FAILURES: Final = "failed-authentications-per-minute"
_SCOPES: Final = _list_of(_text_that(_SCOPE.fullmatch))

_TABLES: Final[Mapping[str, _Table]] = {
    "source": _Table(
        {
            "from": _Key("text in quotes, any ROOT", _text, 'from = "ROOT"'),
            "scripts": _FLAG,
            "optional": _FLAG,
            "require-signature": _Key(
                'a list of paths of keys, such as ["keys/team.pub"]', _list_of(_text, least=1)
            ),
            "include": _Key(_PATTERNS, _list_of(_text, least=1)),
            "exclude": _Key(_PATTERNS, _list_of(_text, least=1)),
            "token-env": _Key(
                'the name of a variable, such as "SKILLS_TOKEN"',
                _text_that(VARIABLE_NAME.fullmatch),
            ),
            "refresh": _Key(
                'a number from 1, or "90s", "5m", "1h"', _number(click.FloatRange(min=1))
            ),
        },
        "write a table [[source]] with from = ROOT",
        is_array=True,
    ),
    "grant": _Table(
        {
            "who": _Key(_WHO, _list_of(_text_that(is_who), least=1), _WHO),
            "skills": _Key(_GRANT_SKILLS, _list_of(_pattern, least=1), _GRANT_SKILLS),
            "may": _Key(f"a list of {_quoted(MAY)}", _list_of(_one_of(MAY))),
        },
        f'write a table [[grant]] with who = ["*"] and skills = ["{EVERY_SKILL}"]',
        is_array=True,
        least=1,
    ),
    "oauth": _Table(
        {
            "issuer": _Key(
                'the https URL of the issuer as in its metadata, such as "https://login.example"',
                _text_that(lambda url: is_secure(url) and not urlsplit(url).query),
                'issuer = "https://login.example"',
            ),
            "audience": _Key(
                f'the aud of its tokens, such as "{_ENDPOINT}"', _text, f'audience = "{_ENDPOINT}"'
            ),
            "resource": _Key(
                f'the https URL of the endpoint for clients, such as "{_ENDPOINT}"',
                _text_that(is_secure),
            ),
            "groups-claim": _Key(
                'the name of a claim, such as "groups" or "realm_access.roles"', _text
            ),
            "scopes": _Key('a list of scopes, all required, such as ["skills:read"]', _SCOPES),
            "algorithms": _Key(
                f"a list of {_quoted(ALGORITHMS)}", _list_of(_one_of(ALGORITHMS), least=1)
            ),
            "skew": _Key(
                'a number from 0 to 600, or "60s", "5m"', _number(click.FloatRange(0, 600))
            ),
            "ui-client-id": _Key(
                "the client id of the page of --ui at the issuer, a public client", _text
            ),
            "principal-claim": _Key(
                'the name of a claim to show beside sub, such as "email"', _text
            ),
            "request-scopes": _Key(
                'a list of scopes to ask the issuer for, such as ["api://skills/read"]', _SCOPES
            ),
            "ui-resource": _FLAG,
        },
        "write a table [oauth] with issuer and audience",
    ),
    "quota": _Table(
        dict[str, _Key](
            who=_Key(_WHO, _list_of(_text_that(is_who), least=1)),
            **dict.fromkeys(("requests-per-minute", _FAILURES), _RATE),
            **dict.fromkeys(
                ("sessions", "streams", "unread-bytes", "runtime-sessions", "blob-bytes", "runs"),
                _COUNT,
            ),
        ),
        "write a table [quota] with keys such as requests-per-minute = 600",
        is_array=None,
    ),
}
"""The tables of a file; keys of `oauth` are fields of its settings class."""


def _has_resource(given: Mapping[str, Any]) -> bool:
    """Return True if `[oauth]` names the endpoint, by `resource` or by a URL as `audience`."""
    audience = given.get("audience")
    return "resource" in given or not isinstance(audience, str) or is_secure(audience)


def oauth_settings(
    configuration: Configuration | None, values: Mapping[str, Any]
) -> OAuthSettings | None:
    """Return the settings of `[oauth]`, overridden by options --oauth-KEY; None without either.

    Raises:
        UsageError: an option has an invalid value, or an issuer or an audience is missing.
    """
    table = configuration and configuration.oauth
    options = {key: values[f"oauth_{key}"] for key in ("issuer", "audience", "resource")}
    options = {key: value for key, value in options.items() if value is not None}
    if table is None and not options:
        return None
    given = {**(table or {}), **options}
    for key in ("issuer", "audience"):
        if key not in given:
            raise UsageError(f"--oauth-{key} is missing; give it too, or a table [oauth]")
    if not _has_resource(given):
        raise UsageError(f"--oauth-audience {_NO_RESOURCE}; give --oauth-resource too")
    for key, value in options.items():
        known = _TABLES["oauth"].keys[key]
        try:
            known.read(value)
        except _WrongValueError as error:
            raise UsageError(f"--oauth-{key}: {error}; give {known.takes}") from None
    return OAuthSettings(**_as_fields({"resource": given["audience"], **given}))


def _as_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table by field name."""
    return {_FIELDS.get(key, key.replace("-", "_")): value for key, value in values.items()}


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
    if len(raw) > _MAX_BYTES:
        what = f"it has more than {_MAX_BYTES:,} bytes"
        raise _one_fault(path, 0, what, "give the path of a configuration file")
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
    tables = {name: reading.tables(name, given[name]) if name in given else [] for name in _TABLES}
    reading.check(tables, values.get("roots", ()), given.get("oauth"))
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

    def tables(self, name: str, given: Any) -> list[dict[str, Any]]:
        """Return the values of the tables of this name, and record their faults."""
        table = _TABLES[name]
        is_array = isinstance(given, list) if table.is_array is None else table.is_array
        entries: Any = given if is_array else [given]
        if not _are_tables(entries) or len(entries) < table.least:
            self.blame((name,), f"this is {_in_words(given)}", table.form)
            return []
        out: list[dict[str, Any]] = []
        for number, entry in enumerate(entries):
            at: _Place = (name, number) if is_array else (name,)
            out.append(self.values(entry, table.keys, at))
            for key, known in table.keys.items():
                if known.missing and key not in entry:
                    self.blame((*at, key), "it is missing", f"write {known.missing}")
        return out

    def values(
        self, given: Mapping[str, Any], keys: Mapping[str, _Key], at: _Place = ()
    ) -> dict[str, Any]:
        """Return the values of valid keys, of the file itself or of the table `at`."""
        out: dict[str, Any] = {}
        for name, value in given.items():
            if name not in keys:
                hint = _PAGE
                is_table = not at and isinstance(value, dict)
                known = [] if is_table else [*keys]
                if near := _meant(name, known if at else [*known, *_TABLES]):
                    hint = f"write {near}"
                elif is_table:
                    hint = f"put its keys at the top of the file; {_PAGE}"
                self.blame((*at, name), "there is no such key", hint)
                continue
            try:
                out[name] = keys[name].read(value)
            except _WrongValueError as error:
                self.blame((*at, name), str(error), f"write {keys[name].takes}")
        return out

    def check(
        self, tables: Mapping[str, Sequence[Mapping[str, Any]]], roots: Sequence[str], oauth: Any
    ) -> None:
        """Record keys of a table that contradict each other, and sources that are named twice."""
        seen = {_absolute(root, self._folder) for root in roots}
        for number, source in enumerate(tables["source"]):
            root = source.get("from")
            if root is None:
                continue
            if (path := _absolute(root, self._folder)) in seen:
                self.blame(("source", number, "from"), "this root occurs twice", "name it once")
            seen.add(path)
            kind = kind_of(root)
            if "token-env" in source and not root.startswith("mcp+http"):
                what = "only an MCP server at an address (mcp+https://) is sent a token"
                self.blame(("source", number, "token-env"), what, "leave it out")
            if "refresh" in source and not kind.is_asked:
                what = f"a {kind.name} is not polled: it is watched, or says how long it is fresh"
                self.blame(("source", number, "refresh"), what, "leave it out")
            if "optional" in source and kind.name != "folder":
                self.blame(("source", number, "optional"), "only a folder can be", "leave it out")
        for number, grant in enumerate(tables["grant"]):
            skills = [pattern.text for pattern in grant.get("skills", ())]
            if "admin" in grant.get("may", ()) and skills and EVERY_SKILL not in skills:
                what = "admin is about all skills, and this grant is about some"
                hint = f'write skills = ["{EVERY_SKILL}"], or leave out admin'
                self.blame(("grant", number, "may"), what, hint)
        has_default = False
        for number, quota in enumerate(tables["quota"]):
            if "who" in quota or ("quota", number, "who") in self.lines:  # even if it is invalid
                if _FAILURES in quota:
                    what = "this counts clients that did not prove who they are"
                    hint = "put it into a table [[quota]] without who"
                    self.blame(("quota", number, _FAILURES), what, hint)
                continue
            if has_default:
                what = "an earlier table without who has the limits of everybody"
                self.blame(("quota", number), what, f"write who = {_WHO}, or join the two")
            has_default = True
        if isinstance(oauth, dict) and not _has_resource(cast("dict[str, Any]", oauth)):
            hint = f'add resource = "{_ENDPOINT}"'
            self.blame(("oauth", "audience"), f"this {_NO_RESOURCE}", hint)


def _configuration(
    options: Mapping[str, Any],
    tables: Mapping[str, Sequence[dict[str, Any]]],
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
    for entry in tables["source"]:
        rules = _as_fields(entry)
        root = _absolute(rules.pop("from"), folder)
        keys = tuple(os.path.join(folder, key) for key in rules.pop("require_signature", ()))
        sources[root] = SourceRules(**rules, require_signature=keys)
    if sources:
        values["roots"] = (*values.get("roots", ()), *sources)
        lines = {("roots",): _line(lines, ("source",)), **lines}
    grants = tuple(
        Grant(entry["who"], entry["skills"], frozenset(entry.get("may", ())))
        for entry in tables["grant"]
    )
    return Configuration(
        file=file,
        values=values,
        sources=sources,
        grants=grants or None,
        oauth=next(iter(tables["oauth"]), None),
        quotas=tuple(QuotaTable(table.pop("who", ()), table) for table in tables["quota"]),
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
