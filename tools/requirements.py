"""Compare the rules of docs/requirements.md with the marks of the tests, both ways.

Every rule has a test or stands in the page's table of those that none can prove here, with the reason. A test that was
skipped when it last ran is no proof, and is counted apart.

Reads source text only: no test is imported or run, so a mark must hold plain strings. A mark counts for a test when
it stands in the test function, on its class, in a `pytestmark`, or behind a name of the same module that one of
these uses (a list of `pytest.param`, a mark with a name of its own).

Ends with 1 if a rule has neither a test nor a reason, or both, or if a mark is wrong: an unknown ID, no plain string,
or on nothing that is a test.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import signal
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
STRICT_LEVELS = frozenset({"MUST", "MUST NOT", "SHALL", "SHALL NOT"})
OURS = frozenset({"server", "both"})

_RULE = re.compile(r"^([A-Z0-9]+-\d+) \| ")
_REASON = re.compile(r"^\| ((?:[A-Z0-9]+-\d+(?:, )?)+) \| (.+) \|$")
_SECTION = re.compile(r"^## (\d+\. .+)$")
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of docs/requirements.md.

    Attributes:
        section: the level-2 heading above it.
        mark: where the rule was found; "" when a seed has it.
    """

    id: str
    level: str
    binds: str
    text: str
    source: str
    mark: str
    section: str

    @property
    def binding(self) -> bool:
        """Whether it is a MUST, MUST NOT, SHALL or SHALL NOT for a server."""
        return self.level in STRICT_LEVELS and self.binds in OURS


@dataclass(slots=True)
class Marks:
    """What the tests claim: the IDs of each test, in file order, and what is wrong with the marks themselves."""

    tests: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    errors: list[str] = field(default_factory=list[str])


# The rules


def parse_rules(text: str) -> tuple[list[Rule], list[str]]:
    """Read the rules, and say which lines look like a rule and are none."""
    rules: list[Rule] = []
    errors: list[str] = []
    seen: set[str] = set()
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        heading = _SECTION.match(line)
        if heading:
            section = heading[1]
        elif _RULE.match(line):
            head = line.split(" | ", 3)
            tail = head[3].rsplit(" |", 2) if len(head) == 4 else []
            if len(tail) != 3:
                errors.append(f"line {number}: {head[0]} has not the six columns of a rule")
                continue
            if head[0] in seen:
                errors.append(f"line {number}: {head[0]} stands twice")
            seen.add(head[0])
            requirement, source, mark = (part.strip() for part in tail)
            rules.append(Rule(head[0], head[1], head[2], requirement, source, mark, section))
    return rules, errors


def parse_reasons(text: str) -> dict[str, str]:
    """Why a rule has no test, by its ID: the rows of a table whose first column holds IDs."""
    rows = (_REASON.match(line) for line in text.splitlines())
    return {name: row[2] for row in rows if row for name in row[1].split(", ")}


# The tests


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


# The report


