"""Helpers that download a URL, fetch a source, run a command, and read the result."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import anyio
import pytest
from examples import database_source

from commands.calls import run
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources import http
from mcp_skills_server.sources.http import Downloader, Response
from mcp_skills_server.sources.kinds import KINDS, open_source
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.reconcile import reconcile
from mcp_skills_server.sources.site import refresh
from mcp_skills_server.sources.source import (
    Bounds,
    FetchReport,
    FetchSettings,
    OriginPolicy,
    Source,
    SourceError,
    SourceSettings,
)
from sources.publishers import Publisher, skill_md
from wire import Wire

ALLOW_PRIVATE = OriginPolicy(private=True)
SHORT_BOUNDS = Bounds(read_s=0.3, download_s=0.6)
LOCAL = FetchSettings(trust=ALLOW_PRIVATE, bounds=Bounds(read_s=5, download_s=10))
QUICK = replace(LOCAL, bounds=Bounds(read_s=0.5, download_s=3))
"""The read timeout ends well before the download timeout, on a busy machine too."""
ALL_KINDS = (database_source.KIND, *KINDS)
BUNDLE_FILES: Files = {
    "SKILL.md": (skill_md("packed"), False),
    "assets/logo.png": (bytes(range(256)), False),
    "scripts/run.sh": (b"#!/bin/sh\necho ran > ran\n", True),
    "references/données.md": ("é\r\n".encode(), False),
}


def run_command(*words: str | Path, code: int = 0, **variables: str) -> CompletedProcess[str]:
    """Run a command of the program, and check its exit code."""
    done = run(*words, **variables)
    assert done.returncode == code, done.stderr
    return done


def download(
    url: str,
    trust: OriginPolicy = ALLOW_PRIVATE,
    bounds: Bounds = LOCAL.bounds,
    max_bytes: int = 100_000,
    *,
    validators: Mapping[str, str] | None = None,
    resolve: Callable[[str, int], Awaitable[list[str]]] = http.resolve,
) -> Response:
    """Download a URL, with `resolve` as the name resolver."""

    async def work() -> Response:
        async with Downloader(FetchSettings(trust=trust, bounds=bounds), url) as client:
            return await client.get(url, max_bytes, validators=validators)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "resolve", resolve)
        return anyio.run(work)


def fetch(site: Publisher | str, output: Path, settings: FetchSettings = LOCAL, **changed: Any) -> FetchReport:
    """Fetch a site into an operator's folder."""
    url = site if isinstance(site, str) else site.url
    return anyio.run(refresh, url, output, replace(settings, **changed))


def read_tree(top: Path) -> dict[str, bytes | str]:
    """Return each file's content by path, and "directory" for all else, without fetch records."""
    tree: dict[str, bytes | str] = {}
    for path in sorted(top.rglob("*")):
        relative = path.relative_to(top)
        if ".mcp-skills" in relative.parts:
            continue
        is_plain = path.is_file() and not path.is_symlink()
        tree[relative.as_posix()] = path.read_bytes() if is_plain else "directory"
    return tree


def cache_option(tmp_path: Path) -> list[str]:
    return ["--cache-dir", str(tmp_path / "cache")]


def listed_names(wire: Wire) -> list[str]:
    """Return the sorted names of the skills that a server lists."""
    return sorted(each["frontmatter"]["name"] for each in wire.every_skill())


def skill_names(output: Path) -> list[str]:
    """Return the names of the skills in a folder."""
    return sorted(name for name in os.listdir(output) if name != ".mcp-skills")


def open_given(given: str, settings: SourceSettings) -> Source:
    """Open the source of a root that the operator gave."""
    trust = replace(settings.fetch.trust, commands=frozenset((given,)))
    settings = replace(settings, fetch=replace(settings.fetch, trust=trust))
    source = open_source(given, settings, ALL_KINDS)
    assert source is not None
    return source


def fetch_to_folder(given: str, output: Path, **changed: Any) -> FetchReport:
    """Fetch a root of any kind into an operator's folder."""
    settings = SourceSettings(output.parent / "cache", fetch=replace(LOCAL, **changed), output=output)
    source = open_given(given, settings)

    async def work() -> FetchReport:
        return await reconcile(source, await source.resolve())

    return anyio.run(work)


def open_follower(given: str, cache: Path, fetch: FetchSettings = LOCAL, **changed: Any) -> Follower:
    """Return the follower of a root, before its first refresh."""
    return Follower(open_given(given, SourceSettings(cache, fetch=fetch, **changed)))


def fetch_to_cache(given: str, cache: Path, fetch: FetchSettings = LOCAL, **changed: Any) -> Follower:
    """Fetch a root into the cache, and return its follower."""
    follower = open_follower(given, cache, fetch, **changed)
    anyio.run(follower.refresh)
    return follower


def warnings_of_refresh(follower: Follower, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Refresh once, and return the logged warnings."""
    caplog.clear()
    try:
        anyio.run(follower.refresh)
    except SourceError as error:
        follower.report_failure(error)
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def served_files(follower: Follower) -> dict[str, bytes | str]:
    return read_tree(follower.path.resolve())
