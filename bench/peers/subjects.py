"""What is measured: this server, its peers and its floors, and how each is started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.client import ERAS, Era
from bench.peers import environments
from bench.peers.environments import SERVERS, MissingError


@dataclass(frozen=True, slots=True)
class Start:
    """With what a process is started.

    Attributes:
        root: the folder of skills.
        constants: JSON of method -> result, for the floors.
        port: of loopback, for HTTP; None for stdin and stdout.
    """

    root: Path
    constants: Path
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """One server that is measured.

    Attributes:
        key: its name in the raw figures and for `--only`.
        label: what the page calls it.
        release: its version.
        command: the command that starts it.
        eras: those that it speaks.
        skills: those of them in which it knows `skills/list` and `skills/get`.
        http: whether it serves HTTP.
        constant: whether it answers constants, so that it is asked for as many pages as there would be.
        tools: whether it offers tools from which a model learns of the skills.
        keeps_cache: whether what it keeps in the user's cache lasts from one start to the next.
    """

    key: str
    label: str
    release: str
    command: Callable[[Start], Sequence[str]]
    eras: tuple[Era, ...] = ERAS
    skills: tuple[Era, ...] = ERAS
    http: bool = True
    constant: bool = False
    tools: bool = False
    keeps_cache: bool = False


OURS: Final = "ours"
WARM: Final = "ours-warm"
SDK_FLOOR: Final = "sdk-floor"
BARE: Final = "bare-loop"
EXT_SKILLS: Final = "ext-skills"


def own() -> list[Subject]:
    """This server: from nothing, and with what an earlier start kept."""
    release = version("mcp-skills-server")
    return [
        Subject(OURS, "this server", release, _serve, tools=True),
        Subject(WARM, "this server, warm index", release, _serve, tools=True, keeps_cache=True),
    ]


def floors() -> Iterator[Callable[[], Subject]]:
    """What no server on this SDK, and none in CPython, can be below."""
    yield _sdk_floor
    yield lambda: Subject(
        BARE, "floor: CPython loop", sys.version.split()[0],
        lambda start: [sys.executable, "-I", "-S", str(SERVERS / "bare_loop.py"), str(start.constants)],
        http=False, constant=True,
    )  # fmt: skip


PEERS: Final[dict[str, str]] = {
    EXT_SKILLS: "ext-skills (Node)",
    "typescript-sdk": "TypeScript SDK (Node)",
    "fastmcp": "FastMCP (Python)",
    "skilljack": "skilljack (Node)",
}
"""Key -> what the page calls it."""


def peer(key: str) -> Subject:
    """A peer, installed.

    Raises:
        MissingError: it cannot be had.
    """
    label, release = PEERS[key], environments.release(key)
    if key == "fastmcp":
        python = str(environments.python(key))
        command = [python, str(SERVERS / "fastmcp_server.py")]
        # It answers the two methods of SEP-2640 to modern clients alone.
        return Subject(key, label, release, lambda start: [*command, *_target(start)], skills=("modern",))
    if key == "skilljack":
        command = environments.skilljack()
        # It knows neither the modern era nor SEP-2640; its skills are resources.
        return Subject(
            key, label, release, lambda start: [*command, str(start.root)], eras=("legacy",), skills=(), http=False
        )
    command = environments.typescript(key)
    return Subject(key, label, release, lambda start: [*command, *_target(start)])


def gather(only: Sequence[str] = ()) -> tuple[list[Subject], dict[str, str]]:
    """All that can be had, and for each peer that cannot the reason.

    Args:
        only: keys, or nothing for all. This server is always there: the floors answer what it answers.
    """
    subjects = own()
    left_out: dict[str, str] = {}
    makers: list[tuple[str, Callable[[], Subject]]] = [(key, lambda key=key: peer(key)) for key in PEERS]
    makers += zip((SDK_FLOOR, BARE), floors(), strict=True)
    for key, make in makers:
        if only and key not in only:
            continue
        try:
            subjects.append(make())
        except MissingError as error:
            left_out[f"{PEERS.get(key, key)} {environments.release(key)}"] = str(error)
    return subjects, left_out


_SERVE: Final = (sys.executable, "-m", "mcp_skills_server", "serve")


def _serve(start: Start) -> list[str]:
    http = [] if start.port is None else ["--transport", "http", "--port", str(start.port)]
    return [*_SERVE, str(start.root), *http]


def _target(start: Start) -> list[str]:
    return [str(start.root), *([] if start.port is None else [str(start.port)])]


def _sdk_floor() -> Subject:
    python = str(environments.python(SDK_FLOOR))

    def command(start: Start) -> list[str]:
        if start.port is None:
            return [python, "-m", "bench.floor", str(start.constants)]
        return [python, "-m", "bench.http", "--serve-constants", str(start.constants), "--port", str(start.port)]

    label = "floor: Python SDK"
    return Subject(SDK_FLOOR, label, environments.release(SDK_FLOOR), command, constant=True)
