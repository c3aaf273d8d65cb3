"""Tables of a configuration file: their keys, and readers that check the values of keys. Pure.

A settings class has the `Table` of its keys, and builds itself from the values of one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from mcp_skills_server.errors import SkillsServerError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_SECONDS: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h)")
_KINDS: Final[Mapping[type, str]] = {
    bool: "true or false", str: "text", int: "a number", float: "a number", list: "a list",
    dict: "a table",
}  # fmt: skip

Reader: TypeAlias = Callable[[Any], Any]


class WrongValueError(SkillsServerError, ValueError):
    """A value is invalid for its key. The message does not repeat it, since it may be a secret."""

    def __init__(self, reason: str = "it does not take this value") -> None:
        super().__init__(reason)


class ContradictionError(SkillsServerError, ValueError):
    """The values of a table contradict each other; `key` is the one to change."""

    def __init__(self, key: str, what: str, hint: str) -> None:
        super().__init__(what)
        self.key = key
        self.hint = hint


def in_words(value: Any) -> str:
    """Return the kind of a value, such as "a list"."""
    return _KINDS.get(cast("type[Any]", type(value)), "a date or a time")


def of_kind(value: Any, *kinds: type) -> Any:
    """Return the value if its type is exactly one of `kinds`: a bool does not pass as an int."""
    if type(value) not in kinds:
        raise WrongValueError(f"this is {in_words(value)}")
    return value


def text(value: Any) -> str:
    """Return a text that is not empty."""
    if not of_kind(value, str).strip() or "\0" in value:
        raise WrongValueError
    return value


class Key(NamedTuple):
    """A key: its valid values in words, their reader, and an example for a missing required key."""

    takes: str
    read: Reader = text
    missing: str = ""


class Table(NamedTuple):
    """The keys of a table, of which there are at least `least`, and one if `is_single`."""

    keys: Mapping[str, Key]
    form: str
    """The hint for a value that is no table."""
    least: int = 0
    is_single: bool = False


def fields_of(values: Mapping[str, Any], *seconds: str) -> dict[str, Any]:
    """Return values by field instead of key; the fields of the keys in `seconds` end in _s."""
    fields = {key.replace("-", "_"): value for key, value in values.items()}
    return {f"{name}_s" if name in seconds else name: value for name, value in fields.items()}


def text_that(fits: Callable[[str], object]) -> Reader:
    """Return the reader of a text for which `fits` is true."""

    def read(value: Any) -> str:
        if not fits(text(value)):
            raise WrongValueError
        return value

    return read


def list_of(read: Reader, *, least: int = 0) -> Reader:
    """Return the reader of a list of at least `least` values that `read` accepts."""

    def read_all(value: Any) -> tuple[Any, ...]:
        if len(of_kind(value, list)) < least:
            raise WrongValueError
        return tuple(map(read, value))

    return read_all


def number(
    least: float, most: float | None = None, *, is_whole: bool = False, above: bool = False
) -> Key:
    """Return the key of a whole number, or of seconds, also as text with a unit.

    The bounds are inclusive, `least` not with `above`.
    """
    kinds = (int,) if is_whole else (int, float)
    limit = sys.float_info.max if most is None else most

    def read(value: Any) -> Any:
        if not is_whole and isinstance(value, str) and (seconds := _SECONDS.fullmatch(value)):
            value = float(seconds[1]) * _UNITS[seconds[2]]
        amount = of_kind(value, *kinds)
        if not least <= amount <= limit or (above and amount == least):
            raise WrongValueError
        return amount if is_whole else float(amount)

    bounds = f"{'above' if above else 'from'} {least}"
    if most is not None:
        bounds += f" to {most}"
    if is_whole:
        return Key(f"a whole number {bounds}", read)
    return Key(f'a number {bounds}, or "90s", "5m", "1h"', read)


def one_of(values: Sequence[str]) -> Reader:
    """Return the reader of one of these texts."""
    return text_that(values.__contains__)


def names(values: Sequence[str], *, least: int = 0) -> Key:
    """Return the key of a list of these texts."""
    return Key(f"a list of {quoted(values)}", list_of(one_of(values), least=least))


def quoted(values: Sequence[str]) -> str:
    """Return texts in quotation marks, as a file has them."""
    return ", ".join(f'"{value}"' for value in values)


def _flag(value: Any) -> bool:
    return of_kind(value, bool)


FLAG: Final = Key("true or false", _flag)
