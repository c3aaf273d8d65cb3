"""Agent Skills Discovery 0.2.0 and 0.1.0: encoding and decoding of the `/.well-known/` index.

Versions 0.2.0 and 0.1.0 use the directories `agent-skills` and `skills`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import quote, urldefrag, urljoin, urlsplit, urlunsplit

from mcp_skills_server.errors import SkillsServerError, UsageError
from mcp_skills_server.format import archive, frontmatter, media
from mcp_skills_server.format.archive import ArchiveRefusedError, Files
from mcp_skills_server.format.excerpts import quoted
from mcp_skills_server.format.fields import texts
from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.model import SKILL_MD, Json, Skill, Snapshot, Standing, printable
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.model.digests import digest_of, is_digest
from mcp_skills_server.validation import rules

Kind: TypeAlias = Literal["skill-md", "archive"]
Version: TypeAlias = Literal["0.2.0", "0.1.0"]

SCHEMA: Final = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
DIRECTORY: Final = "/.well-known/agent-skills/"
DIRECTORY_0_1: Final = "/.well-known/skills/"
INDEX: Final = "index.json"
INDEX_MEDIA_TYPE: Final = "application/json"
MAX_INDEX_BYTES: Final = 16 << 20
_MAX_FILES: Final = 1000
"""The most files of an entry of 0.1.0 that are fetched."""
SKILL_MD_KIND: Final[Kind] = "skill-md"
ARCHIVE_KIND: Final[Kind] = "archive"
_IN_URL: Final = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_PORTS: Final = {"http": 80, "https": 443}
_BAD_0_1: Final = re.compile(r"[^\x20-\x7e]|[\\?#\[\]]")
_ABSENT: Final = object()
_NO_SCHEMA: Final = (
    "the index has no $schema and is read as version 0.1.0, which has no digests to verify files"
)


def is_site(text: str) -> bool:
    """Return whether the text is an http or https URL rather than a path."""
    return text[:8].lower().startswith(("https://", "http://"))


def candidates(url: str) -> list[str]:
    """Return the candidate URLs of a site's index, in order of preference.

    Try the next URL only if the index before it does not exist. A URL with a query or that ends in
    `.json` is the index itself. Otherwise 0.2.0 precedes 0.1.0, and the URL's own path precedes the
    root of its origin, where RFC 8615 places well-known URIs.

    Raises:
        UsageError: it is not an http or https URL.
    """
    try:
        plain = absolute(url, url)
    except ValueError as error:
        hint = "give the URL of a site or of its index.json"
        raise UsageError(f"{quoted(url)}: {error}; {hint}") from None
    parts = urlsplit(plain)
    if parts.query or parts.path.lower().endswith(".json"):
        return [plain]
    path = parts.path.rstrip("/") + "/"
    if path.endswith((DIRECTORY, DIRECTORY_0_1)):
        return [urlunsplit(parts._replace(path=path + INDEX))]
    return [
        urlunsplit(parts._replace(path=above + directory + INDEX))
        for above in dict.fromkeys((path[:-1], ""))
        for directory in (DIRECTORY, DIRECTORY_0_1)
    ]


def origin(url: str) -> str:
    """Return the normalized origin (scheme, host, port) of an absolute URL, for allow-lists."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    if parts.port not in (None, _PORTS.get(parts.scheme)):
        host += f":{parts.port}"
    return f"{parts.scheme}://{host}"


def absolute(base: str, url: str) -> str:
    """Resolve a URL against `base`, and remove its fragment.

    Backslashes, blanks and line breaks are rejected, because clients interpret them differently.

    Raises:
        ValueError: the URL cannot be fetched; the message says why.
    """
    if not _IN_URL.fullmatch(url):
        raise ValueError("it is empty, or contains a character that no URL may contain")
    try:
        whole = urldefrag(urljoin(base, url)).url
        parts = urlsplit(whole)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("it cannot be read as a URL") from None
    if parts.scheme not in _PORTS:
        raise ValueError("it is not an http or https URL")
    if not _HOST.fullmatch(host) or port == 0:
        raise ValueError("it has no host")
    if "@" in parts.netloc:
        raise ValueError("it contains a user name or a password")
    return whole


