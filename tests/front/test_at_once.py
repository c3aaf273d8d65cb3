"""Requests that are answered without a task: what is at hand, and never another answer than the awaited one."""

from __future__ import annotations

import base64
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from conversations import ENVELOPE
from fronts import by_ours, talk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.server.front.dispatch import Dispatcher
from mcp_skills_server.server.front.request import Request
from mcp_skills_server.server.requests import Settings
from wire import write_skill

LARGE = (1 << 20) + 1
"""Bytes of a file that waits for its turn."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One skill with a small file and a large one."""
    write_skill(tmp_path / "a", guide_md="guide")
    (tmp_path / "a" / "data.bin").write_bytes(bytes(LARGE))
    return tmp_path


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The requests that were tried, each with whether it was answered."""
    tried: list[tuple[str, bool]] = []
    original = Dispatcher.at_once

    def noted(self: Dispatcher, request: Request) -> bytes | None:
        found = original(self, request)
        tried.append((request.method, found is not None))
        return found

    monkeypatch.setattr(Dispatcher, "at_once", noted)
    return tried


def loaded(folder: Path) -> Registry:
    out = Registry([folder])
    out.load()
    return out


def asked(registry: Registry, *requests: tuple[str, dict[str, Any]], patient: bool = True) -> list[dict[str, Any]]:
    """The answers to these requests, in their order."""
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": ENVELOPE}}).encode()
        for number, (method, params) in enumerate(requests)
    ]
    return sorted(talk(by_ours, lines, registry, Settings(), patient=patient).said, key=lambda each: each["id"])


def test_what_is_at_hand_needs_no_task(folder: Path, at_once: list[tuple[str, bool]]) -> None:
    uri = {"uri": "skill://a/SKILL.md"}
    asked_twice = [
        ("skills/list", {}), ("skills/get", uri), ("resources/read", uri), ("resources/list", {}),
        ("prompts/list", {}), ("tools/list", {}), ("resources/directory/read", {"uri": "skill://a"}),
    ]  # fmt: skip
    answers = asked(loaded(folder), *asked_twice, *asked_twice)
    half = len(asked_twice)
    for first, second in zip(answers[:half], answers[half:], strict=True):
        assert second["result"] == first["result"]
    # Without those that are answered as before: what they say says the same (`test_repeats.py`).
    assert at_once[half:] == [(method, True) for method, _ in asked_twice if (method, True) in at_once[half:]]
    assert {("tools/list", True), ("prompts/list", True), ("resources/directory/read", True)} <= {*at_once[half:]}


def test_a_large_file_is_awaited_in_its_turn(
    folder: Path, at_once: list[tuple[str, bool]], caplog: pytest.LogCaptureFixture
) -> None:
    large, small = ("resources/read", {"uri": "skill://a/data.bin"}), ("resources/read", {"uri": "skill://a/guide.md"})
    answers = asked(loaded(folder), small, large, large, small)
    gc.collect()
    assert at_once[1:] == [("resources/read", False), ("resources/read", False), ("resources/read", True)]
    contents = [each["result"]["contents"][0] for each in answers]
    assert [len(base64.b64decode(each["blob"])) for each in contents[1:3]] == [LARGE, LARGE]
    assert contents[0]["text"] == contents[3]["text"] == "guide"
    assert not caplog.records  # nothing is left behind of what was given up


def test_a_file_that_changed_is_read_anew(folder: Path, at_once: list[tuple[str, bool]]) -> None:
    registry, guide = loaded(folder), ("resources/read", {"uri": "skill://a/guide.md"})
    (first,) = asked(registry, guide)
    write_skill(folder / "a", guide_md="another")
    second, third = asked(registry, guide, guide)
    texts = [each["result"]["contents"][0]["text"] for each in (first, second, third)]
    assert texts == ["guide", "another", "another"]
    assert at_once[-1] == ("resources/read", True)


def test_a_refusal_is_the_awaited_one(folder: Path, at_once: list[tuple[str, bool]]) -> None:
    (_, missing, unknown) = asked(
        loaded(folder),
        ("skills/list", {}),
        ("resources/read", {"uri": "skill://a/no.md"}),
        ("skills/get", {"uri": "no"}),
    )
    assert missing["error"]["data"] == {"uri": "skill://a/no.md"} and unknown["error"]["code"] == -32602
    assert at_once[1:] == [("resources/read", False), ("skills/get", False)]


def test_the_list_of_tools_is_written_once_and_anew_after_a_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, written = loaded(folder), 0
    original = jsonrpc.dump

    def counted(value: Any) -> bytes:
        nonlocal written
        written += isinstance(value, list)
        return original(value)

    monkeypatch.setattr(jsonrpc, "dump", counted)
    first, *others = asked(registry, *[("tools/list", {})] * 5)
    assert written == 1
    assert all(each["result"] == first["result"] for each in others)
    write_skill(folder / "b", description="Brews tea.")
    registry.refresh()
    (changed,) = asked(registry, ("tools/list", {}))
    assert "Brews tea." in json.dumps(changed) and "Brews tea." not in json.dumps(first)
