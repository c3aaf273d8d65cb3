"""Fixtures: a site, an OCI registry, an output folder, and no proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sources.oci.registries import FakeRegistry
from sources.publishers import Publisher


@pytest.fixture
def site() -> Iterator[Publisher]:
    with Publisher() as publisher:
        yield publisher


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as running:
        yield running


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "outside" / "skills"
