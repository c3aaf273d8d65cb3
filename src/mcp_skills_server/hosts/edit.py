"""The old bytes of a host's configuration and an entry in, the new bytes out. Nothing here touches a disk.

Every edit is checked before it is returned: the new text, parsed, differs from the old one in our entry alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import jsontext, tomltext
from mcp_skills_server.hosts.ownership import starts_this_server, words_of
from mcp_skills_server.hosts.table import Host

_BOM: Final = b"\xef\xbb\xbf"
_CORRECT: Final = "correct it there and run the command again"


def entry_for(host: Host, command: Sequence[str], roots: Sequence[str]) -> dict[str, Any]:
    """An entry that has the host start this command with these roots, over stdio."""
    words = [*command, "serve", *roots]
    if host.shape == "local":
        return {"type": "local", "command": words}
    plain = {"command": words[0], "args": words[1:]}
    return {"type": "stdio", **plain} if host.shape == "stdio" else plain


def install(raw: bytes | None, host: Host, name: str, entry: Mapping[str, Any], command: Sequence[str]) -> bytes:
    """The file with our entry. What else an entry of ours holds (`env`, switches of the host) stays.

    `command` is what the entry starts, without `serve` and what follows.

    Raises:
        UsageError: the file is broken, or the name belongs to another server.
    """
    bom, text = _text(raw)
    document = _read(text, host)
    old = _entries(document, host).get(name)
    if old is None:
        entry = {**entry, **host.new}
    elif not starts_this_server(words_of(old), command):
        raise UsageError(f"{name!r} is another server there; choose another name with --name")
    if host.form == "toml":
        new = tomltext.put(text, host.section, name, entry)
    else:
        new = jsontext.put(text, (host.section, name), dict(entry), host.form)
    wanted = deepcopy(document)
    wanted.setdefault(host.section, {})[name] = {**(old or {}), **entry}
    return bom + _checked(new, wanted, host)


def uninstall(raw: bytes | None, host: Host, name: str, command: Sequence[str]) -> bytes | None:
    """The file without our entry, None when it has none.

    Raises:
        UsageError: the file is broken, or the name belongs to another server.
    """
    bom, text = _text(raw)
    document = _read(text, host)
    old = _entries(document, host).get(name)
    if old is None:
        return None
    if not starts_this_server(words_of(old), command):
        raise UsageError(f"{name!r} is another server there, and stays; name ours with --name")
    wanted = deepcopy(document)
    del wanted[host.section][name]
    if host.form == "toml":
        new = tomltext.drop(text, host.section, name)
        if not wanted[host.section] and host.section not in tomltext.read(new):
            del wanted[host.section]
    else:
        new = jsontext.drop(text, (host.section, name), host.form)
    return bom + _checked(new, wanted, host)


def snippet(host: Host, name: str, entry: Mapping[str, Any]) -> str:
    """Our part of the file alone."""
    entry = {**entry, **host.new}
    if host.form == "toml":
        return tomltext.table_of(host.section, name, entry)
    return jsontext.dump({host.section: {name: entry}}) + "\n"


def _text(raw: bytes | None) -> tuple[bytes, str]:
    raw = raw or b""
    bom = _BOM if raw.startswith(_BOM) else b""
    try:
        return bom, raw[len(bom) :].decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, len(bom) + error.start) + 1
        raise UsageError(f"not UTF-8 at line {line}; save it as UTF-8") from None


def _read(text: str, host: Host) -> dict[str, Any]:
    try:
        return tomltext.read(text) if host.form == "toml" else jsontext.read(text, host.form)
    except UsageError as error:
        raise UsageError(f"{error}; {_CORRECT}") from None


def _entries(document: Mapping[str, Any], host: Host) -> Mapping[str, Any]:
    entries = document.get(host.section, {})
    if not isinstance(entries, Mapping):
        raise UsageError(f"{host.section!r} holds something else than named servers; {_CORRECT}")
    return entries  # pyright: ignore[reportUnknownVariableType]


def _checked(new: str, wanted: Mapping[str, Any], host: Host) -> bytes:
    try:
        same = _read(new, host) == wanted
    except UsageError:
        same = False
    if not same:
        raise UsageError("it is written in a way that is not edited here; change it by hand, as --print shows")
    return new.encode("utf-8")
