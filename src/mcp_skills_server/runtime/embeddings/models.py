"""Embedding models: a model2vec model in a local folder, or an endpoint that speaks OpenAI's
embeddings.

Neither downloads anything, and neither is imported or asked before it is needed.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from mcp_skills_server.errors import SkillsServerError, clipped

if TYPE_CHECKING:
    import numpy as np
    from model2vec import StaticModel
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]
    """A row for each text, of length 1 or, of a text that says nothing, 0."""

MODEL_FILES: Final = ("model.safetensors", "tokenizer.json", "config.json")
"""The files that the folder of a model has at least."""
_MOST_ANSWER: Final = 64 << 20
"""Bytes of an endpoint's answer."""


class EmbeddingError(SkillsServerError):
    """There are no vectors now. The message says why, in one line and without what is secret."""


class Embedder(Protocol):
    """A model. Any thread may use it."""

    @property
    def key(self) -> str:
        """Another one for each model: only vectors of one model can be compared."""
        ...

    @property
    def batch(self) -> int:
        """The size of a batch of texts."""
        ...

    def embed(self, texts: Sequence[str], timeout_s: float) -> Vectors:
        """Return the vectors of at least one text.

        Raises:
            EmbeddingError: they cannot be had, or not in this time.
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
        """By what the folder has, without reading it."""
        try:
            found = [(self._folder / name).stat() for name in MODEL_FILES]
        except OSError as error:
            raise EmbeddingError(f"{self._folder}: {error.strerror}") from None
        marks = [(each.st_size, each.st_mtime_ns) for each in found]
        return hashlib.sha256(repr((str(self._folder), marks)).encode()).hexdigest()

    def embed(self, texts: Sequence[str], timeout_s: float) -> Vectors:  # noqa: ARG002  nothing is waited for
        """As `Embedder` says."""
        try:
            with self._lock:
                if self._model is None:
                    from model2vec import StaticModel

                    self._model = StaticModel.from_pretrained(self._folder)
            return _unit(self._model.encode(list(texts), use_multiprocessing=False), len(texts))
        except EmbeddingError:
            raise
        except Exception as error:  # whatever three libraries raise about files that are not theirs
            raise EmbeddingError(
                f"{self._folder}: the model cannot be used: {clipped(_line(error))}"
            ) from None


class Endpoint:
    """An address that answers `POST {"model", "input"}` as OpenAI's does. Redirects and proxies are
    not followed.

    `url` is that of the endpoint, or of the API that has it at `/embeddings`; `secret` is sent as a
    bearer token.
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
        """By where it is and what it is called there."""
        where = (self._tls, self._host, self._port, self._path, self._model)
        return hashlib.sha256(repr(where).encode()).hexdigest()

    def embed(self, texts: Sequence[str], timeout_s: float) -> Vectors:
        """As `Embedder` says."""
        body = json.dumps({"model": self._model, "input": list(texts), "encoding_format": "float"})
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._secret is not None:
            headers["Authorization"] = f"Bearer {self._secret}"
        try:
            raw = self._post(body, headers, timeout_s)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            reason = clipped(_line(error))
            if isinstance(error, TimeoutError):
                reason = "no answer in time"
            raise EmbeddingError(f"{self._host}: {reason}") from None
        try:
            return _unit(_rows(json.loads(raw)), len(texts))
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            raise EmbeddingError(f"{self._host}: its answer is no list of embeddings") from None

    def _post(self, body: str, headers: Mapping[str, str], timeout_s: float) -> bytes:
        if self._tls:
            secure = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_s, context=secure
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        # The time of the socket is that of each wait, and an endpoint that drips would have us wait
        # for ever.
        end = threading.Timer(timeout_s, _cut, [connection])
        end.daemon = True
        end.start()
        try:
            connection.request("POST", self._path, body, dict(headers))
            with connection.getresponse() as answer:
                if answer.status != http.client.OK:
                    raise EmbeddingError(f"{self._host}: it answers {answer.status}")
                raw = answer.read(_MOST_ANSWER + 1)
        finally:
            end.cancel()
            connection.close()
        if len(raw) > _MOST_ANSWER:
            raise EmbeddingError(f"{self._host}: its answer has more than {_MOST_ANSWER} bytes")
        return raw


def _cut(connection: http.client.HTTPConnection) -> None:
    """Wake the thread that waits for this connection."""
    with suppress(OSError, AttributeError):  # it was closed meanwhile, or is not connected yet
        connection.sock.shutdown(socket.SHUT_RDWR)


def _rows(answer: Any) -> list[list[float]]:
    data = cast("list[dict[str, Any]]", answer["data"])
    return [each["embedding"] for each in sorted(data, key=lambda each: int(each["index"]))]


def _unit(rows: Any, count: int) -> Vectors:
    """Return the rows as vectors of length 1."""
    import numpy as np

    made = np.asarray(rows, dtype=np.float32)
    if made.ndim != 2 or len(made) != count or not made.shape[1] or not np.isfinite(made).all():
        raise ValueError(f"{made.shape} are no vectors of {count} texts")
    length = np.linalg.norm(made, axis=1, keepdims=True)
    return np.divide(made, length, out=np.zeros_like(made), where=length > 0)


def _line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())
