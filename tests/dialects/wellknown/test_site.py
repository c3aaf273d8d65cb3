"""Agent Skills Discovery: addresses of sites, and their index candidates."""

from __future__ import annotations

import pytest

from dialects.wellknown.indexes import OLD_URL, URL
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import candidates, origin
from mcp_skills_server.errors import UsageError
from tables import each_row


@pytest.mark.requirement("WK-41", "WKO-1", "X-18")
@each_row(("url", "expected"), [
    ("https://example.com", [URL, OLD_URL]), ("https://example.com/", [URL, OLD_URL]),
    ("HTTPS://example.com/#part", [URL, OLD_URL]),
    (
        "http://a:8000/docs/",
        [f"http://a:8000{path}{each[19:]}" for path in ("/docs", "") for each in (URL, OLD_URL)],
    ),
    ("https://example.com/.well-known/agent-skills", [URL]), ("https://example.com/.well-known/skills/", [OLD_URL]),
    (URL, [URL]), ("https://example.com/my.JSON", ["https://example.com/my.JSON"]),
    ("https://example.com/skills?tag=a", ["https://example.com/skills?tag=a"]),
    ("http://[::1]:8000", ["http://[::1]:8000" + path for path in (URL[19:], OLD_URL[19:])]),
])  # fmt: skip
def test_candidates_are_the_index_urls_of_a_site(url: str, expected: list[str]):
    assert candidates(url) == expected


@each_row(
    "url",
    ["", "example.com", "file:///etc/passwd", "ftp://example.com", "https://", "https:///path", "https://a b", "http://[::1",
     "https://user:secret@example.com", "https://example.com:99999", "https://example.com:0", "https://ex\\ample.com",
     "https://exa%6dple.com", "javascript:alert(1)", "https://example.com/\n", "./skills"],
)  # fmt: skip
def test_invalid_site_address_is_a_usage_error_of_one_line(url: str):
    with pytest.raises(UsageError, match="give the URL of a site") as caught:
        candidates(url)
    assert str(caught.value).isprintable()


@pytest.mark.requirement("WK-57")
@each_row(("url", "expected"), [
    (URL, "https://example.com"), ("https://EXAMPLE.com:443/a", "https://example.com"),
    ("http://example.com:443", "http://example.com:443"), ("http://example.com:80", "http://example.com"),
    ("http://[::1]:8000/a", "http://[::1]:8000"), ("https://user@example.com", "https://example.com"),
])  # fmt: skip
def test_origin_is_normalized(url: str, expected: str):
    assert origin(url) == expected


@each_row(("text", "expected"), [
    ("https://example.com", True), ("http://example.com", True), ("HTTPS://example.com", True),
    ("https:/example.com", False), ("https", False), ("./https://x", False), ("httpx://example.com", False),
])  # fmt: skip
def test_is_site_distinguishes_urls_from_paths(text: str, expected: bool) -> None:
    assert wellknown.is_site(text) is expected
