"""Authentication at a registry: anonymous, Basic or Bearer tokens, kept between requests.

A password goes to the registry that it was stored for, and to the token server that this registry names over https.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlencode, urlsplit, urlunsplit

from anyio import to_thread

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.faults import UnacceptableError
from mcp_skills_server.sources.oci import credentials
from mcp_skills_server.sources.oci.credentials import Credentials
from mcp_skills_server.sources.oci.reference import OciReference

_CLIENT: Final = "mcp-skills-server"
_UNSAID_S: Final = 60
_LONGEST_S: Final = 3600
_LEEWAY_S: Final = 10
_MOST_TOKEN: Final = 32_768
MOST_BYTES: Final = 1 << 16
"""Of what a token server answers."""
_CHALLENGE: Final = re.compile(r'([A-Za-z][A-Za-z0-9_-]{0,63})(?: ?= ?("[^"]{0,2048}"|[^", ]{1,2048}))?')
_CHALLENGES_LENGTH: Final = 16_384

Ask = Callable[[str, str, Mapping[str, str], bytes | None], Awaitable[bytes]]
"""From method, URL, headers and content to the body of an answer with status 200."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """One authentication scheme of the header WWW-Authenticate.

    Attributes:
        scheme: "basic", "bearer" and so on, in lower case.
        parameters: names in lower case; of a repeated one the first.
    """

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(header: str) -> list[Challenge]:
    """Return the challenges of a header in its order; none if it cannot be understood."""
    out: list[tuple[str, dict[str, str]]] = []
    for name, value in _CHALLENGE.findall(header[:_CHALLENGES_LENGTH]):
        if not value:
            out.append((name.lower(), {}))
        elif out:
            out[-1][1].setdefault(name.lower(), value.strip('"'))
    return [Challenge(*each) for each in out]


@dataclass(frozen=True, slots=True)
class _BearerToken:
    value: str = field(repr=False)
    until: float


class Access:
    """What is known of how one registry admits us. It outlives the client that uses it.

    Args:
        reference: what is read or written there.
        actions: "pull", or "pull,push".
        find: the operator's credentials for a registry; it blocks.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        reference: OciReference,
        actions: str = "pull",
        find: Callable[[str], Credentials | None] = credentials.find_credentials,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trouble = ""
        """Why the operator's credentials could not be read, "" where they could."""
        self._registry = reference.registry
        self._scope = f"repository:{urlsplit(reference.base).path.removeprefix('/v2/')}:{actions}"
        self._find = find
        self._clock = clock
        self._challenge: Challenge | None = None
        self._token: _BearerToken | None = None
        self._credentials: Credentials | None = None
        self._looked = False

    async def header(self, ask: Ask) -> str | None:
        """Return the Authorization by what is known so far, or None.

        Raises:
            SourceError: a new token is needed, and cannot be had.
        """
        challenge = self._challenge
        if challenge is None:
            return None
        if challenge.scheme == "basic":
            return self._credentials.basic if self._credentials else None
        if self._token is None or self._token.until <= self._clock():
            self._token = await self._fetch(challenge, ask)
        return f"Bearer {self._token.value}"

    async def admit(self, header: str, ask: Ask) -> str | None:
        """Return the Authorization that answers this WWW-Authenticate of a 401, or None if there is none.

        Raises:
            SourceError: a token is needed, and cannot be had.
        """
        offered = {each.scheme: each for each in reversed(parse_challenges(header))}
        if not self._looked:
            self._looked = True
            try:
                self._credentials = await to_thread.run_sync(self._find, self._registry)
            except UsageError as error:
                self.trouble = str(error)
        self._token = None
        self._challenge = offered.get("bearer") or (offered.get("basic") if self._credentials else None)
        return await self.header(ask)

    async def _fetch(self, challenge: Challenge, ask: Ask) -> _BearerToken:
        """Fetch a token from the server that the registry names."""
        realm, service = challenge.parameters.get("realm", ""), challenge.parameters.get("service")
        try:
            realm = wellknown.absolute(realm, realm)
        except ValueError as error:
            raise UnacceptableError(f"{self._registry} names a token server that cannot be asked: {error}") from None
        known = self._credentials
        fields = ({"service": service} if service else {}) | {"scope": self._scope}
        headers = {"Accept": "application/json"}
        if known is not None and known.identity:
            fields |= {"grant_type": "refresh_token", "client_id": _CLIENT, "refresh_token": known.secret}
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            raw = await ask("POST", realm, headers, urlencode(fields).encode("ascii"))
        else:
            parts = urlsplit(realm)
            query = "&".join(filter(None, (parts.query, urlencode(fields))))
            if known is not None:
                headers["Authorization"] = known.basic
            raw = await ask("GET", urlunsplit(parts._replace(query=query)), headers, None)
        return self._read(raw)

    def _read(self, raw: bytes) -> _BearerToken:
        try:
            data: object = json.loads(raw)
        except (ValueError, RecursionError):
            data = None
        found = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        token, life = found.get("token") or found.get("access_token"), found.get("expires_in")
        usable = isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token
        if not isinstance(token, str) or not usable or len(token) > _MOST_TOKEN:
            raise UnacceptableError(f"the token server of {self._registry} answers with no token that can be used")
        seconds = life if isinstance(life, int) and not isinstance(life, bool) else _UNSAID_S
        return _BearerToken(token, self._clock() + max(0, min(seconds, _LONGEST_S) - _LEEWAY_S))
