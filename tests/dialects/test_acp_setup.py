"""The one change to a message: a setup of a session gets a server more."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.dialects import acp
from tables import each_row

ADDED: dict[str, Any] = {"name": "skills", "command": "/bin/x", "args": ["serve"], "env": []}


def make(name: str) -> dict[str, Any]:
    return {**ADDED, "name": name}


@each_row(
    ("before", "after"),
    [
        ({"mcpServers": []}, {"mcpServers": [ADDED]}),
        ({"mcpServers": [], "cwd": "/x"}, {"mcpServers": [ADDED], "cwd": "/x"}),
        ({"mcpServers": [{"name": "a"}]}, {"mcpServers": [{"name": "a"}, ADDED]}),
        ({"mcpServers": None}, {"mcpServers": [ADDED]}),
        ({}, {"mcpServers": [ADDED]}),
        ({"_meta": {"mcpServers": []}, "n": 1.5}, {"_meta": {"mcpServers": []}, "n": 1.5, "mcpServers": [ADDED]}),
        ({"mcpServers": {}}, {"mcpServers": {}}),
        ({"mcpServers": "x"}, {"mcpServers": "x"}),
        ([], []),
        (None, None),
    ],
)
def test_a_server_is_added_and_nothing_else_changes(before: Any, after: Any) -> None:
    alone: dict[str, Any] = {"id": 1, "method": "session/new", "params": before}
    assert json.loads(acp.with_server(json.dumps(alone), make)) == {**alone, "params": after}
    batch = [{"a": 1}, {"method": "session/load", "params": before, "id": None}]
    assert json.loads(acp.with_server(json.dumps(batch), make)) == [batch[0], {**batch[1], "params": after}]


def test_every_setup_of_a_batch_gets_one_and_other_requests_none() -> None:
    one = '{"id":1,"method":"session/new","params":{"mcpServers":[]}}'
    other = '{"id":1,"method":"session/prompt","params":{"mcpServers":[]}}'
    changed = acp.with_server(f"[{one},{other},{one}]", make)
    assert changed.count('"/bin/x"') == 2 and json.loads(other) in json.loads(changed)
    assert acp.with_server("[]", make) == "[]" and acp.with_server("5", make) == "5"


def test_a_name_that_is_taken_is_not_taken_again() -> None:
    text = '{"id":1,"method":"session/new","params":{"mcpServers":[{"name":"skills"},{"name":"skills-2"},4]}}'
    assert '"name": "skills-3"' in acp.with_server(text, make)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    params=st.dictionaries(st.sampled_from(["cwd", "mcpServers", "_meta", "x\u2028"]) | st.text(), VALUES),
    indent=st.sampled_from([None, 1]),
    ascii_=st.booleans(),
)
def test_whatever_is_in_a_setup_nothing_is_lost(params: dict[str, Any], indent: int | None, ascii_: bool) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params}
    text = json.dumps(message, indent=indent, ensure_ascii=ascii_)
    changed = acp.with_server(text, make)
    servers = params.get("mcpServers")
    if servers is None or isinstance(servers, list):
        assert json.loads(changed) == {**message, "params": {**params, "mcpServers": [*(servers or []), ADDED]}}
    else:
        assert changed == text
