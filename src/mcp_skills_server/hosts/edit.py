"""A configuration's old text, a host and an entry in; its new text out. Nothing here touches a disk.

Every edit is proved before it is handed out: the new text, parsed, must say what the old one said and differ in our
entry alone.
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


def entry_for(host: Host, command: Sequence[str], roots: Sequence[str]) -> dict[str, Any]:
    """What the host is told: start this command with these roots, over stdio."""
    words = [*command, "serve", *roots]
    if host.shape == "local":
        return {"type": "local", "command": words}
    said = {"command": words[0], "args": words[1:]}
    return {"type": "stdio", **said} if host.shape == "stdio" else said


def install(raw: bytes | None, host: Host, name: str, entry: Mapping[str, Any], command: Sequence[str]) -> bytes:
    """The file with our entry. What else an entry of ours holds (`env`, switches of the host) stays.

    `command` is what the entry starts, without `serve` and what follows.

    Raises:
        UsageError: the file is broken, or the name belongs to another server.
    """
    bom, text = _text(raw)
    said = _read(text, host)
    old = _entries(said, host).get(name)
    if old is None:
        entry = {**entry, **host.new}
    elif not starts_this_server(words_of(old), command):
        raise UsageError(f"{name!r} is another server there; choose another name with --name")
    if host.form == "toml":
        new = tomltext.put(text, host.section, name, entry)
    else:
        new = jsontext.put(text, (host.section, name), dict(entry), host.form)
    wanted = deepcopy(said)
    wanted.setdefault(host.section, {})[name] = {**(old or {}), **entry}
    return bom + _proved(new, wanted, host)


def uninstall(raw: bytes | None, host: Host, name: str, command: Sequence[str]) -> bytes | None:
    """The file without our entry, None when it has none.

    Raises:
        UsageError: the file is broken, or the name belongs to another server.
    """
    bom, text = _text(raw)
    said = _read(text, host)
    old = _entries(said, host).get(name)
    if old is None:
        return None
    if not starts_this_server(words_of(old), command):
        raise UsageError(f"{name!r} is another server there, and stays; name ours with --name")
    wanted = deepcopy(said)
    del wanted[host.section][name]
    if host.form == "toml":
        new = tomltext.drop(text, host.section, name)
        if not wanted[host.section] and host.section not in tomltext.read(new):
            del wanted[host.section]
    else:
        new = jsontext.drop(text, (host.section, name), host.form)
    return bom + _proved(new, wanted, host)


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
    return tomltext.read(text) if host.form == "toml" else jsontext.read(text, host.form)


def _entries(said: Mapping[str, Any], host: Host) -> Mapping[str, Any]:
    entries = said.get(host.section, {})
    if not isinstance(entries, Mapping):
        raise UsageError(f"{host.section!r} holds something else than named servers")
    return entries  # pyright: ignore[reportUnknownVariableType]


def _proved(new: str, wanted: Mapping[str, Any], host: Host) -> bytes:
    try:
        proved = _read(new, host) == wanted
    except UsageError:
        proved = False
    if not proved:
        raise UsageError("it is written in a way that is not edited here; change it by hand, as --print shows")
    return new.encode("utf-8")
