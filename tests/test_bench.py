"""`make bench-peers`: its evaluation of measurements, and a small round with real processes."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from bench.client import BenchError, body_of, is_whole, result_of
from bench.report import Verdict, markdown, verdicts
from bench.rounds import Series, Skills, run
from bench.subjects import EXT_SKILLS, OURS, SDK_FLOOR, own
from tools.interop.setup import best_line

from tables import each_row

VISIT = {"cold": 100.0, "catalogue": 200.0, "gets": 4000.0, "reads": 3000.0, "resident": 70.0}


def series(subject: str, transport: str = "stdio", **figures: float) -> Series:
    return Series(subject, "modern", transport, 1000, [{**VISIT, **figures}, {**VISIT, **figures}, {"cold": 900.0}])


def judged(*found: Series) -> dict[str, Verdict]:
    return {each.goal.key: each for each in verdicts(found)}


def test_median_time_has_an_upper_and_rate_a_lower_ratio() -> None:
    assert series(OURS, cold=120.0).figure("cold") == 120.0 and series(OURS).figure("get") is None
    found = judged(series(OURS, cold=35.0), series(SDK_FLOOR))
    assert found["cold"].ratio == pytest.approx(0.35) and found["cold"].met
    assert not judged(series(OURS, cold=36.0), series(SDK_FLOOR))["cold"].met
    rates = judged(series(OURS, "HTTP", gets=3999.0, reads=3001.0), series(SDK_FLOOR, "HTTP"))
    assert (rates["gets"].met, rates["reads"].met) == (False, True)


def test_report_names_measured_and_skipped_peers() -> None:
    found = judged(series(OURS), Series(EXT_SKILLS, "modern", "stdio", 1000, failure=["BenchError: it ended"]))
    assert set(found) == {"resident"} and found["resident"].ratio is None and not found["resident"].met
    text = markdown("About.", own(), [series(OURS)], {"ext-skills": "it cannot be had"})
    row = next(line for line in text.splitlines() if line.startswith("| this server "))
    assert [cell.strip() for cell in row.split("|")][2:5] == ["100", "200", "-"]
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


def test_install_error_is_reported_without_registry_address() -> None:
    reason = best_line("npm error code EPERM\nnpm error not allowed by https://registry.invalid/some/package\n")
    assert "not allowed" in reason and "://" not in reason
    assert "does not have it" in best_line("npm error code E404\nnpm error 404 GET https://registry.invalid/x")


def test_small_round_with_real_processes() -> None:
    """Measure this server over both transports, and a peer that exits at once."""
    mine = own()[0]
    broken = replace(mine, key="broken", command=lambda _: [sys.executable, "-c", "print('no')"])
    with Skills(60, mine) as skills:
        found = run(skills, [mine, broken], transports=("stdio", "HTTP"), rounds=1, requests=2)
        root = skills.root
    assert not root.exists()
    by = {(each.subject, each.transport, each.era): each for each in found}
    for transport, era in (("stdio", "legacy"), ("stdio", "modern"), ("HTTP", "modern")):
        (visit,) = by[OURS, transport, era].visits
        assert visit["catalogue"] > visit["cold"] > 0 and visit["resident"] > 1
        assert all(visit[key] > 0 for key in ("page", "get", "read", "gets", "reads"))
        assert ("notice" in visit) == (transport == "stdio")
        assert by["broken", transport, era].failure and not by["broken", transport, era].visits
    assert by["stat-walk", "stdio", "modern"].visits
