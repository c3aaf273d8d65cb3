"""Reasons of a match: the words of a question that stand in each text of a skill. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.search_text import texts_of, words_of
from mcp_skills_server.runtime.stop_words import STOP_WORDS

FIELDS: Final = ("name", "title", "tags", "description", "headings", "path", "opening")
"""The names of a skill's searched texts, in their order."""
_STEM: Final = 4
_MOST_WORDS: Final = 24


def reasons(skill: Skill, question: str) -> Sequence[tuple[str, Sequence[str]]]:
    """Return the texts in which words of the question stand, or other forms of them, with these words.

    It tells what a person can see. The ranking also knows of words that look alike and of meanings; where only those
    found the skill, there is nothing here.
    """
    asked = [word for word in dict.fromkeys(words_of(question[:2_000])) if word not in STOP_WORDS][:_MOST_WORDS]
    found: list[tuple[str, Sequence[str]]] = []
    for field, text in zip(FIELDS, texts_of(skill), strict=True):
        there = words_of(text)
        listed = "".join(f"\n{each}" for each in there)  # looked through at once: a page has a hundred skills
        hits = [word for word in asked if f"\n{word}" in listed or _has_form(word, there, listed)]
        if hits:
            found.append((field, hits))
    return found


def _has_form(asked: str, there: Sequence[str], listed: str) -> bool:
    """Tell whether one of these words is another form of the one that was asked for."""
    return f"\n{asked[:_STEM]}" in listed and any(
        len(each) >= _STEM and asked.startswith(each[: max(_STEM, len(each) - 2)]) and abs(len(asked) - len(each)) < 4
        for each in there
    )
