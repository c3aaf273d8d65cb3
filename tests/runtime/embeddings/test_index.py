"""Semantic search: background embedding, the cache of vectors, and model failures."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from catalog.forest import DEADLINE, load_registry, write_files
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.runtime.embeddings import index
from mcp_skills_server.runtime.embeddings.index import Embeddings
from mcp_skills_server.runtime.embeddings.models import Embedder, Endpoint, LocalModel
from mcp_skills_server.runtime.search import Search
from runtime.embeddings import tiny
from web.http_wire import wait_until
from wire import write_skill


def write(directory: Path, description: str, body: str = "Do it.") -> None:
    write_skill(directory, description=description, body=body)


def wait_for_vectors(registry: Registry, embeddings: Embeddings) -> None:
    wait_until(lambda: embeddings._seen is registry.snapshot)


Start = Callable[..., Embeddings]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A function that starts embeddings and, by default, waits for all vectors."""
    with ExitStack() as stack:

        def start_one(
            registry: Registry,
            embedder: Embedder,
            folder: Path | None = None,
            *,
            pause_s: float = 0.05,
            wait: bool = True,
        ) -> Embeddings:
            monkeypatch.setattr(index, "PAUSE_S", pause_s)
            embeddings = Embeddings(registry, embedder, folder and Index(folder))
            stack.callback(embeddings.close)
            embeddings.start()
            if wait:
                wait_for_vectors(registry, embeddings)
            return embeddings

        yield start_one


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A root with a skill about each subject of the model."""
    top = tmp_path / "skills"
    write(top / "alpha", "All about an automobile")
    write(top / "beta", "All about an orchard")
    write(top / "gamma", "All about a payment")
    return top


def find(search: Search, query: str) -> list[str]:
    """Return the paths of the skills that a search finds."""
    return [skill.path for skill in search.find(query, 3, lambda _: True, by_meaning=True)]


def refresh(registry: Registry, embeddings: Embeddings) -> None:
    registry.refresh()
    wait_for_vectors(registry, embeddings)


def test_semantic_search_finds_skill_without_common_words(tmp_path: Path, top: Path, start: Start) -> None:
    registry = load_registry(top)
    search = Search(registry, start(registry, LocalModel(tiny.model(tmp_path / "model")), tmp_path / "cache"))
    assert find(search, "driving a lorry") == ["alpha"]
    assert find(search, "plum") == ["beta"]
    assert find(search, "invoice")[:1] == ["gamma"]
    assert find(search, "nothing known") == find(search, " ") == []
    assert search.find("plum", 3, lambda _: True) == []  # full text only
    assert find(search, "automobile") == ["alpha"]
    assert find(search, "orchard plum about a car")[:2] == ["beta", "alpha"]


def test_vectors_follow_edits(top: Path, start: Start) -> None:
    registry = load_registry(top)
    with tiny.endpoint() as served:
        embeddings = start(registry, Endpoint(served.url, "tiny"))
        assert [path for path, _ in embeddings.ranked("plum")] == ["beta"]
        served.inputs.clear()
        write(top / "beta", "All about a lorry")
        write(top / "delta", "A pear")
        (top / "gamma/SKILL.md").unlink()
        write_files(top, {"unusable/SKILL.md": "---\nname: unusable\n"})
        write(top / "alpha", "All about an automobile", "Another body.")
        refresh(registry, embeddings)
        assert [sorted(each) for each in served.inputs] == [["beta\nAll about a lorry", "delta\nA pear"]]
        assert [path for path, _ in embeddings.ranked("plum")] == ["delta"]
        assert sorted(embeddings.ranked("car")) == [("alpha", 1), ("beta", 1)]
        assert embeddings.ranked("refund") == []
        for number in range(100):
            write(top / f"more-{number}", "A bill")
        refresh(registry, embeddings)
        assert len(embeddings.ranked("refund")) == 60
        assert max(map(len, served.inputs)) == 64


def test_hidden_skills_do_not_count_toward_result_limit(top: Path, start: Start) -> None:
    for number in range(70):
        write(top / f"car-{number}", "All about an automobile")
    registry = load_registry(top)
    with tiny.endpoint() as served:
        embeddings = start(registry, Endpoint(served.url, "tiny"))
        nearest = {path for path, _ in embeddings.ranked("car")}
        assert len(nearest) == 60
        other = min(path for path in registry.snapshot.skills if path.startswith("car-") and path not in nearest)
        views = Views(registry, Grants([Grant(("*",), (Pattern(other), Pattern("beta")))], local=False))
        assert find(Search(views.for_principal(None), embeddings), "driving a lorry") == [other]


def test_cached_vectors_are_reused_by_next_process(tmp_path: Path, top: Path, start: Start) -> None:
    with tiny.endpoint() as served:
        for expected in (3, 3, 4, 4):
            if expected == 4:
                write(top / "delta", "A pear")
            start(load_registry(top), Endpoint(served.url, "tiny"), tmp_path)
            assert sum(map(len, served.inputs)) == expected
        start(load_registry(top), Endpoint(served.url, "other"), tmp_path)
        assert sum(map(len, served.inputs)) == 4 + 4


def test_search_falls_back_to_full_text_if_model_fails(
    top: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    registry = load_registry(top)
    with tiny.endpoint() as served:
        served.status = 503
        embeddings = start(registry, Endpoint(served.url, "tiny", "s3cret"), wait=False)
        served.wait_for(3)
        search = Search(registry, embeddings)
        assert find(search, "plum") == []
        assert find(search, "orchard") == ["beta"]
        served.status = 200
        wait_for_vectors(registry, embeddings)
        assert find(search, "plum") == ["beta"]
        failed = "embeddings failed: 127.0.0.1: HTTP status 503; searches use full text only"
        assert caplog.messages == [failed, "embeddings work again"]
        search = Search(registry, start(registry, Endpoint(served.url, "tiny"), pause_s=0))
        for served.status, found in ((503, []), (200, ["beta"])):
            assert find(search, "plum") == found
        search = Search(registry, start(registry, Endpoint(served.url, "tiny"), pause_s=DEADLINE))
        served.status, before = 503, len(served.inputs)
        assert find(search, "orchard") == find(search, "orchard") == ["beta"]
        assert len(served.inputs) == before + 1, "no request during the pause after a failure"
    assert caplog.messages[2:] == [failed, "embeddings work again", failed]


def test_all_vectors_are_recomputed_if_their_length_changes(tmp_path: Path, top: Path, start: Start) -> None:
    registry = load_registry(top)
    with tiny.endpoint() as served:
        embeddings = start(registry, Endpoint(served.url, "tiny"), tmp_path)
        served.more = [0.0, 0.0]
        write(top / "delta", "A pear")
        refresh(registry, embeddings)
        assert sorted(embeddings.ranked("plum")) == [("beta", 1), ("delta", 1)]
        served.inputs.clear()
        start(load_registry(top), Endpoint(served.url, "tiny"), tmp_path)
        assert served.inputs == []


def test_cached_vectors_of_different_lengths_are_recomputed(tmp_path: Path, top: Path, start: Start) -> None:
    registry = load_registry(top)
    with tiny.endpoint() as served:
        start(registry, Endpoint(served.url, "tiny"), tmp_path)
        with closing(sqlite3.connect(tmp_path / "skills.sqlite3", isolation_level=None)) as database:
            database.execute("UPDATE memo SET value = x'00000000' WHERE key = (SELECT min(key) FROM memo)")
        served.inputs.clear()
        embeddings = start(registry, Endpoint(served.url, "tiny"), tmp_path)
        assert sum(map(len, served.inputs)) == 3 and [path for path, _ in embeddings.ranked("plum")] == ["beta"]


def test_vectors_unused_for_a_month_are_evicted(tmp_path: Path, top: Path, start: Start) -> None:
    with tiny.endpoint() as served:
        start(load_registry(top), Endpoint(served.url, "tiny"), tmp_path)
        with closing(sqlite3.connect(tmp_path / "skills.sqlite3", isolation_level=None)) as database:
            database.execute("UPDATE memo SET used = used - 31")
            write(top / "beta", "A lorry")
            (top / "gamma/SKILL.md").unlink()
            start(load_registry(top), Endpoint(served.url, "tiny"), tmp_path)
            assert database.execute("SELECT count(*) FROM memo").fetchone() == (2,)  # alpha and beta
