"""An endpoint that is slow on purpose, and one that answers with numbers no float can hold."""

from __future__ import annotations

import threading
from socket import create_server, socket

import pytest

from mcp_skills_server.runtime.embeddings.models import EmbeddingError, Endpoint
from wire import DEADLINE


@pytest.mark.parametrize(
    "body",
    [b'{"data":[{"index":0,"embedding":[1' + b"0" * 400 + b"]}]}", b'{"data":[{"index":1e999,"embedding":[1]}]}'],
)
def test_a_number_that_is_too_large_is_no_embedding(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "_post", lambda *_: body)
    with pytest.raises(EmbeddingError):
        Endpoint("http://127.0.0.1:9/", "m").embed(["a"], 1)


def test_an_answer_that_never_ends_is_given_up_after_its_time() -> None:
    """Each byte comes within the time, and the whole never does."""
    given_up = threading.Event()

    def drip(listener: socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not given_up.wait(0.05):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

    def ask(port: int, done: threading.Event) -> None:
        with pytest.raises(EmbeddingError):
            Endpoint(f"http://127.0.0.1:{port}/", "m").embed(["a"], 0.2)
        done.set()

    done = threading.Event()
    with create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        threading.Thread(target=ask, args=(listener.getsockname()[1], done), daemon=True).start()
        ended = done.wait(DEADLINE)  # far more than it was allowed, and far less than 100,000 bytes take
        given_up.set()
    assert ended
