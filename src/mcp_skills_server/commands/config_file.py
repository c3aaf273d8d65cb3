"""The configuration file: TOML whose keys are the names of options, `[[source]]` for what holds of one root, `[oauth]`
for whose tokens are taken, `[[grant]]` for who may read what, and `[quota]` for how much one may take.

What is wrong with one is found at once, all of it, and said with its line. What each key takes: `config_schema`. This
module is imported only where there is such a file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, cast

import click
from pydantic import ValidationError

from mcp_skills_server.access.grants import EVERY_SKILL, Grant, Pattern, PatternError
from mcp_skills_server.access.quotas import QuotaSettings
from mcp_skills_server.access.settings import OAuthSettings
from mcp_skills_server.commands import config_oauth, config_quota
from mcp_skills_server.commands.config_schema import GRANT_TAKES, SOURCE_TAKES, model, parameters, takes
from mcp_skills_server.commands.fields import LocatedType
from mcp_skills_server.commands.options import RootType
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import SkillsServerError, clipped
from mcp_skills_server.hosts.tomltext import lines_of
from mcp_skills_server.model import printable
from mcp_skills_server.sources.kinds import kind_of

_TABLES: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    "source": (SOURCE_TAKES, "write a table [[source]] with from = ROOT"),
    "grant": (GRANT_TAKES, 'write a table [[grant]] with who = ["*"] and skills = ["**"]'),
    "oauth": (config_oauth.TAKES, "write a table [oauth] with issuer and audience"),
    "quota": (config_quota.TAKES, "write a table [quota] with keys such as requests-per-minute = 600"),
}
"""By table: what its keys take, and what to write where it is none."""
_MOST_BYTES: Final = 1 << 20
_STREAM: Final = "-"
"""What stands where a path would, for stdin or stdout."""
_PAGE: Final = "docs/configuration.md lists the keys"
_AT: Final = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Fault:
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

    def __init__(self, file: str, faults: Sequence[Fault]) -> None:
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
        """The rules of a root, however its path is written; None where there are none."""
        return self.sources.get(_absolute(root, os.getcwd()))


def read(path: str, *, again: bool = False) -> Configuration:
    """Parse the file at this path. `again` refuses a FIFO, for which a running server would wait for ever.

    Raises:
        ConfigurationError: it cannot be read, or something is wrong with it.
    """
    try:
        raw, _ = read_regular(path, _MOST_BYTES, wait=not again)
    except OSError as error:
        fault = Fault(0, "", f"it cannot be read ({error.strerror})", "give the path of a TOML file that you may read")
        raise ConfigurationError(path, [fault]) from None
    if len(raw) > _MOST_BYTES:
        fault = Fault(0, "", f"it has more than {_MOST_BYTES:,} bytes", "give the path of a configuration file")
        raise ConfigurationError(path, [fault])
    return parse(raw, path)


def parse(raw: bytes, path: str) -> Configuration:
    """The same of its bytes; relative paths are from the folder of `path`.

    Raises:
        ConfigurationError: something is wrong with it.
    """
    try:
        text = raw.decode().removeprefix("\ufeff")
        given = tomllib.loads(text)
    except UnicodeDecodeError as error:
        fault = Fault(raw.count(b"\n", 0, error.start) + 1, "", "this is not UTF-8", "save the file as UTF-8")
        raise ConfigurationError(path, [fault]) from None
    except RecursionError:
        raise ConfigurationError(path, [Fault(0, "", "it is nested too deeply", _PAGE)]) from None
    except ValueError as error:  # also a number that is too long
        raise ConfigurationError(path, [_syntax(raw, str(error))]) from None
    lines = lines_of(text)
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    try:
        found = model().model_validate(given)
        values = found.model_dump(exclude_unset=True, exclude={"oauth", "quota"})
    except ValidationError as error:
        faults = [_fault(each["type"], each["loc"], each["input"], lines) for each in error.errors(include_url=False)]
    faults += [*_of_sources(given, lines), *_of_grants(given, lines)]
    oauth = given.get("oauth")
    if isinstance(oauth, dict) and not config_oauth.has_resource(cast("dict[str, Any]", oauth)):
        faults.append(Fault(_line(["oauth", "audience"], lines), "oauth.audience", *config_oauth.NO_RESOURCE))
    if faults:
        raise ConfigurationError(path, sorted(faults, key=lambda each: each.line))
    settings = config_oauth.settings_of(given["oauth"]) if "oauth" in given else None
    made = _configuration(values, os.path.abspath(path), lines, settings)
    quota: dict[str, Any] = given.get("quota", {})
    where = {f"quota.{key}": _line(["quota", key], lines) for key in quota}
    return replace(made, raw=raw, quotas=config_quota.settings_of(quota), lines={**made.lines, **where})


# What is wrong


def _syntax(raw: bytes, message: str) -> Fault:
    found = _AT.search(message)
    line = raw.rstrip().count(b"\n") + 1
    if found is not None and found[1]:
        line = int(found[1])
    reason = _AT.sub("", message)
    return Fault(
        line, "", f"this is not TOML: {reason[:1].lower()}{reason[1:]}", "write key = value; text is in quotes"
    )


def _line(place: Sequence[str | int], lines: Mapping[tuple[str | int, ...], int]) -> int:
    return next((lines[found] for end in range(len(place), 0, -1) if (found := tuple(place[:end])) in lines), 0)


def _fault(kind: str, place: tuple[str | int, ...], value: Any, lines: Mapping[tuple[str | int, ...], int]) -> Fault:
    """What pydantic found, in our words."""
    line = _line(place, lines)
    key = ".".join(each for each in place if isinstance(each, str))
    if place[0] in _TABLES:
        known, form = _TABLES[str(place[0])]
        name = next((each for each in place[1:] if isinstance(each, str)), "")
        if not name:
            return Fault(line, key, f"this is {_kind(value)}", form)
        words = known.get(name, "")
    else:
        name, known = str(place[0]), parameters()
        words = takes(known[name]) if name in known else ""
    if kind == "extra_forbidden":
        near = _nearest(name, [*known, *(() if place[0] in _TABLES else _TABLES)])
        hint = f"write {near}" if near else _PAGE
        if not near and isinstance(value, dict):
            hint = f"put its keys at the top of the file; {_PAGE}"
        return Fault(line, key, "there is no such key", hint)
    if kind == "missing":
        if place[0] == "grant":
            return Fault(line, key, "it is missing", f"write {words}")
        return Fault(line, key, "it is missing", f'write {name} = "{config_oauth.EXAMPLES.get(name, "ROOT")}"')
    what = f"this is {_kind(value)}" if kind.endswith("_type") else "it does not take this value"
    if key == "grant.skills" and isinstance(value, str):
        what = _no_pattern(value) or what
    return Fault(line, key, what, f"write {words}")


def _no_pattern(text: str) -> str:
    """Why this is no pattern of skill paths; "" for one that is."""
    try:
        Pattern(text)
    except PatternError as error:
        return str(error)
    return ""


def _nearest(name: str, known: Sequence[str]) -> str:
    """The key that was probably meant: of an option as on the command line or of a variable, or with a slip."""
    plain = name.lower().replace("_", "-").removeprefix("--").removeprefix("mcp-skills-")
    for each in (plain, plain.removeprefix("no-")):
        if each in known:
            return each
    return next(iter(get_close_matches(plain, known, 1)), "")


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", str: "text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return kinds.get(cast("type[Any]", type(value)), "a date or a time")


def _of_sources(given: Mapping[str, Any], lines: Mapping[tuple[str | int, ...], int]) -> Iterator[Fault]:
    """What is wrong with sources of which each key has its form."""
    sources: Any = given.get("source")
    roots: Any = given.get("roots")
    listed: list[Any] = cast("list[Any]", roots) if isinstance(roots, list) else []
    seen = {each for each in listed if isinstance(each, str)}
    for number, each in enumerate(cast("list[Any]", sources) if isinstance(sources, list) else []):
        source = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        root = source.get("from")
        if not isinstance(root, str) or not root:
            continue
        if root in seen:
            place = ("source", number, "from")
            yield Fault(_line(place, lines), "source.from", "this root stands twice", "name it once")
        seen.add(root)
        if "refresh" in source and not kind_of(root).is_asked:
            place = ("source", number, "refresh")
            what = f"nobody asks a {kind_of(root).name} so often: it is watched, or says itself how long it holds"
            yield Fault(_line(place, lines), "source.refresh", what, "leave it out")


def _of_grants(given: Mapping[str, Any], lines: Mapping[tuple[str | int, ...], int]) -> Iterator[Fault]:
    """Which grants give what they cannot, of those of which each key has its form."""
    grants: Any = given.get("grant")
    for number, each in enumerate(cast("list[Any]", grants) if isinstance(grants, list) else []):
        grant = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        may, skills = grant.get("may"), grant.get("skills")
        if not isinstance(may, list) or not isinstance(skills, list):
            continue
        if "admin" in may and EVERY_SKILL not in skills:
            place = ("grant", number, "may")
            what = "admin is about all skills, and this grant is about some"
            yield Fault(_line(place, lines), "grant.may", what, f'write skills = ["{EVERY_SKILL}"], or leave out admin')


# What is made of it


def _configuration(
    given: dict[str, Any], file: str, lines: Mapping[tuple[str | int, ...], int], oauth: OAuthSettings | None
) -> Configuration:
    folder = os.path.dirname(file)
    sources: dict[str, SourceRules] = {}
    for number, each in enumerate(given.pop("source", ())):
        keys = tuple(os.path.join(folder, key) for key in each.get("require_signature") or ())
        root = _absolute(each["origin"], folder)
        sources[root] = SourceRules(each.get("scripts"), keys, each.get("refresh"), _line(["source", number], lines))
    grants = [
        Grant(tuple(each["who"]), tuple(map(Pattern, each["skills"])), frozenset(each.get("may", ())))
        for each in given.pop("grant", ())
    ]
    grant_lines = tuple(_line(["grant", number], lines) for number in range(len(grants)))
    known = {each.name: (key, each) for key, each in parameters().items()}
    values = {name: _from_here(known[name][1], value, folder) for name, value in given.items()}
    where = {name: _line([known[name][0]], lines) for name in values}
    if sources:
        values["roots"] = [*values.get("roots", ()), *sources]
        where.setdefault("roots", _line(["source"], lines))
    if oauth is not None:
        where["oauth"] = _line(["oauth"], lines)
    return Configuration(file, values, sources, where, oauth, tuple(grants) or None, grant_lines)


def _from_here(parameter: click.Parameter, value: Any, folder: str) -> Any:
    """A value with paths that do not depend on where a command is started."""
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
