"""The table `[oauth]` of a configuration file: whose access tokens are taken over HTTP."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mcp_skills_server.access.settings import ALGORITHMS, OAuthSettings, is_safe
from mcp_skills_server.commands.config_values import Text, seconds

_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")


def _checked_url(text: str) -> str:
    if not is_safe(text):
        raise ValueError
    return text


def _checked_issuer(text: str) -> str:
    if urlsplit(_checked_url(text)).query:
        raise ValueError
    return text


def _checked_scope(text: str) -> str:
    if not _SCOPE.fullmatch(text):
        raise ValueError
    return text


def _checked_algorithm(text: str) -> str:
    if text not in ALGORITHMS:
        raise ValueError
    return text


class OAuthTable(BaseModel):
    """What the table has."""

    model_config = ConfigDict(extra="forbid", strict=True)
    issuer: Annotated[Text, AfterValidator(_checked_issuer)]
    audience: Text
    resource: Annotated[Text, AfterValidator(_checked_url)] | None = None
    groups_claim: Text = Field("groups", alias="groups-claim")
    scopes: list[Annotated[Text, AfterValidator(_checked_scope)]] = []
    algorithms: Annotated[list[Annotated[str, AfterValidator(_checked_algorithm)]], Field(min_length=1)] = [*ALGORITHMS]
    skew: Annotated[float, BeforeValidator(seconds), Field(ge=0, le=600, allow_inf_nan=False)] = 60.0
    ui_client_id: Text | None = Field(None, alias="ui-client-id")


TAKES: Final = {
    "issuer": 'the https URL of the issuer as its metadata has it, such as "https://login.example"',
    "audience": 'what aud of its tokens names, such as "https://skills.example/mcp"',
    "resource": 'the https URL by which clients know the endpoint, such as "https://skills.example/mcp"',
    "groups-claim": 'the name of a claim, such as "groups"',
    "scopes": 'a list of scopes that are all wanted, such as ["skills:read"]',
    "algorithms": "a list of " + ", ".join(f'"{each}"' for each in ALGORITHMS),
    "skew": 'a number from 0 to 600, or "60s", "5m"',
    "ui-client-id": "the id by which the issuer knows the page of --ui, a public client",
}
EXAMPLES: Final = {"issuer": "https://login.example", "audience": "https://skills.example/mcp"}
NO_RESOURCE: Final = (
    "this is no https URL, so clients cannot know the endpoint by it",
    f'add resource = "{EXAMPLES["audience"]}"',
)


def has_resource(given: dict[str, Any]) -> bool:
    """Whether the table says by which URL clients know the endpoint."""
    audience = given.get("audience")
    return "resource" in given or not isinstance(audience, str) or is_safe(audience)


def settings_of(given: dict[str, Any]) -> OAuthSettings:
    """The settings of a table in which nothing is wrong."""
    table = OAuthTable.model_validate(given)
    return OAuthSettings(
        issuer=table.issuer,
        audience=table.audience,
        resource=table.resource or table.audience,
        groups_claim=table.groups_claim,
        scopes=tuple(table.scopes),
        algorithms=tuple(table.algorithms),
        skew_s=table.skew,
        ui_client_id=table.ui_client_id,
    )
