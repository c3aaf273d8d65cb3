"""What a supervisor's registry looked at, a worker's looks at: both come to know the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from mcp_skills_server.codes import problem
from mcp_skills_server.web.workers.following import Following, FollowingRegistry
from mcp_skills_server.web.workers.leading import LeadingRegistry
from wire import write_skill


class Pair:
    """A registry that leads, and one that follows it as its worker would, a message at a time."""

    def __init__(self, root: Path) -> None:
        self.told: list[dict[str, Any]] = []
        self.leading = LeadingRegistry([root], quiet_s=0)
        self.leading.tell = lambda raw: self.told.append(json.loads(raw))
        self.registry = FollowingRegistry([root], quiet_s=0)
        self.late: list[float] = []
        self.follower = Following(self.registry, self.late.append)
        self.leading.load()
        self.follow({"say": "load"})

    def follow(self, *messages: dict[str, Any]) -> None:
        for each in messages:
            self.follower.messages.put(each)
        while not self.follower.messages.empty():
            self.follower._take(self.follower.messages.get())

    def settle(self) -> None:
        """Have it follow all that was told."""
        told, self.told[:] = [*self.told], []
        self.follow(*told)

    def known(self) -> list[Any]:
        return [
            ({path: skill.frontmatter for path, skill in each.snapshot.skills.items()}, each.problems())
            for each in (self.leading, self.registry)
        ]


def look(*paths: str) -> dict[str, Any]:
    return {"say": "look", "paths": [*paths] or None, "at": monotonic()}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    for name in ("a", "b", "group/c"):
        write_skill(tmp_path / name)
    return Pair(tmp_path)


def test_the_first_scan_is_not_told(pair: Pair) -> None:
    assert pair.told == []
    assert len(pair.registry.snapshot.skills) == 3


def test_each_look_is_told_and_brings_both_to_the_same(pair: Pair, tmp_path: Path) -> None:
    write_skill(tmp_path / "d", references__guide_md="Guide.\n")
    write_skill(tmp_path / "a", description="Other words.")
    (tmp_path / "b" / "SKILL.md").write_text("broken")
    shutil.rmtree(tmp_path / "group")
    paths = [str(tmp_path / name) for name in ("d", "a/SKILL.md", "b/SKILL.md", "group")]
    for path in paths:
        pair.leading.refresh([path])
    assert [each["paths"] for each in pair.told] == [[path] for path in paths]
    pair.settle()
    one, other = pair.known()
    assert one == other and set(one[0]) >= {"a", "d"} and "group/c" not in one[0]


def test_a_look_at_everything_is_told_where_it_found_something(pair: Pair, tmp_path: Path) -> None:
    pair.leading.refresh()
    assert pair.told == []
    write_skill(tmp_path / "d")
    pair.leading.refresh()
    assert [each["paths"] for each in pair.told] == [None]
    pair.settle()
    pair.leading.refresh_deferred(lambda *_: None)  # as the watch looks, in case that an event was lost
    assert [each["paths"] for each in pair.told] == [None]
    pair.settle()
    one, other = pair.known()
    assert one == other and "d" in one[0]


def test_what_a_source_says_is_noted_by_both(pair: Pair, tmp_path: Path) -> None:
    found = problem("root-missing", "it was refused").at("https://site.example", "")
    pair.leading.note(str(tmp_path), "r1", [found])
    pair.settle()
    one, other = pair.known()
    assert one == other and found in one[1]
    assert [each.revision for each in pair.registry.roots] == ["r1"]
    assert json.loads(pair.leading.notes[str(tmp_path)])["revision"] == "r1"


def test_a_path_that_is_no_utf_8_arrives_as_it_is(pair: Pair, tmp_path: Path) -> None:
    path = str(tmp_path / "x") + "\udcff"
    pair.leading.refresh([path])
    assert pair.told[0]["paths"] == [path]


def test_looks_that_wait_are_done_at_once(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[list[str] | None] = []
    monkeypatch.setattr(pair.registry, "refresh", looked.append)
    states = {"say": "states", "states": [{"name": "x"}]}
    pair.follow(look("/a"), look("/b"), states, look("/c"))
    pair.follow(look("/a"), look())
    assert looked == [["/a", "/b"], ["/c"], None]
    assert pair.follower.states == [{"name": "x"}]


def test_nothing_is_looked_at_before_the_folders_are_watched(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    registry = FollowingRegistry([tmp_path])
    follower = Following(registry)
    follower.messages.put(look())
    follower._take(follower.messages.get())
    assert not registry.loaded.is_set() and not registry.snapshot.skills


def test_who_answered_before_it_had_a_change_says_since_when(pair: Pair, tmp_path: Path) -> None:
    write_skill(tmp_path / "d")
    pair.leading.refresh([str(tmp_path / "d")])
    write_skill(tmp_path / "e")
    pair.leading.refresh([str(tmp_path / "e")])
    first = pair.told[0]["at"]
    pair.follower.asked()
    pair.settle()
    assert pair.late == [first] and {"d", "e"} <= pair.registry.snapshot.skills.keys()


def test_who_was_asked_only_before_or_afterwards_was_not_late(pair: Pair, tmp_path: Path) -> None:
    pair.follower.asked()
    write_skill(tmp_path / "d")
    pair.leading.refresh([str(tmp_path / "d")])
    pair.settle()
    pair.follower.asked()
    pair.follow(look(str(tmp_path / "a")))  # where nothing is another
    assert pair.late == []


def test_what_a_request_found_by_itself_was_late_too(pair: Pair, tmp_path: Path) -> None:
    pair.registry.followed = True
    write_skill(tmp_path / "a", description="Other words.")
    pair.leading.refresh([str(tmp_path / "a")])
    pair.follower.asked()
    pair.registry.refresh_deferred()
    pair.settle()
    assert len(pair.late) == 1


def test_other_grants_are_in_force_at_each_worker_in_its_own_time(pair: Pair) -> None:
    pair.follower.regranted()
    assert pair.late == []
    pair.follower.asked()
    pair.follower.regranted()
    (since,) = pair.late
    assert since < monotonic() - 4


def test_the_others_notify_once_more(pair: Pair) -> None:
    heard: list[float] = []
    pair.follower.again = heard.append
    pair.follow({"say": "again", "since": 12.5})
    assert heard == [12.5]
