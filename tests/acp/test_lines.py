"""Blocks of lines: nothing is lost, whatever the chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.acp.lines import Blocks

CHUNKS = st.lists(st.binary(min_size=1, max_size=12) | st.text(alphabet="a\n", min_size=1, max_size=9).map(str.encode))


@given(chunks=CHUNKS, longest=st.integers(0, 20))
def test_all_bytes_come_out_in_order_and_lines_come_out_whole(chunks: list[bytes], longest: int) -> None:
    blocks = Blocks(longest)
    found = [each for chunk in chunks for each in blocks.feed(chunk)]
    rest = blocks.end()
    stream = b"".join(chunks)
    assert b"".join(block for block, _ in found) + rest == stream
    place = 0
    for block, whole in found:
        if whole:
            assert block.endswith(b"\n") and (place == 0 or stream[place - 1 : place] == b"\n")
        place += len(block)
    assert len(rest) <= longest


@given(chunks=CHUNKS)
def test_every_line_is_looked_at_if_it_is_short_enough(chunks: list[bytes]) -> None:
    blocks = Blocks()
    seen = b"".join(block for chunk in chunks for block, whole in blocks.feed(chunk) if whole)
    stream = b"".join(chunks)
    assert seen == stream[: stream.rfind(b"\n") + 1]


def test_a_line_that_is_too_long_passes_and_the_next_one_is_looked_at() -> None:
    blocks = Blocks(4)
    assert list(blocks.feed(b"abc")) == []
    assert list(blocks.feed(b"de")) == [(b"abcde", False)]
    assert list(blocks.feed(b"f")) == [(b"f", False)]
    assert list(blocks.feed(b"g\nhi\n")) == [(b"g\n", False), (b"hi\n", True)]
