"""Recalls: a recalled digest is served by no way."""

from __future__ import annotations

from pathlib import Path

from catalog.forest import write_files
from mcp_skills_server.catalog.recalls import Advisory, Recalls
from mcp_skills_server.catalog.registry import Registry
from wire import write_skill

REASON = "it deletes what it should keep"


def advisory(digest: str) -> Advisory:
    return Advisory(digest, REASON, "high")


def recalls_of(*digests: str, is_locked: bool = False) -> Recalls:
    return Recalls(map(advisory, digests), is_locked=is_locked)


def digests_of(root: Path, path: str) -> tuple[str, dict[str, str]]:
    """Return the digest of a whole skill, and those of its files."""
    with Registry([root]) as registry:
        skill = registry.snapshot.skills[path]
        return registry.digest_over(skill), skill.digests


def served(registry: Registry) -> list[str]:
    return sorted(registry.snapshot.skills)


def codes(registry: Registry) -> dict[str, str]:
    return {problem.skill: problem.code for problem in registry.snapshot.problems}


def test_skill_is_refused_by_its_digest_and_by_that_of_any_file(tmp_path: Path) -> None:
    for name in ("bad", "good"):
        write_skill(tmp_path / name, scripts__run_py=f"print('{name}')\n")
    whole, files = digests_of(tmp_path, "bad")
    for digest in (whole, *files.values()):
        with Registry([tmp_path], recalls=recalls_of(digest)) as registry:
            assert served(registry) == ["good"]
            assert codes(registry) == {"bad": "recalled"}
            assert REASON in registry.snapshot.problems[0].message
    with Registry([tmp_path], recalls=recalls_of(whole, is_locked=True)) as registry:
        assert codes(registry) == {"bad": "lock-recalled"}
    with Registry([tmp_path]) as registry:
        both = recalls_of(*files.values()).advisory_on(registry.snapshot.skills["bad"])
        assert both == advisory(min(files.values())), "one replica tells what another has told"


def test_skill_is_refused_while_it_is_served_and_admitted_once_it_differs(tmp_path: Path) -> None:
    write_skill(tmp_path / "bad")
    whole, _ = digests_of(tmp_path, "bad")
    with Registry([tmp_path]) as registry:
        assert served(registry) == ["bad"]
        assert registry.recall([advisory(whole)])
        assert not registry.recall([advisory(whole)])
        assert served(registry) == []
        write_files(tmp_path / "bad", {"more.md": "More.\n"})
        registry.refresh([str(tmp_path / "bad" / "more.md")])
        assert served(registry) == ["bad"]
        (tmp_path / "bad" / "more.md").unlink()
        registry.refresh()
        assert served(registry) == []
        registry.recall([])
        assert served(registry) == ["bad"]


def test_recalled_copy_in_a_later_root_is_refused_and_another_version_is_served(tmp_path: Path) -> None:
    for root in ("first", "copy"):
        write_skill(tmp_path / root / "bad")
    write_skill(tmp_path / "other" / "bad", references__a_md="Another version.\n")
    whole, _ = digests_of(tmp_path / "first", "bad")
    roots = [tmp_path / root for root in ("first", "copy", "other")]
    with Registry(roots, recalls=recalls_of(whole)) as registry:
        assert registry.snapshot.skills["bad"].root == 2


def test_recalled_skill_is_refused_where_a_nested_skill_is_left_out_or_in(tmp_path: Path) -> None:
    write_skill(tmp_path / "outer")
    alone, _ = digests_of(tmp_path, "outer")
    write_skill(tmp_path / "outer" / "inner")
    whole, files = digests_of(tmp_path, "outer")
    inner = files["inner/SKILL.md"]
    with Registry([tmp_path], recalls=recalls_of(inner)) as registry:
        assert served(registry) == ["outer"]
        assert "inner/SKILL.md" not in registry.snapshot.skills["outer"].files
    for digests in ((inner, whole), (inner, alone)):
        with Registry([tmp_path], recalls=recalls_of(*digests)) as registry:
            assert served(registry) == []


def test_recalled_skill_goes_also_while_its_root_cannot_be_read(tmp_path: Path) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    for name in ("bad", "good"):
        write_skill(root / name)
    whole, _ = digests_of(root, "bad")
    with Registry([root]) as registry:
        root.rename(away)
        registry.recall([advisory(whole)])
        assert served(registry) == ["good"]
        assert codes(registry) == {"": "root-missing", "bad": "recalled"}
        away.rename(root)
        registry.refresh()
        assert served(registry) == ["good"]
        assert codes(registry) == {"bad": "recalled"}
        root.rename(away)
        registry.refresh()
        away.rename(root)
        registry.recall([])
        assert served(registry) == ["bad", "good"]
        assert codes(registry) == {}


def test_edit_of_a_nested_skill_that_is_off_can_make_the_outer_one_a_recalled_version(tmp_path: Path) -> None:
    write_skill(tmp_path / "outer")
    write_skill(tmp_path / "outer" / "inner")
    note = tmp_path / "outer" / "inner" / "note.md"
    note.write_text("Bad.\n")
    whole, _ = digests_of(tmp_path, "outer")
    note.write_text("Good.\n")
    (tmp_path / "skills-off.txt").write_text("outer/inner\n")
    with Registry([tmp_path], recalls=recalls_of(whole)) as registry:
        assert served(registry) == ["outer"]
        note.write_text("Bad.\n")
        registry.refresh([str(note)])
        assert served(registry) == []
