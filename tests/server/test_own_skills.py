"""`attach` on a server that has skills of its own, by a stand-in for the SDK's extension `Skills`.

The SDK has merged the extension and not released it. The stand-in has its interface and its behaviour on the wire: two
or three handlers, own types of parameters, and no cache hints for a legacy client.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.server.extension import Extension, MethodBinding
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resources import TextResource
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_skills_server import Registry, Settings, attach
from mcp_skills_server.client import SkillsClient
from mcp_skills_server.errors import UsageError
from server.sdk import attached_client, request
from tables import each_row
from wire import EXTENSION, write_skill

pytestmark = pytest.mark.anyio

Answer = Callable[[Any, Any], Awaitable[dict[str, Any]]]


class ListParams(types.RequestParams):
    cursor: str | None = None


class UriParams(types.RequestParams):
    uri: str


class Skills(Extension):
    """The stand-in."""

    identifier = EXTENSION

    def __init__(
        self,
        *,
        list_skills: Answer,
        get_skill: Answer,
        read_directory: Answer | None = None,
        revision: str | None = None,
    ) -> None:
        self._answers = {"skills/list": (ListParams, list_skills), "skills/get": (UriParams, get_skill)}
        if read_directory is not None:
            self._answers["resources/directory/read"] = (UriParams, read_directory)
        self._settings = {} if read_directory is None else {"directoryRead": True}
        self._settings |= {} if revision is None else {"revision": revision}

    def settings(self) -> dict[str, Any]:
        return self._settings

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding(method, params_type, self._in_era(answer))
            for method, (params_type, answer) in self._answers.items()
        ]

    @staticmethod
    def _in_era(answer: Answer) -> Answer:
        async def answered(ctx: Any, params: Any) -> dict[str, Any]:
            result = {"resultType": "complete", **await answer(ctx, params)}
            if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                result |= {"ttlMs": 9_000, "cacheScope": "public"}
            return result

        return answered


def own_entry(path: str) -> dict[str, Any]:
    frontmatter = {"name": path.rpartition("/")[2], "description": "Theirs."}
    return {"uri": f"skill://{path}/SKILL.md", "frontmatter": frontmatter, "resources": "dynamic"}


async def read_own_directory(_: Any, params: UriParams) -> dict[str, Any]:
    return {"resources": [{"uri": f"{params.uri}/SKILL.md", "name": "SKILL.md"}]}


def own_skills(*paths: str, pages: bool = False, **options: Any) -> MCPServer[Any]:
    """Return a server with these skills, each on a page of its own if `pages`."""

    async def list_skills(_: Any, params: ListParams) -> dict[str, Any]:
        if not pages:
            return {"skills": [own_entry(path) for path in paths]}
        index = int(params.cursor or 0)
        more = {"nextCursor": str(index + 1)} if index + 1 < len(paths) else {}
        return {"skills": [own_entry(paths[index])], **more}

    async def get_skill(_: Any, params: UriParams) -> dict[str, Any]:
        for entry in map(own_entry, paths):
            if entry["uri"] == params.uri:
                return {"skill": entry}
        raise MCPError(code=types.INVALID_PARAMS, message="unknown to the server itself")

    server = MCPServer[Any]("own", extensions=[Skills(list_skills=list_skills, get_skill=get_skill, **options)])
    for path in paths:
        server.add_resource(TextResource(uri=f"skill://{path}/SKILL.md", name=path, text=f"the text of {path}"))
    return server


async def listed(client: Any) -> list[str]:
    """Return the URIs of all pages of `skills/list`, of which each has the fields of a cacheable result."""
    uris: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await request(client, "skills/list", **cursor)
        assert (page["resultType"], page["cacheScope"]) == ("complete", "private") and page["ttlMs"] >= 0
        uris += [entry["uri"] for entry in page["skills"]]
        if "nextCursor" not in page:
            return uris
        cursor = {"cursor": page["nextCursor"]}


@pytest.mark.requirement("S40-20", "MCP-24")
@pytest.mark.parametrize("pages", [False, True])
async def test_own_skills_are_listed_before_the_attached_ones(
    tmp_path: Path, mode: Any, pages: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        write_skill(tmp_path / name)
    server = own_skills("x/one", "b", "two", pages=pages)
    async with attached_client(tmp_path, mode, to=server, settings=Settings(page_size=1)) as client:
        uris = [f"skill://{path}/SKILL.md" for path in ("x/one", "two", "a", "b")]
        assert await listed(client) == uris
        skills = SkillsClient(client.session)
        assert sorted(skill.uri for skill in await skills.list()) == sorted(uris)
        ours = await skills.get("skill://b/SKILL.md")
        assert ours.is_proved and (await skills.read(ours)).startswith(b"---\nname: b")
        assert "the text of two" in str(await client.read_resource("skill://two/SKILL.md"))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings[0].startswith("the server's own skills are listed with the attached ones")
    hidden = "a skill hides the server's own skill skill://b/SKILL.md; give it another URI"
    assert warnings.count(hidden) == 1


@pytest.mark.requirement("S40-23", "S40-24")
async def test_own_skill_is_found_by_its_uri_and_others_are_unknown(tmp_path: Path, mode: Any) -> None:
    write_skill(tmp_path / "a")
    async with attached_client(tmp_path, mode, to=own_skills("one")) as client:
        got = await request(client, "skills/get", uri="skill://one/SKILL.md")
        assert got["skill"] == own_entry("one")
        assert (await request(client, "skills/get", uri="skill://a/SKILL.md"))["skill"]["uri"] == "skill://a/SKILL.md"
        assert (await request(client, "skills/get", name="a"))["description"]
        for given, message in (
            ({"uri": "skill://other/SKILL.md"}, "unknown to the server itself"),
            ({"name": "one"}, "Unknown skill"),
            ({"uri": 5}, "must be a string"),
            ({}, "is missing"),
        ):
            with pytest.raises(MCPError, match=message) as raised:
                await request(client, "skills/get", **given)
            assert raised.value.error.code == types.INVALID_PARAMS, given


# Without directories of its own, the server cannot promise to read the directories of all skills.
@pytest.mark.requirement("S40-1")
@pytest.mark.parametrize("directories", [False, True])
async def test_directories_are_read_if_the_server_reads_its_own(tmp_path: Path, mode: Any, directories: bool) -> None:
    write_skill(tmp_path / "a")
    options: dict[str, Any] = {"read_directory": read_own_directory} if directories else {}
    async with attached_client(tmp_path, mode, to=own_skills("one", **options)) as client:
        extensions = client.server_capabilities.extensions or {}
        assert extensions[EXTENSION] == ({"directoryRead": True} if directories else {})
        for name in ("a", "one") if directories else ():
            (child,) = (await request(client, "resources/directory/read", uri=f"skill://{name}"))["resources"]
            assert child["uri"] == f"skill://{name}/SKILL.md"


def undeclared() -> Server[Any]:
    """Return a lowlevel server with a `skills/list` of no declared extension."""

    async def list_skills(*_: Any) -> dict[str, Any]:
        return {"skills": []}

    server = Server[Any]("own")
    server.add_request_handler("skills/list", types.RequestParams, list_skills)
    return server


@pytest.mark.requirement("S40-55")
@each_row(("make", "dialect"), [
    (lambda: own_skills("one", revision="2"), "auto"), (lambda: own_skills("one"), "sep-2076"), (undeclared, "auto"),
])  # fmt: skip
def test_own_skills_of_another_protocol_or_revision_are_not_attached_to(
    tmp_path: Path, make: Callable[[], Any], dialect: str
) -> None:
    server = make()
    for _ in range(2):  # a failure does not count as a first call
        with pytest.raises(UsageError, match="the server has a skills/list of its own"):
            attach(server, Registry([tmp_path]), Settings(dialect=dialect))
