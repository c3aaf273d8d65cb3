"""What one principal could learn or do of what is another's, and what leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from catalog.forest import loaded, plant, skill_md, skills
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.runtime.sessions import UnknownSessionError
from runtime.test_shared_sessions import Replica, Store

BOB = Principal("token", "bob")


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def made_a_link_that_leaves(path: Path) -> None:
    outside = path.parent.parent.parent / "elsewhere.md"
    outside.write_text(skill_md("in"))
    path.unlink()
    path.symlink_to(outside)


@pytest.mark.parametrize("broken", [made_a_folder, made_a_link_that_leaves])
def test_files_of_a_nested_skill_stay_withheld_when_its_manifest_cannot_be_read(
    tmp_path: Path, broken: Callable[[Path], None]
) -> None:
    folder = plant(tmp_path / "root", {**skills("a", "a/in"), "a/in/secret.txt": "secret", "a/own.txt": "own"})
    registry = loaded(folder)
    bob = Views(registry, Grants([Grant(("token:bob",), (Pattern("a"),))], local=False)).of(BOB)
    assert sorted(bob.snapshot.skills["a"].files) == ["SKILL.md", "own.txt"]
    broken(folder / "a" / "in" / "SKILL.md")
    registry.refresh()
    assert sorted(bob.snapshot.skills["a"].files) == ["SKILL.md", "own.txt"]
    anew = loaded(folder)
    bob = Views(anew, Grants([Grant(("token:bob",), (Pattern("a"),))], local=False)).of(BOB)
    assert sorted(bob.snapshot.skills["a"].files) == ["SKILL.md", "own.txt"]


@pytest.mark.parametrize("owner", ["\u00e9", "\ud800"])
def test_a_record_whose_owner_is_no_hash_is_of_nobody(tmp_path: Path, owner: str) -> None:
    tree, store = plant(tmp_path, skills("a")), Store()
    handle = "h" * 24
    store.texts[handle] = json.dumps({"version": 1, "owner": owner, "since": 0, "skills": []})

    async def opened() -> None:
        with pytest.raises(UnknownSessionError):
            await Replica(tree, store).sessions.open(handle, "ann", "ann")

    anyio.run(opened)
