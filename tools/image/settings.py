"""What building, running and asking have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SKILLS: Final = ROOT / "fixtures" / "skills"
PORT: Final = 8000
DEADLINE: Final = 30.0
"""Seconds after which something that should happen counts as never happening."""
