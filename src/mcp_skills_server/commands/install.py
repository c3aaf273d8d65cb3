"""`install` and `doctor`: write and check this server's entries in host configurations."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import anyio
import click

from mcp_skills_server.catalog.roots import no_folder
from mcp_skills_server.commands.fields import (
    VARIABLE_NAME,
    Options,
    flag,
    many,
    option,
    seconds,
    takes,
    text,
)
from mcp_skills_server.commands.look import remark_problems, report_absent, run_deep_checks
from mcp_skills_server.commands.opening import load_registry
from mcp_skills_server.commands.options import RootOptions
from mcp_skills_server.commands.printing import remark, say, say_folded, say_lines, say_table
from mcp_skills_server.errors import UsageError, clipped, plural
from mcp_skills_server.format.uris import redact
from mcp_skills_server.hosts import disk, edit
from mcp_skills_server.hosts.table import HOSTS, Host, Platform, is_native, location
from mcp_skills_server.installation import is_temporary, start_command
from mcp_skills_server.model import printable
from mcp_skills_server.provenance.difference import unified
from mcp_skills_server.sources.kinds import kind_of

_DEFAULT_NAME: Final = "skills"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ENDPOINT: Final = re.compile(r"https?://[^?#]*/mcp/?", re.IGNORECASE)
"""A URL whose last segment is `mcp`, the MCP endpoint of this server and most others."""

_BARE_PATH: Final = os.pathsep.join(("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"))
"""PATH of a host that is started from a desktop and not from a shell."""
_SHOWN_LINES: Final = 3
_STATES: Final = {"works": "green", "stale": "red", "fails": "red", "not started": "yellow"}
"""Colours of the states that `doctor` prints."""
_SHOWN: Final = {
    "claude-desktop": "Settings, Developer",
    **dict.fromkeys(("claude-code", "gemini-cli", "qwen-code", "copilot-cli"), "/mcp"),
    **{host: f"'{host} mcp list'" for host in ("codex", "opencode", "cline")},
    "cursor": "Settings, MCP",
    "vscode": "the command 'MCP: List Servers'",
}
"""Where a host lists its servers."""
_HARMLESS: Final = re.compile(r"MCP_SKILLS_(?:INCLUDE|EXCLUDE|HIDDEN|WATCH|POLL|RECONCILE)")
"""Variables of a project's entry that only choose and follow skills."""
_PATH: Final = click.Path()


class InstallOptions(Options):
    name: str = option(_DEFAULT_NAME, "The name of the server in the host.", show_default=True)
    project: bool = flag("Write the host's file of this project instead of the user's.")
    install_config: str | None = option(
        None, "Write this file instead of the host's own.", "--config", type=_PATH, metavar="FILE"
    )
    command: str | None = text(
        "What the host starts; a bare name is left to the host's PATH.  [default: this program]",
        "PATH",
        type=_PATH,
    )
    trust: bool = flag(
        "Gemini CLI and Qwen Code: have every tool of this server called without asking, as use "
        "without a person needs."
    )
    url: str | None = text(
        "Connect the host to the server at this MCP endpoint, instead of starting one.", "URL"
    )
    token_env: str | None = text(
        "With --url: the environment variable from which the host reads a bearer token.", "VARIABLE"
    )
    include: tuple[str, ...] = many("Serve only skills whose path, name or tag matches.", "PATTERN")
    exclude: tuple[str, ...] = many("Do not serve skills that match, likewise.", "PATTERN")
    show: bool = flag("Print the entry and write nothing.", "--print")
    dry_run: bool = flag("Print what would change and write nothing.")
    uninstall: bool = flag("Remove the entry and keep the rest.")
    every: bool = option(  # eager, since with it the first argument is a ROOT
        False, "Do so for each host that is installed.", "--all", is_flag=True, is_eager=True
    )
    listed: bool = flag(
        "List the hosts that are installed, and which start this server; write nothing.", "--list"
    )


_EXCLUSIVE: Final = (
    ("--print", "--dry-run"),
    ("--print", "--uninstall"),
    ("--project", "--config"),
    ("--trust", "--uninstall"),
    *(("--all", other) for other in ("--config", "--project", "--trust", "--print")),
    *(("--url", other) for other in ("ROOT", "--include", "--exclude", "--command")),
)


