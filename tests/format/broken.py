"""A broken bundle for each code: stored as a fixture, or generated here if git cannot store it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.gates import Gate, GateRefusal, Selection
from mcp_skills_server.codes import problem
from mcp_skills_server.provenance.lock import LockedSource, Pins

BROKEN = Path(__file__).parents[2] / "fixtures" / "broken"


def skill_md(name: str, body: str = "Read on.\n") -> str:
    """Return a valid SKILL.md."""
    return f"---\nname: {name}\ndescription: Shows what becomes of a bundle with one fault ({name}).\n---\n\n{body}"


GENERATED_CODES = (
    "skill-md-too-large", "unreadable", "too-deep", "too-many-files", "too-many-bytes", "root-missing", "file-name",
    "file-irregular", "hard-link", "file-name-backslash", "file-name-portable", "secret", "name-markup",
)  # fmt: skip
"""Codes whose bundle `create_bundle` creates."""


def create_bundle(bundle: Path) -> None:
    """Create the bundle of a generated code in the empty directory that has its name."""
    place, text = bundle, skill_md(bundle.name)
    match bundle.name:
        case "skill-md-too-large":
            text += "x" * ((1 << 20) + 1 - len(text))
        case "unreadable":
            (bundle / "locked").mkdir()
            (bundle / "locked" / "notes.md").write_text("No access.\n")
        case "too-deep":
            place = bundle.joinpath(*map(str, range(32)), "too-deep")
            place.mkdir(parents=True)
        case "too-many-files":
            for number in range(512):
                (bundle / f"{number}.txt").write_text("")
        case "too-many-bytes":
            with (bundle / "data.bin").open("wb") as data:
                data.truncate((16 << 20) + 1 - len(text))
        case "file-name":
            with open(os.fsencode(bundle) + b"/caf\xe9.md", "wb") as latin:
                latin.write(b"Not served.\n")
        case "file-irregular":
            os.mkfifo(bundle / "pipe")
        case "hard-link":
            (bundle.parent / "not-yours").write_text("Another user's.\n")
            os.link(bundle.parent / "not-yours", bundle / "notes.md")
        case "file-name-backslash":
            (bundle / "notes\\more.md").write_text("One name, or two?\n")
        case "file-name-portable":
            (bundle / "con.md").write_text("CON is a device name on Windows.\n")
        case "name-markup":
            place, text = bundle / "<team>" / "name-markup", skill_md("name-markup")
            place.mkdir(parents=True)
        case "secret":
            text = skill_md("secret", f"Sign in with {'AKIA' + 'QZ7WPLM4TNB2XKRD'}.\n")
    (place / "SKILL.md").write_text(text)


def gate_of(code: str) -> Gate | None:
    """Return the gate that refuses the bundle of this code, or None if its content is at fault."""
    # tests/provenance and tests/sources cause these with real signatures and sources.
    if code.startswith("signature-") or code in {"source-refused", "commit-unsigned"}:
        return lambda *_: GateRefusal(problem(code, "it is not what it should be"))
    if code.endswith("recalled"):
        return lambda *_: GateRefusal(problem(code, "it is recalled (high): it is bad"))
    if code == "switched-off":
        return Selection(exclude=(code,))
    root = str((BROKEN / code).resolve())
    locked: dict[str, dict[str, str]] = {"lock-missing": {}, "lock-differs": {code: "sha256:" + 64 * "0"}}
    return Pins({root: LockedSource(root, "", locked[code])}) if code in locked else None


def roots_of(code: str, directory: Path) -> list[Path]:
    """Return the roots to load for this code, created in `directory` unless they are stored."""
    if code in GENERATED_CODES:
        bundle = directory / code
        bundle.mkdir()
        create_bundle(bundle)
        return [bundle]
    stored = BROKEN / code
    return [stored / "first", stored / "second"] if code == "shadowed" else [stored]


def cause_fault(code: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cause the fault that must happen between a registry's creation and its first load."""
    if code == "root-missing":
        shutil.rmtree(root)
    elif code == "hard-link":
        # Only root can create another user's file.
        monkeypatch.setattr(disk, "is_foreign_hard_link", lambda found, _: found.st_nlink > 1)
    elif code == "unreadable":
        # Root can open every folder, so `os.open` itself fails.
        really_open = os.open

        def failing_open(path: Any, *arguments: Any, **options: Any) -> int:
            if os.fsdecode(path).rpartition("/")[2] == "locked":
                raise PermissionError(13, "Permission denied", path)
            return really_open(path, *arguments, **options)

        monkeypatch.setattr(os, "open", failing_open)
