"""Patterns of skill paths, and who may what by which grants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.grants import Grant, Grants, May, Pattern, PatternError, Permissions, is_who
from mcp_skills_server.access.principal import Principal
from tables import each_row

ANN = Principal("token", "ann", groups=frozenset({"finance"}))


@each_row(
    ("pattern", "fitting", "others"),
    [
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
    ],
)
def test_a_pattern_fits(pattern: str, fitting: list[str], others: list[str]) -> None:
    found = Pattern(pattern)
    assert [path for path in fitting if not found.matches(path)] == []
    assert [path for path in others if found.matches(path)] == []


@each_row(
    "text",
    ["", "/a", "a/", "a//b", "./a", "a/..", "a**", "a/b**c", "!a", "a?", "[ab]", "{a,b}", "a\\b", "a\nb", "a" * 999],
)
def test_what_is_no_pattern_says_why(text: str) -> None:
    with pytest.raises(PatternError) as caught:
        Pattern(text)
    assert str(caught.value) and "\n" not in str(caught.value)


def test_a_pattern_has_at_most_512_characters_and_64_segments() -> None:
    for text in ("a" * 512, "/".join(["a"] * 64)):
        assert Pattern(text).matches(text)
        with pytest.raises(PatternError, match="512 characters and 64 segments"):
            Pattern(f"{text}/a" if "/" in text else f"{text}a")


def test_each_readable_path_comes_once_however_many_patterns_fit() -> None:
    grant = Grant(("*",), tuple(map(Pattern, ("acme/**", "acme/b*", "z/**"))))
    found = Permissions((grant,)).readable(["a", "acme", "acme/billing", "acme/x", "y"])
    assert sorted(found) == ["acme", "acme/billing", "acme/x"]


SEGMENTS = st.text(alphabet="ab-", min_size=1, max_size=3)
WILD = st.one_of(SEGMENTS, st.sampled_from(["*", "**", "a*", "*b", "a*b"]))
PATHS, PATTERNS = (st.lists(each, min_size=1, max_size=4).map("/".join) for each in (SEGMENTS, WILD))


def slow_fit(pattern: list[str], path: list[str]) -> bool:
    """What a pattern means, by trying everything."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(slow_fit(pattern[1:], path[count:]) for count in range(len(path) + 1))
    return bool(path) and slow_text(pattern[0], path[0]) and slow_fit(pattern[1:], path[1:])


def slow_text(pattern: str, text: str) -> bool:
    """The same of one segment."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(slow_text(pattern[1:], text[count:]) for count in range(len(text) + 1))
    return bool(text) and pattern[0] == text[0] and slow_text(pattern[1:], text[1:])


@given(PATTERNS, st.lists(PATHS, max_size=8, unique=True))
def test_quick_answers_are_those_of_the_definition(pattern: str, paths: list[str]) -> None:
    wanted = {path for path in paths if slow_fit(pattern.split("/"), path.split("/"))}
    found = Pattern(pattern)
    assert {path for path in paths if found.matches(path)} == wanted
    permissions = Permissions([Grant(("*",), (found,))])
    assert sorted(permissions.readable(sorted(paths))) == sorted(wanted)


def test_it_takes_no_longer_than_the_text_is() -> None:
    assert not Pattern("**/a*a*a*a*a*a*a*a*b/**/a*a*b/z").matches("/".join(["a" * 60] * 60))


@each_row(
    ("grants", "is_admin"),
    [
        ([("admin", "a")], False),
        ([("admin", "a/**"), ("scripts", "**")], False),
        ([("admin", "*"), ("admin", "*/**")], False),
        ([("scripts", "a"), ("admin", "**")], True),
    ],
)
def test_what_is_about_all_skills_is_for_who_was_granted_all(grants: list[tuple[May, str]], is_admin: bool) -> None:
    made = [Grant(("*",), (Pattern(skills),), frozenset({may})) for may, skills in grants]
    assert Permissions(made).is_admin is is_admin


def test_grants_add_up_and_reading_is_part_of_each() -> None:
    both = Grants(
        [
            Grant(("token:ann",), (Pattern("a/*"),), frozenset({"scripts"})),
            Grant(("group:finance",), (Pattern("b"),), frozenset({"admin"})),
            Grant(("*",), (Pattern("open"),)),
            Grant(("local",), (Pattern("mine"),)),
            Grant(("user:ann", "token:bob"), (Pattern("**"),)),
        ],
        local=False,
    )
    ann, nobody = both.permissions(ANN), both.permissions(None)
    assert [path for path in ("a/x", "b", "open", "mine", "z") if ann.can_read(path)] == ["a/x", "b", "open"]
    assert ann.permits("scripts", "a/x") and not ann.permits("scripts", "b") and ann.permits("read", "b")
    assert not ann.permits("code", "a/x") and not ann.can_read_all
    assert nobody.can_read("open") and not nobody.can_read("mine") and not nobody.is_admin
    assert both.permissions(Principal("user", "ann", "https://a.example")).can_read_all
    assert both.permissions(Principal("token", "bob")).can_read("z")
    assert not both.permissions(Principal("token", "finance")).can_read("b")
    assert Grants(both.grants, local=True).permissions(None).can_read("mine")
    assert not Grants(both.grants, local=True).permissions(ANN).can_read("mine")


def test_whoever_is_given_the_same_has_the_same_permissions() -> None:
    a, b = Pattern("a/*"), Pattern("b")
    scripts = frozenset[str]({"scripts"})
    made = Permissions([Grant(("token:ann",), (a,), scripts), Grant(("*",), (b,))])
    same = Permissions([Grant(("group:x",), (b,), frozenset({"read"})), Grant(("token:bob",), (a, a), scripts)])
    assert made == same and hash(made) == hash(same)
    for other in ([Grant(("*",), (a, b), scripts)], [Grant(("*",), (a, b))], [Grant(("*",), (a,), scripts)], []):
        assert Permissions(other) != made


def test_a_token_and_users_of_one_name_are_several_and_groups_and_scopes_make_no_other() -> None:
    issuer = "https://login.example"
    token, user = Principal("token", "ann"), Principal("user", "ann", issuer)
    assert (token.id, user.id) == ("token:ann", "user:ann")
    assert token.key != user.key != Principal("user", "ann", "https://other.example").key
    assert user.key == Principal("user", "ann", issuer, frozenset({"a"}), frozenset({"read"})).key


def test_who_is_named_with_a_kind() -> None:
    assert all(map(is_who, ("*", "local", "token:a", "group:a b", "user:auth0|1")))
    assert not any(map(is_who, ("ann", "token:", "group: ", "role:x", "", "**", "token:a\nb")))
