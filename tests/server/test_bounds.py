"""Costs of requests: linear in their size, with bounded results, errors and caches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from catalog.forest import load_registry, skill_md, write_files
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import View
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format.cursors import MAX_BYTES
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server import prompts, resources, skills
from mcp_skills_server.server.requests import Caller, Settings
from steps import step_growth
from tables import each_row

CALLER = Caller()


def result_of(handler: Any, registry: Registry, **params: Any) -> dict[str, Any]:
    return anyio.run(handler, View(registry), Settings(), CALLER, params)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    names = [f"s{each:02}" for each in range(20)]
    write_files(tmp_path, {f"acme/{name}/SKILL.md": skill_md(name) for name in names})
    return load_registry(tmp_path)


_TEMPLATE = {"type": "ref/resource", "uri": "skill://{+path}"}
_METHODS: list[tuple[Any, Callable[[str], dict[str, Any]]]] = [
    (resources.read_resource, lambda text: {"uri": text}),
    (resources.read_directory, lambda text: {"uri": text}),
    (skills.get_skill, lambda text: {"uri": text}),
    (skills.get_skill, lambda text: {"name": text}),
    (prompts.get_prompt, lambda text: {"name": text}),
    (resources.complete, lambda text: {"ref": _TEMPLATE, "argument": {"name": "path", "value": text}}),
    (resources.list_resources, lambda text: {"cursor": text}),
]


@each_row("unit", ["/a", "%2e", "%E2%82%AC/", "acme/", "\u20ac"])
@each_row(("handler", "params"), _METHODS)
def test_method_takes_steps_linear_in_its_params(registry: Registry, handler: Any, params: Any, unit: str) -> None:
    def call(times: int) -> Callable[[], object]:
        return lambda: result_of(handler, registry, **params("skill://acme" + unit * times))

    assert step_growth(call, 400) <= 5


@each_row("tool", ["skills_load", "skills_unload", "skills_read"])
def test_tool_takes_steps_linear_in_its_names(registry: Registry, tool: str) -> None:
    session = Runtime(registry).session()
    anyio.run(session.call, "skills_load", {"names": ["s00"]})

    def call(times: int) -> Callable[[], object]:
        name = "skill://acme" + "/a" * times * 8
        arguments: dict[str, Any] = {"names": [name] * times}
        if tool == "skills_read":
            arguments = {"path": name}
        return lambda: anyio.run(session.call, tool, arguments)

    assert step_growth(call, 16) <= 5 * 4  # 4 times as many names, each 4 times as long


@each_row(("handler", "params"), _METHODS[:5])
def test_error_about_a_uri_of_80_kb_is_short(registry: Registry, handler: Any, params: Any) -> None:
    with pytest.raises(RequestError) as caught:
        result_of(handler, registry, **params("skill://acme" + "/a" * 40_000))
    assert len(str(caught.value)) < 1000


@pytest.mark.requirement("S40-22", "S76-5")
def test_pages_of_large_skills_are_shorter_and_complete(tmp_path: Path) -> None:
    metadata = "".join(f"\n  key{each}: {'x' * 1000}" for each in range(100))
    fields = f"metadata:{metadata}"
    write_files(tmp_path, {f"s{each:02}/SKILL.md": skill_md(f"s{each:02}", fields) for each in range(48)})
    registry = load_registry(tmp_path)
    for handler, key in ((skills.list_skills, "skills"), (resources.list_resources, "resources")):
        page = result_of(handler, registry)
        assert "nextCursor" in page
        names = [each["name"] for each in page[key]]
        while "nextCursor" in page:
            assert len(json.dumps(page[key])) <= 2 * MAX_BYTES
            page = result_of(handler, registry, cursor=page["nextCursor"])
            names += [each["name"] for each in page[key]]
        assert names == [f"s{each:02}" for each in range(48)]


def test_page_has_50_skills_or_1000_prompts(tmp_path: Path) -> None:
    registry = load_registry(
        write_files(tmp_path, {f"s{each:04}/SKILL.md": skill_md(f"s{each:04}") for each in range(1001)})
    )
    assert len(result_of(skills.list_skills, registry)["skills"]) == 50
    assert len(result_of(prompts.list_prompts, registry)["prompts"]) == 1000


def test_lookup_of_a_prompt_name_takes_constant_steps(registry: Registry) -> None:
    names = prompts.Names(View(registry), Settings())
    assert step_growth(lambda times: lambda: [name in names for name in ["no"] * times], 100) <= 5
