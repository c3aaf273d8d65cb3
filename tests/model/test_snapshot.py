"""Snapshot: look-ups, pages, changes, and the cost of long paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.model import SKILL_MD, Changes, Problem, Reading, Skill, SkillFile, Snapshot, Standing
from tables import each_row


def skill(
    path: str,
    standing: Standing = Standing.VALID,
    *files: str,
    problems: tuple[Problem, ...] = (),
    empty: tuple[str, ...] = (),
    **fields: Any,
) -> Skill:
    """Return a skill named by the last segment of its path, unless `fields` has a name."""
    fields = {"name": path.rpartition("/")[2]} | fields
    served = {file: SkillFile(0, f"{path}/{file}", 3) for file in sorted({SKILL_MD, *files})}
    return Skill(path, 0, path, Reading(fields, None, standing, problems), served, (), standing, empty)


def snapshot_of(*skills: Skill, problems: tuple[Problem, ...] = ()) -> Snapshot:
    return Snapshot({each.path: each for each in skills}, problems)


def problem_at(path: str) -> Problem:
    return Problem("yaml-syntax", "error", "what", "mend", 1, path)


NAMES = ["a", "b", "c", "a-b", "é", "a.b"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
STANDINGS = st.sampled_from(Standing)


def test_problem_is_one_line_with_its_place() -> None:
    found = Problem("name-missing", "error", "there is no name", "add one").at("x/SKILL.md", "x")
    assert str(found) == "x/SKILL.md: error: there is no name; add one [name-missing]"
    assert str(Problem("a", "warning", "what", "", 7, "x")) == "x:7: warning: what [a]"


@each_row(("fields", "name", "description"), [
    ({"name": "n", "description": "d"}, "n", "d"),
    *((each, "last", "") for each in ({"name": ""}, {"name": 7, "description": ["d"]}, {"name": None})),
])  # fmt: skip
def test_skill_without_a_valid_name_has_that_of_its_directory(
    fields: Mapping[str, Any], name: str, description: str
) -> None:
    one = skill("acme/last", **fields)
    assert (one.name, one.description) == (name, description)


def test_skill_content_differs_by_each_field_that_clients_see() -> None:
    one = skill("a")
    (file,) = one.files.values()
    more = {**one.files, "x.md": file}
    assert one.has_same_content(replace(one))
    reading, findings = Reading({}, None, Standing.VALID, ()), (problem_at("a"),)
    for change in (
        {"reading": reading}, {"files": more}, {"findings": findings}, {"empty": ("b",)}, {"origin": "https://a"},
        {"standing": Standing.LENIENT},
    ):  # fmt: skip
        assert not one.has_same_content(replace(one, **change))
    assert Changes({"a": one}, {"a": replace(one, files=more)}).files == {("a", "x.md")}
    assert one.digests == {}
    assert not file.executable
    read, runnable = file._replace(digest="sha256:0"), file._replace(executable=True)
    assert replace(one, files={SKILL_MD: read}).digests == {SKILL_MD: "sha256:0"}
    for other in (read, runnable):
        changed = replace(one, files={SKILL_MD: other})
        assert not one.has_same_content(changed)
        assert Changes({"a": one}, {"a": changed}).files == {("a", SKILL_MD)}
    assert one.has_same_content(replace(one, files={SKILL_MD: file._replace()}))


@pytest.mark.requirement("X-1")
def test_all_that_a_snapshot_holds_is_frozen() -> None:
    one = skill("a")
    (file,) = one.files.values()
    for kept in (one, file, one.reading, problem_at("a"), Changes({}, {"a": one})):
        for name in getattr(kept, "_fields", None) or [field.name for field in fields(kept)]:
            with pytest.raises(AttributeError):
                setattr(kept, name, None)
    with pytest.raises(TypeError):
        snapshot_of(one).skills["a"] = one  # type: ignore[index]


@pytest.mark.requirement("X-2", "S40-5")
def test_look_ups_show_skills_of_the_least_standing_or_higher() -> None:
    assert [*Standing] == [0, 1, 2]  # stored in the index
    snapshot = snapshot_of(skill("c"), skill("b", Standing.LENIENT), skill("a", Standing.UNUSABLE))
    for least, paths in ((Standing.UNUSABLE, ["a", "b", "c"]), (Standing.LENIENT, ["b", "c"]), (Standing.VALID, ["c"])):
        assert snapshot.paths(least) == paths
        page, cursor = snapshot.page(None, 10, least)
        assert [each.path for each in page] == paths
        assert cursor is None
        for path in "abc":
            shown = path in paths
            assert (snapshot.named(path, least) == [path]) is shown
            assert (snapshot.find((path, SKILL_MD), least) is not None) is shown
            assert (snapshot.children((path,), least) is not None) is shown


SNAPSHOTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2))


@given(st.lists(SNAPSHOTS, min_size=3, max_size=4))
def test_successive_changes_combine_to_the_change_from_first_to_last(states: list[dict[str, int]]) -> None:
    shared = {(path, number): skill(path) for path in "abc" for number in range(3)}
    snapshots = [{path: shared[path, number] for path, number in state.items()} for state in states]

    def between(old: Mapping[str, Skill], new: Mapping[str, Skill]) -> Changes:
        before = {path: one for path, one in old.items() if new.get(path) is not one}
        return Changes(before, {path: one for path, one in new.items() if old.get(path) is not one})

    found = Changes({}, {})
    for old, new in pairwise(snapshots):
        found = found.then(between(old, new))
    direct = between(snapshots[0], snapshots[-1])
    assert between(found.before, found.after) == direct
    assert bool(direct) is (snapshots[0] != snapshots[-1])
    assert set(Snapshot(snapshots[-1]).differing(Snapshot(snapshots[0]))) == {*direct.before, *direct.after}


def test_problems_are_sorted_by_skill_and_size_covers_all_files() -> None:
    two = (skill(path, problems=(problem_at(path),)) for path in "ba")
    snapshot = snapshot_of(*two, problems=(problem_at("loose"),))
    assert [each.path for each in snapshot.all_problems] == ["a", "b", "loose"]
    assert skill("a", Standing.VALID, "b.md").size == 6


@pytest.mark.requirement("S40-37")
def test_skills_with_one_name_are_sorted_by_path() -> None:
    snapshot = snapshot_of(skill("z/a"), skill("a"), skill("m/a", Standing.LENIENT), skill("b", name="a"))
    assert snapshot.named("a", Standing.VALID) == ["a", "b", "z/a"]
    assert snapshot.named("a", Standing.LENIENT) == ["a", "b", "m/a", "z/a"]
    assert snapshot.named("none", Standing.VALID) == []


@pytest.mark.requirement("S76-5", "S40-22")
@given(st.sets(PATHS, max_size=6), st.lists(st.sets(PATHS, max_size=6), min_size=1, max_size=8), st.integers(1, 3))
def test_pages_show_each_lasting_skill_once_while_others_change(
    stay: set[str], passing: list[set[str]], size: int
) -> None:
    seen, after = list[str](), None
    for step in range(1000):
        snapshot = Snapshot({path: skill(path) for path in stay | passing[min(step, len(passing) - 1)]})
        page, after = snapshot.page(after, size, Standing.VALID)
        seen += [each.path for each in page]
        if after is None:
            break
        assert len(page) == size
    assert after is None
    assert seen == sorted(set(seen))
    assert stay <= set(seen)


def test_file_belongs_to_the_innermost_skill_of_the_least_standing() -> None:
    outer = skill("out", Standing.VALID, "in/SKILL.md", "in/x.md", "y.md")
    inner, low = (skill("out/in", standing, "x.md") for standing in (Standing.VALID, Standing.LENIENT))
    for snapshot, path, found in (
        (snapshot_of(outer, inner), "out/in/x.md", (inner, "x.md")),
        (snapshot_of(outer, inner), "out/in/SKILL.md", (inner, SKILL_MD)),
        (snapshot_of(outer, inner), "out/y.md", (outer, "y.md")),
        (snapshot_of(outer, inner), "out/in", None),
        (snapshot_of(outer, inner), "out/in/gone.md", None),
        (snapshot_of(outer, low), "out/in/SKILL.md", (outer, "in/SKILL.md")),
    ):
        assert snapshot.find(tuple(path.split("/")), Standing.VALID) == found


@pytest.mark.requirement("S40-30")
@each_row(
    "segments", [(), ("a",), (SKILL_MD,), ("a", "b"), ("", "a", SKILL_MD), ("a", "", SKILL_MD), ("b", "a", SKILL_MD)]
)
def test_path_of_no_file_is_not_found(segments: tuple[str, ...]) -> None:
    assert snapshot_of(skill("a", Standing.VALID, "dir/x.md")).find(segments, Standing.VALID) is None


@pytest.mark.requirement("S40-27", "S40-29")
@given(st.dictionaries(PATHS, st.tuples(st.sets(PATHS, max_size=4), STANDINGS), max_size=5), STANDINGS)
def test_children_lead_to_every_file_that_find_finds(
    drawn: dict[str, tuple[set[str], Standing]], least: Standing
) -> None:
    tree = {path: {SKILL_MD, *(f"f/{file}.md" for file in files)} for path, (files, _) in drawn.items()}
    skills: dict[str, Skill] = {}
    for path, (_, standing) in drawn.items():
        below = [inner for inner in tree if inner.startswith(path + "/")]
        nested = {f"{inner[len(path) + 1 :]}/{file}" for inner in below for file in tree[inner]}
        skills[path] = skill(path, standing, *tree[path], *nested)
    snapshot, reached = Snapshot(skills), set[str]()
    todo = [(path.split("/")[0],) for path in skills]
    while todo:
        directory = todo.pop()
        for name, child in (snapshot.children(directory, least) or {}).items():
            target = (*directory, name)
            if child is None:
                assert snapshot.children(target, least)
                todo.append(target)
            else:
                assert snapshot.find(target, least) == child
                reached.add("/".join(target))
    assert reached == {f"{path}/{file}" for path in snapshot.paths(least) for file in skills[path].files}


class CountingSkills(dict[str, Skill]):
    """Skills by path that count the characters of the paths that are looked up."""

    looked_up = 0

    def get(self, key: str, default: Any = None) -> Any:  # type: ignore[override]
        self.looked_up += len(key)
        return super().get(key, default)


def cost(segments: tuple[str, ...]) -> int:
    """Return the characters that `find` and `children` look up for a path."""
    skills = CountingSkills(
        {each.path: each for each in (skill("a"), skill("a/a/a", Standing.VALID, "a/a"), skill("b/c"))}
    )
    snapshot = Snapshot(skills)
    snapshot.paths(Standing.VALID)
    snapshot.find(segments, Standing.VALID)
    snapshot.children(segments, Standing.VALID)
    return skills.looked_up


def test_path_over_4096_characters_is_unknown_without_a_look_up() -> None:
    assert cost(("a", "x" * 4_094)) > 0
    assert cost(("a", "x" * 4_095)) == 0
    assert cost(("a",) * 2_049) == 0
