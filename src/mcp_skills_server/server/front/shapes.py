"""What the parameters of a request have to look like: small functions that say whether a value fits. Pure.

They take what the SDK takes, which reads kindly: 1 and "yes" are true, 5.0 is a whole number. So a client is answered
alike whichever front it meets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

Check: TypeAlias = Callable[[Any], bool]

_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE: Final = frozenset({"0", "off", "f", "false", "n", "no"})
_WHOLE: Final = re.compile(r"\s*+[+-]?\d++(?:_\d++)*(?:\.0*+)?\s*+", re.ASCII)


def text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def mapping(value: Any) -> bool:
    """An object, whatever is in it."""
    return isinstance(value, dict)


def flag(value: Any) -> bool:
    """What can be read as true or false."""
    if isinstance(value, str):
        return value.lower() in _TRUE or value.lower() in _FALSE
    return isinstance(value, bool | int | float) and value in (0, 1)


def is_set(value: Any) -> bool:
    """What a flag says; None says no."""
    return value.lower() in _TRUE if isinstance(value, str) else bool(value)


def whole(value: Any) -> bool:
    """What can be read as a whole number."""
    if isinstance(value, str):
        return _WHOLE.fullmatch(value) is not None
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def token(value: Any) -> bool:
    """What a progress token may be."""
    return isinstance(value, str | int) or (isinstance(value, float) and value.is_integer())


def one_of(*words: str) -> Check:
    """One of these words."""
    return lambda value: isinstance(value, str) and value in words


def or_null(check: Check) -> Check:
    """What fits `check`, or null."""
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    """An array in which everything fits `check`."""
    return lambda value: isinstance(value, list) and all(map(check, cast("list[Any]", value)))


def dict_of(check: Check) -> Check:
    """An object in which every value fits `check`."""
    return lambda value: isinstance(value, dict) and all(map(check, cast("dict[str, Any]", value).values()))


def either(*checks: Check) -> Check:
    """What fits one of these."""
    return lambda value: any(check(value) for check in checks)


def remembered(check: Check) -> Check:
    """What fits `check`, which is not asked again for what equals the value that fitted last."""
    last: Any = None

    def fits(value: Any) -> bool:
        nonlocal last
        if value is not None and value == last:
            return True
        if not check(value):
            return False
        last = value
        return True

    return fits


def record(*required: dict[str, Check], **optional: Check) -> Check:
    """An object with these fields; others may be there too.

    Args:
        required: fields that must be there.
        optional: fields that may be absent, or null.
    """
    needed = [item for fields in required for item in fields.items()]
    given = tuple(optional.items())

    def fits(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        fields = cast("dict[str, Any]", value)
        for key, check in needed:
            if key not in fields or not check(fields[key]):
                return False
        for key, check in given:
            there = fields.get(key)
            if there is not None and not check(there):
                return False
        return True

    return fits
