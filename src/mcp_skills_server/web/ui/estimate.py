"""How many tokens of a model's window a text takes, as an estimate: models cut texts differently."""

from __future__ import annotations

from typing import Final

RULE: Final = "one token for 4 bytes of UTF-8"
"""In words, for whoever is shown a number of it."""
_BYTES: Final = 4


def tokens(text: str | bytes) -> int:
    """About how many tokens a text takes."""
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return -(-size // _BYTES)
