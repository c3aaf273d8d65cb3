"""OCI source: copies an artifact of a registry into a folder of the cache, skill by skill.

The folder lasts as long as the reference, for the reason that `site` gives. An artifact that the
folder has in full is not downloaded again. While nothing is new, a poll costs one HEAD.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server import __version__
from mcp_skills_server.catalog.path_map import above
from mcp_skills_server.errors import UsageError, innermost, quoted
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, UnpackLimits
from mcp_skills_server.format.ignored import summarize
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.model.digests import digest_of, is_digest
from mcp_skills_server.sources.cache import CacheFolder
from mcp_skills_server.sources.grouping import group_by_skill, root_name
from mcp_skills_server.sources.oci.access import Access
from mcp_skills_server.sources.oci.client import RegistryClient
from mcp_skills_server.sources.oci.manifests import (
    MAX_ARCHIVES,
    SKILL_NAME,
    TITLE,
    Collection,
    Descriptor,
    ImageManifest,
    bundles_among,
    decode_manifest,
)
from mcp_skills_server.sources.oci.reference import TAGS, is_skill_tag, parse_reference
from mcp_skills_server.sources.reconcile import fetching
from mcp_skills_server.sources.records import IndexRecord
from mcp_skills_server.sources.source import (
    PINNED_S,
    AbsentError,
    ContentRefusedError,
    Plan,
    Revision,
    Source,
    SourceSettings,
    UnacceptableError,
    UnidentifiedError,
    Unit,
    UnitContents,
    UnreachableError,
    check_skill,
)

_UNPACKERS: Final = 4
"""Artifacts that are unpacked at a time, since each may take `LIMITS.bytes` of memory."""
_OVERHEAD: Final = 4 << 20
"""Maximum bytes of archives beyond their files."""
LIMITS: Final = UnpackLimits(files=20_000, bytes=256 << 20, file=64 << 20)
"""Limits on all layers of one artifact together; each skill in it has its own limits."""
_MAX_TAGS: Final = 1_000
_MAX_BUNDLES: Final = 100
_MAX_BUNDLE_BYTES: Final = 1 << 20
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_UNPACK: Final = "io.deis.oras.content.unpack"
_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PACKED: Final = ("+gzip", ".gzip", "+zip", "/zip", "/gzip", "/x-gzip", "tar.gz")


@dataclass(frozen=True, slots=True)
class _Artifact:
    """An artifact to fetch; `annotations` of its index entry, or without an index its own."""

    digest: str
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    manifest: ImageManifest | Collection | None = None
    is_tagged: bool = False  # by a tag, which is the name of the skill


class Oci(Source):
    """An artifact of a registry, by digest or tag."""

    def __init__(self, given: str, settings: SourceSettings) -> None:
        named = parse_reference(given, http=settings.fetch.trust.http)
        # of all tags the newest state is fetched, and the lock judges each skill
        pin = None if (settings.pin or "").startswith(TAGS) else settings.pin
        if pin is not None and not is_digest(pin):
            raise UsageError(f"{named}: {quoted(pin)} is no digest; lock it again")
        self._reference = named if pin is None else replace(named, digest=pin)
        self._access = Access(self._reference)
        # Part of the fingerprint: these decide, beside the digest, which files are accepted.
        self._asked = f"{__version__} {settings.fetch.limits.skill_bytes} {settings.hidden}"
        asked = [str(settings.hidden)]
        if settings.bundles is not None:  # a copy that another key admitted is never served
            asked.append(settings.bundles.key)
        folder = settings.output or CacheFolder(settings.cache, "oci", str(self._reference), *asked)
        super().__init__(str(named), folder, settings)

    async def resolve(self, *, anew: bool = False) -> Revision:  # noqa: ARG002, it is always asked
        """Resolve the reference to a manifest digest, by one HEAD unless it has a digest."""
        if self._reference.digest is not None:
            return Revision(self._reference.digest, PINNED_S)
        async with self._client() as client:
            try:
                digest = await _digest_at(client, self._reference.wanted)
            except AbsentError:
                if self._reference.tag is not None:
                    raise
                tags = await self._skill_tags(client)
                if not tags:
                    raise
                digest = f"{TAGS}{digest_of(json.dumps(tags).encode())}"
                return Revision(digest, self.check_s, tags)
        return Revision(digest, self.check_s)

    async def _skill_tags(self, client: RegistryClient) -> dict[str, str]:
        """Return the digests that tags name now, by the tag; of two with one digest the last."""
        names = [tag for tag in await client.tags() if is_skill_tag(tag)]
        if len(names) > _MAX_TAGS:
            raise UnacceptableError(f"it has {len(names)} tags, at most {_MAX_TAGS}; name one")
        digests: dict[str, str] = {}
        queue = iter(names)

        async def work() -> None:
            for name in queue:
                digests[name] = await _digest_at(client, name)

        try:
            async with anyio.create_task_group() as workers:
                for _ in range(self.settings.fetch.connections):
                    workers.start_soon(work)
        except Exception as error:  # the task group wraps it
            raise innermost(error) from None
        tags = {digest: name for name, digest in sorted(digests.items())}
        return {name: digest for digest, name in tags.items()}

    @asynccontextmanager
    async def plan(self, revision: Revision, known: IndexRecord) -> AsyncGenerator[Plan]:  # noqa: ARG002
        """Read the manifest, or the index and its manifests, into a plan."""
        unpackers = anyio.CapacityLimiter(_UNPACKERS)
        async with self._client() as client:
            units: list[Unit] = []
            for artifact in await self._artifacts(client, revision):
                name = artifact.annotations.get(SKILL_NAME, "")
                fingerprint = f"{artifact.digest} {self._asked}"
                label = name or artifact.digest[:19]
                is_named = bool(name) and not artifact.is_tagged
                units.append(Unit(fingerprint, label, is_named=is_named, item=artifact))

            async def fetch(unit: Unit) -> UnitContents:
                read = await self._download(client, unit.item)
                try:
                    planned = await to_thread.run_sync(read, limiter=unpackers)
                except (ArchiveRefusedError, UnacceptableError) as error:
                    raise ContentRefusedError(str(error)) from None
                warnings = tuple(f"{unit.label}: {line}" for line in planned.warnings)
                return replace(planned, warnings=warnings)

            index = IndexRecord(self.key, self.origin, revision=revision.digest)
            # each tag may be signed later, even if none is now
            may_heal = revision.content is not None and self.settings.bundles is not None
            yield Plan(units, fetching(fetch), index, is_one=not may_heal, may_heal=may_heal)

    async def _artifacts(self, client: RegistryClient, revision: Revision) -> list[_Artifact]:
        """Return the artifacts of tags or of a manifest: itself, or the entries of a collection."""
        if revision.content is not None:
            return [
                _Artifact(digest, {SKILL_NAME: tag}, is_tagged=True)
                for tag, digest in revision.content.items()
            ]
        digest = revision.digest
        await self._check_signer(client, digest)
        manifest = await self._manifest(client, digest)
        if isinstance(manifest, ImageManifest):
            return [_Artifact(digest, manifest.annotations, manifest)]
        if manifest.is_one_artifact:
            return [_Artifact(digest, manifest=manifest)]
        entries = {entry.digest: entry for entry in manifest.entries}
        if not entries:
            raise ContentRefusedError("its index is empty")
        return [_Artifact(entry.digest, entry.annotations) for entry in entries.values()]

    async def _check_signer(self, client: RegistryClient, digest: str) -> None:
        """Check that a bundle of the required signer refers to a manifest.

        Raises:
            UnidentifiedError: none does.
        """
        verifier = self.settings.bundles
        if verifier is None:
            return
        with _as_unreachable():
            listed = bundles_among(await client.referrers(digest), verifier.predicates)
        reason = "the registry has no bundle of sigstore for it"
        for referrer in listed[:_MAX_BUNDLES]:
            try:
                manifest = decode_manifest((await client.manifest(referrer))[1], 1)
                if not isinstance(manifest, ImageManifest) or len(manifest.layers) != 1:
                    raise UnacceptableError("it has not the form of a bundle")
                if manifest.layers[0].size > _MAX_BUNDLE_BYTES:
                    raise UnacceptableError(f"it has more than {_MAX_BUNDLE_BYTES} bytes")
                raw = await client.blob(manifest.layers[0])
                fault = await to_thread.run_sync(verifier.fault, digest, raw)
            except UnacceptableError as error:
                fault = str(error)
            if not fault:
                return
            reason = f"none of {len(listed)} bundles in the registry will do; the last: {fault}"
        fault = f"{digest[:19]} is not signed by the required identity: {reason}"
        raise UnidentifiedError(fault, is_signed=bool(listed))

    async def _download(
        self, client: RegistryClient, artifact: _Artifact
    ) -> Callable[[], UnitContents]:
        """Download and verify an artifact's layers; return a blocking function that reads them."""
        manifest = artifact.manifest or await self._manifest(client, artifact.digest)
        if isinstance(manifest, Collection) and manifest.is_one_artifact:
            manifest = await self._manifest(client, manifest.chosen.digest)
        if isinstance(manifest, Collection):
            raise ContentRefusedError("it is a collection in a collection, which is not read")
        if artifact.is_tagged:
            if not manifest.is_skill:
                raise ContentRefusedError("this tag names no artifact of a skill")
            await self._check_signer(client, artifact.digest)
        size = sum(layer.size for layer in manifest.layers)
        if size > LIMITS.bytes + _OVERHEAD:
            raise ContentRefusedError(f"its layers have {size} bytes, at most {LIMITS.bytes}")
        with _as_unreachable():
            raw = [(layer, await client.blob(layer)) for layer in manifest.layers]
        said = artifact.annotations, manifest.annotations
        names = [annotations.get(key, "") for annotations in said for key in (SKILL_NAME, TITLE)]
        names.append(_basename(self._reference.repository))
        limits = self.settings.fetch.limits.skill
        return partial(read_layers, raw, names, limits, hidden=self.settings.hidden)

    async def _manifest(self, client: RegistryClient, digest: str) -> ImageManifest | Collection:
        with _as_unreachable():
            _, raw = await client.manifest(digest)
        try:
            return decode_manifest(raw, self.settings.fetch.limits.skills)
        except UnacceptableError as error:
            raise ContentRefusedError(str(error)) from None

    def _client(self) -> RegistryClient:
        return RegistryClient(self.settings.fetch, self._reference, self._access)


