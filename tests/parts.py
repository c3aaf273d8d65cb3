"""The option `--part 1/3`: run a part of the suite, where all of it takes too long. The hooks are for `conftest.py`."""

from __future__ import annotations

import zlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--part", metavar="I/N", help="run part I of N of the tests, by hashes of their ids")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other parts. A test is in the same part in each process, on each machine."""
    if part := config.getoption("--part"):
        number, count = map(int, part.split("/"))
        parts: list[list[pytest.Item]] = [[] for _ in range(count)]
        for item in items:
            parts[zlib.crc32(item.nodeid.encode()) % count].append(item)
        items[:] = parts.pop(number - 1)
        config.hook.pytest_deselected(items=[item for others in parts for item in others])
