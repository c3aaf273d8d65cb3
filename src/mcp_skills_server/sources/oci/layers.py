"""Read the skills in the layers of an artifact or an image. Pure.

A later layer covers an earlier one, whiteouts remove what lies below. A skill is a directory with a SKILL.md; where it
lies in the image does not matter. What belongs to no skill is left out, and a skill that brings what is never served is
refused whole.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mcp_skills_server.catalog.path_index import above
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import ArchiveRefusedError, Files, UnpackLimits
from mcp_skills_server.format.ignored import some_of
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources.grouping import group_by_skill, root_name
from mcp_skills_server.sources.oci.manifests import SKILL_NAME, TITLE, Descriptor
from mcp_skills_server.sources.reconcile import Bundle, check_names
from mcp_skills_server.sources.source import UnacceptableError

LIMITS: Final = UnpackLimits(files=20_000, bytes=256 << 20, file=64 << 20)
"""Of all layers of one artifact together; of each skill in it others hold."""
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_UNPACK: Final = "io.deis.oras.content.unpack"
_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PACKED: Final = ("+gzip", ".gzip", "+zip", "/zip", "/gzip", "/x-gzip", "tar.gz")


def read_layers(
    layers: Sequence[tuple[Descriptor, bytes]], names: Iterable[str], limits: UnpackLimits, *, hidden: bool
) -> Bundle:
    """Read the skills in these layers, the lowest of which comes first.

    Args:
        layers: what is said of each, and its bytes.
        names: what a skill at the root may be called besides its own name in SKILL.md; the first that can be is taken.
        limits: of one skill.
        hidden: skills in dot folders of people count, too.

    Raises:
        ArchiveRefusedError: a layer cannot be unpacked.
        UnacceptableError: a layer is of a kind that is not read, or there is no skill.
    """
    merged, warnings = _merge(layers)
    archive.check_paths(merged)
    skills: dict[str, Files] = {}
    refused: dict[str, str] = {}
    held, rest = group_by_skill(merged, hidden=hidden)
    if not held:
        raise UnacceptableError(f"it holds no skill: no directory of it has a {SKILL_MD}")
    for place, files in held.items():
        name = _basename(place) or _root_name(files, names)
        if name in skills or name in refused:
            refused.setdefault(name, "the artifact has two skills of this name")
            continue
        try:
            _check(name, files, limits)
        except (UnacceptableError, ArchiveRefusedError) as error:
            refused[name] = str(error)
        else:
            skills[name] = files
    if rest:
        warnings.append(f"left out what belongs to no skill: {some_of(rest)}")
    return Bundle(skills, refused, tuple(warnings))


def _merge(layers: Sequence[tuple[Descriptor, bytes]]) -> tuple[dict[str, tuple[bytes, bool]], list[str]]:
    """Merge the files of all layers, one upon the other; also return warnings."""
    merged: dict[str, tuple[bytes, bool]] = {}
    warnings: list[str] = []
    left = LIMITS.bytes
    for number, (descriptor, raw) in enumerate(layers, 1):
        title = descriptor.annotations.get(TITLE, "")
        if _is_packed(descriptor, raw):
            files = _unpacked(raw, UnpackLimits(LIMITS.files, left, LIMITS.file))
        elif title:
            archive.check_paths([title])
            files = {title: (raw, False)}
        elif raw.startswith(_ZSTD):
            raise UnacceptableError(f"layer {number} is compressed by zstd, which is not read; push it with gzip")
        else:
            warnings.append(f"left out layer {number}: {descriptor.media_type[:80]!r} is no archive and has no title")
            continue
        left -= sum(len(each) for each, _ in files.values())
        if left < 0:
            raise ArchiveRefusedError(f"its layers unpack to more than {LIMITS.bytes} bytes")
        _cover(merged, files)
    return merged, warnings


def _is_packed(descriptor: Descriptor, raw: bytes) -> bool:
    """Tell whether a layer is an archive of files rather than a file: a tool may push single files, each with its
    name.
    """
    if raw.startswith((_GZIP, _ZIP)):
        annotations, media_type = descriptor.annotations, descriptor.media_type.lower()
        is_file = TITLE in annotations and annotations.get(_UNPACK) != "true" and not media_type.endswith(_PACKED)
        return not is_file
    return _is_tar(raw)


def _is_tar(raw: bytes) -> bool:
    return raw[257:262] == b"ustar"


def _unpacked(raw: bytes, limits: UnpackLimits) -> Files:
    # A plain tar is read as a gzip stream of stored blocks, so that one reader with one set of rules sees all.
    return archive.unpack(gzip.compress(raw, 0) if _is_tar(raw) else raw, limits)


def _cover(merged: dict[str, tuple[bytes, bool]], files: Files) -> None:
    """Lay the files of a layer upon those below it."""
    plain = {path: each for path, each in files.items() if not _basename(path).startswith(_WHITEOUT)}
    hidden = {*plain}  # a file hides a directory of its name
    folders = {folder for path in plain for folder in above(path.rpartition("/")[0])}  # and the other way round
    for path in files.keys() - plain.keys():
        folder, slash, name = path.rpartition("/")
        hidden.add(folder if name == _OPAQUE else f"{folder}{slash}{name.removeprefix(_WHITEOUT)}")
    for path in [*merged]:
        if path in hidden or path in folders or any(folder in hidden for folder in above(path.rpartition("/")[0])):
            del merged[path]
    merged |= plain


def _basename(path: str) -> str:
    return path.rpartition("/")[2]


def _root_name(files: Files, names: Iterable[str]) -> str:
    """Return the name of a skill at the root that a directory can have."""
    name = root_name(files, names)
    if name is None:
        raise UnacceptableError(
            f"it holds a skill without a name that a directory can have; set 'name' in its {SKILL_MD}"
        )
    return name


def _check(name: str, files: Files, limits: UnpackLimits) -> None:
    """Prove that a skill may be written."""
    check_names([f"{name}/{path}" for path in files])
    archive.check_paths([f"{name}/{path}" for path in files])
    if len(files) > limits.files:
        raise UnacceptableError(f"it has {len(files)} files, at most {limits.files} are taken")
    size = sum(len(raw) for raw, _ in files.values())
    largest = max((len(raw) for raw, _ in files.values()), default=0)
    if size > limits.bytes or largest > limits.file:
        raise UnacceptableError(
            f"it has {size} bytes, and {largest} in one file; at most {limits.bytes} and {limits.file} are taken"
        )


def candidate_names(entry: Mapping[str, str], artifact: Mapping[str, str], repository: str) -> list[str]:
    """Return names for a skill at the root: by the annotations of entry and manifest, then by the repository."""
    said = (each.get(key, "") for each in (entry, artifact) for key in (SKILL_NAME, TITLE))
    return [each for each in said if each] + [_basename(repository)]