def _fault_0_1(paths: Iterable[str]) -> str | None:
    """Return the first fault of these paths by WK1-7...9, or None."""
    for path in paths:
        if _BAD_0_1.search(path) or path.startswith("/") or ".." in path.split("/"):
            return f"discovery 0.1.0 does not allow the file name {quoted(path)}"
    return None


class Choice(NamedTuple):
    """The skills to publish, sorted by name, and (skill path, reason) of the other valid ones."""

    skills: tuple[Skill, ...]
    left_out: tuple[tuple[str, str], ...]


class Artifact(NamedTuple):
    """A skill's downloadable form; its `path`, below the base URL, contains the digest."""

    kind: Kind
    path: str
    digest: str
    media_type: str


def publishable(snapshot: Snapshot) -> Choice:
    """Return the skills of an index 0.2.0: each valid one with a unique name.

    An index identifies a skill by name. Skills that share a name are all omitted, so that a new
    skill cannot silently take over the name of an old one. Identical copies count as one skill: a
    fetched nested skill is also inside its enclosing skill.
    """
    skills: list[Skill] = []
    left_out: list[tuple[str, str]] = []
    for path in snapshot.paths(Standing.VALID):
        skill = snapshot.skills[path]
        others = [other for other in snapshot.named(skill.name, Standing.VALID) if other != path]
        if not all(_is_copy(skill, snapshot.skills[other]) for other in others):
            left_out.append((path, f"{skill.name} is also the name of {', '.join(others[:5])}"))
        elif not others or path < min(others):
            skills.append(skill)
    return Choice(tuple(sorted(skills, key=lambda skill: skill.name)), tuple(left_out))


def _is_copy(skill: Skill, other: Skill) -> bool:
    """Return whether two skills have identical files, all with known digests."""
    if skill.files.keys() != other.files.keys():
        return False
    pairs = [(file, other.files[path]) for path, file in skill.files.items()]
    return all(a.digest and (a.digest, a.executable) == (b.digest, b.executable) for a, b in pairs)


def publishable_0_1(skills: Iterable[Skill]) -> Choice:
    """Return the skills for an index 0.1.0, where one invalid file path voids the whole index."""
    kept: list[Skill] = []
    left_out: list[tuple[str, str]] = []
    for skill in skills:
        fault = _fault_0_1(skill.files)
        if fault is None:
            kept.append(skill)
        else:
            left_out.append((skill.path, fault))
    return Choice(tuple(kept), tuple(left_out))


def kind(skill: Skill) -> Kind:
    """Return the kind of artifact: a lone SKILL.md as a file, any other skill as an archive."""
    if set(skill.files) == {SKILL_MD}:
        return SKILL_MD_KIND
    return ARCHIVE_KIND


def artifact(name: str, digest: str, suffix: str = "") -> Artifact:
    """Return the artifact of a skill: an archive with this suffix, or SKILL.md if it is empty."""
    folder = f"{DIRECTORY}{name}/{digest.removeprefix('sha256:')}/"
    if not suffix:
        return Artifact(SKILL_MD_KIND, folder + SKILL_MD, digest, media.MARKDOWN)
    return Artifact(ARCHIVE_KIND, f"{folder}{name}{suffix}", digest, archive.MEDIA_TYPES[suffix])


def index(published: Iterable[tuple[Skill, Artifact]], base: str = "") -> dict[str, Json]:
    """Return the index 0.2.0 of these skills with their artifacts.

    `base` prefixes the artifacts' paths: "" for path-absolute URLs, or an absolute URL. A relative
    URL would be ambiguous after a redirect.
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
    """Return the index 0.1.0 of these skills, each with the digest of its whole content.

    The digest is in `version`, an extra field with which caching clients detect changes.
    """
    skills: list[Json] = []
    for skill, digest in published:
        files: list[Json] = [SKILL_MD, *(path for path in skill.files if path != SKILL_MD)]
        entry: Json = {"name": skill.name, "description": skill.description}
        skills.append({**entry, "files": files, "version": digest})
    return {"skills": skills}


def encode(index: Mapping[str, Json]) -> bytes:
    """Encode an index as the file's bytes, identical for live and static publishers."""
    return json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class IndexRefusedError(SkillsServerError, ValueError):
    """The index is unusable as a whole. The message is one line for people."""


class DigestMismatchError(SkillsServerError, ValueError):
    """An artifact's digest differs from the index: it is corrupt, stale or tampered with."""


