"""Static bearer tokens of the operator: lines of a file with name, token, expiry and groups.

Tokens are stored as hashes, compared in constant time, and never logged.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from mcp_skills_server.access.principal import Admission, Principal
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError, listed

logger = logging.getLogger(__name__)

_MIN_TOKEN: Final = 16
SOON_S: Final = 14 * 86_400.0
"""Seconds before its expiry in which a token counts as expiring soon."""
_HASHED: Final = "sha256:"
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
_MAX_OF_NAME: Final = 2
"""Most tokens of one name: an old and a new one during a rotation."""
_MAX_FILE: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]+")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_ANOTHER: Final = "give another --token-file"
_FORM: Final = "name=token, and after it expires=2027-01-31 and groups=a,b if you like"


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token, stored as a hash so that it cannot be logged by accident."""

    name: str  # in grants and logs
    hashed: bytes
    expires: float = math.inf  # seconds since the epoch
    groups: frozenset[str] = frozenset()

    @property
    def admission(self) -> Admission:
        """Return the admission of its bearer."""
        who = Principal("token", self.name, groups=self.groups)
        return Admission(who, self.hashed, self.expires)


class Tokens(Collection[Token]):
    """The tokens in force, which any thread may replace while requests are handled.

    A server without tokens stays open, and one with tokens never becomes open.
    """

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._tokens = tuple(tokens)

    def __iter__(self) -> Iterator[Token]:
        return iter(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._tokens

    def replace(self, tokens: Sequence[Token]) -> frozenset[bytes]:
        """Replace the tokens. Return the hashes of those that are gone or have changed.

        Raises:
            ValueError: the old or the new tokens are empty, which means an open server.
        """
        if not tokens or not self._tokens:
            raise ValueError("tokens replace tokens")
        before, self._tokens = self._tokens, tuple(tokens)
        return frozenset(token.hashed for token in {*before} - {*tokens})


def find_token(tokens: Iterable[Token], secret: str) -> Token | None:
    """Return the token with this secret, expired or not, in constant time, or None."""
    hashed = hash_of(secret)
    match: Token | None = None
    for token in tokens:
        if hmac.compare_digest(token.hashed, hashed):
            match = token
    return match


@dataclass(frozen=True, slots=True)
class TokenLines:
    """The lines of a token file. A reason shows no token."""

    tokens: tuple[Token, ...]  # of the valid lines
    invalid: tuple[tuple[str, str], ...] = ()  # (name or "", reason) of each other line

    def require_valid(self) -> list[Token]:
        """Return the tokens.

        Raises:
            UsageError: a line is invalid; the message is about the first.
        """
        for _, what in self.invalid:
            raise UsageError(what)
        return [*self.tokens]

    def merge(self, before: Iterable[Token]) -> list[Token]:
        """Return the tokens, and those of `before` whose name is in invalid lines only.

        A typing error in a line must not revoke the old token of its name. A token whose name is in
        no line is revoked.
        """
        kept = {name for name, _ in self.invalid} - {token.name for token in self.tokens}
        known = {token.hashed for token in self.tokens}
        old = (token for token in before if token.name in kept and token.hashed not in known)
        return [*self.tokens, *old]


def read_tokens(text: str, source: str) -> TokenLines:
    """Parse lines `name=token` or `name=sha256:HEX`; skip blank lines and comments (`#`).

    Optional fields after the token are `expires=2027-01-31` (the end of that day in UTC, or an RFC
    3339 time) and `groups=a,b`. Two different tokens may have one name during a rotation.

    Raises:
        UsageError: there is no line.
    """
    tokens: dict[bytes, Token] = {}
    count = Counter[str]()
    wrong: list[tuple[str, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{source}, line {number}"
        try:
            token = _parse_line(line, where)
            if count[token.name] >= _MAX_OF_NAME:
                raise UsageError(
                    f"{where}: the name {token.name} appears more than twice; remove the oldest "
                    "token of it"
                )
            if token.hashed in tokens:
                same = tokens[token.hashed].name
                raise UsageError(
                    f"{where}: {token.name} has the token of {same}; make another one for each"
                )
            tokens[token.hashed] = token
            count[token.name] += 1
        except UsageError as error:
            name = line.partition("=")[0].strip()
            wrong.append((name if _NAME.fullmatch(name) else "", str(error)))
    if not tokens and not wrong:
        raise UsageError(f"{source}: there is no token; write lines {_FORM}")
    return TokenLines(tuple(tokens.values()), tuple(wrong))


def _parse_line(line: str, where: str) -> Token:
    name, equals, rest = line.partition("=")
    name = name.strip()
    secret, *more = [part for part in rest.split(" ") if part] or [""]
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(f"{where}: write {_FORM}")
    if secret.startswith(_HASHED):
        digits = secret.removeprefix(_HASHED)
        if not _SHA256.fullmatch(digits):
            hint = "write 64 hexadecimal digits, as 'token new' does"
            raise UsageError(f"{where}: after sha256: {hint}")
        hashed = bytes.fromhex(digits)
    else:
        if len(secret) < _MIN_TOKEN:
            raise UsageError(f"{where}: the token has fewer than {_MIN_TOKEN} characters")
        if not (secret.isascii() and secret.isprintable()):
            raise UsageError(f"{where}: the token has characters that are not printable ASCII")
        hashed = hash_of(secret)
    expires, groups = _parse_fields(more, where)
    return Token(name, hashed, expires, groups)


def hash_of(secret: str) -> bytes:
    """Return the SHA-256 of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def new_token() -> str:
    """Return a new token: 256 random bits, with a prefix for secret scanners."""
    return f"mcpskills_{secrets.token_urlsafe(32)}"


def hashed_line(
    name: str, token: str, *, expires: str | None = None, groups: Sequence[str] = ()
) -> str:
    """Return the line of a token file for this token, with its hash in place of the token.

    Raises:
        UsageError: the arguments do not make a valid line.
    """
    words = [f"{name}={_HASHED}{hash_of(token).hex()}"]
    if expires is not None:
        words.append(f"expires={expires}")
    if groups:
        words.append(f"groups={','.join(groups)}")
    line = " ".join(words)
    (parsed,) = read_tokens(line, "the new line").require_valid()
    if (parsed.name, parsed.groups) != (name, frozenset(groups)):
        raise UsageError(f"the new line: write {_FORM}")
    return line


def _parse_fields(words: Sequence[str], where: str) -> tuple[float, frozenset[str]]:
    """Parse the optional fields of a line and return (expiry, groups)."""
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in {"expires", "groups"} or key in given:
            # The message omits the word, which may be part of the token.
            raise UsageError(f"{where}: write {_FORM}")
        given[key] = value
    groups: list[str] = []
    if "groups" in given:
        groups = given["groups"].split(",")
    if not all(group and group.isprintable() for group in groups):
        hint = "write names with commas between, such as groups=finance,legal"
        raise UsageError(f"{where}: groups: {hint}")
    end = math.inf
    if "expires" in given:
        end = _parse_expiry(given["expires"], where)
    return end, frozenset(groups)


def _parse_expiry(text: str, where: str) -> float:
    try:
        if _DAY.fullmatch(text):
            day = datetime.fromisoformat(text).replace(tzinfo=UTC)
            return (day + timedelta(days=1)).timestamp()
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError):  # no such day
        pass
    hint = "write a day such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z"
    raise UsageError(f"{where}: expires: {hint}")


def read_token_value(value: str, source: str) -> TokenLines:
    """Parse a value, such as an environment variable, whose lines may be separated by commas.

    Raises:
        UsageError: as for `read_tokens`.
    """
    first, *rest = value.split(",")
    lines = "".join(("\n" if _begins_line(line) else ",") + line for line in rest)
    return read_tokens(first + lines, source)


def _begins_line(part: str) -> bool:
    """Return whether the comma before this part separates lines rather than groups."""
    plain = part.lstrip(" \t")
    name, equals, _ = plain.partition("=")
    return not plain or plain[0] in "#\r\n" or bool(equals and _NAME.fullmatch(name.rstrip(" \t")))


def read_token_file(path: str, *, is_reload: bool = False) -> TokenLines:
    """Read the lines of a token file; log a warning if all users can read it.

    A reload refuses a FIFO: a running server would wait for its writer forever.

    Raises:
        UsageError: the file cannot be read, or has no line.
    """
    text, mode = read_token_text(path, wait=not is_reload)
    if os.name == "posix" and mode & 0o007:
        logger.warning("%s can be read by every user of this machine; chmod o-rwx it", path)
    return read_tokens(text, path)


def read_token_text(path: str, *, wait: bool = False) -> tuple[str, int]:
    """Return the text and the mode of a token file; with `wait`, wait for the writer of a FIFO.

    Raises:
        UsageError: the file cannot be read, or is too long.
    """
    try:
        raw, status = read_regular(path, _MAX_FILE, wait=wait)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); {_ANOTHER}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: cannot be read (not UTF-8); {_ANOTHER}") from None
    return text, stat.S_IMODE(status.st_mode)


def warn_of_expiry(tokens: Iterable[Token], now: float) -> None:
    """Warn of tokens that have expired at `now` (seconds since the epoch) or will in 14 days."""
    for words, start, end in (("have expired", -math.inf, now), ("expire soon", now, now + SOON_S)):
        ending = (token for token in tokens if start < token.expires <= end)
        if ordered := sorted(ending, key=lambda token: token.expires):
            shown = listed([f"{token.name} ({format_time(token.expires)})" for token in ordered])
            logger.warning("tokens %s: %s; write new ones", words, shown)


def format_time(seconds: float) -> str:
    """Format seconds since the epoch as a UTC time, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%MZ")
