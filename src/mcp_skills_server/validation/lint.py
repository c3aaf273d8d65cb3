"""What `validate` finds in one skill: its names, the text of each file, and its manifest. Pure: bytes come in.

Every Problem has the file's path in the skill; the registry knows where that lies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from mcp_skills_server.format import frontmatter, manifest, media
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Standing
from mcp_skills_server.validation import names, rules, text
from mcp_skills_server.validation.rule import FileNames, TextFile

_VERSION_CONTROL: Final = (".git", ".hg", ".svn", ".jj")


def lint_names(skill: Skill, served: Collection[str], unserved: Iterable[str]) -> list[Problem]:
    """Return what is wrong with the names in a skill's directory.

    Args:
        skill: the skill.
        served: the paths of its files, without those of nested skills.
        unserved: the paths of what is ignored there for its name.
    """
    # A checkout that is itself a skill has these, and they are its owner's.
    passed_over = () if skill.directory else _VERSION_CONTROL
    subject = FileNames(served, [path for path in unserved if not path.startswith(passed_over)])
    return names.RULES.check(subject, deep=True)


def lint_file(skill: Skill, path: str, raw: bytes) -> list[Problem]:
    """Return what is wrong in a file of a skill: dangling references, and what should not be in a skill.

    Args:
        skill: the skill.
        path: the file's path in it.
        raw: its bytes.
    """
    found: list[Problem] = []
    markdown, first_line = "", 1
    readable = skill.standing > Standing.UNUSABLE
    # A pointer is text in the place of what may be an image.
    content = (
        raw.decode("utf-8", "replace") if media.is_lfs_pointer(raw) else media.as_text(raw, media.media_type(path))
    )
    if path == SKILL_MD:
        if readable:
            document = frontmatter.parse(raw)
            markdown, first_line = document.body, document.body_line
            found += rules.check_deeply(document, skill.files)
    elif content is not None and media.media_type(path) == media.MARKDOWN:
        markdown = content
    if path == manifest.SKILL_TOML and readable:
        found += manifest.read(raw, skill.frontmatter, skill.path, skill.files).problems
    if content is not None:
        found += text.RULES.check(TextFile(content, markdown, first_line), deep=True)
    return [each._replace(path=path) for each in found]
