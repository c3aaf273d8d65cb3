"""Skills found by what they mean, in the background, with a cache, and a search that goes on without."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from catalog.forest import DEADLINE, loaded, plant
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.runtime.embeddings.index import Embeddings
from mcp_skills_server.runtime.embeddings.models import Embedder, Endpoint, LocalModel
from mcp_skills_server.runtime.search import Search
from runtime.embeddings import tiny


def text(name: str, description: str) -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n\nDo it.\n"


SKILLS = {
    "alpha/SKILL.md": text("alpha", "All about an automobile"),
    "beta/SKILL.md": text("beta", "All about an orchard"),
    "gamma/SKILL.md": text("gamma", "All about a payment"),
}
Begin = Callable[..., Embeddings]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts embeddings, and waits for the vectors unless there will be none; at the end they are closed."""
    with ExitStack() as opened:

        def begun(
            registry: Registry,
            embedder: Embedder,
            folder: Path | None = None,
            *,
            pause_s: float = 0.05,
            wait: bool = True,
        ) -> Embeddings:
            made = Embeddings(registry, embedder, folder and Index(folder), pause_s=pause_s)
            opened.callback(made.close)
            made.start()
            assert not wait or made.wait(DEADLINE)
            return made

        yield begun


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return plant(tmp_path / "skills", SKILLS)


def ask(search: Search, query: str) -> list[str]:
    return [found.path for found in search.find(query, 3, lambda _: True, by_meaning=True)]


def refreshed(registry: Registry, embeddings: Embeddings) -> None:
    registry.refresh()
    assert embeddings.wait(DEADLINE)


def test_semantic_search_finds_skill_without_common_words(tmp_path: Path, top: Path, begin: Begin) -> None:
    registry = loaded(top)
    search = Search(registry, begin(registry, LocalModel(tiny.model(tmp_path / "model")), tmp_path / "cache"))
    assert ask(search, "driving a lorry") == ["alpha"]
    assert ask(search, "plum") == ["beta"]
    assert ask(search, "invoice")[:1] == ["gamma"]
    assert ask(search, "nothing known") == ask(search, " ") == []
    assert search.find("plum", 3, lambda _: True) == []  # without the embeddings, which nobody asked for
    assert ask(search, "automobile") == ["alpha"]
    assert ask(search, "orchard plum about a car")[:2] == ["beta", "alpha"]


def test_vectors_follow_edits(top: Path, begin: Begin) -> None:
    registry = loaded(top)
    with tiny.endpoint() as served:
        embeddings = begin(registry, Endpoint(served.url, "tiny"))
        assert [path for path, _ in embeddings.ranked("plum")] == ["beta"]
        served.asked.clear()
        plant(top, {"beta/SKILL.md": text("beta", "All about a lorry"), "delta/SKILL.md": text("delta", "A pear")})
        (top / "gamma/SKILL.md").unlink()
        plant(top, {"alpha/SKILL.md": SKILLS["alpha/SKILL.md"] + "\nAnother body.\n"})
        refreshed(registry, embeddings)
        assert [sorted(each) for each in served.asked] == [["beta\nAll about a lorry", "delta\nA pear"]]
        assert [path for path, _ in embeddings.ranked("plum")] == ["delta"]
        assert sorted(embeddings.ranked("car")) == [("alpha", 1), ("beta", 1)]
        assert embeddings.ranked("refund") == []
        plant(top, {f"more-{number}/SKILL.md": text(f"more-{number}", "A bill") for number in range(100)})
        refreshed(registry, embeddings)
        assert len(embeddings.ranked("refund")) == 60
        assert max(map(len, served.asked)) == 64


def test_hidden_skills_do_not_count_toward_result_limit(top: Path, begin: Begin) -> None:
    several = {f"car-{number}/SKILL.md": text(f"car-{number}", "All about an automobile") for number in range(70)}
    registry = loaded(plant(top, several))
    with tiny.endpoint() as served:
        embeddings = begin(registry, Endpoint(served.url, "tiny"))
        nearest = {path for path, _ in embeddings.ranked("car")}
        assert len(nearest) == 60
        other = min(path for path in registry.snapshot.skills if path.startswith("car-") and path not in nearest)
        views = Views(registry, Grants([Grant(("*",), (Pattern(other), Pattern("beta")))], local=False))
        assert ask(Search(views.of(None), embeddings), "driving a lorry") == [other]


