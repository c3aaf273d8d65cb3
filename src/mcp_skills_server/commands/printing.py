"""Output of commands for people and programs: lines, tables, JSON and progress.

Every command prints with these functions, since skills are untrusted text that must not control the
terminal. More characters of JSON are escaped than the standard requires, which changes no value.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO, TypeVar
from unicodedata import category, east_asian_width, normalize

import click

from mcp_skills_server.errors import PROGRAM, UsageError
from mcp_skills_server.model import printable

_MAX_LENGTH: Final = 100
_MIN_LENGTH: Final = 20
"""Columns that the last cell keeps on a narrow terminal."""
_EMOJI: Final = "\ufe0f"
"""The variation selector that makes the symbol before it an emoji, of two columns."""
_T = TypeVar("_T")

reader_gone: Final = threading.Event()
"""Set once the reader of stdout (head, less) has closed the pipe."""


def forget_output(number: int = 1) -> None:
    """Redirect stdout or stderr to /dev/null, or Python fails again when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _echo(text: str, *, err: bool = False) -> None:
    """Print a text, unless the reader has closed the pipe."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        forget_output(2 if err else 1)
        if not err:
            reader_gone.set()


def say(text: str, *, err: bool = False) -> None:
    """Print one line, with its unprintable characters escaped."""
    _echo(printable(text), err=err)


def say_folded(text: str, colours: Mapping[str, str], *, err: bool = False) -> None:
    """Print one line. A terminal gets it folded between words, and these words in these colours."""
    text, stream = printable(text), sys.stderr if err else sys.stdout
    if stream.isatty():
        fold = textwrap.TextWrapper(shutil.get_terminal_size().columns, subsequent_indent="  ")
        fold.break_long_words = fold.break_on_hyphens = False  # so that paths can be copied
        text = fold.fill(text)
    if _has_colour(stream):
        for word, colour in colours.items():
            text = text.replace(f" {word}:", f" {click.style(word, fg=colour, bold=True)}:", 1)
    _echo(text, err=err)


def say_lines(text: str, *, err: bool = False) -> None:
    """Print several lines, with unprintable characters except tabs escaped."""
    for line in text.split("\n"):
        _echo("\t".join(printable(part) for part in line.split("\t")), err=err)


def say_table(
    header: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    *,
    empty: str = "",
    colours: Mapping[int, str] | None = None,
) -> None:
    """Print rows in columns below the header; without rows the line `empty`, if it is given.

    On a terminal rows fit its width: the last cell is cut at its end, and the widest of the others
    at their start, where paths are alike. The header is bold, and `colours` has the colour of a
    row, by its index. Elsewhere the last cell is cut to 100 columns, and others stay whole.
    """
    if not rows and empty:
        say(empty)
        return
    has_colour = _has_colour(sys.stdout)
    # escaped before they are measured, as an escape is wider than its character
    lines = [[printable(cell) for cell in row] for row in (header, *rows)]
    *widths, longest = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    if sys.stdout.isatty():
        available = shutil.get_terminal_size().columns - 2 * len(widths)
        wanted = min(longest, _MIN_LENGTH)
        while sum(widths) + wanted > available and max(widths, default=0) > _MIN_LENGTH:
            widths[widths.index(max(widths))] -= 1
        longest = max(_MIN_LENGTH, available - sum(widths))
    else:
        longest = _MAX_LENGTH
    for number, row in enumerate(lines, -1):  # -1 is the header
        *cells, last = row
        padded = [_padded(cell, width) for cell, width in zip(cells, widths, strict=True)]
        line = "  ".join([*padded, _cut(last, longest)]).rstrip()
        if has_colour:
            line = click.style(line, bold=number < 0 or None, fg=(colours or {}).get(number))
        _echo(line)


def _has_colour(stream: TextIO) -> bool:
    """Return True for a terminal with colours that https://no-color.org does not turn off."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not is_plain


def _width(text: str) -> int:
    """Return the columns of a text on a terminal: 2 for a wide character, 0 for a combining one."""
    if text.isascii():
        return len(text)
    # composed, as the parts of a Hangul syllable (macOS decomposes names) share its two columns
    text = normalize("NFC", text)
    wide = sum(east_asian_width(character) in "WF" for character in text)
    marks = sum(category(character) in {"Mn", "Me"} for character in text)
    return len(text) + wide - marks + text.count(_EMOJI)


def _padded(cell: str, columns: int) -> str:
    """Return a cell of this many columns; a longer one is cut at its start."""
    if _width(cell) > columns:
        cell = _cut(cell[::-1], columns)[::-1]
    return cell + " " * (columns - _width(cell))


def _cut(text: str, columns: int) -> str:
    """Cut a text at its end to at most this many columns, and as many characters."""
    if max(len(text), _width(text)) <= columns:
        return text
    end = columns - 3
    while _width(text[:end]) > columns - 3:
        end -= 1
    return text[:end] + "..."


def say_json(value: Any) -> None:
    """Print a value as JSON, with control and bidirectional characters escaped."""
    written = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        written.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        written = json.dumps(value, indent=2)
    if not written.isascii() or "\x7f" in written:
        written = "".join(
            char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1]
            for char in written
        )
    _echo(written)


def more_suffix(count: int, hint: str = "") -> str:
    """Return " (and 3 more)" for the end of a message; "" for a `count` of 0."""
    if count < 1:
        return ""
    return f" (and {count:,} more{hint})"


def remark(text: str) -> None:
    """Print one line about the command itself, on stderr and under the program's name."""
    say(f"{PROGRAM}: {text}", err=True)


@contextmanager
def writing(shown: str, remedy: str) -> Generator[None]:
    """Make one line of a failure to write a file: `shown` names it, `remedy` says what to do.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        fault = f"{printable(shown)}: cannot be written ({error.strerror or error})"
        raise UsageError(f"{fault}; {remedy}") from None


def progress(items: Iterable[_T], label: str, count: int | None = None) -> Iterator[_T]:
    """Yield the items, with a progress bar of this label on stderr if that is a terminal.

    The bar is erased at the end. `count` is the number of items; None if they have a length.
    """
    is_hidden = not sys.stderr.isatty()
    with click.progressbar(items, count, label, file=sys.stderr, hidden=is_hidden) as bar:
        yield from bar
    if not is_hidden:
        click.echo("\x1b[A\x1b[2K", nl=False, err=True)  # up to the line of the bar
