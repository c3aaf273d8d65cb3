"""URLs without secrets, and the SSRF filter of addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.hosts import is_loopback, literal
from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.addresses import bare, check_fetchable, is_public, relative_to_site, shown
from tables import each_row


@each_row(("url", "plain"), [
    ("https://example.com", "https://example.com"),
    ("https://example.com:8443/a/@b/index.json", "https://example.com:8443/a/@b/index.json"),
    ("https://example.com/a?key=secret", "https://example.com/a"),
    ("https://example.com?key=secret", "https://example.com"),
    ("https://example.com/a#secret", "https://example.com/a"),
    ("https://example.com/a#secret?x", "https://example.com/a"),
    ("https://user:secret@example.com/a?b@c", "https://example.com/a"),
    ("https://secret@example.com", "https://example.com"), ("https://user:se@cret@[::1]:80/", "https://[::1]:80/"),
    ("//user:secret@example.com/a", "//example.com/a"), ("/a/b?secret", "/a/b"), ("", ""),
])  # fmt: skip
def test_displayed_url_has_no_secrets(url: str, plain: str) -> None:
    assert bare(url) == shown(url) == plain


@given(st.text())
def test_any_text_is_displayed_in_one_short_line(text: str) -> None:
    assert len(shown(text)) <= 120
    assert shown(text).isprintable()


@each_row("url", ["https://user:secret@example.com", "ftp://a?secret", "https://?secret", "x?secret"])
def test_unfetchable_url_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(UsageError, match="give the URL of a site") as caught:
        check_fetchable(url)
    assert "secret" not in str(caught.value)


@each_row(("site", "message", "shortened"), [
    ("https://a.example", "https://a.example/x/index.json is gone", "/x/index.json is gone"),
    ("https://a.example/x", "no: https://a.example/x/i; https://a.example/i too", "no: /x/i; /i too"),
    ("HTTPS://A.example/?key=secret", "https://A.example/i is gone", "/i is gone"),
    ("https://a.example", "https://a.example:8443/i is gone", "https://a.example:8443/i is gone"),
    ("https://a.example", "https://b.example/https://a.example/i", "https://b.example/https://a.example/i"),
    ("skills.zip", "cannot be unpacked", "cannot be unpacked"),
])  # fmt: skip
def test_urls_of_site_are_shortened_to_paths(site: str, message: str, shortened: str) -> None:
    assert relative_to_site(site, message) == shortened


@each_row("address", [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.8.8.8", "169.254.169.254", "172.16.0.1",
    "172.31.255.255", "192.0.0.9", "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1",
    "2002:7f00:1::", "2002:808:808::", "100::1", "3fff::1", "5f00::1", "4000::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "", "localhost", "example.com", "1.2.3", "1.2.3.4.5",
])  # fmt: skip
def test_private_and_malformed_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@each_row("address", [
    "1.1.1.1", "8.8.8.8", "100.63.255.255", "172.32.0.1", "192.0.1.1", "64:ff9b::808:808",
    "2606:4700::1111", "::ffff:8.8.8.8", "2001:4860:4860::8888",
])  # fmt: skip
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@each_row(("address", "hosts"), [
    ("127.0.0.1", ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1")),
    ("10.0.1.2", ("10.258",)),
    ("::1", ("::1",)),
    ("0.0.0.0", ("0x",)),
    (None, ("example.com", "a", "1.2.3.4.5", "256.1.1.1", "4294967296", "08.1", "é", "1.b", "1 2")),
    (None, ("0x-1", "0x+1", "0x1_0", "1_0", "-1", "+1")),  # only Python reads these as numbers
])  # fmt: skip
def test_literal_decodes_each_spelling_of_an_address(address: str | None, hosts: tuple[str, ...]) -> None:
    for host in hosts:
        assert literal(host) == address
        assert is_loopback(host) == (address in {"127.0.0.1", "::1"})


def test_loopback_host_is_recognized_by_its_spelling() -> None:
    assert all(map(is_loopback, ("localhost", "LOCALHOST.", "a.localhost", "127.9", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("10.0.0.1", "localhost.example", "example.com")))


@given(st.text(max_size=20) | st.from_regex(r"[0-9a-fx.:%]{0,20}", fullmatch=True))
def test_any_host_is_parsed_without_error(host: str) -> None:
    address = literal(host)
    is_public(host)
    is_loopback(host)
    assert address is None or literal(address) == address
