"""What sessions, quotas and logs call somebody."""

from __future__ import annotations

from mcp_skills_server.access.principal import Principal


def test_a_token_and_a_user_of_one_name_are_two() -> None:
    token, user = Principal("token", "ann"), Principal("user", "ann", "https://login.example")
    assert (token.id, user.id) == ("token:ann", "user:ann")
    assert token.key != user.key != Principal("user", "ann", "https://other.example").key


def test_groups_and_scopes_do_not_make_another_one() -> None:
    one = Principal("user", "ann", "https://login.example", frozenset({"a"}), frozenset({"read"}))
    assert one.key == Principal("user", "ann", "https://login.example").key
