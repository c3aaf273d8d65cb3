"""The indexed texts of a skill, folded and tokenized in the same way as queries."""

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
"""The indexed texts of a skill, in the order of `FIELDS`."""
FIELDS: Final = ("name", "title", "tags", "description", "headings", "path", "opening")

_TEXT_LENGTH: Final = 4_000
"""The maximum number of characters of a text that are indexed."""
_WORD: Final = re.compile(r"[^\W_]+")
_NO_WORD: Final = re.compile("[^\\w\x01-\x7f]+")
_NOT_ASCII: Final = re.compile("[^\0-\x7f]+")
_LETTER_WORD: Final = re.compile(r"[^\W\d_]+")
_STEM: Final = 4
MAX_QUERY_CHARACTERS: Final = 2_000
MAX_KEYWORDS: Final = 24
"""The maximum number of characters, and of words, of a query that are used."""
_LETTERS: Final = str.maketrans(
    {code: char.lower() if (char := chr(code)).isalpha() else " " for code in range(128)}
)
"""The translation of ASCII text to lower case, with spaces for all but letters."""


def _words_in(name: str) -> frozenset[str]:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    text = " ".join(line for line in lines if not line.startswith("#"))
    return frozenset(text.split())


STOP_WORDS: Final = _words_in("stop_words.txt")
"""Stop words, in the most common languages of queries."""
COMMON_WORDS: Final = _words_in("common_words.txt")
"""Common English words, which are dropped from a sentence if it has others."""


def _fold(text: str) -> str:
    """Fold the non-ASCII characters of a text, and leave ASCII unchanged, except NUL."""
    text = text.replace("\0", " ")
    if text.isascii():
        return text
    return _NOT_ASCII.sub(lambda match: _fold_run(match[0]), text)


@lru_cache(maxsize=512)  # most texts repeat the same few dashes, quotes and accented letters
def _fold_run(run: str) -> str:
    """Fold a run of non-ASCII characters: case, accents, and bigrams of CJK."""
    whole = unicodedata.normalize("NFKD", run.casefold())
    letters = "".join(letter for letter in whole if not unicodedata.combining(letter))
    # CJK has no spaces between words; Hangul has, but words with endings. The pattern takes a
    # millisecond to compile, so it is compiled at its first use.
    spaced = re.sub(
        "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+",
        lambda match: f" {_pairs(match[0])} ",
        unicodedata.normalize("NFC", letters),
    )
    return _NO_WORD.sub(" ", spaced)


def _pairs(run: str) -> str:
    """Return the character bigrams of a run, the usual tokens of text without spaces."""
    return " ".join(run[start : start + 2] for start in range(max(len(run) - 1, 1)))


def words_of(text: str) -> list[str]:
    """Return the folded words of a text or a query, in order."""
    return _WORD.findall(_fold(text).lower())


def texts_of(skill: Skill) -> Texts:
    """Return the folded texts of a skill to index. Deterministic, as removal relies on it."""
    title = identity.title(skill) or ""
    headings = " ".join(heading for heading in skill.reading.headings if heading != title)
    tags = " ".join(str(tag) for tag in tags_of(skill.frontmatter))
    parts = (skill.name, title, tags, skill.description, headings, skill.path)
    return tuple(_fold(text[:_TEXT_LENGTH]) for text in (*parts, skill.reading.opening))


def names_of(texts: Texts) -> set[str]:
    """Return the name and the path in folded form without separators, for exact matches."""
    name, path = texts[0], texts[5]
    return {"".join(_WORD.findall(text.lower())) for text in (name, path)} - {""}


def description_words(texts: Texts) -> set[str]:
    """Return the words of 4 to 40 letters of name, title, tags and description."""
    text = "\n".join(texts[:4])
    words = text.translate(_LETTERS).split()
    if not text.isascii():
        words = _LETTER_WORD.findall(text.lower())
    return {word for word in words if 4 <= len(word) <= 40}


def title_words(texts: Texts) -> set[str]:
    """Return the words of name, title and tags, and the singulars of plurals."""
    text = "\n".join(texts[:3]).lower()
    words = {word for word in _WORD.findall(text) if not word.isdecimal()}
    return words | {word[:-1] for word in words if len(word) > 4 and word[-1] == "s" != word[-2]}


def matched_fields(skill: Skill, query: str) -> Sequence[tuple[str, Sequence[str]]]:
    """Return the fields that contain words of the query, or other forms of them, and these words.

    This explains a hit to a person. It is empty if only similar words, concepts or embeddings
    matched.
    """
    words = dict.fromkeys(words_of(query[:MAX_QUERY_CHARACTERS]))
    keywords = [word for word in words if word not in STOP_WORDS][:MAX_KEYWORDS]
    fields: list[tuple[str, Sequence[str]]] = []
    for field, text in zip(FIELDS, texts_of(skill), strict=True):
        own = words_of(text)
        # One string to search, for speed: a page has a hundred skills.
        lines = "".join(f"\n{word}" for word in own)
        hits = [word for word in keywords if f"\n{word}" in lines or _has_form(word, own, lines)]
        if hits:
            fields.append((field, hits))
    return fields


def matched_words(skill: Skill, query: str) -> list[str]:
    """Return the words of the query that are in any field of `matched_fields`."""
    return list(dict.fromkeys(word for _, hits in matched_fields(skill, query) for word in hits))


def _has_form(keyword: str, words: Sequence[str], lines: str) -> bool:
    """Return True if one of `words` is another form of `keyword`, by its stem and length."""
    return f"\n{keyword[:_STEM]}" in lines and any(
        len(word) >= _STEM
        and keyword.startswith(word[: max(_STEM, len(word) - 2)])
        and abs(len(keyword) - len(word)) < 4
        for word in words
    )
