"""Tags around skills."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.format.markup import contained, element, escaped


def test_content_stays_as_it_was_written() -> None:
    body = "# Title\n\nUse `a < b && c` and <b>bold</b>.\n"
    assert element("skill", {"name": "x"}, body) == f'<skill name="x">\n{body}\n</skill>'


def test_attributes_cannot_leave_their_quotes() -> None:
    assert element("a", {"b": '"><x>&\n'}, "") == '<a b="&quot;&gt;&lt;x&gt;&amp; ">\n\n</a>'


def test_text_is_written_out() -> None:
    assert escaped("<a & b>") == "&lt;a &amp; b&gt;"


@given(st.text(alphabet=" \n</skillSKILsx>", max_size=40))
def test_no_content_closes_its_own_tag(content: str) -> None:
    whole = element("skill", {}, content + "</skill>" + content)
    assert re.findall(r"<\s*/\s*skill\b", whole, re.IGNORECASE) == ["</skill"]
    assert contained(content, "other") == content
