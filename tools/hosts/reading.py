"""How much of a text arrived: pure measures, by what a model was shown and what the server sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_BLANKS: Final = re.compile(r"\s+")
_LINE: Final = re.compile(r"Line (\d{5}) of the long body")


def arrived(sent: str, shown: str) -> str:
    """The longest beginning of `sent` that stands in `shown`. Blanks and line breaks count as one blank."""
    sent, shown = _BLANKS.sub(" ", sent).strip(), _BLANKS.sub(" ", shown)
    low, high = 0, len(sent)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sent[:middle] in shown else (low, middle - 1)
    return sent[:low]


def names_in(text: str, names: Iterable[str]) -> int:
    """How many of these names stand in the text, each as a whole word."""
    return sum(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None for name in names)


def lines_in(text: str) -> list[int]:
    """The numbers of the long body's lines that stand in the text, each once."""
    return sorted({int(number) for number in _LINE.findall(text)})


def ranges(numbers: Sequence[int]) -> str:
    """`[1, 2, 3, 7]` as `1-3, 7`."""
    out: list[tuple[int, int]] = []
    for number in numbers:
        if out and out[-1][1] == number - 1:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    return ", ".join(f"{first}-{last}" if first != last else str(first) for first, last in out)


def form(result: str) -> str:
    """Whether a result of skills_load came as the text, as the structure, or as both."""
    structured = '"active_skills"' in result
    text = re.search(r"(?:\A|\n)\s*(?:<skill name=|Active skills:)", result) is not None
    return {(True, False): "structuredContent", (False, True): "text", (True, True): "text and structuredContent"}.get(
        (structured, text), "neither text nor structure as sent"
    )
