"""Decoding of foreign JSON and TOML with a bound on the nesting.

The limits of the parsers depend on the version of Python and on the stack of the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

MAX_LEVELS: Final = 100
"""The maximum nesting of arrays and objects, below the limit of any parser."""
_MAX_DOTS: Final = 1_000
"""Most dots on a line of TOML: time and memory of tomllib are quadratic in a dotted key."""
TOO_DEEP: Final = f"it is nested more than {MAX_LEVELS} levels deep"


def load_json(text: str | bytes, **options: Any) -> Any:
    """Decode JSON with options of `json.loads`; ValueError: invalid, or nested too deeply."""
    finite = {"parse_constant": _finite, "parse_float": _finite}
    return _bounded(partial(json.loads, text, **finite, **options))


def load_toml(text: str) -> dict[str, Any]:
    """Decode TOML; ValueError: invalid, nested too deeply, or a line with too many dots."""
    import tomllib  # lazy: a server starts without it

    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MAX_DOTS:
            raise ValueError(f"it has more than {_MAX_DOTS:,} dots (at line {number}, column 1)")
    return _bounded(partial(tomllib.loads, text))


def load_tables(text: str, version: int, key: str) -> list[dict[str, Any]]:
    """Decode TOML that has `version` and the tables `[[key]]`, and nothing else.

    Raises:
        ValueError: it is something else; the message has the reason and the place.
    """
    content = load_toml(text)
    given, entries = content.get("version", "missing"), content.get(key, [])
    if type(given) is not int or given != version:
        raise ValueError(f"its version is {given}, and this program reads {version}")
    if unknown := content.keys() - {"version", key}:
        raise ValueError(f"it has unknown keys: {', '.join(sorted(unknown))}")
    if not isinstance(entries, list):
        raise ValueError(f"{key!r} is not a list of tables; write [[{key}]]")
    for number, entry in enumerate(cast("list[object]", entries), 1):
        if not isinstance(entry, dict):
            raise ValueError(f"{key} {number} is not a table")
    return cast("list[dict[str, Any]]", entries)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {text[:50]}")
    return value


def _bounded(decode: Callable[[], Any]) -> Any:
    try:
        value = decode()
    except RecursionError:  # more levels than the parser can read
        raise ValueError(TOO_DEEP) from None
    if is_too_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def is_too_deep(value: object) -> bool:
    """Return whether a value is nested more than `MAX_LEVELS` deep."""
    level: list[object] = [[value]]
    for _ in range(MAX_LEVELS + 1):
        inner: list[object] = []
        for container in level:
            held = cast(list[object], container)
            if isinstance(container, dict):
                held = cast(dict[str, object], container).values()
            inner += [child for child in held if isinstance(child, dict | list)]
        if not inner:
            return False
        level = inner
    return True
