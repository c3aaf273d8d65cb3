"""`make bench-peers`: its evaluation of measurements."""

from __future__ import annotations

import pytest
from bench import wrk
from bench.client import BenchError, Load, body_of, is_whole, result_of, session_of
from bench.recorder import named
from bench.report import Verdict, markdown, verdicts
from bench.rounds import Series
from bench.subjects import EXT_SKILLS, OURS, SDK_FLOOR, TYPESCRIPT_SDK, own
from tools.interop.setup import best_line

from mcp_skills_server.web.part import requester
from tables import each_row

VISIT = {"cold": 100.0, "catalogue": 200.0, "gets": 4000.0, "reads": 3000.0, "resident": 70.0}


def series(subject: str, transport: str = "stdio", **figures: float) -> Series:
    return Series(subject, "modern", transport, 1000, [{**VISIT, **figures}, {**VISIT, **figures}, {"cold": 900.0}])


def judged(*found: Series) -> dict[str, Verdict]:
    return {each.goal.key: each for each in verdicts(found)}


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_median_time_has_an_upper_and_rate_a_lower_ratio() -> None:
    assert series(OURS, cold=120.0).figure("cold") == 120.0 and series(OURS).figure("get") is None
    found = judged(series(OURS, cold=35.0), series(SDK_FLOOR))
    assert found["cold"].ratio == pytest.approx(0.35) and found["cold"].met
    assert not judged(series(OURS, cold=36.0), series(SDK_FLOOR))["cold"].met
    rates = judged(series(OURS, "HTTP", gets=4799.0, reads=4501.0), series(TYPESCRIPT_SDK, "HTTP"))
    assert (rates["gets"].met, rates["reads"].met) == (False, True)


def test_cost_of_this_server_is_judged_by_its_figure() -> None:
    mine = series(OURS, "HTTP", stream=41.0, layers=3.0)
    found = judged(mine)
    assert (found["stream"].text, found["layers"].text) == ("**41 kB**", "3")
    text = markdown("About.", own(), [mine], {})
    row = line_of(text, "| HTTP | memory of a stream")
    assert [cell.strip() for cell in row.split("|")][4:7] == ["-", "**41 kB**", "≤ 40 kB"]
    assert "stream" not in line_of(text, "| server "), "it is no column of the table with the peers"


def test_report_names_measured_and_skipped_peers() -> None:
    found = judged(series(OURS), Series(EXT_SKILLS, "modern", "stdio", 1000, failure=["BenchError: it ended"]))
    assert set(found) == {"resident"} and found["resident"].ratio is None and not found["resident"].met
    text = markdown("About.", own(), [series(OURS)], {"ext-skills": "it cannot be had"})
    row = line_of(text, "| this server ")
    assert [cell.strip() for cell in row.split("|")][2:5] == ["100", "200", "4,000"]
    assert "- ext-skills: it cannot be had." in text


@each_row("answer", [
    b'content-length: 25\r\n\r\n{"id":1,"result":{"a":1}}',
    b'Transfer-Encoding: chunked\r\n\r\nc\r\n{"result":{"\r\nd\r\na":1},"id":1}\r\n0\r\n\r\n',
    b'content-length: 51\r\n\r\nevent: message\r\ndata: {"id":1,"result":{"a":1}}\r\n\r\n',
])  # fmt: skip
def test_complete_response_is_parsed_and_error_is_refused(answer: bytes) -> None:
    response = b"HTTP/1.1 200 OK\r\n" + answer
    assert is_whole(response) and not is_whole(response[:-1])
    assert result_of(body_of(response)) == {"a": 1}
    with pytest.raises(BenchError):
        result_of(b'{"id":1,"error":{"code":1}}')


def test_session_is_read_from_the_head_only() -> None:
    assert session_of(b"HTTP/1.1 200 OK\r\nMcp-Session-Id: a1\r\n\r\n{}") == {"Mcp-Session-Id": "a1"}
    assert session_of(b"HTTP/1.1 200 OK\r\na: b\r\n\r\n\r\nmcp-session-id: a1\r\n") == {}


def test_percentile_is_of_the_sorted_times() -> None:
    load = Load(1.0, 0.0, [float(number) for number in range(101)])
    assert (load.percentile(50), load.percentile(99), Load(1.0, 0.0, [3.0]).percentile(99)) == (50, 99, 3)


def test_rate_of_wrk_is_parsed_and_its_errors_are_refused() -> None:
    output = "  123 requests in 1.00s, 1.00MB read\n{}Requests/sec:   2710.96\nTransfer/sec:      1.00MB\n"
    assert wrk.parse(output.format("")) == 2710.96
    for error in ("  Socket errors: connect 0, read 3, write 0, timeout 0\n", "  Non-2xx or 3xx responses: 5\n"):
        with pytest.raises(BenchError, match=error.strip()):
            wrk.parse(output.format(error))
    with pytest.raises(BenchError, match="unable to connect"):
        wrk.parse("unable to connect to localhost:1 Connection refused\n")


def test_script_of_wrk_sends_the_same_bytes() -> None:
    assert '"\\065\\013\\010\\034",\n"\\195\\164"' in wrk.lua([b'A\r\n"', "ä".encode()])


def test_recorder_names_our_modules_and_asgi_layers() -> None:
    class Layer:
        def __call__(self, scope: object, receive: object, send: object) -> None: ...

    recorded = named({Layer.__call__.__code__, requester.__code__})
    assert recorded["modules"] == ["web/part.py"]
    assert [name.rpartition(".<locals>.")[2] for name in recorded["layers"]] == ["Layer.__call__"]


def test_install_error_is_reported_without_registry_address() -> None:
    reason = best_line("npm error code EPERM\nnpm error not allowed by https://registry.invalid/some/package\n")
    assert "not allowed" in reason and "://" not in reason
    assert "does not have it" in best_line("npm error code E404\nnpm error 404 GET https://registry.invalid/x")
