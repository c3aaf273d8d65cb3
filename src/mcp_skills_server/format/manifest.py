"""Skills Protocol manifest of a skill, read from `skill.toml` or else made from the frontmatter.

`skill.toml` takes precedence, and a difference to the frontmatter becomes a warning. All its fields
are kept, as JSON; missing required ones are added. Faults of the input become Problems, never
exceptions, and a Problem of severity "error" means that there is no valid manifest. The size of the
input bounds time and memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from mcp_skills_server.codes import problem
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format.fields import mapping, tags_of, texts
from mcp_skills_server.model import Json, Problem
from mcp_skills_server.model.decoding import load_toml

SKILL_TOML: Final = "skill.toml"
ACTION: Final = "action"
INSTRUCTION: Final = "instruction"
MAX_TOML: Final = 1 << 17
MAX_DEPTH: Final = 24
MAX_NODES: Final = 10_000
MAX_NAME: Final = 256
_INTEGERS: Final = range(-(1 << 63), 1 << 63)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]++(?:\.[A-Za-z0-9_-]++)*", re.ASCII)
_AGENT_SKILLS_NAME: Final = re.compile(r"[a-z0-9]++(?:-[a-z0-9]++)*")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)
NO_VERSION: Final = "0.0.0"
"""The version of a skill that declares none."""
_MAX_VERSION: Final = 128
_NUMBER: Final = r"(0|[1-9][0-9]{0,17})"
_PART: Final = r"(?:0|[1-9][0-9]{0,17}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION: Final = re.compile(
    rf"{_NUMBER}(?:\.{_NUMBER}(?:\.{_NUMBER})?)?(?:-({_PART}(?:\.{_PART})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)

Key: TypeAlias = tuple[tuple[int, int, int], bool, tuple[tuple[float, str], ...], str]
"""The sort key of versions: greater means newer."""


class Version(NamedTuple):
    """A version as written, and its precedence by Semantic Versioning 2.0.

    Written by hand: `packaging` implements Python's versions, and `semver` compares in Python,
    which took 37 us for each version of a sorted catalogue; a tuple as sort key takes 0.8 us.
    """

    text: str
    key: Key
    """Sort key. Build metadata breaks ties, so that the order is total."""
    is_short: bool
    """True if the minor or patch number is missing; both count as zero then."""


def parse_version(text: str) -> Version | None:
    """Parse a semantic version; return None for any other text."""
    if len(text) > _MAX_VERSION or (match := _VERSION.fullmatch(text)) is None:
        return None
    major, minor, patch, prerelease, _ = match.groups()
    numbers = (int(major), int(minor or 0), int(patch or 0))
    # Semantic Versioning, item 11: a number sorts before a word, a prerelease before its release,
    # and fewer parts before more.
    parts = tuple(
        (int(identifier), "") if identifier.isdigit() else (math.inf, identifier)
        for identifier in (prerelease or "").split(".")
        if identifier
    )
    return Version(text, (numbers, prerelease is None, parts, text), patch is None)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A valid Skills Protocol manifest."""

    fields: Mapping[str, Json]
    """JSON values; always with `name`, `version`, `description`, `kind` and `namespace`."""
    version: Version
    synthesised: bool
    """True if the manifest was made from the frontmatter."""

    @property
    def name(self) -> str:
        """Return the dotted name."""
        return str(self.fields["name"])

    @property
    def namespace(self) -> str:
        """Return the declared namespace, else the first part of a dotted name, else ""."""
        return str(self.fields["namespace"])

    @property
    def runtime(self) -> Mapping[str, Json]:
        """Return the table `runtime`, which says how to run the skill, or an empty mapping."""
        return mapping(self.fields.get("runtime"))

    @property
    def blob_inputs(self) -> list[str]:
        """Return the names of the inputs of type `blob`, whose values are blob identifiers."""
        inputs = mapping(self.fields.get("inputs"))
        return [name for name, value in inputs.items() if mapping(value).get("type") == "blob"]

    @property
    def secrets(self) -> list[str]:
        """Return the names of the secret variables that the skill needs from the operator."""
        return texts(mapping(self.fields.get("permissions")).get("secrets"))


class Findings(NamedTuple):
    """A manifest, or None if it is invalid, and its problems."""

    manifest: Manifest | None
    problems: tuple[Problem, ...]


def read(
    raw: bytes | None, frontmatter: Mapping[str, Json], path: str, files: Collection[str] = ()
) -> Findings:
    """Return the manifest of a skill and its problems.

    `raw` is `skill.toml`, or None. An entry point must name one of `files`.
    """
    problems: list[Problem] = []
    if raw is None:
        return _result(_derive(frontmatter, path, problems), True, problems)
    made = _derive(frontmatter, path, [])
    given = _load(raw, problems)
    if given is None:
        return Findings(None, tuple(problems))
    fields = _completed(given, made, problems)
    _check(fields, files, problems)
    _compare(given, frontmatter, path, problems)
    return _result(fields, False, problems)


