"""Provenance of fetched skills, from the record that `fetch` writes beside each.

A skill whose record cannot be read has an unknown origin; it never counts as local.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

from mcp_skills_server.catalog.path_map import join
from mcp_skills_server.durable import read_regular
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.format.ignored import STATE_DIR
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.model.decoding import load_json

UNKNOWN: Final = "an unknown site"
"""The origin of a skill whose record cannot be read."""
RECORDS: Final = f"{STATE_DIR}/skills"
"""The folder of records in a folder of fetched skills, `NAME.json` for each."""
_WELL_KNOWN: Final = "/.well-known/"
"""Separates the site from the rest of an index's address (RFC 8615)."""
_MAX_BYTES: Final = 16 << 20


class Origins:
    """Origins of a root's skills, cached for one scan. A whole root may have one `origin`."""

    def __init__(self, root_path: str, origin: str | None) -> None:
        self._root = root_path
        self._origin = origin
        # no cache of a bound method: it is a cycle, which `gc.freeze` may keep for ever
        self._has_records = cache(_has_records)
        self._read = cache(_read)

    def origin_of(self, directory: str) -> str | None:
        """Return the origin of a root-relative directory, or None if it was not fetched."""
        if self._origin is not None:
            return self._origin
        holder = self._holder(directory)
        if holder is not None:
            return _origin(self._record(holder.folder, holder.name))
        return self._of_root

    def is_copy(self, directory: str) -> bool:
        """Tell whether this skill, nested in a fetched one, was also fetched on its own beside it.

        A site offers a nested skill alone, too; it would otherwise be served twice.
        """
        holder = self._holder(directory)
        if holder is None or not holder.within:
            return False
        name = directory.rpartition("/")[2]
        outer, own = self._record(holder.folder, holder.name), self._record(holder.folder, name)
        if not outer or not own or not own.get("source") or own["source"] != outer.get("source"):
            return False
        files, inner = mapping(own.get("files")), f"{holder.within}/"
        nested = {
            path[len(inner) :]: digest
            for path, digest in mapping(outer.get("files")).items()
            if path.startswith(inner)
        }
        return (
            SKILL_MD in files
            and nested == files
            and os.path.isfile(os.path.join(holder.folder, name, SKILL_MD))
        )

    @cached_property
    def _of_root(self) -> str | None:
        """Return the origin of the fetched skill that the root is or lies in, or None."""
        folder = self._root
        while (above := os.path.dirname(folder)) != folder:
            record = self._record(above, os.path.basename(folder))
            if record is not None:
                return _origin(record)
            folder = above
        return None

    def _holder(self, directory: str) -> _Holder | None:
        """Return the innermost fetched skill (one with a record) that contains this directory."""
        if not directory:
            return None
        parent, _, name = directory.rpartition("/")
        folder = os.path.join(self._root, parent) if parent else self._root
        if self._record(folder, name) is not None:
            return _Holder(folder, name, "")
        outer = self._holder(parent)
        if outer is None:
            return None
        return outer._replace(within=join(outer.within, name))

    def _record(self, folder: str, name: str) -> dict[str, Any] | None:
        """Return the record of `name` in a folder: {} if unreadable, None if missing."""
        if not self._has_records(folder):
            return None
        return self._read(os.path.join(folder, RECORDS, f"{name}.json"))


class _Holder(NamedTuple):
    """A fetched skill: its parent folder, its name, and the path of a directory within it."""

    folder: str
    name: str
    within: str


def _has_records(folder: str) -> bool:
    try:
        os.stat(os.path.join(folder, RECORDS))
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def _read(path: str) -> dict[str, Any] | None:
    try:
        if os.path.islink(path):
            return {}
        raw, _ = read_regular(path, _MAX_BYTES)
        record = load_json(raw)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return {}
    return mapping(record)


def _origin(record: dict[str, Any] | None) -> str:
    source = (record or {}).get("source")
    if not isinstance(source, str):
        return UNKNOWN
    shown = bare(source).partition(_WELL_KNOWN)[0].rstrip("/")
    return shown if shown.isprintable() and shown else UNKNOWN
