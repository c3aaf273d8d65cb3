"""What a real process answers, over its pipes, to messages that are none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from malformed import HALVES, MALFORMED
from mcp_skills_server.transport import MAX_LINE
from wire import FIXTURES, SLOW_LOAD, Era, Wire, serving


def test_every_message_is_answered_and_the_next_request_works(era: Era) -> None:
    """Before the first request of all, too."""
    with serving(FIXTURES, era=era, opened=False) as wire:
        wire._id = 100
        for opened in (False, True):
            for case in MALFORMED:
                wire.send_line(case.raw)
                answer = wire.answer(case.id)
                assert (answer["error"]["code"], answer["id"]) == (case.code, case.id), case.title
                if opened:
                    assert wire.request("skills/list")["skills"]
            if not opened:
                assert wire.open()["capabilities"]
        for method, params in HALVES:  # half a character
            answer = wire.answer(wire.start(method, params))
            assert "result" in answer or answer["error"]["code"] == -32602, answer
        assert "\ufffd" in wire.answer(wire.start("skills/get", {"name": "git \ud83d"}))["error"]["message"]
        assert b"Traceback" not in wire.stderr


@pytest.mark.parametrize("ended", [True, False])
def test_a_line_that_is_too_long_is_answered_with_the_limit(ended: bool) -> None:
    with serving(FIXTURES) as wire:
        assert wire.process.stdin is not None
        for _ in range((MAX_LINE >> 20) + 1):
            wire.process.stdin.write(b"x" * (1 << 20))
        if ended:
            wire.send_line(b"")
        wire.process.stdin.flush()
        answer = wire.answer(None)
        assert (answer["error"]["code"], answer["id"]) == (-32600, None)
        assert f"{MAX_LINE:,} bytes" in answer["error"]["message"]
        if not ended:
            wire.send_line(b"x" * 1000)
        assert wire.request("skills/list")["skills"]
        assert wire._answers[None].empty()


@pytest.mark.requirement("MCP-51")
def test_requests_that_are_owed_at_the_end_are_answered_once(tmp_path: Path) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    wire = Wire([sys.executable, "-c", SLOW_LOAD, str(gate), "serve", str(FIXTURES)])
    try:
        wire.open()
        asked = [wire.start("skills/list") for _ in range(3)]
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        gate.write_text("go")
        assert all(wire.answer(each)["result"]["skills"] for each in asked)
        assert wire.wait() == 0
    finally:
        wire.kill()
