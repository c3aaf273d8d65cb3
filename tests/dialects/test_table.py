"""Table of dialects: selection by name, by client and by parameter."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.dialects import table
from mcp_skills_server.dialects.dialect import Dialect
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.model import Standing
from mcp_skills_server.model.clients import client_of
from tables import each_row

EXTENSION = "io.modelcontextprotocol/skills"
NAMES = [["sep-2640", "sep-2076"], ["sep-2076"], ["sep-2640"]]


def names(dialects: tuple[Dialect, ...]) -> list[str]:
    return [each.name for each in dialects]


@pytest.mark.requirement("S40-5", "S40-33", "S76-5", "X-2", "X-12")
def test_select_dialects_returns_one_dialect_or_all_with_the_strictest_standing() -> None:
    assert table.names() == ["auto", "sep-2076", "sep-2640"]
    selected = [table.select_dialects(name) for name in table.names()]
    assert [names(each.dialects) for each in selected] == NAMES
    assert [each.least for each in selected] == [Standing.VALID, Standing.LENIENT, Standing.VALID]
    method = {"skillsListChanged": "notifications/skills/list_changed"}
    assert [each.notifications for each in selected] == [method, method, {}]
    with pytest.raises(UsageError, match=r"'sep-1'.*auto, sep-2076, sep-2640"):
        table.select_dialects("sep-1")


@pytest.mark.requirement("X-9")
def test_client_that_declares_an_extension_gets_its_dialect_alone() -> None:
    auto = table.select_dialects("auto")
    assert names(auto.for_client({EXTENSION: {}, "other": {}})) == ["sep-2640"]
    assert names(auto.for_client({"other": {}})) == NAMES[0]
    assert names(auto.for_client({})) == NAMES[0]
    assert names(table.select_dialects("sep-2076").for_client({EXTENSION: {}})) == ["sep-2076"]
    assert auto.native_limits("claude-code", {EXTENSION: {}}) == client_of("claude-code").native
    assert auto.native_limits("claude-code", {"other": {}}) is None
    assert auto.native_limits("mcp-inspector", {EXTENSION: {}}) is None


# `None` is how a careless encoder writes an absent field.
@pytest.mark.requirement("S40-55")
@each_row(("revision", "is_known"), [(None, True), ("2", False), ("", False), (1, False), ({}, False)])
def test_extension_of_an_unknown_revision_is_not_declared(revision: Any, is_known: bool) -> None:
    auto, declared = table.select_dialects("auto"), {EXTENSION: {"revision": revision}}
    assert names(auto.for_client(declared)) == (["sep-2640"] if is_known else NAMES[0])
    assert (auto.native_limits("claude-code", declared) is not None) is is_known


@pytest.mark.requirement("X-8", "S76-8")
@each_row(("choice", "params", "answer"), [
    ("auto", {"uri": "u", "name": "n"}, "sep-2640 u"), ("auto", {"name": "n"}, "sep-2076 n"),
    ("sep-2076", {"uri": "u", "name": "n"}, "sep-2076 n"), ("auto", {}, "Parameter 'name' or 'uri' is missing"),
    ("sep-2640", {"name": "n"}, "Parameter 'uri' is missing"), ("auto", {"uri": 5}, "Parameter 'uri' must be a string"),
    ("auto", {"name": None}, "Parameter 'name' or 'uri' is missing"),
    ("auto", {"uri": None, "name": "n"}, "sep-2076 n"),
])  # fmt: skip
def test_parameter_selects_the_dialect_of_a_request(choice: str, params: dict[str, Any], answer: str) -> None:
    dialects = table.select_dialects(choice)
    if answer.startswith("Parameter"):
        with pytest.raises(RequestError, match=f"^{answer}$"):
            dialects.dialect_of(params)
    else:
        dialect, target = dialects.dialect_of(params)
        assert f"{dialect.name} {target}" == answer
