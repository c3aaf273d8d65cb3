"""MCP source: copies the skills of another MCP server, each file verified by its digest.

The server is a streamable HTTP endpoint, or a command that is started for each poll and speaks over
its pipes. While nothing is new, a poll costs one listing. Another connection is for notifications.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from math import inf
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp import MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from mcp_skills_server.access.hosts import is_loopback
from mcp_skills_server.client import SkillsClient, UnprovedError
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.remote_entries import EntryRefusedError, ListedSkill
from mcp_skills_server.errors import UsageError, clipped, quoted
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources.addresses import shown
from mcp_skills_server.sources.http import Downloader
from mcp_skills_server.sources.kinds import COMMAND
from mcp_skills_server.sources.lifeline import WATCH, lifeline
from mcp_skills_server.sources.listed import Entry, ListedSource
from mcp_skills_server.sources.source import (
    ContentRefusedError,
    SourceError,
    SourceSettings,
    UnacceptableError,
    UnreachableError,
)

# The SDK's errors also reach its caller. Without a handler Python prints them with tracebacks.
logging.getLogger("mcp").addHandler(logging.NullHandler())

PREFIX: Final = "mcp+"
_STREAMS_APART_S: Final = 1.0
_COMPRESSED: Final = "it answers compressed, which was not asked for"
_TO_MCP: Final = re.compile(r"accept|content-type|mcp-.*+")
_MAX_TOOLS_BYTES: Final = 10 << 20
_WATCHED: Final = f"""{WATCH}
shift; exec "$@" 2>/dev/null
"""
_NOT_PROVED: Final = "the server lists no digests of its files, so nothing of it can be proved"


class McpServer(ListedSource):
    """Skills of an MCP server: `mcp+https://HOST/mcp`, local `mcp+http://`, `mcp+stdio:COMMAND`."""

    def __init__(self, given: str, settings: SourceSettings) -> None:
        self._fetch = settings.fetch
        self._command: list[str] = []
        self._url = ""
        self._token = settings.token
        if given.startswith(COMMAND):
            self._command = command_words(given)
            origin = COMMAND + os.path.basename(self._command[0])  # arguments may be secrets
        else:
            self._url = server_url(given, http=settings.fetch.trust.http)
            origin = PREFIX + shown(self._url)
        super().__init__(given, settings, origin=origin)

    async def entries(self) -> Sequence[Entry]:
        """Return the skills that the server lists."""
        async with self._connected(self._fetch.bounds.download_s) as client:
            skills, self.warnings = await client.list(), client.refused
        return [Entry(skill.name, _fingerprint(skill), skill) for skill in skills]

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[Callable[[Entry], Awaitable[Files]]]:
        """Yield a reader of skills over one connection."""
        async with self._connected(self._fetch.limits.total_s) as client:
            yield lambda entry: self._read(client, entry.item)

    async def listen(self, changed: Callable[[], object]) -> None:
        """Subscribe to the server's notifications, and call `changed` when its list may differ.

        The connection speaks the era that the server negotiates; a lost one is opened anew.
        """
        while True:
            with suppress(SourceError):  # the next poll reports the error
                async with self._connected(inf) as client, client.changes(poll_s=inf) as changes:
                    changed()  # changes before the subscription were not announced
                    async for _ in changes:
                        changed()
            await anyio.sleep(self.check_s)

    async def _read(self, client: SkillsClient, skill: ListedSkill) -> Files:
        if not skill.is_proved or skill.files is None:
            raise ContentRefusedError(client.revision_fault or _NOT_PROVED)
        if sum(file.size or 0 for file in skill.files.values()) > self._fetch.limits.skill_bytes:
            raise ContentRefusedError(f"it has more than {self._fetch.limits.skill_bytes:,} bytes")
        try:
            with anyio.fail_after(self._fetch.bounds.download_s):
                return {path: (await client.read(skill, path), False) for path in skill.files}
        except UnprovedError as error:  # it may have been edited since it was listed
            raise UnreachableError(clipped(str(error))) from None
        except MCPError as error:
            raise UnreachableError(f"the server says: {clipped(str(error))}") from None
        except TimeoutError:
            raise UnreachableError(f"not read within {self._fetch.bounds.download_s:g} s") from None

    @asynccontextmanager
    async def _connected(self, seconds: float) -> AsyncGenerator[SkillsClient]:
        """Connect for at most `seconds`; raise any failure as a SourceError or UsageError."""
        async with _failing_plainly(seconds), AsyncExitStack() as stack:
            connection: Any
            if self._url:
                http = http_client(
                    self._url,
                    self._token,
                    connect_s=self._fetch.bounds.read_s,
                    max_bytes=2 * self._fetch.limits.skill_bytes,
                )
                await stack.enter_async_context(http)
                connection = streamable_http_client(self._url, http_client=http)
            else:
                connection = self._start(stack)
            yield await stack.enter_async_context(SkillsClient.connect(connection))

    def _start(self, stack: AsyncExitStack) -> Any:
        """Return a transport to the command, whose processes end with `stack` or this process.

        Its stderr is discarded, since it is started, and would log, at each poll. Only the standard
        streams reach it, so its stderr is the lifeline until the shell executes it.
        """
        program, *arguments = self._command
        if shutil.which(program) is None:
            raise UnreachableError(f"there is no program {quoted(program)}")
        passed = stack.enter_context(lifeline())
        if passed:
            program, arguments = "/bin/sh", ["-c", _WATCHED, "sh", "2", program, *arguments]
        stderr = os.dup(passed[0]) if passed else os.open(os.devnull, os.O_RDWR)
        errlog = stack.enter_context(os.fdopen(stderr, encoding="utf-8"))
        return stdio_client(StdioServerParameters(command=program, args=arguments), errlog=errlog)


@asynccontextmanager
async def _failing_plainly(seconds: float) -> AsyncGenerator[None]:
    """Limit a connection to `seconds`; raise any failure as a SourceError or UsageError."""
    try:
        with anyio.fail_after(seconds):
            yield
    except Exception as cause:
        if isinstance(cause, TimeoutError):
            raise UnreachableError(f"no answer within {seconds:g} s") from None
        if isinstance(cause, SourceError | UsageError):
            raise cause from None
        if isinstance(cause, EntryRefusedError | UnprovedError):
            raise ContentRefusedError(clipped(str(cause))) from None
        reason = clipped(str(cause)) or type(cause).__name__
        raise UnreachableError(f"no answer ({reason})") from None


async def tool_digests(url: str, downloader: Downloader, seconds: float) -> dict[str, str]:
    """Return one digest of the schemas of each tool of a server, by name, or raise SourceError."""
    transport = _DownloaderTransport(downloader)
    async with _failing_plainly(seconds), httpx2.AsyncClient(transport=transport) as http:
        connection = streamable_http_client(url, http_client=http)
        async with SkillsClient.connect(connection) as client:
            return await client.tool_digests()


class _DownloaderTransport(httpx2.AsyncBaseTransport):
    """Transport of `httpx2` with the pinned addresses and the bounds of a `Downloader`."""

    def __init__(self, downloader: Downloader) -> None:
        self._downloader = downloader

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return the whole response, of which a stream would have no end."""
        if request.method == "GET":  # the stream of notifications, which is optional
            return httpx2.Response(405)
        headers = {
            name: value for name, value in request.headers.items() if _TO_MCP.fullmatch(name)
        }
        response = await self._downloader.request(
            request.method,
            str(request.url),
            headers,
            self._downloader.allow,
            max_bytes=_MAX_TOOLS_BYTES,
            max_error_bytes=_MAX_TOOLS_BYTES,  # an error says that another era is spoken
            content=await request.aread(),
            follow=False,
        )
        if response.encoding:  # `httpx2` would decode it, without a bound
            raise UnacceptableError(_COMPRESSED)
        return httpx2.Response(response.status, headers=response.headers, content=response.body)


