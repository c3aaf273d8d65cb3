"""Server Card (SEP-2127), AI Catalog 1.0 and ARD 0.91 documents, for discovery by directories.

SEP-2127 forbids skills in a card. The catalog therefore lists the card, the index of Agent Skills
Discovery, and each published skill. ARD has the same entries with example queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from mcp_skills_server.format import identity, media
from mcp_skills_server.model import Json, Skill

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
_TITLE: Final = "Agent Skills"


class CatalogSkill(NamedTuple):
    """A published skill with its download, and example queries that it answers."""

    skill: Skill
    path: str
    digest: str
    media_type: str
    queries: Sequence[str] = ()


def server_card(endpoint: str, name: str, version: str, versions: Sequence[str]) -> dict[str, Json]:
    """Return the server card of a streamable HTTP endpoint; `versions` are protocol versions."""
    host = _NOT_IN_A_NAME.sub("-", urlsplit(endpoint).hostname or "localhost")
    if not host.replace(".", "").isdecimal():
        host = ".".join(reversed(host.split(".")))  # reverse DNS
    remote: dict[str, Json] = {"type": "streamable-http", "url": endpoint}
    return {
        "$schema": _SCHEMA,
        "name": f"{host}/{name}",
        "version": version,
        "title": _TITLE,
        "description": "Serves Agent Skills (directories with a SKILL.md) to every MCP host.",
        "remotes": [{**remote, "supportedProtocolVersions": [*versions]}],
    }


def catalog(
    site: str, index: str, skills: Iterable[CatalogSkill], *, has_card: bool
) -> dict[str, Json]:
    """Return the AI Catalog of a site, from its base URL without a trailing slash.

    `index` is the path of the index of Agent Skills Discovery. `has_card` tells whether the site
    also runs an MCP server.
    """
    host = _host(site)
    entries: list[Json] = []
    if has_card:
        entries.append(_entry(f"{host}:mcp:skills", CARD_MEDIA_TYPE, site + CARD, _TITLE))
    entries.append(_entry(f"{host}:skill:index", f"{_SKILLS_TYPE}+json", site + index, _TITLE))
    entries += [_skill_entry(site, host, skill) for skill in islice(skills, MAX_SKILLS)]
    return {"specVersion": "1.0", "host": {"displayName": host}, "entries": entries}


def _entry(identifier: str, kind: str, url: str, title: str) -> dict[str, Json]:
    return {"identifier": f"urn:air:{identifier}", "type": kind, "url": url, "displayName": title}


def _skill_entry(site: str, host: str, published: CatalogSkill) -> Json:
    skill, form = published.skill, published.media_type.rpartition("/")[2]
    if published.media_type == media.MARKDOWN:
        form = "md"
    title, url = identity.title(skill) or skill.name, site + published.path
    name = skill.name
    if not name.isascii():
        name = f"xn--{name.encode('punycode').decode()}"  # identifiers are ASCII only
    entry = _entry(f"{host}:skill:{name}", f"{_SKILLS_TYPE}+{form}", url, title)
    entry |= {"description": skill.description, "digest": published.digest}
    if len(published.queries) >= MIN_QUERIES:
        entry["representativeQueries"] = [*published.queries[:MAX_QUERIES]]
    version = identity.version(skill.frontmatter)
    if version is not None:
        entry["version"] = version
    return entry


def _host(url: str) -> str:
    """Return host and port, with each character that names may not have replaced by a hyphen."""
    return _NOT_IN_A_NAME.sub("-", urlsplit(url).netloc.rpartition("@")[2])
