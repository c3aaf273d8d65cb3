"""Which pictures a browser is given: raster kinds, by their bytes. SVG is a document, and never among them."""

from __future__ import annotations

from typing import Final

_NAMES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")
MOST_BYTES: Final = 4 << 20


def is_raster_name(path: str) -> bool:
    """Whether a file of this name may be a raster picture."""
    return path.lower().endswith(_NAMES)


def raster_type(raw: bytes) -> str | None:
    """The media type of the picture that these bytes begin, None where they are none."""
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if raw.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "image/webp"
    return None
