"""What the tests of this package share: the Skills Protocol in process, on a folder."""

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
from wire import ROOT, write_skill

ACTIONS = ROOT / "fixtures" / "actions"


class CallFailedError(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class Desk:
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
        self.rpc = Rpc(self.methods)

    async def send(self, raw: bytes | Any) -> Any:
        seen = await self.rpc.answer(raw if isinstance(raw, bytes) else json.dumps(raw).encode())
        return None if seen is None else json.loads(seen)

    async def call(self, method: str, **params: Any) -> Any:
        """The result of a call.

        Raises:
            CallFailedError: there is none.
        """
        seen = await self.send({"jsonrpc": "2.0", "id": "x", "method": method, "params": params})
        assert seen["jsonrpc"] == "2.0" and seen["id"] == "x" and len(seen) == 3
        if "error" in seen:
            raise CallFailedError(seen["error"])
        return seen["result"]

    async def names(self, **params: Any) -> list[str]:
        return [f"{each['name']} {each['version']}" for each in (await self.call("list_skills", **params))["skills"]]


def write(directory: Path, toml: str | bytes | None = None, *, name: str | None = None, **files: str) -> Path:
    """A skill with a skill.toml; further arguments are files, `code__main_py="..."` for code/main.py."""
    write_skill(directory, name=name, description="Does a thing.", **files)
    if toml is not None:
        (directory / "skill.toml").write_bytes(toml if isinstance(toml, bytes) else toml.encode())
    return directory


def toml(name: str, version: str = "1.0.0", *, runtime: str = "", permissions: str = "") -> str:
    """A skill.toml; with `runtime` that of an action."""
    kind = "action" if runtime else "instruction"
    text = f'name = "{name}"\nversion = "{version}"\ndescription = "Does a thing."\nkind = "{kind}"\n'
    text += f"\n[runtime]\n{runtime}\n" if runtime else ""
    return text + (f"\n[permissions]\n{permissions}\n" if permissions else "")
