"""Results compared with golden files, which `make golden` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatching import dispatching, local_serving
from programs import WITH_NETWORK, needs_script_network
from wire import FIXTURES, ROOT

GOLDEN = ROOT / "tests" / "golden"
ARGUMENTS = {"topic": "the budget", "deadline": "Friday"}
# The fourth column: whether the client declares the extension.
CASES: list[tuple[str, Path, list[str], bool, str, dict[str, Any]]] = [
    ("list.union", FIXTURES / "acme", [], False, "skills/list", {}),
    ("list.sep-2640", FIXTURES / "acme", [], True, "skills/list", {}),
    ("list.sep-2076", FIXTURES, ["--dialect", "sep-2076", "--page-size", "12"], False, "skills/list", {}),
    ("get.by-name", FIXTURES, [], False, "skills/get", {"name": "incident-report"}),
    ("get.with-arguments", FIXTURES, [], False, "skills/get", {"name": "meeting-notes", "arguments": ARGUMENTS}),
    ("get.nested-files", FIXTURES, [], False, "skills/get", {"name": "release-checklist"}),
    ("get.by-uri", FIXTURES, [], False, "skills/get", {"uri": "skill://polite-greetings/SKILL.md"}),
    ("resources", FIXTURES / "acme", [], False, "resources/list", {}),
    ("tools", FIXTURES / "acme", ["--allow-scripts", *WITH_NETWORK], False, "tools/list", {}),
    ("tools.skills-list", FIXTURES / "acme", [], False, "tools/call", {"name": "skills_list"}),
    ("prompts", FIXTURES, [], False, "prompts/list", {}),
    ("prompts.get", FIXTURES, ["--no-local-paths"], False, "prompts/get", {"name": "release-checklist"}),
]


@pytest.mark.requirement("S76-3", "S76-4", "S76-6", "S76-7", "S76-19", "S76-20", "MCP-12")
@pytest.mark.requirement("S40-11", "S40-12", "S40-13", "S40-15", "S40-18", "S40-20")
@pytest.mark.parametrize(("name", "root", "options", "extension", "method", "params"), [
    pytest.param(*each, id=each[0], marks=needs_script_network if WITH_NETWORK[0] in each[2] else ())
    for each in CASES
])  # fmt: skip
def test_result_equals_its_golden_file(
    *, name: str, root: Path, options: list[str], extension: bool, method: str, params: dict[str, Any]
) -> None:
    opened = dispatching(root, era="modern", extension=extension)
    if options:  # of the command line
        opened = local_serving(root, *options, era="modern", extension=extension)
    with opened as client:
        result = client.request(method, params)
    del result["_meta"]
    golden = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert json.dumps(result, indent=2, ensure_ascii=False) + "\n" == golden