class _HostOrRoot(click.Choice[str]):
    """A host, or the first ROOT if --all stands for the hosts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if ctx is not None and ctx.params["every"]:
            return value
        return super().convert(value, param, ctx)


@click.command(epilog=f"Hosts: {', '.join(HOSTS)}.")
@click.argument("host", type=_HostOrRoot(tuple(HOSTS)), metavar="HOST", required=False)
@click.argument("roots", nargs=-1, metavar="ROOT...", type=click.Path())
@takes(InstallOptions)
@click.pass_context
def install(
    context: click.Context, options: InstallOptions, host: str | None, roots: tuple[str, ...]
) -> int:
    """Configure HOST to start this server with the skills below each ROOT, or to use one at a URL.

    HOST is one of those named at the end. Its configuration file keeps everything else that it
    holds, and a copy of it as it was stays beside it (.bak). Options of serve go into the entry's
    "env" ("environment" of opencode), such as MCP_SKILLS_WATCH; a later install leaves them alone.

    \b
    Examples:
      mcp-skills-server install claude-desktop ~/skills
      mcp-skills-server install --all ~/skills
      mcp-skills-server install vscode ./skills --project --dry-run
      mcp-skills-server install codex ~/skills --print
      mcp-skills-server install cursor --uninstall
      mcp-skills-server install --list
      mcp-skills-server install codex --url https://skills.example/mcp --token-env SKILLS_TOKEN
    """
    platform = context.find_object(Platform)
    if options.listed:
        header = ("HOST", "HERE", "ENTRY", "STATE", "FILE")
        say_table(header, _entry_rows(platform or disk.this_platform()))
        return 0
    hosts = [host]
    if options.every:
        roots = tuple(filter(None, (host, *roots)))
        platform = platform or disk.this_platform()
        hosts = [row[0] for row in _entry_rows(platform) if row[1] == "yes"]
        if not hosts:
            raise UsageError("no host is installed here; 'install --list' shows where it looks")
    failed = False
    for key in dict.fromkeys(hosts):
        if key is None:
            raise click.MissingParameter(ctx=context, param=context.command.params[0])
        _check(HOSTS[key], options, roots)
        try:
            _install(key, options, roots, platform)
        except UsageError as error:
            if not options.every:
                raise
            remark(f"{key}: {error}")
            failed = True
    local = [root for root in roots if kind_of(root).is_path]
    if local and not options.uninstall:  # URLs are not fetched
        _report_problems(local)
    return int(failed)


def _install(
    key: str, options: InstallOptions, roots: Sequence[str], platform: Platform | None
) -> None:
    """Add the entry to a host's file, remove it, or print it."""
    row = HOSTS[key]
    command = _command_of(options.command)
    entry = {} if options.uninstall else _entry(row, options, command, roots)
    if options.install_config is not None:
        path = Path(os.path.abspath(options.install_config))
    else:
        path = location(row, platform or disk.this_platform(), project=options.project)
    if entry:
        _warn_of_native(row, roots, platform)
    if entry and options.url is None and options.command is None and is_temporary():
        cached = "is in a cache that may be emptied (uvx, pipx run), and the host would not find it"
        remark(f"{command[0]} {cached}; use 'pipx install' or 'uv tool install', then this again")
    if options.show:
        say_lines(edit.snippet(row, options.name, entry).removesuffix("\n"))
        remark(f"this belongs in {path}; nothing was written")
    else:
        try:
            if options.project:
                disk.check_links((platform or disk.this_platform()).project, path)
            _edit(path, key, entry, command, options)
        except UsageError as error:
            raise UsageError(f"{printable(str(path))}: {error}") from None


def _report_problems(roots: Sequence[str]) -> None:
    """Print on stderr what is missing or wrong below these folders."""
    registry = load_registry(roots, RootOptions())
    report_absent(registry)
    run_deep_checks(registry, list(registry.snapshot.skills.values()))
    remark_problems(registry)


