"""Skills Protocol server in process, and skills with a skill.toml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.rpc.blobs import BlobStore
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from wire import ROOT, WireError, write_skill

ACTIONS = ROOT / "fixtures" / "actions"


class RpcServer:
    def __init__(
        self,
        *roots: Path | MirroredRoot,
        scripts: ScriptSettings | None = None,
        allow_code: bool = False,
        blobs: BlobStore | None = None,
    ) -> None:
        self.registry = Registry(roots)
        self.registry.load()
        self.runtime = Runtime(self.registry, scripts=scripts)
        self.methods = Methods(self.runtime, allow_code, blobs)
        self.server = Rpc(self.methods)

    async def send(self, raw: bytes | Any) -> Any:
        """Return the parsed answer to a message, None for no answer."""
        answer = await self.server.answer(raw if isinstance(raw, bytes) else json.dumps(raw).encode())
        return None if answer is None else json.loads(answer)

    async def call(self, method: str, **params: Any) -> Any:
        """Return the result of a call.

        Raises:
            WireError: the answer is an error.
        """
        answer = await self.send({"jsonrpc": "2.0", "id": "x", "method": method, "params": params})
        assert len(answer) == 3
        assert answer["jsonrpc"] == "2.0"
        assert answer["id"] == "x"
        if "error" in answer:
            raise WireError(answer["error"])
        return answer["result"]

    async def names(self, **params: Any) -> list[str]:
        return [f"{each['name']} {each['version']}" for each in (await self.call("list_skills", **params))["skills"]]


def write(directory: Path, toml: str | bytes | None = None, *, name: str | None = None, **files: str) -> Path:
    """Write a skill with a skill.toml; `code__main_py="..."` adds the file code/main.py."""
    write_skill(directory, name=name, description="Does a thing.", **files)
    if toml is not None:
        (directory / "skill.toml").write_bytes(toml if isinstance(toml, bytes) else toml.encode())
    return directory


def toml(name: str, version: str = "1.0.0", *, runtime: str = "", permissions: str = "") -> str:
    kind = "action" if runtime else "instruction"
    text = f'name = "{name}"\nversion = "{version}"\ndescription = "Does a thing."\nkind = "{kind}"\n'
    text += f"\n[runtime]\n{runtime}\n" if runtime else ""
    return text + (f"\n[permissions]\n{permissions}\n" if permissions else "")