def http_client(url: str, token: str, *, connect_s: float, max_bytes: int) -> httpx2.AsyncClient:
    """Return an HTTP client that bounds the size of responses and rejects compressed ones.

    Requests to another origin, as after a redirect, are refused. GET requests are throttled: a
    server may end each stream and have it reopened at once. Callers set all other timeouts.
    """
    soonest = -inf
    home = wellknown.origin(url)

    async def pace(request: httpx2.Request) -> None:
        nonlocal soonest
        if (there := wellknown.origin(str(request.url))) != home:
            raise UnacceptableError(f"it leads to {there}, another origin; give that address")
        if request.method == "GET":
            begin, soonest = soonest, max(soonest, anyio.current_time()) + _STREAMS_APART_S
            await anyio.sleep_until(begin)

    async def bound(response: httpx2.Response) -> None:
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in {"", "identity"}:
            raise UnacceptableError(_COMPRESSED)
        # In an event stream the readers bound each event.
        if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
            response.stream = _Bounded(response.stream, max_bytes)

    headers = {"Accept-Encoding": "identity"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return httpx2.AsyncClient(
        headers=headers,
        timeout=httpx2.Timeout(None, connect=connect_s),
        event_hooks={"request": [pace], "response": [bound]},
    )


class _Bounded(httpx2.AsyncByteStream):
    """Response body stream with a maximum size."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        async for part in self._stream:
            left -= len(part)
            if left < 0:
                raise UnacceptableError(f"an answer has more than {self._most:,} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def command_words(given: str) -> list[str]:
    """Split the command of `mcp+stdio:COMMAND` into words, or raise UsageError."""
    try:
        words = shlex.split(given.removeprefix(COMMAND))
    except ValueError as error:
        raise UsageError(f"{COMMAND} cannot be read ({error}); close its quotes") from None
    if not words:
        raise UsageError(f"{COMMAND} has no command; write one, as in 'mcp+stdio:server --flag'")
    return words


def server_url(given: str, *, http: bool) -> str:
    """Return the URL of `mcp+https://...`, or raise UsageError; with `http` also of other hosts."""
    url = given.removeprefix(PREFIX)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise UsageError("the address cannot be read; write mcp+https://HOST/mcp") from None
    if parts.username is not None:
        remedy = "an address is no place for a password; give token-env in its [[source]]"
        raise UsageError(f"{PREFIX}{parts.scheme}://{host}: {remedy}")
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and (http or is_loopback(host)))
    if not host or not is_safe:
        raise UsageError(
            f"{PREFIX}{shown(url)}: write mcp+https://HOST/mcp, mcp+http:// on this machine "
            "(elsewhere with --allow-http), or mcp+stdio:COMMAND"
        )
    return url


def _fingerprint(skill: ListedSkill) -> str:
    """Return a digest of a skill's listing."""
    files = sorted((path, file.digest, file.size) for path, file in (skill.files or {}).items())
    listed = json.dumps([skill.uri, skill.name, skill.description, files])
    return hashlib.sha256(listed.encode("utf-8", "surrogatepass")).hexdigest()
