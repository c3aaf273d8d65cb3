"""Push skills to a registry: one artifact, or a collection in one repository.

Packing is deterministic, so blobs that the registry has already are not sent again. The tag moves
last, so its readers see a complete state, old or new.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio
from anyio import to_thread

from mcp_skills_server.errors import innermost
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.sources.oci import manifests
from mcp_skills_server.sources.oci.client import RegistryClient
from mcp_skills_server.sources.oci.manifests import Descriptor
from mcp_skills_server.sources.oci.reference import OciReference
from mcp_skills_server.sources.source import AbsentError

_LICENSES: Final = "org.opencontainers.image.licenses"
_WORKERS: Final = 6
_MAX_ANNOTATION: Final = 1024


@dataclass(frozen=True, slots=True)
class Package:
    """A skill to push. `read` returns its files, and blocks."""

    name: str
    frontmatter: Mapping[str, Any]
    version: str | None
    read: Callable[[], Files]


@dataclass(frozen=True, slots=True)
class Pushed:
    """The digest that the tag names now, the skills with new content, and the bytes sent."""

    digest: str
    sent: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class _BuiltArtifact:
    """A skill packed as an artifact: its blobs, its manifest, and its entry for an index."""

    blobs: tuple[tuple[str, bytes], ...]
    manifest: bytes
    entry: Descriptor


async def push_skill(client: RegistryClient, reference: OciReference, package: Package) -> Pushed:
    """Push one skill under the reference's tag; may raise SourceError or ArchiveRefusedError."""
    made = await to_thread.run_sync(_make, package)
    sent = await _send(client, made, reference.wanted)
    return Pushed(made.entry.digest, (package.name,) if sent else (), sent)


async def push_collection(
    client: RegistryClient, reference: OciReference, packages: Sequence[Package]
) -> Pushed:
    """Push skills into the repository, then their index under the reference's tag.

    SourceError or ArchiveRefusedError leaves the tag unchanged.
    """
    current = await _current(client, reference.wanted)
    entries: dict[int, Descriptor] = {}
    sizes: dict[str, int] = {}
    queue = iter(enumerate(packages))

    async def work() -> None:
        for number, package in queue:
            made = await to_thread.run_sync(_make, package)
            # the index may name it although the registry has deleted it
            if not await client.has("manifests", made.entry.digest):
                sizes[package.name] = await _send(client, made, made.entry.digest)
            entries[number] = made.entry

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(_WORKERS, len(packages))):
                group.start_soon(work)
    except Exception as error:  # the task group wraps it
        raise innermost(error) from None
    name = reference.repository.rpartition("/")[2]
    raw = manifests.collection_index(name, [entries[number] for number in range(len(packages))])
    digest = digest_of(raw)
    sent = sum(sizes.values())
    if sent or digest != current:
        await client.put_manifest(reference.wanted, manifests.INDEX, raw)
        sent += len(raw)
    return Pushed(digest, tuple(sorted(name for name, size in sizes.items() if size)), sent)


async def _current(client: RegistryClient, wanted: str) -> str:
    """Return the digest of the manifest that a tag or digest names now; "" for none."""
    try:
        return (await client.manifest(wanted))[0]
    except AbsentError:
        return ""


async def _send(client: RegistryClient, made: _BuiltArtifact, wanted: str) -> int:
    """Push an artifact under this tag or digest; return the bytes that were sent."""
    sent = 0
    for digest, raw in made.blobs:
        if not await client.has("blobs", digest):
            await client.upload(digest, raw)
            sent += len(raw)
    if sent or made.entry.digest != await _current(client, wanted):
        await client.put_manifest(wanted, manifests.MANIFEST, made.manifest)
        sent += len(made.manifest)
    return sent


def _make(package: Package) -> _BuiltArtifact:
    files = {f"{package.name}/{path}": raw for path, raw in package.read().items()}
    layer, config = archive.pack_tar(files), _config(package)
    described = package.frontmatter.get("description")
    labels = {
        manifests.SKILL_NAME: package.name,
        manifests.TITLE: package.name,
        manifests.DESCRIPTION: " ".join(str(described or "").split())[:_MAX_ANNOTATION],
        manifests.VERSION: package.version or "",
        _LICENSES: str(package.frontmatter.get("license") or "")[:_MAX_ANNOTATION],
    }
    annotations = {key: value for key, value in labels.items() if value}
    title = {manifests.TITLE: f"{package.name}.tar.gz"}  # the file that `oras pull` writes
    about = Descriptor(manifests.CONFIG, digest_of(config), len(config))
    content = Descriptor(manifests.CONTENT, digest_of(layer), len(layer), title)
    manifest = manifests.skill_manifest(about, content, annotations)
    entry = Descriptor(manifests.MANIFEST, digest_of(manifest), len(manifest), annotations)
    return _BuiltArtifact(((about.digest, config), (content.digest, layer)), manifest, entry)


def _config(package: Package) -> bytes:
    """Encode the skill's metadata as JSON, which a registry can show without unpacking."""
    known = package.frontmatter
    tools = known.get("allowed-tools")
    config = {
        "schemaVersion": "1",
        "name": package.name,
        "version": package.version,
        "description": known.get("description"),
        "license": known.get("license"),
        "compatibility": known.get("compatibility"),
        "allowedTools": tools.split() if isinstance(tools, str) else tools,
        "metadata": known.get("metadata"),
    }
    kept = {key: value for key, value in config.items() if value}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
