"""Server Card (SEP-2127), AI Catalog 0.9 and ARD 0.91 documents, for discovery by directories.

SEP-2127 forbids skills in a card. The catalog therefore lists the card, the index of Agent Skills
Discovery, and each published skill. ARD has the same entries in the form of AI Catalog 1.0, which
its schema requires, with example queries. All documents are I-JSON (RFC 7493).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from mcp_skills_server.format import identity, media
from mcp_skills_server.model import SIGNATURE_FILE, Json, Skill

CATALOG: Final = "/.well-known/ai-catalog.json"
CATALOG_MEDIA_TYPE: Final = "application/ai-catalog+json"
ARD: Final = "/.well-known/ard.json"
ARD_MEDIA_TYPE: Final = "application/json"
LINKS: Final = f'<{CATALOG}>; rel="ai-catalog", <{ARD}>; rel="ard"'
"""The `Link` header that points from other documents to the catalog and to ARD."""
CARD: Final = "/mcp/server-card"
CARD_MEDIA_TYPE: Final = "application/mcp-server-card+json"
MAX_SKILLS: Final = 500
"""The most skills with an entry of their own; the index lists all."""
MIN_QUERIES: Final = 2
MAX_QUERIES: Final = 5
"""The fewest and the most queries of an entry that the schema of ARD allows."""
_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
_SKILLS_TYPE: Final = "application/agent-skills"
_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9.-]")
_PLANES: Final = range(0, 0x110000, 0x10000)
_NONCHARACTERS: Final = re.compile(
    f"[\ufdd0-\ufdef{''.join(chr(plane + 0xFFFE) + chr(plane + 0xFFFF) for plane in _PLANES)}]"
)
_TITLE: Final = "Agent Skills"


class CatalogSkill(NamedTuple):
    """A published skill with its download.

    Attributes:
        queries: examples of what it answers.
        signature: path of its signature, if that is published as a file.
    """

    skill: Skill
    path: str
    digest: str
    media_type: str
    queries: Sequence[str] = ()
    signature: str | None = None


def server_card(endpoint: str, name: str, version: str, versions: Sequence[str]) -> dict[str, Json]:
    """Return the server card of a streamable HTTP endpoint; `versions` are protocol versions."""
    host = _NOT_IN_A_NAME.sub("-", urlsplit(endpoint).hostname or "localhost")
    if not host.replace(".", "").isdecimal():
        host = ".".join(reversed(host.split(".")))  # reverse DNS
    remote: dict[str, Json] = {"type": "streamable-http", "url": endpoint}
    remote["supportedProtocolVersions"] = [*versions]
    return {
        "$schema": _SCHEMA,
        "name": f"{host}/{name}",
        "version": version,
        "title": _TITLE,
        "description": "Serves Agent Skills (directories with a SKILL.md) to every MCP host.",
        "remotes": [remote],
    }


def catalog(
    site: str, index: str, skills: Iterable[CatalogSkill], *, has_card: bool, for_ard: bool = False
) -> dict[str, Json]:
    """Return the AI Catalog of a site, from its base URL without a trailing slash.

    Args:
        index: path of the index of Agent Skills Discovery.
        has_card: whether the site also runs an MCP server.
        for_ard: return the manifest of ARD instead.
    """
    host = _host(site)
    entries: list[Json] = []
    if has_card:
        card = _entry(f"{host}:mcp:skills", CARD_MEDIA_TYPE, site + CARD)
        if for_ard:  # the catalog leaves to an artifact what that says itself
            card["displayName"] = _TITLE
        entries.append(card)
    # of another namespace than the skills, one of which may be called "index"
    listing = _entry(f"{host}:skills:index", f"{_SKILLS_TYPE}+json", site + index)
    entries.append({**listing, "displayName": _TITLE})
    for skill in islice(skills, MAX_SKILLS):
        entry = _skill_entry(site, host, skill)
        if for_ard or skill.media_type != media.MARKDOWN:
            entry |= _described(skill.skill)
        if not for_ard and skill.signature is not None:
            entry["trustManifests"] = [_signed(site, skill.skill, skill.signature)]
        entries.append(entry)
    version = "1.0" if for_ard else "0.9"
    return {"specVersion": version, "host": {"displayName": host}, "entries": entries}


def _entry(identifier: str, kind: str, url: str) -> dict[str, Json]:
    return {"identifier": f"urn:air:{identifier}", "type": kind, "url": url}


def _described(skill: Skill) -> dict[str, Json]:
    """Return what a SKILL.md says itself, and an archive only once it is unpacked."""
    title = identity.title(skill) or skill.name
    out: dict[str, Json] = {"displayName": _valid(title), "description": _valid(skill.description)}
    version = identity.version(skill.frontmatter)
    if version is not None:
        out["version"] = _valid(version)
    return out


def _signed(site: str, skill: Skill, path: str) -> Json:
    """Return a trust manifest that refers to a skill's signature, which is not verified here."""
    file = skill.files[SIGNATURE_FILE]
    evidence: dict[str, Json] = {"type": "OpenSSF-Model-Signature", "uri": site + path}
    if file.digest:
        evidence |= {"digest": file.digest, "size": file.size}
    return {"contributor": site, "attestations": [evidence]}


def _valid(text: str) -> str:
    """Replace the code points that I-JSON forbids: lone surrogates and noncharacters."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _NONCHARACTERS.sub("\ufffd", whole)


def _skill_entry(site: str, host: str, published: CatalogSkill) -> dict[str, Json]:
    skill, form = published.skill, published.media_type.rpartition("/")[2]
    if published.media_type == media.MARKDOWN:
        form = "md"
    name = skill.name
    if not name.isascii():
        name = f"xn--{name.encode('punycode').decode()}"  # identifiers are ASCII only
    entry = _entry(f"{host}:skill:{name}", f"{_SKILLS_TYPE}+{form}", site + published.path)
    entry["digest"] = published.digest
    if len(published.queries) >= MIN_QUERIES:
        entry["representativeQueries"] = [*map(_valid, published.queries[:MAX_QUERIES])]
    return entry


def _host(url: str) -> str:
    """Return host and port, with each character that names may not have replaced by a hyphen."""
    return _NOT_IN_A_NAME.sub("-", urlsplit(url).netloc.rpartition("@")[2])
