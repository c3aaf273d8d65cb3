"""Linter of a skill's file names and files, and of all skills together. Pure: it takes bytes.

The path of a problem is relative to its skill, which the registry locates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from mcp_skills_server.format import file_names, frontmatter, manifest, media
from mcp_skills_server.format.dependencies import Served, resolve
from mcp_skills_server.format.file_names import NameFault
from mcp_skills_server.format.ignored import summarize
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Snapshot, Standing
from mcp_skills_server.validation import rules, text
from mcp_skills_server.validation.rule import Finding, Rules, TextFile

_VERSION_CONTROL: Final = (".git", ".hg", ".svn", ".jj")
_NAMED: Final = 5


@dataclass(frozen=True)
class FileNames:
    """The paths of a skill's files, and those that are ignored because of their names."""

    served: Collection[str]
    unserved: list[str]

    @cached_property
    def faults(self) -> list[NameFault]:
        """Return the faults of the names of served files."""
        return list(file_names.faults(self.served))


NAMES = Rules[FileNames]()
CATALOG = Rules[Snapshot]()


def lint_names(skill: Skill, served: Collection[str], unserved: Iterable[str]) -> list[Problem]:
    """Return the problems of the names in a skill's directory.

    Args:
        served: the paths of its files, without those of nested skills.
        unserved: the paths in its directory that are ignored because of their names.
    """
    # A skill at the top of a checkout has these folders legitimately.
    passed_over = () if skill.directory else _VERSION_CONTROL
    subject = FileNames(served, [path for path in unserved if not path.startswith(passed_over)])
    return NAMES.check(subject, deep=True)


def lint_file(skill: Skill, path: str, raw: bytes) -> list[Problem]:
    """Return the problems of a skill's file, such as dangling references and hidden text."""
    found: list[Problem] = []
    markdown, first_line = "", 1
    readable, media_type = skill.standing > Standing.UNUSABLE, media.media_type(path)
    content = media.as_text(raw, media_type)
    if media.is_lfs_pointer(raw):  # text, even if the path is that of an image
        content = raw.decode("utf-8", "replace")
    if path == SKILL_MD and readable:
        document = frontmatter.parse(raw)
        markdown, first_line = document.body, document.body_line
        found += rules.check_deeply(document, skill.files)
    elif path == manifest.SKILL_TOML and readable:
        found += manifest.read(raw, skill.frontmatter, skill.path, skill.files).problems
    elif path != SKILL_MD and content is not None and media_type == media.MARKDOWN:
        markdown = content
    if content is not None:
        found += text.RULES.check(TextFile(content, markdown, first_line), deep=True)
    return [each._replace(path=path) for each in found]


@NAMES.rule("ignored-file", deep=True)
def _ignored_file(names: FileNames) -> Iterator[Finding]:
    if names.unserved:
        paths = summarize(names.unserved)
        yield Finding(f"ignored because of their names, and not served: {paths}")


@NAMES.rule("hidden-characters", deep=True)
def _hidden_characters(names: FileNames) -> Iterator[Finding]:
    for fault in names.faults:
        if fault.is_hidden:
            yield Finding(fault.message, hint="rename the file without it", path=fault.path)


@NAMES.rule("file-name-portable", deep=True)
def _file_name_portable(names: FileNames) -> Iterator[Finding]:
    for fault in names.faults:
        if not fault.is_hidden:
            yield Finding(fault.message, path=fault.path)


# Rules on all skills together


@CATALOG.rule("name-shared", deep=True)
def _name_shared(snapshot: Snapshot) -> Iterator[Finding]:
    for path in snapshot.paths(Standing.VALID):
        name = snapshot.skills[path].name
        sharing = snapshot.named(name, Standing.VALID)
        if len(sharing) > 1:
            yield Finding(f"the name {name} is also that of {_others(path, sharing)}", skill=path)


def _others(path: str, sharing: Sequence[str]) -> str:
    """Format up to five of the other paths, and the number of the rest."""
    named = [each for each in sharing[: _NAMED + 1] if each != path][:_NAMED]
    left = len(sharing) - 1 - len(named)
    return ", ".join(named) + (f" and {left:,} more" if left else "")


@CATALOG.rule("dependency-unresolved", deep=True)
def _dependency_unresolved(snapshot: Snapshot) -> Iterator[Finding]:
    """Check `skill://` resources only: tools and prompts depend on the running server."""
    for path in snapshot.paths(Standing.VALID):
        for missing in resolve(snapshot.skills[path], snapshot, Served(), Standing.VALID).missing:
            if missing.startswith("resource skill://"):
                message = f"the {missing} that it depends on is not a file of a served skill"
                yield Finding(message, path=SKILL_MD, skill=path)