def _check(host: Host, options: InstallOptions, roots: Sequence[str]) -> None:
    """Raise UsageError for a name that hosts reject, and for options that exclude each other."""
    if not _NAME.fullmatch(options.name):
        raise UsageError(f"--name {options.name!r}: give 1 to 64 letters, digits, '-' and '_'")
    renamed = {"print": options.show, "all": options.every, "config": options.install_config}
    values = {**vars(options), **renamed}
    given = {f"--{name.replace('_', '-')}" for name, value in values.items() if value}
    if roots:
        given.add("ROOT")
    for one, other in _EXCLUSIVE:
        if one in given and other in given:
            raise UsageError(f"{one} and {other} exclude each other; give one of them")
    if options.trust and host.trust is None:
        raise UsageError(f"--trust: an entry of {host.title} has no such switch; see docs/hosts.md")
    if options.token_env is not None and options.url is None:
        raise UsageError("--token-env is for a server that is reached by URL; give --url too")
    if not (roots or options.url or options.uninstall):
        raise UsageError("install takes the folders to serve, as in 'install cursor ~/skills'")


def _entry(
    host: Host, options: InstallOptions, command: list[str], roots: Sequence[str]
) -> dict[str, Any]:
    """Return the entry for the host's file."""
    if options.url is not None:
        entry = _remote_entry(host, options.url, options.token_env)
    else:
        chosen = [f"--include={pattern}" for pattern in options.include]
        chosen += [f"--exclude={pattern}" for pattern in options.exclude]
        entry = _local_entry(host, command, roots, chosen)
    if options.trust and host.trust:
        entry |= host.trust
    return entry


def _local_entry(
    host: Host, command: list[str], roots: Sequence[str], chosen: Sequence[str]
) -> dict[str, Any]:
    """Return the entry for a host that starts this server, with options that choose skills."""
    absolute: list[str] = []
    for root in roots:
        if redact(root) != root:
            hint = "leave it out, and use a credential helper"
            raise UsageError(f"{redact(root)}: the host's file would hold the password; {hint}")
        if _ENDPOINT.fullmatch(root):
            hint = f"'install HOST --url {printable(root)}' has the host connect to it"
            raise UsageError(f"{printable(root)}: this is an MCP endpoint, not a site; {hint}")
        kind = kind_of(root)
        if kind.name == "folder" and not os.path.isdir(root):
            raise no_folder(root)
        absolute.append(os.path.abspath(root) if kind.is_path else root)
    for word in (*command, *absolute, *chosen):
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            reason = "the path is not UTF-8, and the host's file must be"
            raise UsageError(f"{printable(word)}: {reason}") from None
    return edit.entry_for(host, command, [*absolute, *chosen])


def _remote_entry(host: Host, url: str, variable: str | None) -> dict[str, Any]:
    """Return the entry for a host that reaches a server by URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in {"http", "https"} or not parts.hostname or not is_plain:
        hint = "write the MCP endpoint, such as https://skills.example/mcp"
        raise UsageError(f"--url {printable(url)}: {hint}")
    if parts.username is not None:
        raise UsageError("--url: the file would hold the password; name a variable by --token-env")
    if variable is not None and not VARIABLE_NAME.fullmatch(variable):
        hint = "write the name of a variable, such as SKILLS_TOKEN"
        raise UsageError(f"--token-env {printable(variable)}: {hint}")
    return edit.remote_entry_for(host, url, variable)


def _edit(
    path: Path, key: str, entry: dict[str, Any], command: list[str], options: InstallOptions
) -> None:
    """Add the entry to the host's file, or remove it if `entry` is empty."""
    host, name, file = HOSTS[key], options.name, disk.read(path)
    if entry:
        new = edit.install(file.raw, host, name, entry, command)
    else:
        new = edit.uninstall(file.raw, host, name, command, options.url)
    if new is None:
        remark(f"{path} has no {name!r}; there is nothing to remove")
        return
    if new == file.raw:
        remark(f"{path} has {name!r} with this entry already; nothing was changed")
        return
    if options.dry_run:
        say_lines(unified(str(path), (file.raw or b"").decode(), new.decode()))
        remark(f"{path} would change; nothing was written")
        return
    backup = disk.replace(file, new)
    done = f"wrote {name!r} to" if entry else f"removed {name!r} from"
    kept = f"; the old file is {backup.name} beside it" if backup else ""
    remark(f"{done} {path}{kept}{'' if entry else f'; restart {host.title}'}")
    for word in edit.command_line_of(entry):
        if host.expands is not None and (replaced := host.expands.search(word)):
            change = f"{host.title} may replace what begins with {replaced[0][0]!r} in {word}"
            remark(f"{change}; use a path without it if the server is missing")
    if entry:
        shown = f"; {_SHOWN[key]} shows {name!r} then" if key in _SHOWN else ""
        say(f"  next:  restart {host.title}{shown}", err=True)
        say(f"  check: mcp-skills-server doctor {key}", err=True)
        say("  use:   ask for something that a skill describes: the model loads it", err=True)


