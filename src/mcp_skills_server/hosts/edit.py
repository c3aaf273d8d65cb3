"""Add this server's entry to the bytes of a host's configuration, or remove it.

Each edit is verified before it is returned: parsed, the new text differs from the old one in this
entry only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, cast

from mcp_skills_server.errors import PROGRAM, UsageError
from mcp_skills_server.hosts import jsontext, tomltext
from mcp_skills_server.hosts.table import Host

_BOM: Final = "\ufeff"
_CORRECT: Final = "correct it there and run the command again"
_OURS: Final = re.compile(r"mcp_skills_server|mcp-skills-server(?:[@\[=<>~!].*)?")
"""This server's module, or its program, perhaps with an extra or a version."""
_STARTER: Final = re.compile(r"(?:python|pypy|py)[0-9.]*t?w?|uvx|uv|pipx")
"""The launcher that a command begins with: Python, or a tool that installs and runs a package."""
_PACKAGE: Final = r"mcp-skills-server(?:\[[a-z,-]+\])?(?:(?:@|==)[0-9a-z.]+)?"
_LAUNCHER: Final = re.compile(
    rf"(?:(?:uvx|uv\0tool\0run|pipx\0run)\0(?:--(?:from|spec)\0{_PACKAGE}\0)?)?{_PACKAGE}"
)
"""Words, joined by NUL, that run exactly this package, without an addition or another index."""
_READS: Final = re.compile(r"(?s)--(?:in|ex)clude=.*|(?!-|mcp\+).*")
"""An argument that chooses skills, or a root; a root at `mcp+` would start another server."""
_SUFFIX: Final = re.compile(r"\.(?:exe|cmd|bat)\Z")


def entry_for(host: Host, command: Sequence[str], roots: Sequence[str]) -> dict[str, Any]:
    """Return a stdio entry that makes the host start `command` with these roots."""
    words = [*command, "serve", *roots]
    if host.shape == "local":
        return {"type": "local", "command": words}
    plain = {"command": words[0], "args": words[1:]}
    if host.shape == "stdio":
        return {"type": "stdio", **plain}
    return plain


def remote_entry_for(host: Host, url: str, token_env: str | None) -> dict[str, Any]:
    """Return an entry that connects the host to `url`, with the token in variable `token_env`.

    Raises:
        UsageError: the host's file has no entries by URL, or cannot refer to a variable.
    """
    remote = host.remote
    if remote is None:
        raise UsageError(f"{host.title} has no URLs in its file; add a connector in its settings")
    entry: dict[str, Any] = {**remote.more, remote.url: url}
    if token_env is None:
        return entry
    if remote.token_key is not None:
        return {**entry, remote.token_key: token_env}
    if not remote.variable:
        unknown = f"{host.title} is not known to read variables"
        raise UsageError(f"--token-env: {unknown}; add the header by hand")
    token = f"Bearer {remote.variable.replace('VAR', token_env)}"
    return {**entry, "headers": {"Authorization": token}}


def install(
    raw: bytes | None, host: Host, name: str, entry: Mapping[str, Any], command: Sequence[str]
) -> bytes:
    """Return the file with this server's entry added or updated.

    Other keys of the entry (`env`, switches of the host) stay, unless it changes between a command
    and a URL. `command` is the program that the entry starts, without `serve` and what follows.

    Raises:
        UsageError: the file is broken, or another server has this name.
    """
    bom, text = _text(raw)
    document = _read(text, host)
    old = _entries(document, host).get(name)
    if old is None:
        entry = {**entry, **host.new}
    elif not _is_ours(old, host, command, url_of(entry, host)):
        raise UsageError(f"{name!r} is another server there; choose another name with --name")
    elif bool(command_line_of(old)) != bool(command_line_of(entry)):
        # keys for a command are wrong beside a URL, so the entry begins anew
        return install(uninstall(raw, host, name, command), host, name, entry, command)
    if host.form == "toml":
        new = tomltext.put(text, host.section, name, entry)
    else:
        new = jsontext.put(text, (host.section, name), dict(entry), host.form)
    wanted = deepcopy(document)
    wanted.setdefault(host.section, {})[name] = {**(old or {}), **entry}
    return _verified(bom, new, wanted, host)


def uninstall(
    raw: bytes | None, host: Host, name: str, command: Sequence[str], url: str | None = None
) -> bytes | None:
    """Return the file without this server's entry, or None if it has none.

    An entry with this `url` is also this server's.

    Raises:
        UsageError: the file is broken, or another server has this name.
    """
    bom, text = _text(raw)
    document = _read(text, host)
    old = _entries(document, host).get(name)
    if old is None:
        return None
    if not _is_ours(old, host, command, url):
        hint = "name ours with --name, or by its --url"
        raise UsageError(f"{name!r} is another server there, and stays; {hint}")
    wanted = deepcopy(document)
    del wanted[host.section][name]
    if host.form == "toml":
        new = tomltext.drop(text, host.section, name)
        if not wanted[host.section] and host.section not in tomltext.read(new):
            del wanted[host.section]
    else:
        new = jsontext.drop(text, (host.section, name), host.form)
    return _verified(bom, new, wanted, host)


