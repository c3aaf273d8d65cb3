"""`skill://` URIs to skill path and file path, and back.

A URI is taken apart first and decoded once, segment by segment, so that an encoded slash or a
doubly encoded dot never turns into structure. What comes out are lookup keys, never paths.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from mcp_skills_server.model import DEEPEST_PATH, LONGEST_PATH, Skill, Snapshot, Standing

SCHEME: Final = "skill://"
TEMPLATE: Final = "skill://{+path}"
LONGEST: Final = len(SCHEME) + 3 * LONGEST_PATH
"""Characters of a URI: each byte of the longest path takes three once it is escaped."""
# RFC 3986: a reg-name is unreserved and sub-delims; the segments of a path also take ':' and '@'.
_REG_NAME: Final = "!$&'()*+,;=-._~"
_PATH: Final = _REG_NAME + ":@/"
_NO_NAMES: Final = frozenset(("", ".", ".."))


def uri(skill_path: str, file_path: str = "") -> str:
    """Return the URI of a file of a skill, or of the skill's directory."""
    first, slash, rest = f"{skill_path}/{file_path}".removesuffix("/").partition("/")
    return SCHEME + quote(first, safe=_REG_NAME) + slash + quote(rest, safe=_PATH)


def canonical(text: str) -> str:
    """Return a `skill://` URI as `uri` spells it; one that cannot name anything that is served as
    it is."""
    parts = segments(text)
    if parts is None:
        return text
    return uri(parts[0], "/".join(parts[1:]))


def find(snapshot: Snapshot, target: str, least: Standing) -> tuple[Skill, str] | None:
    """Return the skill and the file path that a URI names, among the skills that stand at `least`
    there, or None."""
    parts = segments(target)
    if parts:
        return snapshot.find(parts, least)
    return None


def segments(text: str) -> tuple[str, ...] | None:
    """Return the decoded segments of a `skill://` URI, or None when it cannot name anything that is
    served.

    None for one that is longer or deeper than any of ours, another scheme, a query or fragment, an
    empty segment, an escape that is not UTF-8, and for a segment that decodes to a slash, a NUL,
    `.` or `..`.
    """
    if len(text) > LONGEST or text.count("/") > DEEPEST_PATH + 1:
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


def bare(url: str) -> str:
    """Return a URL without what may be a secret: user name and password, query, fragment."""
    plain = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, slashes, rest = plain.partition("//")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"
