"""A tiny model2vec model, and a local HTTP endpoint that returns the same embeddings."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace

from catalog.forest import DEADLINE

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
    words = ["[UNK]", *(word for subject in MEANINGS.values() for word in subject)]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    vectors = np.array([vector(word) for word in words], dtype=np.float32)
    StaticModel(vectors, tokenizer, config={}).save_pretrained(folder)
    return folder


class Endpoint:
    """The requests to an endpoint, and the response that it sends."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status = 200
        self.body: bytes | None = None
        self.more: list[float] = []
        """Elements that are appended to every vector."""
        self.url = ""
        self.moved = threading.Condition()

    def wait_for(self, requests: int) -> None:
        with self.moved:
            assert self.moved.wait_for(lambda: len(self.asked) >= requests, DEADLINE)


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    it = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = asked["input"]
            with it.moved:
                it.asked.append(texts)
                it.headers.append({name.lower(): value for name, value in self.headers.items()})
                it.paths.append(self.path)
                it.moved.notify_all()
            rows = [{"index": number, "embedding": vector(text) + it.more} for number, text in enumerate(texts)]
            body = it.body
            if body is None:
                body = json.dumps({"data": rows[::-1], "model": asked["model"]}).encode()
            self.send_response(it.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        it.url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield it
        finally:
            server.shutdown()
            thread.join()
