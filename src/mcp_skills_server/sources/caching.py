"""HTTP caching: how long a response stays fresh, and when to retry.

Pure: headers and the present moment in, seconds out (RFC 9111). A private cache: `s-maxage` is not for us.
"""

# WK-40

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

UNSAID_S = 300.0
"""Seconds between two requests for an index without cache headers, or after a failure."""
LONGEST_S = 86_400.0
"""The longest freshness, so that a mistaken header cannot freeze a copy for years."""


def directives(headers: Mapping[str, str]) -> dict[str, str]:
    """Parse Cache-Control into directives in lower case. Of a repeated one the first counts."""
    out: dict[str, str] = {}
    for part in headers.get("cache-control", "").split(","):
        name, _, value = part.strip().partition("=")
        if name:
            out.setdefault(name.lower(), value.strip().strip('"'))
    return out


def fresh_s(headers: Mapping[str, str], now: float) -> float | None:
    """Return for how many seconds from `now` a response stays fresh, at most `LONGEST_S`; None if it does not say.

    0 for `no-cache`, `no-store` and for what cannot be parsed.
    """
    found = directives(headers)
    if "no-store" in found or "no-cache" in found:
        return 0.0
    if "max-age" in found:
        life: float | None = _seconds(found["max-age"])
    elif "expires" in headers:
        life = _until(headers["expires"], headers, now)
    else:
        return None
    if life is None:
        return 0.0
    return min(max(life - (_seconds(headers.get("age", "")) or 0.0), 0.0), LONGEST_S)


def may_store(headers: Mapping[str, str]) -> bool:
    """Tell whether the answer may be kept on disk."""
    return "no-store" not in directives(headers)


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds of Retry-After, from 0 to `LONGEST_S`, or None.

    A date is measured from the answer's own, for our clock may be another.
    """
    text = headers.get("retry-after", "")
    wait = _seconds(text)
    if wait is None:
        wait = _until(text, headers, now)
    if wait is None:
        return None
    return min(max(wait, 0.0), LONGEST_S)


def _until(text: str, headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds from the date of a response to another date, or None if that is none."""
    moment, date = _moment(text), _moment(headers.get("date", ""))
    if moment is None:
        return None
    return moment - (now if date is None else date)


def _seconds(text: str) -> float | None:
    # A number of more digits than a float tells apart is as good as the longest.
    return float(text[:15]) if text.isascii() and text.isdigit() else None


def _moment(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
