"""Every broken bundle: where the stored ones lie, and recipes for those that git cannot or should not store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.gates import Gate, GateRefusal, Selection
from mcp_skills_server.codes import problem
from mcp_skills_server.provenance.lock import Pins

BROKEN = Path(__file__).parents[2] / "fixtures" / "broken"


def skill_md(name: str, body: str = "Read on.\n") -> str:
    """A SKILL.md without a fault."""
    return f"---\nname: {name}\ndescription: Shows what becomes of a bundle with one fault ({name}).\n---\n\n{body}"


def _skill_md_too_large(bundle: Path) -> None:
    text = skill_md("skill-md-too-large")
    (bundle / "SKILL.md").write_text(text + "x" * ((1 << 20) + 1 - len(text)))


def _unreadable(bundle: Path) -> None:
    (bundle / "SKILL.md").write_text(skill_md("unreadable"))
    (bundle / "locked").mkdir()
    (bundle / "locked" / "notes.md").write_text("Nobody may read this.\n")


def _too_deep(bundle: Path) -> None:
    place = bundle.joinpath(*map(str, range(32)), "too-deep")
    place.mkdir(parents=True)
    (place / "SKILL.md").write_text(skill_md("too-deep"))


def _too_many_files(bundle: Path) -> None:
    (bundle / "SKILL.md").write_text(skill_md("too-many-files"))
    (bundle / "assets").mkdir()
    for number in range(512):
        (bundle / "assets" / f"{number}.txt").write_text("")


def _too_many_bytes(bundle: Path) -> None:
    text = skill_md("too-many-bytes")
    (bundle / "SKILL.md").write_text(text)
    with (bundle / "data.bin").open("wb") as data:
        data.truncate((16 << 20) + 1 - len(text))


def _root_missing(bundle: Path) -> None:
    (bundle / "SKILL.md").write_text(skill_md("root-missing"))


def _file_name(bundle: Path) -> None:
    (bundle / "SKILL.md").write_text(skill_md("file-name"))
    with open(os.fsencode(bundle) + b"/caf\xe9.md", "wb") as latin:
        latin.write(b"Served nowhere.\n")


def _file_irregular(bundle: Path) -> None:
    (bundle / "SKILL.md").write_text(skill_md("file-irregular"))
    os.mkfifo(bundle / "pipe")


def _hard_link(bundle: Path) -> None:
    (bundle / "SKILL.md").write_text(skill_md("hard-link"))
    (bundle.parent / "not-yours").write_text("Somebody else's.\n")
    os.link(bundle.parent / "not-yours", bundle / "notes.md")


def _file_name_backslash(bundle: Path) -> None:
    (bundle / "SKILL.md").write_text(skill_md("file-name-backslash"))
    (bundle / "notes\\more.md").write_text("One name, or two?\n")


def _file_name_portable(bundle: Path) -> None:
    (bundle / "SKILL.md").write_text(skill_md("file-name-portable"))
    (bundle / "con.md").write_text("Windows takes this for the console.\n")


def _secret(bundle: Path) -> None:
    key = "AKIA" + "QZ7WPLM4TNB2XKRD"
    (bundle / "SKILL.md").write_text(skill_md("secret", f"Sign in with {key}.\n"))


RECIPES: dict[str, Callable[[Path], None]] = {
    "skill-md-too-large": _skill_md_too_large,
    "unreadable": _unreadable,
    "too-deep": _too_deep,
    "too-many-files": _too_many_files,
    "too-many-bytes": _too_many_bytes,
    "root-missing": _root_missing,
    "file-name": _file_name,
    "file-irregular": _file_irregular,
    "hard-link": _hard_link,
    "file-name-backslash": _file_name_backslash,
    "file-name-portable": _file_name_portable,
    "secret": _secret,
}
"""Code to what fills an empty directory, named like the code, with the bundle."""


def gate_of(code: str) -> Gate | None:
    """What refuses the bundle of this code, for the codes of skills that nothing else is wrong with."""
    # Each is made by a real signature in tests/provenance, or by a real source in tests/sources.
    if code.startswith("signature-") or code in {"source-refused", "commit-unsigned"}:
        return lambda *_: GateRefusal(problem(code, "it is not what it should be"))
    if code == "switched-off":
        return Selection(exclude=(code,))
    root = str((BROKEN / code).resolve())
    locked: dict[str, dict[str, str]] = {"lock-missing": {}, "lock-differs": {code: "sha256:" + 64 * "0"}}
    return Pins({root: locked[code]}, {}) if code in locked else None


def roots_of(code: str, directory: Path) -> list[Path]:
    """The roots to load for this code, made inside `directory` where they are not stored."""
    if code in RECIPES:
        bundle = directory / code
        bundle.mkdir()
        RECIPES[code](bundle)
        return [bundle]
    stored = BROKEN / code
    return [stored / "first", stored / "second"] if code == "shadowed" else [stored]


def befall(code: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What must happen after a registry has accepted its roots and before it loads them."""
    if code == "root-missing":
        shutil.rmtree(root)
    elif code == "hard-link":
        # Only the superuser could make another user's file.
        monkeypatch.setattr(disk, "owner_of", lambda *_: os.geteuid() + 1)
    elif code == "unreadable":
        # The superuser may open everything, so the refusal is made at the outermost boundary.
        really_open = os.open

        def refusing(path: Any, *arguments: Any, **options: Any) -> int:
            if os.fsdecode(path).rpartition("/")[2] == "locked":
                raise PermissionError(13, "Permission denied", path)
            return really_open(path, *arguments, **options)

        monkeypatch.setattr(os, "open", refusing)
