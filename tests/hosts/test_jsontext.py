"""Edits of JSON as text, on wild input: an entry comes and goes, and all else stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import jsontext

KEYS = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OURS = {"command": "mcp-skills-server", "args": ["serve", '/a "b" \\ \x7f ü\n']}


@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.none() | st.dictionaries(KEYS.filter(lambda key: key != "skills"), VALUES, max_size=3),
    st.integers(0, 4),
    st.sampled_from([None, 0, 1, 2, 4, "\t"]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :\n ")]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_json_comes_and_goes(  # noqa: PLR0917
    rest: dict[str, Any],
    section: dict[str, Any] | None,
    place: int,
    indent: int | str | None,
    separators: tuple[str, str],
    newline: str,
    ascii_only: bool,
) -> None:
    items = [(key, value) for key, value in rest.items() if key != "servers"]
    if section is not None:
        items.insert(place, ("servers", section))
    document = dict(items)
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only).replace("\n", newline)
    for form in ("json", "json-comments", "jsonc"):
        with_ours = jsontext.put(text, ("servers", "skills"), OURS, form)
        wanted = {**document, "servers": {**(section or {}), "skills": OURS}}
        assert json.loads(with_ours) == wanted
        assert jsontext.put(with_ours, ("servers", "skills"), OURS, form) == with_ours
        without = jsontext.drop(with_ours, ("servers", "skills"), form)
        if section:
            assert without == text
        else:
            assert json.loads(without) == {**document, "servers": {}}


TRIVIA = st.lists(st.sampled_from([" ", "\n", "\t", '// c } , "\n', '/* { " */', "/**/", "/*\n*/"]), max_size=3).map(
    "".join
)


@given(st.lists(TRIVIA, min_size=12, max_size=12), st.booleans(), st.booleans())
def test_jsonc_comes_and_goes(trivia: list[str], comma: bool, member: bool) -> None:
    t = trivia
    inner = f'"a"{t[4]}:{t[5]}{{"x": [1,{t[6]}2]}}{t[7]}{"," if comma else ""}{t[8]}' if member else t[8]
    text = f'{t[0]}{{{t[1]}"servers"{t[2]}:{t[3]}{{{t[9]}{inner}}}{t[10]}}}{t[11]}'
    before = jsontext.read(text, "jsonc")
    with_ours = jsontext.put(text, ("servers", "skills"), OURS, "jsonc")
    assert jsontext.read(with_ours, "jsonc") == {"servers": {**before["servers"], "skills": OURS}}
    assert with_ours.count("/*") == text.count("/*") and with_ours.count("// c") == text.count("// c")
    try:
        without = jsontext.drop(with_ours, ("servers", "skills"), "jsonc")
        assert jsontext.read(without, "jsonc") == before
        assert without.count("/*") == text.count("/*") and without.count("// c") == text.count("// c")
    except UsageError as error:
        pytest.fail(str(error))
