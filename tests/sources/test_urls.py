"""What of a URL people are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.urls import bare, check_fetchable, relative_to_site, shown


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
        check_fetchable(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("site", "said", "left"),
    [
        ("https://a.example", "https://a.example/x/index.json is gone", "/x/index.json is gone"),
        (
            "https://a.example/x",
            "none: https://a.example/x/i is gone; https://a.example/i too",
            "none: /x/i is gone; /i too",
        ),
        ("HTTPS://A.example/?key=secret", "https://A.example/i is gone", "/i is gone"),
        ("https://a.example", "https://a.example.org/i is gone", "https://a.example.org/i is gone"),
        ("https://a.example", "https://a.example:8443/i is gone", "https://a.example:8443/i is gone"),
        ("https://a.example", "http://a.example/i is gone", "http://a.example/i is gone"),
        ("https://a.example", "https://b.example/https://a.example/i", "https://b.example/https://a.example/i"),
        ("git+https://a.example/i", "https://a.example/i is gone", "https://a.example/i is gone"),
        ("skills.zip", "cannot be unpacked", "cannot be unpacked"),
    ],
)
def test_behind_the_name_of_a_site_its_addresses_are_paths(site: str, said: str, left: str) -> None:
    assert relative_to_site(site, said) == left
