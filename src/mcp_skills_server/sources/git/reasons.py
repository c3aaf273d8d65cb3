"""What git says on stderr, as one line that says what to do. Pure."""

from __future__ import annotations

import re
from typing import Final

from mcp_skills_server.errors import clipped
from mcp_skills_server.model import printable

_ACCESS: Final = "access is refused; have a credential helper of git, or ssh's agent, know a password or a key for it"
_ELSEWHERE: Final = "it is elsewhere, or its address ends in .git; give the address that it leads to"
_PROTOCOL: Final = "git's configuration or the server leads to another protocol than the address has"
_OWNER: Final = "the repository belongs to another user; add it to git's safe.directory"
_HOST_KEY: Final = "ssh does not know the host's key; connect to it once with ssh, or add its key to known_hosts"
_CERTIFICATE: Final = "its certificate is not trusted; have git's http.sslCAInfo name who issued it"
_OLD: Final = "the program git is too old; install 2.30 or newer"
_NO_ANSWER: Final = "no answer"
_REASONS: Final = {
    "host key verification failed": _HOST_KEY,
    "authentication failed": _ACCESS,
    "could not read (?:username|password)": _ACCESS,
    "terminal prompts disabled": _ACCESS,
    "returned error: 40[13]": _ACCESS,
    "permission denied": _ACCESS,
    "too many authentication failures": _ACCESS,
    "access denied": _ACCESS,
    "redirect": _ELSEWHERE,
    "returned error: 30[0-9]": _ELSEWHERE,
    "transport '.*' not allowed": _PROTOCOL,
    "dubious ownership": _OWNER,
    "repository .* not found|returned error: 404|be a git repository|not a git repository": (
        "there is no repository there, or none that you may see"
    ),
    "could not resolve host|name or service not known": "its host is not known; check the address",
    "certificate|ssl |tls ": _CERTIFICATE,
    "no space left on device|quota exceeded": "the disk is full",
    "ended by signal 25|file size limit|file too large": "it has more than 4 GiB, which is not fetched",
    "connection (?:refused|timed out|reset|closed)|(?:failed|couldn't) (?:to )?connect": _NO_ANSWER,
    "unreachable|no route to host|too slow|timed out|timeout|no answer|early eof|hung up": _NO_ANSWER,
    "broken pipe|returned error: [45]|empty reply|recv failure|send failure|remote end": _NO_ANSWER,
    "unknown option|unknown switch|^usage:": _OLD,
}
"""What is looked for, in this order, in what git, ssh and curl say with LC_ALL=C; and what it means."""
_SAID: Final = re.compile(r"(?:fatal|error|remote|ssh): (.*)")


def reason(said: str) -> str | None:
    """Why git could not do what it was asked, for a message; None where this module does not know the words."""
    for pattern, words in _REASONS.items():
        if re.search(pattern, said, re.IGNORECASE | re.MULTILINE):
            return f"{words} ({last_line(said)})" if words is _NO_ANSWER else words
    return None


def last_line(said: str) -> str:
    """The last that it says, without what may be a secret."""
    lines = [found[1] for line in said.splitlines() if (found := _SAID.search(line))] or said.splitlines()[:1]
    return clipped(printable(re.sub(r"//[^/@\s']*@", "//", "".join(lines[-1:]).strip()))) or "git says nothing"
