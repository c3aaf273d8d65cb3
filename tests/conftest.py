"""Fixtures that every room's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from wire import FIXTURES, Era, Wire, serving

pytest_plugins = ["outcomes"]

settings.register_profile("suite", max_examples=200, deadline=None)
settings.register_profile("fuzz", max_examples=5000, deadline=None)
settings.load_profile("suite")


@pytest.fixture(params=["legacy", "modern"])
def era(request: pytest.FixtureRequest) -> Era:
    """Both protocol eras, one after the other."""
    return request.param


@pytest.fixture(scope="module", params=["legacy", "modern"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A server on the fixtures that a module's tests share, in each era; for tests that change nothing."""
    with serving(FIXTURES, era=request.param) as opened:
        yield opened
