"""Edits of TOML as text, on wild input: an entry comes and goes, and all else stays."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.hosts import tomltext

OURS = {"command": "mcp-skills-server", "args": ["serve", '/a "b" \\ \x7f ü\n']}


@given(
    st.lists(
        st.sampled_from(
            [
                "# a comment\n",
                "\n",
                "x1 = [\n  1, # ]\n  2,\n]\n",
                'x2 = """\n[mcp_servers.skills]\n"""\n',
                "[t1]\n",
                "[[t2]]\n",
                '[mcp_servers.other]\ncommand = "x" # y\n',
                "[mcp_servers.other.env]\n",
                "  [ t3 . 'a.b' ]  # c\n  y = {a = 1}\n",
                "[mcp_servers]\n",
            ]
        ),
        unique=True,
    ),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
def test_toml_comes_and_goes(parts: list[str], closed: bool, newline: str) -> None:
    text = "".join(parts)
    text = (text if closed else text.removesuffix("\n")).replace("\n", newline)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    with_ours = tomltext.put(text, "mcp_servers", "skills", OURS)
    wanted = {**document, "mcp_servers": {**document.get("mcp_servers", {}), "skills": OURS}}
    assert tomllib.loads(with_ours) == wanted
    assert tomltext.put(with_ours, "mcp_servers", "skills", OURS) == with_ours
    changed = tomltext.put(with_ours, "mcp_servers", "skills", {"new": "n", "args": ["serve"], "more": ["m"]})
    expected = {**wanted["mcp_servers"], "skills": {**OURS, "new": "n", "args": ["serve"], "more": ["m"]}}
    assert tomllib.loads(changed) == {**wanted, "mcp_servers": expected}
    if text.strip():
        assert tomltext.drop(with_ours, "mcp_servers", "skills") == text
        assert tomltext.drop(changed, "mcp_servers", "skills") == text
