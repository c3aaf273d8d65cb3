"""Present states of what skills rely on over the network: URLs, and tools of MCP servers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import anyio

from mcp_skills_server.format.reliance import Reliance
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.sources.addresses import shown
from mcp_skills_server.sources.http import Downloader
from mcp_skills_server.sources.mcp import tool_digests
from mcp_skills_server.sources.source import (
    AbsentError,
    FetchSettings,
    SourceError,
    UnacceptableError,
)

_MAX_BYTES: Final = 10 << 20


async def ask(
    entries: Iterable[Reliance], fetch: FetchSettings, max_requests: int
) -> tuple[dict[str, str], list[str]]:
    """Return the states of URLs and tools by key, and a line for each address without an answer.

    Each address is asked once, at most `max_requests` of them, and within `fetch.limits.total_s`.
    """
    by_address: dict[tuple[str, str], list[Reliance]] = {}
    for entry in entries:
        if not entry.is_local:
            address = entry.kind, entry.server or entry.target
            by_address.setdefault(address, []).append(entry)
    states: dict[str, str] = {}
    refused: list[str] = []
    deadline = anyio.current_time() + fetch.limits.total_s
    for number, ((kind, url), own) in enumerate(by_address.items()):
        now: dict[str, str] = {}
        try:
            if number >= max_requests:
                raise UnacceptableError(f"not asked; --max-requests allows {max_requests}")
            if anyio.current_time() > deadline:
                raise UnacceptableError("not asked; the others took too long")
            async with Downloader(fetch, url) as downloader:
                if kind == "tools":
                    now = await tool_digests(url, downloader, fetch.bounds.download_s)
                else:
                    with suppress(AbsentError):
                        now = {url: digest_of((await downloader.get(url, _MAX_BYTES)).body)}
            states |= {entry.key: now.get(entry.target, "") for entry in own}
        except (SourceError, ValueError) as error:
            refused.append(f"{shown(url)}: {str(error).removeprefix(f'{shown(url)} ')}")
    return states, refused
