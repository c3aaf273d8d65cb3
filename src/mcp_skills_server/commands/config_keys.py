"""What each key of a configuration file takes: an option's key takes what the option does, a table's what stands here.

Imported only where there is such a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

import click

from mcp_skills_server.access.grants import EVERY_SKILL, MAY, Pattern, PatternError, is_who
from mcp_skills_server.access.settings import ALGORITHMS, OAuthSettings, is_safe
from mcp_skills_server.commands.fields import key_of
from mcp_skills_server.errors import SkillsServerError, UsageError

READERS: Final = ("serve", "rpc", "acp")
"""The commands that take such a file."""
_NOT_IN_A_FILE: Final = frozenset(("config", "help", "oauth_issuer", "oauth_audience", "oauth_resource"))
"""A file says in `[oauth]` what the last three do."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_SECONDS: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h)")
_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")
_ENDPOINT: Final = "https://skills.example/mcp"
_REFUSED: Final = "it does not take this value"

Reader: TypeAlias = Callable[[Any], Any]


class WrongValueError(SkillsServerError, ValueError):
    """A key does not take a value. The message does not repeat the value, which may be a secret."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        takes: its values in words, for a hint.
        read: returns a value as the program uses it. Raises WrongValueError.
        missing: what to write where the key must stand and does not; "" for an optional key.
    """

    takes: str
    read: Reader
    missing: str = ""


@dataclass(frozen=True, slots=True)
class TableKeys:
    """One table.

    Attributes:
        keys: its keys.
        form: what to write where something else stands in its place.
        is_array: whether it is an array of tables.
        least: how many tables the array has at least.
    """

    keys: Mapping[str, Key]
    form: str
    is_array: bool = False
    least: int = 0


# Readers


