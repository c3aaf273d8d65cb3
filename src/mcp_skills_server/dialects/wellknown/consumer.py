"""The consumer: the bytes of an index in, what may be fetched and why the rest may not out. Nothing here fetches.

One bad entry costs itself, never its neighbours.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote, urljoin

from mcp_skills_server.dialects.wellknown.site import (
    ARCHIVE_KIND,
    SCHEMA,
    SKILL_MD_KIND,
    Kind,
    Version,
    absolute,
    is_bad_0_1,
)
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format import archive, frontmatter
from mcp_skills_server.format.archive import ArchiveRefusedError, Files
from mcp_skills_server.format.excerpts import quoted
from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.model import SKILL_MD, Json, printable
from mcp_skills_server.validation import rules

_ABSENT: Final = object()
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class IndexRefusedError(SkillsServerError, ValueError):
    """An index of which nothing can be used. The message is one line for people."""


class ProofFailedError(SkillsServerError, ValueError):
    """Bytes that are not those of the index: corrupt, stale or tampered with, and never to be used."""


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """What an index may measure before nothing of it is read.

    Attributes:
        bytes: bytes of the index.
        skills: entries, good and bad.
        files: files of one entry of 0.1.0.
    """

    bytes: int = 16 << 20
    skills: int = 20_000
    files: int = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """A skill that an index offers.

    Attributes:
        name: by the rules of Agent Skills.
        description: as the index has it.
        kind: "skill-md" or "archive"; None in 0.1.0, where the files are fetched one by one.
        url: absolute URL of the artifact; "" in 0.1.0.
        digest: of the artifact; "" in 0.1.0, where nothing can be proved.
        files: absolute URLs by path in the skill, in 0.1.0 only.
    """

    name: str
    description: str
    kind: Kind | None
    url: str
    digest: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Unusable:
    """An entry that cannot be used.

    Attributes:
        position: its place in the index, from 1.
        name: its name made fit for a terminal, or "".
        reason: why, in one line.
        broken: False for a `type` of a version to come, which is no fault of the publisher.
    """

    position: int
    name: str
    reason: str
    broken: bool = True

    def __str__(self) -> str:
        """All of it as one line."""
        return f"{self.name or f'entry {self.position}'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Index:
    """What an index offers.

    Attributes:
        version: of the format; None for one that is not known, of which nothing is read.
        entries: what can be used, in the index's order, no name twice.
        unusable: what cannot.
        warnings: what the user should hear about the index, one line each.
    """

    version: Version | None
    entries: tuple[Entry, ...]
    unusable: tuple[Unusable, ...] = ()
    warnings: tuple[str, ...] = ()


def decode(raw: bytes, url: str, limits: IndexLimits | None = None) -> Index:
    """What an index offers, and why the rest of it cannot be used.

    `url` is what the index's own URLs are relative to: the address that answered, after redirects (RFC 3986 5.1.3).
    Fields that are not known are passed over. Of entries that share a name the first counts.

    Raises:
        IndexRefusedError: it is no index at all, or over a limit.
    """
    limits = limits or IndexLimits()
    document = _object(raw, limits)
    schema = document.get("$schema", _ABSENT)
    if schema not in (_ABSENT, SCHEMA):
        shown = quoted(schema) if isinstance(schema, str) else "no text"
        message = f"the index is of a version that is not known ($schema is {shown}), so nothing of it is used"
        return Index(None, (), (), (message,))
    if not isinstance(document.get("skills"), list):
        raise IndexRefusedError("the index has no list 'skills'")
    listed: list[Any] = document["skills"]
    if len(listed) > limits.skills:
        raise IndexRefusedError(f"the index has {len(listed)} entries, at most {limits.skills} are read")
    if schema is _ABSENT:
        message = "the index has no $schema and is read as version 0.1.0, in which nothing proves the files"
        entries, unusable = _entries(listed, lambda entry: _entry_0_1(entry, url, limits))
        return Index("0.1.0", entries, unusable, (message,))
    entries, unusable = _entries(listed, lambda entry: _entry(entry, url))
    return Index("0.2.0", entries, unusable)


def prove(raw: bytes, digest: str) -> None:
    """Prove that these are the bytes that an index names, before anything is done with them.

    Raises:
        ProofFailedError: they are not.
    """
    found = "sha256:" + hashlib.sha256(raw).hexdigest()
    if found != digest:
        raise ProofFailedError(f"its digest is {found}, and the index says {digest}")


class Judgement(NamedTuple):
    """What the files of a skill are to its entry.

    Attributes:
        refusal: why they are not the skill that the entry describes, None where they are.
        warning: what to warn of, None for nothing: the descriptions of both should be equal.
    """

    refusal: str | None
    warning: str | None = None


def judge_unpacked(entry: Entry, files: Files) -> Judgement:
    """Whether these files are the skill that the entry describes, and whether it describes it as they do.

    Of descriptions white space is not compared: publishers fold them in different ways.
    """
    if SKILL_MD not in files:
        return Judgement(_no_skill_md(files))
    document = frontmatter.parse(files[SKILL_MD][0])
    if document.frontmatter is None:
        return Judgement(f"its {SKILL_MD} cannot be read: {document.problems[0].message}")
    name = document.frontmatter.get("name")
    if isinstance(name, str) and name and name != entry.name:
        return Judgement(f"its {SKILL_MD} calls it {quoted(name)}")
    broken = next(_broken(document, entry.name), None)
    if broken:
        return Judgement(f"its {SKILL_MD} breaks the specification: {broken}")
    given = document.frontmatter.get("description")
    same = isinstance(given, str) and given.split() == entry.description.split()
    return Judgement(None, None if same else f"its {SKILL_MD} describes it otherwise than the index")


class _RefusedError(SkillsServerError, ValueError):
    """An entry cannot be used, for this reason."""

    def __init__(self, reason: str, *, broken: bool = True) -> None:
        super().__init__(reason)
        self.broken = broken


def _object(raw: bytes, limits: IndexLimits) -> dict[str, Any]:
    if len(raw) > limits.bytes:
        raise IndexRefusedError(f"the index has {len(raw)} bytes, at most {limits.bytes} are read")
    try:
        text = raw.decode("utf-8-sig")
        document: object = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        if raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<":
            raise IndexRefusedError("the index is a web page (HTML) and not JSON") from None
        raise IndexRefusedError("the index is not JSON") from None
    if not isinstance(document, dict):
        raise IndexRefusedError("the index is JSON but no object")
    return cast("dict[str, Any]", document)


def _no_constant(word: str) -> None:
    raise ValueError(word)


def _entries(
    listed: list[Any], read: Callable[[dict[str, Any]], Entry]
) -> tuple[tuple[Entry, ...], tuple[Unusable, ...]]:
    entries: dict[str, Entry] = {}
    unusable: list[Unusable] = []
    for position, item in enumerate(listed, 1):
        fields = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        try:
            if not isinstance(item, dict):
                raise _RefusedError("it is no object")
            entry = read(fields)
            if entry.name in entries:
                raise _RefusedError("an entry before it has the same name")
            entries[entry.name] = entry
        except _RefusedError as refused:
            name = fields.get("name")
            label = printable(name[:64]) if isinstance(name, str) else ""
            unusable.append(Unusable(position, label, str(refused), refused.broken))
    return tuple(entries.values()), tuple(unusable)


def _entry(fields: Mapping[str, Any], base: str) -> Entry:
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise _RefusedError("it has no type")
    if kind not in {SKILL_MD_KIND, ARCHIVE_KIND}:
        raise _RefusedError(f"its type {quoted(kind)} is not known", broken=False)
    name, description = _described(fields)
    digest = fields.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _RefusedError("its digest is not 'sha256:' and 64 hex digits in lower case")
    url = fields.get("url")
    if not isinstance(url, str):
        raise _RefusedError("it has no url")
    try:
        return Entry(name, description, cast("Kind", kind), absolute(base, url), digest)
    except ValueError as error:
        raise _RefusedError(f"its url {quoted(url)}: {error}") from None


def _entry_0_1(fields: Mapping[str, Any], base: str, limits: IndexLimits) -> Entry:
    name, description = _described(fields)
    listed = fields.get("files")
    if not isinstance(listed, list) or not all(isinstance(path, str) for path in cast("list[Any]", listed)):
        raise _RefusedError("it has no list 'files' of paths")
    paths = cast("list[str]", listed)
    if SKILL_MD not in paths:
        raise _RefusedError(f"its files are without {SKILL_MD}")
    if len(paths) > limits.files:
        raise _RefusedError(f"it has {len(paths)} files, at most {limits.files} are fetched")
    bad = next((path for path in paths if is_bad_0_1(path)), None)
    if bad is not None:
        raise _RefusedError(f"discovery 0.1.0 does not allow the file name {quoted(bad)}")
    try:
        archive.check_paths(paths)
    except ArchiveRefusedError as error:
        raise _RefusedError(str(error)) from None
    return Entry(name, description, None, "", "", {path: urljoin(base, f"{name}/{quote(path)}") for path in paths})


def _described(fields: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description of an entry that keep the rules of Agent Skills."""
    given: dict[str, Json] = {key: fields[key] for key in ("name", "description") if key in fields}
    broken = next(_broken(Document(given, {}, "", 1, ()), str(given.get("name"))), None)
    if broken:
        raise _RefusedError(broken)
    description = str(given["description"])
    try:
        description.encode()
    except UnicodeEncodeError:
        raise _RefusedError("its description holds half a character") from None
    return str(given["name"]), description


def _broken(document: Document, name: str) -> Iterator[str]:
    """What is wrong with a name and a description, of which the rules make an error."""
    for found in rules.check(document, name, about=("name-", "description-")):
        if found.severity == "error":
            yield found.message


def _no_skill_md(files: Files) -> str:
    inner = sorted(path for path in files if path.rpartition("/")[2] == SKILL_MD)
    if inner:
        return f"{SKILL_MD} is not at the root of its archive but in {quoted(inner[0].rpartition('/')[0])}"
    other = next((path for path in files if path.lower() == SKILL_MD.lower()), None)
    return f"it has no {SKILL_MD} but {quoted(other)}" if other else f"it has no {SKILL_MD}"