async def _digest_at(client: RegistryClient, tag: str) -> str:
    """Return the digest that a tag names now; some registries send it with a GET only."""
    return await client.digest(tag) or (await client.manifest(tag))[0]


@contextmanager
def _as_unreachable() -> Generator[None]:
    """Convert UnacceptableError to UnreachableError: new permissions or settings may solve it."""
    try:
        yield
    except UnacceptableError as error:
        raise UnreachableError(str(error)) from None


# Layers


def read_layers(
    layers: Sequence[tuple[Descriptor, bytes]],
    names: Iterable[str],
    limits: UnpackLimits,
    *,
    hidden: bool,
) -> UnitContents:
    """Read the skills in these layers, given with their descriptors, the lowest first.

    A later layer covers an earlier one, and whiteouts remove what lies below. A skill is any
    directory with a SKILL.md. Files outside of skills are ignored.

    Args:
        names: the first usable one is for a skill at the root whose SKILL.md has none.
        hidden: also read skills in dot folders.

    Raises:
        ArchiveRefusedError: a layer cannot be unpacked.
        UnacceptableError: a layer has an unsupported format, or there is no skill.
    """
    merged, warnings = _merge(layers)
    archive.check_paths(merged)
    skills: dict[str, Files] = {}
    refused: dict[str, str] = {}
    held, rest = group_by_skill(merged, hidden=hidden)
    if not held:
        raise UnacceptableError(f"it holds no skill: no directory of it has a {SKILL_MD}")
    for folder, files in held.items():
        name = _basename(folder) or root_name(files, names)
        if name is None:
            reason = "it holds a skill without a name that a directory can have"
            raise UnacceptableError(f"{reason}; set 'name' in its {SKILL_MD}")
        if name in skills or name in refused:
            refused.setdefault(name, "the artifact has two skills of this name")
            continue
        try:
            check_skill(name, files, limits)
        except (UnacceptableError, ArchiveRefusedError) as error:
            refused[name] = str(error)
        else:
            skills[name] = files
    if rest:
        warnings.append(f"not served, since they belong to no skill: {summarize(rest)}")
    return UnitContents(skills, refused, tuple(warnings))


