"""Media types from file names, and whether bytes are text. The same on every machine: no system tables are read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

MARKDOWN: Final = "text/markdown"
_OURS: Final = {
    # What the standard table lacks, or takes for something else (.ts is video/mp2t there).
    ".md": MARKDOWN,
    ".markdown": MARKDOWN,
    ".mdx": MARKDOWN,
    ".txt": "text/plain",
    ".rst": "text/x-rst",
    ".py": "text/x-python",
    ".sh": "application/x-sh",
    ".bash": "application/x-sh",
    ".zsh": "application/x-sh",
    ".ps1": "text/x-powershell",
    ".rb": "text/x-ruby",
    ".pl": "text/x-perl",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".cjs": "text/javascript",
    ".jsx": "text/jsx",
    ".ts": "text/x-typescript",
    ".tsx": "text/x-typescript",
    ".go": "text/x-go",
    ".rs": "text/x-rust",
    ".java": "text/x-java",
    ".c": "text/x-c",
    ".h": "text/x-c",
    ".cpp": "text/x-c++",
    ".hpp": "text/x-c++",
    ".cs": "text/x-csharp",
    ".kt": "text/x-kotlin",
    ".swift": "text/x-swift",
    ".r": "text/x-r",
    ".jl": "text/x-julia",
    ".lua": "text/x-lua",
    ".sql": "application/sql",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".ipynb": "application/x-ipynb+json",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".xml": "application/xml",
    ".xsd": "application/xml",
    ".ini": "text/plain",
    ".cfg": "text/plain",
    ".conf": "text/plain",
    ".log": "text/plain",
    ".tex": "text/x-tex",
    ".bib": "text/x-bibtex",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".avif": "image/avif",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
    ".ttf": "font/ttf",
    ".otf": "font/otf",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}
_TEXT_APPLICATIONS: Final = frozenset(
    (
        "application/json",
        "application/jsonl",
        "application/x-ipynb+json",
        "application/yaml",
        "application/toml",
        "application/sql",
        "application/xml",
        "application/x-sh",
        "application/javascript",
        "image/svg+xml",
    )
)


def media_type(path: str) -> str | None:
    """Return the media type that the file's name stands for, or None."""
    name = path.rpartition("/")[2]
    dot = name.rfind(".")
    if dot < 0:
        return None
    suffix = name[dot:].lower()
    return _OURS.get(suffix) or _standard().get(suffix)


@cache
def _standard() -> Mapping[str, str]:
    """Return the table of the standard library, which looks for those of the system when it is made, and so not at a
    start.
    """
    from mimetypes import MimeTypes

    return MimeTypes(filenames=()).types_map[True]


def is_text(media: str | None) -> bool:
    """Tell whether content of this media type is text where its bytes are valid UTF-8. An unknown type may be."""
    return (
        media is None or media.startswith("text/") or media in _TEXT_APPLICATIONS or media.endswith(("+xml", "+json"))
    )


def as_text(raw: bytes, media: str | None) -> str | None:
    """Return the exact bytes as text, or None where they are not text: another type, not UTF-8, or of unknown type with
    NUL.

    Nothing is rewritten: encoding the result as UTF-8 gives the same bytes, BOM and CRLF included.
    """
    if not is_text(media) or (media is None and b"\0" in raw):
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
