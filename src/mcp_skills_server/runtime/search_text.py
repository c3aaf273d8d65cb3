"""The searched texts of a skill: folded words, tokenized as questions are."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from mcp_skills_server.format import identity
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.model import Skill

Texts: TypeAlias = tuple[str, ...]
"""The texts of a skill, in the order of `FIELDS`."""
FIELDS: Final = ("name", "title", "tags", "description", "headings", "path", "opening")

_TEXT_LENGTH: Final = 4_000
"""Characters that count of each text."""
_WORD: Final = re.compile(r"[^\W_]+")
_NO_WORD: Final = re.compile("[^\\w\x01-\x7f]+")
_NOT_ASCII: Final = re.compile("[^\0-\x7f]+")
_LONG_WORD: Final = re.compile(r"[^\W\d_]{4,40}")
_STEM: Final = 4
_QUESTION_LENGTH: Final = 2_000
_QUESTION_WORDS: Final = 24
_LETTERS: Final = str.maketrans(
    {code: char.lower() if (char := chr(code)).isalpha() else " " for code in range(128)}
)
"""The translation that leaves small letters and blanks of a text in ASCII."""


def _words_in(name: str) -> frozenset[str]:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


STOP_WORDS: Final = _words_in("stop_words.txt")
"""Words that say nothing about what is looked for, in the languages that people ask in most."""
COMMON_WORDS: Final = _words_in("common_words.txt")
"""Words of everyday English that say little in a sentence, where others say more."""


def _fold(text: str) -> str:
    """Return the text with nothing but folded words and what stands between words in ASCII, which
    stays as it is."""
    text = text.replace("\0", " ")
    if text.isascii():
        return text
    return _NOT_ASCII.sub(lambda found: _fold_run(found[0]), text)


@lru_cache(maxsize=512)  # in most texts these are the same few dashes, quotes and accented letters
def _fold_run(run: str) -> str:
    """Return a run of characters beyond ASCII, folded; nothing of it depends on what stands
    around."""
    whole = unicodedata.normalize("NFKD", run.casefold())
    letters = "".join(each for each in whole if not unicodedata.combining(each))
    # Languages that do not put blanks between their words; Hangul does, but with endings. The
    # pattern takes a millisecond to compile, for which a question in ASCII need not wait.
    spaced = re.sub(
        "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+",
        lambda found: f" {_pairs(found[0])} ",
        unicodedata.normalize("NFC", letters),
    )
    return _NO_WORD.sub(" ", spaced)


def _pairs(run: str) -> str:
    """Return each character with the next one, which is the usual way to search what has no blanks
    between words."""
    return " ".join(run[start : start + 2] for start in range(max(len(run) - 1, 1)))


def words_of(text: str) -> list[str]:
    """Return the words of a text or a question, folded."""
    return _WORD.findall(_fold(text).lower())


def texts_of(skill: Skill) -> Texts:
    """Return what is indexed of a skill, in the order of `Texts`. Always the same of the same
    skill."""
    title = identity.title(skill) or ""
    headings = " ".join(each for each in skill.reading.headings if each != title)
    tags = " ".join(str(tag) for tag in tags_of(skill.frontmatter))
    parts = (
        skill.name,
        title,
        tags,
        skill.description,
        headings,
        skill.path,
        skill.reading.opening,
    )
    return tuple(_fold(text[:_TEXT_LENGTH]) for text in parts)


def names_of(texts: Texts) -> set[str]:
    """Return what to say to mean one skill and no other: its name or its path, however its words
    are held together."""
    name, path = texts[0], texts[5]
    return {"".join(_WORD.findall(each.lower())) for each in (name, path)} - {""}


def described_words(texts: Texts) -> set[str]:
    """Return the words of the name, the title, the tags and the description that are long enough to
    look like others.
    """
    text = "\n".join(texts[:4])
    if not text.isascii():
        return {*_LONG_WORD.findall(text.lower())}
    return {word for word in text.translate(_LETTERS).split() if 4 <= len(word) <= 40}


def spelt_words(texts: Texts) -> set[str]:
    """Return the words of the name, the title and the tags, and of a plural the singular, too."""
    words = {
        word for text in texts[:3] for word in _WORD.findall(text.lower()) if not word.isdecimal()
    }
    return words | {word[:-1] for word in words if len(word) > 4 and word[-1] == "s" != word[-2]}


def reasons(skill: Skill, question: str) -> Sequence[tuple[str, Sequence[str]]]:
    """Return the texts in which words of the question stand, or other forms of them, with these
    words.

    It tells what a person can see. The ranking also knows of words that look alike and of meanings;
    where only those found the skill, there is nothing here.
    """
    asked = [
        word
        for word in dict.fromkeys(words_of(question[:_QUESTION_LENGTH]))
        if word not in STOP_WORDS
    ][:_QUESTION_WORDS]
    found: list[tuple[str, Sequence[str]]] = []
    for field, text in zip(FIELDS, texts_of(skill), strict=True):
        there = words_of(text)
        # looked through at once: a page has a hundred skills
        listed = "".join(f"\n{each}" for each in there)
        hits = [word for word in asked if f"\n{word}" in listed or _has_form(word, there, listed)]
        if hits:
            found.append((field, hits))
    return found


def _has_form(asked: str, there: Sequence[str], listed: str) -> bool:
    """Tell whether one of these words is another form of the one that was asked for."""
    return f"\n{asked[:_STEM]}" in listed and any(
        len(each) >= _STEM
        and asked.startswith(each[: max(_STEM, len(each) - 2)])
        and abs(len(asked) - len(each)) < 4
        for each in there
    )
