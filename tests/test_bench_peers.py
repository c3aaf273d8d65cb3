"""`make bench-peers`: what it makes of what it measured, and a small round with real processes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.client import BenchError
from bench.peers import page, plot
from bench.peers.environments import reason
from bench.peers.page import Results
from bench.peers.rounds import HTTP, STDIO, Series, Skills, patient, run
from bench.peers.subjects import BARE, EXT_SKILLS, OURS, SDK_FLOOR, Subject, floors, own
from bench.peers.summary import Slope, figure, slope, verdicts
from bench.peers.visit import Times, Visit, result_of, times_of

VISIT = Visit(
    cold=100, catalogue=200, tools=150, entries=50,
    page=Times(9, 0.5, 1), get=Times(9, 0.2, 0.4), read=Times(9, 0.3, 0.6),
    gets=4000, reads=3000, resident=70,
)  # fmt: skip


def subject(key: str, constant: bool = False) -> Subject:
    return Subject(key, f"<{key}>", "1.2", lambda _: [], constant=constant)


def results() -> Results:
    slow = replace(VISIT, cold=400.0, catalogue=None, page=None, get=None, gets=None, reads=1000.0)
    series = [
        Series(OURS, "modern", STDIO, 10, [replace(VISIT, cold=50.0)]),
        Series(OURS, "modern", STDIO, 1000, [VISIT, replace(VISIT, cold=120.0), replace(VISIT, cold=900.0)]),
        Series(SDK_FLOOR, "modern", STDIO, 1000, [slow]),
        Series(EXT_SKILLS, "modern", STDIO, 1000, [], "BenchError: it ended"),
        Series(OURS, "modern", HTTP, 1000, [VISIT]),
    ]
    about = {"day": "2026-01-02", "machine": "2 cores", "load": 0.1, "load_after": 1.9, "rounds": 3}
    subjects = [subject(OURS), subject(EXT_SKILLS), subject(SDK_FLOOR, constant=True)]
    return Results(about, 1000, subjects, {"skilljack": "nobody has it"}, series)


def test_slope() -> None:
    assert slope([(10, 5.0), (100, 50.0), (1000, 500.0)]) == Slope(10, 1000, pytest.approx(1.0), pytest.approx(500.0))
    flat = slope([(10, 3.0), (1000, 3.0)])
    assert flat is not None and flat.exponent == pytest.approx(0.0) and flat.thousand == 0.0


@pytest.mark.parametrize("points", [[], [(10, 5.0)], [(10, 0.0), (100, 1.0)]])
def test_no_slope(points: list[tuple[int, float]]) -> None:
    assert slope(points) is None


def test_times() -> None:
    assert times_of([each / 1000 for each in range(200, 0, -1)]) == Times(
        200, pytest.approx(100.5), pytest.approx(198.0)
    )


def test_a_figure_is_the_median_of_the_rounds() -> None:
    assert figure(results().series[1], "cold") == 120.0
    assert figure(results().series[2], "get") is None


def test_more_requests_a_second_are_better() -> None:
    judged = {(each.goal.key, each.goal.beside): each for each in verdicts(results().series, 1000) if each.other}
    assert judged["cold", SDK_FLOOR].ratio == pytest.approx(0.3) and judged["cold", SDK_FLOOR].met
    assert not [key for key in judged if key[1] == EXT_SKILLS], "nothing was measured there"
    pair = [Series(OURS, "modern", STDIO, 1000, [VISIT]), Series(EXT_SKILLS, "modern", STDIO, 1000, [VISIT])]
    pair[1].visits[0] = replace(VISIT, gets=3999.0, reads=3001.0)
    found = {each.goal.key: each.met for each in verdicts(pair, 1000)}
    assert (found["gets"], found["reads"]) == (True, False)


def test_memory_is_judged_by_itself() -> None:
    (judged,) = [each for each in verdicts(results().series, 1000) if each.goal.key == "resident"]
    assert judged.ratio is None and not judged.met


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\ncontent-length: 25\r\n\r\n{"id":1,"result":{"a":1}}',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{"result":{"\r\nd\r\na":1},"id":1}\r\n0\r\n\r\n',
        b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nevent: message\r\ndata: {"id":1,"result":{"a":1}}\r\n\r\n',
    ],
)
def test_result_over_http(answer: bytes) -> None:
    assert result_of(answer) == {"a": 1}


def test_an_error_over_http_is_no_figure() -> None:
    with pytest.raises(BenchError):
        result_of(b'HTTP/1.1 400 Bad Request\r\ncontent-length: 25\r\n\r\n{"id":1,"error":{"code":1}}')


def test_page_keeps_what_stands_around_the_markers(tmp_path: Path) -> None:
    (tmp_path / page.PAGE).write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n", encoding="utf-8")
    page.write(results(), tmp_path)
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "\nold\n" not in text
    assert "skilljack: nobody has it." in text and "BenchError: it ended" in text
    assert "load 0.1 before and 1.9 after" in text
    row = next(line for line in text.splitlines() if line.startswith(f"| <{SDK_FLOOR}> 1.2"))
    assert [cell.strip() for cell in row.split("|")][2:5] == ["400", "-", "-"]
    page.write(results(), tmp_path)
    assert (tmp_path / page.PAGE).read_text(encoding="utf-8") == text


def test_every_plot_on_the_page_is_there_and_is_xml(tmp_path: Path) -> None:
    page.write(results(), tmp_path)
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    folder = tmp_path / page.FOLDER
    assert {path.name for path in folder.glob("*.svg")} == {"peers-modern.svg", "http.svg", "growth.svg"}
    for path in folder.glob("*.svg"):
        assert f"({page.FOLDER}/{path.name})" in text
        words = "".join(ElementTree.fromstring(path.read_text(encoding="utf-8")).itertext())
        assert f"<{OURS}>" in words


def test_raw_figures(tmp_path: Path) -> None:
    page.write(results(), tmp_path)
    raw = json.loads((tmp_path / page.FOLDER / "peers.json").read_text(encoding="utf-8"))
    assert [each["cold"] for each in raw["series"][1]["visits"]] == [100, 120, 900]
    assert raw["series"][3]["gave_up"] == "BenchError: it ended" and raw["load"] == 0.1


def test_a_bar_that_is_cut_says_so() -> None:
    panel = plot.Panel("ms", {"a": [(0, 1.0)], "b": [(0, 2.0)], "c": [(0, 900.0)]})
    svg = plot.bars("title", [panel], {"a": "#000", "b": "#111", "c": "#222"})
    assert svg.count("(cut)") == 1 and ">900 (cut)<" in svg


def test_the_reason_has_no_address() -> None:
    told = reason("npm error code EPERM\nnpm error not allowed by https://registry.invalid/some/package\n")
    assert "not allowed" in told and "://" not in told
    assert "does not have it" in reason("npm error code E404\nnpm error 404 GET https://registry.invalid/x")


def test_who_is_slow_or_gave_up_is_not_asked_at_the_next_size() -> None:
    late = Series("late", "modern", STDIO, 1000, [replace(VISIT, catalogue=5000.0)])
    gone = Series("gone", "modern", STDIO, 1000, [], "TimeoutError: nothing came")
    mine = replace(late, subject=OURS)
    subjects = [subject(each) for each in (OURS, "late", "gone", "good")]
    assert [each.key for each in patient(subjects, [late, gone, mine], 10)] == [OURS, "good"]
    assert [each.key for each in patient(subjects, [late, gone, mine], 2)] == [OURS, "late", "good"]


def test_a_round() -> None:
    """Real processes: this server, the bare loop beside it, and one that ends at once."""
    mine, bare = own()[0], list(floors())[1]()
    broken = replace(subject("broken"), command=lambda _: [sys.executable, "-c", "print('no')"], http=False)
    with Skills(60, mine) as skills:
        found = list(
            run(skills, [mine, bare, broken], eras=("legacy", "modern"), transport=STDIO, rounds=1, requests=2)
        )
        over_http = list(run(skills, [mine, bare], eras=("modern",), transport=HTTP, rounds=1, requests=2))
        root = skills.root
    assert not root.exists()
    by = {(each.subject, each.era): each for each in [*found]}
    for key, era in [(OURS, "legacy"), (OURS, "modern"), (BARE, "legacy"), (BARE, "modern")]:
        (visit,) = by[key, era].visits
        assert visit.entries == 50 and visit.get and visit.get.n == 2 and visit.resident > 1
        assert visit.catalogue is not None and visit.catalogue > visit.cold > 0
        assert visit.gets and visit.gets > 0 and visit.reads > 0
        assert [each and each.n for each in (visit.get_each, visit.read_each, visit.on_one and visit.on_one.read)] == [
            2,
            2,
            2,
        ]
    assert by["broken", "modern"].gave_up and not by["broken", "modern"].visits
    (only,) = over_http
    assert only.subject == OURS and only.visits[0].entries == 50 and only.visits[0].reads > 0
