"""Sample skills, tool calls and test doubles for the tests of sessions."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import anyio
from jsonschema import Draft202012Validator

from catalog.forest import skill_md
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects import runtime as dialect
from mcp_skills_server.runtime.scripts.outcome import Outcome
from mcp_skills_server.runtime.scripts.processes import Progress
from mcp_skills_server.runtime.scripts.runner import RunRequest
from mcp_skills_server.runtime.session import Session

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
PDF_SKILL_MD = skill_md(
    "pdf-processing",
    "allowed-tools: Read",
    "license: MIT",
    body="Read [the guide](references/guide.md).",
)
SKILL_FILES = {
    "pdf-processing/SKILL.md": PDF_SKILL_MD,
    "pdf-processing/references/guide.md": "Fill in the form.\nThen sign it.\n",
    "pdf-processing/references/my notes.md": "Mind the gap.\n",
    "pdf-processing/scripts/extract.py": "print('extracted')\n",
    "pdf-processing/assets/icon.png": PNG,
    "pdf-processing/assets/form.bin": b"\0\1\2",
    "data-analysis/SKILL.md": skill_md("data-analysis", body="Look at the data first."),
    "data-analysis/references/guide.md": "Draw it.\n",
    "data-analysis/scripts/plot.sh": "echo plotted\n",
    "acme/billing/refunds/SKILL.md": skill_md("refunds", body="Ask for the receipt."),
}


async def call_tool(session: Session, tool: str, /, **arguments: Any) -> Any:
    """Return the result of a successful call, after validation against the output schema."""
    result: Any = await session.call(tool, arguments)
    assert "isError" not in result, result["content"][0]["text"]
    (definition,) = [each for each in session.tools() if each["name"] == dialect.canonical(tool)]
    if "outputSchema" in definition:
        schema: Any = definition["outputSchema"]
        Draft202012Validator(schema).validate(result["structuredContent"])
    return result


async def error_of(session: Session, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
    """Return the one-line message of a failed call, which has no structured content."""
    result: Any = await session.call(tool, arguments)
    assert result.keys() == {"content", "isError"}
    assert result["isError"] is True
    (block,) = result["content"]
    assert block["type"] == "text"
    assert len(block["text"].splitlines()) == 1
    return block["text"]


async def read_text(session: Session, path: str, **options: Any) -> str:
    """Return the text of a file that the read tool returns."""
    return text_of(await call_tool(session, "skills_read", path=path, **options))


def text_of(result: Any) -> str:
    return result["content"][0]["text"]


def active_names(result: Any) -> list[str]:
    return [each["name"] for each in result["structuredContent"]["active_skills"]]


def listed_names(result: Any) -> list[str]:
    return [each["name"] for each in result["structuredContent"]["skills"]]


class FakeScripts:
    """A script runner that returns each script's text as stdout; with `blocks`, after `release`."""

    def __init__(self, registry: Registry, *, blocks: bool = False) -> None:
        self._registry = registry
        self.started, self.release = anyio.Event(), anyio.Event()
        if not blocks:
            self.release.set()
        self.workspaces: list[Mock] = []
        self.runs: list[Any] = []
        """The arguments of `run`: skill, path, workspace and options."""
        self.attempts = 0
        self.close = Mock()

    async def ready(self) -> None:
        pass

    def workspace(self) -> Mock:
        self.workspaces.append(Mock())
        return self.workspaces[-1]

    async def run(self, request: RunRequest, workspace: Mock, progress: Progress | None) -> Outcome:
        assert request.skill is not None
        self.attempts += 1
        raw = self._registry.read(request.skill.files[request.path])
        self.runs.append(SimpleNamespace(request=request, workspace=workspace))
        self.started.set()
        await self.release.wait()
        if progress is not None:
            await progress(1.0)
        return Outcome(request.path, 0, raw.decode(), "", 1, False, False, False, "none")


def unexpected_call(*_: Any) -> Any:
    raise AssertionError("unexpected call")
