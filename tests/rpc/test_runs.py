"""Conversion of a script outcome into the answer of a run."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.model import Json
from mcp_skills_server.rpc.execution import to_run
from mcp_skills_server.runtime.scripts.launch import NOT_STARTED
from mcp_skills_server.runtime.scripts.outcome import OURS, Outcome
from tables import each_row

GOOD = Outcome(
    "code/main.sh", 0, "", "", 5, timed_out=False, stdout_truncated=False, stderr_truncated=False, sandbox="none"
)


DEEP = "[" * 101 + "]" * 101
"""One level more than is read; parsers of some versions of Python read 100 times as many."""


@each_row(("printed", "output"), [
    ('{"a": [1]}\n', {"a": [1]}), ("7", 7), ("null", None), ("two words\n", "two words\n"), ("NaN\n", "NaN\n"),
    ("[" * 99 + "]" * 99, reduce(lambda inner, _: [inner], range(98), [])), (DEEP, DEEP),
])  # fmt: skip
def test_program_output_is_parsed_as_json_and_stderr_is_its_log(printed: str, output: Json) -> None:
    done = to_run("t", replace(GOOD, stdout=printed, stderr="log\n"), None, (), called=False, remark="more\n")
    assert (done.output, done.logs_preview, done.error) == (output, "log\nmore\n", None)
    assert done.summary == "t completed in 5 ms."
    result = b'{"output": %s}' % jsonrpc.dump(output)
    done = to_run("t", replace(GOOD, stdout=printed), result, (), called=True, remark="")
    assert (done.output, done.logs_preview, done.error) == (output, printed, None)


# `outcome` differs from GOOD in these fields; `result` is what the entry point left, if one was `called`.
@each_row(("outcome", "result", "called", "expected"), [
    ({"timed_out": True, "exit_code": None}, None, False, ("timeout", "the run was ended after its time limit")),
    ({"exit_code": NOT_STARTED, "stderr": f"{OURS} no such program\n"}, None, False,
     ("not_started", f"{OURS} no such program")),
    ({"exit_code": NOT_STARTED}, None, True, ("not_started", "it could not be started")),
    ({"exit_code": 3}, None, False, ("execution_failed", "t ended with exit code 3")),
    ({"exit_code": None}, None, False, ("execution_failed", "t was ended")),
    ({"exit_code": 1, "stderr": f"Error: no\n    at main\n\nNode.js v22.0.0\n{OURS} advice\n"}, None, False,
     ("execution_failed", "Error: no")),
    ({"exit_code": 1}, b'{"error": {"type": "ValueError", "message": "no"}}', True, ("ValueError", "no")),
    ({}, None, True, ("execution_failed", "it ended without a result, or with one of more than 1,048,576 bytes")),
    ({"exit_code": 1, "stderr": "Node.js v22.1.0\n  only this  \n"}, None, False,
     ("execution_failed", "only this")),
    ({"exit_code": 1, "stderr": "Node.js v22.1.0\n"}, None, False,
     ("execution_failed", "t ended with exit code 1")),
    *[({}, result, True, ("execution_failed", "the result that the entry point left cannot be parsed"))
      for result in (b"{}", b"nonsense", b"[1]", b'{"output": NaN}', b'{"output": %s}' % DEEP.encode())],
    ({"stdout_truncated": True}, None, False,
     ("output_too_long", "its output exceeds the limit; leave large output as files in output_blobs")),
])  # fmt: skip
def test_failed_run_has_an_error_of_its_cause(
    outcome: dict[str, Any], result: bytes | None, called: bool, expected: tuple[str, str]
) -> None:
    done = to_run("t", replace(GOOD, **outcome), result, (), called=called, remark="")
    assert (done.output, done.error, done.summary) == (None, expected, expected[1])


@each_row(("message", "summary"), [(" \n", "ValueError"), ("two\n lines", "two lines"), ("x" * 5000, "x" * 200)])
def test_summary_is_cut_at_200_characters_and_message_and_log_at_4000(message: str, summary: str) -> None:
    result = jsonrpc.dump({"error": {"type": "ValueError", "message": message}})
    done = to_run("t", replace(GOOD, exit_code=1, stderr="y" * 4001), result, (), called=True, remark="")
    assert (done.summary, done.error, done.logs_preview) == (summary, ("ValueError", message[:4000]), "y" * 4000)
