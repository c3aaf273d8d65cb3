"""Server Card (SEP-2127), AI Catalog 1.0 and ARD 0.91: how a directory finds this server and its
skills. Pure.

A card says nothing about skills, as the SEP demands; the catalog beside it has an entry for the
card, one for the index of Agent Skills Discovery, and one for each published skill. ARD has the
same entries, with queries to find them by.
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
"""The header by which other documents lead to the two."""
CARD: Final = "/mcp/server-card"
CARD_MEDIA_TYPE: Final = "application/mcp-server-card+json"
MOST_SKILLS: Final = 500
"""Skills that have an entry of their own; the index has all."""
LEAST_QUERIES: Final = 2
MOST_QUERIES: Final = 5
"""Queries of an entry, as the schema of ARD wants them."""
_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
_SKILLS_TYPE: Final = "application/agent-skills"
_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9.-]")
_TITLE: Final = "Agent Skills"


class CatalogSkill(NamedTuple):
    """A published skill: its download, and prompts for which a model should load it."""

    skill: Skill
    path: str
    digest: str
    media_type: str
    queries: Sequence[str] = ()


def server_card(endpoint: str, name: str, version: str, versions: Sequence[str]) -> dict[str, Json]:
    """Return the card of the server at an endpoint of streamable HTTP. `versions` are those of the
    protocol."""
    place = _NOT_IN_A_NAME.sub("-", urlsplit(endpoint).hostname or "localhost")
    if not place.replace(".", "").isdecimal():
        place = ".".join(reversed(place.split(".")))  # reverse DNS
    return {
        "$schema": _SCHEMA,
        "name": f"{place}/{name}",
        "version": version,
        "title": _TITLE,
        "description": "Serves Agent Skills (directories with a SKILL.md) to every MCP host.",
        "remotes": [
            {"type": "streamable-http", "url": endpoint, "supportedProtocolVersions": [*versions]}
        ],
    }


def catalog(
    site: str, index: str, skills: Iterable[CatalogSkill], *, has_card: bool
) -> dict[str, Json]:
    """Return the catalog of a site.

    Args:
        site: the URL below which everything is, without a slash at its end.
        index: the path of the index of Agent Skills Discovery.
        skills: the published ones.
        has_card: there is a server to speak to, too.
    """
    host = _host(site)
    entries: list[Json] = []
    if has_card:
        entries.append(_entry(f"{host}:mcp:skills", CARD_MEDIA_TYPE, site + CARD, _TITLE))
    entries.append(_entry(f"{host}:skill:index", f"{_SKILLS_TYPE}+json", site + index, _TITLE))
    entries += [_skill_entry(site, host, each) for each in islice(skills, MOST_SKILLS)]
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
        name = f"xn--{name.encode('punycode').decode()}"  # an identifier has letters of ASCII alone
    entry = _entry(f"{host}:skill:{name}", f"{_SKILLS_TYPE}+{form}", url, title)
    entry |= {"description": skill.description, "digest": published.digest}
    if len(published.queries) >= LEAST_QUERIES:
        entry["representativeQueries"] = [*published.queries[:MOST_QUERIES]]
    version = identity.version(skill.frontmatter)
    if version is not None:
        entry["version"] = version
    return entry


def _host(url: str) -> str:
    """Return the name of the host with its port, of characters that a name may have."""
    return _NOT_IN_A_NAME.sub("-", urlsplit(url).netloc.rpartition("@")[2])
