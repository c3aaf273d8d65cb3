"""What a client may hand to a script."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.arguments import checked_args, checked_env


@pytest.mark.requirement("RTI-8")
@pytest.mark.parametrize(
    ("args", "said"),
    [(["x"] * 257, "257 elements"), (["a", "x" * 16_385], r"args\[1\]"), (["a\0b"], "NUL"), (["\ud800"], "surrogate")],
)
def test_arguments_have_limits(args: list[str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        checked_args(args)


@pytest.mark.requirement("RTI-8")
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({f"V{each}": "" for each in range(257)}, "257 variables"),
        ({"A" * 257: ""}, "no name"),
        ({"A": "x" * 32_769}, "A is longer"),
        ({f"V{each}": "x" * 32_000 for each in range(9)}, "takes 288"),
        ({"A B": ""}, "no name"),
        ({"A=B": ""}, "no name"),
        ({"": ""}, "no name"),
        ({"A\n": ""}, "no name"),
        ({"Ä": ""}, "no name"),
        ({"BASH_FUNC_x%%": "() { :; }"}, "no name"),
        ({"A": "\0"}, "NUL"),
        ({"A": "\udfff"}, "surrogate"),
    ],
)
def test_variables_have_limits(env: dict[str, str], said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        checked_env(env)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "ld_library_path",
        "DYLD_INSERT_LIBRARIES",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "NODE_OPTIONS",
        "BASH_ENV",
        "ENV",
        "PERL5LIB",
        "PERL5OPT",
        "RUBYOPT",
        "RUBYLIB",
        "SHELLOPTS",
        "IFS",
        "PATH",
        "GIT_SSH_COMMAND",
        "HOME",
        "SKILL_DIR",
        "SKILL_RUN",
        "npm_config_prefix",
        "JAVA_TOOL_OPTIONS",
        "GCONV_PATH",
        "PAGER",
    ],
)
def test_variables_that_smuggle_code_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match=f"env: {name} is"):
        checked_env({name: "x"})


@given(st.lists(st.text(st.characters()), max_size=3), st.dictionaries(st.text(st.characters()), st.text(), max_size=3))
@example(["\ud800"], {})
@example([], {"A": "\0"})
def test_whatever_is_passed_on_can_be_given_to_a_program(args: list[str], env: dict[str, str]) -> None:
    try:
        words = [*checked_args(args), *(f"{name}={value}" for name, value in checked_env(env).items())]
    except RequestError:
        return
    assert all(b"\0" not in word.encode() for word in words)
