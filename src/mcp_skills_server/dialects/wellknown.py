"""Agent Skills Discovery, `/.well-known/agent-skills` 0.2.0 and `/.well-known/skills` 0.1.0, both
sides of it."""

from __future__ import annotations

import hashlib
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
from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.model import SKILL_MD, Json, Skill, Snapshot, Standing, printable
from mcp_skills_server.validation import rules

Kind: TypeAlias = Literal["skill-md", "archive"]
Version: TypeAlias = Literal["0.2.0", "0.1.0"]

SCHEMA: Final = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
DIRECTORY: Final = "/.well-known/agent-skills/"
DIRECTORY_0_1: Final = "/.well-known/skills/"
INDEX: Final = "index.json"
INDEX_MEDIA_TYPE: Final = "application/json"
SKILL_MD_KIND: Final[Kind] = "skill-md"
ARCHIVE_KIND: Final[Kind] = "archive"
_IN_URL: Final = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_PORTS: Final = {"http": 80, "https": 443}
_BAD_0_1: Final = re.compile(r"[^\x20-\x7e]|[\\?#\[\]]")
_ABSENT: Final = object()
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def is_site(text: str) -> bool:
    """Tell whether this is the address of a site rather than a path."""
    return text[:8].lower().startswith(("https://", "http://"))


def candidates(url: str) -> list[str]:
    """Return where the index of a site may be, in the order to ask; go on only when there is none.

    An address with a query or that ends in `.json` is the index itself. Otherwise 0.2.0 comes
    before 0.1.0, and the place below the address's own path before the root of its origin, the one
    that RFC 8615 knows.

    Raises:
        UsageError: it is no http or https URL.
    """
    try:
        plain = absolute(url, url)
    except ValueError as error:
        raise UsageError(
            f"{quoted(url)}: {error}; give the URL of a site or of its index.json"
        ) from None
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
    """Return scheme, host and port of an absolute URL in one spelling, for allow-lists of
    origins."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    port = parts.port
    if port is None or port == _PORTS.get(parts.scheme):
        shown = ""
    else:
        shown = f":{port}"
    return f"{parts.scheme}://{host}{shown}"


def absolute(base: str, url: str) -> str:
    """Return the URL made absolute, without a fragment. ValueError says why it cannot be fetched.

    A backslash, a blank or a line break is read in different ways by different clients, so none of
    them may stand.
    """
    if not _IN_URL.fullmatch(url):
        raise ValueError("it is empty or holds what no URL may hold")
    try:
        whole = urldefrag(urljoin(base, url)).url
        parts = urlsplit(whole)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("it cannot be read as a URL") from None
    if parts.scheme not in _PORTS:
        raise ValueError("it is no http or https URL")
    if not _HOST.fullmatch(host) or port == 0:
        raise ValueError("it names no host")
    if "@" in parts.netloc:
        raise ValueError("it carries a user name or a password")
    return whole


def is_bad_0_1(path: str) -> bool:
    """Tell whether the path is none that WK1-7...9 allow."""
    return bool(_BAD_0_1.search(path)) or path.startswith("/") or ".." in path.split("/")


class Choice(NamedTuple):
    """The skills of an index by name, and (skill path, reason) of the other valid ones."""

    skills: tuple[Skill, ...]
    left_out: tuple[tuple[str, str], ...]


class Artifact(NamedTuple):
    """The downloadable form of a skill. Its path, below the publisher's base URL, carries its
    digest."""

    kind: Kind
    path: str
    digest: str
    media_type: str


def choose(snapshot: Snapshot) -> Choice:
    """Return the skills of an index 0.2.0: every valid one whose name is its own.

    An index knows a skill by its name alone. Of skills that share one, none is published: to prefer
    one would let a new skill take over the name of an old one unseen. Copies of one skill are one:
    a nested skill that was fetched lies inside the enclosing one too.
    """
    skills: list[Skill] = []
    left_out: list[tuple[str, str]] = []
    for path in snapshot.paths(Standing.VALID):
        skill = snapshot.skills[path]
        others = [other for other in snapshot.named(skill.name, Standing.VALID) if other != path]
        if not all(_is_copy(skill, snapshot.skills[other]) for other in others):
            left_out.append(
                (path, f"the name {skill.name} is also that of {', '.join(others[:5])}")
            )
        elif not others or path < min(others):
            skills.append(skill)
    return Choice(tuple(sorted(skills, key=lambda skill: skill.name)), tuple(left_out))


def _is_copy(skill: Skill, other: Skill) -> bool:
    """Tell whether two skills have the same files, as far as their digests are known."""
    if skill.files.keys() != other.files.keys():
        return False
    pairs = [(file, other.files[path]) for path, file in skill.files.items()]
    return all(a.digest and (a.digest, a.executable) == (b.digest, b.executable) for a, b in pairs)


def choose_0_1(skills: Iterable[Skill]) -> Choice:
    """Return those of these skills that an index 0.1.0 can hold: one bad path there voids the whole
    index."""
    kept: list[Skill] = []
    left_out: list[tuple[str, str]] = []
    for skill in skills:
        bad = next((path for path in skill.files if is_bad_0_1(path)), None)
        if bad is None:
            kept.append(skill)
        else:
            left_out.append(
                (skill.path, f"discovery 0.1.0 does not allow the file name {quoted(bad)}")
            )
    return Choice(tuple(kept), tuple(left_out))


def kind(skill: Skill) -> Kind:
    """Return how a skill is distributed: a lone SKILL.md as it is, all else as an archive."""
    if set(skill.files) == {SKILL_MD}:
        return SKILL_MD_KIND
    return ARCHIVE_KIND


def artifact(name: str, digest: str, suffix: str = "") -> Artifact:
    """Return the artifact of a skill of this name: an archive of this suffix, without one SKILL.md
    itself."""
    place = f"{DIRECTORY}{name}/{digest.removeprefix('sha256:')}/"
    if not suffix:
        return Artifact(SKILL_MD_KIND, place + SKILL_MD, digest, media.MARKDOWN)
    return Artifact(ARCHIVE_KIND, f"{place}{name}{suffix}", digest, archive.MEDIA_TYPES[suffix])


def index(published: Iterable[tuple[Skill, Artifact]], base: str = "") -> dict[str, Json]:
    """Return the index 0.2.0 of these skills with their artifacts.

    `base` is what stands before the artifacts' paths: "" for path-absolute URLs, or an absolute
    URL; a relative URL would be read in two ways behind a redirect.
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
    """Return the index 0.1.0 of these skills, each with a digest of all of it.

    `version` is none of that version's fields; a client that caches looks there for news.
    """
    skills: list[Json] = []
    for skill, digest in published:
        files: list[Json] = [SKILL_MD, *(path for path in skill.files if path != SKILL_MD)]
        skills.append(
            {
                "name": skill.name,
                "description": skill.description,
                "files": files,
                "version": digest,
            }
        )
    return {"skills": skills}


