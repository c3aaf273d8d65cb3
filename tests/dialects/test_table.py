"""The table of dialects: what a choice stands for, and how several are spoken at once."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.dialects import table
from mcp_skills_server.dialects.dialect import Dialect
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.model import Standing
from tables import each_row

EXTENSION = "io.modelcontextprotocol/skills"
NAMES = [["sep-2640", "sep-2076"], ["sep-2076"], ["sep-2640"]]


def names(dialects: tuple[Dialect, ...]) -> list[str]:
    return [each.name for each in dialects]


@pytest.mark.requirement("S40-5", "S40-33", "S76-5", "X-2", "X-12")
def test_a_choice_is_a_row_or_all_of_them_with_the_strictest_standing() -> None:
    assert table.names() == ["auto", "sep-2076", "sep-2640"]
    chosen = [table.select_dialects(name) for name in table.names()]
    assert [names(each.dialects) for each in chosen] == NAMES
    assert [each.least for each in chosen] == [Standing.VALID, Standing.LENIENT, Standing.VALID]
    method = {"skillsListChanged": "notifications/skills/list_changed"}
    assert [each.notifications for each in chosen] == [method, method, {}]
    assert table.listing([{"name": "a"}], "next") == {"skills": [{"name": "a"}], "nextCursor": "next"}
    with pytest.raises(UsageError, match=r"'sep-1'.*auto, sep-2076, sep-2640"):
        table.select_dialects("sep-1")


@pytest.mark.requirement("X-9")
def test_a_client_that_declares_an_extension_gets_its_dialect_alone() -> None:
    auto = table.select_dialects("auto")
    assert names(auto.for_client([EXTENSION, "other"])) == ["sep-2640"]
    assert names(auto.for_client(["other"])) == names(auto.for_client([])) == NAMES[0]
    assert names(table.select_dialects("sep-2076").for_client([EXTENSION])) == ["sep-2076"]
    assert auto.native_standing("claude-code", [EXTENSION]) is Standing.VALID
    assert auto.native_standing("claude-code", ["other"]) is auto.native_standing("mcp-inspector", [EXTENSION]) is None


@pytest.mark.requirement("X-8", "S76-8")
@each_row(("choice", "params", "answer"), [
    ("auto", {"uri": "u", "name": "n"}, "sep-2640 u"), ("auto", {"name": "n"}, "sep-2076 n"),
    ("sep-2076", {"uri": "u", "name": "n"}, "sep-2076 n"), ("auto", {}, "Parameter 'name' or 'uri' is missing"),
    ("sep-2640", {"name": "n"}, "Parameter 'uri' is missing"), ("auto", {"uri": 5}, "Parameter 'uri' must be a string"),
    ("auto", {"name": None}, "Parameter 'name' must be a string"),
])  # fmt: skip
def test_a_parameter_says_for_which_dialect_a_request_is(choice: str, params: dict[str, Any], answer: str) -> None:
    spoken = table.select_dialects(choice)
    if answer.startswith("Parameter"):
        with pytest.raises(RequestError, match=f"^{answer}$"):
            spoken.dialect_of(params)
    else:
        dialect, target = spoken.dialect_of(params)
        assert f"{dialect.name} {target}" == answer
