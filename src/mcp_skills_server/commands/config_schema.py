"""What each key of a configuration file takes: pydantic models that are made from the options of the commands.

An option says once what it takes, and the file takes the same. Imported only where there is such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, Literal

import click
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from mcp_skills_server.access.grants import MAY, May, Pattern, is_who
from mcp_skills_server.commands.config_oauth import OAuthTable
from mcp_skills_server.commands.config_quota import QuotaTable
from mcp_skills_server.commands.config_values import Text, seconds
from mcp_skills_server.commands.fields import key_of

READERS: Final = ("serve", "rpc", "acp")
"""The commands that take such a file."""
_NOT_IN_A_FILE: Final = frozenset(("config", "help", "oauth_issuer", "oauth_audience", "oauth_resource"))
"""A file says in `[oauth]` what the last three do."""


def reader(name: str) -> click.Command:
    """The command of this name among `READERS`."""
    return getattr(import_module(f"mcp_skills_server.commands.{name}"), name)


@cache
def parameters() -> Mapping[str, click.Parameter]:
    """The options and arguments that a file can give, by key."""
    found: dict[str, click.Parameter] = {}
    for name in READERS:
        for each in reader(name).params:
            if each.name not in _NOT_IN_A_FILE:
                found.setdefault(key_of(each), each)
    return found


_Texts = list[Text]


class _Source(BaseModel):
    """A table `[[source]]`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    origin: Text = Field(alias="from")
    scripts: bool | None = None
    require_signature: Annotated[_Texts, Field(min_length=1)] | None = Field(None, alias="require-signature")
    refresh: Annotated[float, BeforeValidator(seconds), Field(ge=1, allow_inf_nan=False)] | None = None


def _who(text: str) -> str:
    if not is_who(text):
        raise ValueError
    return text


def _pattern(text: str) -> str:
    return Pattern(text).text


class _Grant(BaseModel):
    """A table `[[grant]]`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    who: Annotated[list[Annotated[str, AfterValidator(_who)]], Field(min_length=1)]
    skills: Annotated[list[Annotated[str, AfterValidator(_pattern)]], Field(min_length=1)]
    may: list[May] = []


_Grants = Annotated[list[_Grant], Field(min_length=1)]


@cache
def model() -> type[BaseModel]:
    """The model of a whole file: every option under its name, and the tables `source`, `grant`, `oauth` and `quota`."""
    fields: dict[str, Any] = {
        (each.name or ""): (_type_of(each), Field(None, alias=key)) for key, each in parameters().items()
    }
    config = ConfigDict(extra="forbid", strict=True)
    tables: dict[str, Any] = {
        "source": (list[_Source], []),
        "grant": (_Grants, []),
        "oauth": (OAuthTable | None, None),
        "quota": (QuotaTable | None, None),
    }
    return create_model("ConfigurationFile", __config__=config, **tables, **fields)


def _type_of(parameter: click.Parameter) -> Any:
    """The type of the values that an option takes."""
    kind = parameter.type
    if isinstance(parameter, click.Argument) or parameter.multiple:
        return _Texts
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return bool
    if isinstance(kind, click.Choice):
        return Literal[tuple(str(each) for each in kind.choices)]
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        bounds: dict[str, Any] = {"gt" if kind.min_open else "ge": kind.min} if kind.min is not None else {}
        bounds |= {"lt" if kind.max_open else "le": kind.max} if kind.max is not None else {}
        if isinstance(kind, click.IntRange):
            return Annotated[int, Field(**bounds)]
        return Annotated[float, BeforeValidator(seconds), Field(allow_inf_nan=False, **bounds)]
    return Text


def takes(parameter: click.Parameter) -> str:
    """The values that an option takes, in words for a hint."""
    kind = parameter.type
    if isinstance(parameter, click.Argument) or parameter.multiple:
        return f'a list of text, such as ["{_example(parameter)}"]'
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return "true or false"
    if isinstance(kind, click.Choice):
        return "one of " + ", ".join(f'"{each}"' for each in kind.choices)
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        whole = isinstance(kind, click.IntRange)
        least = "" if kind.min is None else f" {'above' if kind.min_open else 'from'} {kind.min}"
        most = "" if kind.max is None else f" to {kind.max}"
        return f"a {'whole number' if whole else 'number'}{least}{most}" + ("" if whole else ', or "90s", "5m", "1h"')
    return "text in quotes"


def _example(parameter: click.Parameter) -> str:
    return parameter.metavar or (parameter.name or "").upper()


SOURCE_TAKES: Final = {
    "from": "text in quotes, any ROOT",
    "scripts": "true or false",
    "require-signature": 'a list of paths of keys, such as ["keys/team.pub"]',
    "refresh": 'a number from 1, or "90s", "5m", "1h"',
}
GRANT_TAKES: Final = {
    "who": 'a list of "*", "local", "token:NAME", "user:SUBJECT" or "group:NAME"',
    "skills": 'a list of skill paths, such as ["acme/billing/**"]',
    "may": "a list of " + ", ".join(f'"{each}"' for each in MAY),
}
