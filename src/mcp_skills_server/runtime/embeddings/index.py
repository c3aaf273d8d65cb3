"""Semantic search of skills by embeddings of their descriptions.

A background thread loads the model once the skills are read, and embeds new and changed skills.
While there are no vectors, or the model fails, `Embeddings.ranked` returns no results.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.format import identity
from mcp_skills_server.model import Skill, Snapshot, Standing
from mcp_skills_server.runtime.embeddings.models import Embedder, EmbeddingError

if TYPE_CHECKING:
    from mcp_skills_server.runtime.embeddings.models import Vectors

logger = logging.getLogger(__name__)

MAX_RESULTS: Final = 60
"""The maximum number of results of a query."""
_MIN_SIMILARITY: Final = 0.2
"""The minimum cosine similarity of a result; models give lower values to unrelated texts."""
_TEXT_LENGTH: Final = 2_000
"""The maximum number of characters of a text or a query that are embedded."""
_QUERY_TIMEOUT_S: Final = 2.0
_BATCH_TIMEOUT_S: Final = 30.0
PAUSE_S: Final = 30.0
"""Seconds of backoff after a model failed."""


class Embeddings:
    """A thread-safe vector index of a registry's skills.

    `index` persists the vectors for the next process.
    """

    def __init__(self, registry: Registry, embedder: Embedder, index: Index | None) -> None:
        self._registry = registry
        self._embedder = embedder
        self._index = index
        self._lock = threading.Lock()
        self._known: dict[str, tuple[bytes, bytes]] = {}
        """Text digest and float32 vector of each skill, as bytes, by path."""
        self._table: tuple[list[str], Vectors] | None = None
        """Paths and the matrix of their vectors; rebuilt by the first query after a change."""
        self._seen = Snapshot({})
        self._failed = False
        self._retry_at = 0.0
        self._changed = threading.Event()
        self._ended = False
        self._unsubscribe: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="embeddings", daemon=True)

    def start(self) -> None:
        """Start the thread, which begins its work once the skills are read."""
        self._unsubscribe = self._registry.subscribe(lambda _: self._changed.set())
        if self._registry.loaded.is_set():
            self._changed.set()
        self._thread.start()

    def close(self) -> None:
        """Stop the thread without waiting for the current batch. Safe to call twice."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._ended = True
        self._changed.set()

    def ranked(self, query: str, among: Container[str] | None = None) -> list[tuple[str, float]]:
        """Return the paths of the skills nearest to the query, with the cosines, highest first.

        The list is empty while there are no vectors, or if the model fails. `among` restricts the
        search to these paths.
        """
        if not self._known or time.monotonic() < self._retry_at or not query.strip():
            return []
        try:
            asked = self._embedder.embed([query[:_TEXT_LENGTH]], _QUERY_TIMEOUT_S)
        except EmbeddingError as error:
            self._record_failure(error)
            return []
        self._record_success()
        import numpy as np

        with self._lock:
            if self._length != asked.shape[1] * asked.itemsize:
                return []
            if self._table is None:
                rows = np.frombuffer(
                    b"".join(vector for _, vector in self._known.values()), dtype=np.float32
                )
                self._table = list(self._known), rows.reshape(len(self._known), -1)
            paths, vectors = self._table
        alike = vectors @ asked[0]
        if among is not None:
            alike[[path not in among for path in paths]] = -np.inf
        first: list[int] = np.argsort(-alike, kind="stable")[:MAX_RESULTS].tolist()
        return [(paths[row], float(alike[row])) for row in first if alike[row] >= _MIN_SIMILARITY]

    # The background thread

    def _run(self) -> None:
        pause_s: float | None = None
        while True:
            self._changed.wait(pause_s)
            self._changed.clear()
            if self._ended:
                return
            pause_s = None
            try:
                self._follow(self._registry.snapshot)
            except EmbeddingError as error:
                self._record_failure(error)
                pause_s = PAUSE_S

    def _follow(self, snapshot: Snapshot) -> None:
        """Embed the changed skills of a snapshot by batches; finished batches survive a failure."""
        texts: dict[str, str] = {}
        gone: list[str] = []
        for path in snapshot.differing(self._seen):
            skill = snapshot.skills.get(path)
            if skill is None or skill.standing <= Standing.UNUSABLE:
                gone.append(path)
            else:
                texts[path] = _text(skill)
        self._store({}, gone)
        digests: dict[str, bytes] = {}
        for path, text in texts.items():
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            if path not in self._known or self._known[path][0] != digest:
                digests[path] = digest  # most edits change the body only, which is not embedded
        model = self._embedder.key
        kept: Mapping[bytes, bytes] = {}
        if self._index is not None:
            kept = self._index.memos(model, digests.values())
        self._store(
            {path: (digest, kept[digest]) for path, digest in digests.items() if digest in kept}
        )
        missing = {digest: texts[path] for path, digest in digests.items() if digest not in kept}
        rest = iter(missing.items())
        while batch := dict(islice(rest, self._embedder.batch)):
            if self._ended:
                return
            made = self._embedder.embed([*batch.values()], _BATCH_TIMEOUT_S)
            self._record_success()
            new = {digest: row.tobytes() for digest, row in zip(batch, made, strict=True)}
            self._store(
                {path: (digest, new[digest]) for path, digest in digests.items() if digest in new}
            )
            if self._index is not None:
                self._index.save_memos(model, new)
        self._seen = snapshot

    def _store(self, vectors: Mapping[str, tuple[bytes, bytes]], gone: Iterable[str] = ()) -> None:
        """Store (text digest, vector) pairs by path, and remove the paths in `gone`.

        Raises:
            EmbeddingError: the vectors differ in length, since another model is now behind the same
                key. All are discarded.
        """
        lengths = {self._length, *(len(vector) for _, vector in vectors.values())}
        lengths.discard(0)  # there is no vector yet
        if len(lengths) > 1:
            if self._index is not None:
                self._index.forget_memos(self._embedder.key)
            with self._lock:
                self._known, self._table = {}, None
            self._seen = Snapshot({})
            raise EmbeddingError(
                "the length of the model's vectors has changed, so all are computed again"
            )
        with self._lock:
            for path in gone:
                self._known.pop(path, None)
            self._known |= vectors
            self._table = None

    @property
    def _length(self) -> int:
        """The size of a vector in bytes; 0 while there is none."""
        return next((len(vector) for _, vector in self._known.values()), 0)

    # Logging and backoff

    def _record_failure(self, error: EmbeddingError) -> None:
        self._retry_at = time.monotonic() + PAUSE_S
        with self._lock:
            first, self._failed = not self._failed, True
        if first:
            logger.warning("embeddings failed: %s; searches use full text only", error)

    def _record_success(self) -> None:
        with self._lock:
            before, self._failed = self._failed, False
        if before:
            logger.warning("embeddings work again")


def _text(skill: Skill) -> str:
    """Return the text of a skill to embed: name, title and description."""
    parts = (skill.name, identity.title(skill) or "", skill.description)
    return "\n".join(dict.fromkeys(part for part in parts if part))[:_TEXT_LENGTH]
