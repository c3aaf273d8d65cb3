"""Conversion between `skill://` URIs and pairs of skill path and file path.

A URI is split before it is decoded, once for each segment, so that no encoded slash or doubly
encoded dot can change the structure. The results are look-up keys, not paths on a disk.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from mcp_skills_server.model import DEEPEST_PATH, MAX_PATH, Skill, Snapshot, Standing

SCHEME: Final = "skill://"
TEMPLATE: Final = "skill://{+path}"
MAX_LENGTH: Final = len(SCHEME) + 3 * MAX_PATH
"""Most characters of a URI: percent-encoding triples each byte of the longest path."""
# RFC 3986: a reg-name is unreserved and sub-delims; the segments of a path also take ':' and '@'.
_REG_NAME: Final = "!$&'()*+,;=-._~"
_PATH: Final = _REG_NAME + ":@/"
_NO_NAMES: Final = frozenset(("", ".", ".."))
_USERINFO: Final = re.compile(r"(?<=:)(?:(?<!ssh:)//|(?<=ssh:)//([^/?#\s:@]*):)[^/?#\s]*@")


def uri(skill_path: str, file_path: str = "") -> str:
    """Return the URI of a file of a skill, or of the skill's directory."""
    first, slash, rest = f"{skill_path}/{file_path}".removesuffix("/").partition("/")
    return SCHEME + quote(first, safe=_REG_NAME) + slash + quote(rest, safe=_PATH)


def canonical(text: str) -> str:
    """Return a `skill://` URI in the spelling of `uri`, or unchanged if it is invalid."""
    parts = segments(text)
    if parts is None:
        return text
    return uri(parts[0], "/".join(parts[1:]))


def find(snapshot: Snapshot, target: str, least: Standing) -> tuple[Skill, str] | None:
    """Return (skill, file path) of a URI among skills of standing `least` or higher, or None."""
    parts = segments(target)
    if parts:
        return snapshot.find(parts, least)
    return None


def segments(text: str) -> tuple[str, ...] | None:
    """Return the decoded segments of a `skill://` URI, or None if it is invalid.

    Invalid are: another scheme, a URI that is too long or too deep, a query or fragment, a
    backslash, an empty segment, an escape that is not UTF-8, and a segment that decodes to `.` or
    `..` or holds an encoded slash or a NUL.
    """
    if len(text) > MAX_LENGTH or text.count("/") > DEEPEST_PATH + 1:
        return None
    if text[: len(SCHEME)].lower() != SCHEME or "?" in text or "#" in text or "\\" in text:
        return None
    parts = text[len(SCHEME) :].split("/")
    if "%" in text:
        try:
            parts = [
                unquote_to_bytes(part).decode("utf-8") if "%" in part else part for part in parts
            ]
        except UnicodeError:
            return None
        if any("/" in part for part in parts):
            return None
    if not _NO_NAMES.isdisjoint(parts) or "\0" in "".join(parts):
        return None
    return tuple(parts)


def redact(text: str) -> str:
    """Return a text without the users and passwords of URLs in it; only users of ssh stay."""
    return _USERINFO.sub(lambda match: f"//{match[1]}@" if match[1] else "//", text)


def bare(url: str) -> str:
    """Return a URL without its parts that may be secret: user name, password, query, fragment."""
    plain = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, slashes, rest = plain.partition("//")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"
