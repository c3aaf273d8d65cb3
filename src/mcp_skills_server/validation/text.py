"""Lint rules for all text files of a skill: attacks on the model or its user, and secrets.

An attack in the wild hid its text in a reference file instead of SKILL.md, so the rules check every
text file. A rule first searches the text for its pattern. Only a match is judged by its context:
the kind of its piece, quotes around it, and sentences and headings about attacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final

from mcp_skills_server.format import media
from mcp_skills_server.format.excerpts import excerpt
from mcp_skills_server.validation import suppressions, threats
from mcp_skills_server.validation.pieces import pipelines
from mcp_skills_server.validation.rule import Finding, Rules, TextFile

RULES = Rules[TextFile]()

_DOWNLOAD: Final = re.compile(r"\b(?:curl|wget|iwr|irm|Invoke-WebRequest|Invoke-RestMethod)\b")
_DOWNLOADERS: Final = frozenset(
    ("curl", "wget", "iwr", "irm", "invoke-webrequest", "invoke-restmethod")
)
_SHELLS: Final = frozenset(
    ("sh", "bash", "zsh", "dash", "ksh", "iex", "invoke-expression", "powershell", "pwsh")
)
_INTERPRETERS: Final = re.compile(r"(?:python|node|perl|ruby|php)[0-9.]*+")
_PREFIXES: Final = frozenset(("sudo", "env", "command", "exec", "nohup", "time", "$", ">", "doas"))
_TO_FILE: Final = re.compile(r"-\w{0,4}[oO]\Z|--output(?:-document)?\Z|>")
"""An option with the file of a download."""
_GIVEN: Final = re.compile(
    r"(?:\b(?:(?:ba|z|da|k)?sh|eval|source|python3?|node|iex)|(?<![\w.])\.)\s++(?:-\w{1,9}\s++)?"
    r"[\"']?(?:<\(|\$\(|`|\()\s*+(?:curl|wget|iwr|irm)\b"
    r"|\b(?:exec|eval)\s*+\((?:await\b|[(\s])*+(?:(?:requests|httpx)\.get|URI\.open|[\w.]{0,40}urlopen|fetch)\("
    r"|\biex\s*+\(+\s*+(?:iwr|irm|New-Object)\b"
)
"""An interpreter with a download as its argument."""
_DOWNLOAD_MARKS: Final = ("curl", "wget", "iwr ", "irm ", "invoke-")
_GIVEN_MARKS: Final = (*_DOWNLOAD_MARKS, "eval(", "eval (", "exec(", "exec (", "iex ", "iex(")
_INJECTION: Final = re.compile(r"!`(?<![`\w]!`)[^`\n]++`|!\n(?<=```!\n)")
"""A command in `!`, or a fence labelled `!`."""
_SMART: Final = re.compile(r"[“\u2018](?<=[\s=(].)[^“”\u2018\u2019\n]{0,100}+[”\u2019]")
_SHELL_LABEL: Final = re.compile(r"[\s>*-]*+(?:```|~~~)\s?(?:(?:ba|z)?sh|shell|console)\b")
_MENTION: Final = re.compile(
    r"@(?<![\w`=@/.\"']@)(?:~/|\.\./|/(?:etc|home|Users|root|var|usr|opt|tmp|mnt|private|proc|srv)/)[^\s`,]++"
)
"""A file mention such as `@/etc/hosts`, which some hosts replace with the content of the file."""
_PERSISTENCE: Final = re.compile(
    r"\bcrontab\s++-(?![lr]\b)|\|\s*+crontab\b|\bsystemctl\s++(?:--user\s++)?enable\b|\bcore\.hooksPath\s++[~/$]"
    r"|\blaunchctl\s++(?:load|bootstrap)\b|\bschtasks\s++/create\b"
    r"|(?P<file>(?<=[/\"'])\.(?:bashrc|zshrc|profile|bash_profile|zprofile|zshenv)\b|\.ssh/authorized_keys\b|/LaunchAgents/|/etc/cron"
    r"|/etc/systemd/system\b|\.config/autostart/|\\CurrentVersion\\{1,2}Run\b|\\Programs\\Startup\b)",
    re.IGNORECASE,
)
"""Commands that start something automatically, and files that list what starts."""
_WRITES: Final = re.compile(
    r">|\b(?:tee|cp|mv|install|ln|copy|reg\s++add|(?:New|Set)-ItemProperty)\b"
    r"|[\"'][aw][bt+]{0,2}[\"']|\.write|\bwrite\w{0,12}\(|\bappend\w{0,12}\(|KEY_WRITE|KEY_SET_VALUE"
)
"""A write to such a file, in the same statement."""
_HARMLESS_START: Final = re.compile(
    r"\b(?:export|alias|setenv|fish_add_path|source)\b|\bset -gx\b|\beval\s++[\"']?\\?\$\("
)
"""What installers add to the start of a shell: variables, aliases and completions."""
_NETWORK: Final = re.compile(r"https?://|\b(?:curl|wget|nc|ncat|base64|nohup)\b")
_ENCODED: Final = re.compile(
    r"\b(?:base64|openssl)\s++(?:(?:-d|-D|--decode|base64|enc)\b[^\n|]{0,200}+\|)\s*+(?:sudo\s++)?(?:(?:ba|z|da|k)?sh|python3?|node)\b"
    r"|\b(?:(?:ba|z|da|k)?sh|eval|source|python3?)\s++(?:-c\s++)?[\"']?(?:<\(|\$\(|`)[^\n)`]{0,100}?\bbase64\s++(?:-d|-D|--decode)\b"
    r"|\b(?:powershell|pwsh)(?:\.exe)?\b[^\n]{0,100}?\s-(?:enc|encodedcommand|e)\s++[A-Za-z0-9+/=]{20}"
    r"|(?:(?<![\w.])(?:exec|eval|Function)|\bos\.(?:system|popen)|\bsubprocess\.\w{2,15}|\bexecSync|(?<!\w)iex)[\s(]{1,4}[^\n;,]{0,80}?"
    r"(?:b64decode|decode64|fromhex|unhexlify|\bdecompress|codecs\.decode|\bbytes\(\[|\batob|Buffer\.from"
    r"|decodeURIComponent|unescape|fromCharCode|FromBase64String)\b"
    r"|\bxxd\s++-r\b[^\n|]{0,100}+\|\s*+(?:ba|z)?sh\b",
    re.IGNORECASE,
)
_EXAMPLE_SECRET: Final = re.compile(
    r"EXAMPLE|example|0{6}|1234567|abcdefg|[xX]{6}|[*]{6}|[.]{6}|\bYOUR|your"
)
"""Text that marks a secret as an example."""
_STYLE: Final = re.compile(
    r"<\w{1,12}\s(?![^>\n]{0,200}?background)(?:[^>\n]{0,200}?\b(?:display:\s*+none|visibility:\s*+hidden|font-size:\s*+[01](?![.\d])"
    r"|opacity:\s*+0(?![.\d])|color:\s*+(?:white|#fff(?:fff)?)\b|size=[\"']?0)[^>\n]{0,200}?|hidden(?:=[\"']{2})?)>[^<\n]{20}"
)
"""Text in an element that a page does not show."""
_STYLE_MARKS: Final = ("display:", "visibility:", "size", "opacity:", "color:", " hidden")
_LINK_COMMENT: Final = re.compile(r"\]: (?:#|<>) \(([^\n]++)")
"""The definition of a link that stands for a comment, as in `[//]: # (text)`."""
_RUN: Final = re.compile("[\U000e0020-\U000e007f]{4}|[\u200b-\u200f\u2060-\u2064\ufeff]{8}")
"""Invisible characters that spell a message: tag characters, or zero-width ones as bits."""
_ABOUT: Final = re.compile(
    r"\b(?:attack|inject|malicious|malware|suspicious|adversar|jailbreak|red[ -]flag"
    r"|untrusted|threat|phish"
    r"|social engineering|detect|scan|refuse|reject|hostile|exploit|vulnerab|anti-?pattern"
    r"|phrases? |such as|e\.g\.|for example|examples? (?:of|:)|patterns?\b|as data\b"
    r"|never (?:follow|obey|comply|do|run)|(?:do not|don't) (?:follow|obey|comply|do|run)"
    r"|(?:instead of|rather than|avoid|dangerous|unsafe|insecure|bad):?\s)",
    re.IGNORECASE,
)
"""Words of a text that speaks about attacks, and does not make one."""
_ABOUT_PATH: Final = re.compile(
    r"(?:^|[/_.-])(?:payloads?|injections?|attacks?|jailbreaks?|tests?|evals?|fixtures?|red-?team)(?:[/_.-]|$)"
)
_NEGATED: Final = re.compile(
    r"(?:\b(?:never|not|avoid|without|cannot)|n['\u2019]t)\s++(?:ever\s++)?\Z"
)
_DENIED: Final = re.compile(r"\b(?:never|not|avoid|no|without)\b|n['\u2019]t\b", re.IGNORECASE)
_LATER: Final = re.compile(r"\b(?:until|unless|before|if|when|unverified|yet)\b", re.IGNORECASE)
_CALL: Final = re.compile(
    r"\b(?:system|popen|Popen|run|call|check_call|check_output|exec|execSync|spawn|spawnSync|shell"
    r"|open|Path|expanduser|join|homedir|writeFile\w{0,6}|appendFile\w{0,6}|OpenKey\w{0,2})\s*+\("
)
"""A call in Python or JavaScript that runs a command or opens a file."""
_IDENTITY: Final = re.compile(
    r"(?:-i|--identity|--netrc-file|--cert|--key|IdentityFile=?|-e)\s*+[\"']?\S{0,60}\Z"
)
_ASSIGNED: Final = re.compile(
    r"\b(\w{1,40})=|(?:>|\s-\w{0,4}[fo]\b)\s{0,3}[\"']?([\w./~-]{2,80})|([\w./-]{1,80}\.(?:zip|tgz|tar\.gz|b64|txt))\b"
)
"""Variables and files that a command fills."""
_MAX_LINE: Final = 2_000
_AROUND: Final = 400
"""Characters around a match that are its context."""


@RULES.rule("hidden-characters")
def _hidden_characters(file: TextFile) -> Iterator[Finding]:
    # Characters that spell a message have `hidden-text`.
    if file.hidden and not _RUN.search(file.text, file.hidden[0][0]):
        at, character = file.hidden[0]
        message = f"the invisible character U+{ord(character):04X}{_more(len(file.hidden))}"
        yield file.at(at, message)


@RULES.rule("hidden-text")
def _hidden_text(file: TextFile) -> Iterator[Finding]:
    """Report text that people do not see and that tells a model what to do."""
    if file.hidden and (run := _RUN.search(file.text, file.hidden[0][0])):
        yield file.at(run.start(), "a message in invisible characters")
    spans = [
        match.span()
        for match in file.matches(_STYLE, _STYLE_MARKS)
        if file.pieces.is_prose and file.pieces.at(match.start()).kind == "prose"
    ]
    comments = [(match.start(), match[1]) for match in _LINK_COMMENT.finditer(file.text)]
    if "<!--" in file.text:
        comments += file.pieces.comments()
    spans += [(at, at + len(note)) for at, note in comments if _is_addressed(note)]
    yield from _first(file, sorted(spans), "text that a page hides and a model follows:")


@RULES.rule("hidden-comment")
def _hidden_comment(file: TextFile) -> Iterator[Finding]:
    if "<!--" not in file.text:
        return
    comments = [
        comment for comment in file.pieces.comments() if not suppressions.is_suppression(comment[1])
    ]
    if comments and not any(_is_addressed(note) for _, note in comments):
        at, note = comments[0]
        message = f"an HTML comment: {excerpt(note)!r}{_more(len(comments))}"
        yield file.at(at, message)


def _is_addressed(comment: str) -> bool:
    patterns = (threats.ADDRESSED, threats.OVERRIDE, threats.SECRECY)
    return any(pattern.search(comment) for pattern in patterns)


@RULES.rule("lfs-pointer")
def _lfs_pointer(file: TextFile) -> Iterator[Finding]:
    if media.is_lfs_pointer(file.text.encode("utf-8", "replace")):
        yield Finding(media.LFS_FAULT, 1)


@RULES.rule("secret")
def _secret(file: TextFile) -> Iterator[Finding]:
    secrets = [
        match
        for match in file.matches(threats.SECRET, threats.SECRET_MARKS)
        if not _EXAMPLE_SECRET.search(match[0])
    ]
    if secrets:
        secret, kind = secrets[0][0], str(secrets[0].lastgroup).replace("_", " ")
        # Only the first characters: a report must not leak the secret.
        message = f"{kind}: {len(secret)} characters that begin with {secret[:4]!r}"
        yield file.at(secrets[0].start(), f"{message}{_more(len(secrets))}")


# Instructions to the model


@RULES.rule("override")
def _override(file: TextFile) -> Iterator[Finding]:
    spans = (match.span() for match in file.matches(threats.OVERRIDE, threats.OVERRIDE_MARKS))
    spans = (span for span in spans if _is_said(file, *span))
    return _first(file, spans, "an instruction that overrides those of the user and the host:")


@RULES.rule("secrecy")
def _secrecy(file: TextFile) -> Iterator[Finding]:
    spans = (
        match.span()
        for match in file.matches(threats.SECRECY, threats.SECRECY_MARKS, threats.DENIED_SPEECH)
        if _is_said(file, *match.span())
        and not _LATER.search(_sentence_end(file.text, match.end()))
        and not (match["act"] and _DENIED.search(_sentence_start(file.text, match.start())))
    )
    return _first(file, spans, "an instruction to keep something from the user:")


@RULES.rule("remote-instructions")
def _remote_instructions(file: TextFile) -> Iterator[Finding]:
    spans = (match.span() for match in file.matches(threats.REMOTE, ("http",)))
    spans = (span for span in spans if _is_said(file, *span))
    return _first(file, spans, "instructions that an address can change at any time:")


def _is_said(file: TextFile, start: int, end: int) -> bool:
    """Tell whether a sentence is an instruction, and not quoted, denied or about attacks."""
    piece = file.pieces.at(start)
    begin, stop = file.pieces.statement(start)
    line = file.text[begin:stop]
    is_remark = not file.pieces.is_prose and line.lstrip().startswith(("#", "//", "*", "--", ";"))
    if piece.kind == "code" and not is_remark:
        return False
    if piece.kind == "span" or _NEGATED.search(file.text[max(0, start - 20) : start].lower()):
        return False
    is_body = file.pieces.line(start) >= file.body_line
    return not (is_body and (_is_quoted(file.text, start, end) or _is_about(file, start)))


def _is_quoted(text: str, start: int, end: int) -> bool:
    before = text[max(0, start - 60) : start].rpartition("\n")[2]
    after = text[end : end + 100]
    return (
        (before.count('"') % 2 == 1 and '"' in after)
        or ("“" in before and "”" in after)
        or ("«" in before and "»" in after)
        or (re.search(r"(?:\A|[\s(\[])'[^']{0,60}\Z", before) is not None and "'" in after)
    )


def _is_about(file: TextFile, start: int) -> bool:
    """Tell whether text speaks about attacks: by its path, heading, row of a table, or sentence.

    What introduces code is the last line of prose before it.
    """
    text, piece = file.text, file.pieces.at(start)
    if _ABOUT_PATH.search(file.path) or _ABOUT.search(piece.heading):
        return True
    if piece.kind == "code":
        if not file.pieces.is_prose:
            return False
        lines = text[max(0, piece.start - _AROUND) : piece.start].split("\n")
        prose = [line for line in lines if line.strip(" `~") and "```" not in line]
        return bool(prose) and _ABOUT.search(prose[-1]) is not None
    lines = text[max(0, start - _AROUND) : start].split("\n")
    if lines[-1].lstrip().startswith("|"):
        return True
    after = text[start : start + _AROUND].partition("\n")[0]
    return _ABOUT.search("\n".join(lines[-2:]) + after) is not None


def _sentence_start(text: str, start: int) -> str:
    before = text[max(0, start - 120) : start]
    return before[max(before.rfind(mark) for mark in (". ", "! ", ".\n", "\n\n")) + 1 :]


def _sentence_end(text: str, end: int) -> str:
    return re.split(r"[.!?\n]", text[end : end + 120], maxsplit=1)[0]


# Commands


@RULES.rule("pipe-to-shell")
def _pipe_to_shell(file: TextFile) -> Iterator[Finding]:
    given = file.matches(_GIVEN, _GIVEN_MARKS)
    spans = [match.span() for match in given if _is_run(file, match.start())]
    read = 0
    for match in file.matches(_DOWNLOAD, _DOWNLOAD_MARKS):
        if match.start() < read or not _is_run(file, match.start()):
            continue
        start, end = file.pieces.statement(match.start())
        piece = file.pieces.at(match.start())
        end = min(end, match.start() + _MAX_LINE)
        read = end
        if piece.kind == "prose" or piece.language != "sh":
            before, start = file.text[start : match.start()], match.start()
            quote = before[-1:] if before[-1:] in ('"', "'", "`") else ""
            if quote and file.text.find(quote, start, end) > 0:
                end = file.text.find(quote, start, end)
        if _runs_download(file.text[start:end]):
            spans.append((match.start(), end))
    return _first(file, sorted(spans), "a download goes straight into an interpreter:")


def _runs_download(command: str) -> bool:
    saved: set[str] = set()
    for pipeline in pipelines(command):
        is_downloaded = False
        for words in pipeline:
            program, arguments = _program(words)
            if is_downloaded and _reads_program(program, arguments):
                return True
            executed = arguments[:1] if program in _SHELLS else words[:1]
            if {word.removeprefix("./") for word in executed} & saved:
                return True
            is_downloaded |= program in _DOWNLOADERS
            if program in _DOWNLOADERS:
                options = pairwise(arguments)
                files = [value for option, value in options if _TO_FILE.match(option)]
                saved |= {file.removeprefix("./") for file in files}
            has_script = program in _SHELLS and "-c" in arguments[:-1]
            if has_script and _runs_download(arguments[arguments.index("-c") + 1]):
                return True
    return False


def _program(words: list[str]) -> tuple[str, list[str]]:
    """Return the program of a command and its arguments, without `sudo`, `env` and assignments."""
    for number, word in enumerate(words):
        name = word.rpartition("/")[2].lower().removesuffix(".exe").strip("(){}`")
        is_option = number > 0 and word.startswith("-")
        if name and name not in _PREFIXES and "=" not in word and not is_option:
            return name, words[number + 1 :]
    return "", []


def _reads_program(program: str, arguments: list[str]) -> bool:
    """Tell whether an interpreter takes its program from stdin, rather than data for another."""
    if program in _SHELLS:
        has_file = bool(arguments) and not arguments[0].startswith(("-", ">", "2"))
        return "-c" not in arguments and not has_file
    if not _INTERPRETERS.fullmatch(program):
        return False
    return all(word in ("-", "-u", "-s", "--") or word[:1] == ">" for word in arguments[:1])


def _is_run(file: TextFile, start: int) -> bool:
    """Tell whether text at an offset is a command that may run, not an example of an attack."""
    piece = file.pieces.at(start)
    line = file.text[max(0, start - _MAX_LINE) : start].rpartition("\n")[2]
    if piece.kind == "code" and piece.language in ("python", "javascript", "other"):
        is_string = line.count('"') % 2 or line.count("'") % 2 or line.count("`") % 2
        if is_string and not _CALL.search(line):
            return False
    is_remark = piece.kind == "code" and line.lstrip().startswith(("#", "//")) and "`" not in line
    return not is_remark and not _is_about(file, start)


@RULES.rule("encoded-command")
def _encoded_command(file: TextFile) -> Iterator[Finding]:
    return _commands(file, _ENCODED, "an encoded command is decoded and run:", (
        "base64", "powershell", "pwsh", "b64decode", "decode64", "fromhex", "atob", "unhexl",
        "decompress", "codecs.decode", "bytes([", "buffer.from", "decodeuri", "unescape",
        "fromcharcode", "xxd",
    ))  # fmt: skip


@RULES.rule("script-line-ends")
def _script_line_ends(file: TextFile) -> Iterator[Finding]:
    if file.text.startswith("#!") and file.text.partition("\n")[0].endswith("\r"):
        yield Finding("the line that names the script's program ends with CR and LF", 1)


@RULES.rule("smart-quotes")
def _smart_quotes(file: TextFile) -> Iterator[Finding]:
    def is_shell(start: int) -> bool:
        piece = file.pieces.at(start)
        before = file.text[max(0, start - _MAX_LINE) : start].rpartition("\n")[2]
        label = file.pieces.text_of_line(file.pieces.line(piece.start) - 2)
        is_labelled = not file.pieces.is_prose or _SHELL_LABEL.match(label) is not None
        is_quoted = before.count('"') % 2 or before.count("'") % 2 or "#" in before
        is_command = piece.kind == "code" and piece.language == "sh"
        return is_command and is_labelled and not is_quoted

    spans = (match.span() for match in _SMART.finditer(file.text) if is_shell(match.start()))
    return _first(file, spans, "typographic quotes in a command:")


@RULES.rule("shell-injection")
def _shell_injection(file: TextFile) -> Iterator[Finding]:
    spans = (
        match.span()
        for match in _INJECTION.finditer(file.text)
        if file.pieces.is_prose
        and file.pieces.at(match.start()).kind == "prose"
        and file.pieces.at(match.start() + 2).kind in ("span", "code")
    )
    return _first(file, spans, "a command that runs on load:")


@RULES.rule("file-mention")
def _file_mention(file: TextFile) -> Iterator[Finding]:
    spans = (
        match.span()
        for match in _MENTION.finditer(file.text)
        if file.pieces.at(match.start()).kind in ("prose", "comment")
    )
    return _first(file, spans, "a file of the user's machine that some hosts insert:")


@RULES.rule("persistence")
def _persistence(file: TextFile) -> Iterator[Finding]:
    def is_lasting(match: re.Match[str]) -> bool:
        begin, end = file.pieces.statement(match.start())
        line = file.text[max(begin, match.start() - _AROUND) : min(end, match.end() + _AROUND)]
        if match["file"] and not _WRITES.search(line):
            return False
        return not _HARMLESS_START.search(line) or _NETWORK.search(line) is not None

    return _commands(file, _PERSISTENCE, "something is set to start automatically:", (
        "crontab", "systemctl", "launchctl", "schtasks", "shrc", "shenv", "prof", "_keys",
        "launchagents", "/etc/cron", "/etc/systemd", "autostart", "currentversion", "\\startup",
        "hookspath",
    ), is_lasting)  # fmt: skip


def _commands(
    file: TextFile,
    pattern: re.Pattern[str],
    reason: str,
    marks: Iterable[str],
    accept: Callable[[re.Match[str]], bool] = lambda _: True,
) -> Iterator[Finding]:
    spans = (
        match.span()
        for match in file.matches(pattern, marks)
        if _is_run(file, match.start()) and accept(match)
    )
    return _first(file, spans, reason)


@RULES.rule("credential-theft")
def _credential_theft(file: TextFile) -> Iterator[Finding]:
    """Report credentials that are read and sent, in a sentence, a command or a script."""
    spans: list[tuple[int, int]] = []
    read = 0
    for match in file.matches(threats.CREDENTIAL, threats.CREDENTIAL_MARKS):
        piece = file.pieces.at(match.start())
        if match.start() < read:
            continue
        before = file.text[max(0, match.start() - 80) : match.start()]
        if piece.language == "python" and before[-1:] == "\\":
            continue  # a regular expression of a program that searches for attacks
        if piece.kind == "code" and not _IDENTITY.search(before):  # once for each statement
            read = file.pieces.statement(match.start())[1]
        is_script = piece.kind == "code" and piece.language in ("python", "javascript")
        if is_script:
            is_sent = _script_sends(file, *match.span())
        else:
            is_sent = piece.kind in ("code", "span") and _command_sends(file, match.start())
            is_sent |= piece.kind != "code" and _sentence_sends(file, *match.span())
        if is_sent and not _is_about(file, match.start()):
            spans.append(match.span())
    return _first(file, spans, "credentials of the user are read and sent away:")


def _script_sends(file: TextFile, start: int, end: int) -> bool:
    piece = file.pieces.at(start)
    begin, stop = file.pieces.statement(start)
    line = file.text[max(begin, start - _AROUND) : min(stop, end + _AROUND)]
    is_read = threats.READ_CALL.search(line) and not line.lstrip().startswith(("#", "//"))
    return bool(is_read) and threats.SEND_CALL.search(file.text, piece.start, piece.end) is not None


def _command_sends(file: TextFile, start: int) -> bool:
    """Follow the credentials from a command through variables and files to one that sends."""
    piece = file.pieces.at(start)
    begin, stop = file.pieces.statement(start)
    line = file.text[begin:stop]
    if _IDENTITY.search(file.text[max(begin, start - 80) : start]) or line.lstrip()[:1] == "#":
        return False
    if threats.SEND_COMMAND.search(line):
        return True
    names = {name for groups in _ASSIGNED.findall(line) for name in groups if len(name) > 1}
    rest = file.text[stop : min(piece.end, stop + 10 * _AROUND)]
    return bool(names) and any(
        threats.SEND_COMMAND.search(later) and any(name in later for name in names)
        for later in rest.split("\n")
    )


def _sentence_sends(file: TextFile, start: int, end: int) -> bool:
    text = file.text
    before, after = text[max(0, start - 80) : start], text[end : end + _AROUND]
    verb = threats.SEND_VERB.search(before.rpartition(". ")[2])
    if verb and threats.DESTINATION.search(after[:150]):
        return not _DENIED.search(_sentence_start(text, start))
    verb = threats.SEND_IT.search(after)
    if verb is None or not threats.DESTINATION.search(after, verb.end(), verb.end() + 150):
        return False
    return not _DENIED.search(_sentence_start(text, end + verb.start()))


def _first(file: TextFile, spans: Iterable[tuple[int, int]], reason: str) -> Iterator[Finding]:
    """Yield one finding for all spans, with the line of the first and their count."""
    remaining = list(spans)
    if remaining:
        start, end = remaining[0]
        message = f"{reason} {excerpt(file.text[start:end])}{_more(len(remaining))}"
        yield file.at(start, message)


def _more(count: int) -> str:
    return f" ({count} in this file)" if count > 1 else ""
