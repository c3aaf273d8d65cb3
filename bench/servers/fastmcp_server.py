"""A FastMCP server with its own provider of skills, as its documentation starts one.

Run by the python of an environment that has FastMCP. Arguments: the folder, and a port for HTTP.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fastmcp import FastMCP

try:
    from fastmcp.skills.provider import SkillsDirectoryProvider

    options: dict[str, Any] = {}
except ImportError:  # before 4.2 it was in another module, and the methods of SEP-2640 were an option
    from fastmcp.server.providers.skills import SkillsDirectoryProvider
    from fastmcp.skills.extension import SkillsExtension

    options = {"experimental_skills": True}

provider = SkillsDirectoryProvider(Path(sys.argv[1]), **options)
server = FastMCP("skills", providers=[provider])
if options:
    server.add_extension(SkillsExtension(providers=[provider]))

if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), path="/mcp", show_banner=False)
    else:
        server.run(transport="stdio", show_banner=False)
