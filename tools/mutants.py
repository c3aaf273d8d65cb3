"""Break the source on purpose, one small change at a time, and see whether the tests notice.

`python -m tools.mutants format --sample 20` draws 20 changes of `src/mcp_skills_server/format/`, makes each in a copy
of the tree, and runs the package's own tests on it until the first failure: the tests of the changed module first. A
change that every test passes is a survivor: either it changes nothing that anybody could see, or a test is missing. The
draw depends on `--seed` alone, and `--at format/links.py:120` makes every change of one line.

Not for CI: a survivor costs a run of all tests of its package, and whether it matters takes a reader.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tools.trial import ROOT, SOURCE, Runner

TOP: Final = "top"
"""The name for the modules that are in no package."""

_TESTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    TOP: ("tests/test_errors.py", "tests/test_codes.py", "tests/test_durable.py", "tests/test_cli.py"),
    "access": ("tests/access", "tests/web/test_oauth.py"),
    "commands": ("tests/commands", "tests/test_cli.py"),
    "dialects": ("tests/dialects", "tests/rpc/test_methods.py", "tests/server/test_golden.py"),
    "hosts": ("tests/hosts", "tests/commands/test_install.py"),
    "model": ("tests/model", "tests/dialects", "tests/server/test_skills.py"),
    "publish": ("tests/publish", "tests/faults"),
    "sources": ("tests/sources", "tests/faults"),
    "validation": ("tests/validation", "tests/test_codes.py", "tests/authoring/test_validate.py"),
}
"""Where a package's tests are, if not in the folder of its name."""

_ALL_S: Final = 1200.0
_FLOOR_S: Final = 30.0
_TIMES: Final = 3

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
    """One change of one module.

    Attributes:
        path: the module, from the root of the project.
        start, end: the bytes that are replaced.
        old, new: what stands there, and what does then.
    """

    path: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {_one_line(self.old)}  ->  {_one_line(self.new)}"

    def made(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def _one_line(text: str) -> str:
    return " ".join(text.split())


# The changes


def changes(path: str, source: bytes) -> list[Change]:
    """Every change of a module, in the order of the source."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    found: dict[tuple[int, int, str], Change] = {}
    for node, new in _ideas(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        change = Change(path, node.lineno, start, end, source[start:end].decode(), new)
        found.setdefault((start, end, new), change)
    return sorted(found.values(), key=lambda change: (change.start, change.end, change.new))


def _compiles(change: Change) -> bool:
    """Whether it leaves the module a Python text, which few do not: a pattern of `match` takes no parentheses."""
    source = change.made((ROOT / change.path).read_bytes())
    try:
        compile(source, "changed", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _ideas(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """A node, and the text to put there."""
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
    """What of a node runs: no annotation and no decorator."""
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


def passes(runner: Runner, tests: Sequence[str], timeout: float) -> bool | None:
    """Return whether these tests pass, None if they do not end in time.

    Each is a run of its own: pytest puts a file that is named beside its folder into the folder's order.
    """
    for each in tests:
        reports = runner.run([each], timeout)
        if reports is None:
            return None
        if not reports or any(kind == "failed" for _, kind, _ in reports):
            return False
    return True


def modules_of(package: str) -> list[str]:
    folder = ROOT / SOURCE if package == TOP else ROOT / SOURCE / package
    found = folder.glob("*.py") if package == TOP else folder.rglob("*.py")
    return sorted(module.relative_to(ROOT).as_posix() for module in found)


def own_tests(package: str, module: str) -> list[str]:
    """The tests of a package, those of this module first."""
    tests = _TESTS_OF.get(package, (f"tests/{package}",))
    own = sorted((ROOT / "tests" / package).rglob(f"test_{Path(module).stem.strip('_')}.py"))
    return [*(each.relative_to(ROOT).as_posix() for each in own), *tests]


def drawn(package: str, sample: int, seed: int, at: str) -> list[Change]:
    """The changes to make: all of one line, or a sample of the package's."""
    found = [change for path in modules_of(package) for change in changes(path, (ROOT / path).read_bytes())]
    if at:
        return [change for change in found if f"{change.path}:{change.line}".endswith("/" + at) and _compiles(change)]
    random.Random(seed).shuffle(found)
    chosen = islice(filter(_compiles, found), sample)
    return sorted(chosen, key=lambda change: (change.path, change.start))


def attack(package: str, todo: Sequence[Change], runner: Runner) -> Counter[str]:
    """Make each change, and print what came of it.

    Raises:
        RuntimeError: the tests fail without any change.
    """
    began = time.monotonic()
    if not passes(runner, own_tests(package, ""), _ALL_S):
        raise RuntimeError(f"the tests of {package} fail without any change")
    limit = _FLOOR_S + _TIMES * (time.monotonic() - began)
    counts: Counter[str] = Counter()
    for change in todo:
        with runner.bench.changed(change.path, change.made):
            passed = passes(runner, own_tests(package, change.path), limit)
        result = "timeout" if passed is None else "survived" if passed else "killed"
        counts[result] += 1
        print(f"{result:8}  {change}", flush=True)
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"a folder of {SOURCE}, or {TOP}")
    parser.add_argument("--sample", type=int, default=20, metavar="N", help="changes of each package (20)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="another seed draws other changes (1)")
    parser.add_argument("--at", default="", metavar="FILE:LINE", help="every change of one line, such as links.py:120")
    parser.add_argument("--list", action="store_true", help="print the changes and make none")
    options = parser.parse_args(arguments)
    unknown = [package for package in options.packages if package != TOP and not (ROOT / SOURCE / package).is_dir()]
    if unknown or not options.packages:
        parser.error(f"no such package: {', '.join(unknown)}" if unknown else "name a package, such as format")

    code = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        os.chmod(place, 0o755)  # tests start programs as other users
        runner = None if options.list else Runner(Path(place))
        for package in options.packages:
            todo = drawn(package, options.sample, options.seed, options.at)
            if runner is None:
                print("\n".join(map(str, todo)))
                continue
            try:
                counts = attack(package, todo, runner)
            except RuntimeError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                code = 1
                continue
            caught = counts["killed"] + counts["timeout"]
            share = f"{100 * caught / len(todo):.0f} %" if todo else "nothing"
            print(f"{package}: {share} caught of {len(todo)}; {dict(counts)}", flush=True)
        if runner is not None:
            runner.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
