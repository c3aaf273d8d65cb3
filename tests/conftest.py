"""Fixtures that the tests of every package share."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

from commands.calls import restoring_logging
from dispatching import Direct, dispatching
from parts import pytest_addoption, pytest_collection_modifyitems
from programs import pytest_configure, pytest_runtest_setup, pytest_terminal_summary
from wire import FIXTURES, Era

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
]
pytest_plugins = ["outcomes"]

# Keep the index and the usage counts of tests out of the user's own directories.
for _variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
    os.environ[_variable] = tempfile.mkdtemp(prefix="skills-")
    atexit.register(shutil.rmtree, os.environ[_variable], ignore_errors=True)

# `nohup` and a shell's `&` ignore both signals, and the servers of tests would inherit that.
for _name in ("SIGHUP", "SIGINT"):
    _number = getattr(signal, _name, None)
    if _number is not None and signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _name == "SIGINT" else signal.SIG_DFL)

# A killed process loses nothing that it wrote; only a power failure does. tests/faults checks the order of calls.
os.fsync = lambda _: None

settings.register_profile("suite", max_examples=50, deadline=None)
settings.register_profile("fuzz", max_examples=5000, deadline=None)
settings.load_profile("suite")


def pytest_collection() -> None:
    """Disable garbage collection while tests are collected, which saves a tenth of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected modules from every later garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Restore the logging that a command of a test may have set up in this process."""
    with restoring_logging():
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["legacy", "modern"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@pytest.fixture(
    params=[
        pytest.param(
            "off",
            marks=pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root needs a sandbox"),
        ),
        pytest.param("required", marks=pytest.mark.needs_program("bwrap")),
    ]
)
def sandbox_mode(request: pytest.FixtureRequest) -> str:
    """Each value of `--sandbox`."""
    return request.param


@pytest.fixture(scope="module", params=["legacy", "modern"])
def direct(request: pytest.FixtureRequest) -> Iterator[Direct]:
    """A client of the fixtures, whose requests pass no transport, shared by the read-only tests of a module."""
    with dispatching(FIXTURES, era=request.param) as opened:
        yield opened
