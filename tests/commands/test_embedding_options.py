"""What `--embeddings` takes, that a wrong use is one line, and that a server finds by meaning."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from catalog.forest import DEADLINE
from mcp_skills_server.commands.runtime_options import KEY_VARIABLE, SearchByMeaning
from mcp_skills_server.errors import UsageError
from runtime.embeddings import tiny
from tables import each_row
from wire import serving, write_skill

SERVER: Any = SimpleNamespace()
"""Whoever asks for the catalogue of this server has taken a wrong option."""


@each_row(
    ("embeddings", "model", "said"),
    [
        ("http://example.org/v1", "m", "with https, or with http on this machine"),
        ("ftp://localhost/v1", "m", "with https"),
        ("https://", "m", "with https"),
        ("https://[::1", "m", "cannot be read"),
        ("https://example.org:port/", "m", "cannot be read"),
        ("https://user:s3cret@example.org/v1", "m", KEY_VARIABLE),
        ("https://example.org/v1", None, "--embeddings-model"),
        ("/nowhere", None, "model.safetensors"),
        ("/nowhere", "m", "a folder has only one"),
        (None, "m", "give --embeddings URL too"),
    ],
)
def test_wrong_use_is_one_line(embeddings: str | None, model: str | None, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        SearchByMeaning(embeddings=embeddings, embeddings_model=model).start(SERVER)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value) and "s3cret" not in str(raised.value)


@each_row("key", ["", " ", "two\nlines", "\u00fcber"])
def test_a_key_that_cannot_be_sent_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(UsageError, match=KEY_VARIABLE):
        SearchByMeaning(embeddings="https://example.org/v1", embeddings_model="m").start(SERVER)


def test_a_server_finds_by_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "skills" / "alpha", description="All about an automobile")
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    cache = tmp_path / "cache"
    with tiny.endpoint() as served:
        options = ("--embeddings", served.url, "--embeddings-model", "tiny", "--cache-dir", str(cache))
        with serving(tmp_path / "skills", *options) as wire:
            served.wait_for(1)
            asked = {"name": "skills_search", "arguments": {"query": "driving a lorry"}}
            until = time.monotonic() + DEADLINE
            found: list[dict[str, Any]] = []
            while not found and time.monotonic() < until:  # the vectors are made beside the server's work
                found = wire.request("tools/call", asked)["structuredContent"]["skills"]
        assert served.headers[0]["authorization"] == "Bearer s3cret"
    assert served.asked[0] == ["alpha\nThing\nAll about an automobile"]
    assert [each["name"] for each in found] == ["alpha"]
    assert (cache / "index" / "skills.sqlite3").exists()