def unknown_ids(rules: Iterable[Rule], tests: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for each test that names a rule which does not exist."""
    known = {rule.id for rule in rules}
    return [f"{test}: there is no rule {name}" for test, ids in tests.items() for name in ids if name not in known]


def unproved(rules: Sequence[Rule], proofs: Mapping[str, Sequence[str]], reasons: Mapping[str, str]) -> list[str]:
    """One line for each rule with neither a test nor a reason, with both, and for each reason for no rule."""
    known = {rule.id for rule in rules}
    lines = [f"{name}: a reason for a rule that does not exist" for name in reasons if name not in known]
    for rule in rules:
        if rule.id in reasons and proofs[rule.id]:
            lines.append(f"{rule.id}: it has a test, and stands among those that no test proves")
        elif rule.id not in reasons and not proofs[rule.id]:
            lines.append(f"{rule.id}: neither a test nor a reason why there is none")
    return lines


def skipped_only(rules: Iterable[Rule], proofs: Mapping[str, Sequence[str]], outcomes: Mapping[str, str]) -> list[str]:
    """One line for each rule none of whose tests passed when it last ran, though one of them was skipped."""
    lines: list[str] = []
    for rule in rules:
        seen = {outcome for test in proofs[rule.id] for outcome in _outcomes(test, outcomes)}
        if "skipped" in seen and "passed" not in seen:
            lines.append(f"  {rule.id:8} {rule.level:9} {_cut(rule.text, 100)}")
    return lines


def _outcomes(test: str, outcomes: Mapping[str, str]) -> Iterator[str]:
    """How a test ended, in each of its parametrisations."""
    return (outcome for node, outcome in outcomes.items() if node.partition("[")[0] == test)


def tests_by_rule(rules: Iterable[Rule], tests: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The tests of each rule, in the order of the rules."""
    out: dict[str, list[str]] = {rule.id: [] for rule in rules}
    for test, ids in tests.items():
        for name in ids:
            if name in out:
                out[name].append(test)
    return out


def summary(rules: Sequence[Rule], proofs: Mapping[str, Sequence[str]]) -> list[str]:
    """The table of sections."""
    counts: dict[str, Counter[str]] = {}
    for rule in rules:
        tested = bool(proofs[rule.id])
        for section in (rule.section, "all"):
            count = counts.setdefault(section, Counter())
            count["rules"] += 1
            count["tested"] += tested
            count["binding"] += rule.binding
            count["proven"] += rule.binding and tested
    rows = [(section, count) for section, count in counts.items() if section != "all"]
    rows.append(("all", counts.get("all", Counter())))
    width = max(len(_cut(section, 44)) for section, _ in rows)
    lines = [f"{'section':{width}}  rules  with test  MUST for a server  with test"]
    for section, count in rows:
        numbers = f"{count['rules']:5}  {count['tested']:9}  {count['binding']:17}  {count['proven']:9}"
        lines.append(f"{_cut(section, 44):{width}}  {numbers}")
    return lines


def missing(rules: Iterable[Rule], proofs: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for each MUST, MUST NOT, SHALL or SHALL NOT for a server that no test proves."""
    bare = [rule for rule in rules if rule.binding and not proofs[rule.id]]
    return [f"  {rule.id:8} {rule.level:9} {_cut(rule.text, 100)}" for rule in bare]


def every_rule(rules: Iterable[Rule], proofs: Mapping[str, Sequence[str]]) -> list[str]:
    """Each rule with its tests."""
    lines: list[str] = []
    section = ""
    for rule in rules:
        if rule.section != section:
            section = rule.section
            lines += ["", section] if lines else [section]
        lines.append(f"  {rule.id:8} {rule.level:10} {rule.binds:6}  {rule.text}")
        lines += [f"             {test}" for test in proofs[rule.id]]
    return lines


def every_test(tests: Mapping[str, Sequence[str]]) -> list[str]:
    """Each test with its rules."""
    return [f"{test}  {' '.join(ids) or '-'}" for test, ids in tests.items()]


def _cut(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...")


# The command


def read_sources(root: Path) -> dict[str, str]:
    """The text of each module below tests/, by its path from the root of the project."""
    modules = sorted((root / "tests").rglob("*.py"))
    return {module.relative_to(root).as_posix(): module.read_text(encoding="utf-8") for module in modules}


def read_outcomes(root: Path) -> dict[str, str]:
    """How each test ended when it last ran, by its node ID; empty where none has run (see tests/outcomes.py)."""
    try:
        return dict(json.loads((root / ".pytest_cache" / "v" / "outcomes").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _about_skips(rules: Sequence[str], *, known: bool) -> list[str]:
    if not known:
        return ["No run is known: which tests were skipped shows after `make test`."]
    if not rules:
        return ["No rule rests on skipped tests alone, as of the last run."]
    return [f"Proved by skipped tests alone in the last run ({len(rules)}):", *rules]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print what was asked for. Returns 1 if a rule or a mark is wrong, 2 if the rules cannot be read."""
    parser = argparse.ArgumentParser(description="Compare docs/requirements.md with the marks of the tests.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--all", action="store_true", help="each rule with its tests")
    choice.add_argument("--tests", action="store_true", help="each test with its rules")
    choice.add_argument("--check", action="store_true", help="nothing but errors")
    options = parser.parse_args(arguments)
    page = root / "docs" / "requirements.md"
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        print(f"cannot read {page}: {error.strerror}", file=sys.stderr)
        return 2
    rules, errors = parse_rules(text)
    reasons = parse_reasons(text)
    marks = parse_tests(read_sources(root))
    errors = [f"docs/requirements.md, {error}" for error in errors] + marks.errors + unknown_ids(rules, marks.tests)
    proofs = tests_by_rule(rules, marks.tests)
    errors += unproved(rules, proofs, reasons)
    outcomes = read_outcomes(root)
    lines: list[str] = []
    if options.all:
        lines = every_rule(rules, proofs)
    elif options.tests:
        lines = every_test(marks.tests)
    elif not options.check:
        bare = missing(rules, proofs)
        silent = sum(not ids for ids in marks.tests.values())
        lines = [
            *summary(rules, proofs),
            "",
            f"{len(marks.tests)} tests, {len(marks.tests) - silent} of them with a rule.",
            "",
            "Every MUST for a server has a test." if not bare else f"MUST for a server, without a test ({len(bare)}):",
            *bare,
            "",
            f"{len(reasons)} rules have no test, each with a reason in docs/requirements.md.",
            *_about_skips(skipped_only(rules, proofs, outcomes), known=bool(outcomes)),
        ]
    if lines:
        print("\n".join(lines))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that "| head" ends it quietly
    sys.exit(main())
