"""What of a URL people are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.urls import bare, check, shown


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("https://example.com", "https://example.com"),
        ("https://example.com:8443/a/@b/index.json", "https://example.com:8443/a/@b/index.json"),
        ("https://example.com/a?key=secret", "https://example.com/a"),
        ("https://example.com?key=secret", "https://example.com"),
        ("https://example.com/a#secret", "https://example.com/a"),
        ("https://example.com/a#secret?x", "https://example.com/a"),
        ("https://user:secret@example.com/a?b@c", "https://example.com/a"),
        ("https://secret@example.com", "https://example.com"),
        ("https://user:se@cret@[::1]:80/", "https://[::1]:80/"),
        ("//user:secret@example.com/a", "//example.com/a"),
        ("/a/b?secret", "/a/b"),
        ("", ""),
    ],
)
def test_what_may_be_a_secret_is_left_out(url: str, plain: str) -> None:
    assert bare(url) == shown(url) == plain


@given(st.text())
def test_whatever_is_given_is_shown_in_one_short_line(text: str) -> None:
    assert len(shown(text)) <= 120 and shown(text).isprintable()


@pytest.mark.parametrize("url", ["https://user:secret@example.com", "ftp://a?secret", "https://?secret", "x?secret"])
def test_what_cannot_be_fetched_from_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(UsageError, match="give the URL of a site") as caught:
        check(url)
    assert "secret" not in str(caught.value)
