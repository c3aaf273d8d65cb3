"""Ways to add this server to each host: a command, an entry of its file, maybe a link."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request

from mcp_skills_server.errors import PROGRAM, UsageError
from mcp_skills_server.hosts.edit import entry_for, remote_entry_for, snippet
from mcp_skills_server.hosts.table import HOSTS
from mcp_skills_server.installation import shell_command, start_command
from mcp_skills_server.sources.kinds import COMMAND, kind_of
from mcp_skills_server.web.ui.addresses import prefix
from mcp_skills_server.web.ui.context import Context

_NAME: Final = "skills"
_TOKEN: Final = "SKILLS_TOKEN"  # noqa: S105 - the name of a variable


class Snippet(NamedTuple):
    """Ways to add this server to a host: command, part of its file, and maybe a link."""

    key: str
    title: str
    command: str
    text: str
    link: str


def snippets_for(request: Request, ctx: Context) -> list[Snippet]:
    """Return each host's snippet, to start a server of these roots or to reach this URL."""
    program, roots, url, token = start_command(), _addresses(ctx), "", None
    given = roots
    if not ctx.site.is_local:
        program = [PROGRAM]  # on the viewer's machine
        url = _url(request)
        given = ["--url", url]
        if not ctx.site.is_open:
            token = _TOKEN
            given += ["--token-env", token]
    elif any(root.startswith(COMMAND) for root in roots):
        return []  # the arguments of such a command, which may be secrets, are not shown
    snippets: list[Snippet] = []
    for key, host in HOSTS.items():
        try:
            if url:
                entry = remote_entry_for(host, url, token)
            else:
                entry = entry_for(host, program, roots)
        except UsageError:
            continue  # the host has no such kind of entry
        command = shell_command([*program, "install", key, *given])
        text = snippet(host, _NAME, entry)
        snippets.append(Snippet(key, host.title, command, text, _link(key, entry)))
    return snippets


def probe_command(request: Request, ctx: Context) -> str:
    """Return the command that judges this server; show it only where there are snippets."""
    if ctx.site.is_local:
        serve = shell_command([*start_command(), "serve", *_addresses(ctx)])
        return shell_command([*start_command(), "probe", serve])
    command = [PROGRAM, "probe", _url(request)]
    if request.url.scheme == "http":
        command.append("--allow-http")
    if not ctx.site.is_open:
        command += ["--token-env", _TOKEN]
    return shell_command(command)


def _url(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{prefix.get()}/mcp"


def _addresses(ctx: Context) -> list[str]:
    """Return each root as `install` takes it: the source, not the folder of its copies."""
    texts = [root.address for root in ctx.runtime.registry.roots]
    return [os.path.abspath(text) if kind_of(text).is_path else text for text in texts]


def _link(key: str, entry: Mapping[str, object]) -> str:
    """Return the link by which a host adds an entry; "" for a host without links."""
    if "headers" in entry:
        return ""  # the header has a variable, which only files can have
    if key == "vscode":
        return f"vscode:mcp/install?{quote(json.dumps({'name': _NAME, **entry}))}"
    if key == "cursor":
        config = b64encode(json.dumps(entry).encode()).decode()
        return f"cursor://anysphere.cursor-deeplink/mcp/install?name={_NAME}&config={quote(config)}"
    return ""
