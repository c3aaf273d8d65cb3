"""Lines and blocks: nothing is lost and nothing is made up, wherever the chunks are cut."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.transport import MAX_LINE, LineBuffer

PIECES = st.binary(min_size=1, max_size=12) | st.text(alphabet="a \r\n", min_size=1, max_size=9).map(str.encode)
CHUNKS = st.lists(PIECES)


def lines(chunks: Iterable[bytes], max_line: int = MAX_LINE) -> list[bytes | None]:
    buffer = LineBuffer(max_line)
    found = [line for chunk in chunks for line in buffer.lines(chunk)]
    last = buffer.rest()
    return [*found, last] if last.strip() else found


def cut(stream: bytes, sizes: list[int]) -> Iterator[bytes]:
    place = 0
    for size in sizes:
        yield stream[place : place + size]
        place += size
    yield stream[place:]


@given(stream=CHUNKS.map(b"".join), sizes=st.lists(st.integers(1, 9)), max_line=st.integers(0, 20))
def test_any_chunks_give_the_lines_of_the_stream(stream: bytes, sizes: list[int], max_line: int) -> None:
    expected = [
        None if len(line) > max_line else line for line in stream.split(b"\n") if len(line) > max_line or line.strip()
    ]
    assert lines(filter(None, cut(stream, sizes)), max_line) == expected


@given(chunks=CHUNKS, max_line=st.integers(0, 20))
def test_blocks_are_the_stream_and_whole_ones_are_lines_of_allowed_length(chunks: list[bytes], max_line: int) -> None:
    buffer = LineBuffer(max_line)
    found = [each for chunk in chunks for each in buffer.blocks(chunk)]
    rest = buffer.rest()
    stream = b"".join(chunks)
    assert b"".join(block for block, _ in found) + rest == stream
    assert b"" not in [block for block, _ in found]
    place = 0
    for block, whole in found:
        if whole:
            assert block.endswith(b"\n") and (place == 0 or stream[place - 1 : place] == b"\n")
            assert max(map(len, block[:-1].split(b"\n"))) <= max_line
        place += len(block)
    assert len(rest) <= max_line
    short = [line for line in stream.split(b"\n")[:-1] if len(line) <= max_line]
    assert b"".join(block for block, whole in found if whole) == b"".join(line + b"\n" for line in short)


def test_a_line_that_is_too_long_is_reported_at_once_and_skipped() -> None:
    buffer = LineBuffer(4)
    assert list(buffer.lines(b"abcde")) == [None]
    assert list(buffer.lines(b"f")) == []
    assert list(buffer.lines(b"g\nhi\nabcde\nj")) == [b"hi", None]
    assert list(buffer.lines(b"klmn")) == [None]
    assert buffer.rest() == b""


def test_a_line_that_is_too_long_passes_in_pieces_and_the_next_one_is_whole() -> None:
    buffer = LineBuffer(4)
    assert list(buffer.blocks(b"abc")) == []
    assert list(buffer.blocks(b"de")) == [(b"abcde", False)]
    assert list(buffer.blocks(b"f")) == [(b"f", False)]
    assert list(buffer.blocks(b"g\nhi\nj")) == [(b"g\n", False), (b"hi\n", True)]
    assert buffer.rest() == b"j"


def test_a_line_of_20_mb_costs_no_more_memory_than_a_line_may_have() -> None:
    buffer = LineBuffer(1 << 20)
    chunk = b"x" * (1 << 16)
    tracemalloc.start()
    try:
        found = [line for _ in range(320) for line in buffer.lines(chunk)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [None]
    assert peak < 4 << 20
    assert list(buffer.lines(b"\nnext\n")) == [b"next"]