def _warn_of_native(host: Host, roots: Sequence[str], platform: Platform | None) -> None:
    """Warn of roots that the host also reads by itself, which makes their skills appear twice."""
    home = os.path.expanduser("~") if platform is None else platform.home
    for root in roots:
        if os.path.isdir(root) and is_native(host, root, home):
            twice = f"{host.title} reads skills of this folder by itself and will have them twice"
            remark(f"{printable(root)}: {twice}; install other hosts, or serve another folder")


def _command_of(given: str | None) -> list[str]:
    """Return the command that the host starts."""
    if given is not None:
        if os.path.basename(given) == given and given:
            return [given]
        if not os.path.isfile(given):
            hint = "give the path of mcp-skills-server"
            raise UsageError(f"--command {printable(given)}: no such file; {hint}")
        return [os.path.abspath(given)]
    return start_command()


class HostEntry(NamedTuple):
    """A host's entry that starts this server: file, name, command line and environment.

    `fault` says why it cannot work, as far as is known without starting it; "" for nothing. Without
    `words`, it says to which URL the entry connects.
    """

    path: Path
    name: str
    words: list[str]
    env: Mapping[str, str]
    fault: str


class DoctorOptions(Options):
    project: bool = flag("Also start entries of this project's files that can only read skills.")
    timeout: float = seconds(20, "Timeout of a server's answer.", above=True)


@click.command()
@click.argument("host", type=click.Choice(tuple(HOSTS)), metavar="[HOST]", required=False)
@takes(DoctorOptions)
@click.pass_context
def doctor(context: click.Context, options: DoctorOptions, host: str | None) -> int:
    """Start this server as HOST, or as each host with an entry for it, and say what is wrong.

    It is started from another folder and with the short PATH of a program that was started from a
    desktop. An entry of this project's files is only described, since others may have written it.
    Exit code 1 if an entry does not work, or HOST has none.

    \b
    Examples:
      mcp-skills-server doctor
      mcp-skills-server doctor claude-desktop
    """
    platform = context.find_object(Platform) or disk.this_platform()
    hosts = HOSTS if host is None else {host: HOSTS[host]}
    failed = found = 0
    for key, row in hosts.items():
        try:
            entries = list(_entries(row, platform))
        except UsageError as error:
            say_folded(f"{key}: {error}", {})
            failed += 1
            continue
        for entry in entries:
            found += 1
            if not entry.words:
                hint = "'list mcp+URL' asks it; only entries that start a program are tested"
                say_folded(f"{key}: {entry.name!r} in {entry.path}: {entry.fault}; {hint}", {})
                continue
            trouble, count, began = entry.fault, 0, time.monotonic()
            reason = ""
            if not trouble and entry.path != location(row, platform):
                reason = _distrust(entry, is_asked=options.project)
            if reason:
                trouble = f"not started: {reason}; it runs {clipped(shlex.join(entry.words))}"
            elif not trouble:
                trouble, count = anyio.run(_probe, entry, options.timeout)
            took = time.monotonic() - began
            state = trouble or f"works: {plural(count, 'skill')}, {took:.1f} s from start to list"
            say_folded(f"{key}: {entry.name!r} in {entry.path}: {state}", _STATES)
            failed += bool(trouble) and (not reason or options.project)
    if not found and not failed:
        say(f"no entry for this server; 'install {host or 'HOST'} DIR' writes one")
        return int(host is not None)
    return int(failed > 0)


