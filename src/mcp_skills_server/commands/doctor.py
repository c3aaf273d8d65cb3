"""`doctor` and `install --list`: which hosts start this server, and whether what they start works."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import click

from mcp_skills_server.commands.fields import Options, seconds, takes
from mcp_skills_server.commands.install import command_of, this_platform
from mcp_skills_server.commands.printing import say, say_table
from mcp_skills_server.errors import UsageError, clipped, innermost, plural
from mcp_skills_server.hosts.table import HOSTS, Host, Platform, location
from mcp_skills_server.model import printable

_BARE_PATH: Final = os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"))
"""What a host has that is started from a desktop and not from a shell."""
_SHOWN_LINES: Final = 3


@dataclass(frozen=True, slots=True)
class HostEntry:
    """An entry of a host that starts this server.

    Attributes:
        host: the host.
        path: its file.
        name: what the host calls the server.
        words: what it starts.
        env: the variables that the entry sets.
        trouble: why it cannot work, seen without starting it; "" for nothing.
    """

    host: Host
    path: Path
    name: str
    words: list[str]
    env: Mapping[str, str]
    trouble: str


class DoctorOptions(Options):
    """All options of `doctor`."""

    timeout: float = seconds(20, "How long a server has to answer.", above=True)


@click.command()
@click.argument("host", type=click.Choice(tuple(HOSTS)), metavar="[HOST]", required=False)
@takes(DoctorOptions)
@click.pass_context
def doctor(context: click.Context, options: DoctorOptions, host: str | None) -> int:
    """Start this server as HOST would, or as each host that has an entry for it, and say what is wrong.

    It is started from another folder and with the short PATH of a program that was started from a desktop. Exit code 1
    where an entry does not work, or HOST has none.

    \b
    Examples:
      mcp-skills-server doctor
      mcp-skills-server doctor claude-desktop
    """
    import anyio

    platform = context.find_object(Platform) or this_platform()
    hosts = HOSTS if host is None else {host: HOSTS[host]}
    failed = found = 0
    for key, row in hosts.items():
        try:
            entries = list(_entries(row, platform))
        except UsageError as error:
            say(f"{key}: {error}")
            failed += 1
            continue
        for entry in entries:
            found += 1
            began = time.monotonic()
            trouble, count = entry.trouble, 0
            if not trouble:
                trouble, count = anyio.run(_try, entry, options.timeout)
            took = time.monotonic() - began
            state = trouble or f"works: {plural(count, 'skill')}, {took:.1f} s from start to list"
            say(printable(f"{key}: {entry.name!r} in {entry.path}: {state}"))
            failed += bool(trouble)
    if not found and not failed:
        say(f"no entry for this server; 'install {host or 'HOST'} DIR' writes one")
        return int(host is not None)
    return int(failed > 0)


def list_entries(platform: Platform) -> None:
    """Print a line for each host: whether it is here, and its entries for this server."""
    rows = [("HOST", "HERE", "ENTRY", "STATE", "FILE")]
    for key, row in HOSTS.items():
        try:
            path = location(row, platform)
            entries = list(_entries(row, platform))
        except UsageError as error:
            rows.append((key, "yes", "-", clipped(str(error)), "-"))
            continue
        here = "yes" if path.exists() or path.parent.is_dir() else "no"
        for entry in entries:
            rows.append((key, here, entry.name, entry.trouble or "configured", str(entry.path)))
        if not entries:
            rows.append((key, here, "-", "-", str(path)))
    say_table([tuple(map(printable, row)) for row in rows])


def _entries(host: Host, platform: Platform) -> Iterator[HostEntry]:
    """Yield the entries for this server in the files of a host: the user's, and the project's.

    Raises:
        UsageError: a file cannot be read.
    """
    from mcp_skills_server.hosts import disk, edit

    seen: set[Path] = set()
    for project in (False, True):
        if project and not host.project:
            continue
        path = location(host, platform, project=project)
        if path in seen:
            continue
        seen.add(path)
        try:
            found = edit.entries_of(disk.read(path).raw, host, command_of(None))
        except UsageError as error:
            raise UsageError(f"{printable(str(path))}: {error}") from None
        for name, entry in found.items():
            words = edit.words_of(entry)
            given = entry.get("env") or entry.get("environment")
            env = cast("dict[str, object]", given if isinstance(given, dict) else {})
            yield HostEntry(host, path, name, words, {str(key): str(env[key]) for key in env}, _trouble(words))


def _trouble(words: list[str]) -> str:
    """Return why what an entry starts cannot work; "" where only a start can tell."""
    program = words[0]
    if not shutil.which(program, path=None if os.path.isabs(program) else _BARE_PATH):
        return f"stale: {program} is no program that the host finds; run 'install' again"
    given = words[words.index("serve") + 1 :] if "serve" in words else []
    gone = [each for each in given if os.path.isabs(each) and not os.path.exists(each)]
    return f"stale: {gone[0]} is gone; run 'install' again with folders that are there" if gone else ""


async def _try(entry: HostEntry, patience: float) -> tuple[str, int]:
    """Start an entry and list its skills. Return what went wrong, or "" and how many there are."""
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    from mcp_skills_server.client import SkillsClient

    environment = {"PATH": _BARE_PATH, **entry.env}
    if os.name == "nt":
        environment = dict(entry.env)
    parameters = StdioServerParameters(
        command=entry.words[0], args=entry.words[1:], env=environment, cwd=tempfile.gettempdir()
    )
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            with anyio.fail_after(patience):
                async with stdio_client(parameters, errlog=log) as streams, ClientSession(*streams) as session:
                    await session.initialize()
                    return "", len(await SkillsClient(session).list())
        except TimeoutError:
            reason = f"it did not answer within {patience:g} s"
        except Exception as error:  # whatever a start ends with is the reason
            reason = clipped(str(innermost(error))) or type(error).__name__
        log.seek(0)
        said = [line.strip() for line in log if line.strip()][-_SHOWN_LINES:]
    return f"fails: {reason}; it said: {' / '.join(said) or 'nothing'}", 0
