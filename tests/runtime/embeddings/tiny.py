"""A tiny model2vec model, and a local HTTP endpoint that returns the same embeddings.

The libraries are imported late, since each process of pytest would import them at collection.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

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


class Endpoint:
    """A fake endpoint: the requests that it received, and the response that it sends."""

    def __init__(self) -> None:
        self.inputs: list[list[str]] = []
        """The texts of each request."""
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status = 200
        self.body: bytes | None = None
        self.more: list[float] = []
        """Elements that are appended to every vector."""
        self.url = ""
        self.received = threading.Condition()

    def wait_for(self, requests: int) -> None:
        with self.received:
            assert self.received.wait_for(lambda: len(self.inputs) >= requests, DEADLINE)


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    served = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = request["input"]
            with served.received:
                served.inputs.append(texts)
                served.headers.append({name.lower(): value for name, value in self.headers.items()})
                served.paths.append(self.path)
                served.received.notify_all()
            rows = [{"index": number, "embedding": vector(text) + served.more} for number, text in enumerate(texts)]
            body = served.body
            if body is None:
                body = json.dumps({"data": rows[::-1], "model": request["model"]}).encode()
            self.send_response(served.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        served.url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