def encode(index: Mapping[str, Json]) -> bytes:
    """Return an index as the bytes of its file: live and static publishers send the same."""
    return json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class IndexRefusedError(SkillsServerError, ValueError):
    """An index of which nothing can be used. The message is one line for people."""


class ProofFailedError(SkillsServerError, ValueError):
    """Bytes that are not those of the index: corrupt, stale or tampered with, and never to be
    used."""


class IndexLimits(NamedTuple):
    """Limits of an index: its bytes, its entries, and the files of one entry of 0.1.0. Over one it
    is refused whole."""

    bytes: int = 16 << 20
    skills: int = 20_000
    files: int = 1000


@dataclass(frozen=True, slots=True)
class SiteEntry:
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


class Unusable(NamedTuple):
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
        """Return all of it as one line."""
        return f"{self.name or f'entry {self.position}'}: {self.reason}"


class SiteIndex(NamedTuple):
    """The content of an index.

    Attributes:
        version: of the format; None for one that is not known, of which nothing is read.
        entries: what can be used, in the index's order, no name twice.
        unusable: what cannot.
        warnings: what the user should hear about the index, one line each.
    """

    version: Version | None
    entries: tuple[SiteEntry, ...]
    unusable: tuple[Unusable, ...] = ()
    warnings: tuple[str, ...] = ()


def decode(raw: bytes, url: str, limits: IndexLimits | None = None) -> SiteIndex:
    """Return what an index offers, and why the rest of it cannot be used.

    `url` is what the index's own URLs are relative to: the address that answered, after redirects
    (RFC 3986 5.1.3). Fields that are not known are passed over. Of entries that share a name the
    first counts.

    Raises:
        IndexRefusedError: it is no index at all, or over a limit.
    """
    limits = limits or IndexLimits()
    document = _object(raw, limits)
    schema = document.get("$schema", _ABSENT)
    if schema not in (_ABSENT, SCHEMA):
        shown = "no text"
        if isinstance(schema, str):
            shown = quoted(schema)
        message = (
            f"the index is of a version that is not known ($schema is {shown}), so nothing of "
            "it is used"
        )
        return SiteIndex(None, (), (), (message,))
    if not isinstance(document.get("skills"), list):
        raise IndexRefusedError("the index has no list 'skills'")
    listed: list[Any] = document["skills"]
    if len(listed) > limits.skills:
        raise IndexRefusedError(
            f"the index has {len(listed)} entries, at most {limits.skills} are read"
        )
    if schema is _ABSENT:
        message = (
            "the index has no $schema and is read as version 0.1.0, in which nothing proves "
            "the files"
        )
        entries, unusable = _entries(listed, lambda entry: _entry_0_1(entry, url, limits))
        return SiteIndex("0.1.0", entries, unusable, (message,))
    entries, unusable = _entries(listed, lambda entry: _entry(entry, url))
    return SiteIndex("0.2.0", entries, unusable)