def in_words(value: Any) -> str:
    """Return the kind of a value in words."""
    kinds = {bool: "true or false", str: "text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return kinds.get(cast("type[Any]", type(value)), "a date or a time")


def _of_kind(value: Any, *kinds: type) -> Any:
    """Return the value. Raises WrongValueError unless its type is one of these: true is no number."""
    if type(value) not in kinds:
        raise WrongValueError(f"this is {in_words(value)}")
    return value


def _text(value: Any) -> str:
    if not _of_kind(value, str).strip() or "\0" in value:
        raise WrongValueError(_REFUSED)
    return value


def _flag(value: Any) -> bool:
    return _of_kind(value, bool)


def _text_that(fits: Callable[[str], object]) -> Reader:
    def read(value: Any) -> str:
        if not fits(_text(value)):
            raise WrongValueError(_REFUSED)
        return value

    return read


def _pattern(value: Any) -> Pattern:
    try:
        return Pattern(_of_kind(value, str))
    except PatternError as error:
        raise WrongValueError(str(error) or _REFUSED) from None


def _list_of(read: Reader, *, least: int = 0) -> Reader:
    def read_all(value: Any) -> list[Any]:
        if len(_of_kind(value, list)) < least:
            raise WrongValueError(_REFUSED)
        return [read(each) for each in value]

    return read_all


def _whole(bounds: click.IntRange) -> Reader:
    return lambda value: _within(bounds, _of_kind(value, int))


def _seconds(bounds: click.FloatRange) -> Reader:
    def read(value: Any) -> float:
        found = _SECONDS.fullmatch(value) if isinstance(value, str) else None
        if found is not None:
            value = float(found[1]) * _UNITS[found[2]]
        return _within(bounds, _of_kind(value, int, float))

    return read


def _within(bounds: click.IntRange | click.FloatRange, value: Any) -> Any:
    try:
        if not math.isfinite(value):
            raise WrongValueError(_REFUSED)
        return bounds.convert(value, None, None)
    except (click.BadParameter, OverflowError):
        raise WrongValueError(_REFUSED) from None


# Keys of options


def reader(name: str) -> click.Command:
    """Return the command of this name among `READERS`."""
    return getattr(import_module(f"mcp_skills_server.commands.{name}"), name)


@cache
def parameters() -> Mapping[str, click.Parameter]:
    """Return the options and arguments that a file can give, by key."""
    found: dict[str, click.Parameter] = {}
    for name in READERS:
        for each in reader(name).params:
            if each.name not in _NOT_IN_A_FILE:
                found.setdefault(key_of(each), each)
    return found


@cache
def option_keys() -> Mapping[str, Key]:
    """Return the keys of `parameters`."""
    return {key: _key(each) for key, each in parameters().items()}


def _key(parameter: click.Parameter) -> Key:
    kind = parameter.type
    if isinstance(parameter, click.Argument) or parameter.multiple:
        example = parameter.metavar or (parameter.name or "").upper()
        return Key(f'a list of text, such as ["{example}"]', _list_of(_text))
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return Key("true or false", _flag)
    if isinstance(kind, click.Choice):
        choices = [str(each) for each in kind.choices]
        return Key("one of " + ", ".join(f'"{each}"' for each in choices), _text_that(choices.__contains__))
    if not isinstance(kind, (click.IntRange, click.FloatRange)):
        return Key("text in quotes", _text)
    bounds = "" if kind.min is None else f" {'above' if kind.min_open else 'from'} {kind.min}"
    bounds += "" if kind.max is None else f" to {kind.max}"
    if isinstance(kind, click.IntRange):
        return Key(f"a whole number{bounds}", _whole(kind))
    return Key(f'a number{bounds}, or "90s", "5m", "1h"', _seconds(kind))


# Keys of tables

_GRANT_WHO: Final = 'a list of "*", "local", "token:NAME", "user:SUBJECT" or "group:NAME"'
_GRANT_SKILLS: Final = 'a list of skill paths, such as ["acme/billing/**"]'
_COUNT: Final = Key("a whole number from 1", _whole(click.IntRange(1, 1 << 40)))
_RATE: Final = Key("a whole number from 1 to 1,000,000", _whole(click.IntRange(1, 1_000_000)))
_SCOPES: Final = _list_of(_text_that(_SCOPE.fullmatch))
_URL: Final = _text_that(is_safe)

TABLES: Final[Mapping[str, TableKeys]] = {
    "source": TableKeys(
        {
            "from": Key("text in quotes, any ROOT", _text, 'from = "ROOT"'),
            "scripts": Key("true or false", _flag),
            "require-signature": Key('a list of paths of keys, such as ["keys/team.pub"]', _list_of(_text, least=1)),
            "refresh": Key('a number from 1, or "90s", "5m", "1h"', _seconds(click.FloatRange(min=1))),
        },
        "write a table [[source]] with from = ROOT",
        is_array=True,
    ),
    "grant": TableKeys(
        {
            "who": Key(_GRANT_WHO, _list_of(_text_that(is_who), least=1), _GRANT_WHO),
            "skills": Key(_GRANT_SKILLS, _list_of(_pattern, least=1), _GRANT_SKILLS),
            "may": Key("a list of " + ", ".join(f'"{each}"' for each in MAY), _list_of(_text_that(MAY.__contains__))),
        },
        f'write a table [[grant]] with who = ["*"] and skills = ["{EVERY_SKILL}"]',
        is_array=True,
        least=1,
    ),
    "oauth": TableKeys(
        {
            "issuer": Key(
                'the https URL of the issuer as its metadata has it, such as "https://login.example"',
                _text_that(lambda url: is_safe(url) and not urlsplit(url).query),
                'issuer = "https://login.example"',
            ),
            "audience": Key(f'what aud of its tokens names, such as "{_ENDPOINT}"', _text, f'audience = "{_ENDPOINT}"'),
            "resource": Key(f'the https URL by which clients know the endpoint, such as "{_ENDPOINT}"', _URL),
            "groups-claim": Key('the name of a claim, such as "groups" or "realm_access.roles"', _text),
            "scopes": Key('a list of scopes that are all wanted, such as ["skills:read"]', _SCOPES),
            "algorithms": Key(
                "a list of " + ", ".join(f'"{each}"' for each in ALGORITHMS),
                _list_of(_text_that(ALGORITHMS.__contains__), least=1),
            ),
            "skew": Key('a number from 0 to 600, or "60s", "5m"', _seconds(click.FloatRange(0, 600))),
            "ui-client-id": Key("the id by which the issuer knows the page of --ui, a public client", _text),
            "principal-claim": Key('the name of a claim to show beside sub, such as "email"', _text),
            "request-scopes": Key('a list of scopes to ask the issuer for, such as ["api://skills/read"]', _SCOPES),
            "ui-resource": Key("true or false: whether the page sends the parameter resource of RFC 8707", _flag),
        },
        "write a table [oauth] with issuer and audience",
    ),
    "quota": TableKeys(
        {
            "requests-per-minute": _RATE,
            "failed-authentications-per-minute": _RATE,
            "sessions": _COUNT,
            "streams": _COUNT,
            "unread-bytes": _COUNT,
            "runtime-sessions": _COUNT,
            "blob-bytes": _COUNT,
            "runs": _COUNT,
        },
        "write a table [quota] with keys such as requests-per-minute = 600",
    ),
}
"""The tables of a file. The keys of `oauth` and `quota` are the fields of `OAuthSettings` and `QuotaSettings`."""
_NO_RESOURCE: Final = "is no https URL, so clients cannot know the endpoint by it"
NO_RESOURCE: Final = (f"this {_NO_RESOURCE}", f'add resource = "{_ENDPOINT}"')
"""What is wrong with `oauth.audience` where `has_resource` is false, and what to do."""


def has_resource(given: Mapping[str, Any]) -> bool:
    """Tell whether a table `[oauth]` says by which URL clients know the endpoint."""
    audience = given.get("audience")
    return "resource" in given or not isinstance(audience, str) or is_safe(audience)


def oauth_settings(given: Mapping[str, Any]) -> OAuthSettings:
    """Return the settings of a table `[oauth]` whose values were read."""
    values: dict[str, Any] = {"resource": given["audience"]}
    for key, value in given.items():
        name = "skew_s" if key == "skew" else key.replace("-", "_")
        values[name] = tuple(cast("list[str]", value)) if isinstance(value, list) else value
    return OAuthSettings(**values)


def overridden(settings: OAuthSettings | None, options: Mapping[str, str]) -> OAuthSettings:
    """Return the settings of a file, or none, with what the options --oauth-KEY say in their place.

    Raises:
        UsageError: an option does not take its value, or an issuer or an audience is missing.
    """
    given: dict[str, Any] = {}
    if settings is not None:
        given = {"issuer": settings.issuer, "audience": settings.audience}
        if settings.resource != settings.audience:
            given["resource"] = settings.resource
    given |= options
    for key in ("issuer", "audience"):
        if key not in given:
            raise UsageError(f"--oauth-{key} is missing; give it too, or a table [oauth]")
    if not has_resource(given):
        raise UsageError(f"--oauth-audience {_NO_RESOURCE}; give --oauth-resource too")
    for key, value in options.items():
        known = TABLES["oauth"].keys[key]
        try:
            known.read(value)
        except WrongValueError:
            raise UsageError(f"--oauth-{key} does not take this value; give {known.takes}") from None
    found = oauth_settings(given)
    if settings is None:
        return found
    return replace(settings, issuer=found.issuer, audience=found.audience, resource=found.resource)
