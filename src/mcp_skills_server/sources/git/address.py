"""Parse addresses of folders in git repositories: `git+https://host/acme/skills@main#folder`.

Pure. Rejects whatever git could take for an option, a command or a helper program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from mcp_skills_server.access.hosts import is_loopback
from mcp_skills_server.errors import UsageError, quoted

PROTOCOLS: Final = ("https", "ssh", "file", "http")
_IS_GIT: Final = re.compile(r"git\+[a-z0-9+.-]*:", re.IGNORECASE)
_NOT_IN_TEXT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\\\\]")
_AUTHORITY: Final = re.compile(r"[\w.:@\[\]+~%-]*")
"""Nothing that a shell interprets: ssh's ProxyCommand and `Match exec` may have host and user."""
_NOT_IN_REF: Final = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\.lock(?:/|\Z)|(?:\A|/)\.|[./]\Z|\A[-/]|\A@\Z"
)
"""Patterns that `git check-ref-format` rejects."""
_OBJECT_ID: Final = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_FORM: Final = "git+https://HOST/REPOSITORY@REF#FOLDER"


@dataclass(frozen=True, slots=True)
class GitAddress:
    """Address of a folder in a repository; `url` is without `git+`.

    `ref` is a branch, a tag or a commit id, "" for HEAD; `folder` is "" for the whole repository.
    """

    url: str
    protocol: str
    ref: str = ""
    folder: str = ""

    @property
    def shown(self) -> str:
        """The address in its written form, without secrets; it is parsed to an equal address."""
        text = f"git+{self.url}"
        if self.ref:
            text += f"@{self.ref}".replace("%", "%25").replace("#", "%23")
        if self.folder:
            text += f"#{self.folder}".replace("%", "%25")
        return text

    @property
    def name(self) -> str:
        """Directory name as of `git clone`: the last part of the folder or of the repository."""
        last = (self.folder or unquote(self.url)).rstrip("/").rpartition("/")[2]
        return last.removesuffix(".git") or "skills"


def is_commit(text: str) -> bool:
    """Tell whether a text is a full commit id."""
    return _OBJECT_ID.fullmatch(text) is not None


def is_git(given: str) -> bool:
    """Tell whether a text has the prefix of a git address."""
    return _IS_GIT.match(given) is not None


def parse_address(given: str, *, http: bool = False) -> GitAddress:
    """Parse an address, or raise UsageError. `http` allows plain http to other machines."""
    shown = quoted(re.sub("//[^/@]*@", "//...@", given))

    def refused(reason: str) -> UsageError:
        return UsageError(f"{shown}: {reason}")

    address, _, folder = given.partition("#")
    folder = unquote(folder)
    if " " in address or _NOT_IN_TEXT.search(unquote(address)):
        raise refused("it holds a space, a backslash or a control character; leave it out")
    protocol, colon, rest = address.partition("://")
    protocol = protocol.lower().removeprefix("git+")
    if not colon or protocol not in PROTOCOLS:
        raise refused(f"git is fetched by {', '.join(PROTOCOLS)}; write {_FORM}")
    authority, _, path = rest.partition("/")
    path, _, ref = path.partition("@")
    url = f"{protocol}://{authority}/{path}"
    ref = unquote(ref)
    if "?" in url:
        raise refused("an address of git has no query; leave out '?' and what follows")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise refused(f"the host or the port cannot be read; write {_FORM}") from None
    # Some hosts accept a token as the user, and every log line and list would show it.
    if parts.password is not None or (parts.username is not None and protocol != "ssh"):
        raise refused(
            "a user or a password does not belong into an address; use a credential helper of git"
        )
    if host.startswith("-") or (parts.username or "").startswith("-"):
        raise refused("a host or a user cannot begin with '-'")
    if not _AUTHORITY.fullmatch(unquote(authority)):
        raise refused("a host or a user has only letters, digits, '.', '-' and '_'")
    if protocol == "file" and (host or not path.strip("/")):
        raise refused("write git+file:///PATH")
    if protocol != "file" and not (host and path.strip("/")):
        raise refused(f"it names no repository; write {_FORM}")
    if protocol == "http" and not http and not is_loopback(host):
        raise refused("plain http can be changed on the way; use git+https, or give --allow-http")
    if address.rstrip("/").endswith("@") or (ref and _NOT_IN_REF.search(ref)):
        fault = f"{quoted(ref)} cannot be a branch, a tag or a commit"
        raise refused(f"{fault}; write an '@' of the path as %40")
    folder = folder.strip("/")
    if folder and (_NOT_IN_TEXT.search(folder) or {"", ".", ".."} & {*folder.split("/")}):
        raise refused(f"{quoted(folder)} is no folder of a repository")
    return GitAddress(url, protocol, ref, folder)
