"""What cache headers come to, in seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.sources.caching import LONGEST_S, fresh_s, may_store, retry_after_s

NOW = 1_784_109_600.0
DATE = "Wed, 15 Jul 2026 10:00:00 GMT"
IN_AN_HOUR = "Wed, 15 Jul 2026 11:00:00 GMT"


@pytest.mark.requirement("WK-40")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"cache-control": "public"}, None),
        ({"cache-control": "max-age=300"}, 300),
        ({"cache-control": "Public, Max-Age=300, must-revalidate"}, 300),
        ({"cache-control": 'max-age="300"'}, 300),
        ({"cache-control": "max-age=300, max-age=900"}, 300),
        ({"cache-control": "max-age=300", "age": "100"}, 200),
        ({"cache-control": "max-age=300", "age": "900"}, 0),
        ({"cache-control": "max-age=300", "age": "old"}, 300),
        ({"cache-control": "max-age=300, no-cache"}, 0),
        ({"cache-control": "no-store"}, 0),
        ({"cache-control": "max-age=soon"}, 0),
        ({"cache-control": "max-age=-5"}, 0),
        ({"cache-control": "s-maxage=300"}, None),
        ({"cache-control": "max-age=" + "9" * 5000}, LONGEST_S),
        ({"expires": IN_AN_HOUR, "date": DATE}, 3600),
        ({"expires": DATE, "date": IN_AN_HOUR}, 0),
        ({"expires": "0"}, 0),
        ({"expires": IN_AN_HOUR}, 3600),
        ({"expires": IN_AN_HOUR, "cache-control": "max-age=5"}, 5),
    ],
)
def test_freshness(headers: dict[str, str], expected: float | None) -> None:
    assert fresh_s(headers, NOW) == expected


def test_no_store_is_not_stored() -> None:
    assert may_store({"cache-control": "max-age=5"}) and not may_store({"cache-control": "private, NO-STORE"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", None), ("120", 120), ("soon", None), (IN_AN_HOUR, 3600), (DATE, 0), ("9" * 99, LONGEST_S)],
)
def test_when_to_come_again(text: str, expected: float | None) -> None:
    assert retry_after_s({"retry-after": text} if text else {}, NOW) == expected


def test_a_date_to_come_again_is_measured_from_the_answers_own() -> None:
    seen = {"retry-after": IN_AN_HOUR, "date": DATE}
    assert [retry_after_s(seen, NOW + days * 86_400) for days in (-400, 0, 400)] == [3600, 3600, 3600]


@given(st.dictionaries(st.sampled_from(["cache-control", "expires", "date", "age", "retry-after"]), st.text()))
def test_wild_headers_raise_nothing(headers: dict[str, str]) -> None:
    life = fresh_s(headers, NOW)
    assert life is None or 0 <= life <= LONGEST_S
    retry_after_s(headers, NOW)
