"""Keeps a registry current: sources of file events, the end of a burst of them, and the thread that
rescans."""

from mcp_skills_server.catalog.watch.watcher import Watcher

__all__ = ["Watcher"]
