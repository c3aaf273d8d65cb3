"""Why something that is shared cannot be had. The messages are for clients: what is wrong here is in the log."""

from __future__ import annotations

from mcp_skills_server.errors import RequestError


class SharedError(RequestError):
    """What the replicas share cannot be used now."""


class ChangedMeanwhileError(SharedError):
    """Another replica has written the same record since it was read."""


class FullError(SharedError):
    """There is no place for one more record, and the owner has none to give up."""
