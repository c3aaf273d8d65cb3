"""Notes of a reviewer that take all files of a skill, or all skills: `validate` alone looks for them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from mcp_skills_server.codes import problem
from mcp_skills_server.format.excerpts import literal
from mcp_skills_server.model import SKILL_MD, Problem, Skill

_LICENSES: Final = re.compile(r"licen[cs]e|notice|copying|authors|readme|changelog", re.IGNORECASE)
"""Files that stand for themselves."""
_PARTS: Final = re.compile(r"(?:^|/)(?:evals|tests?|\.[^/]*|__init__\.py$|skill\.toml$|skill\.oms\.sig$)")
COLLIDES: Final = 0.8
"""The share of their words from which on two skills collide."""
_NAMED: Final = 5
_NAME: Final = re.compile(r"[\w.-]++")


def unnamed_files(texts: Mapping[str, str], files: Iterable[str]) -> list[str]:
    """Return which of these files of a skill no text names, by their names or folders.

    Args:
        texts: text files of the skill, by path.
        files: paths of its files.
    """
    named_in: dict[str, str | None] = {}
    for path, text in texts.items():
        for word in _words(text):
            named_in[word] = path if named_in.get(word, path) == path else None
    unused: list[str] = []
    for path in files:
        folder, _, name = path.rpartition("/")
        if path == SKILL_MD or _LICENSES.match(name) or _PARTS.search(path):
            continue
        words = (name, name.rpartition(".")[0] or name, *filter(None, folder.split("/")))
        if all(named_in.get(word, path) == path for word in words):
            unused.append(path)
    return unused


def unused_files(unused: Sequence[str]) -> Problem:
    """Return the note that no text of a skill names these files."""
    more = f" and {len(unused) - _NAMED} more" if len(unused) > _NAMED else ""
    return problem("file-unused", f"no text of the skill names {', '.join(map(literal, unused[:_NAMED]))}{more}")


def overlap(skill: Skill, other: Skill, share: float, more: int) -> Problem:
    """Return the note that a skill says much the same of itself as another one, and as so many more."""
    others = f"{literal(other.path)} and {more} more" if more else literal(other.path)
    words = f"{share:.0%} of the words that decide are also those of {others}"
    return problem("description-overlap", f"{words}, which a model may take for {literal(skill.name or skill.path)}")


def _words(text: str) -> Iterator[str]:
    """Yield the names of a text, and the parts of paths and of names with an extension."""
    for found in _NAME.finditer(text):
        word = found[0].strip(".")
        yield word
        if "." in word:
            yield word.rpartition(".")[0]