def test_cached_vectors_are_reused_by_next_process(tmp_path: Path, top: Path, begin: Begin) -> None:
    with tiny.endpoint() as served:
        for expected in (3, 3, 4, 4):
            if expected == 4:
                plant(top, {"delta/SKILL.md": text("delta", "A pear")})
            begin(loaded(top), Endpoint(served.url, "tiny"), tmp_path)
            assert sum(map(len, served.asked)) == expected
        begin(loaded(top), Endpoint(served.url, "other"), tmp_path)
        assert sum(map(len, served.asked)) == 4 + 4


def test_search_falls_back_to_full_text_if_model_fails(
    top: Path, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    registry = loaded(top)
    with tiny.endpoint() as served:
        served.status = 503
        embeddings = begin(registry, Endpoint(served.url, "tiny", "s3cret"), wait=False)
        served.wait_for(3)
        search = Search(registry, embeddings)
        assert ask(search, "plum") == []
        assert ask(search, "orchard") == ["beta"]
        served.status = 200
        assert embeddings.wait(DEADLINE)
        assert ask(search, "plum") == ["beta"]
        failed = "embeddings failed: 127.0.0.1: HTTP status 503; searches use full text only"
        assert caplog.messages == [failed, "embeddings work again"]
        search = Search(registry, begin(registry, Endpoint(served.url, "tiny"), pause_s=0))
        for served.status, found in ((503, []), (200, ["beta"])):
            assert ask(search, "plum") == found
        search = Search(registry, begin(registry, Endpoint(served.url, "tiny"), pause_s=DEADLINE))
        served.status, asked = 503, len(served.asked)
        assert ask(search, "orchard") == ask(search, "orchard") == ["beta"]
        assert len(served.asked) == asked + 1  # it is left alone for a while
    assert caplog.messages[2:] == [failed, "embeddings work again", failed]


def test_all_vectors_are_recomputed_if_their_length_changes(tmp_path: Path, top: Path, begin: Begin) -> None:
    registry = loaded(top)
    with tiny.endpoint() as served:
        embeddings = begin(registry, Endpoint(served.url, "tiny"), tmp_path)
        served.more = [0.0, 0.0]
        plant(top, {"delta/SKILL.md": text("delta", "A pear")})
        refreshed(registry, embeddings)
        assert sorted(embeddings.ranked("plum")) == [("beta", 1), ("delta", 1)]
        served.asked.clear()
        begin(loaded(top), Endpoint(served.url, "tiny"), tmp_path)
        assert served.asked == []


def test_cached_vectors_of_different_lengths_are_recomputed(tmp_path: Path, top: Path, begin: Begin) -> None:
    registry = loaded(top)
    with tiny.endpoint() as served:
        begin(registry, Endpoint(served.url, "tiny"), tmp_path)
        with closing(sqlite3.connect(tmp_path / "skills.sqlite3", isolation_level=None)) as database:
            database.execute("UPDATE memo SET value = x'00000000' WHERE key = (SELECT min(key) FROM memo)")
        served.asked.clear()
        embeddings = begin(registry, Endpoint(served.url, "tiny"), tmp_path)
        assert sum(map(len, served.asked)) == 3 and [path for path, _ in embeddings.ranked("plum")] == ["beta"]


def test_vectors_unused_for_a_month_are_evicted(tmp_path: Path, top: Path, begin: Begin) -> None:
    with tiny.endpoint() as served:
        begin(loaded(top), Endpoint(served.url, "tiny"), tmp_path)
        with closing(sqlite3.connect(tmp_path / "skills.sqlite3", isolation_level=None)) as database:
            database.execute("UPDATE memo SET used = used - 31")
            plant(top, {"beta/SKILL.md": text("beta", "A lorry")})
            (top / "gamma/SKILL.md").unlink()
            begin(loaded(top), Endpoint(served.url, "tiny"), tmp_path)
            assert database.execute("SELECT count(*) FROM memo").fetchone() == (2,)  # alpha's was asked for
