"""A tiny model2vec model, and a local HTTP endpoint that returns the same embeddings.

The libraries are imported late, since each process of pytest would import them at collection.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Final

from catalog.forest import DEADLINE
from sources.publishers import Publisher, ReceivedRequest, respond_with

MEANINGS: Final = {
    "vehicle": ("car", "automobile", "lorry", "driving"),
    "fruit": ("apple", "pear", "orchard", "plum"),
    "money": ("invoice", "refund", "bill", "payment"),
}


def vector(text: str) -> list[float]:
    """Return the embedding of a text: the number of its words about each subject."""
    words = text.lower().split()
    return [float(sum(word in subject for word in words)) for subject in MEANINGS.values()]


def model(folder: Path) -> Path:
    """Write a model2vec model with the same word vectors to a folder, and return the folder."""
    import numpy as np
    from model2vec import StaticModel
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[UNK]", *(word for subject in MEANINGS.values() for word in subject)]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    vectors = np.array([vector(word) for word in words], dtype=np.float32)
    StaticModel(vectors, tokenizer, config={}).save_pretrained(folder)
    return folder


class Endpoint(Publisher):
    """An HTTP endpoint that returns these embeddings, or other responses."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[list[str]] = []
        """The texts of each request."""
        self.status = 200
        self.body: bytes | None = None
        self.more: list[float] = []
        """Elements that are appended to every vector."""
        self._received = threading.Condition()

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    def wait_for(self, requests: int) -> None:
        with self._received:
            assert self._received.wait_for(lambda: len(self.inputs) >= requests, DEADLINE)

    def _route(self, request: ReceivedRequest) -> bytes:
        asked: dict[str, Any] = json.loads(request.body)
        with self._received:
            self.inputs.append(asked["input"])
            self._received.notify_all()
        rows = [{"index": at, "embedding": vector(text) + self.more} for at, text in enumerate(asked["input"])]
        body = self.body
        if body is None:
            body = json.dumps({"data": rows[::-1], "model": asked["model"]}).encode()
        return respond_with(body, self.status)


def endpoint() -> Endpoint:
    return Endpoint()
