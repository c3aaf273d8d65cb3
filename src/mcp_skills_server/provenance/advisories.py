"""Files of advisories, which recall skills by digest.

    version = 1

    [[advisory]]
    digest = "sha256:..."
    reason = "sends the names of customers to a third party"
    severity = "critical"
    replacement = "billing/refunds"

The digest is that of a file, or of all files of a skill as in a lock file. A replacement is a
skill's path or name.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def parse(text: str) -> tuple[Advisory, ...]:
    """Parse the text of a file of advisories.

    Raises:
        ValueError: it is invalid; the message has the reason and the place.
    """
    content = load_toml(text)
    version = content.get("version", "missing")
    if type(version) is not int or version != _VERSION:
        raise ValueError(f"its version is {version}, and this program reads {_VERSION}")
    if unknown := content.keys() - {"version", "advisory"}:
        raise ValueError(f"it has unknown keys: {', '.join(sorted(unknown))}")
    entries = content.get("advisory", [])
    if not isinstance(entries, list):
        raise ValueError("'advisory' is not a list of tables; write [[advisory]]")
    advisories: list[Advisory] = []
    for number, entry in enumerate(cast("list[Any]", entries), 1):
        try:
            advisories.append(_advisory(entry))
        except ValueError as error:
            raise ValueError(f"advisory {number}: {error}") from None
    return tuple(advisories)


def _advisory(entry: Any) -> Advisory:
    if not isinstance(entry, dict):
        raise ValueError("this is not a table")
    fields = cast("Mapping[str, Any]", entry)
    if unknown := fields.keys() - {*Advisory._fields}:
        raise ValueError(f"it has unknown keys: {', '.join(sorted(unknown))}")
    digest, severity = fields.get("digest"), fields.get("severity")
    if not is_digest(digest):
        raise ValueError("'digest' is not 'sha256:' and 64 hex digits")
    if severity not in SEVERITIES:
        raise ValueError(f"'severity' is none of {', '.join(SEVERITIES)}")
    reason = _line(fields, "reason")
    replacement = _line(fields, "replacement") if "replacement" in fields else ""
    return Advisory(digest, reason, severity, replacement)


def _line(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    is_line = isinstance(value, str) and value.strip() and value.isprintable()
    if not is_line or len(value) > _MAX_CHARACTERS:
        raise ValueError(f"{key!r} is not one line of 1 to {_MAX_CHARACTERS} characters")
    return value.strip()


def read(path: Path) -> tuple[Advisory, ...]:
    """Read a file of advisories.

    Raises:
        UsageError: the file is missing, unreadable or invalid.
    """
    try:
        raw, _ = read_regular(path, _MAX_BYTES)
        if len(raw) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
        return parse(raw.decode())
    except OSError as error:
        fault = f"cannot be read ({error.strerror}); give another --advisories"
    except UnicodeDecodeError:
        fault = "no valid file of advisories: it is not UTF-8; see docs/recall.md"
    except ValueError as error:
        fault = f"no valid file of advisories: {printable(str(error))}; see docs/recall.md"
    raise UsageError(f"{printable(str(path))}: {fault}")
