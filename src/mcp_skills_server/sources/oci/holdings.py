"""What a folder of fetched skills has of a registry: the revision, and by digest the skills of each artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcp_skills_server.sources.folder import FetchedFolder, State
from mcp_skills_server.sources.records import IndexRecord, Record, epoch_s


class Holdings:
    """What a folder has of one source. Every method blocks.

    Args:
        opened: the folder.
        source: what the operator named.
        wanted: names of skills that are asked for, None for all; what was brought for another choice is none of it.
    """

    def __init__(self, opened: FetchedFolder, source: str, wanted: frozenset[str] | None) -> None:
        self._folder = opened
        self._source = source
        self._wanted = None if wanted is None else sorted(wanted)
        self.revision: str | None = None
        self.artifacts: dict[str, list[str]] = {}
        """Names of skills by the digest of the artifact that brought them."""
        known = opened.index(source)
        data = _decoded(known.body) if known else {}
        if data.get("wanted") == self._wanted:
            artifacts, revision = _mapping(data.get("artifacts")), data.get("revision")
            self.artifacts = {digest: _names(names) for digest, names in artifacts.items()}
            self.revision = revision if isinstance(revision, str) else None

    def is_whole(self, revision: str) -> bool:
        """Whether all of this revision is there as it came. Every file is read and proved."""
        return self.revision == revision and bool(self.artifacts) and all(map(self.has, self.artifacts))

    def has(self, digest: str) -> bool:
        """Whether all skills of an artifact are there as they came. Every file of them is read and proved."""
        names = self.artifacts.get(digest, [])
        return bool(names) and all(self._has(name, digest) for name in names)

    def _has(self, name: str, digest: str) -> bool:
        state, record = self._folder.look(name)
        known = None if record is None else (record.source, record.digest)
        return state is State.KEPT and known == (self._source, digest)

    def record(self, name: str, digest: str) -> Record:
        """The record of a skill that this artifact brings."""
        return Record(name, self._source, self._source, digest, epoch_s(), {})

    def remember(self, revision: str | None, artifacts: Mapping[str, Sequence[str]]) -> None:
        """Remember what is there now; None for a revision that is not there as a whole.

        Raises:
            OSError: it cannot be written.
        """
        data = {"revision": revision, "artifacts": artifacts, "wanted": self._wanted}
        self._folder.put_index(IndexRecord(self._source, self._source, self._source, self._source, json.dumps(data)))


def _decoded(body: str) -> dict[str, Any]:
    try:
        return _mapping(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _mapping(found: object) -> dict[str, Any]:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _names(found: object) -> list[str]:
    return [each for each in cast("list[object]", found) if isinstance(each, str)] if isinstance(found, list) else []
