"""What a careful reader looks for in the text files of a bundle. It warns; it never rewrites bytes.

An attack that was found in the wild hid its text in a reference file, not in SKILL.md, so every text file is read.
Run by `validate` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from unicodedata import normalize

from mcp_skills_server.format.codes import problem
from mcp_skills_server.model import Json, Problem

_HIDDEN: Final = re.compile(
    "[\U000e0001-\U000e007f]"  # tag characters: a whole hidden alphabet
    "|[\u202a-\u202e\u2066-\u2069]"  # bidirectional overrides
    "|[\u200b\u2060\u180e\u2062-\u2064]"  # of no width
    "|(?<=[!-~])[\u200c\u200d](?=[!-~])"  # joiners have work to do in other scripts, none between ASCII letters
    "|(?<!^)\ufeff"
)
_PIPE_TO_SHELL: Final = re.compile(
    r"\b(?:curl|wget|iwr|irm|Invoke-WebRequest)\b[^\n|]{0,1000}\|\s*(?:sudo\s+)?(?:(?:ba|z|da|k)?sh|python3?|node|iex|Invoke-Expression)\b"
    r"|\b(?:ba|z|da)?sh\s+(?:-c\s+)?[\"']?(?:<\(|\$\()\s*(?:curl|wget)\b"
)
_INJECTION: Final = re.compile(r"(?<![`\w])!`[^`\n]+`")
_PERSISTENCE: Final = re.compile(
    r"\bcrontab\s+-(?!l\b)|\bsystemctl\s+(?:--user\s+)?enable\b|\blaunchctl\s+(?:load|bootstrap)\b|\bschtasks\s+/create\b"
    r"|>>?\s*~?/?[\w/$]*\.(?:bashrc|zshrc|profile|bash_profile|zprofile)\b|\.ssh/authorized_keys\b",
    re.IGNORECASE,
)
_NOT_ON_WINDOWS: Final = re.compile(r".*[<>:\"|?*\x00-\x1f].*|.*[ .]", re.DOTALL)
_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_CHECKS: Final = (
    ("hidden-characters", _HIDDEN, "the invisible character"),
    ("pipe-to-shell", _PIPE_TO_SHELL, "a download goes straight into an interpreter:"),
    ("shell-injection", _INJECTION, "a command that runs on load:"),
    ("persistence", _PERSISTENCE, "something is made to start by itself:"),
)
_BROAD: Final = re.compile(r"(?:^|[\s,])(?:Bash|Shell|Terminal)(?:\(\s*(?:\*\s*(?::\s*\*\s*)?)?\))?(?=$|[\s,])")


def look_over(text: str) -> Iterator[Problem]:
    """Warn of what a text file should not hold, once for each kind, with the line of the first and the count."""
    for code, pattern, words in _CHECKS:
        found = list(pattern.finditer(text))
        if found:
            first = found[0]
            shown = f"U+{ord(first[0]):04X}" if code == "hidden-characters" else _short(first[0])
            more = f" ({len(found)} in this file)" if len(found) > 1 else ""
            yield problem(code, f"{words} {shown}{more}", text.count("\n", 0, first.start()) + 1)


def names(paths: Iterable[str]) -> Iterator[tuple[str, Problem]]:
    """Warn of file names that a platform cannot hold, each with the file's path."""
    seen: dict[str, str] = {}
    for path in paths:
        for segment in path.split("/"):
            if _NOT_ON_WINDOWS.fullmatch(segment) or _RESERVED.fullmatch(segment):
                yield path, problem("file-name-portable", f"Windows cannot hold the name {_short(segment)}")
        other = seen.setdefault(normalize("NFC", path).casefold(), path)
        if other != path:
            yield path, problem("file-name-portable", f"many platforms cannot tell it from {_short(other)}")


def permissions(frontmatter: Mapping[str, Json], line: int | None) -> Iterator[Problem]:
    """Warn of `allowed-tools` that allow every command."""
    tools = frontmatter.get("allowed-tools")
    entries = tools if isinstance(tools, list) else [tools]
    if any(isinstance(entry, str) and _BROAD.search(entry) for entry in entries):
        yield problem("broad-permission", "allowed-tools allows every shell command", line)


def _short(text: str) -> str:
    line = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
    return line if len(line) <= 60 else line[:57] + "..."
