"""Lint rules for all text files of a skill: hidden text, dangerous commands and secrets.

An attack in the wild hid its text in a reference file instead of SKILL.md, so the rules check every
text file. They warn only and never change a file.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from mcp_skills_server.format import hidden, media
from mcp_skills_server.format.excerpts import excerpt
from mcp_skills_server.validation import suppressions
from mcp_skills_server.validation.rule import Finding, Rules, TextFile

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_Span: TypeAlias = tuple[int, int]
"""The (begin, end) offsets of a match in a text."""

_DOWNLOAD: Final = re.compile(r"\b(?:curl|wget|iwr|irm|Invoke-WebRequest)\b")
_PIPED: Final = re.compile(
    r"\|(\s*+(?:sudo\s++)?(?:(?:ba|z|da|k)?sh|python3?|node|iex|Invoke-Expression)\b)"
)
"""A pipe into an interpreter. Downloads are searched before it: matching from each download onwards
takes time quadratic in the downloads of a line."""
_GIVEN: Final = re.compile(r"\b(?:ba|z|da)?sh\s++(?:-c\s++)?[\"']?(?:<\(|\$\()\s*+(?:curl|wget)\b")
"""A shell with a download as its argument, by process or command substitution."""
_MOST_COMMAND: Final = 1000
"""Most characters between the name of the downloading program and the pipe."""
_LONGEST_DOWNLOAD: Final = len("Invoke-WebRequest")
_INJECTION: Final = re.compile(r"!`(?<![`\w]!`)[^`\n]++`")  # a literal prefix makes the search fast
_MENTION: Final = re.compile(r"@(?<![\w`=@/.]@)(?:~?/|\.\./)[^\s`,]++")
"""A file mention such as `@/path`, which some hosts replace with the content of the file."""
_PERSISTENCE: Final = re.compile(
    r"\bcrontab\s++-(?!l\b)|\bsystemctl\s++(?:--user\s++)?enable\b|\blaunchctl\s++(?:load|bootstrap)\b"
    r"|\bschtasks\s++/create\b"
    r"|>>?\s*+~?/?[\w/$]*+\.(?:bashrc|zshrc|profile|bash_profile|zprofile)\b|\.ssh/authorized_keys\b",
    re.IGNORECASE,
)
_ENCODED: Final = re.compile(
    r"\bbase64\s++(?:-d|-D|--decode)\b[^\n|]{0,200}+\|\s*+(?:sudo\s++)?(?:(?:ba|z|da|k)?sh|python3?|node)\b"
    r"|\b(?:powershell|pwsh)(?:\.exe)?\b[^\n]{0,100}?\s-(?:enc|encodedcommand|e)\s++[A-Za-z0-9+/=]{20}"
    r"|\b(?:exec|eval)\s*+\(\s*+(?:\w++\.)*+(?:b64decode|fromhex|atob|unhexlify)\b"
    r"|\beval\s*+\(\s*+(?:Buffer\.from|atob)\b",
    re.IGNORECASE,
)
_SECRET: Final = re.compile(
    r"(?P<a_private_key>-----BEGIN (?:RSA |EC |DSA |OPENSSH |ENCRYPTED )?PRIVATE "
    r"KEY-----\s++[A-Za-z0-9+/=\s]{64})"
    r"|(?P<an_access_key_of_AWS>\b(?:AKIA|ASIA)[A-Z0-9]{16}\b)"
    r"|(?P<a_token_of_GitHub>\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})\w*+)"
    r"|(?P<a_token_of_GitLab>\bglpat-[A-Za-z0-9_-]{20}[\w-]*+)"
    r"|(?P<a_token_of_Slack>\bxox[abprs]-[A-Za-z0-9-]{20}[\w-]*+)"
    r"|(?P<a_key_of_Anthropic>\bsk-ant-[A-Za-z0-9_-]{32}[\w-]*+)"
    r"|(?P<a_key_of_OpenAI>\bsk-(?:proj-)?[A-Za-z0-9]{40}[\w-]*+)"
    r"|(?P<a_key_of_Google>\bAIza[A-Za-z0-9_-]{35}\b)"
    r"|(?P<a_token_of_npm>\bnpm_[A-Za-z0-9]{36}\b)"
    r"|(?P<a_key_of_Stripe>\b[rs]k_live_[A-Za-z0-9]{24}\w*+)"
)
"""Secrets in recognisable formats, which their issuers designed for secret scanning."""
_SECRET_MARKS: Final = (
    "PRIVATE KEY", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "xox", "sk-", "AIza", "npm_", "k_live_",
)  # fmt: skip
"""Substrings, one of which is in every match of `_SECRET`: searching them is 20 times faster."""
_EXAMPLE_SECRET: Final = re.compile(
    r"EXAMPLE|example|0{6}|1234567|abcdefg|[xX]{6}|[*]{6}|[.]{6}|\bYOUR|your"
)
"""Text that marks a secret as an example."""
RULES = Rules[TextFile]()
_OPENS: Final = "<!--"
_CLOSES: Final = "-->"
_MOST_PARSED: Final = 262_144
"""Characters of Markdown that are parsed; after them, comments in code are reported as well."""
_TICKS: Final = re.compile(r"(?<!`)`+")


@RULES.rule("hidden-characters")
def _hidden_characters(file: TextFile) -> Iterator[Finding]:
    # NUL bytes have their own code, `nul-byte`.
    found = [(at, character) for at, character in hidden.find(file.text) if character != "\0"]
    if found:
        at, character = found[0]
        message = f"the invisible character U+{ord(character):04X}{_more(len(found))}"
        yield Finding(message, file.text.count("\n", 0, at) + 1)


@RULES.rule("lfs-pointer")
def _lfs_pointer(file: TextFile) -> Iterator[Finding]:
    if media.is_lfs_pointer(file.text.encode("utf-8", "replace")):
        yield Finding(media.LFS_FAULT, 1)


@RULES.rule("pipe-to-shell")
def _pipe_to_shell(file: TextFile) -> Iterator[Finding]:
    given = (found.span() for found in _GIVEN.finditer(file.text))
    spans = sorted((*_after_pipes(file.text), *given), key=itemgetter(1))
    return _first(file.text, spans, "a download goes straight into an interpreter:")


@RULES.rule("secret")
def _secret(file: TextFile) -> Iterator[Finding]:
    if not any(mark in file.text for mark in _SECRET_MARKS):
        return
    found = [each for each in _SECRET.finditer(file.text) if not _EXAMPLE_SECRET.search(each[0])]
    if found:
        secret, kind = found[0][0], str(found[0].lastgroup).replace("_", " ")
        # Only the first characters: a report must not leak the secret.
        message = f"{kind}: {len(secret)} characters that begin with {secret[:4]!r}"
        line = file.text.count("\n", 0, found[0].start()) + 1
        yield Finding(f"{message}{_more(len(found))}", line)


class _Command(NamedTuple):
    """A rule against a pattern of commands, with the start of its message."""

    code: str
    words: str
    pattern: re.Pattern[str]
    marks: tuple[str, ...] = ("",)
    """Substrings, one of which is in every case-folded match: searching them is 10 times faster."""

    def check(self, file: TextFile) -> Iterator[Finding]:
        """Yield one finding for all matches in a file."""
        folded = file.text.casefold()
        if any(mark in folded for mark in self.marks):
            spans = (found.span() for found in self.pattern.finditer(file.text))
            yield from _first(file.text, spans, self.words)


for _each in (
    _Command("encoded-command", "an encoded command is decoded and run:", _ENCODED, (
        "base64", "powershell", "pwsh", "b64decode", "fromhex", "atob", "unhexl", "buffer.from")),
    _Command("shell-injection", "a command that runs on load:", _INJECTION),
    _Command("file-mention", "a file of the user's machine that some hosts insert:", _MENTION),
    _Command("persistence", "something is set to start automatically:", _PERSISTENCE, (
        "crontab", "systemctl", "launchctl", "schtasks", "shrc", "prof", "_keys")),
):  # fmt: skip
    RULES.rule(_each.code)(_each.check)


@RULES.rule("hidden-comment")
def _hidden_comment(file: TextFile) -> Iterator[Finding]:
    found = [each for each in comments(file.markdown) if not suppressions.is_suppression(each[1])]
    if found:
        line, content = found[0]
        message = f"an HTML comment: {excerpt(content)!r}{_more(len(found))}"
        yield Finding(message, file.first_line + line)


def _first(text: str, spans: Iterable[_Span], words: str) -> Iterator[Finding]:
    """Yield one finding for all spans, with the line of the first and their count."""
    found = list(spans)
    if found:
        start, end = found[0]
        message = f"{words} {excerpt(text[start:end])}{_more(len(found))}"
        yield Finding(message, text.count("\n", 0, start) + 1)


def _more(count: int) -> str:
    return f" ({count} in this file)" if count > 1 else ""


def _after_pipes(text: str) -> Iterator[_Span]:
    for found in _PIPED.finditer(text):
        start, end = found.span()
        least = max(0, start - _MOST_COMMAND - _LONGEST_DOWNLOAD)
        line = max(least, text.rfind("\n", least, start) + 1, text.rfind("|", least, start) + 1)
        for download in _DOWNLOAD.finditer(text, line, start):
            if start - download.end() <= _MOST_COMMAND:
                yield download.start(), end
                break


def comments(markdown: str) -> Iterator[tuple[int, str]]:
    """Yield (0-based line, content) of each HTML comment outside of code, in order.

    A rendered page hides a comment and shows code. A CommonMark parser finds the blocks. Matching
    backticks delimit code spans, and each run of them is examined a bounded number of times.
    """
    if _OPENS not in markdown:
        return
    for block in _parser().parse(markdown[:_MOST_PARSED]):
        if block.type in ("inline", "html_block") and _OPENS in block.content:
            line = block.map[0] if block.map else 0
            text = _without_code(block.content) if block.type == "inline" else block.content
            yield from _placed(text, line)
    if len(markdown) > _MOST_PARSED:
        yield from _placed(markdown[_MOST_PARSED:], markdown.count("\n", 0, _MOST_PARSED))


def comments_in_text(text: str) -> Iterator[tuple[int, str]]:
    """Yield (offset, content) of each HTML comment of a text, in code or not.

    An unclosed comment extends to the end of the text, as in a browser.
    """
    at = text.find(_OPENS)
    while at >= 0:
        begin = at + len(_OPENS)
        end = text.find(_CLOSES, begin)
        if end < 0:
            end = len(text)
        yield at, text[begin:end].strip()
        at = text.find(_OPENS, end)


def _placed(text: str, line: int) -> Iterator[tuple[int, str]]:
    read = 0
    for at, content in comments_in_text(text):
        line += text.count("\n", read, at)
        read = at
        yield line, content


def _without_code(text: str) -> str:
    """Return the text with code spans outside of comments blanked out; line ends stay."""
    runs = [found.span() for found in _TICKS.finditer(text)]
    ends: dict[int, list[int]] = {}
    for start, end in runs:
        ends.setdefault(end - start, []).append(start)
    parts: list[str] = []
    read = 0
    for start, end in runs:
        if start < read:
            continue
        opened = text.rfind(_OPENS, read, start)
        if opened >= 0:
            closed = text.find(_CLOSES, opened)
            if closed < 0:
                closed = len(text)
            if closed > start:
                parts.append(text[read:closed])
                read = closed
                continue
        same = ends[end - start]
        position = bisect_right(same, start)
        if position < len(same):
            close = same[position] + end - start
            parts += [text[read:start], re.sub(r"[^\n]", " ", text[start:close])]
            read = close
    return "".join((*parts, text[read:]))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").disable("inline")