def _merge(
    layers: Sequence[tuple[Descriptor, bytes]],
) -> tuple[dict[str, tuple[bytes, bool]], list[str]]:
    """Merge the files of all layers, later ones on top; also return warnings."""
    merged: dict[str, tuple[bytes, bool]] = {}
    loose: dict[str, tuple[bytes, bool]] = {}
    warnings: list[str] = []
    left, archives = LIMITS.bytes, 0
    for number, (descriptor, raw) in enumerate(layers, 1):
        title = descriptor.annotations.get(TITLE, "")
        if _is_packed(descriptor, raw):
            archives += 1
            if archives > MAX_ARCHIVES:
                raise UnacceptableError(f"more than {MAX_ARCHIVES} of its layers are archives")
            files = archive.unpack(raw, UnpackLimits(LIMITS.files, left, LIMITS.file))
            _cover(merged, loose)
            _cover(merged, files)
            loose = {}
        elif title:
            files = {title: (raw, False)}
            loose |= files  # files in a row are one layer: each would look at all before it
        elif raw.startswith(_ZSTD):
            raise UnacceptableError(f"layer {number} is compressed by zstd; push it with gzip")
        else:
            kind = descriptor.media_type[:80]
            warnings.append(f"layer {number} is ignored: {kind!r} is no archive and has no title")
            continue
        left -= sum(len(content) for content, _ in files.values())
        if left < 0:
            raise ArchiveRefusedError(f"its layers unpack to more than {LIMITS.bytes} bytes")
    _cover(merged, loose)
    return merged, warnings


