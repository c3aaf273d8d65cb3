"""Notes of a reviewer: what is not wrong, and would make a skill better. `validate` alone looks for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from mcp_skills_server.codes import problem
from mcp_skills_server.format.excerpts import literal
from mcp_skills_server.model import SKILL_MD, Problem, Skill

_WHEN: Final = re.compile(
    r"\b(?:when(?:ever)?|if|for|before|after|during|while|triggers?|asks?|wants?|needs?|used? (?:to|in|by|on|with|as)"
    r"|use (?:this|it|proactively)|must be used)\b",
    re.IGNORECASE,
)
"""Words by which a description says for what, or when, its skill is to be used."""
_LICENSES: Final = re.compile(r"(?:.*/)?(?:licen[cs]e|notice|copying|authors|readme|changelog)[^/]*", re.IGNORECASE)
"""Files that stand for themselves."""
_PARTS: Final = re.compile(r"(?:^|/)(?:evals|tests?|\.[^/]*|__init__\.py$|skill\.toml$|skill\.oms\.sig$)")
COLLIDES: Final = 0.8
"""The share of their words from which on two skills collide."""
_NAMED: Final = 5
_NAME: Final = re.compile(r"[\w.-]++")
_CHECKABLE: Final = re.compile(
    r"\d|\b(?:python|node|npm|git|docker|bash|java|ruby|rust|go|deno|bun|uv|pip|linux|macos|windows|network|internet"
    r"|claude|codex|cursor|copilot|gemini|opencode|mcp|api|cli|browser|chrome)\b",
    re.IGNORECASE,
)


def advise(skill: Skill, line: int, compatibility_line: int) -> list[Problem]:
    """Return the notes on the frontmatter of a skill, of no other file.

    Args:
        skill: the skill.
        line: of its description.
        compatibility_line: of its field `compatibility`.
    """
    found: list[Problem] = []
    if skill.description and not _WHEN.search(skill.description):
        found.append(problem("description-when", "the description does not say when to use the skill", line))
    compatibility = skill.frontmatter.get("compatibility")
    if isinstance(compatibility, str) and compatibility and not _CHECKABLE.search(compatibility):
        message = f"compatibility {literal(compatibility)} names nothing that a program can look for"
        found.append(problem("compatibility-form", message, compatibility_line))
    return found


def unused_files(texts: Mapping[str, str], files: Collection[str]) -> list[Problem]:
    """Return a note on the files of a skill that no text of it names, by their names or folders.

    Args:
        texts: the text files of the skill, by path.
        files: the paths of all its files.
    """
    named_in: dict[str, str | None] = {}
    for path, text in texts.items():
        for word in _words(text):
            named_in[word] = path if named_in.get(word, path) == path else None
    unused: list[str] = []
    for path in files:
        if path == SKILL_MD or _LICENSES.fullmatch(path) or _PARTS.search(path):
            continue
        folder, _, name = path.rpartition("/")
        words = (name, name.rpartition(".")[0] or name, *filter(None, folder.split("/")))
        if all(named_in.get(word, path) == path for word in words):
            unused.append(path)
    if not unused:
        return []
    more = f" and {len(unused) - _NAMED} more" if len(unused) > _NAMED else ""
    return [problem("file-unused", f"no text of the skill names {', '.join(map(literal, unused[:_NAMED]))}{more}")]


def overlap(skill: Skill, other: Skill, share: float) -> Problem:
    """Return the note that a skill says much the same of itself as another one."""
    words = f"{share:.0%} of the words that decide are also those of {literal(other.path)}"
    return problem("description-overlap", f"{words}, which a model may take for {literal(skill.name or skill.path)}")


def _words(text: str) -> Iterator[str]:
    """Yield the names of a text, and the parts of paths and of names with an extension."""
    for found in _NAME.finditer(text):
        word = found[0].strip(".")
        yield word
        if "." in word:
            yield word.rpartition(".")[0]
