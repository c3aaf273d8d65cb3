"""Linter of a skill's file names and files, and of all skills together. Pure: it takes bytes.

The path of a problem is relative to its skill, which the registry locates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from mcp_skills_server.codes import problem
from mcp_skills_server.format import file_names, frontmatter, manifest, media
from mcp_skills_server.format.dependencies import Served, resolve
from mcp_skills_server.format.ignored import summarize
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Snapshot, Standing
from mcp_skills_server.validation import rules, text
from mcp_skills_server.validation.rule import TextFile

_VERSION_CONTROL: Final = (".git", ".hg", ".svn", ".jj")
_HARMLESS: Final = frozenset(
    ("__pycache__", ".DS_Store", ".gitkeep", ".gitignore", ".claude-plugin")
)
"""Names that systems and tools create or need; no author means to serve them."""
_MAX_NAMED: Final = 5


def lint_names(skill: Skill, served: Collection[str], unserved: Iterable[str]) -> Iterator[Problem]:
    """Yield the problems of the names in a skill's directory.

    Args:
        served: the paths of its files, without those of nested skills.
        unserved: the paths in its directory that are ignored because of their names.
    """
    # A skill at the top of a checkout has these folders legitimately.
    passed_over = () if skill.directory else _VERSION_CONTROL
    ignored = [
        path
        for path in unserved
        if not path.startswith(passed_over) and path.rstrip("/").rpartition("/")[2] not in _HARMLESS
    ]
    if ignored:
        message = f"ignored because of their names, and not served: {summarize(ignored)}"
        yield problem("ignored-file", message)
    folder = [skill.directory] if skill.standing > Standing.UNUSABLE else []
    of_folder = (fault._replace(path="") for fault in file_names.faults(folder))
    for fault in (*file_names.faults(served), *of_folder):
        if fault.is_hidden:
            hint = "rename the file without it"
            yield problem("hidden-characters", fault.message, hint=hint).at(fault.path, "")
        else:
            yield problem("file-name-portable", fault.message).at(fault.path, "")


def lint_file(skill: Skill, path: str, raw: bytes) -> list[Problem]:
    """Return the problems of a skill's file, such as dangling references and hidden text."""
    problems: list[Problem] = []
    body_line = 1
    is_readable, media_type = skill.standing > Standing.UNUSABLE, media.media_type(path)
    content = media.as_text(raw, media_type)
    if media.is_lfs_pointer(raw):  # text, even if the path is that of an image
        content = raw.decode("utf-8", "replace")
    if path == SKILL_MD and is_readable:
        document = frontmatter.parse(raw)
        body_line = document.body_line
        problems += rules.check_deeply(document, skill.files)
    elif path == manifest.SKILL_TOML and is_readable:
        problems += manifest.read(raw, skill.frontmatter, skill.path, skill.files).problems
    if content is not None and path.startswith("references/") and path.endswith(".md"):
        problems += rules.check_links(content, path, skill.files)
    if content is not None:
        problems += text.RULES.check(TextFile(content, path, body_line))
    return [problem._replace(path=path) for problem in problems]


def lint_catalog(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield the problems of all skills together, each with its skill.

    Of unresolved dependencies only `skill://` resources count: tools and prompts depend on the
    running server.
    """
    for path in snapshot.paths(Standing.VALID):
        skill = snapshot.skills[path]
        sharing = snapshot.named(skill.name, Standing.VALID)
        if len(sharing) > 1:
            message = f"the name {skill.name} is also that of {_others(path, sharing)}"
            yield problem("name-shared", message).at("", path)
        for missing in resolve(skill, snapshot, Served(), Standing.VALID).missing:
            if missing.startswith("resource skill://"):
                message = f"the {missing} that it depends on is not a file of a served skill"
                yield problem("dependency-unresolved", message).at(SKILL_MD, path)


def _others(path: str, sharing: Sequence[str]) -> str:
    """Format up to five of the other paths, and the number of the rest."""
    named = [other for other in sharing[: _MAX_NAMED + 1] if other != path][:_MAX_NAMED]
    left = len(sharing) - 1 - len(named)
    return ", ".join(named) + (f" and {left:,} more" if left else "")
