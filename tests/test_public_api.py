"""The public API: documented, typed, and closed under the types that its functions take, return and raise."""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import shutil
import subprocess
import sys
import types
import typing
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.server.lowlevel.server import Server

import mcp_skills_server
from web.http_wire import wait_until
from wire import write_skill

PACKAGE = mcp_skills_server.__name__
NAMES = [name for name in mcp_skills_server.__all__ if not name.startswith("_")]


def public(name: str) -> Any:
    return getattr(mcp_skills_server, name)


def functions(subject: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return a function itself, or the public methods of a class, with those inherited from classes of ours."""
    if not inspect.isclass(subject):
        yield subject.__name__, subject
        return
    for name, found in inspect.getmembers(subject):
        of_ours = getattr(found, "__module__", "") or ""
        if inspect.isfunction(found) and of_ours.startswith(PACKAGE) and (name == "__init__" or name[0] != "_"):
            yield f"{subject.__name__}.{name}", found
        elif isinstance(found, property) and name[0] != "_" and found.fget is not None:
            yield f"{subject.__name__}.{name}", found.fget


EVERY = [(label, function) for name in NAMES for label, function in functions(public(name))]


def mentioned(hint: Any) -> Iterator[type]:
    """Return the classes of this package that a type mentions."""
    if inspect.isclass(hint) and hint.__module__.startswith(PACKAGE):
        yield hint
    for part in typing.get_args(hint):
        yield from mentioned(part) if not isinstance(part, list) else (each for one in part for each in mentioned(one))


REQUIREMENT = re.compile(r"\b(?!UTF)[A-Z]+[0-9]*-[0-9]+\b")


def test_public_names_are_documented_without_requirement_ids_and_typed_by_public_types() -> None:
    """Requirement IDs belong in tests and comments."""
    known = {*mcp_skills_server.__all__, *vars(builtins)}
    offenders = [n for n in NAMES if isinstance(public(n), type | types.FunctionType) and not inspect.getdoc(public(n))]
    for label, subject in [*((name, public(name)) for name in NAMES), *EVERY]:
        offenders += [f"{label}: {each}" for each in REQUIREMENT.findall(inspect.getdoc(subject) or "")]
    for label, function in EVERY:
        text = inspect.getdoc(function) or ""
        if not text and not label.endswith("__init__"):
            offenders.append(f"{label} has no docstring")
        raised = re.findall(r"^    (\w+Error):", text.partition("Raises:")[2], re.MULTILINE)
        returns = types.SimpleNamespace(__annotations__={"return": function.__annotations__.get("return")})
        hints = typing.get_type_hints(returns, vars(importlib.import_module(function.__module__)))
        returned = [each.__name__ for each in mentioned(hints["return"])]
        offenders += [f"{label}: {each}" for each in (*raised, *returned) if each not in known]
    assert offenders == []


def test_path_given_for_list_or_registry_is_refused_with_a_remedy(tmp_path: Path) -> None:
    roots: tuple[Any, ...] = ("skills", tmp_path)
    for root in roots:
        with pytest.raises(TypeError, match=re.escape(f"write Registry([{root!r}])")):
            mcp_skills_server.Registry(root)
    server: Server[Any] = Server("x")
    with pytest.raises(TypeError, match=re.escape("write attach(server, Registry(['skills']))")):
        mcp_skills_server.attach(server, "skills")  # type: ignore[arg-type]
    registry = mcp_skills_server.Registry([tmp_path])
    mcp_skills_server.attach(server, registry)
    with pytest.raises(mcp_skills_server.UsageError, match="called for this server before"):
        mcp_skills_server.attach(server, registry)


def test_library_opens_any_kind_of_root(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("coffee/SKILL.md", "---\nname: coffee\ndescription: Brews it.\n---\n")
    roots = (tmp_path / "skills", tmp_path / "more.zip")
    with mcp_skills_server.open_registry(*roots, cache_dir=tmp_path / "cache") as registry:
        registry.load()
        wait_until(lambda: {*registry.snapshot.skills} == {"tea", "coffee"})


PROGRAM = """
from mcp_skills_server import Registry, Runtime

async def main() -> None:
    with Registry(["skills"]) as registry, Runtime(registry).session() as session:
        result = await session.call("skills_load", {"names": ["tea"]})
        if result.get("isError"):
            print(result["content"][0]["text"])
        handle: str = result.get("structuredContent", {})["session"]
        print(handle, [block["type"] for block in result["content"]])
"""


def test_public_results_pass_strict_type_checking(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    pyright = shutil.which("pyright", path=str(Path(sys.executable).parent))
    assert pyright is not None
    words = [pyright, "--pythonpath", sys.executable, "loop.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
