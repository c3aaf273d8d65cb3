"""Keeps a registry current: where changes are heard of, when a burst of them is over, and the thread that rescans."""

from mcp_skills_server.catalog.watch.watcher import Watcher

__all__ = ["Watcher"]
