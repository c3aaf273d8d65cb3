"""A client of the SDK, connected in this process to a server with attached skills."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.client.client import Client
from mcp.client.extension import ClientExtension
from mcp.server.lowlevel.server import Server
from pydantic import ConfigDict

from mcp_skills_server import Registry, Settings, attach
from wire import DEADLINE


class _Request(types.Request[dict[str, Any], str]):
    method: str
    params: dict[str, Any]


class _Result(types.Result):
    model_config = ConfigDict(extra="allow")


async def request(client: Client, method: str, **params: Any) -> dict[str, Any]:
    result = await client.session.send_request(_Request(method=method, params=params), _Result)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


@asynccontextmanager
async def attached_client(
    skills: Path | Registry,
    mode: Any = "auto",
    *,
    to: Any = None,
    settings: Settings | None = None,
    host: str = "sdk",
    extensions: Sequence[ClientExtension] = (),
    **options: Any,
) -> AsyncGenerator[Client]:
    """Yield a client of the server `to`, by default an empty one, with these skills attached."""
    server = Server[Any]("mine") if to is None else to
    registry = Registry([skills]) if isinstance(skills, Path) else skills
    attach(server, registry, settings, **{"watch": False, **options})
    info = types.Implementation(name=host, version="1")
    with anyio.fail_after(DEADLINE):
        async with Client(server, mode=mode, client_info=info, extensions=extensions) as client:
            yield client
