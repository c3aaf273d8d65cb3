"""File watching that keeps a registry current: file events, debounce of bursts, and rescans."""

from mcp_skills_server.catalog.watch.watcher import Watcher

__all__ = ["Watcher"]
