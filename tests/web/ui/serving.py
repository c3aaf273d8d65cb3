"""A real server with the page, once it has read its skills, and a look of a viewer without a server."""

from __future__ import annotations

import html
import http.client
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode

from catalog.forest import loaded
from forkserver import Popen
from mcp_skills_server.access.grants import Grants
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.sources.mirrors import SourceState
from mcp_skills_server.web.guards import make_policy
from mcp_skills_server.web.settings import HttpSettings, UiSettings
from mcp_skills_server.web.ui.app import PagePart
from mcp_skills_server.web.ui.context import Context
from web.http_wire import Reply, Server, http_serving, until
from wire import COMMAND, DEADLINE, ROOT

SECRET = "0123456789abcdef"
TOKENS = {"MCP_SKILLS_TOKENS": f"laptop={SECRET}"}
"""The environment of a server that asks for this token."""


@contextmanager
def page_serving(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server over HTTP with `--ui`, once the page that anybody may open says that all skills are checked."""
    with http_serving(*arguments, "--ui", environment=environment) as server:
        server.until_ready()
        until(lambda: b"checking " not in get(server, "/ui/problems").body, "never checked")
        yield server


@contextmanager
def own_page(*arguments: str | Path) -> Iterator[str]:
    """`ui --no-open`; the address that it prints."""
    command = [*COMMAND, "ui", "--no-open", "--log-level", "error", *map(str, arguments)]
    pipe = subprocess.PIPE
    with Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().decode().strip()
            until(lambda: ask(f"{address.partition('/ui/')[0]}/readyz")[0] == 200, "never ready")
            yield address
        finally:
            process.kill()


@contextmanager
def signed_in(*arguments: str | Path) -> Iterator[tuple[str, str]]:
    """One's own page, whose address was opened: its origin and the cookie that lets in."""
    with own_page(*arguments) as address:
        yield address.partition("/ui/")[0], cookie_of(ask(address)[1])


def get(server: Server, path: str, **headers: str) -> Reply:
    return server.send("GET", path, headers=headers)


def ask(
    address: str, cookie: str = "", method: str = "GET", form: Mapping[str, str] | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    """Status, headers and body of an address, without following where it leads."""
    origin, _, path = address.removeprefix("http://").partition("/")
    given = headers | ({"Cookie": cookie} if cookie else {})
    with closing(http.client.HTTPConnection(origin, timeout=DEADLINE)) as connection:
        connection.request(method, f"/{path}", None if form is None else urlencode(form), given)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def grant(name: str, *skills: str, may: Sequence[str] = ()) -> str:
    """The lines of a configuration file that let the bearer of this name read these skills, and do more."""
    return f'[[grant]]\nwho = ["token:{name}"]\nskills = {json.dumps(skills)}\nmay = {json.dumps(may)}\n'


def text_of(reply: Reply | str) -> str:
    return reply if isinstance(reply, str) else reply.body.decode()


def words(reply: Reply | str) -> str:
    """The text of a page, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text_of(reply))).split())


def names(reply: Reply | str) -> list[str]:
    """The skills of a list, in order, by their paths."""
    return re.findall(r'<h2><a href="[^"]*/ui/skills/([^"]*)">', text_of(reply))


def parts(server: Server, path: str) -> Iterator[str]:
    """The pages of a list that comes in parts, which lead to each other."""
    while path:
        text = get(server, path).body.decode()
        yield text
        following = re.search(r'rel="next" href="([^"]*)"', text)
        path = html.unescape(following[1]) if following else ""


def cookie_of(headers: http.client.HTTPMessage) -> str:
    """The cookie that an answer sets, as a request sends it."""
    return (headers["Set-Cookie"] or "").partition(";")[0]


def look_at(
    *roots: Path,
    settings: Settings | None = None,
    sources: Sequence[SourceState] = (),
    registry: Registry | None = None,
    grants: Grants | None = None,
    principal: Principal | None = None,
) -> Context:
    """What a viewer sees of these roots, read once."""
    runtime = Runtime(registry or loaded(*roots))
    page = PagePart(runtime, settings or Settings(), UiSettings(), Views(runtime.registry, grants))
    page.routes(HttpSettings("127.0.0.1", 0, make_policy("127.0.0.1", (), (), ()), site_states=lambda: sources))
    return page._context(principal)
