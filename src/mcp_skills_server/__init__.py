"""Serves any folder of Agent Skills to every MCP host.

The public names, each loaded when it is first used. `Registry` reads folders of skills, `open_registry`
any kind of root, `Watcher` keeps folders current, `attach` gives an MCP server what a registry holds,
`Runtime` gives an agent loop of your own the same. Every error that they raise on purpose is a
`SkillsServerError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_skills_server.acp.skills import AcpSkills as AcpSkills
    from mcp_skills_server.catalog.reader import Body as Body
    from mcp_skills_server.catalog.registry import Registry as Registry
    from mcp_skills_server.catalog.roots import Limits as Limits
    from mcp_skills_server.catalog.roots import MirroredRoot as MirroredRoot
    from mcp_skills_server.catalog.views import View as View
    from mcp_skills_server.catalog.watch import Watcher as Watcher
    from mcp_skills_server.commands.opening import open_registry as open_registry
    from mcp_skills_server.dialects.runtime import ToolResult as ToolResult
    from mcp_skills_server.errors import NotServedError as NotServedError
    from mcp_skills_server.errors import RequestError as RequestError
    from mcp_skills_server.errors import SkillsServerError as SkillsServerError
    from mcp_skills_server.errors import StaleFileError as StaleFileError
    from mcp_skills_server.errors import UnreadableError as UnreadableError
    from mcp_skills_server.errors import UsageError as UsageError
    from mcp_skills_server.model import Changes as Changes
    from mcp_skills_server.model import Problem as Problem
    from mcp_skills_server.model import Reading as Reading
    from mcp_skills_server.model import Skill as Skill
    from mcp_skills_server.model import SkillFile as SkillFile
    from mcp_skills_server.model import Snapshot as Snapshot
    from mcp_skills_server.model import Standing as Standing
    from mcp_skills_server.runtime.runtime import Runtime as Runtime
    from mcp_skills_server.runtime.runtime import RuntimeSettings as RuntimeSettings
    from mcp_skills_server.runtime.scripts.settings import ScriptSettings as ScriptSettings
    from mcp_skills_server.runtime.session import Session as Session
    from mcp_skills_server.server.attach import Attachment as Attachment
    from mcp_skills_server.server.attach import attach as attach
    from mcp_skills_server.server.requests import Settings as Settings

__version__ = "0.1.0"

_HOMES = {
    "AcpSkills": "acp.skills",
    "Attachment": "server.attach",
    "Body": "catalog.reader",
    "Changes": "model",
    "Limits": "catalog.roots",
    "MirroredRoot": "catalog.roots",
    "NotServedError": "errors",
    "Problem": "model",
    "Reading": "model",
    "Registry": "catalog.registry",
    "RequestError": "errors",
    "Runtime": "runtime.runtime",
    "RuntimeSettings": "runtime.runtime",
    "ScriptSettings": "runtime.scripts.settings",
    "Session": "runtime.session",
    "Settings": "server.requests",
    "Skill": "model",
    "SkillFile": "model",
    "SkillsServerError": "errors",
    "Snapshot": "model",
    "StaleFileError": "errors",
    "UnreadableError": "errors",
    "Standing": "model",
    "ToolResult": "dialects.runtime",
    "UsageError": "errors",
    "View": "catalog.views",
    "Watcher": "catalog.watch",
    "attach": "server.attach",
    "open_registry": "commands.opening",
}

__all__ = [
    "AcpSkills",
    "Attachment",
    "Body",
    "Changes",
    "Limits",
    "MirroredRoot",
    "NotServedError",
    "Problem",
    "Reading",
    "Registry",
    "RequestError",
    "Runtime",
    "RuntimeSettings",
    "ScriptSettings",
    "Session",
    "Settings",
    "Skill",
    "SkillFile",
    "SkillsServerError",
    "Snapshot",
    "StaleFileError",
    "Standing",
    "ToolResult",
    "UnreadableError",
    "UsageError",
    "View",
    "Watcher",
    "__version__",
    "attach",
    "open_registry",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
