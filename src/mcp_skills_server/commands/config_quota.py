"""The table `[quota]` of a configuration file: how much one principal or address may take of what all share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from mcp_skills_server.access.quotas import QuotaSettings

_MOST_RATE: Final = 1_000_000
_MOST: Final = 1 << 40

_Rate = Annotated[int, Field(ge=1, le=_MOST_RATE)]
_Count = Annotated[int, Field(ge=1, le=_MOST)]


class QuotaTable(BaseModel):
    """What the table has."""

    model_config = ConfigDict(extra="forbid", strict=True)
    requests_per_minute: _Rate | None = Field(None, alias="requests-per-minute")
    failed_authentications_per_minute: _Rate | None = Field(None, alias="failed-authentications-per-minute")
    sessions: _Count | None = None
    streams: _Count | None = None
    unread_bytes: _Count | None = Field(None, alias="unread-bytes")
    runtime_sessions: _Count | None = Field(None, alias="runtime-sessions")
    blob_bytes: _Count | None = Field(None, alias="blob-bytes")
    runs: _Count | None = None


TAKES: Final = {
    field.alias or name: f"a whole number from 1{f' to {_MOST_RATE:,}' if name.endswith('_per_minute') else ''}"
    for name, field in QuotaTable.model_fields.items()
}


def settings_of(given: Mapping[str, Any]) -> QuotaSettings:
    """The settings of a table in which nothing is wrong."""
    return QuotaSettings(**QuotaTable.model_validate(given).model_dump(exclude_unset=True))
