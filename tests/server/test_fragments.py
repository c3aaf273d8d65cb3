"""Parts of results: the same JSON as that of the plain value, written once, and anew only for what changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.view import View
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.server import fragments, prompts, resources, skills
from mcp_skills_server.server.fragments import Fragment, Fragments, dump, plain
from mcp_skills_server.server.requests import Caller, Handler, Settings
from wire import write_skill

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
LISTS: dict[str, Handler] = {
    "skills": skills.list_skills,
    "resources": resources.list_resources,
    "prompts": prompts.list_prompts,
}


def whole(result: dict[str, Any]) -> dict[str, Any]:
    """A result with each part of it as a fragment."""
    return {
        key: Fragments(map(Fragment, value)) if isinstance(value, list) else Fragment(value)
        for key, value in result.items()
    }


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), JSON | st.lists(JSON, max_size=3)), st.data())
def test_a_result_is_the_same_json_whichever_of_its_parts_are_fragments(result: dict[str, Any], data: st.DataObject):
    chosen = data.draw(st.sets(st.sampled_from(sorted(result)))) if result else set[str]()
    mixed = {key: whole(result)[key] if key in chosen else value for key, value in result.items()}
    assert plain(mixed) == result
    assert dump(mixed) == jsonrpc.dump(result)
    assert dump(mixed) == jsonrpc.dump(result)  # and again, when it is written already
    assert plain(mixed) == json.loads(jsonrpc.dump(result))


def test_what_the_receiver_does_not_know_is_left_out():
    def known(value: Any) -> Any:
        return {"a": value["a"]}

    parts = Fragments([Fragment({"b": 1, "a": 2}), Fragment({"a": 3})])
    assert parts.raw(known) == b'[{"a":2},{"a":3}]'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three skills."""
    for name in ("a", "b", "c"):
        write_skill(tmp_path / name)
    return tmp_path


def written(registry: Registry, handler: Handler) -> bytes:
    return dump(anyio.run(handler, View(registry), Settings(), Caller(), {}))


@pytest.mark.parametrize("name", LISTS)
def test_an_edit_has_one_fragment_written_anew(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    registry = Registry([folder])
    registry.load()
    before = written(registry, LISTS[name])
    count = 0
    original = Fragment.raw

    def counted(self: Fragment, sieve: Any = None) -> bytes:
        nonlocal count
        count += self._raw is None  # type: ignore[attr-defined]
        return original(self, sieve)

    monkeypatch.setattr(Fragment, "raw", counted)
    assert written(registry, LISTS[name]) == before
    assert count == 0
    write_skill(folder / "b", description="Another one.")
    registry.refresh([str(folder / "b")])
    after = written(registry, LISTS[name])
    assert count == 1
    assert after != before and b"Another one." in after
    fresh = Registry([folder])
    fresh.load()
    assert after == written(fresh, LISTS[name])


def test_pages_of_cursors_that_are_made_up_are_bounded(folder: Path):
    registry = Registry([folder])
    registry.load()
    made = fragments.Page(Fragments(), None)
    for number in range(10_000):
        fragments.keep_page(registry.snapshot, ("skills", number), made)
    kept = [number for number in range(10_000) if fragments.kept_page(registry.snapshot, ("skills", number))]
    assert 0 < len(kept) <= 256
    assert kept[-1] == 9_999
