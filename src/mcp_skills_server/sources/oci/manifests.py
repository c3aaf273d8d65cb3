"""Decode and encode the manifests and indexes of a registry. Pure.

Published skills have various media types, so the layers decide, not the manifest's type. One type
is written, that of the Agent Skills OCI artifacts specification (0.1.0), which most tools read.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mcp_skills_server.format.fields import items, mapping
from mcp_skills_server.model import SKILL_MD, Json
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.model.digests import is_digest
from mcp_skills_server.sources.source import UnacceptableError

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
_DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
_DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
ACCEPT: Final = ", ".join((MANIFEST, INDEX, _DOCKER_MANIFEST, _DOCKER_LIST))
SKILL: Final = "application/vnd.agentskills.skill.v1"
CONFIG: Final = "application/vnd.agentskills.skill.config.v1+json"
CONTENT: Final = "application/vnd.agentskills.skill.content.v1.tar+gzip"
COLLECTION: Final = "application/vnd.agentskills.collection.v1"
SKILL_NAME: Final = "io.agentskills.skill.name"
COLLECTION_NAME: Final = "io.agentskills.collection.name"
TITLE: Final = "org.opencontainers.image.title"
DESCRIPTION: Final = "org.opencontainers.image.description"
VERSION: Final = "org.opencontainers.image.version"
MAX_BYTES: Final = 4 << 20
"""Maximum size of a manifest or index, as the distribution API recommends."""
MAX_ARCHIVES: Final = 128
MAX_LAYERS: Final = 1_000
"""As many as a skill may have files, since some tools push each file as a layer."""
_BUNDLE: Final = "application/vnd.dev.sigstore.bundle"
_PREDICATE: Final = "dev.sigstore.bundle.predicateType"
_ATTESTATION: Final = "vnd.docker.reference.type"
_PREFERRED: Final = ("linux/amd64", "linux/arm64")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """OCI descriptor: a reference to a blob or manifest. `platform` is as "linux/amd64", or ""."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    platform: str = ""


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """An image manifest: layers of files, the lowest first."""

    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str]
    is_skill: bool = False  # its type says so, or a layer is a file SKILL.md


@dataclass(frozen=True, slots=True)
class Collection:
    """An index of skills, or of one artifact for several platforms, each with all skills."""

    entries: tuple[Descriptor, ...]
    is_one_artifact: bool  # then there are entries

    @property
    def chosen(self) -> Descriptor:
        """The manifest to read of one artifact for several platforms."""
        preferred = [
            entry for name in _PREFERRED for entry in self.entries if entry.platform == name
        ]
        return (*preferred, *self.entries)[0]


def decode_manifest(raw: bytes, most: int) -> ImageManifest | Collection:
    """Decode a manifest, or an index of at most `most` entries, or raise UnacceptableError."""
    try:
        data = load_json(raw)
    except ValueError:
        raise UnacceptableError("its manifest is not JSON") from None
    manifest = mapping(data)
    if isinstance(manifest.get("layers"), list):
        layers = items(manifest["layers"])
        if len(layers) > MAX_LAYERS:
            raise UnacceptableError(f"its manifest has {len(layers)} layers, at most {MAX_LAYERS}")
        described = tuple(map(_descriptor, layers))
        titles = [layer.annotations.get(TITLE, "").rpartition("/")[2] for layer in described]
        is_skill = manifest.get("artifactType") == SKILL or SKILL_MD in titles
        return ImageManifest(described, _texts(manifest.get("annotations")), is_skill)
    if isinstance(manifest.get("manifests"), list):
        entries = items(manifest["manifests"])
        if len(entries) > most:
            raise UnacceptableError(f"its index has {len(entries)} entries, at most {most}")
        return _collection(manifest, [_descriptor(entry) for entry in entries])
    raise UnacceptableError(
        "its manifest has neither layers nor manifests, as image specification 1.1 wants"
    )


def bundles_among(referrers: Iterable[Json], predicates: Container[str]) -> list[str]:
    """Return the digests of the referrers that may be sigstore bundles.

    Skip an entry of another type, or with a predicate of a type not among `predicates`.
    """
    digests: dict[str, None] = {}
    for entry in map(mapping, referrers):
        kind, digest = entry.get("artifactType"), entry.get("digest")
        predicate = _texts(entry.get("annotations")).get(_PREDICATE)
        is_bundle = kind is None or str(kind).startswith(_BUNDLE)
        if is_bundle and is_digest(digest) and (predicate is None or predicate in predicates):
            digests[digest] = None
    return [*digests]


def _collection(manifest: Mapping[str, Any], entries: Iterable[Descriptor]) -> Collection:
    """Decide whether an index lists skills or, as image builders write it, platforms.

    BuildKit adds attestations, which it marks by the platform unknown/unknown or an annotation.
    """
    known = [entry for entry in entries if not entry.platform.startswith("unknown")]
    kept = [entry for entry in known if _ATTESTATION not in entry.annotations]
    is_named = any(SKILL_NAME in entry.annotations for entry in kept)
    is_collection = is_named or manifest.get("artifactType") == COLLECTION
    has_platforms = bool(kept) and all(entry.platform for entry in kept)
    return Collection(tuple(kept), has_platforms and not is_collection)


def _descriptor(given: Json) -> Descriptor:
    fields = mapping(given)
    media_type, digest, size = fields.get("mediaType"), fields.get("digest"), fields.get("size")
    # true is an int to Python
    if not isinstance(media_type, str) or type(size) is not int or size < 0:
        raise UnacceptableError("its manifest has a descriptor without media type or size")
    if not is_digest(digest):
        raise UnacceptableError("its manifest has a digest that is not sha256 and 64 hex digits")
    if fields.get("urls"):
        raise UnacceptableError("a layer of it lies at other addresses (urls), which are not asked")
    platform = _texts(fields.get("platform"))
    spelled = f"{platform['os']}/{platform.get('architecture', '')}" if "os" in platform else ""
    return Descriptor(media_type, digest, size, _texts(fields.get("annotations")), spelled)


def skill_manifest(config: Descriptor, layer: Descriptor, annotations: Mapping[str, str]) -> bytes:
    """Encode the manifest of one skill, deterministically."""
    parts = {"config": _written(config), "layers": [_written(layer)]}
    return _encode(MANIFEST, SKILL, parts, annotations)


def collection_index(name: str, entries: Iterable[Descriptor]) -> bytes:
    """Encode the index of a collection."""
    parts = {"manifests": [{**_written(entry), "artifactType": SKILL} for entry in entries]}
    return _encode(INDEX, COLLECTION, parts, {COLLECTION_NAME: name})


def _encode(
    media_type: str, artifact_type: str, parts: Mapping[str, Any], annotations: Mapping[str, str]
) -> bytes:
    head = {"schemaVersion": 2, "mediaType": media_type, "artifactType": artifact_type}
    data = {**head, **parts, "annotations": dict(annotations)}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _written(descriptor: Descriptor) -> dict[str, Any]:
    out: dict[str, Any] = {"mediaType": descriptor.media_type, "digest": descriptor.digest}
    out["size"] = descriptor.size
    if descriptor.annotations:
        out["annotations"] = dict(descriptor.annotations)
    return out


def _texts(content: Json) -> dict[str, str]:
    return {key: value for key, value in mapping(content).items() if isinstance(value, str)}
