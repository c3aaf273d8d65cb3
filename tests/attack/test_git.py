"""Addresses that hold a secret, and trees that cost more than they are."""

from __future__ import annotations

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.git.address import parse_address
from mcp_skills_server.sources.git.repository import TreeEntry
from mcp_skills_server.sources.git.source import select

TOKEN = "ghp_0123456789012345678901234567890123AB"


def test_a_token_in_the_place_of_a_user_is_never_shown() -> None:
    """GitHub takes a token as the user's name. It would be in every log line, the lock file and the listing."""
    try:
        said = parse_address(f"git+https://{TOKEN}@github.com/acme/skills").shown
    except UsageError as error:
        said = str(error)
    assert TOKEN not in said


class Counted(bytes):
    """A path that counts what is cut from it."""

    cuts = 0

    def rpartition(self, sep: bytes) -> tuple[bytes, bytes, bytes]:  # type: ignore[override]
        Counted.cuts += 1
        head, mark, tail = super().rpartition(sep)
        return Counted(head), mark, tail


@pytest.mark.parametrize("depth", [2000])
def test_a_file_outside_of_every_skill_costs_not_its_depth(depth: int) -> None:
    """One nested chain of trees and 60,000 names in the last one fit into the limit on the listing."""
    Counted.cuts = 0
    deep = b"/".join([b"a"] * depth)
    files = 50
    entries = [TreeEntry(b"100644", "1" * 40, Counted(deep + b"/%d" % number)) for number in range(files)]
    select([*entries, TreeEntry(b"100644", "1" * 40, b"s/SKILL.md")], hidden=False)
    assert Counted.cuts < 10 * files + 10 * depth
