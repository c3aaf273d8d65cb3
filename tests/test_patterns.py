"""Every regular expression of the package is linear in its input.

The work inside a pattern cannot be counted as steps, so its structure is analysed: a pattern is refused if it could
read the same text more than once per position. Atomic groups and possessive repeats do not backtrack, so they pass.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import mcp_skills_server

parser: Any = importlib.import_module("re._parser")
compiler: Any = importlib.import_module("re._compiler")
SOURCE = Path(mcp_skills_server.__file__).parent
MANY = 256
"""A repeat with a higher bound counts as unbounded."""
AT_ONE_POSITION = {"match", "fullmatch", "pattern"}
"""Methods that try a pattern at one position. All others try it at every position."""
_ALPHABET = "".join(map(chr, range(0x300))) + "\u2028\u3042\U000e0041"
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


@dataclass(frozen=True)
class Piece:
    takes: frozenset[str]
    least: int
    """The fewest characters that it consumes; 0 also if it may fail without consuming any."""
    unbounded: bool = False
    backtracks: bool = False
    may_fail: bool = True


def parsed(pattern: re.Pattern[Any]) -> Any:
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    return parser.parse(text, pattern.flags)


def _shared(pieces: list[Piece]) -> Iterator[str]:
    """Yield a fault for two repeats that can divide a text between them in many ways."""
    for place, piece in enumerate(pieces):
        if piece.unbounded and piece.backtracks:
            for later in pieces[place + 1 :]:
                if later.unbounded and later.takes & piece.takes:
                    yield "two unbounded repeats may match the same text"
                if later.least and not later.takes & piece.takes:
                    break


def faults(pattern: re.Pattern[Any], *, searched: bool) -> list[str]:
    """Return the reasons why the pattern could read a text many times."""
    found: list[str] = []
    for pieces in _ways(parsed(pattern), int(pattern.flags), found):
        found += _shared(pieces)
        for place, piece in enumerate(pieces):
            if not searched or not piece.unbounded:
                continue
            fails = any(each.may_fail for each in pieces[place + 1 :])
            apart = any(each.least and not each.takes & piece.takes for each in pieces[:place])
            if fails and not apart:
                found.append("searched for at every position, and each search may read to the same end")
    return sorted(set(found))


def _ways(parsed: Iterable[tuple[Any, Any]], flags: int, found: list[str]) -> list[list[Piece]]:
    """Return each sequence of pieces that the alternatives of the pattern allow."""
    ways: list[list[Piece]] = [[]]
    for op, value in parsed:
        following = _ways_of_item(op, value, flags, found)
        ways = [[*before, *after] for before in ways for after in following]
        assert len(ways) < 20_000
    return ways


def _ways_of_item(item: Any, value: Any, flags: int, found: list[str]) -> list[list[Piece]]:
    op = str(item)
    if op == "SUBPATTERN":
        return _ways(value[3], flags, found)
    if op == "ATOMIC_GROUP":
        return [[replace(piece, backtracks=False) for piece in way] for way in _ways(value, flags, found)]
    if op == "BRANCH":
        return [way for branch in value[1] for way in _ways(branch, flags, found)]
    if op == "AT":
        # A line starts after a line end, so two line starts are apart.
        return [[Piece(frozenset("\n"), 1) if "BEGINNING" in str(value) else Piece(frozenset(), 0)]]
    if op in {"ASSERT", "ASSERT_NOT"}:
        ways = _ways(value[1], flags, found)
        for way in ways:
            found += _shared(way)
        takes = frozenset[str]().union(*(piece.takes for way in ways for piece in way))
        if value[0] < 0:  # a lookbehind
            before = takes if op == "ASSERT" else frozenset(_ALPHABET) - takes
            return [[Piece(before, int(all(len(way) == 1 for way in ways)))]]
        # A lookahead or atomic group does not backtrack once it matched, but may read any length.
        return [[Piece(takes, 0, any(piece.unbounded for way in ways for piece in way), False), Piece(frozenset(), 0)]]
    if op not in _REPEATS:
        return [[Piece(_characters(item, tuple(value) if isinstance(value, list) else value, flags), 1)]]
    least, most, inner = value
    ways = _ways(inner, flags, found)
    if most == 1:
        return ways if least else [[], *([replace(piece, may_fail=False) for piece in way] for way in ways)]
    takes = frozenset[str]().union(*(piece.takes for way in ways for piece in way))
    unbounded, backtracks = most > MANY, op != "POSSESSIVE_REPEAT"
    if unbounded and backtracks and any(piece.unbounded and piece.backtracks for way in ways for piece in way):
        found.append("an unbounded repeat inside an unbounded repeat")
    inside = any(piece.unbounded for way in ways for piece in way)
    loop = Piece(
        takes, least if len(ways) == 1 and len(ways[0]) == 1 else 0, unbounded or inside, backtracks, least > 0
    )
    return [[loop]] if loop.least or not least else [[*way, loop] for way in ways]  # the first round is exact


@cache
def _characters(op: Any, value: Any, flags: int) -> frozenset[str]:
    item = parser.SubPattern(parser.State(), [(op, [*value] if str(op) == "IN" else value)])
    return frozenset(compiler.compile(item, flags).findall(_ALPHABET))


# The patterns of the package


@cache
def patterns() -> list[tuple[str, re.Pattern[Any], bool]]:
    """Return the place of every named or inline pattern, the pattern, and whether it is searched for."""
    found: list[tuple[str, re.Pattern[Any], bool]] = []
    for each in pkgutil.walk_packages([str(SOURCE)], "mcp_skills_server."):
        if each.ispkg or each.name.endswith("__main__"):
            continue
        module = importlib.import_module(each.name)
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        if not re.search(r"\bre\b", text) and not any(isinstance(v, re.Pattern) for v in vars(module).values()):
            continue  # it has no pattern, and none of another module
        tree = ast.parse(text)
        anchored = _used_at_one_position(tree)
        classes = (v for v in vars(module).values() if isinstance(v, type) and v.__module__ == each.name)
        for holder in (module, *classes):
            for name, value in vars(holder).items():
                if isinstance(value, re.Pattern):
                    found.append((f"{each.name}.{name}", value, name not in anchored))
                elif hasattr(value, "cache_info") and value.__annotations__ == {"return": "re.Pattern[str]"}:
                    found.append((f"{each.name}.{name}", value(), True))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _name(node.func.value) == "re":
                first = node.args[0] if node.args else None
                if node.func.attr not in {"compile", "escape"} and isinstance(first, ast.Constant):
                    found.append(
                        (f"{each.name}:{node.lineno}", re.compile(first.value), node.func.attr not in AT_ONE_POSITION)
                    )
    return found


def _used_at_one_position(tree: ast.AST) -> set[str]:
    """Return the names of patterns that are only tried at one position."""
    used: dict[str, set[str]] = {}
    nodes = [*ast.walk(tree)]
    attributes = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and _name(node.value) in {"self", "cls"}:
            used.setdefault(node.attr, set()).add(attributes.get(id(node), "other"))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used.setdefault(node.id, set()).add(attributes.get(id(node), "other"))
    return {name for name, ways in used.items() if ways <= AT_ONE_POSITION}


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


EXCEPTIONS = {
    "format.manifest._VERSION": "sees 128 characters at most",
    "hosts.jsontext._COMMENTS": "a text or comment that is not closed ends at the end, so it never fails",
    "hosts.jsontext._TRAILING": "as _COMMENTS",
}
"""Patterns that are linear although their structure does not show it."""


def test_every_pattern_is_linear():
    """An exception that is no longer necessary fails too."""
    assert len(patterns()) > 50 and {searched for _, _, searched in patterns()} == {True, False}
    found = {where: faults(pattern, searched=searched) for where, pattern, searched in patterns()}
    offenders = {where.removeprefix("mcp_skills_server."): each for where, each in found.items() if each}
    assert {where: each for where, each in offenders.items() if where not in EXCEPTIONS} == {}
    assert offenders.keys() == EXCEPTIONS.keys()


# A defect of Python before 3.11.5, which Debian 12 has


def stops_halfway(parsed: Iterable[tuple[Any, Any]], *, inside: bool = False) -> bool:
    """Return whether a possessive repeat has a group that may fail after its first item.

    These versions continue after the text that the failed round had matched: `(?:-[a-z]++)*+` takes the end of `a-` in
    `a--`. `(?:-[a-z][a-z]*+)*+` and, if no text is matched twice, `(?:-[a-z]++)*` mean the same everywhere.
    """
    for place, (op, value) in enumerate(parsed):
        if inside and place and str(op) in {*_REPEATS, "BRANCH", "ASSERT", "ASSERT_NOT"}:
            may_be_absent = str(op) == "POSSESSIVE_REPEAT" and value[0] == 0
            if not may_be_absent:
                return True
        within = inside or str(op) == "POSSESSIVE_REPEAT"
        if any(stops_halfway(each, inside=within) for each in _groups(value)):
            return True
    return False


def _groups(value: Any) -> Iterator[Iterable[tuple[Any, Any]]]:
    """Return the sequences of items within an item."""
    if isinstance(value, parser.SubPattern):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _groups(each)


def test_possessive_repeats_are_alike_in_every_python():
    assert [where for where, pattern, _ in patterns() if stops_halfway(parsed(pattern))] == []
