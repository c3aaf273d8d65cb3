"""SHA-256 digests, as listings, indexes, lock files and registries write them: `sha256:HEX`."""

from __future__ import annotations

import hashlib
import re
from typing import Final, TypeGuard

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def digest_of(raw: bytes) -> str:
    """Return the digest of some bytes."""
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def is_digest(value: object) -> TypeGuard[str]:
    """Tell whether a value is a text of the form of a digest."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
