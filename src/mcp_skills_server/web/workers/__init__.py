"""Several processes behind one listening socket: a supervisor that follows the folders, and workers that answer."""

from typing import Final

VARIABLE: Final = "MCP_SKILLS_WORKER"
"""In the environment of a worker, the descriptor of its channel to the supervisor."""
