"""The hierarchy of errors, and how they repeat what they are about: short, and with a count of what is left out."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import mcp_skills_server
from mcp_skills_server import errors
from mcp_skills_server.errors import (
    MOST_ECHOED,
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
    """The exceptions that a module defines, by name."""
    found = inspect.getmembers(importlib.import_module(module), inspect.isclass)
    return {name: each for name, each in found if issubclass(each, BaseException) and each.__module__ == module}


def test_every_error_of_ours_is_in_the_one_hierarchy_and_called_an_error() -> None:
    found = {f"{module}.{name}": error for module in modules() for name, error in own_errors(module).items()}
    assert found
    good = {name for name, error in found.items() if issubclass(error, SkillsServerError) and name.endswith("Error")}
    assert sorted(found.keys() - good) == []


def test_every_error_that_a_user_of_the_library_catches_is_at_the_top() -> None:
    mine = own_errors(errors.__name__)
    assert mine
    for name, error in mine.items():
        assert getattr(mcp_skills_server, name) is error and name in mcp_skills_server.__all__


@each_row(("count", "last"), [(1, "n0"), (19, "n18"), (20, "n19"), (21, "n19 and 1 more"), (1000, "n19 and 980 more")])
def test_twenty_names_are_listed_and_the_others_counted(count: int, last: str) -> None:
    said = listed([f"n{number}" for number in range(count)])
    assert said.split(", ")[-1] == last and len(said.split(", ")) == min(count, 20)


def test_of_no_names_there_are_none() -> None:
    assert listed([]) == "none"


@each_row("more", [-1, 0, 1, 10_000])
def test_a_text_is_repeated_up_to_a_length(more: int) -> None:
    text = "x" * (MOST_ECHOED + more)
    said = clipped(text)
    assert len(said) == min(len(text), 200) and (said == text) is (more <= 0)
    assert text.startswith(said.removesuffix("..."))


def test_an_error_says_what_it_is_about() -> None:
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
