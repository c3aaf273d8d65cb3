"""Parse artifact references `oci://REGISTRY/REPOSITORY[:TAG][@sha256:…]`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.access.hosts import is_loopback
from mcp_skills_server.errors import UsageError, quoted
from mcp_skills_server.model.digests import is_digest

LATEST: Final = "latest"
TAGS: Final = "tags:"
"""Prefix of a revision of all tags of a repository, whose earlier states are not kept."""
_SCHEMES: Final = {"oci://": "https", "oci+http://": "http"}
_REGISTRY: Final = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"
)
_SEGMENT: Final = re.compile(r"[a-z0-9]++(?:(?:\.|__?|-++)[a-z0-9]++)*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_NO_SKILL: Final = re.compile(r"sha256-|v?[0-9]++(?:[.][0-9]++)*(?:[-+_].*)?$")
_MAX_LENGTH: Final = 255
_HUB: Final = "docker.io"
_HUB_API: Final = "registry-1.docker.io"
_EXAMPLE: Final = "write oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:…"


@dataclass(frozen=True, slots=True)
class OciReference:
    """Reference to an artifact: by `digest`, if there is one, else by `tag`.

    Without both it is the artifact `latest`, or in a repository without that those of all tags.
    """

    scheme: str
    registry: str
    repository: str
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        spelled = next(spelled for spelled, scheme in _SCHEMES.items() if scheme == self.scheme)
        text = f"{spelled}{self.registry}/{self.repository}"
        if self.tag:
            text += f":{self.tag}"
        if self.digest:
            text += f"@{self.digest}"
        return text

    @property
    def wanted(self) -> str:
        """The digest if there is one, else the tag."""
        return self.digest or self.tag or LATEST

    @property
    def base(self) -> str:
        """URL of the repository in the registry's API."""
        registry, name = self.registry, self.repository
        if registry.lower() == _HUB:
            registry = _HUB_API
            if "/" not in name:
                name = f"library/{name}"
        return f"{self.scheme}://{registry}/v2/{name}"

    @property
    def host(self) -> str:
        """The registry's host without its port."""
        if self.registry.startswith("["):
            return self.registry[1:].partition("]")[0]
        return self.registry.partition(":")[0]


def is_skill_tag(text: str) -> bool:
    """Tell whether a tag may name a skill: no version, and no referrer of a digest."""
    return bool(_TAG.fullmatch(text)) and not _NO_SKILL.match(text)


def is_oci(text: str) -> bool:
    """Tell whether a text is an artifact reference rather than a path."""
    return text.lower().startswith(tuple(_SCHEMES))


def rejoined(texts: Iterable[str]) -> list[str]:
    """Join references that were split at colons: a text without a slash is the tag before it."""
    out: list[str] = []
    for text in texts:
        name = out[-1].rpartition("/")[2] if out and is_oci(out[-1]) else ":"
        if "/" not in text and (":" not in name or name.endswith("@sha256")):
            out[-1] += f":{text}"
        else:
            out.append(text)
    return out


def parse_reference(text: str, *, http: bool = False) -> OciReference:
    """Parse an artifact reference.

    Raises UsageError if it is malformed, or plain http to another machine without `http`.
    """
    shown = quoted(text)
    spelled = next((scheme for scheme in _SCHEMES if text.lower().startswith(scheme)), "")
    if not spelled:
        raise UsageError(f"{shown} is not the name of an artifact; {_EXAMPLE}")
    registry, slash, rest = text[len(spelled) :].partition("/")
    if "@" in registry:
        raise UsageError("an oci:// name carries no user name or password; use 'docker login'")
    if not slash or not _REGISTRY.fullmatch(registry):
        raise UsageError(f"{shown} names no registry; {_EXAMPLE}")
    named, at, digest = rest.partition("@")
    above, between, last = named.rpartition("/")
    last, colon, tag = last.partition(":")
    repository = f"{above}{between}{last}"
    if at and not is_digest(digest):
        raise UsageError(f"{shown}: the digest is not sha256: and 64 hex digits; {_EXAMPLE}")
    if colon and not _TAG.fullmatch(tag):
        rule = "a tag has letters, digits, '_', '.' and '-', and at most 128 of them"
        raise UsageError(f"{shown}: {rule}; {_EXAMPLE}")
    if len(repository) > _MAX_LENGTH or not all(map(_SEGMENT.fullmatch, repository.split("/"))):
        hint = "; write it in lower case" if repository != repository.lower() else f"; {_EXAMPLE}"
        raise UsageError(f"{shown}: {quoted(repository)} cannot be the name of a repository{hint}")
    reference = OciReference(_SCHEMES[spelled], registry, repository, tag or None, digest or None)
    if reference.scheme == "http" and not http and not is_loopback(reference.host):
        raise UsageError(f"{shown} is plain http; --allow-http allows it")
    return reference
