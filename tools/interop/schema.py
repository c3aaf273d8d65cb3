"""Every answer of the skills extension, validated against its schema in both eras."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types as types
from jsonschema import Draft202012Validator
from mcp import MCPError, StdioServerParameters
from mcp.client.client import Client
from pydantic import ConfigDict
from tools.interop.setup import MAX_RUN_S, SERVE, SKILLS, RefereeError, bundles
from tools.interop.verdicts import Check, all_there

from mcp_skills_server.client import SkillsExtension

SCHEMA: Final = Path(__file__).parent / "skills.schema.json"
VERSION: Final = "0682b7b"
"""The commit of the specification from which the schema was written."""
_MODES: Final = {"legacy": "legacy", "modern": "auto"}
_EXTENSION: Final = SkillsExtension.identifier


class _Request(types.Request[dict[str, Any], str]):
    method: str
    params: dict[str, Any]


class _Result(types.Result):
    model_config = ConfigDict(extra="allow")


@cache
def validator(definition: str) -> Draft202012Validator:
    """Return the validator of one named definition."""
    document = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return Draft202012Validator({**document, "$ref": f"#/$defs/{definition}"})


def schema_faults(definition: str, answer: object) -> list[str]:
    """Return what in an answer breaks a definition, each with its path."""
    errors = validator(definition).iter_errors(answer)  # pyright: ignore[reportUnknownMemberType]
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message:.200}" for error in errors]


def schema_checks(era: str, url: str | None) -> list[Check]:
    """Validate the answers about every skill, and about each of its folders, over HTTP or stdio."""
    return anyio.run(_checks, era, url)


async def _checks(era: str, url: str | None) -> list[Check]:
    checks: list[Check] = []

    def check(question: str, definition: str, answer: object) -> None:
        faults = schema_faults(definition, answer)
        checks.append(Check(era, question, "FAILURE" if faults else "SUCCESS", "; ".join(faults[:3])))

    server: Any = url or StdioServerParameters(command=SERVE[0], args=[*SERVE[1:], str(SKILLS)])
    mode: Any = _MODES[era]
    with anyio.fail_after(MAX_RUN_S):
        async with Client(server, mode=mode, extensions=[SkillsExtension()]) as client:

            async def ask(method: str, **params: Any) -> Mapping[str, Any]:
                try:
                    result = await client.session.send_request(_Request(method=method, params=params), _Result)
                except MCPError as error:
                    raise RefereeError(f"{method} {params}: {error}") from None
                return result.model_dump(by_alias=True, mode="json", exclude_none=True)

            check("settings", "SkillsSettings", (client.server_capabilities.extensions or {}).get(_EXTENSION))
            cursor: dict[str, Any] = {}
            skills: list[Mapping[str, Any]] = []
            while True:
                page = await ask("skills/list", **cursor)
                check(f"page {cursor}", "ListSkillsResult", page)
                skills += page["skills"]
                if "nextCursor" not in page:
                    break
                cursor = {"cursor": page["nextCursor"]}
            for skill in skills:
                uri = skill["uri"]
                check(f"skill {uri}", "GetSkillResult", await ask("skills/get", uri=uri))
                folders = {file["uri"].rpartition("/")[0] for file in skill["resources"]}
                for folder in sorted(folders):
                    answer = await ask("resources/directory/read", uri=folder)
                    check(f"folder {folder}", "ReadResourceDirectoryResult", answer)
    return [*checks, all_there(era, checks, {"skill": bundles()["skill"]})]