def _entry_rows(platform: Platform) -> list[tuple[str, ...]]:
    """Return rows for each host: whether it is installed, and its entries for this server."""
    rows: list[tuple[str, ...]] = []
    for key, row in HOSTS.items():
        try:
            path = location(row, platform)
            entries = list(_entries(row, platform))
        except UsageError as error:
            rows.append((key, "yes", "-", clipped(str(error)), "-"))
            continue
        own = path.parent.is_dir() and path.parent != platform.home
        here = "yes" if own or path.exists() else "no"
        for entry in entries:
            rows.append((key, here, entry.name, entry.fault or "configured", str(entry.path)))
        if not entries:
            rows.append((key, here, "-", "-", str(path)))
    return rows


def _entries(host: Host, platform: Platform) -> Iterator[HostEntry]:
    """Yield the entries for this server in a host's files, the user's and the project's."""
    places = [location(host, platform)]
    if host.project:
        places.append(location(host, platform, project=True))
    for path in dict.fromkeys(places):
        try:
            entries = edit.entries_of(disk.read(path).raw, host, _command_of(None), _DEFAULT_NAME)
        except UsageError as error:
            raise UsageError(f"{printable(str(path))}: {error}") from None
        for name, entry in entries.items():
            words = edit.command_line_of(entry)
            given = entry.get("env") or entry.get("environment")
            env = cast("dict[str, object]", given if isinstance(given, dict) else {})
            texts = {key: str(value) for key, value in env.items()}
            fault = f"connects to {printable(redact(str(edit.url_of(entry, host))))}"
            if words:
                fault = _staleness(words)
            yield HostEntry(path, name, words, texts, fault)


def _distrust(entry: HostEntry, *, is_asked: bool) -> str:
    """Return why an entry of a project's file is not started; "" if it can only read skills."""
    if not is_asked:
        return "a project's file may be anyone's, and --project starts it"
    if not edit.only_reads_skills(entry.words, _command_of(None)):
        return "it may run another program, or do more than read skills"
    unknown = [name for name in entry.env if not _HARMLESS.fullmatch(name)]
    return f"it sets {unknown[0]}" if unknown else ""


def _staleness(words: list[str]) -> str:
    """Return why a command line cannot work; "" if only a start can show it."""
    program = words[0]
    if not shutil.which(program, path=None if os.path.isabs(program) else _BARE_PATH):
        return f"stale: the host finds no program {program}; run 'install' again"
    given = words[words.index("serve") + 1 :] if "serve" in words else []
    for entry in given:
        if os.path.isabs(entry) and not os.path.exists(entry):
            return f"stale: {entry} is gone; run 'install' again with folders that are there"
    return ""


async def _probe(entry: HostEntry, patience: float) -> tuple[str, int]:
    """Start an entry's server and list its skills. Return an error, or "" and the number."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    from mcp_skills_server.client import SkillsClient

    environment = dict(entry.env)
    if os.name != "nt":
        environment.setdefault("PATH", _BARE_PATH)
    program, *arguments = entry.words
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        # Not the shared one: Python and uv read files of the folder that they start in.
        tempfile.TemporaryDirectory(prefix="mcp-skills-doctor-") as cwd,
    ):
        parameters = StdioServerParameters(
            command=program, args=arguments, env=environment, cwd=cwd
        )
        try:
            with anyio.fail_after(patience):
                async with SkillsClient.connect(stdio_client(parameters, errlog=log)) as client:
                    return "", len(await client.list())
        except TimeoutError:
            reason = f"it did not answer within {patience:g} s"
        except Exception as error:  # any failure of the start is reported
            reason = clipped(str(error)) or type(error).__name__
        log.seek(0)
        said = [line.strip() for line in log if line.strip()][-_SHOWN_LINES:]
    return f"fails: {reason}; it said: {' / '.join(said) or 'nothing'}", 0
