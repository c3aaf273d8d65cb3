"""`make demo`: start the server on fixtures/skills, send the requests of a host, print the responses, then show a page.

The first steps are facts of the protocol, the rest is what somebody sees who uses skills.

In a terminal the page stays until Enter, at most `STAYS_S`. Without a terminal the demo reads the
page itself and exits. `DEMO_STAY=1` makes it stay there too, `DEMO_STAY=0` exit in a terminal too.
"""

from __future__ import annotations

import base64
import hashlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, OpenerDirector, ProxyHandler, build_opener

import anyio
import mcp_types as types
from mcp.client.client import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.client.stdio import StdioServerParameters, stdio_client
from pydantic import ConfigDict

ROOT = Path(__file__).parent.parent
SKILLS = ROOT / "fixtures" / "skills"
STAYS_S = 600
_READY_S = 20.0


class SkillsRequest(types.Request[dict[str, Any], str]):
    """A request for a method of SEP-2076, which the SDK does not support."""

    method: str
    params: dict[str, Any]


class SkillsResult(types.Result):
    model_config = ConfigDict(extra="allow")


class SkillNotifications(ClientExtension):
    """An extension that receives `notifications/skills/list_changed`, which the SDK's client does not support."""

    identifier = "com.example/skill-notifications"

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        async def handle(_: types.NotificationParams) -> None:
            self._on_change()

        method = "notifications/skills/list_changed"
        return [NotificationBinding(method=method, params_type=types.NotificationParams, handler=handle)]


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}")


