"""Mutation testing: change the source, one small fault at a time, and check that a test fails.

`python -m tools.mutants --record` runs the suite once and keeps which tests execute which lines. Then
`python -m tools.mutants format --sample 20` draws 20 changes of `src/mcp_skills_server/format/`, applies each in a
copy of the tree, and runs the tests that execute the changed lines, until one fails. A change that all of them pass
is a survivor: either it changes nothing observable, or a test is missing. The draw depends only on `--seed`, and
`--at format/links.py:120` applies every change of one line.

Not for CI: a survivor costs a run of all tests of its line, and a person must judge whether it matters.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tools.recording import Recording, record
from tools.trial import ROOT, SOURCE, Runner

TOP: Final = "top"
"""The name for the modules outside every package."""

_RUN_S: Final = 20.0
"""Seconds of tests in one run of pytest."""
_FLOOR_S: Final = 60.0
_TIMES: Final = 4

_COMPARISONS: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a module.

    Attributes:
        path: the module, from the root of the project.
        start, end: the bytes that are replaced.
        old, new: their text, and its replacement.
    """

    path: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {_one_line(self.old)}  ->  {_one_line(self.new)}"

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def _one_line(text: str) -> str:
    return " ".join(text.split())


# The changes


def changes(path: str, source: bytes) -> list[Change]:
    """Return every change of a module, in the order of the source."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    found: dict[tuple[int, int, str], Change] = {}
    for node, new in _replacements(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        change = Change(path, node.lineno, start, end, source[start:end].decode(), new)
        found.setdefault((start, end, new), change)
    return sorted(found.values(), key=lambda change: (change.start, change.end, change.new))


def _compiles(change: Change) -> bool:
    """Return whether the changed module compiles; a pattern of `match`, say, takes no parentheses."""
    source = change.applied_to((ROOT / change.path).read_bytes())
    try:
        compile(source, "changed", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _replacements(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield a node and its replacement."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.expr):
            yield from ((node, f"({ast.unparse(other)})") for other in _of_expression(node))
        elif isinstance(node, ast.stmt):
            yield from _of_statement(node)
        todo += reversed([child for child in _parts(node) if not isinstance(child, ast.JoinedStr)])


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the child nodes that run, without annotations and decorators."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                other = copy.deepcopy(node)
                other.ops[number] = _COMPARISONS[type(operator)]()
                yield other
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case _:
            pass


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Break():
            yield node, "pass"
        case ast.Return(value=ast.expr(end_lineno=int()) as value) if not isinstance(value, ast.Constant):
            yield node, "return None"
        case ast.If(test=test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield test, f"(not ({ast.unparse(test)}))"
        case _:
            pass


# The runs


class Attack:
    """A runner of the tests of changed lines."""

    def __init__(self, runner: Runner, recording: Recording, most_seconds: float, tests: Sequence[str]) -> None:
        self._runner = runner
        self._recording = recording
        self._most_seconds = most_seconds
        self._tests = tests
        self._sound: set[str] = set()
        self._unsound: set[str] = set()

    def result(self, change: Change) -> tuple[str, str]:
        """Return `killed`, `timeout`, `survived` or `unfinished`, and the test that noticed.

        `unfinished` is a change that no test noticed within `most_seconds`, although more tests remain.
        """
        spent = 0.0
        last = change.line + change.old.count("\n")
        for tests, seconds in self._runs(self._tests or self._recording.tests_of(change.path, change.line, last)):
            if spent > self._most_seconds:
                return "unfinished", ""
            spent += seconds
            remaining = [test for test in tests if test not in self._unsound]
            while remaining:
                with self._runner.bench.changed(change.path, change.applied_to):
                    reports = self._runner.run(remaining, _FLOOR_S + _TIMES * seconds)
                if reports is None:
                    return "timeout", remaining[0]
                failed = next((test for test, outcome, _ in reports if outcome == "failed"), "")
                if not reports:  # the module cannot be imported, or one of the tests is unknown to pytest
                    unknown = {test for test in remaining if not self._is_sound(test)}
                    if not unknown:
                        return "killed", remaining[0]
                    remaining = [test for test in remaining if test not in unknown]
                elif not failed:
                    break
                elif self._is_sound(failed):
                    return "killed", failed
                else:
                    remaining.remove(failed)
        return "survived", ""

    def _runs(self, tests: Sequence[str]) -> Iterator[tuple[list[str], float]]:
        """Split tests into runs of `_RUN_S` seconds."""
        run: list[str] = []
        total = 0.0
        for test in tests:
            run.append(test)
            total += self._recording.seconds.get(test, 0)
            if total > _RUN_S:
                yield run, total
                run, total = [], 0.0
        if run:
            yield run, total

    def _is_sound(self, test: str) -> bool:
        """Return whether the test passes without a change."""
        if test not in self._sound | self._unsound:
            reports = self._runner.run([test], _FLOOR_S)
            passes = bool(reports) and all(outcome != "failed" for _, outcome, _ in reports)
            (self._sound if passes else self._unsound).add(test)
        return test in self._sound


def modules_of(package: str) -> list[str]:
    folder = ROOT / SOURCE if package == TOP else ROOT / SOURCE / package
    found = folder.glob("*.py") if package == TOP else folder.rglob("*.py")
    return sorted(module.relative_to(ROOT).as_posix() for module in found)


def draw(package: str, sample: int, seed: int, at: str) -> list[Change]:
    """Return the changes to make: all of one line, or a sample of a package."""
    found = [change for path in modules_of(package) for change in changes(path, (ROOT / path).read_bytes())]
    if at:
        return [change for change in found if f"{change.path}:{change.line}".endswith("/" + at) and _compiles(change)]
    random.Random(seed).shuffle(found)
    chosen = islice(filter(_compiles, found), sample)
    return sorted(chosen, key=lambda change: (change.path, change.start))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"a folder of {SOURCE}, or {TOP}")
    parser.add_argument("--sample", type=int, default=20, metavar="N", help="changes of each package (20)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="another seed draws other changes (1)")
    parser.add_argument("--at", default="", metavar="FILE:LINE", help="every change of one line, such as links.py:120")
    parser.add_argument("--tests", nargs="+", default=(), metavar="TEST", help="run these, such as new ones, instead")
    parser.add_argument("--seconds", type=float, default=90, metavar="S", help="tests to run for a change (90)")
    parser.add_argument("--list", action="store_true", help="print the changes and make none")
    parser.add_argument("--record", action="store_true", help="find out which tests execute which lines, in minutes")
    options = parser.parse_args(arguments)
    unknown = [package for package in options.packages if package != TOP and not (ROOT / SOURCE / package).is_dir()]
    if unknown:
        parser.error(f"no such package: {', '.join(unknown)}")
    if not options.packages and not options.record:
        parser.error("name a package, such as format")
    if options.record:
        record()
    draws = {package: draw(package, options.sample, options.seed, options.at) for package in options.packages}
    if options.list:
        print("\n".join(str(change) for changes in draws.values() for change in changes))
        return 0

    os.environ.setdefault("TEST_DEADLINE_S", "10")
    try:
        recording = Recording()
    except FileNotFoundError:
        parser.error("nothing is recorded yet: run it with --record once")
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        os.chmod(place, 0o755)  # tests start programs as other users
        runner = Runner(Path(place))
        attack = Attack(runner, recording, options.seconds, options.tests)
        for package, todo in draws.items():
            counts: Counter[str] = Counter()
            for change in todo:
                result, test = attack.result(change)
                counts[result] += 1
                print(f"{result:10}  {change}  {test and f'({test})'}", flush=True)
            caught = counts["killed"] + counts["timeout"]
            print(f"{package}: {caught} of {len(todo)} caught; {dict(counts)}", flush=True)
        runner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
