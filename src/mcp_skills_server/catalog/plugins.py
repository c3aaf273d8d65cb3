"""Plugin layouts: a root that is a plugin or marketplace, and the namespace of its skills.

Three manifests are read: `plugin.json` of an Agent Plugin 1, `.claude-plugin/plugin.json` of a
Claude Code plugin, and `.claude-plugin/marketplace.json`, which lists plugins. A marketplace's
plugins outside of the root are reported, never fetched.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from mcp_skills_server.catalog.path_map import above
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError, quoted
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import Json
from mcp_skills_server.model.decoding import load_json

PLUGIN_NAME: Final = re.compile(r"(?!.*(?:--|\.\.))[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?")
_AGENT_PLUGIN: Final = "plugin.json"
_AGENT_PLUGIN_SCHEMA: Final = "https://agent-plugins.org/schemas/1."
_CLAUDE_PLUGIN: Final = ".claude-plugin/plugin.json"
_MARKETPLACE: Final = ".claude-plugin/marketplace.json"
_MOST_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Layout:
    """Layout of the plugins of a root.

    Attributes:
        folders: plugin name by folder; a folder holds skills directly below it or is a skill, "" is
            the root itself. A folder of two plugins belongs to the first.
        left_out: the reason for each plugin that is not served, by its quoted name.
    """

    folders: dict[str, str] = field(default_factory=dict[str, str])
    left_out: dict[str, str] = field(default_factory=dict[str, str])

    def namespace(self, location: str) -> str | None:
        """Return the name of the plugin that has its skill at a root-relative path, or None."""
        if location in self.folders:
            return self.folders[location]
        if not location:
            return None
        return self.folders.get(location.rpartition("/")[0])

    def is_too_deep(self, location: str) -> bool:
        """Tell whether a path lies below a plugin's skills folder, but not directly below it."""
        return any(up in self.folders for up in above(location) if up not in {"", location})

    def add(self, name: object, plugin: str, *given: object, default: bool) -> None:
        """Add the folders of a plugin, by `default` also `skills`; UsageError adds none of them."""
        if not isinstance(name, str) or not PLUGIN_NAME.fullmatch(name):
            remedy = "write 1 to 64 lowercase letters, digits, '-' and '.'"
            raise UsageError(f"its name breaks the format; {remedy}")
        listed: list[object] = []
        for skills in given:
            if isinstance(skills, str):
                listed.append(skills)
            elif isinstance(skills, list):
                listed += cast("list[object]", skills)
        locations = [_inside(plugin, str(each)) for each in listed]
        if default:
            locations.append(posixpath.join(plugin, "skills"))
        for location in locations:
            self.folders.setdefault(location, name)


def read_layout(root: str) -> Layout | None:
    """Return the plugin layout of a folder, or None if it is neither a plugin nor a marketplace.

    Raises:
        UsageError: the name or a path of the plugin is malformed.
    """
    market = _manifest(root, _MARKETPLACE)
    if market is not None and isinstance(market.get("plugins"), list):
        return _marketplace(root, market)
    layout, manifest = Layout(), _manifest(root, _AGENT_PLUGIN)
    location = _AGENT_PLUGIN
    if manifest is not None and str(manifest.get("$schema")).startswith(_AGENT_PLUGIN_SCHEMA):
        skills = None  # this format has one fixed folder
    else:
        location, manifest = _CLAUDE_PLUGIN, _manifest(root, _CLAUDE_PLUGIN)
        if manifest is None:
            return None
        skills = manifest.get("skills")
    try:
        layout.add(manifest.get("name"), "", skills, default=True)
    except UsageError as error:
        raise UsageError(f"{os.path.join(root, location)}: {error}") from None
    return layout


def _marketplace(root: str, market: Mapping[str, Any]) -> Layout:
    layout, base = Layout(), mapping(market.get("metadata")).get("pluginRoot")
    for fields in map(mapping, market["plugins"]):
        name, source, skills = fields.get("name"), fields.get("source"), fields.get("skills")
        try:
            if not isinstance(source, str):
                raise UsageError(f"it lies elsewhere ({_elsewhere(source)}), and is not fetched")
            if isinstance(base, str) and "/" not in source:
                source = posixpath.join(base, source)  # a bare name is relative to pluginRoot
            plugin = _inside("", source)
            manifest = _manifest(os.path.join(root, plugin), _CLAUDE_PLUGIN) or {}
            # such an entry is complete; otherwise the plugin's own manifest and folder count, too
            is_whole = fields.get("strict") is False and bool(skills)
            own = None if is_whole else manifest.get("skills")
            layout.add(name, plugin, skills, own, default=not is_whole)
        except UsageError as error:
            layout.left_out[quoted(str(name))] = str(error)
    return layout


def _elsewhere(source: Json) -> str:
    fields = mapping(source)
    said = [fields[key] for key in ("source", "repo", "url", "package") if key in fields]
    return " ".join(quoted(str(each)) for each in said) or "?"


def _inside(plugin: str, given: str) -> str:
    """Resolve a path given by a plugin to a root-relative path, "" for the root itself."""
    location = posixpath.normpath(posixpath.join(plugin, given))
    if location == ".." or location.startswith(("../", "/")) or "\\" in location:
        raise UsageError(f"{quoted(given)} leads out of the folder, and is not served")
    return "" if location == "." else location


def _manifest(folder: str, name: str) -> dict[str, Any] | None:
    try:
        raw, _ = read_regular(os.path.join(folder, *name.split("/")), _MOST_BYTES)
        return mapping(load_json(raw)) or None
    except (OSError, ValueError):
        return None
