"""A real server with the page, once it has read its skills."""

from __future__ import annotations

import html
import http.client
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from forkserver import Popen
from web.http_wire import Reply, Server, http_serving
from wire import COMMAND, DEADLINE, ROOT


@contextmanager
def page_serving(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server over HTTP with `--ui`, once the page that anybody may open says that all skills are checked."""
    with http_serving(*arguments, "--ui", environment=environment) as server:
        until = monotonic() + DEADLINE
        while server.send("GET", "/readyz").status != 200:
            assert monotonic() < until, "never ready"
        while b"checking " in get(server, "/ui/problems").body:
            assert monotonic() < until, "never checked"
        yield server


@contextmanager
def own_page(*arguments: str | Path) -> Iterator[str]:
    """`ui --no-open`; the address that it prints."""
    words = [*COMMAND, "ui", "--no-open", "--log-level", "error", *map(str, arguments)]
    process = Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        until = monotonic() + DEADLINE
        while ask(f"{address.partition('/ui/')[0]}/readyz")[0] != 200:
            assert monotonic() < until, "never ready"
        yield address
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def get(server: Server, path: str, **headers: str) -> Reply:
    """What a GET is answered with; `cookie="a=b"` for a header."""
    return server.send("GET", path, headers=headers)


def ask(address: str, cookie: str = "") -> tuple[int, http.client.HTTPMessage, str]:
    """Status, headers and body of an address, without following where it leads."""
    origin, _, path = address.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(origin, timeout=DEADLINE)
    try:
        connection.request("GET", f"/{path}", headers={"Cookie": cookie} if cookie else {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def words(reply: Reply | str) -> str:
    """The text of a page, in one line."""
    text = reply if isinstance(reply, str) else reply.body.decode()
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def names(reply: Reply | str) -> list[str]:
    """The skills of a list, in order, by their paths."""
    text = reply if isinstance(reply, str) else reply.body.decode()
    return re.findall(r'<h2><a href="[^"]*/ui/skills/([^"]*)">', text)


def cookie_of(headers: http.client.HTTPMessage) -> str:
    """The cookie that an answer sets, as a request sends it."""
    return (headers["Set-Cookie"] or "").partition(";")[0]