@dataclass(frozen=True, slots=True)
class SiteEntry:
    """A skill in a site's index: an artifact with its digest, or the files of version 0.1.0.

    In 0.1.0, which has neither artifacts nor digests, `kind` is None, `url` and `digest` are "",
    and `files` has the absolute URLs by path in the skill.
    """

    name: str
    description: str
    kind: Kind | None
    url: str
    digest: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])


class Unusable(NamedTuple):
    """An unusable entry: its 1-based position, its printable name or "", and the reason.

    An unknown `type` is no fault, because a later version may define it.
    """

    position: int
    name: str
    reason: str
    is_fault: bool = True

    def __str__(self) -> str:
        """Return name, or position, and reason in one line."""
        return f"{self.name or f'entry {self.position}'}: {self.reason}"


class SiteIndex(NamedTuple):
    """A decoded index; of an unknown version, None, no entry is read.

    The usable entries have unique names and the index's order. Warnings are one line each.
    """

    version: Version | None
    entries: tuple[SiteEntry, ...]
    unusable: tuple[Unusable, ...] = ()
    warnings: tuple[str, ...] = ()


def decode(raw: bytes, url: str, most_skills: int = 20_000) -> SiteIndex:
    """Decode an index into usable and unusable entries.

    `url` is the base of relative URLs in the index: its address after redirects (RFC 3986 5.1.3).
    Unknown fields are ignored. Of entries with equal names the first wins.

    Raises:
        IndexRefusedError: it is not an index, or exceeds a limit.
    """
    document = _object(raw)
    schema = document.get("$schema", _ABSENT)
    if schema not in (_ABSENT, SCHEMA):
        shown = quoted(str(schema))
        message = f"the index has an unknown version ($schema is {shown}), so it is ignored"
        return SiteIndex(None, (), (), (message,))
    listed = document.get("skills")
    if not isinstance(listed, list):
        raise IndexRefusedError("the index has no list 'skills'")
    listed = cast("list[Any]", listed)
    if len(listed) > most_skills:
        most = f"at most {most_skills} are read"
        raise IndexRefusedError(f"the index has {len(listed)} entries, {most}")
    if schema is _ABSENT:
        entries, unusable = _entries(listed, lambda entry: _entry_0_1(entry, url))
        return SiteIndex("0.1.0", entries, unusable, (_NO_SCHEMA,))
    entries, unusable = _entries(listed, lambda entry: _entry(entry, url))
    return SiteIndex("0.2.0", entries, unusable)


def verify_digest(raw: bytes, digest: str) -> None:
    """Verify an artifact's digest, before any use of the artifact.

    Raises:
        DigestMismatchError: the digest differs.
    """
    actual = digest_of(raw)
    if actual != digest:
        raise DigestMismatchError(f"its digest is {actual}, but the index says {digest}")


class Comparison(NamedTuple):
    """The reason to refuse a skill's files, and a warning; None if there is none."""

    refusal: str | None
    warning: str | None = None


def compare_files(entry: SiteEntry, files: Files) -> Comparison:
    """Compare a skill's files with its entry.

    White space in descriptions is ignored, because publishers fold lines differently.
    """
    if SKILL_MD not in files:
        return Comparison(_no_skill_md(files))
    document = frontmatter.parse(files[SKILL_MD][0])
    if document.frontmatter is None:
        return Comparison(f"its {SKILL_MD} cannot be read: {document.problems[0].message}")
    name = document.frontmatter.get("name")
    if isinstance(name, str) and name and name != entry.name:
        return Comparison(f"its {SKILL_MD} has the name {quoted(name)}")
    broken = next(_broken(document, entry.name), None)
    if broken:
        return Comparison(f"its {SKILL_MD} breaks the specification: {broken}")
    given = document.frontmatter.get("description")
    if isinstance(given, str) and given.split() == entry.description.split():
        return Comparison(None)
    return Comparison(None, f"its {SKILL_MD} has another description than the index")


