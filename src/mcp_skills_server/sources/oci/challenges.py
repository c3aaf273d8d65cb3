"""What a registry asks of who comes: the header WWW-Authenticate, read. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_PART: Final = re.compile(r'([A-Za-z][A-Za-z0-9_-]{0,63})(?: ?= ?("[^"]{0,2048}"|[^", ]{1,2048}))?')
_MOST: Final = 16_384


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way to be admitted.

    Attributes:
        scheme: "basic", "bearer" and so on, in lower case.
        parameters: names in lower case; of one that stands twice the first.
    """

    scheme: str
    parameters: Mapping[str, str]


def parse(header: str) -> list[Challenge]:
    """The ways that a header offers, in its order; none where it cannot be understood."""
    out: list[tuple[str, dict[str, str]]] = []
    for name, value in _PART.findall(header[:_MOST]):
        if not value:
            out.append((name.lower(), {}))
        elif out:
            out[-1][1].setdefault(name.lower(), value.strip('"'))
    return [Challenge(*each) for each in out]
