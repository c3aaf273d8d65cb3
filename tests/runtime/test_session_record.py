"""What replicas know of a session: what is written is read again, and foreign text is a record or an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.runtime.shared_sessions import SessionRecord, SessionRecordError, parse_record
from tables import each_row

TEXTS = st.text(max_size=50)
RECORDS = st.builds(
    SessionRecord,
    TEXTS,
    st.floats(allow_nan=False, allow_infinity=False),
    st.dictionaries(TEXTS, TEXTS, max_size=8).map(lambda each: tuple(each.items())),
    TEXTS,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)
FIELDS = st.fixed_dictionaries(
    {}, optional={"version": st.just(1) | JSON, "owner": JSON, "since": JSON, "skills": JSON, "scripts_at": JSON}
)


@given(RECORDS)
def test_what_is_written_is_read_again_and_fields_of_a_later_version_are_passed_over(record: SessionRecord) -> None:
    assert parse_record(record.text()) == record
    assert parse_record(json.dumps({**json.loads(record.text()), "more": [1]})) == record


@given(st.text() | JSON.map(json.dumps) | FIELDS.map(json.dumps))
@example("[" * 100_000)
def test_any_text_is_a_record_or_an_error_of_one_line(text: str) -> None:
    said = ""
    try:
        record = parse_record(text)
    except SessionRecordError as error:
        said = str(error)
    else:
        assert parse_record(record.text()) == record
    assert len(said) < 100 and said.isprintable()


@each_row(
    "change",
    [
        {"version": 2}, {"version": True}, {"version": "1"},
        {"since": None}, {"since": True}, {"since": 10**400},
        {"owner": 1}, {"owner": "x" * 5000},
        {"skills": [{"path": "a"}]}, {"skills": [{"path": 1, "digest": ""}]}, {"skills": [["a", "b"]]},
        {"skills": [{"path": str(each), "digest": ""} for each in range(1001)]},
        {"scripts_at": None},
    ],
)  # fmt: skip
def test_another_shape_or_version_is_none(change: dict[str, Any]) -> None:
    good = json.loads(SessionRecord("me", 1.5, (("a", "sha256:1"),), "here").text())
    with pytest.raises(SessionRecordError):
        parse_record(json.dumps({**good, **change}))
