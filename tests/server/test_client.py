"""The SDK's own client against the real process, as a host would use it."""

from __future__ import annotations

import base64
import hashlib
import random
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from wire import COMMAND, DEADLINE, FIXTURES, WireError, serving, write_skill

pytestmark = pytest.mark.anyio


class Ask(types.Request[dict[str, Any], str]):
    """A request for a method that the SDK does not know."""

    method: str
    params: dict[str, Any]


class Answer(types.Result):
    """Its result, as it came."""

    model_config = ConfigDict(extra="allow")


MODES: list[Literal["legacy", "auto"]] = ["legacy", "auto"]


@asynccontextmanager
async def connected(root: Path, mode: Literal["legacy", "auto"], **options: Any) -> AsyncGenerator[Client]:
    parameters = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "serve", str(root)])
    with anyio.fail_after(DEADLINE):
        async with Client(stdio_client(parameters), mode=mode, **options) as client:
            yield client


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    result = await client.session.send_request(Ask(method=method, params=params), Answer)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


@pytest.mark.parametrize("mode", MODES)
async def test_a_host_lists_gets_and_reads(mode: Literal["legacy", "auto"]) -> None:
    async with connected(FIXTURES, mode) as client:
        assert client.protocol_version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[mode]
        assert client.server_info is not None and client.server_info.name == "mcp-skills-server"
        skills = (await ask(client, "skills/list"))["skills"]
        assert len(skills) == len(list(FIXTURES.rglob("SKILL.md")))
        got = await ask(client, "skills/get", name="meeting-notes", arguments={"topic": "tea"})
        assert "tea" in got["instructions"]
        for entry in skills:
            for each in entry["resources"]:
                (content,) = (await client.read_resource(each["uri"])).contents
                raw = (
                    content.text.encode()
                    if isinstance(content, types.TextResourceContents)
                    else base64.b64decode(content.blob)
                )
                assert "sha256:" + hashlib.sha256(raw).hexdigest() == each["digest"]
        with pytest.raises(MCPError) as caught:
            await client.read_resource("skill://nothing/SKILL.md")
        assert caught.value.error.code == {"legacy": -32002, "auto": -32602}[mode]


async def test_a_legacy_host_hears_of_changes(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    heard: list[str] = []
    reported = anyio.Event()

    async def hear(message: Any) -> None:
        heard.append(getattr(message, "method", None) or getattr(getattr(message, "root", None), "method", ""))
        if "notifications/resources/list_changed" in heard:
            reported.set()

    async with connected(tmp_path, "legacy", message_handler=hear) as client:
        await ask(client, "skills/list")
        write_skill(tmp_path / "b")
        await reported.wait()
        assert len((await ask(client, "skills/list"))["skills"]) == 2


async def test_a_modern_host_hears_of_changes(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    async with connected(tmp_path, "auto") as client:
        await ask(client, "skills/list")
        async with client.listen(resources_list_changed=True, resource_subscriptions=["skill://a/SKILL.md"]) as events:
            assert events.honored.resources_list_changed is True
            write_skill(tmp_path / "a", description="Another description, of some length.")
            seen = {type(await anext(events)).__name__, type(await anext(events)).__name__}
            assert seen == {"ResourcesListChanged", "ResourceUpdated"}


@pytest.mark.requirement("S40-18", "X-7")
def test_every_byte_served_matches_a_digest_listed_at_that_moment(tmp_path: Path) -> None:
    """While a writer rewrites the tree, what is read was listed just before the read, or is listed just after it."""
    paths = ["SKILL.md", "references/a.md", "data.bin"]
    for name in ("one", "two"):
        write_skill(tmp_path / name, references__a_md="a")
        (tmp_path / name / "data.bin").write_bytes(b"\0")
    done = threading.Event()
    chance = random.Random(7)

    def rewrite() -> None:
        while not done.wait(0.005):
            directory = tmp_path / chance.choice(["one", "two"])
            path = directory / chance.choice(paths)
            if path.name == "SKILL.md":
                write_skill(directory, body="# T\n" + "x" * chance.randrange(4000))
            elif chance.random() < 0.5:
                path.write_bytes(chance.randbytes(chance.choice([1, 1, 5000])))  # in place: readers may see a part
            else:
                fresh = path.with_name(".fresh")
                fresh.write_bytes(chance.randbytes(300))
                fresh.replace(path)

    with serving(tmp_path) as wire:

        def listed() -> dict[str, str]:
            return {each["uri"]: each["digest"] for skill in wire.every_skill() for each in skill["resources"]}

        def proved(uri: str) -> bool:
            before = listed()
            try:
                (item,) = wire.request("resources/read", {"uri": uri})["contents"]
            except WireError:
                return False  # it never held still; nothing was served
            raw = item["text"].encode() if "text" in item else base64.b64decode(item["blob"])
            digest = "sha256:" + hashlib.sha256(raw).hexdigest()
            after = listed()
            # A read between two listings that agree has no excuse; if they differ, the file changed meanwhile.
            assert digest == before.get(uri) or before.get(uri) != after.get(uri)
            return digest in {before.get(uri), after.get(uri)}

        writer = threading.Thread(target=rewrite)
        writer.start()
        try:
            verdicts = [proved(f"skill://{chance.choice(['one', 'two'])}/{path}") for _ in range(6) for path in paths]
        finally:
            done.set()
            writer.join()
        assert sum(verdicts) > len(verdicts) // 2
        # Once the writer rests, everything proves.
        assert all(proved(uri) for uri in listed())
