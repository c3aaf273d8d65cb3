"""JSON schemas of foreign formats, written from their specifications, to validate the files of this project.

They are no copies: each covers the fields that this project writes, and rejects every other field. The dates are those
of the specifications.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator

Schema = Mapping[str, Any]


def text(pattern: str = "", **more: int) -> Schema:
    """Return the schema of a string that contains a match of the pattern."""
    return {"type": "string", "pattern": pattern, **more}


_TEXT: Final = text(minLength=1)
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_URL: Final = text("^https?://[^ ]+$")


def closed(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def faults(schema: Schema, document: object) -> list[str]:
    found = Draft202012Validator(schema).iter_errors(document)  # pyright: ignore[reportUnknownMemberType]
    return [f"{'/'.join(map(str, each.absolute_path))}: {each.message}" for each in found]


_PLUGIN_NAME: Final = text(r"^(?!.*(--|\.\.))[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", maxLength=64)
AGENT_PLUGIN: Final = closed(
    {"$schema": {"const": "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"}, "name": _PLUGIN_NAME},
    {
        **dict.fromkeys(("version", "description", "homepage", "repository", "license"), _TEXT),
        "author": closed({}, dict.fromkeys(("name", "email", "url"), _TEXT)),
        "keywords": _TEXTS,
        "extensions": {"type": "object", "additionalProperties": {"type": "object"}},
    },
)
"""`plugin.json` of Agent Plugins 1.0.0 (2026-08-06)."""
AGENT_PLUGIN_MCP: Final = closed(
    {
        "$schema": {"const": "https://agent-plugins.org/schemas/1.0.0/mcp.schema.json"},
        "mcpServers": {
            "type": "object",
            "additionalProperties": closed(
                {"type": {"const": "stdio"}, "command": text(r"^(\./)?[^\s/]+$")},
                {"args": _TEXTS, "cwd": text(r"^(\./|\$\{PLUGIN_(ROOT|DATA)\}(/|$))")},
            ),
        },
    }
)
"""`mcp.json` of Agent Plugins 1.0.0 with a server over stdio."""

_NAME: Final = text("^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", minLength=3, maxLength=200)
_SHORT: Final = text(minLength=1, maxLength=100)
_VERSION: Final = text(r"^[^\^~<>=*x ]+$", minLength=1, maxLength=255)
_IDENTITY: Final[Mapping[str, Any]] = {"name": _NAME, "version": _VERSION, "description": _SHORT}
_INPUT: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("description", "value", "default", "placeholder"), _TEXT),
    "format": {"enum": ["string", "number", "boolean", "filepath"]},
    **{key: {"type": "boolean"} for key in ("isRequired", "isSecret", "isRepeated")},
    "choices": _TEXTS,
}
_ARGUMENT: Final[Schema] = {
    "oneOf": [
        closed({"type": {"const": "positional"}}, {**_INPUT, "valueHint": _TEXT})
        | {"anyOf": [{"required": ["value"]}, {"required": ["valueHint"]}]},
        closed({"type": {"const": "named"}, "name": _TEXT}, _INPUT),
    ]
}
_PACKAGE: Final = closed(
    {
        "registryType": {"enum": ["pypi", "oci", "npm", "nuget", "mcpb"]},
        "identifier": _TEXT,
        "transport": closed({"type": {"const": "stdio"}}),
    },
    {
        "version": {**_VERSION, "not": {"const": "latest"}},
        "runtimeHint": {"enum": ["uvx", "docker", "npx", "dnx"]},
        "fileSha256": text("^[a-f0-9]{64}$"),
        **{key: {"type": "array", "items": _ARGUMENT} for key in ("runtimeArguments", "packageArguments")},
    },
)
SERVER_JSON: Final = closed(
    {"$schema": {"const": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"}, **_IDENTITY},
    {
        "title": _SHORT,
        "websiteUrl": _URL,
        "repository": closed({"url": _URL, "source": _TEXT}, {"subfolder": _TEXT, "id": _TEXT}),
        "packages": {"type": "array", "items": _PACKAGE},
    },
)
"""`server.json` of the MCP registry (schema 2025-12-11)."""

_ADDRESS: Final = text(r"^(https?://[^\s]+|\{[a-zA-Z_][a-zA-Z0-9_]*\}[^\s]*)$")
_REMOTE: Final = closed(
    {"type": {"enum": ["streamable-http", "sse"]}, "url": _ADDRESS}, {"supportedProtocolVersions": _TEXTS}
)
SERVER_CARD: Final = closed(
    {"$schema": {"const": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"}, **_IDENTITY},
    {"title": _SHORT, "websiteUrl": _URL, "remotes": {"type": "array", "items": _REMOTE}},
)
"""A Server Card of SEP-2127, version 1 (2026-07-24). It has no field for tools, prompts or skills."""

_DIGEST: Final = text("^sha256:[0-9a-f]{64}$")
_DESCRIBED: Final = {"description": _TEXT, "tags": _TEXTS, "version": _TEXT, "digest": _DIGEST}
_IDENTIFIED: Final = {
    "identifier": text("^urn:air:[a-zA-Z0-9.-]+(:[a-zA-Z0-9._-]+)+$"), "url": _URL,
    "type": text("^application/(mcp-server-card|agent-skills)[+](json|md|zip|gzip)$"),
}  # fmt: skip
_ATTESTATION: Final = closed(
    {"type": _TEXT, "uri": _URL}, {"digest": _DIGEST, "size": {"type": "integer", "minimum": 0}, "description": _TEXT}
)
_TRUST_MANIFEST: Final = closed(
    {"contributor": _URL, "attestations": {"type": "array", "minItems": 1, "items": _ATTESTATION}}
)
_TRUST_MANIFESTS: Final[Schema] = {"type": "array", "minItems": 1, "items": _TRUST_MANIFEST}
_ENTRY: Final = closed(_IDENTIFIED, {**_DESCRIBED, "displayName": _TEXT, "trustManifests": _TRUST_MANIFESTS})
_HOST: Final = closed({"displayName": _TEXT}, {"identifier": _TEXT, "documentationUrl": _URL, "logoUrl": _URL})
_ENTRIES: Final[Schema] = {"type": "array", "items": _ENTRY}
AI_CATALOG: Final = closed({"specVersion": {"const": "0.9"}, "entries": _ENTRIES}, {"host": _HOST})
"""AI Catalog 0.9 with entries by address."""
_QUERIES: Final[Schema] = {**_TEXTS, "minItems": 2, "maxItems": 5}
_ARD_ENTRY: Final = closed({**_IDENTIFIED, "displayName": _TEXT}, {**_DESCRIBED, "representativeQueries": _QUERIES})
ARD: Final = closed(
    {"specVersion": {"const": "1.0"}, "entries": {"type": "array", "minItems": 1, "items": _ARD_ENTRY}}, {"host": _HOST}
)
"""A manifest of Agentic Resource Discovery 0.91."""

DOCKER_CATALOGUE: Final = closed({
    "name": text("^[a-z0-9-]+$"), "image": _TEXT, "type": {"const": "server"},
    "meta": closed({"category": _TEXT, "tags": _TEXTS}),
    "about": closed({"title": _TEXT, "description": _TEXT}, {"icon": _URL}),
    "source": closed({"project": _URL, "commit": text("^[0-9a-f]{40}$")}, {"branch": _TEXT}),
    "run": closed({}, {"command": _TEXTS, "volumes": _TEXTS, "disableNetwork": {"type": "boolean"}}),
    "config": closed({
        "description": _TEXT,
        "parameters": closed({"type": {"const": "object"}, "properties": {"type": "object"}, "required": _TEXTS}),
    }),
})  # fmt: skip
"""`servers/NAME/server.yaml` of Docker's MCP registry, of a server that runs in a container."""
