"""The publisher: skills and digests in, the index and the place of each artifact out.

A place carries the digest, so an artifact never changes and an index never disagrees with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcp_skills_server.dialects.wellknown.site import (
    ARCHIVE_KIND,
    DIRECTORY,
    SCHEMA,
    SKILL_MD_KIND,
    Kind,
    is_bad_0_1,
)
from mcp_skills_server.format import archive, media
from mcp_skills_server.format.excerpts import quoted
from mcp_skills_server.model import SKILL_MD, Json, Skill, Snapshot, Standing


@dataclass(frozen=True, slots=True)
class Choice:
    """Which skills an index has.

    Attributes:
        skills: those, by name.
        left_out: (skill path, reason) of the others that are valid.
    """

    skills: tuple[Skill, ...]
    left_out: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a skill is downloaded as.

    Attributes:
        kind: the entry's `type`.
        path: where it is served, below the publisher's base URL; it carries the digest.
        digest: `sha256:` and 64 hex digits of its raw bytes.
        media_type: its Content-Type.
    """

    kind: Kind
    path: str
    digest: str
    media_type: str


def choose(snapshot: Snapshot) -> Choice:
    """The skills of an index 0.2.0: every valid one whose name is its own.

    An index knows a skill by its name alone. Of skills that share one, none is published: to prefer one would let a
    new skill take over the name of an old one unseen. Copies of one skill are one: a nested skill that was fetched lies
    inside the enclosing one too.
    """
    skills: list[Skill] = []
    left_out: list[tuple[str, str]] = []
    for path in snapshot.paths(Standing.VALID):
        skill = snapshot.skills[path]
        others = [other for other in snapshot.named(skill.name, Standing.VALID) if other != path]
        if not all(_is_copy(skill, snapshot.skills[other]) for other in others):
            left_out.append((path, f"the name {skill.name} is also that of {', '.join(others[:5])}"))
        elif not others or path < min(others):
            skills.append(skill)
    return Choice(tuple(sorted(skills, key=lambda skill: skill.name)), tuple(left_out))


def _is_copy(skill: Skill, other: Skill) -> bool:
    """Whether two skills have the same files, as far as their digests are known."""
    if skill.files.keys() != other.files.keys():
        return False
    pairs = [(file, other.files[path]) for path, file in skill.files.items()]
    return all(a.digest is not None and (a.digest, a.executable) == (b.digest, b.executable) for a, b in pairs)


def choose_0_1(skills: Iterable[Skill]) -> Choice:
    """Those of these skills that an index 0.1.0 can hold: one bad path there voids the whole index."""
    kept: list[Skill] = []
    left_out: list[tuple[str, str]] = []
    for skill in skills:
        bad = next((path for path in skill.files if is_bad_0_1(path)), None)
        if bad is None:
            kept.append(skill)
        else:
            left_out.append((skill.path, f"discovery 0.1.0 does not allow the file name {quoted(bad)}"))
    return Choice(tuple(kept), tuple(left_out))


def kind(skill: Skill) -> Kind:
    """How a skill is distributed: a lone SKILL.md as it is, all else as an archive."""
    return SKILL_MD_KIND if set(skill.files) == {SKILL_MD} else ARCHIVE_KIND


def artifact(name: str, digest: str, suffix: str = "") -> Artifact:
    """The artifact of a skill of this name: an archive of this suffix, or SKILL.md itself where there is none."""
    place = f"{DIRECTORY}{name}/{digest.removeprefix('sha256:')}/"
    if not suffix:
        return Artifact(SKILL_MD_KIND, place + SKILL_MD, digest, media.MARKDOWN)
    return Artifact(ARCHIVE_KIND, f"{place}{name}{suffix}", digest, archive.MEDIA_TYPES[suffix])


def index(published: Iterable[tuple[Skill, Artifact]], base: str = "") -> dict[str, Json]:
    """The index 0.2.0 of these skills with their artifacts.

    `base` is what stands before the artifacts' paths: "" for path-absolute URLs, or an absolute URL; a relative URL
    would be read in two ways behind a redirect.
    """
    skills: list[Json] = [
        {
            "name": skill.name,
            "type": artifact.kind,
            "description": skill.description,
            "url": base.rstrip("/") + artifact.path,
            "digest": artifact.digest,
        }
        for skill, artifact in published
    ]
    return {"$schema": SCHEMA, "skills": skills}


def index_0_1(published: Iterable[tuple[Skill, str]]) -> dict[str, Json]:
    """The index 0.1.0 of these skills, each with a digest of all of it.

    `version` is none of that version's fields; a client that caches looks there for news.
    """
    skills: list[Json] = []
    for skill, digest in published:
        files: list[Json] = [SKILL_MD, *(path for path in skill.files if path != SKILL_MD)]
        skills.append({"name": skill.name, "description": skill.description, "files": files, "version": digest})
    return {"skills": skills}


def encode(index: Mapping[str, Json]) -> bytes:
    """An index as the bytes of its file: live and static publishers send the same."""
    return _encoded(index).encode() + b"\n"


def _encoded(value: Mapping[str, Json]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
