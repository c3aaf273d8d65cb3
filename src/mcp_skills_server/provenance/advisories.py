"""Files of advisories, which recall skills by digest; docs/recall.md shows one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from mcp_skills_server.catalog.recalls import SEVERITIES, Advisory
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable
from mcp_skills_server.model.decoding import load_toml
from mcp_skills_server.model.digests import is_digest

_VERSION: Final = 1
_MAX_BYTES: Final = 1 << 20
_MAX_CHARACTERS: Final = 300
"""The maximum length of a reason or a replacement, which models are shown."""


def _is_line(value: object) -> bool:
    is_text = isinstance(value, str) and value.strip() == value and value.isprintable()
    return is_text and 0 < len(cast("str", value)) <= _MAX_CHARACTERS


_LINE: Final = f"one line of 1 to {_MAX_CHARACTERS} characters"
_FORMS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "digest": (is_digest, "'sha256:' and 64 hex digits"),
    "severity": (SEVERITIES.__contains__, f"one of {', '.join(SEVERITIES)}"),
    "reason": (_is_line, _LINE),
    "replacement": (lambda value: value == "" or _is_line(value), _LINE),
}


def parse(text: str) -> tuple[Advisory, ...]:
    """Parse the text of a file of advisories.

    Raises:
        ValueError: it is invalid; the message has the reason and the place.
    """
    content = load_toml(text)
    version, entries = content.get("version", "missing"), content.get("advisory", [])
    if type(version) is not int or version != _VERSION:
        raise ValueError(f"its version is {version}, and this program reads {_VERSION}")
    if unknown := content.keys() - {"version", "advisory"}:
        raise ValueError(f"it has unknown keys: {', '.join(sorted(unknown))}")
    if not isinstance(entries, list):
        raise ValueError("'advisory' is not a list of tables; write [[advisory]]")
    return tuple(_advisory(*pair) for pair in enumerate(cast("list[Any]", entries), 1))


def _advisory(number: int, entry: Any) -> Advisory:
    if not isinstance(entry, dict):
        raise ValueError(f"advisory {number} is not a table")
    fields = {"replacement": "", **cast("dict[str, Any]", entry)}
    if unknown := fields.keys() - _FORMS:
        raise ValueError(f"advisory {number} has unknown keys: {', '.join(sorted(unknown))}")
    for key, (fits, form) in _FORMS.items():
        if not fits(fields.get(key)):
            raise ValueError(f"advisory {number}: {key!r} is not {form}")
    return Advisory(**fields)


def read(path: str | None) -> tuple[Advisory, ...]:
    """Read a file of advisories; none without a file.

    Raises:
        UsageError: the file is missing, unreadable or invalid.
    """
    if path is None:
        return ()
    try:
        raw, _ = read_regular(Path(path), _MAX_BYTES)
        if len(raw) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
        return parse(raw.decode())
    except OSError as error:
        fault = f"cannot be read ({error.strerror}); give another --advisories"
    except ValueError as error:
        fault = f"no valid file of advisories: {printable(str(error))}; see docs/recall.md"
    raise UsageError(f"{printable(path)}: {fault}")
