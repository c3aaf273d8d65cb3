"""Where an icon may come from. A host puts the address into a page, so it must not be one that does something there."""

from __future__ import annotations

import re
from typing import Final

from mcp_skills_server.format import hidden

_IGNORED: Final = re.compile(r"[\x00-\x20\x7f-\xa0]+")
"""Browsers take these out of an address, of a scheme's middle too: `java\\tscript:` runs."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*+:", re.IGNORECASE)
_ALLOWED: Final = re.compile(r"https?:|data:image/|skill://", re.IGNORECASE)


def is_allowed(source: str) -> bool:
    """Tell whether an icon may have this `src`: https, http, a file of a skill by its URI, a picture as data, or a
    path.
    """
    plain = _IGNORED.sub("", hidden.without(source))
    return _SCHEME.match(plain) is None or (_ALLOWED.match(plain) is not None and _ALLOWED.match(source) is not None)
