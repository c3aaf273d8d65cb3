"""URLs that the operator or a publisher wrote: what of them people may read, and which can be fetched from. Pure."""

from __future__ import annotations

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import printable


def shown(url: str) -> str:
    """The same for people, not longer than a line."""
    plain = printable(bare(url))
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


def check(url: str) -> None:
    """Prove that an address of the operator's can be fetched from.

    Raises:
        UsageError: it is no http or https URL; the message shows no secret of it.
    """
    try:
        wellknown.absolute(url, url)
    except ValueError as error:
        raise UsageError(f"'{shown(url)}': {error}; give the URL of a site or of its index.json") from None
