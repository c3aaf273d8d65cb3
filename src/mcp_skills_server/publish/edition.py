"""Editions of a publication, their skills, and the files that they consist of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mcp_skills_server.dialects.wellknown import Artifact
from mcp_skills_server.model import Skill, Snapshot


@dataclass(frozen=True, slots=True)
class Published:
    """A skill as an index offers it."""

    skill: Skill
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class Edition:
    """What is published at one moment.

    Attributes:
        snapshot: of which it is made.
        skills: what the index 0.2.0 offers, by name and in its order.
        older: the names of those that the index 0.1.0 offers too.
        index: bytes of the index 0.2.0.
        digest: of these bytes, `sha256:` and 64 hex digits.
        index_0_1: bytes of the index 0.1.0.
        digest_0_1: of these bytes.
        left_out: (skill path, reason) of every skill that is not published.
        left_out_0_1: (skill path, reason) of those that only 0.2.0 publishes.
    """

    snapshot: Snapshot
    skills: Mapping[str, Published]
    older: frozenset[str]
    index: bytes
    digest: str
    index_0_1: bytes
    digest_0_1: str
    left_out: tuple[tuple[str, str], ...]
    left_out_0_1: tuple[tuple[str, str], ...]


class Item(NamedTuple):
    """One file of a published tree.

    Attributes:
        path: below the base URL, not encoded; it begins with a slash.
        digest: `sha256:` and 64 hex digits of its bytes.
        read: gives the bytes.
    """

    path: str
    digest: str
    read: Callable[[], bytes]
