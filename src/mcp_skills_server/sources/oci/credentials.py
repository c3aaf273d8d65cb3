"""Credentials for registries: what `docker login` wrote, and the credential helpers that it names."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import printable

_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HELPER_S: Final = 30.0
_MOST_BYTES: Final = 4 << 20
_HUB_KEY: Final = "https://index.docker.io/v1/"
_NOT_FOUND: Final = "credentials not found"
_IDENTITY: Final = "<token>"
"""The user name by which a helper says that the secret is an identity token."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name with its password, or an identity token.

    Attributes:
        username: "" beside an identity token.
        secret: the password, or the identity token.
        identity: whether it is the token.
    """

    username: str
    secret: str = field(repr=False)
    identity: bool = False

    @property
    def basic(self) -> str:
        """The value of Authorization for the scheme Basic."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.secret}".encode()).decode("ascii")


def find_credentials(registry: str, environment: Mapping[str, str] | None = None) -> Credentials | None:
    """Find the credentials for a registry, or None. It may run a credential helper, and wait for it.

    Raises:
        UsageError: the configuration or the helper that it names cannot be used. No message shows a secret.
    """
    environment = os.environ if environment is None else environment
    for path in _files(environment):
        config = _read(path)
        helpers = _mapping(config.get("credHelpers"))
        keys = _keys(registry)
        named = next((helpers[key] for key in keys if key in helpers), None) or config.get("credsStore")
        found = _ask(str(named), keys[0], path) if named else None
        found = found or _stored(_mapping(config.get("auths")), keys, path)
        if found is not None:
            return found
    return None


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the configuration of Docker, and podman's file of the same form."""
    docker = environment.get("DOCKER_CONFIG")
    home = environment.get("HOME") or environment.get("USERPROFILE") or ""
    if docker or home:
        yield Path(docker or Path(home, ".docker"), "config.json")
    podman, runtime = environment.get("REGISTRY_AUTH_FILE"), environment.get("XDG_RUNTIME_DIR")
    if podman or runtime:
        yield Path(podman or Path(runtime or "", "containers", "auth.json"))


def _read(path: Path) -> dict[str, Any]:
    try:
        found: object = json.loads(read_regular(path, _MOST_BYTES)[0])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{_shown(path)} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{_shown(path)} is not JSON; correct it, or run 'docker login' again") from None
    return _mapping(found)


def _keys(registry: str) -> list[str]:
    """Return the names that a configuration may have for a registry; a helper is asked for the first."""
    plain = registry.lower()
    own = [plain, f"https://{plain}", f"http://{plain}", f"https://{plain}/v1/", f"https://{plain}/v2/"]
    return [_HUB_KEY, "index.docker.io", *own] if plain == "docker.io" else own


def _stored(auths: Mapping[str, Any], keys: list[str], path: Path) -> Credentials | None:
    for key in keys:
        found = _mapping(auths.get(key))
        token, pair = found.get("identitytoken"), found.get("auth")
        if isinstance(token, str) and token:
            return Credentials("", token, identity=True)
        if isinstance(pair, str) and pair:
            try:
                username, colon, password = base64.b64decode(pair, validate=True).decode().rstrip("\0").partition(":")
            except ValueError:
                colon = username = password = ""
            if not colon:
                raise UsageError(f"{_shown(path)}: the entry of {key} cannot be read; run 'docker login {key}' again")
            return Credentials(username, password)
    return None


def _ask(name: str, server: str, path: Path) -> Credentials | None:
    """Ask a credential helper, which answers with JSON on stdout."""
    program = f"docker-credential-{name}"
    if not _HELPER.fullmatch(name):
        raise UsageError(f"{_shown(path)} names a credential helper whose name is none; correct it")
    if shutil.which(program) is None:
        raise UsageError(f"{_shown(path)} names {program}, which is not on PATH; install it, or log in anew")
    try:
        done = subprocess.run(  # noqa: S603, the operator's own configuration names it
            [program, "get"], input=server.encode(), capture_output=True, timeout=_HELPER_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = "it took too long" if isinstance(error, subprocess.TimeoutExpired) else "it cannot be started"
        raise UsageError(f"{program} did not answer: {reason}; call it by hand with 'get'") from None
    if done.returncode:
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        if _NOT_FOUND in said.lower():
            return None
        raise UsageError(f"{program} failed with exit code {done.returncode}; call it by hand with 'get'")
    try:
        found: object = json.loads(done.stdout[:_MOST_BYTES])
    except (ValueError, RecursionError):
        raise UsageError(f"{program} did not answer with JSON; call it by hand with 'get'") from None
    username, secret = (_mapping(found).get(key) for key in ("Username", "Secret"))
    if not isinstance(username, str) or not isinstance(secret, str) or not secret:
        return None
    return Credentials("", secret, identity=True) if username == _IDENTITY else Credentials(username, secret)


def _mapping(found: object) -> dict[str, Any]:
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _shown(path: Path) -> str:
    return printable(str(path))
