"""Fixtures that the tests of every package share."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

from programs import pytest_configure, pytest_runtest_setup, pytest_terminal_summary
from wire import FIXTURES, Era, Wire, serving

__all__ = ["pytest_configure", "pytest_runtest_setup", "pytest_terminal_summary"]
pytest_plugins = ["outcomes"]

# No server of a test leaves an index in the user's own cache or counts among the user's own, and none begins with one.
for _variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
    os.environ[_variable] = tempfile.mkdtemp(prefix="skills-")
    atexit.register(shutil.rmtree, os.environ[_variable], ignore_errors=True)

# `nohup` and a shell's `&` have both ignored, which the servers of tests would inherit and keep to.
for _name in ("SIGHUP", "SIGINT"):
    _number = getattr(signal, _name, None)
    if _number is not None and signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _name == "SIGINT" else signal.SIG_DFL)

# A killed process loses nothing that it wrote. Only a lost machine does: tests/faults looks at the order of calls.
os.fsync = lambda _: None

settings.register_profile("suite", max_examples=50, deadline=None)
settings.register_profile("fuzz", max_examples=5000, deadline=None)
settings.load_profile("suite")


def pytest_collection() -> None:
    """Collect no garbage among the modules of the suite, which all stay: a tenth of the time of a collection."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what is there now out of every later collection of garbage."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that a test calls sets up the logging of its process, which is that of all tests."""
    ours, root = logging.getLogger("mcp_skills_server"), logging.getLogger()
    levels, handlers = (ours.level, root.level), [*root.handlers]
    yield
    ours.setLevel(levels[0])
    root.setLevel(levels[1])
    root.handlers[:] = handlers


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests with `pytest.mark.anyio`."""
    return "asyncio"


@pytest.fixture(params=["legacy", "modern"])
def era(request: pytest.FixtureRequest) -> Era:
    """Both protocol eras, one after the other."""
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
    """What to give as `--sandbox` to run a script: both ways that do not depend on what is installed."""
    return request.param


@pytest.fixture(scope="module", params=["legacy", "modern"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A server on the fixtures that a module's tests share, in each era; for tests that change nothing."""
    with serving(FIXTURES, era=request.param) as opened:
        yield opened
