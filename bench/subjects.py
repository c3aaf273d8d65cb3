"""Subjects of the benchmark: this server, its peers as `make interop` installs them, and the floor."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tools.interop.setup import CACHE, NODE, PACKAGES, PYTHON_PACKAGES, RefereeError, best_line, install, install_python
from tools.interop.setup import EXT_SKILLS as EXT_SKILLS_PACKAGE

from bench.client import ERAS, Era

OURS: Final = "ours"
WARM: Final = "ours-warm"
SDK_FLOOR: Final = "sdk-floor"
TYPESCRIPT_SDK: Final = "typescript-sdk"
STDIO_ONLY: Final = frozenset((WARM, SDK_FLOOR))
EXT_SKILLS: Final = "ext-skills"
_SERVERS: Final = Path(__file__).resolve().parent / "servers"
_SDK: Final = "@modelcontextprotocol/server"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a process.

    Attributes:
        root: the folder of skills.
        constants: JSON of method -> result, for the floor.
        port: the port on loopback for HTTP; None for stdio.
    """

    root: Path
    constants: Path
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A server to measure.

    Attributes:
        key: its name for `--only`.
        label: its name on the page.
        release: its version.
        command: returns the command that starts it.
        eras: those in which it has `skills/list` and `skills/get`.
        is_constant: its results are constants, so the client requests as many pages as a server would have.
        keeps_cache: it keeps its cache from one start to the next.
        notifies: it sends notifications of changes.
    """

    key: str
    label: str
    release: str
    command: Callable[[Start], Sequence[str]]
    eras: tuple[Era, ...] = ERAS
    is_constant: bool = False
    keeps_cache: bool = False
    notifies: bool = False


def own() -> list[Subject]:
    """Return this server with an empty cache, and with the cache of an earlier start."""
    release = version("mcp-skills-server")
    return [
        Subject(OURS, "this server", release, _serve, notifies=True),
        Subject(WARM, "this server, warm", release, _serve, keeps_cache=True),
    ]


def _serve(start: Start) -> list[str]:
    return [sys.executable, "-m", "mcp_skills_server", *_arguments(start)]


def with_recorder(subject: Subject, file: Path) -> Subject:
    """Return this server with a recorder of what a request passes, written to a file."""
    recorder = [sys.executable, "-m", "bench.recorder", str(file)]
    return replace(subject, command=lambda start: [*recorder, *_arguments(start)])


def _arguments(start: Start) -> list[str]:
    """Return the arguments of this server; over HTTP with more sessions than the default limit."""
    limits = ["--max-sessions", "3000", "--max-connections", "3000"]
    http = [] if start.port is None else ["--transport", "http", "--port", str(start.port), *limits]
    return ["serve", str(start.root), *http]


def _on_node(key: str, label: str, package: str) -> Subject:
    install()
    program = CACHE / "bench.mjs"  # Node resolves packages beside the program
    shutil.copyfile(_SERVERS / "typescript.mjs", program)
    return Subject(key, label, PACKAGES[package], lambda start: [str(NODE), str(program), key, *_target(start)])


def _fastmcp() -> Subject:
    command = [str(install_python("fastmcp-server")), str(_SERVERS / "fastmcp_server.py")]
    release = PYTHON_PACKAGES["fastmcp-server"][1]
    # It answers the two methods of SEP-2640 only to modern clients.
    return Subject("fastmcp", "FastMCP (Python)", release, lambda s: [*command, *_target(s)], eras=("modern",))


def _sdk_floor() -> Subject:
    def floor(start: Start) -> list[str]:
        return [sys.executable, "-m", "bench.floor", str(start.constants)]

    return Subject(SDK_FLOOR, "floor: Python SDK", version("mcp"), floor, is_constant=True)


OTHERS: Final[dict[str, Callable[[], Subject]]] = {
    EXT_SKILLS: lambda: _on_node(EXT_SKILLS, "ext-skills (Node)", EXT_SKILLS_PACKAGE),
    TYPESCRIPT_SDK: lambda: _on_node(TYPESCRIPT_SDK, "TypeScript SDK (Node)", _SDK),
    "fastmcp": _fastmcp,
    SDK_FLOOR: _sdk_floor,
}
"""The peers and the floor by key; each raises RefereeError if it cannot be installed."""


def gather(only: Sequence[str]) -> tuple[list[Subject], dict[str, str]]:
    """Install the requested subjects; return the installed ones, and the reason for each other.

    Args:
        only: keys of `OTHERS`, or nothing for all. This server is always included, since the floor repeats its results.
    """
    subjects = own()
    left_out: dict[str, str] = {}
    for key, make in OTHERS.items():
        if only and key not in only:
            continue
        try:
            subjects.append(make())
        except RefereeError as error:
            left_out[key] = best_line(str(error))
    return subjects, left_out


def _target(start: Start) -> list[str]:
    return [str(start.root), *([] if start.port is None else [str(start.port)])]
