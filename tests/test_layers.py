"""The layers and the invariants of CONTRIBUTING.md, checked on the source itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_skills_server

PACKAGE = "mcp_skills_server"
ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / PACKAGE
LAYERS = (
    ("model", "errors", "directories", "durable"),
    ("codes",),
    ("format", "hosts", "transport", "shared"),
    ("validation", "telemetry", "access"),
    ("catalog", "dialects"),
    ("runtime", "publish", "sources", "provenance"),
    ("server", "acp", "rpc"),
    ("web",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""The lowest first. What stands on one line is not imported by its neighbours, but for the lowest."""
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
PURE = (
    "model/",
    "codes.py",
    "transport/framing.py",
    "format/",
    "validation/",
    "dialects/",
    "hosts/edit.py",
    "hosts/jsontext.py",
    "hosts/tomltext.py",
    "hosts/ownership.py",
)
NOT_IN_PURE_PACKAGES = {
    "os", "io", "pathlib", "shutil", "tempfile", "time", "datetime", "logging", "socket", "threading", "asyncio",
    "subprocess", "anyio", "mcp", "mcp_types", "starlette", "httpx", "httpx2", "click", "watchfiles", "random",
}  # fmt: skip
KNOW_THE_SDK = {
    "server/app.py", "server/attach.py", "server/callers.py", "server/entrance.py", "server/exchange.py",
    "server/merging.py",
    "web/app.py", "web/endpoint.py", "web/guards.py",
}  # fmt: skip
OPEN_SKILL_FILES = "catalog/"

MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def imports(module: str) -> set[str]:
    """The dotted names that a module imports, wherever in it."""
    out: set[str] = set()
    for node in ast.walk(ast.parse((SOURCE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: import by full name"
            base = node.module or ""
            out |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return out


def package_of(dotted: str) -> str | None:
    """The package of a name of ours: the part after the package."""
    parts = dotted.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def test_every_package_has_its_layer_and_contributing_shows_them() -> None:
    assert {module.split("/")[0].removesuffix(".py") for module in MODULES} == {*LAYER, "__init__"}
    block = re.search(r"## Layers\n.*?```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    shown = [line.split("  ")[0].split() for line in block[1].splitlines()]
    assert [set(line) for line in reversed(shown)] == [set(layer) for layer in LAYERS[:-1]]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_stays_short(module: str) -> None:
    assert (SOURCE / module).read_text(encoding="utf-8").count("\n") <= 350, "cut it along a seam"


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down_only(module: str) -> None:
    here = module.removesuffix(".py").split("/")[0]
    if here == "__init__":
        return
    for dotted in imports(module):
        there = package_of(dotted)
        if there in LAYER and there != here:
            assert LAYER[there] < LAYER[here] or (LAYER[there] == LAYER[here] == 0), f"{module} imports {dotted}"


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith(PURE)])
def test_pure_packages_touch_nothing_outside(module: str) -> None:
    used = {dotted.split(".")[0] for dotted in imports(module)}
    assert not used & NOT_IN_PURE_PACKAGES
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "input", "exec", "eval", "__import__"}


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("dialects/")])
def test_dialects_never_import_each_other(module: str) -> None:
    """But for what a dialect is, and the table of those that are."""
    if module == "dialects/table.py":
        return
    own = f"{PACKAGE}.dialects.{module.split('/')[1].removesuffix('.py')}."
    others = [dotted for dotted in imports(module) if dotted.startswith(f"{PACKAGE}.dialects.")]
    assert not [each for each in others if not f"{each}.".startswith((own, f"{PACKAGE}.dialects.dialect."))]


def test_only_the_table_names_the_dialects_of_skills() -> None:
    """`server/prompts.py` takes from one how an entry's arguments and icons are written."""
    for module in MODULES:
        if module not in {"dialects/table.py", "server/prompts.py"}:
            named = {dotted.rpartition(".")[2] for dotted in imports(module)} & {"sep2076", "sep2640"}
            assert not named, f"{module} names {named}"


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("server/")])
def test_what_answers_a_request_sees_the_view_alone(module: str) -> None:
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    owners = {ast.unparse(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "snapshot"}
    assert not {owner for owner in owners if owner.split(".")[-1].lstrip("_") not in {"view", "subject"}}


@pytest.mark.parametrize("module", [module for module in MODULES if module not in KNOW_THE_SDK])
def test_few_modules_know_the_sdk(module: str) -> None:
    assert not {dotted.split(".")[0] for dotted in imports(module)} & {"mcp", "mcp_types"}


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("server/")])
def test_the_server_opens_no_file_of_a_skill(module: str) -> None:
    assert not {dotted.split(".")[0] for dotted in imports(module)} & {"pathlib", "shutil", "glob"}
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    used = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not used & {"open", "os.open", "os.scandir", "os.listdir", "os.stat", "os.path.join"}


def test_the_public_face_loads_nothing_until_it_is_used() -> None:
    code = f"import sys, {PACKAGE}; print([name for name in sys.modules if name.startswith('{PACKAGE}.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_of_the_public_face_is_there() -> None:
    for name in mcp_skills_server.__all__:
        assert getattr(mcp_skills_server, name)
    with pytest.raises(AttributeError):
        mcp_skills_server.nothing  # noqa: B018


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is_about(module: str) -> None:
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            if any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
                continue
            assert ast.get_docstring(node), f"{module}: {node.name} has no docstring"


PLAIN_WORDS = re.compile(r"\b(room|rooms|house|laws?|mend(?:s|ed)?|told|wish(?:es)?|in earnest)\b", re.IGNORECASE)


@pytest.mark.parametrize("module", MODULES)
def test_words_are_those_of_the_field(module: str) -> None:
    assert not PLAIN_WORDS.findall((SOURCE / module).read_text(encoding="utf-8"))
