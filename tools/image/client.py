"""A client of both eras, and what it asks a server in a container."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
from dataclasses import dataclass
from typing import Any, Final

from tools.image.settings import DEADLINE, PORT, SKILLS
from tools.image.steps import ImageError, Steps

LEGACY, MODERN = "2025-11-25", "2026-07-28"
INDEX: Final = "/.well-known/agent-skills/index.json"
META: Final = "io.modelcontextprotocol/"


@dataclass
class Client:
    """Speaks to the server of a container."""

    token: str | None = None
    session: str | None = None

    def connection(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """Send a request; the response, of which nothing but the head was read."""
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=DEADLINE)
        sent = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        if self.session is not None:
            sent["Mcp-Session-Id"] = self.session
            sent["MCP-Protocol-Version"] = LEGACY
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        return connection.getresponse()

    def get(self, path: str) -> tuple[int, str]:
        """Status and text."""
        with self.connection("GET", path) as response:
            return response.status, response.read().decode().strip()

    def digest(self, path: str) -> str:
        """The digest of what is there."""
        with self.connection("GET", path) as response:
            return "sha256:" + hashlib.sha256(response.read()).hexdigest()

    def post(self, message: dict[str, Any], **headers: str) -> tuple[dict[str, Any], str | None]:
        """Post a message to /mcp; its answer, plain or as the event that bears it, and the session it opened."""
        with self.connection("POST", "/mcp", message, **headers) as response:
            session = response.getheader("Mcp-Session-Id")
            if response.status >= 300:
                raise ImageError(f"{message['method']}: HTTP {response.status} {response.read()[:300]!r}")
            if response.status == 202:
                return {}, session
            if (response.getheader("Content-Type") or "").startswith("application/json"):
                return _answer(json.loads(response.read())), session
            for line in response:
                if line.startswith(b"data:") and line[5:].strip():
                    received = json.loads(line[5:])
                    if received.get("id") == message["id"]:
                        return _answer(received), session
        raise ImageError(f"{message['method']}: the stream ended without an answer")

    def legacy(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask within the session."""
        return self.post({"jsonrpc": "2.0", "id": 2, "method": method, "params": params})[0]

    def open(self) -> dict[str, Any]:
        """The legacy handshake."""
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "image", "version": "1"}}
        opened = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        result, self.session = self.post(opened)
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    def modern(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask with the envelope."""
        message, headers = _envelope(method, params)
        return self.post(message, **headers)[0]


def _envelope(method: str, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A message of the modern era and its headers."""
    meta = {
        META + "protocolVersion": MODERN,
        META + "clientInfo": {"name": "image", "version": "1"},
        META + "clientCapabilities": {},
    }
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    if name := params.get("uri", params.get("name")):
        headers["Mcp-Name"] = name
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return message, headers


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    """The result.

    Raises:
        ImageError: it is an error.
    """
    if "error" in message:
        raise ImageError(f"an error came back: {message['error']}")
    return message["result"]


def talk(client: Client, steps: Steps) -> None:
    """Both eras: what is listed is what was mounted, and a file has the bytes of the disk."""
    expected = {str(each.parent.relative_to(SKILLS)) for each in SKILLS.rglob("SKILL.md")}
    for era in ("legacy", "modern"):
        if era == "legacy":
            shown = client.open()["protocolVersion"]
            ask = client.legacy
        else:
            client.session = None
            shown = ", ".join(client.modern("server/discover", {})["supportedVersions"])
            ask = client.modern
        listed: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        while True:
            page = ask("skills/list", params)
            listed += page["skills"]
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        paths = {entry["uri"].removeprefix("skill://").removesuffix("/SKILL.md") for entry in listed}
        steps.check(paths == expected, f"{era} ({shown}): skills/list has the {len(listed)} skills of the volume")
        uri = next(entry["uri"] for entry in listed if entry["uri"].startswith("skill://colour-palettes/"))
        for file in next(entry["resources"] for entry in listed if entry["uri"] == uri):
            (content,) = ask("resources/read", {"uri": file["uri"]})["contents"]
            raw = base64.b64decode(content["blob"]) if "blob" in content else content["text"].encode()
            if "sha256:" + hashlib.sha256(raw).hexdigest() != file["digest"]:
                raise ImageError(f"{file['uri']} does not have the digest of its listing")
        steps.check(True, f"{era}: resources/read gives the listed bytes of {uri}")
    published = json.loads(client.get(INDEX)[1])["skills"]
    proved = [entry["name"] for entry in published if client.digest(entry["url"]) == entry["digest"]]
    steps.check(
        len(proved) == len(published) == len(expected), f"discovery: {len(proved)} artifacts with their digests"
    )
    message = {"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": {"limit": 100}}
    with client.connection("POST", "/rpc", message) as response:
        reported = _answer(json.loads(response.read()))["skills"]
    steps.check(len(reported) == len(expected) + 1, f"/rpc: list_skills has {len(reported)}, one of them its guide")


def open_streams(client: Client) -> dict[str, http.client.HTTPResponse]:
    """A notification stream of each era, left open."""
    client.open()
    streams = {"legacy": client.connection("GET", "/mcp")}
    client.session = None
    message, headers = _envelope("subscriptions/listen", {"notifications": {"resourcesListChanged": True}})
    streams["modern"] = client.connection("POST", "/mcp", message, **headers)
    for stream in streams.values():
        if stream.status != 200:
            raise ImageError(f"a stream was not opened: HTTP {stream.status} {stream.read()[:300]!r}")
    for line in streams["modern"]:
        if b"notifications/subscriptions/acknowledged" in line:
            return streams
    raise ImageError("subscriptions/listen was not acknowledged")
