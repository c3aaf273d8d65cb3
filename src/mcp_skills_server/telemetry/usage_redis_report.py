"""Counts of uses as they are in Redis: keys, fields, bounds, and how a report is made. What is read is foreign text."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.shared.faults import SharedError
from mcp_skills_server.shared.link import Link
from mcp_skills_server.telemetry.usage_store import MOST_SHOWN, OTHER, SEARCHES, By, Report, Row, make_report

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_Place = tuple[int, str]
"""Day and table."""
_Hash = dict[bytes, bytes]

WHAT: Final = "counts of uses"
VERSION: Final = "1"
QUESTIONS: Final = "questions"
MOST: Final[Mapping[str, int]] = {"skill": 20_000, "principal": 20_000, "host": 2_000, QUESTIONS: 500}
"""Fields of the hash of one day, beside those of `OTHER`, which are a few for each action."""
MOST_SERVED: Final = 100_000
ASKED: Final = "asked"
LAST: Final = "last"
"""What stands instead of an action where the value is a moment."""
_ACTIONS: Final = frozenset(("load", "read", "run", "dropped", *SEARCHES, ASKED, LAST))
_READ_AT_ONCE: Final = 2000
"""Fields that are read at once."""
_HASHES_AT_ONCE: Final = 8


def key_of(link: Link, day: int, table: str) -> str:
    """The key of the hash of a day."""
    return link.key("usage", str(day), table)


def served_key(link: Link) -> str:
    """The key of the skills that are served."""
    return link.key("usage", "served")


def field_of(action: str, name: str, digest: str = "", protocol: str = "") -> str:
    """The field that an action on something is counted in."""
    return json.dumps([action, name, digest, protocol], separators=(",", ":"))


async def each_of(client: Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The answers of commands in one pipeline; the error of one that is refused is its answer."""
    if not commands:
        return []
    pipe: Any = client.pipeline(transaction=False)
    for each in commands:
        pipe.execute_command(*each)
    return await pipe.execute(raise_on_error=False)


def portions(of: Iterable[_T], most: int) -> Iterator[list[_T]]:
    """All of them in order, at most so many at a time."""
    rest = iter(of)
    while portion := list(islice(rest, most)):
        yield portion


def read_report(link: Link, by: By, first: int, days: int) -> Report:
    """The report of so many days from the first on.

    Raises:
        UsageError: it cannot be read.
    """
    span = range(first, first + days)
    keys = {(day, table): key_of(link, day, table) for day in span for table in (by, QUESTIONS)}
    served = ("ZRANGE", served_key(link), 0, MOST_SERVED - 1)
    try:
        hashes = _hashes(link, keys)
        (members,) = _asked(link, [served])
    except SharedError as error:
        raise UsageError(f"{link.state}; the counts cannot be read ({error})") from None
    names = cast("list[bytes]", members if isinstance(members, list) else [])
    return _report_of(link, by, span, hashes, [each.decode(errors="replace") for each in names])


def _hashes(link: Link, keys: Mapping[_Place, str]) -> dict[_Place, _Hash | None]:
    """What is in the hashes, by day and table, read a bounded part at a time; None of what is none of ours."""
    sizes = _asked(link, [("HLEN", key) for key in keys.values()])
    found: dict[_Place, _Hash | None] = {}
    small: list[_Place] = []
    for place, size in zip(keys, sizes, strict=True):
        fields = size if isinstance(size, int) else -1
        if not 0 <= fields <= 2 * MOST[place[1]]:
            found[place] = None
        elif fields > _READ_AT_ONCE // _HASHES_AT_ONCE:
            found[place] = _scanned(link, keys[place])
        elif fields:
            small.append(place)
    for some in portions(small, _HASHES_AT_ONCE):
        read = _asked(link, [("HGETALL", keys[place]) for place in some])
        found |= {place: each if isinstance(each, dict) else None for place, each in zip(some, read, strict=True)}
    return found


def _asked(link: Link, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The answers of commands; an error is the answer where the key is of another type."""
    answers = link.call(WHAT, partial(each_of, commands=commands))
    for each in answers:
        if isinstance(each, Exception) and not str(each).startswith("WRONGTYPE"):
            raise UsageError(f"{link.settings.shown}: the counts cannot be read ({each}); see to the user of --redis")
    return answers


def _scanned(link: Link, key: str) -> _Hash:
    found: _Hash = {}
    cursor: Any = 0
    while True:
        (part,) = _asked(link, [("HSCAN", key, cursor, "COUNT", _READ_AT_ONCE)])
        if isinstance(part, Exception):  # it was replaced meanwhile
            return found
        cursor, fields = part
        found |= fields
        if not int(cursor):
            return found


def _report_of(link: Link, by: By, span: range, hashes: Mapping[_Place, _Hash | None], served: Sequence[str]) -> Report:
    rows: list[Row] = []
    versions: dict[str, set[str]] = defaultdict(set)
    asked: dict[str, int] = defaultdict(int)
    foreign = 0
    for (day, table), found in hashes.items():
        if found is None:
            foreign += 1
            continue
        for field, value in found.items():
            read = _read(field, value)
            if read is None:
                foreign += 1
                continue
            action, name, digest, amount = read
            if table == QUESTIONS:
                asked[name] += int(amount) if action == ASKED and name != OTHER else 0
            elif action == LAST:
                rows.append(Row(name, action, day, 0, amount))
            else:
                rows.append(Row(name, action, day, int(amount), 0.0))
                if action == "load" and digest:
                    versions[name].add(digest)
    if foreign:
        logger.warning(
            "%s: %s things below %s that no server of this version wrote are left out; keep other programs off",
            link.settings.shown,
            f"{foreign:,}",
            link.key("usage", "*"),
            extra=REPEATS,
        )
    return make_report(
        by,
        span.start,
        len(span),
        rows,
        versions={name: len(found) for name, found in versions.items()},
        served=served,
        questions=sorted(
            ((text, times) for text, times in asked.items() if times), key=lambda each: (-each[1], each[0])
        )[:MOST_SHOWN],
    )


def _read(field: bytes, value: bytes) -> tuple[str, str, str, float] | None:
    """Action, name, digest and amount of a field; None of one that no server wrote."""
    try:
        said = json.loads(field)
        amount = float(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, list):
        return None
    words = cast("list[object]", said)
    if len(words) != 4 or not all(isinstance(each, str) for each in words) or not 0 <= amount < 1e15:
        return None
    action, name, digest, _ = cast("list[str]", words)
    return (action, name, digest, amount) if action in _ACTIONS else None
