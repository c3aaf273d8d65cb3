"""An agent loop that uses skills without MCP: an orchestrator around a model, as the Agent Skills Runtime asks for.

Every model call gets fresh instructions at the top (the rule, the available skills, the loaded ones) and the whole
history, to which is only ever appended. The model here is a script, so that the example runs without a key; put a call
of your model's API in its place. Run it with `python examples/agent_loop.py`: the script of a skill that it runs is in
a sandbox, which needs bubblewrap. `--no-sandbox` runs it without, with all rights of the user.
"""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_skills_server import Registry, Runtime, RuntimeSettings, ScriptSettings, SkillsServerError

HERE = Path(__file__).parent


@dataclass
class ToolCall:
    """A call that the model requests."""

    name: str
    arguments: dict[str, Any]


@dataclass
class ScriptedModel:
    """A scripted model: returns its next move and records its prompts."""

    moves: Iterator["ToolCall | str"]
    seen: list[str] = field(default_factory=list)

    async def __call__(self, instructions: str, tools: list[Any], messages: list[Any]) -> "ToolCall | str":
        del tools, messages  # which a real model is given too
        self.seen.append(instructions)
        return next(self.moves)


MOVES: list["ToolCall | str"] = [
    ToolCall("skills_search", {"query": "count the words of a text"}),
    ToolCall("skills_load", {"names": ["count-words"]}),
    ToolCall("skills_read", {"path": "references/sample.txt"}),
    ToolCall("skills_run_script", {"path": "scripts/count.py", "args": ["one two three"]}),
    ToolCall("skills_load", {"names": ["summarise-ticket"], "mode": "replace"}),
    "Three words. Next I summarise the ticket.",
]


async def converse(runtime: Runtime, model: ScriptedModel, request: str) -> list[dict[str, Any]]:
    """Run the loop until the model answers in words. Returns the history."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": request}]
    async with runtime.session() as session:
        while True:
            move = await model(await session.instructions(), session.tools(), messages)
            if isinstance(move, str):
                messages.append({"role": "assistant", "content": move})
                return messages
            messages.append({"role": "assistant", "tool": move.name, "arguments": move.arguments})
            result = await session.call(move.name, move.arguments)
            messages.append({"role": "tool", "tool": move.name, "result": result})


async def main(*, sandboxed: bool) -> None:
    """Show what happens."""
    registry = Registry([HERE / "skills", HERE / "more-skills"])
    scripts = ScriptSettings(timeout_s=10, sandbox="required" if sandboxed else "off")
    model = ScriptedModel(iter(MOVES))
    async with Runtime(registry, RuntimeSettings(absolute_paths=True), scripts=scripts) as runtime:
        for message in await converse(runtime, model, "How many words are in this text?"):
            if message["role"] == "tool":
                print(f"  -> {message['result']['content'][0]['text'].splitlines()[0]}")
            elif "tool" in message:
                print(f"{message['role']} calls {message['tool']} {message['arguments']}")
            else:
                print(f"{message['role']}: {message['content']}")
    print("\nAt the top of the last call:\n")
    print(model.seen[-1])


if __name__ == "__main__":
    try:
        asyncio.run(main(sandboxed="--no-sandbox" not in sys.argv))
    except SkillsServerError as error:  # no sandbox here, or root without one
        sys.exit(f"agent_loop.py: {error}")
