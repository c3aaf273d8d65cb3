"""A look of a viewer without a server, and pages of a real one as text."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from catalog.forest import loaded
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.sources.follower import SourceState
from mcp_skills_server.web.guards import make_policy
from mcp_skills_server.web.ui.app import Ui, UiSettings
from mcp_skills_server.web.ui.look import Look
from web.http_wire import Server


def look_at(
    *roots: Path,
    settings: Settings | None = None,
    sources: Sequence[SourceState] = (),
    registry: Registry | None = None,
) -> Look:
    """What a viewer sees of these roots, read once."""
    runtime = Runtime(registry or loaded(*roots))
    page = Ui(
        runtime, settings or Settings(), UiSettings(), make_policy("127.0.0.1", (), (), ()), sources=lambda: sources
    )
    return page._look(runtime, None, None)  # pyright: ignore[reportPrivateUsage]


def text_of(server: Server, path: str, cookie: str | None = None, status: int = 200) -> str:
    """The words of a page, without markup, in one line."""
    reply = server.send("GET", path, headers={"Cookie": cookie})
    assert reply.status == status, (path, reply.status, reply.body)
    return words(reply.body.decode())


def words(page: str) -> str:
    """The words of HTML in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())
