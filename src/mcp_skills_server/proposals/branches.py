"""Proposals as git branches of a root's working copy: one branch and one commit each.

The working tree and its index are untouched, and nothing is pushed: the operator opens the pull
request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mcp_skills_server.errors import RequestError, UsageError, listed
from mcp_skills_server.proposals.store import Proposal
from mcp_skills_server.sources.git.history import working_copy
from mcp_skills_server.sources.git.program import Git, GitFailedError
from mcp_skills_server.sources.source import UnreachableError

STORE_FOLDER: Final = "mcp-skills-proposals"
"""The folder of the proposal store in `.git`."""
_PREFIX: Final = "refs/heads/proposals/"
_SECONDS: Final = 20.0


class Branches:
    """The branches `proposals/ID` in the repository of the first root that lies in one.

    UsageError says that no root lies in a working copy that this user owns.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        top = next(filter(None, (working_copy(Path(root)) for root in roots)), None)
        if top is None:
            fault = f"{listed(roots)} is not in a git working copy that you own"
            raise UsageError(f"--proposals git: {fault}; name a folder")
        self._top = top
        self.folder = top / ".git" / STORE_FOLDER
        self._git = Git(top / ".git", url="", protocol="none")

    def add(self, proposal: Proposal, files: Mapping[str, bytes]) -> None:
        """Commit a proposal to its own branch, on top of HEAD; raise RequestError if git fails."""
        folder = Path(proposal.place)
        if not folder.is_relative_to(self._top):
            raise RequestError(f"{proposal.name} is not in a git working copy; tell the user")
        inside = folder.relative_to(self._top).as_posix()
        trailers = f"Proposal: {proposal.id}\nBy: {proposal.principal}"
        message = f"Propose {proposal.name}\n\n{proposal.reason}\n\n{trailers}\n".encode()
        try:
            head = self._git.run("rev-parse", "--verify", "HEAD^{commit}", seconds=_SECONDS)
            stream = [
                f"commit {_PREFIX}{proposal.id}\n".encode(),
                f"committer mcp-skills-server <> {int(time.time())} +0000\n".encode(),
                b"data %d\n%b" % (len(message), message),
                b"from %b\n" % head.strip(),
                *(f"D {inside}/{path}\n".encode() for path in proposal.removed),
            ]
            for path, raw in files.items():
                stream.append(f"M 100644 inline {inside}/{path}\n".encode())
                stream.append(b"data %d\n%b\n" % (len(raw), raw))
            given = b"".join([*stream, b"done\n"])
            self._git.run("fast-import", "--quiet", "--done", seconds=_SECONDS, given=given)
        except (GitFailedError, UnreachableError) as error:
            fault = f"git cannot keep the proposal ({str(error).strip()[:200]}); tell the user"
            raise RequestError(fault) from None
