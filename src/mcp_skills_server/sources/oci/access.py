"""Authentication at a registry: anonymous, Basic, Bearer tokens, and `docker login` credentials.

A password is sent only to the registry that it was stored for, and to its token server over https.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from anyio import to_thread

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import PROGRAM, UsageError
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import printable
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.sources.oci.reference import OciReference
from mcp_skills_server.sources.source import UnacceptableError

_TOKEN: Final = re.compile("[!-~]{1,32768}")
MAX_BYTES: Final = 1 << 16
"""Maximum size of a token server's response."""
_CHALLENGE: Final = re.compile(
    r'([A-Za-z][A-Za-z0-9_-]{0,63})(?: ?= ?("[^"]{0,2048}"|[^", ]{1,2048}))?'
)
_CHALLENGES_LENGTH: Final = 16_384
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HELPER_S: Final = 30.0
_MAX_CONFIG_BYTES: Final = 4 << 20
_HUB_KEY: Final = "https://index.docker.io/v1/"
_NOT_FOUND: Final = "credentials not found"
_IDENTITY: Final = "<token>"
"""User name by which a credential helper marks its secret as an identity token."""

Ask = Callable[[str, str, Mapping[str, str], bytes | None], Awaitable[bytes]]
"""Send (method, URL, headers, content) and return the body of a response with status 200."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user name and password, or with `identity` an identity token without a name."""

    username: str
    secret: str = field(repr=False)
    identity: bool = False

    @property
    def basic(self) -> str:
        """Authorization header of the scheme Basic."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.secret}".encode()).decode()


def find_credentials(
    registry: str, environment: Mapping[str, str] = os.environ
) -> Credentials | None:
    """Find credentials for a registry, or None. May run a helper; its failure is a UsageError."""
    for path in _files(environment):
        config = _read_config(path)
        helpers = mapping(config.get("credHelpers"))
        keys = _keys(registry)
        named = next((helpers[key] for key in keys if key in helpers), config.get("credsStore"))
        credentials = None
        if named:
            credentials = _ask_helper(str(named), keys[0], path)
        credentials = credentials or _stored(mapping(config.get("auths")), keys, path)
        if credentials is not None:
            return credentials
    return None


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the paths of Docker's configuration and of podman's, which has the same format."""
    docker = environment.get("DOCKER_CONFIG")
    home = environment.get("HOME") or environment.get("USERPROFILE") or ""
    if docker or home:
        yield Path(docker or Path(home, ".docker"), "config.json")
    podman, runtime = environment.get("REGISTRY_AUTH_FILE"), environment.get("XDG_RUNTIME_DIR")
    if podman or runtime:
        yield Path(podman or Path(runtime or "", "containers", "auth.json"))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return mapping(load_json(read_regular(path, _MAX_CONFIG_BYTES)[0]))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{_shown(path)} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        reason = f"is not JSON ({error}); correct it or log in anew"
        raise UsageError(f"{_shown(path)} {reason}") from None


def _keys(registry: str) -> list[str]:
    """Return a registry's names in a configuration; a helper gets the first."""
    plain = registry.lower()
    own = [plain, *(f"{scheme}://{plain}" for scheme in ("https", "http"))]
    own += [f"https://{plain}/v{version}/" for version in (1, 2)]
    if plain == "docker.io":
        return [_HUB_KEY, "index.docker.io", *own]
    return own


def _stored(auths: Mapping[str, Any], keys: list[str], path: Path) -> Credentials | None:
    for key in keys:
        entry = mapping(auths.get(key))
        token, pair = entry.get("identitytoken"), entry.get("auth")
        if isinstance(token, str) and token:
            return Credentials("", token, identity=True)
        if isinstance(pair, str) and pair:
            try:
                raw = base64.b64decode(pair, validate=True).decode()
            except ValueError:
                raw = ""
            username, colon, password = raw.rstrip("\0").partition(":")
            if not colon:
                raise UsageError(
                    f"{_shown(path)}: the entry of {key} cannot be read; run 'docker login {key}'"
                )
            return Credentials(username, password)
    return None


