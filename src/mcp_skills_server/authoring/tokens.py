"""Token counts: by tiktoken if it is installed and has its vocabulary, else by an estimate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

ESTIMATE_RULE: Final = "one token for 4 bytes of UTF-8"
_ENCODING: Final = "o200k_base"


def estimated_tokens(text: str | bytes) -> int:
    """Return the estimated number of tokens of a text, rounded up."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    return estimated_tokens_of_bytes(len(text))


def estimated_tokens_of_bytes(count: int) -> int:
    """Return the estimated number of tokens of `count` bytes of text, rounded up."""
    return -(-count // 4)


@cache
def token_counter() -> tuple[Callable[[str], int], str]:
    """Return a function that counts tokens, and a description of its method.

    tiktoken fetches its vocabulary on first use; if that fails, the estimate is used.
    """
    try:
        # an optional package, which is no declared dependency
        tiktoken: Any = import_module("tiktoken")
        encoding: Any = tiktoken.get_encoding(_ENCODING)
    except Exception:  # not installed, or without its vocabulary: a class for each version
        return estimated_tokens, f"an estimate: {ESTIMATE_RULE}"

    def count(text: str) -> int:
        return len(encoding.encode(text, disallowed_special=()))

    return count, f"counted by tiktoken, {_ENCODING}"
