"""The marks of the tests, out of their source text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Marks:
    """What the tests claim: the IDs of each test, in file order, and what is wrong with the marks themselves."""

    tests: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    errors: list[str] = field(default_factory=list[str])


def parse_tests(sources: Mapping[str, str]) -> Marks:
    """Read the marks of all modules. `sources` maps the path of each module to its text."""
    marks = Marks()
    for path, source in sources.items():
        try:
            module = _Module(path, ast.parse(source, path))
        except SyntaxError as error:
            marks.errors.append(f"{path}:{error.lineno}: cannot be parsed: {error.msg}")
            continue
        module.read(marks)
    return marks


class _Module:
    """The marks of one module. A mark is claimed by the tests that it stands on; the unclaimed ones are errors."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.claimed: set[ast.Call] = set()
        self.definitions: dict[str, list[ast.stmt]] = {}
        for statement in _flat(tree.body):
            for name in _defined(statement):
                self.definitions.setdefault(name, []).append(statement)

    def read(self, marks: Marks) -> None:
        if _TEST_FILE.fullmatch(self.path.rsplit("/", 1)[-1]):
            self._body(self.tree.body, (), self.path, marks)
        for call in _calls([self.tree]):
            where = f"{self.path}:{call.lineno}"
            plain = [_plain(argument) for argument in call.args]
            if not plain or None in plain or call.keywords:
                marks.errors.append(f"{where}: a requirement mark takes plain strings, at least one")
            if call not in self.claimed:
                marks.errors.append(f"{where}: this requirement mark stands on no test")

    def _body(self, body: Sequence[ast.stmt], above: tuple[str, ...], prefix: str, marks: Marks) -> None:
        """Go through a module or class. `above` are the IDs that hold for every test in it."""
        statements = list(_flat(body))
        for statement in statements:
            if "pytestmark" in _defined(statement):
                above += self._ids([statement])
        for statement in statements:
            if isinstance(statement, Function) and statement.name.startswith("test"):
                test = f"{prefix}::{statement.name}"
                ids = (*marks.tests.get(test, ()), *above, *self._ids([statement]))
                marks.tests[test] = tuple(dict.fromkeys(ids))
            elif isinstance(statement, ast.ClassDef) and statement.name.startswith("Test"):
                inside = above + self._ids(statement.decorator_list)
                self._body(statement.body, inside, f"{prefix}::{statement.name}", marks)

    def _ids(self, nodes: Sequence[ast.AST]) -> tuple[str, ...]:
        """The IDs in these nodes and in what they name, and claim those marks."""
        ids: list[str] = []
        for call in _calls(self._with_names(nodes)):
            self.claimed.add(call)
            ids += [text for text in map(_plain, call.args) if text is not None]
        return tuple(ids)

    def _with_names(self, nodes: Sequence[ast.AST]) -> list[ast.AST]:
        """These nodes, and the definitions of this module whose names their decorators and values use."""
        out = list(nodes)
        todo = [part for node in nodes for part in _outside(node)]
        seen: set[str] = set()
        while todo:
            for name in _names(todo.pop()):
                if name not in seen:
                    seen.add(name)
                    found = [node for node in self.definitions.get(name, ()) if not _is_test(node)]
                    out += found
                    todo += found
        return out


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, with those inside of conditions among them."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _flat(statement.body)
        if isinstance(statement, ast.If | ast.Try):
            yield from _flat(statement.orelse)


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, Function) and node.name.startswith("test")


def _outside(node: ast.AST) -> Sequence[ast.AST]:
    """The part of a node whose names count: of a function only its decorators."""
    return node.decorator_list if isinstance(node, Function) else (node,)


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, Function):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    if isinstance(statement, ast.AnnAssign | ast.AugAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    return []


def _names(node: ast.AST) -> Iterator[str]:
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def _calls(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    """The calls of `pytest.mark.requirement` in these nodes, each once, in the order of the source."""
    found = {part: None for node in nodes for part in ast.walk(node) if isinstance(part, ast.Call) and _is_mark(part)}
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _is_mark(call: ast.Call) -> bool:
    """Whether this is `pytest.mark.requirement(...)` or `mark.requirement(...)`."""
    function = call.func
    if not (isinstance(function, ast.Attribute) and function.attr == "requirement"):
        return False
    owner = function.value
    return (isinstance(owner, ast.Attribute) and owner.attr == "mark") or (
        isinstance(owner, ast.Name) and owner.id == "mark"
    )


def _plain(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
