"""Package skills for hosts: as an MCP Bundle (manifest 0.4) or an Agent Plugin 1.0. Pure.

A bundle holds this server, which serves the skills in the bundle or folders that its user chooses;
uv installs what the server needs at the first start. A plugin has skills that the host reads
itself, and can start this server, too.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Final

from mcp_skills_server.errors import PROGRAM
from mcp_skills_server.format.archive import Files
from mcp_skills_server.model import Json

_AUTHOR: Final[Mapping[str, Json]] = {"name": "The mcp-skills-server developers"}
_PLUGIN_SCHEMAS: Final = "https://agent-plugins.org/schemas/1.0.0"
_START: Final = '''"""Serve the skills of this bundle, or of the folders given as arguments."""

import sys
from pathlib import Path

from mcp_skills_server.__main__ import main

skills = Path(__file__).parent.parent / "skills"
if skills.is_dir():
    sys.argv.insert(1, str(skills))
sys.argv.insert(1, "serve")
main()
'''
_FIRST_DAY: Final = (1980, 1, 1, 0, 0, 0)
"""Fixed time of every file in a bundle, for reproducible bytes."""
_FOLDERS: Final[Mapping[str, Json]] = {
    "type": "directory",
    "title": "Folders of skills",
    "description": "Each folder in it with a SKILL.md is a skill. Edits take effect at once.",
    "multiple": True,
    "required": True,
}


def bundle(
    skills: Mapping[str, Files], name: str, version: str, program: Files, needs: Sequence[str]
) -> bytes:
    """Return the bytes of an MCP Bundle of these skills; without any, its user chooses folders.

    `program` has the files of this package, and `needs` the requirements that uv installs.
    """
    words: list[Json] = ["run", "--directory", "${__dirname}", "src/server.py"]
    if not skills:
        words.append("${user_config.folders}")  # a host makes an argument of each
    manifest: dict[str, Json] = {
        "manifest_version": "0.4",
        "name": name,
        "display_name": f"Agent Skills: {name}" if skills else "Agent Skills",
        "version": version,
        "description": _description(skills) if skills else "Serves folders of Agent Skills.",
        "author": dict(_AUTHOR),
        "license": "Apache-2.0",
        "server": {
            "type": "uv",
            "entry_point": "src/server.py",
            "mcp_config": {"command": "uv", "args": words},
        },
        "compatibility": {
            "platforms": ["darwin", "win32", "linux"],
            "runtimes": {"python": ">=3.11"},
        },
        "tools_generated": True,
        "prompts_generated": True,
    }
    if not skills:
        manifest["user_config"] = {"folders": dict(_FOLDERS)}
    project = (
        f'[project]\nname = "{name}-bundle"\nversion = "{version}"\nrequires-python = ">=3.11"\n'
        f"dependencies = {json.dumps([*needs])}\n"
    )
    files = {
        "manifest.json": (_json(manifest), False),
        "pyproject.toml": (project.encode(), False),
        "src/server.py": (_START.encode(), False),
        **{f"src/mcp_skills_server/{path}": file for path, file in program.items()},
        **_below_skills(skills),
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, (raw, executable) in sorted(files.items()):
            member = zipfile.ZipInfo(path, _FIRST_DAY)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(member, raw)
    return made.getvalue()


def plugin(skills: Mapping[str, Files], name: str, version: str, *, server: bool) -> Files:
    """Return the files of an Agent Plugin of these skills; `server` adds an MCP server entry."""
    manifest: dict[str, Json] = {
        "$schema": f"{_PLUGIN_SCHEMAS}/plugin.schema.json",
        "name": name,
        "version": version,
        "description": _description(skills),
    }
    files = {"plugin.json": (_json(manifest), False), **_below_skills(skills)}
    if server:
        words: list[Json] = [PROGRAM, "serve", "${PLUGIN_ROOT}/skills"]
        entry: Json = {"type": "stdio", "command": "uvx", "args": words}
        mcp: dict[str, Json] = {
            "$schema": f"{_PLUGIN_SCHEMAS}/mcp.schema.json",
            "mcpServers": {"skills": entry},
        }
        files["mcp.json"] = (_json(mcp), False)
    return files


def _below_skills(skills: Mapping[str, Files]) -> dict[str, tuple[bytes, bool]]:
    return {
        f"skills/{name}/{path}": file
        for name, files in skills.items()
        for path, file in files.items()
    }


def _description(skills: Mapping[str, Files]) -> str:
    return f"{len(skills)} Agent Skill{'' if len(skills) == 1 else 's'}"


def _json(value: Mapping[str, Json]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