def entries_of(
    raw: bytes | None, host: Host, command: Sequence[str], name: str
) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a file that start this server, by name, and that of `name` with a URL.

    Raises:
        UsageError: the file is broken.
    """
    _, text = _text(raw)
    entries = _entries(_read(text, host), host)
    return {
        key: entry
        for key, entry in entries.items()
        if starts_this_server(command_line_of(entry), command)
        or (key == name and isinstance(url_of(entry, host), str))
    }


def snippet(host: Host, name: str, entry: Mapping[str, Any]) -> str:
    """Return the text of a file that holds this server's entry alone."""
    entry = {**entry, **host.new}
    if host.form == "toml":
        return tomltext.table_of(host.section, name, entry)
    return jsontext.dump({host.section: {name: entry}}) + "\n"


def url_of(entry: object, host: Host) -> object:
    """Return the URL of an entry, or None if it has none."""
    if host.remote is None or not isinstance(entry, Mapping):
        return None
    return cast("Mapping[str, object]", entry).get(host.remote.url)


def _is_ours(old: object, host: Host, command: Sequence[str], url: object) -> bool:
    """Return True if an entry starts this server or has this URL."""
    return starts_this_server(command_line_of(old), command) or (
        url is not None and url == url_of(old, host)
    )


def _text(raw: bytes | None) -> tuple[str, str]:
    """Return the byte order mark of a file, empty if it has none, and the rest of its text."""
    try:
        text = (raw or b"").decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"not UTF-8 at line {line}; save it as UTF-8") from None
    plain = text.removeprefix(_BOM)
    return text[: len(text) - len(plain)], plain


def _read(text: str, host: Host) -> dict[str, Any]:
    try:
        if host.form == "toml":
            return tomltext.read(text)
        return jsontext.read(text, host.form)
    except UsageError as error:
        raise UsageError(f"{error}; {_CORRECT}") from None


def _entries(document: Mapping[str, Any], host: Host) -> Mapping[str, Any]:
    entries = document.get(host.section, {})
    if not isinstance(entries, Mapping):
        raise UsageError(f"{host.section!r} holds something other than named servers; {_CORRECT}")
    return entries  # pyright: ignore[reportUnknownVariableType]


def _verified(bom: str, new: str, wanted: Mapping[str, Any], host: Host) -> bytes:
    try:
        same = _read(new, host) == wanted
    except UsageError:
        same = False
    if not same:
        raise UsageError("its form cannot be edited here; change it by hand, as --print shows")
    return (bom + new).encode("utf-8")


def command_line_of(entry: object) -> list[str]:
    """Return the command line of an entry in any host's form, or [] if it starts no program."""
    if not isinstance(entry, Mapping):
        return []
    fields = cast("Mapping[str, object]", entry)
    words: list[object] = []
    for key in ("command", "args"):
        value = fields.get(key)
        if isinstance(value, list):
            words += cast("list[object]", value)
        elif value is not None:
            words.append(value)
    texts = [word for word in words if isinstance(word, str)]
    return texts if len(texts) == len(words) else []


def starts_this_server(words: Sequence[str], command: Sequence[str]) -> bool:
    """Return True if a command line starts this server: by `command`, its program or a launcher."""
    if list(words[: len(command) + 1]) == [*command, "serve"]:
        return True
    if not words:
        return False
    first = _base(words[0])
    if first == PROGRAM:
        return True
    if "serve" not in words or not _STARTER.fullmatch(first):
        return False
    return _OURS.fullmatch(_base(words[words.index("serve") - 1])) is not None


def only_reads_skills(words: Sequence[str], command: Sequence[str]) -> bool:
    """Return True if a command line, whoever wrote it, can only start this server on some roots.

    Unlike `starts_this_server`, it trusts no path of a program except that of `command`.
    """
    at = words.index("serve") if "serve" in words else 0
    launcher = list(words[:at])
    is_ours = launcher == [*command] or _LAUNCHER.fullmatch("\0".join(launcher)) is not None
    return is_ours and all(map(_READS.fullmatch, words[at + 1 :]))


def _base(word: str) -> str:
    """Return a program's name in lower case, without its folder and a suffix such as `.exe`."""
    return _SUFFIX.sub("", re.split(r"[\\/]", word)[-1].lower())
