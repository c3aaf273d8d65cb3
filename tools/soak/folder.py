"""The folder of skills that writers change, and what they have ever written."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import threading
from collections import defaultdict
from pathlib import Path
from time import monotonic


def digest(raw: bytes) -> str:
    """As the listing says it."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


class Folder:
    """The skills on the disk, and every content that was ever written for a URI. One lock: an edit at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._ever: defaultdict[str, set[str]] = defaultdict(set)
        self._touched: dict[str, float] = {}
        self._away = path.parent / "away"
        self._away.mkdir()
        self._number = 0
        path.mkdir()

    def write(self, skill: str, name: str, raw: bytes) -> None:
        """One file, at once. What it will be is known before it is there."""
        self._ever[f"skill://{skill}/{name}"].add(digest(raw))
        self._touched[skill] = monotonic()
        fresh = self._away / "fresh"
        fresh.write_bytes(raw)
        os.replace(fresh, self.path / skill / name)
        self._touched[skill] = monotonic()

    def text(self, skill: str, dice: random.Random) -> bytes:
        """Some SKILL.md."""
        self._number += 1
        body = f"Edition {self._number}.\n" * dice.choice((1, 20, 2000))
        return f"---\nname: {skill}\ndescription: Edition {self._number} of {skill}.\n---\n\n{body}".encode()

    def add(self, skill: str, dice: random.Random) -> None:
        """A skill, file after file."""
        (self.path / skill).mkdir()
        for name in ("guide.md", "data.bin"):
            self.write(skill, name, dice.randbytes(dice.randrange(1, 20_000)))
        self.write(skill, "SKILL.md", self.text(skill, dice))

    def rename(self, skill: str, to: str, dice: random.Random) -> None:
        """It has another path, and a moment later the name that belongs to it."""
        for name in ("guide.md", "data.bin", "SKILL.md"):
            self._ever[f"skill://{to}/{name}"] |= self._ever[f"skill://{skill}/{name}"]
        self._touched[skill] = self._touched[to] = monotonic()
        (self.path / skill).rename(self.path / to)
        self.write(to, "SKILL.md", self.text(to, dice))
        self._touched[skill] = monotonic()

    def remove(self, skill: str, dice: random.Random) -> None:
        """At once, or file after file."""
        self._touched[skill] = monotonic()
        if dice.random() < 0.5:
            (self.path / skill).rename(self._away / skill)
            shutil.rmtree(self._away / skill)
        else:
            shutil.rmtree(self.path / skill)
        self._touched[skill] = monotonic()

    def edit(self, prefix: str, dice: random.Random) -> str:
        """Do one of these to one of the skills of this prefix; which one it was."""
        with self.lock:
            there = sorted(each.name for each in self.path.iterdir() if each.name.startswith(prefix))
            absent = [each for number in range(20) if (each := f"{prefix}{number:02d}") not in there]
            kind = dice.choices(("edit", "add", "rename", "remove"), (7, 1, 1, 1))[0]
            if (kind == "add" and absent) or len(there) < 4:
                self.add(dice.choice(absent), dice)
                return "add"
            skill = dice.choice(there)
            if kind == "rename" and absent:
                self.rename(skill, dice.choice(absent), dice)
            elif kind == "remove":
                self.remove(skill, dice)
            else:
                kind, name = "edit", dice.choice(("SKILL.md", "guide.md", "data.bin"))
                raw = self.text(skill, dice) if name == "SKILL.md" else dice.randbytes(dice.randrange(1, 20_000))
                self.write(skill, name, raw)
            return kind

    def ever(self, uri: str) -> set[str]:
        """Digests of all that stood there at any time."""
        with self.lock:
            return set(self._ever[uri])

    def touched(self, uri: str, since: float) -> bool:
        """Whether its skill was changed after this moment."""
        with self.lock:
            return self._touched.get(uri.split("/")[2], 0.0) >= since

    def truth(self) -> dict[str, str]:
        """What is there, by URI."""
        with self.lock:
            files = [each for each in self.path.glob("*/*") if each.is_file()]
            return {f"skill://{each.parent.name}/{each.name}": digest(each.read_bytes()) for each in files}
