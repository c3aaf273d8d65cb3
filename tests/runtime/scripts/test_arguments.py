"""Validation of the arguments and environment variables of a script."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.scripts.arguments import checked_args, checked_env, declared_env
from tables import each_row


@pytest.mark.requirement("RTI-8")
@each_row(("args", "message"), [
    (["x"] * 257, "257 elements"), (["a", "x" * 16_385], r"args\[1\]"), (["a\0b"], "NUL"), (["\ud800"], "surrogate"),
])  # fmt: skip
def test_arguments_beyond_limits_are_refused(args: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        checked_args(args)
    assert len(checked_args(["x" * 16_384] * 256)) == 256


@pytest.mark.requirement("RTI-8")
@each_row(("env", "message"), [
    ({f"V{each}": "" for each in range(257)}, "257 variables"), ({"A": "x" * 32_769}, "A is longer"),
    ({f"V{each}": "x" * 32_766 for each in range(8)} | {"A": ""}, "takes 262,145 bytes"), ({"A": "\0"}, "NUL"),
    ({"A": "\udfff"}, "lone"),
    *(({name: ""}, "not a valid variable") for name in ("A" * 257, "A B", "A=B", "", "A\n", "Ä", "BASH_FUNC_x%%")),
])  # fmt: skip
def test_variables_beyond_limits_are_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        checked_env(env, env.keys())
    assert "\n" not in str(caught.value)
    with pytest.raises(RequestError, match=f"env: '{'é' * 80}' is not a valid"):
        checked_env({"é" * 81: ""}, None)
    for accepted in (
        {f"V{each}": "x" * 32_766 for each in range(8)}, {f"V{each:03}": "" for each in range(256)},
        {"A": "x" * 32_768}, {"A" * 256: ""},
    ):  # fmt: skip
        assert checked_env(accepted, accepted.keys()) == accepted


@each_row("allowed", [None, ["PATH", "LD_PRELOAD"]])
@each_row("name", [
    "PATH", "HOME", "SKILL_DIR", "SKILL_RUN", "LD_PRELOAD", "ld_audit", "DYLD_X", "GCONV_PATH", "glibc_tunables",
])  # fmt: skip
def test_reserved_variables_are_refused(name: str, allowed: list[str] | None) -> None:
    """The launcher and bubblewrap would read them, outside of the sandbox and perhaps as root."""
    with pytest.raises(RequestError, match=f"env: {name} is set by the server, or read by the programs that start"):
        checked_env({name: "x"}, allowed)


def test_variable_outside_allow_list_is_refused() -> None:
    assert checked_env({"B": "1"}, ["A", "B"]) == {"B": "1"}
    assert checked_env({"PYTHONPATH": "1"}, None) == {"PYTHONPATH": "1"}
    for allowed, shown in ((["A", "B"], "A, B"), ([], "none")):
        with pytest.raises(RequestError, match=rf"^env: a is not passed on; this skill takes {shown}\. .*$"):
            checked_env({"a": "1"}, allowed)


MANY_NAMES = [f"V{each}" for each in range(9999)]


@each_row(("metadata", "names"), [
    ({"env": "A, B\nC,,D A"}, ["A", "B", "C", "D"]), ({"env": ["A", 1, "B C", "", "_x"]}, ["A", "_x"]),
    ({"env": MANY_NAMES}, MANY_NAMES[:256]), ({"env": "1A A-B Ä A=B"}, []), ({"env": {"A": "1"}}, []),
    ({"env": None}, []),
    ({}, []), ("env: A", []), (None, []),
])  # fmt: skip
def test_declared_env_reads_names_from_metadata(metadata: Any, names: list[str]) -> None:
    assert declared_env({"metadata": metadata}) == names


@given(st.lists(st.text(st.characters()), max_size=3), st.dictionaries(st.text(st.characters()), st.text(), max_size=3))
@example(["\ud800"], {})
@example([], {"A": "\0"})
def test_accepted_arguments_and_variables_can_be_encoded(args: list[str], env: dict[str, str]) -> None:
    try:
        words = [*checked_args(args), *(f"{name}={value}" for name, value in checked_env(env, env.keys()).items())]
    except RequestError:
        return
    assert all(b"\0" not in word.encode() for word in words)
