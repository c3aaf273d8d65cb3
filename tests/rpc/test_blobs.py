"""Blob store: limits of number, bytes, age and owner."""

from __future__ import annotations

import re

import pytest

from mcp_skills_server.access.quota import Owner
from mcp_skills_server.errors import RequestError
from mcp_skills_server.rpc.blobs import BlobStore


@pytest.mark.requirement("SP-27")
def test_each_blob_has_its_own_name() -> None:
    blobs = BlobStore()
    one, other = blobs.add(b"a"), blobs.add(b"a")
    assert one != other
    assert re.fullmatch(r"blob:.{26,}", one)
    assert blobs.get(one) == b"a"
    with pytest.raises(RequestError, match="Unknown blob 'blob:x'"):
        blobs.get("blob:x")


@pytest.mark.requirement("SP-34")
def test_idle_blob_expires() -> None:
    now = [0.0]
    blobs = BlobStore(most=2, idle_s=60, now=lambda: now[0])
    used, unused = blobs.add(b"1"), blobs.add(b"2")
    now[0] = 50
    blobs.get(used)
    now[0] = 70
    with pytest.raises(RequestError, match="has expired"):
        blobs.get(unused)
    assert blobs.get(used) == b"1"
    assert len(blobs) == 1
    now[0] = 140
    for count in (1, 2):
        blobs.add(b"3")
        assert len(blobs) == count


def test_default_limits_are_1000_blobs_64_mib_and_one_hour() -> None:
    now = [0.0]
    blobs = BlobStore(now=lambda: now[0])
    assert len({blobs.add(b"") for _ in range(1001)}) == 1001
    assert len(blobs) == 1000
    whole = b"x" * (64 << 20)
    name = blobs.add(whole)
    with pytest.raises(RequestError, match="at most 67,108,864 are stored"):
        blobs.add(whole + b"x")
    now[0] = 3600
    assert blobs.get(name) is whole
    now[0] = 7200.5
    with pytest.raises(RequestError, match="has expired"):
        blobs.get(name)


def test_owner_has_a_share_of_the_bytes_and_a_full_store_refuses() -> None:
    blobs = BlobStore(most=100, most_bytes=40)
    assert (blobs.limit(Owner("a")), blobs.limit(None)) == (10, 40)
    with pytest.raises(RequestError, match="11 bytes; at most 10 are stored"):
        blobs.add(b"x" * 11, Owner("a"))
    kept = [blobs.add(b"x" * 10, Owner(owner)) for owner in "abcd"]
    with pytest.raises(RequestError, match=r"Too many blobs: .* is reached; try again later"):
        blobs.add(b"x", Owner("e"))
    assert [blobs.get(each) for each in kept] == [b"x" * 10] * 4
    assert blobs.get(blobs.add(b"y", Owner("a"))) == b"y"
