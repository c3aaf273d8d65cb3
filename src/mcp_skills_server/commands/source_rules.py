"""Rules of single roots, from the tables `[[source]]` of a configuration file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from mcp_skills_server.commands.fields import VARIABLE_NAME
from mcp_skills_server.model import keys
from mcp_skills_server.model.keys import ContradictionError, Key, Table
from mcp_skills_server.provenance.keyless import Identity
from mcp_skills_server.sources.kinds import kind_of

_FORM: Final = (
    '{issuer = "https://accounts.example", subject = "me@example.com"}, with trust-root = "FILE" '
    "for another trust root than sigstore's own"
)
_PATTERNS: Final = Key(
    'a list of paths, names or tags of skills, such as ["acme/*", "draft"]',
    keys.list_of(keys.text, least=1),
)


def _identity(value: Any) -> Identity:
    """Return the identity of a table with `issuer`, `subject` and perhaps `trust-root`."""
    texts = {key: keys.text(text) for key, text in keys.of_kind(value, dict).items()}
    if not {"issuer", "subject"} <= texts.keys() <= {"issuer", "subject", "trust-root"}:
        raise keys.WrongValueError("it has other keys")
    trust = texts.get("trust-root")
    return Identity(texts["subject"], texts["issuer"], Path(trust) if trust else None)


@dataclass(frozen=True, slots=True)
class SourceRules:
    """Rules of one root. None leaves a rule to the options."""

    root: str
    scripts: bool | None = None
    require_signature: tuple[str, ...] = ()
    require_identity: Identity | None = None
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
            "require-identity": Key(_FORM, _identity),
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

    @property
    def is_registry(self) -> bool:
        """True if the root is in a registry, which has signatures beside an artifact."""
        return kind_of(self.root).name == "oci"

    def located(self, root: str, folder: str) -> SourceRules:
        """Return the rules for the root at this absolute path, their own paths from `folder`."""
        identity = self.require_identity
        if identity is not None and identity.trust is not None:
            identity = replace(identity, trust=folder / identity.trust)
        signers = tuple(os.path.join(folder, key) for key in self.require_signature)
        return replace(self, root=root, require_signature=signers, require_identity=identity)

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