def _result(fields: Mapping[str, Json], synthesised: bool, problems: list[Problem]) -> Findings:
    version = parse_version(str(fields["version"]))
    if version is None or any(problem.severity == "error" for problem in problems):
        return Findings(None, tuple(problems))
    return Findings(Manifest(fields, version, synthesised), tuple(problems))


# From the frontmatter


def _derive(frontmatter: Mapping[str, Json], path: str, problems: list[Problem]) -> dict[str, Json]:
    *above, last = path.split("/")
    written = _field(frontmatter, "version")
    version = parse_version(written or "")
    if written is not None and version is None:
        hint = "write three numbers, as in 1.0.0"
        message = f"the version {written[:100]!r} is not a semantic version"
        problems.append(problem("manifest-form", message, hint=hint))
    directory = parse_version(last.removeprefix("v")) if above else None
    # Each version may have a directory named after it; the directory above is the skill. A short
    # name such as `2` may be any number, so the frontmatter must have the same version.
    if directory is not None and (
        not directory.is_short or (version and version.key[:3] == directory.key[:3])
    ):
        *above, last = above
        if version is None:
            version = directory
        elif version.key[:3] != directory.key[:3]:
            problems.append(_two_versions(version.text, directory))
    namespace = _field(frontmatter, "namespace")
    parts = [*(namespace.split(".") if namespace else above), last]
    plain = (_NOT_IN_NAMES.sub("-", part).strip("-") for part in parts)
    name = ".".join(filter(None, plain)) or "skill"
    descriptions = (frontmatter.get(field) for field in ("description", "short_description"))
    out: dict[str, Json] = {
        "name": name[:MAX_NAME].rstrip("."),
        "version": NO_VERSION if version is None else version.text,
        "description": next(filter(_is_text, descriptions), ""),
        "kind": INSTRUCTION,
        "namespace": namespace or _first(name),
    }
    if tags := tags_of(frontmatter):
        out["tags"] = tags
    return out


def _two_versions(written: str, directory: Version) -> Problem:
    message = f"it says version {written[:100]}, and its directory is {directory.text}"
    return problem("manifest-disagrees", message, hint="give both the same version")


def _first(name: str) -> str:
    """Return the first part of a dotted name, or "" for a name without dots."""
    return name.rpartition(".")[0].partition(".")[0]


def _field(frontmatter: Mapping[str, Json], field: str) -> str | None:
    """Return a field of `metadata`, else of the top level, as text; None if it is missing."""
    for fields in (mapping(frontmatter.get("metadata")), frontmatter):
        value = fields.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and value.strip() != ""


# From skill.toml


def _load(raw: bytes, problems: list[Problem]) -> dict[str, Json] | None:
    """Parse a `skill.toml` into JSON values; return None and add a problem if it is unreadable."""
    if len(raw) > MAX_TOML:
        message = f"it has {len(raw):,} bytes, and at most {MAX_TOML:,} are read"
        problems.append(problem("manifest-syntax", message, hint="shorten it"))
        return None
    text, line = raw.decode("utf-8-sig", "replace"), None
    try:
        raw.decode()
        return _json(load_toml(text))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message, hint = "it is not UTF-8", "save it as UTF-8"
    except _ManifestError as refused:
        message, hint = str(refused), refused.hint
    # TOMLDecodeError, and an integer with more digits than Python reads
    except ValueError as error:
        match = re.search(r"\(at line (\d+), column \d+\)", str(error))
        message, hint = f"it is not valid TOML: {str(error).split(' (at ')[0][:200]}", None
        if match:
            line = int(match[1])
        elif "at end of document" in str(error):
            line = text.count("\n") + 1
    problems.append(problem("manifest-syntax", message, line, hint))
    return None


def _json(table: dict[str, Any]) -> dict[str, Json]:
    """Return the table converted to JSON values.

    Raises:
        _ManifestError: JSON has no such value, or the values are too many or nested too deeply.
    """
    count = 0

    def convert(value: Any, path: str, depth: int) -> Json:
        nonlocal count
        count += 1
        if depth > MAX_DEPTH:
            raise _ManifestError(f"{path[:100]}: nested deeper than {MAX_DEPTH} levels")
        if count > MAX_NODES:
            raise _ManifestError(f"{path[:100]}: more than {MAX_NODES} values")
        if isinstance(value, dict):
            return {
                key: convert(item, f"{path}.{key}"[:200], depth + 1)
                for key, item in value.items()  # pyright: ignore[reportUnknownVariableType]
            }
        if isinstance(value, list):
            return [convert(item, path, depth + 1) for item in value]  # pyright: ignore[reportUnknownVariableType]
        if hasattr(value, "isoformat"):  # a date or a time
            return value.isoformat()
        if isinstance(value, float) and not math.isfinite(value):
            raise _ManifestError(f"{path[:100]}: JSON has no {value}")
        if isinstance(value, int) and value not in _INTEGERS:
            raise _ManifestError(f"{path[:100]}: an integer of more than 64 bits")
        return value

    return {key: convert(value, key[:200], 1) for key, value in table.items()}