def _ask_helper(name: str, server: str, path: Path) -> Credentials | None:
    """Run a credential helper, which prints JSON on stdout; None if it has no credentials."""
    program = f"docker-credential-{name}"

    def failed(reason: str) -> UsageError:
        return UsageError(f"{program} {reason}; call it by hand with 'get'")

    if not _HELPER.fullmatch(name):
        raise UsageError(f"{_shown(path)} names a credential helper whose name is none; correct it")
    if shutil.which(program) is None:
        remedy = "install it, or leave it out there"
        raise UsageError(f"{_shown(path)} names {program}, which is not on PATH; {remedy}")
    try:
        done = subprocess.run(  # noqa: S603, the operator's own configuration names it
            [program, "get"],
            input=server.encode(),
            capture_output=True,
            timeout=_HELPER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise failed("did not answer: it took too long") from None
    except OSError:
        raise failed("did not answer: it cannot be started") from None
    if done.returncode:
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        if _NOT_FOUND in said.lower():
            return None
        raise failed(f"failed with exit code {done.returncode}")
    try:
        answer = mapping(load_json(done.stdout[:_MAX_CONFIG_BYTES]))
    except ValueError:
        raise failed("did not answer with JSON") from None
    username, secret = (answer.get(key) for key in ("Username", "Secret"))
    if not isinstance(username, str) or not isinstance(secret, str) or not secret:
        return None
    if username == _IDENTITY:
        return Credentials("", secret, identity=True)
    return Credentials(username, secret)


def _shown(path: Path) -> str:
    return printable(str(path))


def parse_challenges(header: str) -> dict[str, dict[str, str]]:
    """Return the parameters by scheme of WWW-Authenticate; none if it is malformed."""
    out: dict[str, dict[str, str]] = {}
    parameters: dict[str, str] = {}
    for name, value in _CHALLENGE.findall(header[:_CHALLENGES_LENGTH]):
        if value:
            parameters.setdefault(name.lower(), value.strip('"'))
        else:
            parameters = {}
            out.setdefault(name.lower(), parameters)
    return out


class Access:
    """Authorization state for one registry; it outlives the client that uses it.

    Args:
        reference: the artifact; its repository and `actions` are the scope of tokens.
        actions: "pull", or "pull,push".
    """

    def __init__(self, reference: OciReference, actions: str = "pull") -> None:
        self.trouble = ""
        """Reason why the operator's credentials could not be read, or ""."""
        self.authorization: str | None = None
        """Authorization header that answers the last challenge, or None."""
        self._registry = reference.registry
        self._scope = f"repository:{urlsplit(reference.base).path.removeprefix('/v2/')}:{actions}"
        self._credentials: Credentials | None = None
        self._has_looked = False

    async def admit(self, challenge: str, ask: Ask) -> None:
        """Set `authorization` to an answer to this WWW-Authenticate header, or raise SourceError.

        An expired token is renewed in this way, too: the registry then sends a challenge.
        """
        if not self._has_looked:
            self._has_looked = True
            try:
                self._credentials = await to_thread.run_sync(find_credentials, self._registry)
            except UsageError as error:
                self.trouble = str(error)
        offered = parse_challenges(challenge)
        answer = None
        if "bearer" in offered:
            answer = f"Bearer {await self._fetch_token(offered['bearer'], ask)}"
        elif "basic" in offered and self._credentials is not None:
            answer = self._credentials.basic
        self.authorization = answer

    async def _fetch_token(self, parameters: Mapping[str, str], ask: Ask) -> str:
        """Fetch a token from the token server that a challenge names."""
        realm, service = parameters.get("realm", ""), parameters.get("service")
        try:
            realm = wellknown.absolute(realm, realm)
        except ValueError as error:
            raise UnacceptableError(
                f"{self._registry} names a token server that cannot be asked: {error}"
            ) from None
        known = self._credentials
        fields = ({"service": service} if service else {}) | {"scope": self._scope}
        headers = {"Accept": "application/json"}
        if known is not None and known.identity:
            fields |= {"grant_type": "refresh_token", "client_id": PROGRAM}
            fields["refresh_token"] = known.secret
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            raw = await ask("POST", realm, headers, urlencode(fields).encode("ascii"))
        else:
            parts = urlsplit(realm)
            query = "&".join(filter(None, (parts.query, urlencode(fields))))
            if known is not None:
                headers["Authorization"] = known.basic
            raw = await ask("GET", urlunsplit(parts._replace(query=query)), headers, None)
        try:
            answer = mapping(load_json(raw))
        except ValueError:
            answer = {}
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise UnacceptableError(
                f"the token server of {self._registry} answers with no token that can be used"
            )
        return token
