"""What publisher and consumer share: where a site has its index, and what may stand in one."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias
from urllib.parse import urldefrag, urljoin, urlsplit, urlunsplit

from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.excerpts import quoted

Kind: TypeAlias = Literal["skill-md", "archive"]
Version: TypeAlias = Literal["0.2.0", "0.1.0"]

SCHEMA: Final = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
DIRECTORY: Final = "/.well-known/agent-skills/"
DIRECTORY_0_1: Final = "/.well-known/skills/"
INDEX: Final = "index.json"
INDEX_MEDIA_TYPE: Final = "application/json"
SKILL_MD_KIND: Final[Kind] = "skill-md"
ARCHIVE_KIND: Final[Kind] = "archive"
_IN_URL: Final = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_PORTS: Final = {"http": 80, "https": 443}


def is_site(text: str) -> bool:
    """Whether this is the address of a site rather than a path."""
    return text[:8].lower().startswith(("https://", "http://"))


def candidates(url: str) -> list[str]:
    """Where the index of a site may be, in the order to ask; go on only when there is none.

    An address with a query or that ends in `.json` is the index itself. Otherwise 0.2.0 comes before 0.1.0, and the
    place below the address's own path before the root of its origin, the one that RFC 8615 knows.

    Raises:
        UsageError: it is no http or https URL.
    """
    try:
        plain = absolute(url, url)
    except ValueError as error:
        raise UsageError(f"{quoted(url)}: {error}; give the URL of a site or of its index.json") from None
    parts = urlsplit(plain)
    if parts.query or parts.path.lower().endswith(".json"):
        return [plain]
    path = parts.path.rstrip("/") + "/"
    if path.endswith((DIRECTORY, DIRECTORY_0_1)):
        return [urlunsplit(parts._replace(path=path + INDEX))]
    return [
        urlunsplit(parts._replace(path=above + directory + INDEX))
        for above in dict.fromkeys((path[:-1], ""))
        for directory in (DIRECTORY, DIRECTORY_0_1)
    ]


def origin(url: str) -> str:
    """Scheme, host and port of an absolute URL in one spelling, for lists of trusted origins."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    shown = "" if port is None or port == _PORTS.get(parts.scheme) else f":{port}"
    return f"{parts.scheme}://{host}{shown}"


def absolute(base: str, url: str) -> str:
    """The URL made absolute, without a fragment. ValueError says why it cannot be fetched.

    A backslash, a blank or a line break is read in different ways by different clients, so none of them may stand.
    """
    if not _IN_URL.fullmatch(url):
        raise ValueError("it is empty or holds what no URL may hold")
    try:
        whole = urldefrag(urljoin(base, url)).url
        parts = urlsplit(whole)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("it cannot be read as a URL") from None
    if parts.scheme not in _PORTS:
        raise ValueError("it is no http or https URL")
    if not _HOST.fullmatch(host) or port == 0:
        raise ValueError("it names no host")
    if "@" in parts.netloc:
        raise ValueError("it carries a user name or a password")
    return whole


_BAD_0_1: Final = re.compile(r"[^\x20-\x7e]|[\\?#\[\]]")


def is_bad_0_1(path: str) -> bool:
    """Whether the path is none that WK1-7...9 allow."""
    return bool(_BAD_0_1.search(path)) or path.startswith("/") or ".." in path.split("/")
