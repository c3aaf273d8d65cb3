"""What a careful reader looks for in the text files of a bundle. It warns; it never rewrites bytes.

An attack that was found in the wild hid its text in a reference file, not in SKILL.md, so every text file is read.
Run by `validate` only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from mcp_skills_server.codes import problem
from mcp_skills_server.format import comments, hidden
from mcp_skills_server.model import Json, Problem

_Place: TypeAlias = tuple[int, int]
"""Where something begins and ends in a text."""
_Look: TypeAlias = Callable[[str], Iterator[_Place]]

_DOWNLOAD: Final = re.compile(r"\b(?:curl|wget|iwr|irm|Invoke-WebRequest)\b")
_INTO_SHELL: Final = re.compile(
    r"\|(?=(\s*+(?:sudo\s++)?(?:(?:ba|z|da|k)?sh|python3?|node|iex|Invoke-Expression)\b))"
    r"|\b(?:ba|z|da)?sh\s++(?:-c\s++)?[\"']?(?:<\(|\$\()\s*+(?:curl|wget)\b"
)
"""The end of a pipe, or a shell that is given a download. What stands before a pipe is looked at from the pipe: to look
for a pipe behind each download reads a line of many downloads once for each."""
_COMMAND: Final = 1000
"""Characters of a command that may stand between the name of the program and the pipe."""
_LONGEST_DOWNLOAD: Final = len("Invoke-WebRequest")
_INJECTION: Final = re.compile(r"(?<![`\w])!`[^`\n]++`")
_PERSISTENCE: Final = re.compile(
    r"\bcrontab\s++-(?!l\b)|\bsystemctl\s++(?:--user\s++)?enable\b|\blaunchctl\s++(?:load|bootstrap)\b"
    r"|\bschtasks\s++/create\b"
    r"|>>?\s*+~?/?[\w/$]*+\.(?:bashrc|zshrc|profile|bash_profile|zprofile)\b|\.ssh/authorized_keys\b",
    re.IGNORECASE,
)
_BROAD: Final = re.compile(r"(?:^|[\s,])(?:Bash|Shell|Terminal)(?:\(\s*+(?:\*\s*+(?::\s*+\*\s*+)?)?\))?(?=$|[\s,])")


def look_over(text: str) -> Iterator[Problem]:
    """Warn of what a text file should not hold, once for each kind, with the line of the first and the count."""
    for code, look, words in _CHECKS:
        places = look(text)
        first = next(places, None)
        if first is not None:
            start, end = first
            shown = f"U+{ord(text[start]):04X}" if code == "hidden-characters" else _short(text[start:end])
            count = 1 + sum(1 for _ in places)
            more = f" ({count} in this file)" if count > 1 else ""
            yield problem(code, f"{words} {shown}{more}", text.count("\n", 0, start) + 1)


def _places(pattern: re.Pattern[str]) -> _Look:
    """Where the pattern fits."""
    return lambda text: (found.span() for found in pattern.finditer(text))


def _unseen(text: str) -> Iterator[_Place]:
    """Where a hidden character stands. A NUL byte has a code of its own."""
    return ((at, at + 1) for at, character in hidden.find(text) if character != "\0")


def _piped(text: str) -> Iterator[_Place]:
    """Where a download goes straight into an interpreter."""
    for found in _INTO_SHELL.finditer(text):
        start, end = found.span()
        if found[1] is not None:
            end = found.end(1)
            least = max(0, start - _COMMAND - _LONGEST_DOWNLOAD)
            line = max(least, text.rfind("\n", least, start) + 1, text.rfind("|", least, start) + 1)
            downloads = (each for each in _DOWNLOAD.finditer(text, line, start) if start - each.end() <= _COMMAND)
            download = next(downloads, None)
            if download is None:
                continue
            start = download.start()
        yield start, end


_CHECKS: Final[tuple[tuple[str, _Look, str], ...]] = (
    ("hidden-characters", _unseen, "the invisible character"),
    ("pipe-to-shell", _piped, "a download goes straight into an interpreter:"),
    ("shell-injection", _places(_INJECTION), "a command that runs on load:"),
    ("persistence", _places(_PERSISTENCE), "something is made to start by itself:"),
)


def look_for_comments(markdown: str, first_line: int = 1) -> Iterator[Problem]:
    """Warn once of the HTML comments of a Markdown text that begins on this line of its file."""
    found = list(comments.find(markdown))
    if found:
        line, content = found[0]
        more = f" ({len(found)} in this file)" if len(found) > 1 else ""
        yield problem("hidden-comment", f"an HTML comment: {_short(content)!r}{more}", first_line + line)


def permissions(frontmatter: Mapping[str, Json], line: int | None) -> Iterator[Problem]:
    """Warn of `allowed-tools` that allow every command."""
    tools = frontmatter.get("allowed-tools")
    entries = tools if isinstance(tools, list) else [tools]
    if any(isinstance(entry, str) and _BROAD.search(entry) for entry in entries):
        yield problem("broad-permission", "allowed-tools allows every shell command", line)


def _short(text: str) -> str:
    line = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
    return line if len(line) <= 60 else line[:57] + "..."
