"""Raw MCP clients, and one that exchanges JSON-RPC lines with a real server process over stdio.

Every answer to a method of ours is validated against the schemas of the package before a test sees it.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jsonschema

import mcp_skills_server
from forkserver import PROGRAM, Popen

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "fixtures" / "skills"
SCHEMAS = Path(mcp_skills_server.__file__).parent / "schemas"
DEADLINE = float(os.environ.get("TEST_DEADLINE_S", "20"))
"""Seconds to wait for an event before a test fails. `make threats` sets fewer."""

Era = Literal["legacy", "modern"]
VERSIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
META = "io.modelcontextprotocol/"
EXTENSION = "io.modelcontextprotocol/skills"
RELEASED = ROOT / "tools" / "interop" / "skills"
"""The schema of the released extension, against which its results are validated, too."""
RELEASED_RESULTS = {
    "skills/list": "ListSkillsResult",
    "skills/get": "GetSkillResult",
    "resources/directory/read": "ReadResourceDirectoryResult",
}


class WireError(Exception):
    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class Client(ABC):
    """A client of one era, on any transport."""

    dialect = "auto"

    def __init__(self, era: Era, *, extension: bool, host: str = "wire") -> None:
        self.era = era
        self.extension = extension
        self.extensions: dict[str, Any] = {EXTENSION: {}} if extension else {}
        """The declared extensions: set them before the handshake."""
        self.host = host
        self._id = 0

    @abstractmethod
    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its response."""

    @abstractmethod
    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""

    def message(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._id += 1
        sent = dict(params or {})
        if self.era == "modern":
            meta = {META + key: value for key, value in self._described("clientCapabilities").items()}
            sent["_meta"] = meta | sent.get("_meta", {})
        message = {"jsonrpc": "2.0", "id": self._id, "method": method}
        return {**message, "params": sent} if sent or params is not None else message

    def _described(self, capabilities: str) -> dict[str, Any]:
        """Return the client's version, info and capabilities, the last under this key."""
        declared = {"extensions": self.extensions} if self.extensions else {}
        info = {"name": self.host, "version": "1"}
        return {"protocolVersion": VERSIONS[self.era], "clientInfo": info, capabilities: declared}

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return its valid result, or raise WireError."""
        answer = self.exchange(self.message(method, params))
        if "error" in answer:
            raise WireError(answer["error"])
        check(method, params or {}, answer["result"], dialect=self.dialect, pure=self.extension, era=self.era)
        return answer["result"]

    def open(self) -> dict[str, Any]:
        if self.era == "modern":
            return self.request("server/discover")
        result = self.request("initialize", self._described("capabilities"))
        self.notify("notifications/initialized")
        return result

    def every_skill(self) -> list[dict[str, Any]]:
        """Return the entries of all pages of skills/list."""
        page = self.request("skills/list", {})
        out = page["skills"]
        while "nextCursor" in page:
            page = self.request("skills/list", {"cursor": page["nextCursor"]})
            out += page["skills"]
        return out

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Return the result of a tool. Arguments that are None are left out."""
        given = {name: value for name, value in arguments.items() if value is not None}
        return self.request("tools/call", {"name": tool, "arguments": given})

    def read(self, uri: str) -> bytes:
        """Return the bytes that resources/read sends for this URI."""
        (item,) = self.request("resources/read", {"uri": uri})["contents"]
        assert item["uri"] == uri
        return item["text"].encode() if "text" in item else base64.b64decode(item["blob"], validate=True)


class NotifiedClient(Client):
    """A client of one connection, with requests that run beside others, and received notifications."""

    def __init__(self, era: Era, *, extension: bool, host: str = "wire") -> None:
        super().__init__(era, extension=extension, host=host)
        self.notifications: queue.Queue[dict[str, Any]] = queue.Queue()

    @abstractmethod
    def start(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request and return its id."""

    def listen(self, **wanted: Any) -> int:
        """Open a `subscriptions/listen` stream, wait for its acknowledgement and return the request's id."""
        identifier = self.start("subscriptions/listen", {"notifications": wanted})
        acknowledged = self.notification()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["_meta"][META + "subscriptionId"] == identifier
        return identifier

    def notification(self, deadline: float = DEADLINE) -> dict[str, Any]:
        return self.notifications.get(timeout=deadline)

    def until(self, method: str, uri: str | None = None) -> list[dict[str, Any]]:
        """Return the notifications up to the first of this method (and URI), inclusive."""
        seen: list[dict[str, Any]] = []
        while True:
            seen.append(self.notification())
            if seen[-1]["method"] == method and (uri is None or seen[-1]["params"].get("uri") == uri):
                return seen

    def pending(self) -> list[dict[str, Any]]:
        """Return the notifications that the server sends before its next response."""
        self.request("skills/list")
        return [self.notifications.get_nowait() for _ in range(self.notifications.qsize())]


class Wire(NotifiedClient):
    """A server process over its pipes, and all that it sent."""

    def __init__(
        self, arguments: list[str], *, era: Era = "legacy", extension: bool = False, host: str = "wire"
    ) -> None:
        super().__init__(era, extension=extension, host=host)
        self.dialect = arguments[arguments.index("--dialect") + 1] if "--dialect" in arguments else "auto"
        self.process = Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        self.lines: list[bytes] = []
        self.stderr = b""
        self._logged = threading.Condition()
        self._answers: dict[Any, queue.Queue[dict[str, Any]]] = {}
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._read_stderr)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            message = json.loads(line)
            if "method" in message:
                self.notifications.put(message)
            else:
                self._answers.setdefault(message.get("id"), queue.Queue()).put(message)

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._logged:
                self.stderr += line
                self._logged.notify_all()

    def send_line(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def start(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        message = self.message(method, params)
        self._send(message)
        return message["id"]

    def _send(self, message: Mapping[str, Any]) -> None:
        self._answers.setdefault(message["id"], queue.Queue())
        self.send_line(json.dumps(message).encode())

    def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._send(message)
        return self.answer(message["id"])

    def answer(self, identifier: Any, deadline: float = DEADLINE) -> dict[str, Any]:
        return self._answers.setdefault(identifier, queue.Queue()).get(timeout=deadline)

    def finish(self, identifier: int, deadline: float = DEADLINE) -> dict[str, Any]:
        answer = self.answer(identifier, deadline)
        if "error" in answer:
            raise WireError(answer["error"])
        return answer["result"]

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = dict(params)
        self.send_line(json.dumps(message).encode())

    def wait_for_log(self, words: bytes) -> None:
        """Wait until stderr has these words, since it is not ordered with the responses."""
        with self._logged:
            assert self._logged.wait_for(lambda: words in self.stderr, DEADLINE), self.stderr

    def close(self) -> int:
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        return self.wait()

    def signal(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the process and its streams, and return the exit code."""
        code = self.process.wait(DEADLINE)
        for thread in self._threads:
            thread.join(DEADLINE)
        return code

    def kill(self) -> None:
        """End the process if it still runs, and close its streams."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(DEADLINE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


COMMAND = [sys.executable, "-m", PROGRAM]
SLOW_LOAD = """
import sys, threading
from pathlib import Path
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.cli import main

gate = Path(sys.argv[1])
load = Registry.load

def slow(self, *arm):
    with gate.open() as waiting:  # a fifo: blocks until the test opens its other end
        waiting.read()
    load(self, *arm)

Registry.load = slow
main(sys.argv[2:])
"""
"""The program, whose first scan waits until a test opens the fifo of its first argument."""


@contextmanager
def serving(
    *arguments: str | Path, era: Era = "legacy", extension: bool = False, opened: bool = True, host: str = "wire"
) -> Iterator[Wire]:
    """Run a server on these roots and options, after the handshake if `opened`."""
    wire = Wire([*COMMAND, "serve", *map(str, arguments)], era=era, extension=extension, host=host)
    try:
        if opened:
            wire.open()
        yield wire
    finally:
        wire.kill()


def write_skill(
    directory: Path,
    *,
    name: str | None = None,
    description: str = "Does a thing when it is asked to.",
    body: str = "# Thing\n",
    **files: str,
) -> Path:
    """Write a skill; `references__guide_md="..."` adds the file references/guide.md."""
    directory.mkdir(parents=True, exist_ok=True)
    text = f"---\nname: {name or directory.name}\ndescription: {description}\n---\n\n{body}"
    (directory / "SKILL.md").write_text(text, encoding="utf-8", newline="")
    for key, content in files.items():
        path = directory / key.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="")
    return directory


@cache
def _validator(schema: str | Path, definition: str) -> jsonschema.Draft202012Validator:
    document = json.loads((SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator({**document, "$ref": f"#/$defs/{definition}"})


def check(
    method: str, params: Mapping[str, Any], result: Mapping[str, Any], *, dialect: str, pure: bool, era: Era
) -> None:
    """Validate a result against the schemas of its dialects."""
    if era == "modern":
        assert result["resultType"] == "complete"
        assert result["_meta"][META + "serverInfo"]["name"]
    by_uri = method == "skills/get" and dialect != "sep-2076" and "uri" in params
    if by_uri or (method == "skills/list" and dialect != "sep-2076") or method == "resources/directory/read":
        _validator(RELEASED, RELEASED_RESULTS[method]).validate(result)
    if method == "skills/list":
        only = "sep-2640" if pure and dialect == "auto" else dialect
        for schema in ("sep-2640", "sep-2076") if only == "auto" else (only,):
            _validator(schema, "ListSkillsResult" if only == "auto" else "PureListSkillsResult").validate(result)
    elif method == "skills/get":
        _validator("sep-2640" if by_uri else "sep-2076", "GetSkillResult").validate(result)
