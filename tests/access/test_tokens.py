"""Tokens of the operator, with plain values: lines, ends, groups, comparison, replacement."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mcp_skills_server.access import tokens as tokens_module
from mcp_skills_server.access.tokens import (
    Token,
    Tokens,
    find_token,
    hashed_line,
    new_token,
    read_token_file,
    read_token_value,
    read_tokens,
    warn_of_expiry,
)
from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.bearer import secret_of
from tables import each_row

SECRET = "not-a-real-secret-0123456789"
OTHER = "another-made-up-one-0123456789"


def test_tokens_are_read_from_lines() -> None:
    text = f"# who: what\n\n  alpha = {SECRET}  \r\nbeta={OTHER}=with=equals\n   # alpha=too\nc.d@e_f-1={SECRET}x"
    tokens = read_tokens(text, "x").require_valid()
    assert [token.name for token in tokens] == ["alpha", "beta", "c.d@e_f-1"]
    assert [token.hashed for token in tokens] == [
        hashlib.sha256(each.encode()).digest() for each in (SECRET, OTHER + "=with=equals", SECRET + "x")
    ]


@each_row(
    ("text", "message"),
    [
        (SECRET, "line 1: write name=token"),
        (f"ok={SECRET}\n{OTHER}", "line 2: write name=token"),
        (f"={SECRET}", "line 1: write name=token"),
        (f"two words={SECRET}", "line 1: write name=token"),
        (f"name\x1b[31m={SECRET}", "line 1: write name=token"),
        (f"\ufeffname={SECRET}", "line 1: write name=token"),
        (f"# one\nname={SECRET[:15]}", "line 2: the token has fewer than 16 characters"),
        ("name=", "line 1: the token has fewer than 16 characters"),
        (f"name={SECRET}é", "line 1: the token has characters that are not printable ASCII"),
        (f"name={SECRET}\x00x", "line 1: the token has characters that are not printable ASCII"),
        (f"a={SECRET}\na={OTHER}\na={OTHER}x", "line 3: the name a appears more than twice"),
        ("a=sha256:1234", "line 1: after sha256: write 64 hexadecimal digits"),
        (f"a=sha256:{'0' * 63}g", "line 1: after sha256: write 64 hexadecimal digits"),
        (f"a={SECRET}\nb=sha256:{hashlib.sha256(SECRET.encode()).hexdigest()}", "line 2: b has the token of a"),
        (f"a={SECRET}\nb={OTHER}\nc={SECRET} groups=x", "line 3: c has the token of a"),
        ("", "there is no token"),
        ("# a comment\n\n   \n", "there is no token"),
    ],
)
def test_what_is_no_list_of_tokens_is_wrong_usage_and_never_shown(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_tokens(text, "tokens.txt").require_valid()
    seen = str(caught.value)
    assert seen.startswith("tokens.txt") and message in seen
    assert "\n" not in seen
    assert SECRET[:10] not in seen and OTHER[:10] not in seen


def test_a_token_of_sixteen_characters_is_long_enough() -> None:
    assert read_tokens("name=0123456789abcdef", "x").require_valid()[0].name == "name"


def test_tokens_are_read_from_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"alpha={SECRET}\n")
    path.chmod(0o600)
    assert [token.name for token in read_token_file(str(path)).require_valid()] == ["alpha"]
    assert not caplog.records


def test_a_file_that_everybody_can_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"alpha={SECRET}\n")
    path.chmod(0o644)
    read_token_file(str(path)).require_valid()
    assert "can be read by every user" in caplog.text and str(path) in caplog.text
    assert SECRET not in caplog.text


@each_row(
    ("raw", "message"),
    [
        (None, r"cannot be read \(No such file or directory\)"),
        (b"alpha=\xff\xfe" + SECRET.encode(), r"cannot be read \(not UTF-8\)"),
        (b"# " + b"x" * (1 << 20) + f"\nalpha={SECRET}".encode(), "too large for a token file"),
        (b"", "there is no token"),
        (SECRET.encode(), "line 1: write name=token"),
    ],
)
def test_a_file_without_tokens_is_wrong_usage(tmp_path: Path, raw: bytes | None, message: str) -> None:
    path = tmp_path / "tokens"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(UsageError, match=message) as caught:
        read_token_file(str(path)).require_valid()
    assert str(path) in str(caught.value) and SECRET not in str(caught.value)


def test_a_directory_is_no_file_of_tokens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_token_file(str(tmp_path)).require_valid()


TOKENS = tuple(read_tokens(f"alpha={SECRET}\nbeta={OTHER}", "x").require_valid())


def borne(header: str | None) -> Token | None:
    secret = secret_of(header)
    return find_token(TOKENS, secret or "")


@each_row(
    ("header", "name"),
    [
        (f"Bearer {SECRET}", "alpha"),
        (f"bearer {OTHER}", "beta"),
        (f"BEARER   {SECRET}  ", "alpha"),
        (None, None),
        ("", None),
        ("Bearer", None),
        ("Bearer ", None),
        (SECRET, None),
        (f"Basic {SECRET}", None),
        (f"Token {SECRET}", None),
        (f"Bearer{SECRET}", None),
        (f"Bearer: {SECRET}", None),
        (f"Bearer {SECRET[:-1]}", None),
        (f"Bearer {SECRET}x", None),
        (f"Bearer {SECRET.upper()}", None),
        (f"Bearer {SECRET}, Bearer {OTHER}", None),
        ("Bearer alpha", None),
        (f"Bearer alpha={SECRET}", None),
        (f"Bearer {TOKENS[0].hashed.hex()}", None),
        ("Bearer \udcff\udc80", None),
        ("Bearer " + "x" * 100_000, None),
    ],
)
def test_a_bearer_is_who_bears_the_whole_token(header: str | None, name: str | None) -> None:
    found = borne(header)
    assert (found and found.name) == name


@each_row("header", [f"Bearer {SECRET}", f"Bearer {OTHER}", "Bearer wrong", f"Basic {SECRET}", None])
def test_every_token_is_compared_in_constant_time_whoever_asks(
    header: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def digest(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    compare_digest = hmac.compare_digest
    monkeypatch.setattr(tokens_module.hmac, "compare_digest", digest)
    borne(header)
    assert [one for one, _ in compared] == [token.hashed for token in TOKENS]
    # Hashes are compared, so that not even the length of a token makes a difference.
    assert {len(each) for pair in compared for each in pair} == {32}


def test_a_token_is_in_no_representation(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        borne(f"Bearer {SECRET}")
        borne("Bearer wrong")
    for text in (repr(TOKENS), str(TOKENS[0]), caplog.text):
        assert SECRET not in text and OTHER not in text
    assert "alpha" in repr(TOKENS)


def test_tokens_are_replaced_by_tokens_and_never_by_none() -> None:
    tokens, removed = Tokens([first := read_tokens(f"a={SECRET}", "x").require_valid()[0]]), list[frozenset[bytes]]()
    tokens.on_removed = removed.append
    (other,) = read_tokens(f"a={OTHER}", "x").require_valid()
    tokens.replace([first, other])
    assert removed == [] and find_token(tokens, SECRET) and find_token(tokens, OTHER)
    tokens.replace([other])
    assert removed == [{first.hashed}] and find_token(tokens, SECRET) is None
    with pytest.raises(ValueError, match="tokens replace tokens"):
        tokens.replace([])
    with pytest.raises(ValueError, match="tokens replace tokens"):
        Tokens([]).replace([other])
    assert find_token(tokens, OTHER) == other and other in tokens and len(tokens) == 1


# Ends and groups


def when(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type]


@each_row(
    ("words", "expires", "groups"),
    [
        ("", math.inf, []),
        (" expires=2027-01-31", when(2027, 2, 1), []),
        (" expires=2028-02-29   groups=a", when(2028, 3, 1), ["a"]),
        (" expires=2027-01-31T12:00:00Z", when(2027, 1, 31, 12), []),
        (" expires=2027-01-31t12:00:00+02:00", when(2027, 1, 31, 10), []),
        (" groups=finance,/legal/eu,Köln", math.inf, ["finance", "/legal/eu", "Köln"]),
        (" groups=a,b,a expires=2027-12-31", when(2028, 1, 1), ["a", "b"]),
    ],
)
def test_a_line_says_when_its_token_ends_and_what_its_bearer_belongs_to(
    words: str, expires: float, groups: list[str]
) -> None:
    (token,) = read_tokens(f"alpha = {SECRET}{words}\n", "x").require_valid()
    assert (token.name, token.expires, token.groups) == ("alpha", expires, frozenset(groups))
    assert token.hashed == hashlib.sha256(SECRET.encode()).digest()
    admission = token.admission
    assert admission.principal.id == "token:alpha" and admission.principal.groups == frozenset(groups)
    assert (admission.expires, admission.hashed) == (expires, token.hashed)


@each_row(
    ("words", "hint"),
    [
        ("expires=", "expires: write a day"),
        ("expires=tomorrow", "expires: write a day"),
        ("expires=2027-02-30", "expires: write a day"),
        ("expires=2027-1-1", "expires: write a day"),
        ("expires=20270131", "expires: write a day"),
        ("expires=2027-W05-1", "expires: write a day"),
        ("expires=9999-12-31", "expires: write a day"),
        ("expires=2027-01-31T12:00:00", "expires: write a day"),  # by which clock?
        ("expires=2027-01-31T25:00:00Z", "expires: write a day"),
        ("groups=", "groups: write names"),
        ("groups=a,,b", "groups: write names"),
        ("groups=a,\x1b", "groups: write names"),
        ("group=a", "write name=token"),
        ("groups=a groups=b", "write name=token"),
        ("expires=2027-01-31 expires=2028-01-31", "write name=token"),
        (OTHER, "write name=token"),
        (f"{OTHER}=x", "write name=token"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage_and_not_shown(words: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_tokens(f"a={SECRET}\nb={OTHER}0 {words}", "tokens.txt").require_valid()
    seen = str(caught.value)
    assert seen.startswith("tokens.txt, line 2: ") and hint in seen
    assert "\n" not in seen and SECRET not in seen and OTHER not in seen


@each_row(
    ("value", "names", "groups"),
    [
        (f"a={SECRET},b={OTHER}", "ab", [set(), set()]),
        (f"a={SECRET} , b = {OTHER},", "ab", [set(), set()]),
        (f"a={SECRET} groups=x,y,b={OTHER} groups=z", "ab", [{"x", "y"}, {"z"}]),
        (f"a={SECRET} groups=x,y\nb={OTHER}\n", "ab", [{"x", "y"}, set()]),
        (f"# both,a={SECRET},\n,b={OTHER},#", "ab", [set(), set()]),
    ],
)
def test_in_a_value_commas_end_lines_but_between_groups(value: str, names: str, groups: list[set[str]]) -> None:
    found = read_token_value(value, "x").require_valid()
    assert [each.name for each in found] == [*names]
    assert [each.groups for each in found] == groups
    assert [each.hashed for each in found] == [hashlib.sha256(each.encode()).digest() for each in (SECRET, OTHER)]


def test_a_token_of_which_name_groups_or_end_change_is_taken_away() -> None:
    text = f"a={SECRET} groups=x,y\nb={OTHER} expires=2027-01-31\n"
    tokens, removed = Tokens(read_tokens(text, "x").require_valid()), list[frozenset[bytes]]()
    tokens.on_removed = removed.append
    first, second = (each.hashed for each in tokens)
    tokens.replace(read_tokens(text.replace("x,y", "y,x"), "x").require_valid())
    assert removed == []
    for old, new, gone in (("x,y", "x", first), ("2027-01-31", "2027-02-28", second), ("a=", "c=", first)):
        tokens.replace(read_tokens(text, "x").require_valid())
        removed.clear()
        tokens.replace(read_tokens(text.replace(old, new), "x").require_valid())
        assert removed == [{gone}]


def test_tokens_that_end_soon_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    now = when(2027, 1, 31)
    tokens = read_tokens(
        f"past={SECRET} expires=2027-01-30\nsoon={SECRET}1 expires=2027-02-13\nlater={SECRET}2 expires=2027-02-14\n"
        f"ever={SECRET}3\n",
        "x",
    ).require_valid()
    warn_of_expiry(tokens, now)
    assert [each.getMessage() for each in caplog.records] == [
        "tokens have expired: past (2027-01-31T00:00Z); write new ones",
        "tokens expire soon: soon (2027-02-14T00:00Z); write new ones",
    ]
    caplog.clear()
    warn_of_expiry(tokens[2:], now)
    assert not caplog.records


def test_a_token_may_stand_as_its_hash_and_a_name_twice_while_it_is_rotated() -> None:
    hashed = hashlib.sha256(OTHER.encode()).hexdigest()
    tokens = read_tokens(f"a={SECRET} groups=x\na=sha256:{hashed.upper()} groups=x", "x").require_valid()
    assert {found.admission.principal for secret in (SECRET, OTHER) if (found := find_token(tokens, secret))} == {
        tokens[0].admission.principal
    }
    assert find_token(tokens, f"sha256:{hashed}") is find_token(tokens, hashed) is None


def test_of_wrong_lines_a_name_keeps_what_it_had_and_what_no_line_names_goes() -> None:
    before = read_tokens(f"a={SECRET}\nb={OTHER}\nc={SECRET}c\nd={SECRET}d", "x").require_valid()
    lines = read_tokens(f"a=short\nc={SECRET}d\nc=short\n= x", "x")
    assert [name for name, _ in lines.invalid] == ["a", "c", ""]
    after = lines.merge(before)
    assert {each.name: find_token([each], SECRET) or find_token([each], f"{SECRET}d") for each in after} == {
        "a": before[0],
        "c": lines.tokens[0],
    }


def test_a_new_token_is_let_in_by_its_line_which_does_not_have_it() -> None:
    token = new_token()
    line = hashed_line("ci", token, expires="2027-01-31", groups=["a", "b"])
    (found,) = read_tokens(line, "x").require_valid()
    assert token not in line and find_token([found], token) is found and found.groups == {"a", "b"}
    for name, expires, groups in (("no name", None, []), ("ci", "soon", []), ("ci", None, ["a b"]), ("ci", None, [""])):
        with pytest.raises(UsageError):
            hashed_line(name, token, expires=expires, groups=groups)
