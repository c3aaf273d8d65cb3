"""Rules of single roots, from the tables `[[source]]` of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from mcp_skills_server.commands.fields import VARIABLE_NAME
from mcp_skills_server.model import keys
from mcp_skills_server.model.keys import ContradictionError, Key, Table
from mcp_skills_server.sources.kinds import kind_of

_PATTERNS: Final = Key(
    'a list of paths, names or tags of skills, such as ["acme/*", "draft"]',
    keys.list_of(keys.text, least=1),
)


@dataclass(frozen=True, slots=True)
class SourceRules:
    """Rules of one root. None leaves a rule to the options."""

    root: str
    scripts: bool | None = None
    require_signature: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    token_env: str = ""
    refresh_s: float | None = None
    optional: bool | None = None
    TABLE: ClassVar = Table(
        {
            "from": Key("text in quotes, any ROOT", missing='from = "ROOT"'),
            "scripts": keys.FLAG,
            "optional": keys.FLAG,
            "require-signature": Key(
                'a list of paths of keys, such as ["keys/team.pub"]',
                keys.list_of(keys.text, least=1),
            ),
            "include": _PATTERNS,
            "exclude": _PATTERNS,
            "token-env": Key(
                'the name of a variable, such as "SKILLS_TOKEN"',
                keys.text_that(VARIABLE_NAME.fullmatch),
            ),
            "refresh": keys.number(1),
        },
        "write a table [[source]] with from = ROOT",
    )

    @classmethod
    def from_table(cls, values: Mapping[str, Any]) -> SourceRules:
        """Return the rules of a table with these values, or raise ContradictionError."""
        fields = keys.fields_of(values, "refresh")
        rules = cls(fields.pop("from"), **fields)
        kind, hint = kind_of(rules.root), "leave it out"
        if rules.token_env and not rules.root.startswith("mcp+http"):
            what = "only an MCP server at an address (mcp+https://) is sent a token"
            raise ContradictionError("token-env", what, hint)
        if rules.refresh_s is not None and not kind.is_polled:
            what = f"a {kind.name} is not polled: it is watched, or says how long it is fresh"
            raise ContradictionError("refresh", what, hint)
        if rules.optional is not None and kind.name != "folder":
            raise ContradictionError("optional", "only a folder can be", hint)
        return rules