class _EntryRefusedError(SkillsServerError, ValueError):
    """An unusable entry, with the reason as message."""

    def __init__(self, reason: str, *, is_fault: bool = True) -> None:
        super().__init__(reason)
        self.is_fault = is_fault


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_INDEX_BYTES:
        most = f"at most {MAX_INDEX_BYTES} are read"
        raise IndexRefusedError(f"the index has {len(raw)} bytes, {most}")
    try:
        text = raw.decode("utf-8-sig")
        document: object = load_json(text)
    except ValueError as error:
        if raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<":
            raise IndexRefusedError("the index is a web page (HTML), not JSON") from None
        raise IndexRefusedError(f"the index is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise IndexRefusedError("the index is JSON, but not an object")
    return cast("dict[str, Any]", document)


def _entries(
    listed: list[Any], read: Callable[[dict[str, Any]], SiteEntry]
) -> tuple[tuple[SiteEntry, ...], tuple[Unusable, ...]]:
    entries: dict[str, SiteEntry] = {}
    unusable: list[Unusable] = []
    for position, item in enumerate(listed, 1):
        label = ""
        try:
            if not isinstance(item, dict):
                raise _EntryRefusedError("it is not an object")
            fields = cast("dict[str, Any]", item)
            if isinstance(fields.get("name"), str):
                label = printable(fields["name"][:64])
            entry = read(fields)
            if entry.name in entries:
                raise _EntryRefusedError("an entry before it has the same name")
            entries[entry.name] = entry
        except _EntryRefusedError as refused:
            unusable.append(Unusable(position, label, str(refused), refused.is_fault))
    return tuple(entries.values()), tuple(unusable)


def _entry(fields: Mapping[str, Any], base: str) -> SiteEntry:
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise _EntryRefusedError("it has no type")
    if kind not in {SKILL_MD_KIND, ARCHIVE_KIND}:
        raise _EntryRefusedError(f"its type {quoted(kind)} is unknown", is_fault=False)
    name, description = _described(fields)
    digest = fields.get("digest")
    if not is_digest(digest):
        raise _EntryRefusedError("its digest is not 'sha256:' and 64 hex digits in lower case")
    url = fields.get("url")
    if not isinstance(url, str):
        raise _EntryRefusedError("it has no url")
    try:
        return SiteEntry(name, description, cast("Kind", kind), absolute(base, url), digest)
    except ValueError as error:
        raise _EntryRefusedError(f"its url {quoted(url)}: {error}") from None


def _entry_0_1(fields: Mapping[str, Any], base: str) -> SiteEntry:
    name, description = _described(fields)
    listed: Json = fields.get("files")
    paths = texts(listed)
    if not isinstance(listed, list) or len(paths) < len(listed):
        raise _EntryRefusedError("it has no list 'files' of paths")
    if SKILL_MD not in paths:
        raise _EntryRefusedError(f"its list of files lacks {SKILL_MD}")
    if len(paths) > _MAX_FILES:
        raise _EntryRefusedError(f"it has {len(paths)} files, at most {_MAX_FILES} are fetched")
    fault = _fault_0_1(paths)
    if fault is not None:
        raise _EntryRefusedError(fault)
    try:
        archive.check_paths(paths)
    except ArchiveRefusedError as error:
        raise _EntryRefusedError(str(error)) from None
    urls = {path: urljoin(base, f"{name}/{quote(path)}") for path in paths}
    return SiteEntry(name, description, None, "", "", urls)


def _described(fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return an entry's name and description.

    Raises:
        _EntryRefusedError: they break the rules of Agent Skills.
    """
    given: dict[str, Json] = {key: fields[key] for key in ("name", "description") if key in fields}
    broken = next(_broken(Document(given, {}, "", 1, ()), str(given.get("name"))), None)
    if broken:
        raise _EntryRefusedError(broken)
    description = str(given["description"])
    try:
        description.encode()
    except UnicodeEncodeError:
        raise _EntryRefusedError("its description contains a lone surrogate") from None
    return str(given["name"]), description


def _broken(document: Document, name: str) -> Iterator[str]:
    """Yield the error messages of the rules for name and description."""
    for problem in rules.check(document, name):
        if problem.severity == "error" and problem.code.startswith(("name-", "description-")):
            yield problem.message


def _no_skill_md(files: Files) -> str:
    inner = sorted(path for path in files if path.rpartition("/")[2] == SKILL_MD)
    if inner:
        folder = quoted(inner[0].rpartition("/")[0])
        return f"{SKILL_MD} is not at the root of its archive but in {folder}"
    other = next((path for path in files if path.lower() == SKILL_MD.lower()), None)
    if other:
        return f"it has no {SKILL_MD} but {quoted(other)}"
    return f"it has no {SKILL_MD}"
