"""`make fuzz-stdio`: what it says and what it waits for; a short run of it finds nothing, and finds what is wrong."""

from __future__ import annotations

import random

import pytest
from tools.fuzz_stdio.conversation import converse, short
from tools.fuzz_stdio.lines import corpus, key, opening, owed, wild
from tools.fuzz_stdio.server import Count, FuzzError, Server

from malformed import MALFORMED
from mcp_skills_server.transport.framing import MAX_LINE


def test_each_line_is_owed_what_json_rpc_says() -> None:
    assert {case.title: owed(case.raw)[0] for case in MALFORMED} == {case.title: key(case.id) for case in MALFORMED}
    assert owed(b'{"jsonrpc":"2.0","id":"1","method":"x"}') == (("str", "1"), None)
    assert owed(b'{"jsonrpc":"2.0","method":"x"}') == owed(b'{"jsonrpc":"2.0","id":1,"result":{}}') == (None, None)
    assert owed(b"x" * (MAX_LINE + 1)) == (key(None), None)
    back = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"7"}}'
    assert owed(back) == (None, "7")


def test_a_seed_draws_the_same_lines_again_and_all_kinds_of_them() -> None:
    lines, again = ([wild(random.Random(seed), corpus(), 1, modern=True) for seed in range(300)] for _ in range(2))
    assert lines == again
    assert all(b"\n" not in line for each in lines for line in each)
    assert {len(each) for each in lines} >= {1, 2, 3} and max(len(each[0]) for each in lines) > MAX_LINE


def test_a_short_run_finds_nothing() -> None:
    count = Count()
    for seed in range(3):
        short(random.Random(seed), corpus(), count)
    assert count.processes == 3 and count.answers > 20


def test_an_answer_that_nobody_asked_for_and_one_that_is_missing_are_found() -> None:
    dice = random.Random(1)
    server = Server(Count())
    try:
        for line in opening(modern=False):
            server.say(line, dice)
        server.settle()
        server._owed[key("lost")] += 1
        server.process.terminate()
        with pytest.raises(FuzzError, match=r"it ended with|no answer to"):
            server.settle()
        assert "nobody asked" in str(server._take(b'{"jsonrpc":"2.0","id":"other","result":{}}'))
        assert "a bug" in str(server._take(b'{"jsonrpc":"2.0","id":"lost","error":{"code":-32603,"message":"x"}}'))
    finally:
        server.kill()


def test_a_conversation_goes_on_as_long_as_it_should() -> None:
    server = Server(Count())
    try:
        assert list(converse(server, random.Random(3), corpus(), lambda turn: turn < 4)) == [0, 1, 2, 3]
        server.end("half")
    finally:
        server.kill()
