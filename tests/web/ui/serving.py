"""Servers with the web UI, requests to them, and a page context without a server."""

from __future__ import annotations

import html
import http.client
import inspect
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
from starlette.requests import Request

from catalog.forest import load_registry
from forkserver import Popen
from mcp_skills_server.access.grants import Grants
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import Quotas
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.sources.mirrors import SourceState
from mcp_skills_server.web.policy import make_policy
from mcp_skills_server.web.ui.app import WebPage
from mcp_skills_server.web.ui.context import Context
from mcp_skills_server.web.ui.session import PageSessions
from web.http_wire import Reply, Server, Target, http_serving, wait_until
from web.in_process import APPS
from wire import COMMAND, DEADLINE, ROOT

SECRET = "0123456789abcdef"
TOKENS = {"MCP_SKILLS_TOKENS": f"laptop={SECRET}"}
"""The environment of a server that requires this token."""


@contextmanager
def page_serving(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Serve over HTTP with `--ui`. Yield once all skills are validated, as far as an anonymous viewer can tell."""
    with http_serving(*arguments, "--ui", environment=environment) as server:
        server.until_ready()
        wait_until(lambda: b"checking " not in get(server, "/ui/problems").body, "never checked")
        yield server


@contextmanager
def ui_command(*arguments: str | Path) -> Iterator[str]:
    command = [*COMMAND, "ui", "--no-open", "--log-level", "error", *map(str, arguments)]
    pipe = subprocess.PIPE
    with Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().decode().strip()
            wait_until(lambda: fetch(f"{address.partition('/ui/')[0]}/readyz").status == 200, "never ready")
            yield address
        finally:
            process.kill()


@contextmanager
def signed_in(*arguments: str | Path) -> Iterator[tuple[str, str]]:
    """Run `ui --no-open` and open its address. Yield the origin and the session cookie."""
    with ui_command(*arguments) as address:
        yield address.partition("/ui/")[0], cookie_of(fetch(address))


def get(server: Target, path: str, **headers: str) -> Reply:
    return server.send("GET", path, headers=headers)


def fetch(
    url: str, cookie: str = "", method: str = "GET", form: Mapping[str, str] | None = None, **headers: str
) -> Reply:
    origin, _, path = url.removeprefix("http://").partition("/")
    if cookie:
        headers["Cookie"] = cookie
    body = None if form is None else urlencode(form)
    if app := APPS.get(f"http://{origin}"):
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        return app.send(method, f"/{path}", body and body.encode(), headers)
    with closing(http.client.HTTPConnection(origin, timeout=DEADLINE)) as connection:
        connection.request(method, f"/{path}", body, headers)
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())


def grant(name: str, *skills: str, may: Sequence[str] = ()) -> str:
    """Return a `[[grant]]` table: the name of a token, patterns of readable skills, further rights."""
    return f'[[grant]]\nwho = ["token:{name}"]\nskills = {json.dumps(skills)}\nmay = {json.dumps(may)}\n'


def text_of(reply: Reply | str) -> str:
    return reply if isinstance(reply, str) else reply.body.decode()


def visible_text(reply: Reply | str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text_of(reply))).split())


def skill_paths(reply: Reply | str) -> list[str]:
    return re.findall(r'<h2><a href="[^"]*/ui/skills/([^"]*)">', text_of(reply))


def list_pages(server: Target, path: str) -> Iterator[str]:
    """Follow the `next` links of a paginated list."""
    while path:
        text = get(server, path).body.decode()
        yield text
        following = re.search(r'rel="next" href="([^"]*)"', text)
        path = html.unescape(following[1]) if following else ""


def cookie_of(reply: Reply) -> str:
    """Return the cookie that a reply sets, as the value of a `Cookie` header."""
    return (reply.headers["Set-Cookie"] or "").partition(";")[0]


def make_context(
    *roots: Path,
    settings: Settings | None = None,
    sources: Sequence[SourceState] = (),
    registry: Registry | None = None,
    grants: Grants | None = None,
    principal: Principal | None = None,
) -> Context:
    """Make the context of a page for a viewer of these roots, scanned once."""
    runtime = Runtime(registry or load_registry(*roots))
    sessions, views = PageSessions(make_policy("127.0.0.1", (), (), ()), Quotas()), Views(runtime.registry, grants)
    page = WebPage(runtime, settings or Settings(), views, sessions, site_states=lambda: sources)
    return page._context(principal)


def render_view(view: Any, context: Context, query: str = "") -> str:
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": query.encode()})
    response = view(request, context)
    if inspect.isawaitable(response):
        response = anyio.run(lambda: response)
    return bytes(response.body).decode()
