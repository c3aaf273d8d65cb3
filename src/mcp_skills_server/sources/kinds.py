"""Table of the kinds of sources, in the order in which they are tried."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from mcp_skills_server.dialects.wellknown import is_site
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.uris import redact
from mcp_skills_server.sources.addresses import shown
from mcp_skills_server.sources.archive import Archive, is_archive_file
from mcp_skills_server.sources.git.address import is_git
from mcp_skills_server.sources.oci.reference import is_oci, rejoined
from mcp_skills_server.sources.source import Source, SourceSettings


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of source. `open` opens one from the text of a root; a folder is served in place."""

    name: str
    matches: Callable[[str], bool]
    open: Callable[[str, SourceSettings], Source] | None
    is_path: bool = False  # the text is a path, which may be relative to the working directory
    is_polled: bool = False  # the operator sets the polling interval, since no cache header does
    keeps_history: bool = False  # it can fetch revisions other than its newest


def _loaded(module: str, name: str) -> Callable[[str, SourceSettings], Source]:
    """Return an opener that imports its module on first use, because the clients load slowly."""

    def load(given: str, settings: SourceSettings) -> Source:
        return getattr(import_module(module, __package__), name)(given, settings)

    return load


KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        "MCP server", lambda it: it.startswith("mcp+"), _loaded(".mcp", "McpServer"), is_polled=True
    ),
    Kind("site", is_site, _loaded(".site", "Site")),
    Kind("oci", is_oci, _loaded(".oci.source", "Oci"), is_polled=True, keeps_history=True),
    Kind("git", is_git, _loaded(".git.source", "GitFolder"), is_polled=True, keeps_history=True),
    Kind("archive", is_archive_file, Archive, is_path=True),
    Kind("folder", lambda _: True, None, is_path=True),
)


COMMAND: Final = "mcp+stdio:"
"""Prefix of a root that is a command to start."""
_SSH: Final = re.compile(r"(?:ssh://([^/]+)/|([\w.-]+@[\w.-]+):)(.+)")
"""An SSH address, as a URL or in scp syntax."""


def kind_of(given: str, kinds: Sequence[Kind] = KINDS) -> Kind:
    """Return the kind of source that a text names."""
    return next(kind for kind in kinds if kind.matches(given))


def open_source(
    given: str, settings: SourceSettings, kinds: Sequence[Kind] = KINDS
) -> Source | None:
    """Open the source that a text names, or raise UsageError; None for an operator's own folder."""
    kind = kind_of(given, kinds)
    if given.startswith(COMMAND):
        # A shell's `*` makes a word of a file's name, which its author chose.
        if os.path.lexists(given):
            raise UsageError(f"{COMMAND} a file here has the name of this command; rename it")
        if given not in settings.fetch.trust.commands:
            fault = "no command that a lock file or a record names is started"
            raise UsageError(f"{COMMAND} {fault}; give it on the command line, or in --config FILE")
    plain = redact(given)
    if kind.is_path and not os.path.exists(given) and (match := _SSH.fullmatch(plain)):
        address = f"git+ssh://{match[1] or match[2]}/{match[3]}"
        raise UsageError(f"{plain}: this is an address of git; write {address}")
    if kind.name == "site" and given.rstrip("/").endswith(".git"):
        raise UsageError(f"{shown(given)}: this is an address of git; write git+{shown(given)}")
    return None if kind.open is None else kind.open(given, settings)


def split(texts: str) -> list[str]:
    """Split a list of roots at `os.pathsep`, but not in `https://host:8443` or an oci:// tag."""
    if redact(texts) != texts:  # the colon of a password would split it, and errors show the parts
        raise UsageError("a root is no place for a user or a password; leave it out")
    # a colon that separates roots: not that of `mcp+stdio:`, of `https://` or of a port
    between = rf"(?<!mcp\+stdio){re.escape(os.pathsep)}(?!//|\d+(?:[/{os.pathsep}]|$))"
    parts = [part for part in re.split(between, texts) if part]
    return rejoined(parts) if os.pathsep == ":" else parts
