"""A registry that says whatever a test wants it to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sources.oci.registries import Fake


@pytest.fixture
def registry() -> Iterator[Fake]:
    with Fake() as running:
        yield running
