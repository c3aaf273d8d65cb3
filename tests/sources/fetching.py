"""Download one thing, or fetch all that a publisher has into a folder, and look at what came."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from examples import database_source

from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources import http
from mcp_skills_server.sources.http import Downloader, HttpClient, Response
from mcp_skills_server.sources.kinds import KINDS, open_source
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.reconcile import reconcile
from mcp_skills_server.sources.site import refresh
from mcp_skills_server.sources.source import (
    Bounds,
    FetchReport,
    FetchSettings,
    OriginPolicy,
    SourceError,
    SourceSettings,
)
from sources.publishers import Publisher, skill_md

ALLOWED = OriginPolicy(private=True)
BRIEF = Bounds(read_s=0.3, download_s=0.6)
LOCAL = FetchSettings(trust=OriginPolicy(private=True), bounds=Bounds(read_s=5, download_s=10))
QUICK = replace(LOCAL, bounds=Bounds(read_s=0.5, download_s=3))
"""The first must end well before the second, on a busy machine too: tests tell them apart."""
FILES: Files = {
    "SKILL.md": (skill_md("packed"), False),
    "assets/logo.png": (bytes(range(256)), False),
    "scripts/run.sh": (b"#!/bin/sh\necho ran > ran\n", True),
    "references/données.md": ("é\r\n".encode(), False),
}


def get(
    url: str,
    trust: OriginPolicy = ALLOWED,
    bounds: Bounds = BRIEF,
    most: int = 100_000,
    *,
    validators: Mapping[str, str] | None = None,
    resolve: Callable[[str, int], Awaitable[list[str]]] = http.resolve,
) -> Response:
    """Download one thing, where names have the addresses that `resolve` says."""

    async def run() -> Response:
        async with HttpClient(bounds) as client:
            return await Downloader(client, url, trust).get(url, most, validators=validators)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "resolve", resolve)
        return anyio.run(run)


def fetch(site: Publisher | str, place: Path, settings: FetchSettings = LOCAL, **changed: Any) -> FetchReport:
    url = site if isinstance(site, str) else site.url
    return anyio.run(refresh, url, place, replace(settings, **changed))


def listing(top: Path) -> dict[str, bytes | str]:
    """Everything below, but what is ours."""
    out: dict[str, bytes | str] = {}
    for path in sorted(top.rglob("*")):
        where = path.relative_to(top).as_posix()
        if ".mcp-skills" not in where.split("/"):
            out[where] = path.read_bytes() if path.is_file() and not path.is_symlink() else "directory"
    return out


def skills(place: Path) -> list[str]:
    return sorted(name for name in os.listdir(place) if name != ".mcp-skills")


def bring(given: str, place: Path, **changed: Any) -> FetchReport:
    """Fetch a root of any kind into a folder of one's own."""
    settings = SourceSettings(place.parent / "cache", fetch=replace(LOCAL, **changed), output=place)
    source = open_source(given, settings, (database_source.KIND, *KINDS))
    assert source is not None

    async def run() -> FetchReport:
        return await reconcile(source, await source.resolve())

    return anyio.run(run)


def opened(given: str, cache: Path, fetch: FetchSettings = LOCAL, **changed: Any) -> Follower:
    """The follower of a root whose copy is in this cache."""
    source = open_source(given, SourceSettings(cache, fetch=fetch, **changed), (database_source.KIND, *KINDS))
    assert source is not None
    return Follower(source)


def fetched(given: str, cache: Path, fetch: FetchSettings = LOCAL, **changed: Any) -> Follower:
    follower = opened(given, cache, fetch, **changed)
    anyio.run(follower.refresh)
    return follower


def refreshed(follower: Follower, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the operator hears of one look."""
    caplog.clear()
    try:
        anyio.run(follower.refresh)
    except SourceError as error:
        follower.report_failure(error)
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def served(follower: Follower) -> dict[str, bytes | str]:
    return listing(follower.path.resolve())
