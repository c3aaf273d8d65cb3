"""URLs of operators and publishers: redact them for people, and check them. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import printable


def shown(url: str) -> str:
    """Return a URL for people: without secrets, at most a line."""
    plain = printable(bare(url))
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


def relative_to_site(site: str, message: str) -> str:
    """Shorten the site's own URLs in a message to their paths, for a line that begins with the site's name.

    What is no site has no such addresses: its messages stay as they are.
    """
    if not wellknown.is_site(site):
        return message
    parts = urlsplit(wellknown.absolute(site, site))
    top = f"{parts.scheme}://{parts.netloc}/"
    return " ".join(word[len(top) - 1 :] if word.startswith(top) else word for word in message.split(" "))


def check_fetchable(url: str) -> None:
    """Prove that an address of the operator's can be fetched from.

    Raises:
        UsageError: it is no http or https URL; the message shows no secret of it.
    """
    try:
        wellknown.absolute(url, url)
    except ValueError as error:
        raise UsageError(f"'{shown(url)}': {error}; give the URL of a site or of its index.json") from None
