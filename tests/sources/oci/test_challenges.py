"""WWW-Authenticate, as registries and their enemies write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.sources.oci.access import Challenge, parse_challenges

BEARER = {"realm": "https://auth.example/token", "service": "registry.example", "scope": "repository:a:pull,push"}


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (
            'Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a:pull,push"',
            [Challenge("bearer", BEARER)],
        ),
        ('Basic realm="a b, c"', [Challenge("basic", {"realm": "a b, c"})]),
        ("BASIC", [Challenge("basic", {})]),
        ('Basic realm=x, Bearer realm="y"', [Challenge("basic", {"realm": "x"}), Challenge("bearer", {"realm": "y"})]),
        ('Bearer realm="a", realm="b"', [Challenge("bearer", {"realm": "a"})]),
        ("", []),
        ('realm="a"', []),
        ("\x00\xff=;", []),
    ],
)
def test_the_ways_in_are_read(header: str, found: list[Challenge]) -> None:
    assert parse_challenges(header) == found


@given(st.text(max_size=200))
def test_any_header_is_read(header: str) -> None:
    assert all(each.scheme == each.scheme.lower() for each in parse_challenges(header))
