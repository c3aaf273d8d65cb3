"""Token counts: by tiktoken where it is installed and has its vocabulary, else by an estimate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

ESTIMATE_RULE: Final = "one token for 4 bytes of UTF-8"
_ENCODING: Final = "o200k_base"


def estimated(text: str | bytes) -> int:
    """Return about how many tokens a text takes, rounded up."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    return estimated_size(len(text))


def estimated_size(count: int) -> int:
    """Return about how many tokens so many bytes of text take, rounded up."""
    return -(-count // 4)


@cache
def counter() -> tuple[Callable[[str], int], str]:
    """Return a function that counts tokens, and how it counts, in words.

    tiktoken fetches its vocabulary when it is first used; where that fails, the estimate is used.
    """
    try:
        # no dependency of ours: used where it is installed
        tiktoken: Any = import_module("tiktoken")
        encoding: Any = tiktoken.get_encoding(_ENCODING)
    # not installed, or its vocabulary cannot be had: each version raises something else
    except Exception:
        return estimated, f"an estimate: {ESTIMATE_RULE}"
    return lambda text: len(
        encoding.encode(text, disallowed_special=())
    ), f"counted by tiktoken, {_ENCODING}"
