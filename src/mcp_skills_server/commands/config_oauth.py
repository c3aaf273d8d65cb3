"""The table `[oauth]` of a configuration file: whose access tokens are taken over HTTP."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mcp_skills_server.access.settings import ALGORITHMS, OAuthSettings, is_safe
from mcp_skills_server.commands.config_values import Text, seconds
from mcp_skills_server.errors import UsageError

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
    principal_claim: Text = Field("preferred_username", alias="principal-claim")
    request_scopes: list[Annotated[Text, AfterValidator(_checked_scope)]] = Field([], alias="request-scopes")
    ui_resource: bool = Field(True, alias="ui-resource")


TAKES: Final = {
    "issuer": 'the https URL of the issuer as its metadata has it, such as "https://login.example"',
    "audience": 'what aud of its tokens names, such as "https://skills.example/mcp"',
    "resource": 'the https URL by which clients know the endpoint, such as "https://skills.example/mcp"',
    "groups-claim": 'the name of a claim, such as "groups" or "realm_access.roles"',
    "scopes": 'a list of scopes that are all wanted, such as ["skills:read"]',
    "algorithms": "a list of " + ", ".join(f'"{each}"' for each in ALGORITHMS),
    "skew": 'a number from 0 to 600, or "60s", "5m"',
    "ui-client-id": "the id by which the issuer knows the page of --ui, a public client",
    "principal-claim": 'the name of a claim to show beside sub, such as "email"',
    "request-scopes": 'a list of scopes to ask the issuer for, such as ["api://skills/read"]',
    "ui-resource": "true or false: whether the page sends the parameter resource of RFC 8707",
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
        principal_claim=table.principal_claim,
        request_scopes=tuple(table.request_scopes),
        ui_resource=table.ui_resource,
    )


def overridden(
    settings: OAuthSettings | None, issuer: str | None, audience: str | None, resource: str | None
) -> OAuthSettings | None:
    """The settings of a file, or none, with what options say in their place; None where nothing says anything.

    Raises:
        UsageError: an option does not take its value, or an issuer or an audience is missing.
    """
    options = {"issuer": issuer, "audience": audience, "resource": resource}
    options = {key: value for key, value in options.items() if value is not None}
    if not options:
        return settings
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
        words = "is no https URL, so clients cannot know the endpoint by it"
        raise UsageError(f"--oauth-audience {words}; give --oauth-resource too")
    try:
        found = settings_of(given)
    except ValidationError as error:
        key = str(error.errors(include_url=False)[0]["loc"][0])
        raise UsageError(f"--oauth-{key} does not take this value; give {TAKES[key]}") from None
    if settings is None:
        return found
    return replace(settings, issuer=found.issuer, audience=found.audience, resource=found.resource)
