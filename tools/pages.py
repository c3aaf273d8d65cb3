"""Tables in Markdown, and the part of a page that a tool writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return headings and lines as a table; the columns `right` are aligned at the right."""
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(lines[0]))]
    ruler = [f"{'-' * (width - 1)}{':' if column in right else '-'}" for column, width in enumerate(widths)]

    def written(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    return "\n".join(map(written, (lines[0], ruler, *lines[1:])))


def between_markers(page: str, text: str, begin: str, end: str) -> str:
    """Return the page with the text between two comments replaced.

    Raises:
        ValueError: the page has not each marker once, in their order.
    """
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError("the page needs the two markers, each once, in their order")
    head, rest = page.split(begin)
    return f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"
