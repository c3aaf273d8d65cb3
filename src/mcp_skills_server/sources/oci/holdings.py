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
        asked: what decides beside the revision what is taken of it, such as limits; what was brought for other ones is
            none of it.
    """

    def __init__(self, opened: FetchedFolder, source: str, asked: Sequence[object]) -> None:
        self._folder = opened
        self._source = source
        self._asked = repr(asked)
        known = opened.index(source)
        data = _decoded(known.body) if known else {}
        data = data if data.get("asked") == self._asked else {}
        self.revision = str(data.get("revision") or "")
        """The revision of which all is there that is taken, "" where that is not so."""
        self.artifacts = {digest: _names(names) for digest, names in _mapping(data.get("artifacts")).items()}
        """Names of skills by the digest of the artifact that brought them, of those that brought all of theirs."""
        self.partial = {digest: _names(names) for digest, names in _mapping(data.get("partial")).items()}
        """The same of those of which a skill was refused."""
        self.refused = [(name, str(reason)) for name, reason in _mapping(data.get("refused")).items()]
        """Names and reasons of what the revision has and is not taken."""

    def is_whole(self, revision: str) -> bool:
        """Whether all that is taken of this revision is there as it came. Every file is read and proved."""
        named = [*self.artifacts.items(), *self.partial.items()]
        return self.revision == revision and all(self._has(name, digest) for digest, names in named for name in names)

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

    def remember(
        self,
        revision: str,
        artifacts: Mapping[str, Sequence[str]],
        partial: Mapping[str, Sequence[str]],
        refused: Mapping[str, str],
    ) -> None:
        """Remember what is there now, in the terms of the attributes.

        Raises:
            OSError: it cannot be written.
        """
        data = {"asked": self._asked, "revision": revision, "artifacts": artifacts, "partial": partial}
        body = json.dumps(data | {"refused": refused})
        self._folder.put_index(IndexRecord(self._source, self._source, self._source, self._source, body))


def _decoded(body: str) -> dict[str, Any]:
    try:
        return _mapping(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _mapping(found: object) -> dict[str, Any]:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _names(found: object) -> list[str]:
    return [each for each in cast("list[object]", found) if isinstance(each, str)] if isinstance(found, list) else []
