"""A folder of skills, and what the tests of sessions ask and expect."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from anyio import to_thread
from jsonschema import Draft202012Validator

from catalog.forest import DEADLINE, skill_md
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects import runtime as told
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.scripts.outcome import Outcome
from mcp_skills_server.runtime.session import Session

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
PDF = skill_md("pdf-processing", "allowed-tools: Read", "license: MIT", body="Read [the guide](references/guide.md).")
WORKSHOP = {
    "pdf-processing/SKILL.md": PDF,
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


async def ask(session: Session, tool: str, /, **arguments: Any) -> Any:
    """What a tool answers when it could do what was asked; its structure keeps the tool's output schema."""
    result: Any = await session.call(tool, arguments)
    assert "isError" not in result, result["content"][0]["text"]
    (definition,) = [each for each in session.tools() if each["name"] == told.canonical(tool)]
    if "outputSchema" in definition:
        schema: Any = definition["outputSchema"]
        Draft202012Validator(schema).validate(result["structuredContent"])
    return result


async def refused(session: Session, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
    """What a tool says when the model must do something else: one line, and no structure beside it."""
    result: Any = await session.call(tool, arguments)
    assert result.keys() == {"content", "isError"}
    assert result["isError"] is True
    (block,) = result["content"]
    assert block["type"] == "text"
    assert len(block["text"].splitlines()) == 1
    return block["text"]


def text(result: Any) -> str:
    return result["content"][0]["text"]


def active(result: Any) -> list[str]:
    return [each["name"] for each in result["structuredContent"]["active_skills"]]


def listed(result: Any) -> list[str]:
    return [each["name"] for each in result["structuredContent"]["skills"]]


class Held:
    """Holds back the first reading of a body, in its thread, until it is let go; later ones go ahead at once."""

    def __init__(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go, self._reached = threading.Event(), threading.Event()
        self._body = registry.body
        monkeypatch.setattr(registry, "body", self._held)

    def _held(self, skill: Skill) -> Any:
        if not self._reached.is_set():
            self._reached.set()
            assert self._go.wait(DEADLINE)
        return self._body(skill)

    async def during(self, first: Callable[[], Awaitable[Any]], second: Callable[[], Awaitable[Any]]) -> list[Any]:
        """What both answer, the second asked while the first is held back."""
        answers: list[Any] = []

        async def keep(work: Callable[[], Awaitable[Any]]) -> None:
            answers.append(await work())

        try:
            with anyio.fail_after(DEADLINE):
                async with anyio.create_task_group() as group:
                    group.start_soon(keep, first)
                    assert await to_thread.run_sync(self._reached.wait, DEADLINE)
                    group.start_soon(keep, second)
                    await anyio.wait_all_tasks_blocked()
                    self._go.set()
        finally:
            self._go.set()
        return answers


class Scripts:
    """Stands for what runs scripts: reads them as the real one does, remembers what it was asked, and waits for `go`.

    Nothing runs: the script is its own output.
    """

    def __init__(self, registry: Registry, *, waits: bool = False) -> None:
        self._registry = registry
        self.begun, self.go = anyio.Event(), anyio.Event()
        if not waits:
            self.go.set()
        self.made: list[Mock] = []
        self.asked: list[tuple[Skill, str, Mock, dict[str, Any]]] = []
        self.tries = 0
        self.close = Mock()

    async def ready(self) -> None:
        pass

    def workspace(self) -> Mock:
        self.made.append(Mock())
        return self.made[-1]

    async def run(self, skill: Skill, path: str, workspace: Mock, **more: Any) -> Outcome:
        self.tries += 1
        raw = self._registry.read(skill.files[path])
        self.asked.append((skill, path, workspace, more))
        self.begun.set()
        await self.go.wait()
        if more["progress"] is not None:
            await more["progress"](1.0)
        return Outcome(path, 0, raw.decode(), "", 1, False, False, False, "none")


def long_md(name: str, word: str = "Do it.") -> str:
    """A SKILL.md that is parsed off the event loop."""
    return skill_md(name, body=f"{word}\n" + "And more of the same.\n" * 1000)


def forbidden(*_: Any) -> Any:
    raise AssertionError("this must not be done")
