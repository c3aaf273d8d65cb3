"""Lock file, with the revision of each source and the digests of its skills, and the gate for it.

    version = 1

    [[source]]
    from = "git+https://git.example/acme/skills@main"
    revision = "4c0c2d5f5b4be0a2c6a80fcd1d4e4d3a2f3e8f10"

    [source.skills]
    "billing/refunds" = "sha256:..."

A digest covers all files of a skill. A source may have several entries with different revisions;
each entry then lists the skills of its revision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.reader import SkillReader
from mcp_skills_server.codes import problem
from mcp_skills_server.durable import read_regular, replace_file
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Skill, Standing, printable
from mcp_skills_server.model.decoding import load_tables
from mcp_skills_server.model.digests import is_digest

_VERSION: Final = 1
_MAX_BYTES: Final = 64 << 20
_HEAD: Final = (
    "# Made by 'mcp-skills-server lock' and 'update'; do not edit. Commit it beside what it "
    "locks.\n"
)


@dataclass(frozen=True, slots=True)
class LockedSource:
    """One source at one revision."""

    given: str
    """ROOT argument of the source; a path is relative to the lock file's folder."""
    revision: str
    """Revision of the source; "" for a folder."""
    skills: Mapping[str, str]
    """Digest over all files by skill path, of the skills that may be served."""


def parse(text: str) -> tuple[LockedSource, ...]:
    """Parse the text of a lock file into its sources.

    Raises:
        ValueError: the text is not a valid lock file; the message has the reason and the place.
    """
    entries = load_tables(text, _VERSION, "source")
    out = tuple(_source(number, entry) for number, entry in enumerate(entries, 1))
    if len({(source.given, source.revision) for source in out}) < len(out):
        raise ValueError("a source appears twice with one revision")
    return out


def _source(number: int, entry: Mapping[str, Any]) -> LockedSource:
    given, revision, skills = entry.get("from"), entry.get("revision", ""), entry.get("skills", {})
    if (
        not isinstance(given, str)
        or not given
        or "\0" in given
        or not isinstance(revision, str)
        or not isinstance(skills, dict)
    ):
        raise ValueError(
            f"source {number} needs 'from' and 'revision', which are text, and a table 'skills'"
        )
    if unknown := entry.keys() - {"from", "revision", "skills"}:
        raise ValueError(f"source {number} has unknown keys: {', '.join(sorted(unknown))}")
    for path, digest in cast("dict[str, Any]", skills).items():
        if not is_digest(digest):
            fault = f"the digest of {path} is not 'sha256:' and 64 hex digits"
            raise ValueError(f"source {number}: {fault}")
    return LockedSource(given, revision, cast("dict[str, str]", skills))


def to_toml(sources: Sequence[LockedSource]) -> str:
    """Return the text of a lock file: sources in their order, the skills of each sorted by path."""
    import tomli_w  # imported here: only writing needs it

    tables = [
        {
            "from": source.given,
            "revision": source.revision,
            "skills": dict(sorted(source.skills.items())),
        }
        for source in sources
    ]
    return _HEAD + tomli_w.dumps({"version": _VERSION, "source": tables})


def read(path: Path) -> tuple[LockedSource, ...]:
    """Read the sources of a lock file.

    Raises:
        UsageError: the file is missing, unreadable or invalid.
    """
    shown = printable(str(path))
    try:
        raw, _ = read_regular(path, _MAX_BYTES)
        return parse(raw.decode())
    except FileNotFoundError:
        fault = "no such lock file; 'mcp-skills-server lock ROOT...' makes one"
    except OSError as error:
        fault = f"cannot be read ({error.strerror}); give another --lock"
    except UnicodeDecodeError:
        fault = "not a valid lock file: it is not UTF-8; recreate it with 'lock'"
    except ValueError as error:
        fault = f"not a valid lock file: {error}; recreate it with 'lock'"
    raise UsageError(f"{shown}: {fault}")


def write(path: Path, sources: Sequence[LockedSource]) -> None:
    """Replace a lock file atomically.

    Raises:
        UsageError: the file cannot be written, or is a symlink, which a clone may bring.
    """
    path = path.absolute()
    if path.is_symlink():
        target = printable(str(path.resolve()))
        raise UsageError(f"{printable(str(path))}: a link to {target}; name that file")
    mode = None
    with suppress(OSError):
        mode = path.stat().st_mode & 0o777
    try:
        replace_file(path, to_toml(sources).encode(), mode)
    except OSError as error:
        fault = f"cannot be written ({error.strerror}); give another path"
        raise UsageError(f"{printable(str(path))}: {fault}") from None


def is_pinned_elsewhere(path: str, source: LockedSource, locked: Iterable[LockedSource]) -> bool:
    """Tell whether another entry pins this skill to another revision of the same source."""
    others = (other for other in locked if other.given == source.given and other is not source)
    return any(path in other.skills for other in others)


class Pins:
    """A gate of the registry that admits only locked skills, and reports the others.

    `entries` has the entry of the lock file for each root by its absolute folder, and may be
    replaced. A root without an entry has no locked skills.
    """

    def __init__(self, entries: Mapping[str, LockedSource]) -> None:
        self.entries = entries

    def __call__(self, reader: SkillReader, skill: Skill) -> GateRefusal | None:
        """Return the refusal of a skill, or None if its files match the lock file."""
        # An unusable skill may have any size, so it is not hashed. Its refusal is silent, and a
        # later root may serve the path.
        if skill.standing is Standing.UNUSABLE:
            return GateRefusal(None)
        entry = self.entries.get(reader.roots[skill.root].given)
        if entry is None or skill.path not in entry.skills:
            if entry is not None and is_pinned_elsewhere(skill.path, entry, self.entries.values()):
                return GateRefusal(None)
            return GateRefusal(problem("lock-missing", "the lock file does not name this skill"))
        if reader.digest_over(skill) != entry.skills[skill.path]:
            message = "its files are not those that the lock file names"
            return GateRefusal(problem("lock-differs", message))
        return None

    def unserved(self, reader: SkillReader, served: Mapping[str, Skill]) -> list[str]:
        """Return the paths of locked skills that are not served."""
        index = {root.given: root.index for root in reader.roots}
        unserved: list[str] = []
        for root, entry in self.entries.items():
            for path in entry.skills:
                skill = served.get(path)
                is_here = skill is not None and skill.root == index.get(root)
                if skill is None or not is_here or skill.standing is Standing.UNUSABLE:
                    unserved.append(path)
        return unserved
