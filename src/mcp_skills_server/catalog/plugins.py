"""Plugin layouts: a root that is a plugin or marketplace, and the namespace of its skills.

Three manifests are read: `plugin.json` of an Agent Plugin 1, `.claude-plugin/plugin.json` of a
Claude Code plugin, and `.claude-plugin/marketplace.json`, which lists plugins. A marketplace's
plugins outside of the root are reported, never fetched.
"""

from __future__ import annotations

import os
import posixpath
from contextlib import suppress
from typing import Final

from mcp_skills_server.catalog.disk import MISSING_ERRORS
from mcp_skills_server.codes import problem
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import quoted
from mcp_skills_server.format import plugins
from mcp_skills_server.format.fields import items, mapping
from mcp_skills_server.format.plugins import Layout
from mcp_skills_server.model import SKILL_MD, Json, Problem

_MAX_BYTES: Final = 1 << 20
_AGENT_PLUGIN: Final = "plugin.json"
_AGENT_PLUGIN_SCHEMA: Final = "https://agent-plugins.org/schemas/1."
_CLAUDE_PLUGIN: Final = ".claude-plugin/plugin.json"
_MARKETPLACE: Final = ".claude-plugin/marketplace.json"
_MAX_PROBLEMS: Final = 100
"""Problems of manifests that are reported of one root."""


def read_layout(root: str) -> tuple[Layout | None, list[Problem]]:
    """Return the plugin layout of a folder, and the problems of its manifests by relative path.

    The layout is None for a folder that is neither plugin nor marketplace, or has no manifest that
    can be used.
    """
    reader = _Reader(os.path.realpath(root))
    market = reader.manifest(_MARKETPLACE)
    entries, is_market = market.get("plugins"), False
    if isinstance(entries, list):
        reader.layout.manifest, is_market = "marketplace.json", True
    elif market:
        reader.report(_MARKETPLACE, "plugin-manifest", "'plugins' is not a list", market)
    sources = [reader.add_entry(entry, market) for entry in items(entries)]
    if "" not in sources:  # otherwise the marketplace lists the plugin that is the root
        path, skills = _AGENT_PLUGIN, None  # this format has one fixed folder
        own = reader.manifest(path, _AGENT_PLUGIN_SCHEMA)
        if not str(own.get("$schema")).startswith(_AGENT_PLUGIN_SCHEMA):
            path = _CLAUDE_PLUGIN
            own = reader.manifest(path)
            skills = own.get("skills")
        name = reader.name(path, own) if own else None
        if name is not None:
            reader.add(name, "", reader.folders(path, "", skills))
    problems = reader.problems[:_MAX_PROBLEMS]
    if is_market or reader.layout.folders:
        return reader.layout, problems
    return None, problems


class _Reader:
    """Reader of the manifests of a root, given by its real path."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._manifests: dict[str, dict[str, Json]] = {}
        self.layout = Layout()
        self.problems: list[Problem] = []

    def report(
        self, path: str, code: str, message: str, value: Json, hint: str | None = None
    ) -> None:
        """Add a problem of a value in the manifest at `path`."""
        reported = problem(code, message, plugins.line_of(value), hint)
        self.problems.append(reported.at(path, ""))

    def manifest(self, path: str, marker: str = "") -> dict[str, Json]:
        """Return a manifest, or {} if it is missing, cannot be used, or lacks the marker."""
        if path not in self._manifests:
            self._manifests[path] = {}
            try:
                raw, _ = read_regular(os.path.join(self._root, path), _MAX_BYTES)
                if marker.encode() in raw:
                    self._manifests[path], problems = plugins.parse(raw)
                    self.problems += [problem.at(path, "") for problem in problems]
            except OSError as error:
                if error.errno not in MISSING_ERRORS:
                    text = f"it cannot be read ({error.strerror})"
                    self.report(path, "plugin-manifest", text, None)
        return self._manifests[path]

    def add_entry(self, entry: Json, market: dict[str, Json]) -> str | None:
        """Add a plugin of the marketplace and return its folder; report one that lies elsewhere."""
        fields, base = mapping(entry), mapping(market.get("metadata")).get("pluginRoot")
        name, source = self.name(_MARKETPLACE, fields), fields.get("source")
        if name is None:
            return None
        if not isinstance(source, str):
            address = plugins.elsewhere(source)
            text = f"the plugin {quoted(name)} lies elsewhere ({address}), and is not fetched"
            self.report(_MARKETPLACE, "plugin-elsewhere", text, source or fields)
            return None
        location = source
        if isinstance(base, str) and "/" not in location:
            location = posixpath.join(base, location)  # a bare name is relative to pluginRoot
        plugin = self._folder(_MARKETPLACE, location, source)
        if plugin is None:
            return None
        folders = self.folders(_MARKETPLACE, plugin, fields.get("skills"))
        # As in Claude Code: an entry for the root that lists folders in it has only these.
        is_complete = not plugin and any(folders)
        if not is_complete:
            path = posixpath.join(plugin, _CLAUDE_PLUGIN)
            folders += self.folders(path, plugin, self.manifest(path).get("skills"))
        self.add(name, plugin, folders, is_complete=is_complete)
        return plugin

    def name(self, path: str, fields: dict[str, Json]) -> str | None:
        """Return the name of a plugin, or None if no skill can be served under it."""
        name, fault = plugins.name_of(fields)
        if fault is not None:
            self.problems.append(fault.at(path, ""))
        return name

    def folders(self, path: str, plugin: str, skills: Json) -> list[str]:
        """Return the folders that `skills`, a text or a list in a manifest, names in a plugin."""
        if skills is None:
            return []
        listed = skills if isinstance(skills, list) else [skills]
        folders = [
            self._folder(path, posixpath.join(plugin, str(entry)), entry) for entry in listed
        ]
        return [folder for folder in folders if folder is not None]

    def add(self, name: str, plugin: str, folders: list[str], *, is_complete: bool = False) -> None:
        """Add folders of a plugin, and `skills` unless the others are complete."""
        if not is_complete:
            skills = posixpath.join(plugin, "skills")
            has_skills = folders or os.path.lexists(os.path.join(self._root, skills))
            if not has_skills and os.path.lexists(os.path.join(self._root, plugin, SKILL_MD)):
                skills = plugin  # as in Claude Code: such a plugin is one skill
            # one that is not there is followed, should it appear; no scan leaves the root
            folders = [*folders, self._inside(skills) or skills]
        for folder in folders:
            owner = self.layout.folders.setdefault(folder, name)
            if owner == name and folder == plugin:
                self.layout.plugins.add(folder)

    def _folder(self, path: str, location: str, at: Json) -> str | None:
        """Resolve a location of a manifest, that of `at`, to a folder in the root, or report it."""
        folder, hint = self._inside(location), None
        if folder is not None:
            return folder
        fault = "names no folder"
        if os.path.isdir(os.path.join(self._root, location)):
            fault = "leads out of the root, and is not served"
        elif posixpath.basename(location) == SKILL_MD:
            folder = self._inside(posixpath.dirname(location))
            fault, hint = "names a file", "name its folder, since hosts look for one"
        self.report(path, "plugin-path", f"{quoted(str(at))} {fault}", at, hint)
        return folder

    def _inside(self, location: str) -> str | None:
        """Return the real root-relative path of a folder in the root, or None for another path."""
        with suppress(OSError, ValueError):
            path = os.path.realpath(os.path.join(self._root, location))
            relative = os.path.relpath(path, self._root).replace(os.sep, "/")
            if os.path.isdir(path) and relative.partition("/")[0] != "..":
                return "" if relative == "." else relative
        return None