async def request(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """Send a request and return its result as JSON."""
    result = await client.session.send_request(SkillsRequest(method=method, params=params), SkillsResult)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def cut(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def show(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"   | {cut(line, 100)}".rstrip())


async def listing(client: Client) -> list[dict[str, Any]]:
    skills: list[dict[str, Any]] = []
    page = await request(client, "skills/list")
    skills += page["skills"]
    while "nextCursor" in page:
        page = await request(client, "skills/list", cursor=page["nextCursor"])
        skills += page["skills"]
    return skills


async def demo(folder: Path) -> None:
    command = [sys.executable, "-m", "mcp_skills_server", "serve", str(folder)]
    shown = "mcp-skills-server serve fixtures/skills"
    title(f"1. A host starts the server:  {shown}")
    changed = anyio.Event()
    arrived = 0.0

    def record_change() -> None:
        nonlocal arrived
        arrived = time.perf_counter()
        print("   <- notifications/skills/list_changed")
        changed.set()

    begun = time.perf_counter()
    parameters = StdioServerParameters(command=command[0], args=command[1:])
    async with Client(
        stdio_client(parameters), mode="legacy", extensions=[SkillNotifications(record_change)]
    ) as client:
        assert client.server_info is not None
        print(f"   {client.server_info.name} {client.server_info.version} answered after", end=" ")
        print(f"{time.perf_counter() - begun:.2f} s, speaking MCP {client.protocol_version}")

        title("2. skills/list: what there is")
        skills = await listing(client)
        width = max(len(skill["name"]) for skill in skills)
        for skill in skills:
            size = sum(each["size"] for each in skill["resources"])
            files = len(skill["resources"])
            about = cut(skill["description"], 60)
            print(f"   {skill['name']:{width}}  {skill.get('version', ''):6} {files:3} files {size:7,} bytes  {about}")

        title("3. skills/get with arguments: meeting-notes, for the topic 'the summer party'")
        got = await request(client, "skills/get", name="meeting-notes", arguments={"topic": "the summer party"})
        show(got["instructions"].splitlines()[:6])

        title("4. resources/read: one file, proved against the digest of the listing")
        entry = next(skill for skill in skills if skill["name"] == "colour-palettes")
        file = next(each for each in entry["resources"] if each["uri"].endswith(".png"))
        (content,) = (await client.read_resource(file["uri"])).contents
        assert isinstance(content, types.BlobResourceContents)
        raw = base64.b64decode(content.blob)
        digest = "sha256:" + hashlib.sha256(raw).hexdigest()
        print(f"   {file['uri']}  {content.mime_type}, {len(raw)} bytes")
        print(f"   listed {file['digest']}\n   read   {digest}")
        print("   the same" if digest == file["digest"] else "   DIFFERENT")
        assert digest == file["digest"]

        title("5. A host that knows prompts only: /meeting-notes")
        prompts = (await client.list_prompts()).prompts
        filled = await client.get_prompt("meeting-notes", {"topic": "the summer party"})
        print(f"   prompts/list   {len(prompts)} prompts")
        print(f"   prompts/get    {cut(filled.messages[0].content.text, 90)}")

        title("6. A host that knows tools only: what its model reads unasked")
        unasked = client.instructions or ""
        lines = unasked.splitlines()
        show([line for line in lines if line][:4])
        show(["...", *(line for line in lines if line.startswith("- csv-profiling:")), "..."])
        print(f"   {len(lines)} lines, {len(unasked):,} characters in all: names and descriptions, and no skill's text")

        title("7. Somebody asks:  Which columns of sales.csv have gaps?")
        print("   The model finds the description that fits, and calls skills_load with csv-profiling. It gets:")
        used = await client.call_tool("skills_load", {"names": ["csv-profiling"]})
        (receipt,) = used.structured_content["active_skills"]
        show([line for line in receipt["instructions"].splitlines() if line][:6])
        print(f"   {len(receipt['instructions']):,} characters, and the names of {', '.join(receipt['files'])}")
        path = receipt["files"][0]
        part = await client.call_tool("skills_read", {"path": path, "max_lines": 3})
        print(f"   skills_read    {path}: {cut(part.content[0].text, 60)}")

        title("8. You edit csv-profiling/SKILL.md while the host runs")
        path = folder / "csv-profiling" / "SKILL.md"
        path.write_text(
            path.read_text(encoding="utf-8") + "\nName the column with most gaps first.\n", encoding="utf-8"
        )
        saved = time.perf_counter()
        with anyio.fail_after(10):
            await changed.wait()
        print(f"   heard {1000 * (arrived - saved):.0f} ms after the save; nothing needs a restart")
        got = await request(client, "skills/get", name="csv-profiling")
        print(f"   the instructions end now with: {got['instructions'].splitlines()[-1]!r}")
    print("   the server has ended with its client")


def page(folder: Path, *, stays: bool) -> None:
    """Show the page of the same skills: its address, or without a terminal a summary."""
    title("9. You look at the skills:  mcp-skills-server ui fixtures/skills")
    words = [sys.executable, "-m", "mcp_skills_server", "ui", str(folder), "--no-open", "--log-level", "error"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))
            deadline = time.monotonic() + _READY_S
            while not _answers(opener, f"{address.partition('/ui/')[0]}/readyz"):
                assert time.monotonic() < deadline, "the page was not ready"
            if stays:
                print(
                    f"   Open this address; it lets in once. The page ends with Enter, or in {STAYS_S // 60} minutes."
                )
                print(f"   {address}", flush=True)
                _wait(process)
                return
            with opener.open(address) as answer:
                text = answer.read().decode()
            print(f"   {text.count('<h2><a ')} skills in {len(text):,} characters of HTML. Nobody is at a terminal,")
            print("   so the page ends here. DEMO_STAY=1 make demo keeps it, and prints an address to open, such as")
            print(f"   {address}")
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[str]) -> None:
    """Wait for Enter, Ctrl-C or the end of `STAYS_S`."""
    with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        if sys.stdin.isatty():
            select.select([sys.stdin], [], [], STAYS_S)
        else:
            process.wait(STAYS_S)


def _answers(opener: OpenerDirector, address: str) -> bool:
    try:
        with opener.open(address, timeout=5):
            return True
    except HTTPError:  # the first scan is not finished
        return False


def main() -> None:
    """Run the demo on a copy of the fixtures, because it edits one."""
    stays = os.environ.get("DEMO_STAY", "1" if sys.stdin.isatty() and sys.stdout.isatty() else "0") != "0"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "skills"
        shutil.copytree(SKILLS, folder)
        anyio.run(demo, folder)
        page(folder, stays=stays)
    title("Now with your own folder, such as ~/skills, in Claude Desktop:")
    program = Path(sys.executable).with_name("mcp-skills-server")
    print(f"   {os.path.relpath(program)} install claude-desktop ~/skills")


if __name__ == "__main__":
    main()