class _ManifestError(SkillsServerError):
    """Raised for a line or a value of a `skill.toml` that is not read."""

    def __init__(self, message: str, hint: str = "write it as text, or shorten it") -> None:
        super().__init__(message)
        self.hint = hint


def _completed(
    given: dict[str, Json], made: Mapping[str, Json], problems: list[Problem]
) -> dict[str, Json]:
    """Return the fields of `skill.toml`, with missing required ones taken from `made`."""
    fields = dict(given)
    name = fields.setdefault("name", made["name"])
    if "name" not in given:
        message = f"it has no name; {made['name']} is used, after the directory"
        problems.append(problem("manifest-incomplete", message, hint="add name = ..."))
    runs = "entrypoint" in mapping(fields.get("runtime"))
    defaults: dict[str, Json] = {
        "version": made["version"],
        "description": made["description"],
        "kind": ACTION if runs else INSTRUCTION,
        "namespace": _first(name) if isinstance(name, str) else "",
    }
    for field, value in defaults.items():
        if field not in fields:
            fields[field] = value
            if field != "namespace":  # the protocol's minimal manifest has no namespace
                message = f"it has no {field}; {str(value)[:60]!r} is used"
                problems.append(problem("manifest-incomplete", message, hint=f"add {field} = ..."))
    return fields


def _check(fields: Mapping[str, Json], files: Collection[str], problems: list[Problem]) -> None:
    def wrong(code: str, message: str, hint: str) -> None:
        problems.append(problem(code, message, hint=hint))

    name = fields["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        hint = "use letters, digits, '_' and '-', with dots between the parts"
        wrong("manifest-field", f"the name {str(name)[:100]!r} is not valid", hint)
    version, numbers = fields["version"], 'write three numbers, as in "1.0.0"'
    parsed = parse_version(version) if isinstance(version, str) else None
    if parsed is None:
        message = f"the version {str(version)[:100]!r} is not a semantic version"
        wrong("manifest-field", message, numbers)
    elif parsed.is_short:
        message = f"the version {parsed.text!r} omits numbers, which count as zero"
        wrong("manifest-form", message, numbers)
    for field in ("description", "namespace"):
        if not isinstance(fields[field], str):
            wrong("manifest-field", f"{field} is not text", "write it in quotes")
    if fields["kind"] not in (ACTION, INSTRUCTION):
        message = f"the kind {str(fields['kind'])[:100]!r} is unknown"
        wrong("manifest-field", message, f'write "{ACTION}" or "{INSTRUCTION}"')
    tags = fields.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        wrong("manifest-form", "tags is not a list of texts", 'write tags = ["one", "two"]')
    for field in ("runtime", "inputs", "permissions"):
        if not isinstance(fields.get(field, {}), dict):
            wrong("manifest-form", f"{field} is not a table", f"write it below [{field}]")
    if fields["kind"] == ACTION:
        entry = mapping(fields.get("runtime")).get("entrypoint")
        if not isinstance(entry, str):
            message = "an action without an entry point cannot be executed"
            wrong("manifest-runtime", message, "add entrypoint = ... below [runtime]")
        elif entry not in files:
            message = f"the entry point {entry[:100]!r} is not a file of the skill"
            wrong("manifest-runtime", message, "name a file by its path in the skill")


def _compare(
    given: Mapping[str, Json], frontmatter: Mapping[str, Json], path: str, problems: list[Problem]
) -> None:
    """Report fields in which SKILL.md differs; a name with blanks or capitals there is a title."""
    other: dict[str, Json] = {field: frontmatter.get(field) for field in ("description", "kind")}
    other |= {field: _field(frontmatter, field) for field in ("version", "namespace")}
    other["tags"] = tags_of(frontmatter) or None
    differ = [key for key, value in other.items() if value not in (None, given.get(key, value))]
    title, name = frontmatter.get("name"), given.get("name")
    if isinstance(title, str) and isinstance(name, str) and _AGENT_SKILLS_NAME.fullmatch(title):
        plain = re.sub(r"[._]+", "-", name.lower())
        if plain != title and not plain.endswith(f"-{title}"):
            differ.append("name")
    last = parse_version(path.rpartition("/")[2].removeprefix("v"))
    version = given.get("version")
    if last is not None and not last.is_short and isinstance(version, str) and version != last.text:
        problems.append(_two_versions(version, last))
    if differ:
        message = f"SKILL.md has another {', '.join(sorted(differ))}; "
        message += f"{SKILL_TOML} takes precedence in the Skills Protocol"
        problems.append(problem("manifest-disagrees", message))
