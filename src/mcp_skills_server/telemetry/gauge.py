"""A gauge as the parts of the server declare it, free of the client library of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Gauge(NamedTuple):
    """A value that is read at each scrape; with `label`, one for each value of that label."""

    help: str
    value: float | Mapping[str, float]
    label: str = ""
