"""A folder of the operator's own: it is served as it is, and the registry watches it."""

from __future__ import annotations

from pathlib import Path

from mcp_skills_server.sources.settings import SourceSettings
from mcp_skills_server.sources.source import Pace, Revision, Tree
from mcp_skills_server.sources.store import Store


class Directory:
    """One folder.

    Args:
        given: its path.
    """

    trusted: bool = True
    remote: bool = False
    pace: Pace | None = None
    refresh_s: float | None = None

    def __init__(self, given: str, settings: SourceSettings) -> None:  # noqa: ARG002, as of every kind
        self.origin = given
        self._path = Path(given)
        self.place: Path | None = self._path

    async def resolve(self, *, anew: bool = False) -> Revision:  # noqa: ARG002
        """Always the same: what changes in the folder is the registry's matter."""
        return Revision("", 0.0)

    async def materialise(self, revision: Revision, store: Store) -> Tree:  # noqa: ARG002
        """The folder itself."""
        return Tree(self._path)
