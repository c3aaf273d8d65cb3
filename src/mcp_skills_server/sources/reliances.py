"""Present states of what skills rely on over the network: URLs, and tools of MCP servers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.reliance import Reliance
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.sources.addresses import is_public, shown
from mcp_skills_server.sources.http import Downloader, resolve
from mcp_skills_server.sources.mcp import PREFIX, McpServer
from mcp_skills_server.sources.source import (
    AbsentError,
    FetchSettings,
    SourceError,
    SourceSettings,
    UnacceptableError,
)

_MAX_BYTES = 10 << 20


async def ask(
    entries: Iterable[Reliance], fetch: FetchSettings, most: int
) -> tuple[dict[str, str], list[str]]:
    """Return the states of URLs and tools by key, and a line for each that was not asked.

    Each URL and server is asked once, at most `most` of them.
    """
    addresses: dict[tuple[str, str], list[Reliance]] = {}
    for entry in entries:
        if not entry.is_local:
            address = entry.server or entry.target
            addresses.setdefault((entry.kind, address), []).append(entry)
    states: dict[str, str] = {}
    refused: list[str] = []
    for number, ((kind, url), own) in enumerate(addresses.items()):
        try:
            if number >= most:
                raise UnacceptableError(f"not asked; --max-requests allows {most}")
            if kind == "urls":
                state = await _digest_at(url, fetch)
                states |= {entry.key: state for entry in own}
            else:
                tools = await _tools_at(url, fetch)
                states |= {entry.key: tools.get(entry.target, "") for entry in own}
        except (SourceError, UsageError, ValueError) as error:
            refused.append(f"{shown(url)}: {error}")
    return states, refused


async def _digest_at(url: str, fetch: FetchSettings) -> str:
    async with Downloader(fetch, url) as downloader:
        try:
            return digest_of((await downloader.get(url, _MAX_BYTES)).body)
        except AbsentError:
            return ""


async def _tools_at(url: str, fetch: FetchSettings) -> dict[str, str]:
    """Return the digests of the tools of a server, which must be public as for a download."""
    parts = urlsplit(url)
    if not fetch.trust.private:
        try:
            addresses = await resolve(parts.hostname or "", parts.port or 443)
        except (OSError, ValueError):
            raise UnacceptableError("its name cannot be resolved") from None
        if not all(map(is_public, addresses)):
            raise UnacceptableError("it leads to a private address; --allow-private allows it")
    return await McpServer(PREFIX + url, SourceSettings(Path(), fetch=fetch)).tool_digests()
