"""MCP server for folders of Agent Skills, usable as a library and from the command line.

The public names below are imported on first use. `Registry` reads folders of skills,
`open_registry` any kind of root, and `Watcher` keeps folders current. `attach` adds a registry's
skills to an MCP server, `Runtime` to an agent loop of your own. Every intentional error is a
`SkillsServerError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_skills_server.acp.skills import AcpSkills
    from mcp_skills_server.catalog.reader import Body
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.roots import Limits, MirroredRoot
    from mcp_skills_server.catalog.views import View
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.commands.opening import open_registry
    from mcp_skills_server.dialects.runtime import ToolResult
    from mcp_skills_server.errors import (
        NotServedError,
        RequestError,
        SkillsServerError,
        StaleFileError,
        UnreadableError,
        UsageError,
    )
    from mcp_skills_server.model import (
        Changes,
        Problem,
        Reading,
        Skill,
        SkillFile,
        Snapshot,
        Standing,
    )
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.runtime.scripts.settings import ScriptSettings
    from mcp_skills_server.runtime.session import Session
    from mcp_skills_server.runtime.settings import RuntimeSettings
    from mcp_skills_server.server.attach import Attachment, attach
    from mcp_skills_server.server.requests import Settings

__version__ = "0.1.0"

_HOMES = {
    "acp.skills": "AcpSkills",
    "catalog.reader": "Body",
    "catalog.registry": "Registry",
    "catalog.roots": "Limits MirroredRoot",
    "catalog.views": "View",
    "catalog.watch": "Watcher",
    "commands.opening": "open_registry",
    "dialects.runtime": "ToolResult",
    "errors": (
        "NotServedError RequestError SkillsServerError StaleFileError UnreadableError UsageError"
    ),
    "model": "Changes Problem Reading Skill SkillFile Snapshot Standing",
    "runtime.runtime": "Runtime",
    "runtime.scripts.settings": "ScriptSettings",
    "runtime.session": "Session",
    "runtime.settings": "RuntimeSettings",
    "server.attach": "Attachment attach",
    "server.requests": "Settings",
}
"""The public names by module, for lazy import."""

__all__ = [
    "AcpSkills", "Attachment", "Body", "Changes", "Limits", "MirroredRoot", "NotServedError",
    "Problem", "Reading", "Registry", "RequestError", "Runtime", "RuntimeSettings",
    "ScriptSettings", "Session", "Settings", "Skill", "SkillFile", "SkillsServerError", "Snapshot",
    "StaleFileError", "Standing", "ToolResult", "UnreadableError", "UsageError", "View", "Watcher",
    "__version__", "attach", "open_registry",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names.split():
            from importlib import import_module

            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
