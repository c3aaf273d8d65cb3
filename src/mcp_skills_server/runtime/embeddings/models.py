"""Embedding models: a local model2vec folder, or an OpenAI-compatible HTTP endpoint.

Neither downloads a model. Both are lazy: imports and connections wait for the first use.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from mcp_skills_server.errors import SkillsServerError, clipped
from mcp_skills_server.model.decoding import load_json

if TYPE_CHECKING:
    import numpy as np
    from model2vec import StaticModel
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]
    """Shape (texts, dimensions): a row of norm 1 for each text, or of norm 0 if it is empty."""

MODEL_FILES: Final = ("model.safetensors", "tokenizer.json", "config.json")
"""The required files of a model's folder."""
_MAX_ANSWER: Final = 64 << 20
"""The maximum number of bytes of an endpoint's response."""


class EmbeddingError(SkillsServerError):
    """A failure to embed texts, with a message of one line without secrets."""


class Embedder(Protocol):
    """The interface of an embedding model. Implementations are thread-safe."""

    @property
    def key(self) -> str:
        """The cache key of the model; only vectors of the same model are comparable."""
        ...

    @property
    def batch(self) -> int:
        """The maximum number of texts to pass to one call of `embed`."""
        ...

    def embed(self, texts: Sequence[str], timeout_s: float) -> Vectors:
        """Return the vectors of one or more texts.

        Raises:
            EmbeddingError: the model failed or timed out.
        """
        ...


class LocalModel:
    """A model2vec model in a folder that has `MODEL_FILES`, loaded when it is first used."""

    batch = 256

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._model: StaticModel | None = None

    @property
    def key(self) -> str:
        """A digest of the path and the sizes and times of `MODEL_FILES`, which are not read."""
        try:
            statuses = [(self._folder / name).stat() for name in MODEL_FILES]
        except OSError as error:
            raise EmbeddingError(f"{self._folder}: {error.strerror}") from None
        marks = [(status.st_size, status.st_mtime_ns) for status in statuses]
        return hashlib.sha256(repr((str(self._folder), marks)).encode()).hexdigest()

    def embed(self, texts: Sequence[str], timeout_s: float) -> Vectors:  # noqa: ARG002  no timeout
        """Implement `Embedder.embed`, without a timeout."""
        try:
            with self._lock:
                if self._model is None:
                    from model2vec import StaticModel

                    self._model = StaticModel.from_pretrained(self._folder)
            made = self._model.encode(list(texts), use_multiprocessing=False)
            return _normalized(made, len(texts))
        except EmbeddingError:
            raise
        except Exception as error:  # three libraries raise undocumented errors for invalid files
            reason = f"the model cannot be used: {clipped(_one_line(error))}"
            raise EmbeddingError(f"{self._folder}: {reason}") from None


class Endpoint:
    """An HTTP client of an OpenAI-compatible embeddings endpoint.

    `url` is the endpoint, or the base URL to which `/embeddings` is appended; `secret` is the
    bearer token. Redirects and proxies are not followed.
    """

    batch = 64

    def __init__(self, url: str, model: str, secret: str | None = None) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        path = parts.path.rstrip("/")
        if not path.endswith("/embeddings"):
            path += "/embeddings"
        if parts.query:
            path += f"?{parts.query}"
        self._path = path
        self._model = model
        self._secret = secret

    @property
    def key(self) -> str:
        """A digest of the address and the model's name."""
        where = (self._tls, self._host, self._port, self._path, self._model)
        return hashlib.sha256(repr(where).encode()).hexdigest()

    def embed(self, texts: Sequence[str], timeout_s: float) -> Vectors:
        """Implement `Embedder.embed` by one POST request."""
        body = json.dumps({"model": self._model, "input": list(texts), "encoding_format": "float"})
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._secret is not None:
            headers["Authorization"] = f"Bearer {self._secret}"
        deadline = time.monotonic() + timeout_s
        try:
            raw = self._post(body, headers, timeout_s)
            if time.monotonic() >= deadline:  # the timer cut the answer off
                raise TimeoutError
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            reason = clipped(_one_line(error))
            if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                reason = "timed out"
            raise EmbeddingError(f"{self._host}: {reason}") from None
        try:
            return _normalized(_rows(load_json(raw)), len(texts))
        except (ValueError, TypeError, LookupError, ArithmeticError):
            reason = "the response is not a list of embeddings"
            raise EmbeddingError(f"{self._host}: {reason}") from None

    def _post(self, body: str, headers: Mapping[str, str], timeout_s: float) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        if self._tls:  # a program around this one may have turned off the default verification
            secure = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_s, context=secure
            )
        # The socket's timeout applies to each read, so an endpoint that sends a byte at a time
        # would never reach it. The timer limits the whole request.
        end = threading.Timer(timeout_s, _shut_down, [connection])
        end.daemon = True
        end.start()
        try:
            connection.request("POST", self._path, body, dict(headers))
            with connection.getresponse() as answer:
                if answer.status != http.client.OK:
                    raise EmbeddingError(f"{self._host}: HTTP status {answer.status}")
                raw = answer.read(_MAX_ANSWER + 1)
        finally:
            end.cancel()
            connection.close()
        if len(raw) > _MAX_ANSWER:
            raise EmbeddingError(f"{self._host}: the response has more than {_MAX_ANSWER} bytes")
        return raw


def _shut_down(connection: http.client.HTTPConnection) -> None:
    """Shut down a connection's socket, which wakes the thread blocked on it."""
    with suppress(OSError, AttributeError):  # already closed, or not connected yet
        connection.sock.shutdown(socket.SHUT_RDWR)


def _rows(answer: Any) -> list[list[float]]:
    data = cast("list[dict[str, Any]]", answer["data"])
    return [row["embedding"] for row in sorted(data, key=lambda row: int(row["index"]))]


def _normalized(rows: Any, count: int) -> Vectors:
    """Return the rows scaled to unit length; raise ValueError unless they are `count` vectors."""
    import numpy as np

    made = np.asarray(rows, dtype=np.float32)
    if made.ndim != 2 or len(made) != count or not made.shape[1] or not np.isfinite(made).all():
        raise ValueError(f"{made.shape} is not the shape of {count} vectors")
    length = np.linalg.norm(made, axis=1, keepdims=True)
    return np.divide(made, length, out=np.zeros_like(made), where=length > 0)


def _one_line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())
