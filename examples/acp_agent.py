"""An agent for editors that speak ACP, written with its Python SDK, that tells which skills it has and can load them.

Start it from an editor as `python examples/acp_agent.py [FOLDER...]`; it needs `pip install '.[acp]'`.
There is no model in it: the text of a prompt is taken for the name of a skill, whose instructions are the answer.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

try:
    import acp
    from acp.schema import AgentCapabilities, AvailableCommand
except ModuleNotFoundError:
    sys.exit("acp_agent.py: the SDK of ACP is missing; pip install '.[acp]', or agent-client-protocol")

from mcp_skills_server import AcpSkills, Runtime

HERE = Path(__file__).parent
COMMANDS = [AvailableCommand(name="plan", description="Makes a plan.")]


class SkilledAgent:
    """An agent with skills; what is about them is marked."""

    def __init__(self, skills: AcpSkills, runtime: Runtime) -> None:
        self.skills = skills
        self.runtime = runtime
        self.sessions: dict[str, Any] = {}

    def on_connect(self, conn: Any) -> None:
        self.connection = conn

    async def initialize(self, protocol_version: int, client_capabilities: Any = None, **_: Any) -> Any:
        self.skills.initialized(client_capabilities)  # which forms the client takes
        capabilities = AgentCapabilities(field_meta=self.skills.capability())  # which forms we have
        version = min(protocol_version, acp.PROTOCOL_VERSION)
        return acp.InitializeResponse(protocol_version=version, agent_capabilities=capabilities)

    async def new_session(self, **_: Any) -> acp.NewSessionResponse:
        session_id = f"session-{len(self.sessions) + 1}"
        self.sessions[session_id] = self.runtime.session()
        self.skills.announce(self.connection, session_id, COMMANDS)  # goes out behind the answer, and on each change
        return acp.NewSessionResponse(session_id=session_id)

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> acp.PromptResponse:
        session = self.sessions[session_id]
        await session.call("skills_load", {"names": [prompt[0].text], "mode": "replace"})
        shown = await session.instructions()  # what a model would have at the top of its next call
        await self.connection.session_update(session_id, acp.update_agent_message_text(shown))
        return acp.PromptResponse(stop_reason="end_turn")

    async def close_session(self, session_id: str, **_: Any) -> None:
        self.skills.forget(session_id)
        await self.sessions.pop(session_id).aclose()


async def main(folders: list[str]) -> None:
    """Speak ACP on stdin and stdout until the editor closes."""
    with AcpSkills(folders or [str(HERE / "skills")]) as skills:
        async with Runtime(skills.registry) as runtime:
            await acp.run_agent(SkilledAgent(skills, runtime))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
