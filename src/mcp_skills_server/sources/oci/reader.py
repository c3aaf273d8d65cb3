"""Read the artifacts that a manifest of a registry names, and the skills in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.format.archive import ArchiveRefusedError, UnpackLimits
from mcp_skills_server.sources.faults import ContentRefusedError, UnacceptableError
from mcp_skills_server.sources.oci import layers, manifests
from mcp_skills_server.sources.oci.client import RegistryClient
from mcp_skills_server.sources.oci.layers import Contents
from mcp_skills_server.sources.oci.manifests import Collection, ImageManifest
from mcp_skills_server.sources.oci.reference import OciReference
from mcp_skills_server.sources.settings import FetchSettings

_UNPACKERS: Final = 4
_OVERHEAD: Final = 4 << 20
"""What archives may have beyond their files."""


@dataclass(frozen=True, slots=True)
class WantedArtifact:
    """An artifact that is to be there.

    Attributes:
        place: in the index.
        digest: of its manifest.
        annotations: what the index says of it, or its manifest where there is no index.
        manifest: its manifest, where that has been read.
    """

    place: int
    digest: str
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    manifest: ImageManifest | Collection | None = None

    @property
    def name(self) -> str:
        """The name of its skill, or "" if the index does not tell."""
        return self.annotations.get(manifests.SKILL_NAME, "")

    @property
    def label(self) -> str:
        """The name for people before the contents are known."""
        return self.name or self.digest[:19]


class ArtifactReader:
    """Reads artifacts, and proves all of them.

    Args:
        client: for the repository.
        reference: what the operator named.
        settings: what it may cost.
        hidden: skills in dot folders of an image count, too.
    """

    def __init__(
        self, client: RegistryClient, reference: OciReference, settings: FetchSettings, *, hidden: bool
    ) -> None:
        self._client = client
        self._reference = reference
        self._most_entries = settings.limits.skills
        self._hidden = hidden
        limit = settings.limits.skill_bytes
        self._limits = UnpackLimits(bytes=limit, file=min(UnpackLimits().file, limit))
        self._unpackers = anyio.CapacityLimiter(_UNPACKERS)

    async def wanted(self, digest: str) -> list[WantedArtifact]:
        """Return the artifacts that this manifest names: itself, or those of a collection.

        Raises:
            ContentRefusedError: it is none that can be read.
            SourceError: it cannot be had.
        """
        found = await self._manifest(digest)
        if isinstance(found, ImageManifest) or found.platforms:
            annotations = found.annotations if isinstance(found, ImageManifest) else dict[str, str]()
            return [WantedArtifact(0, digest, annotations, found)]
        entries = {each.digest: each for each in found.chosen}
        if not entries:
            raise ContentRefusedError("its index is empty")
        return [WantedArtifact(place, each.digest, each.annotations) for place, each in enumerate(entries.values())]

    async def contents(self, wanted: WantedArtifact) -> Contents:
        """Download and verify the layers of an artifact, and return its skills.

        Raises:
            ContentRefusedError: nothing of it is taken.
            SourceError: they cannot be had.
        """
        artifact = await self._artifact(wanted)
        size = sum(layer.size for layer in artifact.layers)
        if size > layers.LIMITS.bytes + _OVERHEAD:
            raise ContentRefusedError(f"its layers have {size} bytes, at most {layers.LIMITS.bytes} are taken")
        raw = [(layer, await self._client.blob(layer)) for layer in artifact.layers]
        names = layers.candidate_names(wanted.annotations, artifact.annotations, self._reference.repository)
        unpack = partial(layers.read_layers, raw, names, self._limits, hidden=self._hidden)
        try:
            return await to_thread.run_sync(unpack, limiter=self._unpackers)
        except (ArchiveRefusedError, UnacceptableError) as error:
            raise ContentRefusedError(str(error)) from None

    async def _artifact(self, wanted: WantedArtifact) -> ImageManifest:
        """Return the manifest of an artifact; of an index of platforms, that of one of them."""
        found = wanted.manifest or await self._manifest(wanted.digest)
        if isinstance(found, Collection) and found.platforms:
            found = await self._manifest(found.chosen[0].digest)
        if isinstance(found, Collection):
            raise ContentRefusedError("it is a collection in a collection, which is not read")
        return found

    async def _manifest(self, digest: str) -> ImageManifest | Collection:
        _, raw = await self._client.manifest(digest)
        try:
            return manifests.decode_manifest(raw, self._most_entries)
        except UnacceptableError as error:
            raise ContentRefusedError(str(error)) from None
