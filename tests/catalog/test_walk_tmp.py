"""Whatever is done to the folders, an incremental refresh ends where a fresh scan would."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.forest import loaded, skill_md, view
from mcp_skills_server.catalog import scan
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.scan import Limits
from mcp_skills_server.model import Changes, Skill

LIMITS = Limits(skill_md=260, files=4, bytes=700, depth=2)
DIRECTORIES: Final = ("a", "a", "a", "b", "b", "s", ".git")
FILES: Final = ("SKILL.md", "SKILL.md", "SKILL.md", "skill.md", "x.md", "y.txt", "z.bin", "x.md~")
CONTENTS: Final = (
    *(skill_md(name) for name in ("a", "b", "s", "one")),
    skill_md("a", body="Something else."),
    skill_md("b", "dependencies: {resources: [{uri: 'skill://a/SKILL.md'}]}"),
    skill_md("s", "version: 1"),
    "---\nname: a\n---\n",
    "---\nname: [\n---\n",
    "no frontmatter",
    "x" * 300,
    "",
)
LINKS: Final = (
    "x.md",
    "SKILL.md",
    "../x.md",
    ".",
    "nowhere",
    "../../outside.md",
    "../../../outside.md",
    "../../outside",
    "../../../outside",
)

ROOTS = st.sampled_from(("one", "two"))
DIRECTORY = st.lists(st.sampled_from(DIRECTORIES), max_size=3).map("/".join)
SOMEWHERE = st.tuples(ROOTS, DIRECTORY).map("/".join).map(os.path.normpath)
FILE = st.tuples(SOMEWHERE, st.sampled_from(FILES)).map("/".join).map(os.path.normpath)
LINK = st.tuples(SOMEWHERE, st.sampled_from(("l.md", "SKILL.md", "b"))).map("/".join).map(os.path.normpath)
OPERATION = st.one_of(
    st.tuples(st.just("write"), FILE, st.sampled_from(CONTENTS)),
    st.tuples(st.just("write"), FILE, st.sampled_from(CONTENTS)),
    st.tuples(st.just("same"), FILE, st.just("")),
    st.tuples(st.just("touch"), FILE, st.just("")),
    st.tuples(st.just("remove"), st.one_of(FILE, SOMEWHERE, LINK), st.just("")),
    st.tuples(st.just("move"), SOMEWHERE, SOMEWHERE),
    st.tuples(st.just("rename"), FILE, FILE),
    st.tuples(st.just("directory"), st.one_of(SOMEWHERE, FILE), st.just("")),
    st.tuples(st.just("link"), LINK, st.sampled_from(LINKS)),
    st.tuples(st.just("prove"), st.just("one"), st.just("")),
)


def make_way(place: Path) -> list[str]:
    """Make the directories above; what a watch tells of is the outermost one that was missing."""
    missing = [above for above in place.parents if not os.path.lexists(above)]
    place.parent.mkdir(parents=True, exist_ok=True)
    return [str(missing[-1])] if missing else []


def remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()


def perform(top: Path, verb: str, one: str, other: str) -> list[str]:
    """Do it, and return the paths that a watch would name at the least. What cannot be done is left undone."""
    moves = verb in ("move", "rename")
    place, target, told = top / one, top / other if moves else top / one, list[str]()
    if top in (place.parent, target.parent) or any(
        os.path.realpath(p.parent) != str(p.parent) for p in (place, target)
    ):
        return told  # the roots stay, and nothing is done through a link
    if place.is_symlink() and verb not in ("remove", "move", "rename"):
        return told
    with suppress(OSError):
        if verb in ("write", "directory", "link"):
            told += make_way(place)
        elif moves:
            told += make_way(target)
        told += [] if told else [str(target)]
        if verb == "write":
            place.write_text(other)
        elif verb == "same":
            found = place.stat()
            place.write_bytes(place.read_bytes()[::-1])
            os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
        elif verb == "touch":
            os.utime(place)
        elif verb == "directory":
            place.mkdir()
        elif verb == "link":
            place.symlink_to(other)
        elif verb == "remove":
            remove(place)
        else:
            place.rename(target)
            told.append(str(place))
    return told


def check(registry: Registry, top: Path) -> None:
    fresh = loaded(top / "one", top / "two", limits=LIMITS)
    assert view(registry) == view(fresh)


def check_changes(before: dict[str, Skill], after: dict[str, Skill], changes: Changes) -> None:
    """The changes are exactly one snapshot minus the other."""
    assert dict(changes.before) == {path: old for path, old in before.items() if after.get(path) is not old}
    assert dict(changes.after) == {path: new for path, new in after.items() if before.get(path) is not new}


@given(st.lists(st.lists(OPERATION, min_size=1, max_size=3), min_size=1, max_size=10))
@settings(max_examples=int(os.environ.get("N", "100")), deadline=None)
def test_an_incremental_refresh_ends_where_a_fresh_scan_does(steps: Sequence[Sequence[tuple[str, str, str]]]) -> None:
    with tempfile.TemporaryDirectory() as made, mock.patch.object(scan, "_LOOK_BELOW", 1):
        top = Path(os.path.realpath(made))
        (top / "outside").mkdir()
        (top / "outside.md").write_text("secret")
        (top / "one").mkdir()
        (top / "two").mkdir()
        registry = loaded(top / "one", top / "two", limits=LIMITS)
        for step in steps:
            paths: list[str] = []
            for verb, one, other in step:
                if verb == "prove":
                    for skill in registry.snapshot.skills.values():
                        registry.prove(skill)
                else:
                    paths += perform(top, verb, one, other)
            before = dict(registry.snapshot.skills)
            changes = registry.refresh(paths)
            check_changes(before, dict(registry.snapshot.skills), changes)
            check(registry, top)
            kept = dict(registry.snapshot.skills)
            assert not registry.refresh()
            assert all(registry.snapshot.skills[path] is skill for path, skill in kept.items())
            check(registry, top)
