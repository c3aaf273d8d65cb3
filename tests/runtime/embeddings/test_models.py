"""Embedding models: local folders and HTTP endpoints, and their failures."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from mcp_skills_server.runtime.embeddings.models import Embedder, EmbeddingError, Endpoint, LocalModel
from runtime.embeddings import tiny
from tables import each_row


def test_local_model_and_endpoint_return_unit_vectors(tmp_path: Path) -> None:
    with tiny.endpoint() as served:
        models: list[Embedder] = [LocalModel(tiny.model(tmp_path)), Endpoint(served.url, "tiny", "s3cret")]
        for model in models:
            vectors = model.embed(["car automobile", "refund", "nothing known"], 10)
            assert vectors.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]
        assert served.paths == ["/v1/embeddings"]
        assert served.requests[0].headers["authorization"] == "Bearer s3cret"


@each_row("path", ["", "/", "/embeddings", "/embeddings/"])
def test_endpoint_accepts_base_url_or_full_url(path: str) -> None:
    with tiny.endpoint() as served:
        Endpoint(served.url + path, "tiny").embed(["car"], 10)
        assert served.paths == ["/v1/embeddings"]
        assert "authorization" not in served.requests[0].headers


LARGE = b"1" + b"0" * 400


@each_row(("status", "body"), [
    (500, b""), (302, b""), (200, b"no json"), (200, b'{"data": []}'), (200, b"[" * 100_000),
    *((200, b'{"data": [{"index": 0, "embedding": [%s]}]}' % numbers) for numbers in (b'"x"', b"", b"NaN", LARGE)),
    (200, b'{"data": [{"index": 1e999, "embedding": [1]}]}'),
    (200, b'{"data": [{"index": 0, "embedding": [1, 2]}, {"index": 1, "embedding": [1, 2]}]}'),
])  # fmt: skip
def test_invalid_response_is_one_line_without_secret(status: int, body: bytes) -> None:
    with tiny.endpoint() as served:
        served.status, served.body = status, body
        model = Endpoint(served.url, "tiny", "s3cret")
        with pytest.raises(EmbeddingError, match=r"^127\.0\.0\.1: .+$") as raised:
            model.embed(["car"], 10)
    assert "\n" not in str(raised.value) and "s3cret" not in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    with pytest.raises(EmbeddingError, match=r"^127\.0\.0\.1: .*refused$"):
        model.embed(["car"], 10)  # the endpoint is closed


def test_models_have_distinct_keys_and_invalid_folder_is_refused(tmp_path: Path) -> None:
    one, other = tiny.model(tmp_path / "one"), tiny.model(tmp_path / "other")
    urls = (("https://x.example/v1", "a"), ("https://x.example/v1", "b"), ("https://y.example/v1", "a"))
    keys = [LocalModel(one).key, LocalModel(other).key, *(Endpoint(url, model).key for url, model in urls)]
    assert len({*keys, LocalModel(one).key}) == 5
    with pytest.raises(EmbeddingError):
        _ = LocalModel(tmp_path / "none").key
    (one / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(EmbeddingError, match=r"^.*cannot be used.*$"):
        LocalModel(one).embed(["car"], 10)


def test_endpoint_verifies_certificates_even_if_default_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "_create_default_https_context", ssl._create_unverified_context)
    connect = Mock(side_effect=OSError("not connected"))
    monkeypatch.setattr(http.client, "HTTPSConnection", connect)
    with pytest.raises(EmbeddingError, match=r"^x\.example: not connected$"):
        Endpoint("https://x.example/v1", "tiny", "s3cret").embed(["car"], 10)
    assert connect.call_args.kwargs["context"].verify_mode is ssl.CERT_REQUIRED


def test_embedding_libraries_are_imported_lazily() -> None:
    names = ("commands.serve", "runtime.search", "runtime.embeddings.models", "runtime.embeddings.index")
    script = f"import sys, {', '.join(f'mcp_skills_server.{name}' for name in names)}\n"
    script += "print([name for name in ('numpy', 'model2vec', 'huggingface_hub') if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_slow_response_is_cut_off_at_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while True:
                    connection.sendall(b" ")
                    time.sleep(0.02)

        thread = threading.Thread(target=drip)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        with pytest.raises(EmbeddingError, match=r"^127\.0\.0\.1: timed out$"):
            Endpoint(address, "tiny").embed(["car"], 0.3)
        thread.join(10)
        assert not thread.is_alive()
