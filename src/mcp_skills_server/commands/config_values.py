"""Values of a configuration file that several keys take."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator

_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_SECONDS: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h)")


def seconds(value: Any) -> Any:
    """Seconds of "5m"; any other value as it is."""
    found = _SECONDS.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) * _UNITS[found[2]] if found else value


def _usable(text: str) -> str:
    """A text that an option could have been given as."""
    if not text.strip() or "\0" in text:
        raise ValueError
    return text


Text = Annotated[str, AfterValidator(_usable)]
"""Text that is not empty."""
