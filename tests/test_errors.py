"""The error hierarchy, and messages that clip long texts and count what they leave out."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import mcp_skills_server
from mcp_skills_server import errors
from mcp_skills_server.errors import (
    MAX_ECHOED,
    NotServedError,
    SkillsServerError,
    StaleFileError,
    UnreadableError,
    clipped,
    innermost,
    listed,
)
from tables import each_row


def modules() -> list[str]:
    found = pkgutil.walk_packages(mcp_skills_server.__path__, f"{mcp_skills_server.__name__}.")
    return [each.name for each in found if not each.name.endswith("__main__")]


def own_errors(module: str) -> dict[str, type[BaseException]]:
    found = inspect.getmembers(importlib.import_module(module), inspect.isclass)
    return {name: each for name, each in found if issubclass(each, BaseException) and each.__module__ == module}


def test_every_error_is_in_one_hierarchy_and_named_error() -> None:
    found = {f"{module}.{name}": error for module in modules() for name, error in own_errors(module).items()}
    assert found
    good = {name for name, error in found.items() if issubclass(error, SkillsServerError) and name.endswith("Error")}
    assert sorted(found.keys() - good) == []


def test_every_public_error_is_exported() -> None:
    mine = own_errors(errors.__name__)
    assert mine
    for name, error in mine.items():
        assert getattr(mcp_skills_server, name) is error and name in mcp_skills_server.__all__


@each_row(("count", "end"), [
    (0, "none"), (1, "n0"), (19, ", n18"), (20, ", n19"), (21, ", n19 and 1 more"), (1000, ", n19 and 980 more"),
])  # fmt: skip
def test_twenty_names_are_listed_and_the_rest_counted(count: int, end: str) -> None:
    message = listed([f"n{number}" for number in range(count)])
    assert message.endswith(end) and len(message.split(", ")) == max(1, min(count, 20))


@each_row("more", [-1, 0, 1, 10_000])
def test_quoted_text_is_clipped(more: int) -> None:
    text = "x" * (MAX_ECHOED + more)
    message = clipped(text)
    assert len(message) == min(len(text), 200) and (message == text) is (more <= 0)
    assert text.startswith(message.removesuffix("..."))


def test_error_message_names_its_subject() -> None:
    for length, whole in ((16_384, True), (16_385, False)):
        found = NotServedError("x" * length)
        assert (found.uri == "x" * length) is whole and len(str(found)) < 300
    changed, refused = StaleFileError("/a"), StaleFileError("/a", "Permission denied")
    assert (str(changed), changed.strerror) == (
        "changed since it was scanned: /a; try again when it no longer changes", "it keeps changing",
    )  # fmt: skip
    assert (str(refused), refused.strerror) == ("Permission denied: /a", "Permission denied")
    assert "is being changed or cannot be read" in str(UnreadableError())
    first = ValueError("first")
    assert innermost(ExceptionGroup("", [ExceptionGroup("", [first, OSError()]), OSError()])) is first
