"""`LineBuffer`: lines and blocks from chunks that are cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.transport import LineBuffer

PIECES = st.binary(min_size=1, max_size=12) | st.text(alphabet="a \r\n", min_size=1, max_size=9).map(str.encode)
CHUNKS = st.lists(PIECES)


def cut(stream: bytes, sizes: list[int]) -> Iterator[bytes]:
    for size in sizes:
        yield stream[:size]
        stream = stream[size:]
    yield stream


@given(stream=CHUNKS.map(b"".join), sizes=st.lists(st.integers(1, 9)), max_line=st.integers(0, 20))
def test_lines_do_not_depend_on_chunk_boundaries(stream: bytes, sizes: list[int], max_line: int) -> None:
    expected: list[bytes | None] = []
    for line in stream.split(b"\n"):
        if len(line) > max_line:
            expected.append(None)
        elif line.strip():
            expected.append(line)
    buffer = LineBuffer(max_line)
    found = [line for chunk in cut(stream, sizes) for line in buffer.lines(chunk)]
    last = buffer.rest()
    if last.strip():
        found.append(last)
    assert found == expected


@given(chunks=CHUNKS, max_line=st.integers(0, 20))
def test_blocks_join_to_the_stream_and_each_whole_one_is_a_short_line(chunks: list[bytes], max_line: int) -> None:
    buffer = LineBuffer(max_line)
    found = [each for chunk in chunks for each in buffer.blocks(chunk)]
    rest = buffer.rest()
    stream = b"".join(chunks)
    assert b"".join(block for block, _ in found) + rest == stream
    assert b"" not in [block for block, _ in found]
    assert len(rest) <= max_line
    short = [line + b"\n" for line in stream.split(b"\n")[:-1] if len(line) <= max_line]
    assert [block for block, whole in found if whole] == short


def test_too_long_line_is_reported_immediately_and_skipped() -> None:
    buffer = LineBuffer(4)
    assert list(buffer.lines(b"abcde")) == [None]
    assert list(buffer.lines(b"f")) == []
    assert list(buffer.lines(b"g\nhi\nabcde\nj")) == [b"hi", None]
    assert list(buffer.lines(b"klmn")) == [None]
    assert buffer.rest() == b""
