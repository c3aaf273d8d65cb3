"""Notes on skills: all findings of the severity "note", which only `validate` collects."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.codes import problem
from mcp_skills_server.errors import listed
from mcp_skills_server.format import media
from mcp_skills_server.format.excerpts import literal
from mcp_skills_server.model import SKILL_MD, Problem, Skill, Standing
from mcp_skills_server.runtime.overlap import pairs

MAX_TEXT: Final = 1 << 20
"""Largest file, in bytes, that is searched for file names and comments, and corrected."""
_LICENSES: Final = re.compile(r"licen[cs]e|notice|copying|authors|readme|changelog", re.IGNORECASE)
"""Files that no other file of a skill needs to name."""
_TOOL_FILES: Final = re.compile(
    r"(?:^|/)(?:evals|tests?|\.[^/]*|__init__\.py$|(?:skill|freshness)\.toml$|skill\.oms\.sig$)"
)
_COLLIDES: Final = 0.8
"""The least share of common words with which two skills collide."""
_MAX_NAMED: Final = 5
_NAME: Final = re.compile(r"[\w.-]++")


def notes(registry: Registry, skills: Sequence[Skill]) -> list[Problem]:
    """Return the notes on these checked skills; skip files that cannot be read."""
    problems: list[Problem] = []
    for skill in skills:
        known = (*skill.problems, *registry.checks.problems_of(skill))
        problems += [problem for problem in known if problem.severity == "note"]
    readable = [skill for skill in skills if skill.standing > Standing.UNUSABLE]
    usable = [skill for skill in readable if SKILL_MD in skill.files]
    for skill in usable:
        # Most skills name all of their files in SKILL.md, so that no other file has to be read.
        unused = _unnamed_files(_texts(registry, skill, [SKILL_MD]), skill.files)
        if unused:
            unused = _unnamed_files(_texts(registry, skill, skill.files), unused)
        if unused:
            problems.append(_unused_files(unused).at(_place(registry, skill), skill.path))
    return [*problems, *overlap_notes(registry, usable)]


def overlap_notes(registry: Registry, usable: Sequence[Skill]) -> list[Problem]:
    """Return the notes on skills that a model may take for each other, copies among them."""
    problems: list[Problem] = []
    nearest: dict[Skill, tuple[Skill, float]] = {}
    counts: Counter[Skill] = Counter()
    for skill, near in pairs(usable, _COLLIDES):  # most similar first
        if skill.path == near.other.path:
            continue  # of several roots, of which one hides the other
        for one, other in ((skill, near.other), (near.other, skill)):
            nearest.setdefault(one, (other, near.share))
            counts[one] += 1
    for skill, (other, share) in nearest.items():
        note = _overlap(skill, other, share, counts[skill] - 1)
        problems.append(note.at(_place(registry, skill), skill.path))
    return problems


def _texts(registry: Registry, skill: Skill, paths: Iterable[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for path in paths:
        file = skill.files[path]
        if file.size > MAX_TEXT:
            continue
        with suppress(OSError):
            text = media.as_text(registry.read(file), media.media_type(path))
            if text is not None:
                texts[path] = text
    return texts


def _place(registry: Registry, skill: Skill) -> str:
    return registry.roots[skill.root].show(skill.files[SKILL_MD].location)


def _unnamed_files(texts: Mapping[str, str], files: Iterable[str]) -> list[str]:
    """Return those of `files` that no other file of the skill names, by file or by folder."""
    named_in: dict[str, str | None] = {}
    for path, text in texts.items():
        for word in _words(text):
            named_in[word] = path if named_in.get(word, path) == path else None
    unused: list[str] = []
    for path in files:
        folder, _, name = path.rpartition("/")
        if path == SKILL_MD or _LICENSES.match(name) or _TOOL_FILES.search(path):
            continue
        words = (name, name.rpartition(".")[0], *filter(None, folder.split("/")))
        if all(named_in.get(word, path) == path for word in words):
            unused.append(path)
    return unused


def _unused_files(unused: Sequence[str]) -> Problem:
    """Return the note that no text of a skill names these files."""
    names = listed([*map(literal, unused)], _MAX_NAMED)
    return problem("file-unused", f"no text of the skill names {names}")


def _overlap(skill: Skill, other: Skill, share: float, more: int) -> Problem:
    """Return the note that the descriptions of a skill and of `more + 1` others overlap."""
    others = f"{literal(other.path)} and {more} more" if more else literal(other.path)
    fault = f"{share:.0%} of the words that decide are also those of {others}"
    name = literal(skill.name or skill.path)
    return problem("description-overlap", f"{fault}, which a model may take for {name}")


def _words(text: str) -> Iterator[str]:
    """Yield each word of a text that may be a file name, also without its extension.

    Most tokens of a text repeat an earlier one, so each different token is searched once.
    """
    for token in set(text.split()):
        for written in _NAME.findall(token):
            word = written.strip(".")
            yield word
            if "." in word:
                yield word.rpartition(".")[0]
