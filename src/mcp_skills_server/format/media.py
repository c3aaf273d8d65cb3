"""Media types by file name, and detection of text and of Git LFS pointers.

The results are the same on every machine, because the system's tables are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

MARKDOWN: Final = "text/markdown"
_OURS: Final = {
    # Suffixes that the standard table lacks, or maps to another type (.ts to video/mp2t).
    MARKDOWN: "md markdown mdx", "text/plain": "txt ini cfg conf log", "text/x-rst": "rst",
    "text/x-python": "py", "application/x-sh": "sh bash zsh ksh",
    "text/x-batch": "bat cmd", "text/x-powershell": "ps1",
    "text/x-ruby": "rb", "text/x-perl": "pl", "text/javascript": "js mjs cjs", "text/jsx": "jsx",
    "text/x-typescript": "ts tsx", "text/x-go": "go", "text/x-rust": "rs", "text/x-java": "java",
    "text/x-c": "c h", "text/x-c++": "cpp hpp", "text/x-csharp": "cs", "text/x-kotlin": "kt",
    "text/x-swift": "swift", "text/x-r": "r", "text/x-julia": "jl", "text/x-lua": "lua",
    "application/sql": "sql", "application/json": "json", "application/jsonl": "jsonl",
    "application/x-ipynb+json": "ipynb", "application/yaml": "yaml yml", "application/toml": "toml",
    "application/xml": "xml xsd", "text/x-tex": "tex", "text/x-bibtex": "bib", "text/css": "css",
    "image/svg+xml": "svg", "image/webp": "webp", "image/avif": "avif", "application/wasm": "wasm",
    "font/woff2": "woff2", "font/ttf": "ttf", "font/otf": "otf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
}  # fmt: skip
_BY_SUFFIX: Final = {
    f".{suffix}": media for media, suffixes in _OURS.items() for suffix in suffixes.split()
}
LFS_FAULT: Final = "the file is a pointer of Git LFS and not the content that it stands for"
_LFS: Final = b"version https://git-lfs.github.com/spec/v1\n"
_LFS_MOST_BYTES: Final = 1024
_TEXT: Final = frozenset(
    f"application/{subtype}"
    for subtype in ("json", "jsonl", "yaml", "toml", "sql", "xml", "x-sh", "javascript")
)
"""Media types of text, in addition to `text/*`, `+json` and `+xml`."""


def media_type(path: str) -> str | None:
    """Return the media type of the file name's suffix, or None."""
    _, dot, ending = path.rpartition("/")[2].rpartition(".")
    suffix = f"{dot}{ending}".lower()
    return _BY_SUFFIX.get(suffix) or _standard().get(suffix)


@cache
def _standard() -> Mapping[str, str]:
    """Return the table of `mimetypes`, cached because making it searches the system's files."""
    from mimetypes import MimeTypes

    return MimeTypes(filenames=()).types_map[True]


def is_text(media: str | None) -> bool:
    """Tell whether valid UTF-8 of this media type is text; content of an unknown type may be."""
    return (
        media is None
        or media.startswith("text/")
        or media.endswith(("+xml", "+json"))
        or media in _TEXT
    )


def as_text(raw: bytes, media: str | None) -> str | None:
    """Decode text exactly, BOM and CRLF included; return None for bytes that are not text.

    Text needs a media type for which `is_text` holds and valid UTF-8. If the type is unknown, a NUL
    means that the bytes are not text.
    """
    if not is_text(media) or (media is None and b"\0" in raw):
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def is_lfs_pointer(raw: bytes) -> bool:
    """Tell whether the bytes are a Git LFS pointer, which replaces content in a repository."""
    return raw.startswith(_LFS) and len(raw) < _LFS_MOST_BYTES