def prove(raw: bytes, digest: str) -> None:
    """Prove that these are the bytes that an index names, before anything is done with them.

    Raises:
        ProofFailedError: they are not.
    """
    found = "sha256:" + hashlib.sha256(raw).hexdigest()
    if found != digest:
        raise ProofFailedError(f"its digest is {found}, and the index says {digest}")


class Judgement(NamedTuple):
    """Why a skill's files are not what its entry describes, and what to warn of; None for
    nothing."""

    refusal: str | None
    warning: str | None = None


def judge_unpacked(entry: SiteEntry, files: Files) -> Judgement:
    """Compare files with the entry that describes them.

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
    return Judgement(
        None, None if same else f"its {SKILL_MD} describes it otherwise than the index"
    )


class _EntryRefusedError(SkillsServerError, ValueError):
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
    listed: list[Any], read: Callable[[dict[str, Any]], SiteEntry]
) -> tuple[tuple[SiteEntry, ...], tuple[Unusable, ...]]:
    entries: dict[str, SiteEntry] = {}
    unusable: list[Unusable] = []
    for position, item in enumerate(listed, 1):
        fields = {}
        if isinstance(item, dict):
            fields = cast("dict[str, Any]", item)
        try:
            if not isinstance(item, dict):
                raise _EntryRefusedError("it is no object")
            entry = read(fields)
            if entry.name in entries:
                raise _EntryRefusedError("an entry before it has the same name")
            entries[entry.name] = entry
        except _EntryRefusedError as refused:
            name = fields.get("name")
            label = ""
            if isinstance(name, str):
                label = printable(name[:64])
            unusable.append(Unusable(position, label, str(refused), refused.broken))
    return tuple(entries.values()), tuple(unusable)


def _entry(fields: Mapping[str, Any], base: str) -> SiteEntry:
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise _EntryRefusedError("it has no type")
    if kind not in {SKILL_MD_KIND, ARCHIVE_KIND}:
        raise _EntryRefusedError(f"its type {quoted(kind)} is not known", broken=False)
    name, description = _described(fields)
    digest = fields.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _EntryRefusedError("its digest is not 'sha256:' and 64 hex digits in lower case")
    url = fields.get("url")
    if not isinstance(url, str):
        raise _EntryRefusedError("it has no url")
    try:
        return SiteEntry(name, description, cast("Kind", kind), absolute(base, url), digest)
    except ValueError as error:
        raise _EntryRefusedError(f"its url {quoted(url)}: {error}") from None


def _entry_0_1(fields: Mapping[str, Any], base: str, limits: IndexLimits) -> SiteEntry:
    name, description = _described(fields)
    listed = fields.get("files")
    if not isinstance(listed, list) or not all(
        isinstance(path, str) for path in cast("list[Any]", listed)
    ):
        raise _EntryRefusedError("it has no list 'files' of paths")
    paths = cast("list[str]", listed)
    if SKILL_MD not in paths:
        raise _EntryRefusedError(f"its files are without {SKILL_MD}")
    if len(paths) > limits.files:
        raise _EntryRefusedError(f"it has {len(paths)} files, at most {limits.files} are fetched")
    bad = next((path for path in paths if is_bad_0_1(path)), None)
    if bad is not None:
        raise _EntryRefusedError(f"discovery 0.1.0 does not allow the file name {quoted(bad)}")
    try:
        archive.check_paths(paths)
    except ArchiveRefusedError as error:
        raise _EntryRefusedError(str(error)) from None
    return SiteEntry(
        name,
        description,
        None,
        "",
        "",
        {path: urljoin(base, f"{name}/{quote(path)}") for path in paths},
    )


def _described(fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and description of an entry, or refuse one that breaks the rules of Agent
    Skills."""
    given: dict[str, Json] = {key: fields[key] for key in ("name", "description") if key in fields}
    broken = next(_broken(Document(given, {}, "", 1, ()), str(given.get("name"))), None)
    if broken:
        raise _EntryRefusedError(broken)
    description = str(given["description"])
    try:
        description.encode()
    except UnicodeEncodeError:
        raise _EntryRefusedError("its description holds half a character") from None
    return str(given["name"]), description


def _broken(document: Document, name: str) -> Iterator[str]:
    """Yield what is wrong with a name and a description, of which the rules make an error."""
    for found in rules.check(document, name):
        if found.severity == "error" and found.code.startswith(("name-", "description-")):
            yield found.message


def _no_skill_md(files: Files) -> str:
    inner = sorted(path for path in files if path.rpartition("/")[2] == SKILL_MD)
    if inner:
        return (
            f"{SKILL_MD} is not at the root of its archive but in "
            f"{quoted(inner[0].rpartition('/')[0])}"
        )
    other = next((path for path in files if path.lower() == SKILL_MD.lower()), None)
    if other:
        return f"it has no {SKILL_MD} but {quoted(other)}"
    return f"it has no {SKILL_MD}"
