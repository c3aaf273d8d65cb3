"""Costs of this server over HTTP for which no peer has anything to compare."""

from __future__ import annotations

from statistics import median
from typing import Final

from bench.client import BenchError, HttpClient, result_of
from bench.generate import questions, tool_calls

_MANY_CONNECTIONS: Final = 64
_FIRST_STREAMS: Final = 20
"""Streams before the measured ones: the first cost the process buffers that all share."""
_STREAMS: Final = 200
_SESSIONS: Final = 2010
_AROUND: Final = 10
"""Sessions before and after the 50th and the 2,000th whose median is taken."""


def measure(client: HttpClient, size: int, requests: int) -> dict[str, float]:
    """Return the figures by key (see `report.COSTS`), except those of `Skills.record`."""
    figures: dict[str, float] = {}
    for key, calls in tool_calls(size, 2 * requests).items():
        prepared = [client.prepare(*call) for call in calls]
        if (result := result_of(client.time(prepared[0])[1])).get("isError"):
            raise BenchError(f"the tool failed: {result}"[:500])
        client.load(prepared[:requests], requests)  # what the first calls prepare is no cost of later ones
        figures[key] = client.load(prepared[requests:], requests).processor * 1e3
    prepared = [client.prepare(*question) for question in questions(size, requests)["get"]]
    load = client.load(prepared, 20 * requests, _MANY_CONNECTIONS)
    figures["fairness"] = load.percentile(99) / load.percentile(50)
    if client.era == "legacy":
        times = [client.open_session() for _ in range(_SESSIONS)]
        for number in (50, 2000):
            figures[f"session {number}"] = median(times[number - _AROUND : number + _AROUND]) * 1e3
    figures["stream"] = _stream(client) / 1e3
    return figures


def _stream(client: HttpClient) -> float:
    """Return the bytes of memory of a stream, in the legacy era with its session."""
    for _ in range(_FIRST_STREAMS):
        client.open_stream()
    before = client.resident()
    for _ in range(_STREAMS):
        client.open_stream()
    return (client.resident() - before) / _STREAMS
