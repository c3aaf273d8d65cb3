"""All skills at one moment: looking up, paging, and what tells one moment from the next."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.model import (
    LONGEST_PATH,
    SKILL_MD,
    Changes,
    Problem,
    Reading,
    Skill,
    SkillFile,
    Snapshot,
    Standing,
)
from tables import each_row


def skill(
    path: str,
    standing: Standing = Standing.VALID,
    *files: str,
    name: str | None = None,
    problems: tuple[Problem, ...] = (),
    empty: tuple[str, ...] = (),
) -> Skill:
    fields = {} if name == "" else {"name": name or path.rpartition("/")[2]}
    sizes = {file: SkillFile(0, f"{path}/{file}", 3, "3", True) for file in sorted({SKILL_MD, *files})}
    return Skill(path, 0, path, Reading(fields, None, standing, problems), sizes, (), standing, empty)


def snapshot(*skills: Skill, problems: tuple[Problem, ...] = ()) -> Snapshot:
    return Snapshot({each.path: each for each in skills}, problems)


def at(path: str, code: str = "yaml-syntax") -> Problem:
    return Problem(code, "error", "what", "mend", 1, path)


_PATHS = st.lists(st.sampled_from(["a", "b", "c", "a-b", "é", "a.b"]), min_size=1, max_size=3).map("/".join)
_STANDINGS = st.sampled_from(Standing)
_SKILLS = st.builds(skill, _PATHS, _STANDINGS, name=st.sampled_from([None, "a", "same", ""]))
_CATALOGUES = st.dictionaries(_PATHS, st.none(), max_size=8).flatmap(
    lambda paths: st.fixed_dictionaries(
        {
            path: st.builds(skill, st.just(path), _STANDINGS, name=st.sampled_from([None, "a", "same", ""]))
            for path in paths
        }
    )
)


# Standings


@pytest.mark.requirement("X-2", "S40-5")
def test_each_threshold_shows_what_stands_there_or_higher():
    here = snapshot(skill("c"), skill("b", Standing.LENIENT), skill("a", Standing.UNUSABLE))
    assert here.paths(Standing.UNUSABLE) == ["a", "b", "c"]
    assert here.paths(Standing.LENIENT) == ["b", "c"]
    assert here.paths(Standing.VALID) == ["c"]
    for least in Standing:
        seen, more = here.page(None, 10, least)
        assert [each.path for each in seen] == here.paths(least)
        assert more is None
        for path in "abc":
            shown = path in here.paths(least)
            assert (here.named(path, least) == [path]) is shown
            assert (here.find((path, SKILL_MD), least) is not None) is shown
            assert (here.children((path,), least) is not None) is shown


# Changes


@pytest.mark.requirement("X-1")
def test_a_snapshot_cannot_be_changed():
    with pytest.raises(TypeError):
        snapshot(skill("a")).skills["b"] = skill("b")  # type: ignore[index]


def test_changes_are_true_only_when_there_are_some():
    assert not Changes({}, {})
    assert Changes({"a": skill("a")}, {})
    assert Changes({}, {"a": skill("a")})


SNAPSHOTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2))


@given(st.lists(SNAPSHOTS, min_size=3, max_size=4))
def test_changes_that_follow_each_other_are_the_change_from_first_to_last(states: list[dict[str, int]]):
    shared = {(path, number): skill(path) for path in "abc" for number in range(3)}
    snapshots = [{path: shared[path, number] for path, number in state.items()} for state in states]

    def between(old: dict[str, Skill], new: dict[str, Skill]) -> Changes:
        before = {path: one for path, one in old.items() if new.get(path) is not one}
        return Changes(before, {path: one for path, one in new.items() if old.get(path) is not one})

    found = Changes({}, {})
    for old, new in pairwise(snapshots):
        found = found.then(between(old, new))
    direct = between(snapshots[0], snapshots[-1])
    assert {path: one for path, one in found.before.items() if found.after.get(path) is not one} == direct.before
    assert {path: one for path, one in found.after.items() if found.before.get(path) is not one} == direct.after


def test_all_problems_come_by_skill_path_and_then_the_loose_ones():
    here = snapshot(
        skill("b", problems=(at("b"),)), skill("a", Standing.UNUSABLE, problems=(at("a"),)), problems=(at("loose"),)
    )
    assert [each.path for each in here.all_problems] == ["a", "b", "loose"]


# Names


@pytest.mark.requirement("S40-37")
def test_skills_that_share_a_name_are_told_in_the_order_of_their_paths():
    here = snapshot(skill("z/a"), skill("a"), skill("m/a", Standing.LENIENT), skill("b", name="a"))
    assert here.named("a", Standing.VALID) == ["a", "b", "z/a"]
    assert here.named("a", Standing.LENIENT) == ["a", "b", "m/a", "z/a"]
    assert here.named("none", Standing.VALID) == []


# Pages


@pytest.mark.requirement("S76-5", "S40-22")
@given(_CATALOGUES, st.integers(1, 4), _STANDINGS)
def test_pages_hold_every_skill_once_in_order_and_end_where_there_is_no_more(
    skills: dict[str, Skill], size: int, least: Standing
):
    here = Snapshot(dict(skills))
    seen: list[str] = []
    after: str | None = None
    while True:
        page, after = here.page(after, size, least)
        seen += [each.path for each in page]
        if after is None:
            break
        assert len(page) == size
    assert seen == here.paths(least)


def test_a_page_that_ends_exactly_at_the_end_has_no_next():
    here = snapshot(skill("a"), skill("b"))
    page, more = here.page(None, 2, Standing.VALID)
    assert ([each.path for each in page], more) == (["a", "b"], None)
    assert here.page("b", 2, Standing.VALID) == ([], None)
    assert snapshot().page(None, 2, Standing.VALID) == ([], None)


def test_a_page_goes_on_behind_a_path_that_is_gone_or_begins_alike():
    here = snapshot(skill("a"), skill("a-b"), skill("a/b"), skill("ab"), skill("c"))
    assert [each.path for each in here.page("a", 9, Standing.VALID)[0]] == ["a-b", "a/b", "ab", "c"]
    assert [each.path for each in here.page("b-gone", 9, Standing.VALID)[0]] == ["c"]
    assert [each.path for each in here.page("", 9, Standing.VALID)[0]] == ["a", "a-b", "a/b", "ab", "c"]


@pytest.mark.requirement("S76-5", "S40-22")
@given(st.sets(_PATHS, max_size=6), st.lists(st.sets(_PATHS, max_size=6), min_size=1, max_size=8), st.integers(1, 3))
def test_what_stays_is_seen_exactly_once_whatever_comes_or_goes_between_pages(
    stay: set[str], passing: list[set[str]], size: int
):
    seen: list[str] = []
    after: str | None = None
    for step in range(1000):
        here = Snapshot({path: skill(path) for path in stay | passing[min(step, len(passing) - 1)]})
        page, after = here.page(after, size, Standing.VALID)
        seen += [each.path for each in page]
        if after is None:
            break
    assert after is None
    assert seen == sorted(set(seen))
    assert stay <= set(seen)


# The next snapshot


# Finding


def test_the_innermost_skill_has_the_file():
    outer = skill("out", Standing.VALID, "in/SKILL.md", "in/x.md", "y.md")
    inner = skill("out/in", Standing.VALID, "x.md")
    here = snapshot(outer, inner)
    assert here.find(("out", "in", "x.md"), Standing.VALID) == (inner, "x.md")
    assert here.find(("out", "in", SKILL_MD), Standing.VALID) == (inner, SKILL_MD)
    assert here.find(("out", "y.md"), Standing.VALID) == (outer, "y.md")
    assert here.find(("out", "in"), Standing.VALID) is None
    assert here.find(("out", "in", "gone.md"), Standing.VALID) is None


def test_files_of_an_inner_skill_that_stands_too_low_are_the_outer_ones():
    outer = skill("out", Standing.VALID, "in/SKILL.md")
    here = snapshot(outer, skill("out/in", Standing.LENIENT))
    assert here.find(("out", "in", SKILL_MD), Standing.VALID) == (outer, "in/SKILL.md")


@pytest.mark.requirement("S40-30")
@each_row(
    "segments", [(), ("a",), (SKILL_MD,), ("a", "b"), ("", "a", SKILL_MD), ("a", "", SKILL_MD), ("b", "a", SKILL_MD)]
)
def test_what_names_no_file_is_not_found(segments: tuple[str, ...]):
    assert snapshot(skill("a", Standing.VALID, "dir/x.md")).find(segments, Standing.VALID) is None


@pytest.mark.requirement("S40-27", "S40-29")
@given(st.dictionaries(_PATHS, st.tuples(st.sets(_PATHS, max_size=4), _STANDINGS), max_size=5), _STANDINGS)
def test_walking_from_directory_to_directory_meets_every_file_where_find_has_it(
    drawn: dict[str, tuple[set[str], Standing]], least: Standing
):
    tree = {path: {SKILL_MD, *(f"f/{file}.md" for file in files)} for path, (files, _) in drawn.items()}
    skills: dict[str, Skill] = {}
    for path, (_, standing) in drawn.items():
        nested = {
            f"{inner[len(path) + 1 :]}/{file}" for inner in tree if inner.startswith(path + "/") for file in tree[inner]
        }
        skills[path] = skill(path, standing, *tree[path], *nested)
    here = Snapshot(skills)

    met: set[str] = set()
    todo = [(path.split("/")[0],) for path in skills]
    while todo:
        directory = todo.pop()
        for name, child in (here.children(directory, least) or {}).items():
            target = (*directory, name)
            if child is None:
                assert here.children(target, least)
                todo.append(target)
            else:
                assert here.find(target, least) == child
                met.add("/".join(target))
    served = [path for path in skills if skills[path].standing >= least]
    assert met == {f"{path}/{file}" for path in served for file in skills[path].files}


def test_children_tell_an_empty_directory_and_refuse_what_is_none():
    here = snapshot(skill("acme/a", Standing.VALID, "dir/x.md", empty=("hollow", "dir/deeper/still")))
    assert list(here.children(("acme", "a"), Standing.VALID) or {}) == [SKILL_MD, "dir", "hollow"]
    assert here.children(("acme", "a", "hollow"), Standing.VALID) == {}
    assert here.children(("acme", "a", "dir", "deeper"), Standing.VALID) == {"still": None}
    assert here.children(("acme",), Standing.VALID) == {"a": None}
    for nothing in (("acme", "a", SKILL_MD), ("acme", "a", "gone"), ("acme", "b"), ("acm",), ("a",)):
        assert here.children(nothing, Standing.VALID) is None


# What a look-up costs


class _Counting(dict[str, Skill]):
    """Skills by path that count the characters of every path that is looked up."""

    looked_at = 0

    def get(self, key: str, default: Any = None) -> Any:  # type: ignore[override]
        self.looked_at += len(key)
        return super().get(key, default)


def _cost(segments: tuple[str, ...]) -> int:
    skills = _Counting({each.path: each for each in (skill("a"), skill("a/a/a", Standing.VALID, "a/a"), skill("b/c"))})
    here = Snapshot(skills)
    here.paths(Standing.VALID)
    here.find(segments, Standing.VALID)
    here.children(segments, Standing.VALID)
    return skills.looked_at


@each_row("name", ["a", "no", "\u00e9" * 7])
def test_a_path_of_many_segments_costs_as_many_looks_as_a_skill_path_has_segments(name: str):
    long = LONGEST_PATH // (len(name) + 1)
    assert _cost((name,) * long) <= 2 * 3 * 3 * (len(name) + 1)
    assert _cost((name,) * (long // 4)) == _cost((name,) * long)


@given(st.lists(st.sampled_from(["a", "b", "c", "no"]), min_size=1, max_size=400))
def test_a_look_up_costs_no_more_than_its_input(segments: list[str]):
    assert _cost(tuple(segments)) <= 2 * 3 * len("/".join(segments))


def test_a_path_longer_than_any_on_a_disk_is_unknown_without_a_look():
    assert _cost(("a",) * (LONGEST_PATH // 2 + 1)) == 0
    assert _cost(("a", "x" * LONGEST_PATH)) == 0


def test_a_directory_of_many_files_asks_once_which_skills_hold_it():
    skills = _Counting({"a/b/c": skill("a/b/c", Standing.VALID, *(f"dir/{each}" for each in range(500)))})
    found = Snapshot(skills).children(("a", "b", "c", "dir"), Standing.VALID)
    assert found is not None and len(found) == 500
    assert skills.looked_at == len("a") + len("a/b") + len("a/b/c")


@given(_CATALOGUES, st.lists(st.sampled_from(["a", "b", "c", "a-b", "a.b", SKILL_MD]), min_size=1, max_size=4))
def test_children_of_a_prefix_are_those_that_every_path_gives(skills: dict[str, Skill], segments: list[str]):
    prefix = "/".join(segments) + "/"
    held = any(skills[path].standing >= Standing.VALID and prefix.startswith(path + "/") for path in skills)
    below = {
        p[len(prefix) :].split("/")[0]
        for p, each in skills.items()
        if p.startswith(prefix) and each.standing >= Standing.VALID
    }
    if not held:
        assert set(Snapshot(skills).children(tuple(segments), Standing.VALID) or ()) == below


def test_a_change_of_many_skills_is_as_one_of_few() -> None:
    old = snapshot(*(skill(f"old/{number:03}") for number in range(150)), skill("stays"))
    assert len(old.paths(Standing.VALID)) == len(old.named("stays", Standing.VALID)) + 150
    came = {f"new/{number:03}": skill(f"new/{number:03}") for number in range(120)}
    new = snapshot(*came.values(), old.skills["old/149"], old.skills["stays"])
    assert new.paths(Standing.VALID) == [*came, "old/149", "stays"]
    assert set(new.differing(old)) == old.skills.keys() ^ new.skills.keys()
