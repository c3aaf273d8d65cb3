"""Static tokens: parsing, expiry, groups, comparison, replacement."""

from __future__ import annotations

import hashlib
import hmac
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


def parse(text: str) -> list[Token]:
    return read_tokens(text, "tokens.txt").require_valid()


def hashes_of(*secrets: str) -> list[bytes]:
    return [hashlib.sha256(secret.encode()).digest() for secret in secrets]


def test_tokens_are_parsed_from_lines() -> None:
    text = f"# who: what\n\n  alpha = {SECRET}  \r\nbeta={OTHER}=with=equals\n   # alpha=too\nc.d@e_f-1={SECRET}x"
    tokens = parse(f"{text}\nshort=0123456789abcdef")
    assert [token.name for token in tokens] == ["alpha", "beta", "c.d@e_f-1", "short"]
    assert [token.hashed for token in tokens] == hashes_of(
        SECRET, OTHER + "=with=equals", SECRET + "x", "0123456789abcdef"
    )


@each_row(("message", "texts"), [
    ("line 1: write name=token", [SECRET, f"={SECRET}", f"two words={SECRET}", f"name\x1b[31m={SECRET}"]),
    ("line 1: write name=token", [f"\ufeffname={SECRET}"]),
    ("line 2: write name=token", [f"ok={SECRET}\n{OTHER}"]),
    ("line 2: the token has fewer than 16 characters", [f"# one\nname={SECRET[:15]}"]),
    ("line 1: the token has fewer than 16 characters", ["name="]),
    ("the token has characters that are not printable ASCII", [f"name={SECRET}é", f"name={SECRET}\x00x"]),
    ("line 3: the name a appears more than twice", [f"a={SECRET}\na={OTHER}\na={OTHER}x"]),
    ("line 1: after sha256: write 64 hexadecimal digits", ["a=sha256:1234", f"a=sha256:{'0' * 63}g"]),
    ("line 2: b has the token of a", [f"a={SECRET}\nb=sha256:{hashes_of(SECRET)[0].hex()}"]),
    ("line 3: c has the token of a", [f"a={SECRET}\nb={OTHER}\nc={SECRET} groups=x"]),
    ("there is no token", ["", "# a comment\n\n   \n"]),
    *(
        ("line 1: expires: write a day", [f"a={SECRET}0 expires={each}"])
        for each in (
            "", "tomorrow", "2027-02-30", "2027-1-1", "20270131", "2027-W05-1", "9999-12-31",
            "2027-01-31T12:00:00",  # without a time zone
            "2027-01-31T25:00:00Z",
        )
    ),
    ("line 1: groups: write names", [f"a={SECRET} groups={each}" for each in ("", "a,,b", "a,\x1b")]),
    *(
        ("line 1: write name=token", [f"a={SECRET} {each}"])
        for each in (
            "group=a", "groups=b groups=b", "expires=2027-01-31 expires=2028-01-31", OTHER, f"{OTHER}=x",
        )
    ),
])  # fmt: skip
def test_invalid_token_list_is_usage_error_without_secrets(message: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(UsageError) as caught:
            parse(text)
        error = str(caught.value)
        assert error.startswith("tokens.txt") and message in error and "\n" not in error
        assert SECRET[:10] not in error and OTHER[:10] not in error


def test_token_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Some editors of Windows write one."""
    path = tmp_path / "tokens"
    path.write_text(f"alpha={SECRET}\n", encoding="utf-8-sig")
    path.chmod(0o600)
    assert [token.name for token in read_token_file(str(path)).require_valid()] == ["alpha"]


def test_world_readable_token_file_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"alpha={SECRET}\n")
    for mode, messages in ((0o600, []), (0o644, [f"{path} can be read by every user of this machine; chmod o-rwx it"])):
        path.chmod(mode)
        assert [token.name for token in read_token_file(str(path)).require_valid()] == ["alpha"]
        assert caplog.messages == messages


@each_row(("raw", "message"), [
    (None, r"cannot be read \(No such file or directory\)"),
    (b"alpha=\xff\xfe" + SECRET.encode(), r"cannot be read \(not UTF-8\)"),
    (b"#" * ((1 << 20) + 1), r"cannot be read \(it has more than 1,048,576 bytes\); "),
    (b"#" * (1 << 20), "there is no token"),
])  # fmt: skip
def test_token_file_without_tokens_is_usage_error(tmp_path: Path, raw: bytes | None, message: str) -> None:
    path = tmp_path / "tokens"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(UsageError, match=message) as caught:
        read_token_file(str(path))
    assert str(path) in str(caught.value)
    assert SECRET not in str(caught.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_token_file(str(tmp_path))


TOKENS = tuple(parse(f"alpha={SECRET}\nbeta={OTHER}"))


def token_of_header(header: str | None) -> Token | None:
    return find_token(TOKENS, secret_of(header) or "")


@each_row(("header", "name"), [
    (f"Bearer {SECRET}", "alpha"), (f"bearer {OTHER}", "beta"), (f"BEARER   {SECRET}  ", "alpha"),
    *(
        (header, None)
        for header in (
            None, "", "Bearer", "Bearer ", SECRET, f"Basic {SECRET}", f"Token {SECRET}", f"Bearer{SECRET}",
            f"Bearer: {SECRET}", f"Bearer {SECRET[:-1]}", f"Bearer {SECRET}x", f"Bearer {SECRET.upper()}",
            f"Bearer {SECRET}, Bearer {OTHER}", "Bearer alpha", f"Bearer alpha={SECRET}",
            f"Bearer {TOKENS[0].hashed.hex()}", "Bearer \udcff\udc80", "Bearer " + "x" * 100_000,
        )
    ),
])  # fmt: skip
def test_bearer_needs_the_whole_token(header: str | None, name: str | None) -> None:
    token = token_of_header(header)
    assert (token and token.name) == name


@each_row("header", [f"Bearer {SECRET}", f"Bearer {OTHER}", "Bearer wrong", f"Basic {SECRET}", None])
def test_every_token_is_compared_in_constant_time(header: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare_digest = hmac.compare_digest

    def digest(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr(tokens_module.hmac, "compare_digest", digest)
    token_of_header(header)
    assert [one for one, _ in compared] == [token.hashed for token in TOKENS]
    # Comparing hashes hides the length of a token too.
    assert {len(value) for pair in compared for value in pair} == {32}


def test_replacing_tokens_reports_changed_ones_as_removed() -> None:
    text = f"a={SECRET} groups=x,y\nb={OTHER} expires=2027-01-31\n"
    tokens = Tokens(parse(text))
    first, second = tokens
    assert tokens.replace(parse(text.replace("x,y", "y,x"))) == frozenset()
    assert find_token(tokens, SECRET) == first
    for old, new, changed in (("x,y", "x", first), ("2027-01-31", "2027-02-28", second), ("a=", "c=", first)):
        tokens.replace(parse(text))
        assert tokens.replace(parse(text.replace(old, new))) == {changed.hashed}
    tokens.replace([second])
    assert find_token(tokens, SECRET) is None
    assert [*tokens] == [second]
    for before, after in ((tokens, []), (Tokens([]), [first])):
        with pytest.raises(ValueError, match="tokens replace tokens"):
            before.replace(after)


def timestamp(*parts: Any) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()


@each_row(("words", "expires", "groups"), [
    ("", math.inf, []),
    (" expires=2027-01-31", timestamp(2027, 2, 1), []),
    (" expires=2028-02-29   groups=a", timestamp(2028, 3, 1), ["a"]),
    (" expires=2027-01-31T12:00:00Z", timestamp(2027, 1, 31, 12), []),
    (" expires=2027-01-31t12:00:00+02:00", timestamp(2027, 1, 31, 10), []),
    (" groups=finance,/legal/eu,Köln", math.inf, ["finance", "/legal/eu", "Köln"]),
    (" groups=a,b,a expires=2027-12-31", timestamp(2028, 1, 1), ["a", "b"]),
])  # fmt: skip
def test_line_has_expiry_and_groups(words: str, expires: float, groups: list[str]) -> None:
    (token,) = parse(f"alpha = {SECRET}{words}\n")
    assert token == Token("alpha", hashes_of(SECRET)[0], expires, frozenset(groups))
    admission = token.admission
    assert admission.principal.id == "token:alpha" and admission.principal.groups == frozenset(groups)
    assert (admission.expires, admission.hashed) == (expires, token.hashed)


@each_row(("value", "groups"), [
    (f"a={SECRET},b={OTHER}", [set(), set()]),
    (f"a={SECRET} , b = {OTHER},", [set(), set()]),
    (f"a={SECRET} groups=x,y,b={OTHER} groups=z", [{"x", "y"}, {"z"}]),
    (f"a={SECRET} groups=x,y\nb={OTHER}\n", [{"x", "y"}, set()]),
    (f"# both,a={SECRET},# x,\n,b={OTHER},#", [set(), set()]),
])  # fmt: skip
def test_commas_in_a_value_separate_lines_or_groups(value: str, groups: list[set[str]]) -> None:
    tokens = read_token_value(value, "x").require_valid()
    assert [token.name for token in tokens] == ["a", "b"]
    assert [token.groups for token in tokens] == groups
    assert [token.hashed for token in tokens] == hashes_of(SECRET, OTHER)


def test_expired_tokens_and_those_that_expire_soon_cause_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    lines = "past={0} expires=2027-01-30\nsoon={0}1 expires=2027-02-13\nlater={0}2 expires=2027-02-14\never={0}3\n"
    tokens = parse(lines.format(SECRET))
    warn_of_expiry(tokens, timestamp(2027, 1, 31))
    assert caplog.messages == [
        "tokens have expired: past (2027-01-31T00:00Z); write new ones",
        "tokens expire soon: soon (2027-02-14T00:00Z); write new ones",
    ]
    caplog.clear()
    warn_of_expiry(tokens[2:], timestamp(2027, 1, 31))
    assert not caplog.records
    many = [Token(f"t{number}", b"", number) for number in range(21)]
    for count, more in ((20, ""), (21, " and 1 more")):
        warn_of_expiry(many[:count], 99)
        assert caplog.messages[-1].endswith(f"t19 (1970-01-01T00:00Z){more}; write new ones")


def test_token_can_be_a_hash_and_have_two_lines_during_rotation() -> None:
    digits = hashes_of(OTHER)[0].hex()
    tokens = parse(f"a={SECRET} groups=x\na=sha256:{digits.upper()} groups=x")
    for secret in (SECRET, OTHER):
        token = find_token(tokens, secret)
        assert token and token.admission.principal == tokens[0].admission.principal
    assert [find_token(tokens, each) for each in (f"sha256:{digits}", digits)] == [None, None]


def test_invalid_lines_keep_former_tokens_and_absent_names_are_removed() -> None:
    before = parse(f"a={SECRET}\nb={OTHER}\nc={SECRET}c\nd={SECRET}d")
    lines = read_tokens(f"a=short\nc={SECRET}d\nc=short\n= x", "x")
    assert [name for name, _ in lines.invalid] == ["a", "c", ""]
    assert sorted(lines.merge(before), key=lambda token: token.name) == [before[0], lines.tokens[0]]


def test_new_token_matches_its_hashed_line() -> None:
    token = new_token()
    line = hashed_line("ci", token, expires="2027-01-31", groups=["a", "b"])
    (found,) = parse(line)
    assert token not in line and find_token([found], token) is found
    assert (found.groups, found.expires) == ({"a", "b"}, timestamp(2027, 2, 1))
    assert len(token) == len("mcpskills_") + 43, "256 bits in base64"
    for name, expires, groups in (("no name", None, []), ("ci", "soon", []), ("ci", None, ["a b"]), ("ci", None, [""])):
        with pytest.raises(UsageError):
            hashed_line(name, token, expires=expires, groups=groups)
