"""A registry behind a lock file: nobody ever sees a skill that is not the one that was locked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.catalog.gates import GateRefusal, all_of
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.codes import problem
from mcp_skills_server.provenance.lock import Pins
from wire import write_skill


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("kept", "other"):
        write_skill(tmp_path / "root" / name, scripts__run_py="print(1)\n")
    return tmp_path / "root"


def locked(*roots: Path) -> dict[str, dict[str, str]]:
    """What a lock file has of these roots."""
    out: dict[str, dict[str, str]] = {}
    for root in roots:
        with Registry([root]) as registry:
            skills = registry.snapshot.skills
            out[str(root)] = {path: registry.digest_over(skill) for path, skill in skills.items()}
    return out


def codes(registry: Registry) -> dict[str, str]:
    return {each.skill: each.code for each in registry.snapshot.problems}


@pytest.mark.parametrize(("path", "raw"), [
    ("SKILL.md", b"---\nname: other\ndescription: Does another thing when it is asked to.\n---\n"),
    ("scripts/run.py", b"print(2)\n"), ("more.md", b"More.\n"), ("scripts/run.py", None),
])  # fmt: skip
def test_a_skill_with_other_files_is_not_served_until_it_is_again_what_it_was(
    root: Path, path: str, raw: bytes | None
) -> None:
    gate, changed = Pins(locked(root), {}), root / "other" / path
    before = changed.read_bytes() if changed.exists() else None
    put(changed, raw)
    with Registry([root], gate=gate) as registry:
        assert sorted(registry.snapshot.skills) == ["kept"]
        assert codes(registry) == {"other": "lock-differs"}
        put(changed, before)
        registry.refresh([str(root / "other")])
        assert sorted(registry.snapshot.skills) == ["kept", "other"] and registry.problems() == []


def put(path: Path, raw: bytes | None) -> None:
    """Write a file, or delete it."""
    if raw is None:
        path.unlink()
    else:
        path.write_bytes(raw)


def test_a_skill_that_is_not_locked_is_not_served(root: Path) -> None:
    with Registry([root], gate=Pins({}, {})) as registry:
        assert not registry.snapshot.skills
    gate = Pins(locked(root), {})
    write_skill(root / "new")
    with Registry([root], gate=gate) as registry:
        assert sorted(registry.snapshot.skills) == ["kept", "other"]
        assert codes(registry) == {"new": "lock-missing"}
        assert gate.unserved(registry, registry.snapshot.skills) == []


def test_a_skill_that_is_refused_hides_none_of_a_later_root(root: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    write_skill(first / "other", description="Comes first, and nobody locked it.")
    with Registry([first, root], gate=Pins({str(first): {}, **locked(root)}, {})) as registry:
        assert registry.snapshot.skills["other"].root == 1
        assert codes(registry) == {"other": "lock-missing"}


def test_a_skill_that_another_revision_of_its_source_has_is_no_problem(root: Path) -> None:
    kept = {str(root): {"kept": locked(root)[str(root)]["kept"]}}
    with Registry([root], gate=Pins(kept, {str(root): frozenset({"other"})})) as registry:
        assert sorted(registry.snapshot.skills) == ["kept"]
        assert registry.problems() == []


def test_what_is_locked_and_not_served_is_named(root: Path) -> None:
    gate = Pins(locked(root), {})
    write_skill(root / "other", description="Another one.")
    (root / "kept" / "SKILL.md").unlink()
    with Registry([root], gate=gate) as registry:
        assert sorted(gate.unserved(registry, registry.snapshot.skills)) == ["kept", "other"]


def test_a_broken_skill_is_said_to_be_broken_and_not_to_be_unlocked(root: Path) -> None:
    gate = Pins(locked(root), {})
    (root / "other" / "SKILL.md").write_text("no frontmatter")
    with Registry([root], gate=gate) as registry:
        assert [each.code for each in registry.problems()] == ["frontmatter-missing"]
        assert gate.unserved(registry, registry.snapshot.skills) == ["other"]


def test_a_skill_passes_where_all_gates_let_it() -> None:
    nothing: Any = None
    refusal = GateRefusal(problem("lock-missing", "no"))
    assert all_of([]) is None
    for second in (refusal, None):
        both = all_of([lambda *_: None, lambda *_, second=second: second])
        assert both is not None and both(nothing, nothing) is second
