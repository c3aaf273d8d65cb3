"""Grants: patterns of skill paths, and the permissions of principals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.grants import Grant, Grants, May, Pattern, PatternError, Permissions, is_who
from mcp_skills_server.access.principal import Principal
from tables import each_row

ANN = Principal("token", "ann", groups=frozenset({"finance"}))


@each_row(("pattern", "matching", "others"), [
    ("acme/billing", ["acme/billing"], ["acme", "acme/billing/x", "acme/billings", "x/acme/billing"]),
    ("*", ["acme", "b"], ["acme/billing"]),
    ("acme/*", ["acme/billing", "acme/x"], ["acme", "acme/billing/x", "acmes/x"]),
    ("acme/**", ["acme", "acme/billing", "acme/a/b/c"], ["acmes", "b/acme"]),
    ("**", ["a", "a/b", "a/b/c"], []),
    ("**/billing", ["billing", "a/billing", "a/b/billing"], ["billing/a", "a/xbilling"]),
    ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a", "z", "a/z/y", "az"]),
    ("a/**/m/*/**/z", ["a/m/n/z", "a/x/m/n/y/z", "a/m/m/n/z"], ["a/m/z", "a/n/z"]),
    ("re*-*s", ["refund-notes", "re-s"], ["refund", "res", "re-"]),
    ("a*a", ["aa", "aba"], ["a"]),
])  # fmt: skip
def test_pattern_matches_paths(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [path for path in matching if not Pattern(pattern).matches(path)] == []
    assert [path for path in others if Pattern(pattern).matches(path)] == []


@each_row(
    "text",
    ["", "/a", "a/", "a//b", "./a", "a/..", "a**", "a/b**c", "!a", "a?", "[ab]", "{a,b}", "a\\b", "a\nb", "a" * 999],
)
def test_invalid_pattern_is_refused_with_one_line(text: str) -> None:
    with pytest.raises(PatternError) as caught:
        Pattern(text)
    assert str(caught.value) and "\n" not in str(caught.value)


def test_pattern_has_at_most_512_characters_and_64_segments() -> None:
    for text in ("a" * 512, "/".join(["a"] * 64)):
        assert Pattern(text).matches(text)
        with pytest.raises(PatternError, match="512 characters and 64 segments"):
            Pattern(f"{text}/a" if "/" in text else f"{text}a")


SEGMENTS = st.text(alphabet="ab-", min_size=1, max_size=3)
SEGMENT_PATTERNS = st.one_of(SEGMENTS, st.sampled_from(["*", "**", "a*", "*b", "a*b"]))
PATHS, PATTERNS = (st.lists(each, min_size=1, max_size=4).map("/".join) for each in (SEGMENTS, SEGMENT_PATTERNS))


def matches_exhaustively(pattern: list[str], path: list[str]) -> bool:
    """Match segments by trying every length of each `**`."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(matches_exhaustively(pattern[1:], path[count:]) for count in range(len(path) + 1))
    if not path:
        return False
    return segment_matches_exhaustively(pattern[0], path[0]) and matches_exhaustively(pattern[1:], path[1:])


def segment_matches_exhaustively(pattern: str, text: str) -> bool:
    """Match one segment by trying every length of each `*`."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(segment_matches_exhaustively(pattern[1:], text[count:]) for count in range(len(text) + 1))
    return bool(text) and pattern[0] == text[0] and segment_matches_exhaustively(pattern[1:], text[1:])


@given(PATTERNS, st.lists(PATHS, max_size=8, unique=True))
def test_matching_agrees_with_exhaustive_search(pattern: str, paths: list[str]) -> None:
    expected = {path for path in paths if matches_exhaustively(pattern.split("/"), path.split("/"))}
    compiled = Pattern(pattern)
    assert {path for path in paths if compiled.matches(path)} == expected
    permissions = Permissions([Grant(("*",), (compiled,))])
    assert sorted(permissions.readable(sorted(paths))) == sorted(expected)


def test_matching_does_not_backtrack_exponentially() -> None:
    assert not Pattern("**/a*a*a*a*a*a*a*a*b/**/a*a*b/z").matches("/".join(["a" * 60] * 60))


@each_row(("grants", "is_admin"), [
    ([("admin", "a")], False),
    ([("admin", "a/**"), ("scripts", "**")], False),
    ([("admin", "*"), ("admin", "*/**")], False),
    ([("scripts", "a"), ("admin", "**")], True),
])  # fmt: skip
def test_administrator_needs_admin_grant_for_all_skills(grants: list[tuple[May, str]], is_admin: bool) -> None:
    parsed = [Grant(("*",), (Pattern(skills),), frozenset({may})) for may, skills in grants]
    assert Permissions(parsed).is_admin is is_admin


def test_grants_are_additive_and_each_implies_reading() -> None:
    grants = Grants(
        [
            Grant(("token:ann",), (Pattern("a/*"),), frozenset({"scripts"})),
            Grant(("group:finance",), (Pattern("b"),), frozenset({"admin"})),
            Grant(("*",), (Pattern("open"),)),
            Grant(("local",), (Pattern("mine"),)),
            Grant(("user:ann", "token:bob"), (Pattern("**"),)),
        ],
        local=False,
    )
    ann, anonymous = grants.permissions(ANN), grants.permissions(None)
    assert [path for path in ("a/x", "b", "open", "mine", "z") if ann.can_read(path)] == ["a/x", "b", "open"]
    assert ann.permits("scripts", "a/x")
    assert not ann.permits("scripts", "b")
    assert ann.permits("read", "b")
    assert not ann.permits("code", "a/x")
    assert not ann.can_read_all
    assert anonymous.can_read("open")
    assert not anonymous.can_read("mine")
    assert not anonymous.is_admin
    assert grants.permissions(Principal("user", "ann", "https://a.example")).can_read_all
    assert grants.permissions(Principal("token", "bob")).can_read("z")
    assert not grants.permissions(Principal("token", "finance")).can_read("b")
    assert Grants(grants.grants, local=True).permissions(None).can_read("mine")
    assert not Grants(grants.grants, local=True).permissions(ANN).can_read("mine")


def test_principal_key_has_kind_and_issuer_but_no_groups_or_scopes() -> None:
    issuer = "https://login.example"
    token, user = Principal("token", "ann"), Principal("user", "ann", issuer)
    assert (token.id, user.id) == ("token:ann", "user:ann")
    assert token.key != user.key != Principal("user", "ann", "https://other.example").key
    assert user.key == Principal("user", "ann", issuer, frozenset({"a"}), frozenset({"read"})).key


def test_grantee_needs_a_known_kind_and_a_name() -> None:
    assert all(map(is_who, ("*", "local", "token:a", "group:a b", "user:auth0|1")))
    assert not any(map(is_who, ("ann", "token:", "group: ", "role:x", "", "**", "token:a\nb")))