def _is_packed(descriptor: Descriptor, raw: bytes) -> bool:
    """Tell whether a layer is an archive; some tools push single files with titles."""
    if raw.startswith((_GZIP, _ZIP)):
        endings = _PACKED
    elif archive.is_tar(raw):
        endings = (".tar", "+tar", "/x-tar")
    else:
        return False
    annotations = descriptor.annotations
    is_file = TITLE in annotations and annotations.get(_UNPACK) != "true"
    return not is_file or descriptor.media_type.lower().endswith(endings)


def _cover(merged: dict[str, tuple[bytes, bool]], files: Files) -> None:
    """Apply a layer on top of the merged ones, with its whiteouts."""
    plain = {path: raw for path, raw in files.items() if not _basename(path).startswith(_WHITEOUT)}
    hidden = {*plain}  # a file replaces a directory of its name
    # and a directory a file
    folders = {folder for path in plain for folder in above(path.rpartition("/")[0])}
    for path in files.keys() - plain.keys():
        folder, slash, name = path.rpartition("/")
        hidden.add(folder if name == _OPAQUE else f"{folder}{slash}{name.removeprefix(_WHITEOUT)}")
    for path in [*merged]:
        if (
            path in hidden
            or path in folders
            or any(folder in hidden for folder in above(path.rpartition("/")[0]))
        ):
            del merged[path]
    merged |= plain


def _basename(path: str) -> str:
    return path.rpartition("/")[2]
