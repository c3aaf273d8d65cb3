"""`install`: have a host start this server, by an entry in the host's own configuration file."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from mcp_skills_server.commands.fields import VARIABLE_NAME, Options, flag, many, option, takes
from mcp_skills_server.commands.printing import remark, say_lines
from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts.table import HOSTS, Host, Platform, is_native, location
from mcp_skills_server.model import printable

_PROGRAM: Final = "mcp-skills-server"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ENDPOINT: Final = re.compile(r"https?://[^?#]*/mcp/?", re.IGNORECASE)
"""A URL that is an MCP endpoint by its last name, as this server and most others have it."""


class InstallOptions(Options):
    """All options of `install`."""

    name: str = option("skills", "What the host calls the server.", show_default=True)
    project: bool = flag("Write the host's file of this project, not the user's.")
    config: str | None = option(
        None, "Write this file, wherever the host keeps its own.", type=click.Path(), metavar="FILE"
    )
    command: str | None = option(
        None,
        "What the host starts; a bare name is left to the host's PATH.  [default: this program]",
        type=click.Path(),
        metavar="PATH",
    )
    trust: bool = flag(
        "Gemini CLI and Qwen Code: have every tool of this server called without asking, as use without a person needs."
    )
    url: str | None = option(
        None, "Have the host reach the server at this MCP endpoint, instead of starting one.", metavar="URL"
    )
    token_env: str | None = option(
        None, "With --url: the environment variable in which the host finds a bearer token.", metavar="VARIABLE"
    )
    include: tuple[str, ...] = many(
        "Have only skills served whose path, name or tag fits. May be repeated.", metavar="PATTERN"
    )
    exclude: tuple[str, ...] = many("Leave out skills that fit, likewise. May be repeated.", metavar="PATTERN")
    show: bool = flag("Print the entry and write nothing.", "--print")
    dry_run: bool = flag("Print what would change and write nothing.")
    uninstall: bool = flag("Remove the entry and keep the rest.")
    listed: bool = flag("Print which hosts are here, and which start this server, and write nothing.", "--list")


@click.command(epilog=f"Hosts: {', '.join(HOSTS)}.")
@click.argument("host", type=click.Choice(tuple(HOSTS)), metavar="HOST", required=False)
@click.argument("roots", nargs=-1, metavar="ROOT...", type=click.Path())
@takes(InstallOptions)
@click.pass_context
def install(context: click.Context, options: InstallOptions, host: str | None, roots: tuple[str, ...]) -> None:
    """Have HOST start this server with the skills below each ROOT, or reach one that runs at a URL.

    HOST is one of those named at the end. Its configuration file keeps everything else that it holds, and a copy of it
    as it was stays beside it (.bak). Options of serve go into the entry's "env" ("environment" of opencode), such as
    MCP_SKILLS_WATCH; a later install leaves them alone.

    \b
    Examples:
      mcp-skills-server install claude-desktop ~/skills
      mcp-skills-server install vscode ./skills --project --dry-run
      mcp-skills-server install codex ~/skills --print
      mcp-skills-server install cursor --uninstall
      mcp-skills-server install --list
      mcp-skills-server install claude-code --url https://skills.example/mcp --token-env SKILLS_TOKEN
    """
    platform = context.find_object(Platform)
    if options.listed:
        from mcp_skills_server.commands.doctor import list_entries

        list_entries(platform or this_platform())
        return
    if host is None:
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    row, name = HOSTS[host], options.name
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: hosts take 1 to 64 letters, digits, '-' and '_'")
    for one, other, both in (
        ("--print", "--dry-run", options.show and options.dry_run),
        ("--print", "--uninstall", options.show and options.uninstall),
        ("--project", "--config", options.project and options.config is not None),
        ("--trust", "--uninstall", options.trust and options.uninstall),
        ("--url", "ROOT", options.url is not None and bool(roots)),
        ("--url", "--include", options.url is not None and bool(options.include)),
        ("--url", "--exclude", options.url is not None and bool(options.exclude)),
        ("--url", "--command", options.url is not None and options.command is not None),
    ):
        if both:
            raise UsageError(f"{one} and {other} exclude each other; give one of them")
    if options.trust and row.trust is None:
        raise UsageError(
            f"--trust: an entry of {row.title} has no such switch; docs/hosts.md says what it needs without a person"
        )
    if options.token_env is not None and options.url is None:
        raise UsageError("--token-env is for a server that is reached by URL; give --url too")
    command = command_of(options.command)
    entry: dict[str, Any] = {}
    if options.url is not None and not options.uninstall:
        entry = _remote_entry(row, options.url, options.token_env)
    elif not options.uninstall:
        chosen = [f"--{key}={each}" for key in ("include", "exclude") for each in getattr(options, key)]
        entry = _local_entry(row, command, roots, chosen)
    if entry and options.trust and row.trust:
        entry |= row.trust
    path = _path(row, platform, options)
    if entry:
        _warn_of_native(row, roots, platform)
    if options.show:
        from mcp_skills_server.hosts.edit import snippet

        say_lines(snippet(row, name, entry).removesuffix("\n"))
        remark(f"this belongs in {path}; nothing was written")
    else:
        try:
            _edit(path, row, entry, command, options)
        except UsageError as error:
            raise UsageError(f"{printable(str(path))}: {error}") from None
    if entry:
        _report_problems(roots)


def _report_problems(roots: Sequence[str]) -> None:
    """Print on stderr what `validate` finds in these folders and archives; no address is fetched."""
    from mcp_skills_server.commands.look import check, remark_problems
    from mcp_skills_server.commands.opening import make_registry
    from mcp_skills_server.commands.options import RootOptions
    from mcp_skills_server.sources.kinds import kind_of

    local = [root for root in roots if kind_of(root).is_path]
    if not local:
        return
    registry = make_registry(local, RootOptions())
    registry.load()
    check(registry, list(registry.snapshot.skills.values()))
    remark_problems(registry)


def _local_entry(host: Host, command: list[str], roots: Sequence[str], chosen: Sequence[str]) -> dict[str, Any]:
    """Return the entry that has the host start this server, with the options that choose skills.

    Raises:
        UsageError: there is no root, or one is no folder, is an endpoint or has a path that is not UTF-8.
    """
    if not roots:
        raise UsageError("install takes the folders to serve, as in 'install cursor ~/skills'")
    from mcp_skills_server.catalog.roots import no_folder
    from mcp_skills_server.hosts.edit import entry_for
    from mcp_skills_server.sources.kinds import kind_of

    absolute: list[str] = []
    for root in roots:
        if _ENDPOINT.fullmatch(root):
            raise UsageError(
                f"{printable(root)}: this is an MCP endpoint and no site; 'install HOST --url {printable(root)}' has "
                "the host connect to it"
            )
        kind = kind_of(root)
        if kind.name == "folder" and not os.path.isdir(root):
            raise no_folder(root)
        absolute.append(os.path.abspath(root) if kind.is_path else root)
    for word in (*command, *absolute, *chosen):
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(f"{printable(word)}: the path is not UTF-8, and the host's file must be") from None
    return entry_for(host, command, [*absolute, *chosen])


def _remote_entry(host: Host, url: str, variable: str | None) -> dict[str, Any]:
    """Return the entry that has the host reach a server by URL.

    Raises:
        UsageError: the URL or the variable is none, or the host takes no such entry.
    """
    from urllib.parse import urlsplit

    from mcp_skills_server.hosts.edit import remote_entry_for

    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isascii() or " " in url:
        raise UsageError(f"--url {printable(url)}: write the MCP endpoint, such as https://skills.example/mcp")
    if parts.username is not None:
        raise UsageError("--url: the host's file would hold the password; name a variable with --token-env")
    if variable is not None and not VARIABLE_NAME.fullmatch(variable):
        raise UsageError(f"--token-env {printable(variable)}: write the name of a variable, such as SKILLS_TOKEN")
    return remote_entry_for(host, url, variable)


def _edit(path: Path, host: Host, entry: dict[str, Any], command: list[str], options: InstallOptions) -> None:
    """Put the entry into the host's file, or remove it where the entry is empty."""
    from mcp_skills_server.hosts import disk, edit

    name, found = options.name, disk.read(path)
    if entry:
        new = edit.install(found.raw, host, name, entry, command)
    else:
        new = edit.uninstall(found.raw, host, name, command, options.url)
    if new is None:
        remark(f"{path} has no {name!r}; there is nothing to remove")
        return
    if new == found.raw:
        remark(f"{path} has {name!r} with this entry already; nothing was changed")
        return
    if options.dry_run:
        say_lines(_difference(found.raw or b"", new, path).removesuffix("\n"))
        remark(f"{path} would change; nothing was written")
        return
    backup = disk.replace(found, new)
    done = f"wrote {name!r} to" if entry else f"removed {name!r} from"
    kept = f"; the old file is {backup.name} beside it" if backup else ""
    remark(f"{done} {path}{kept}; restart {host.title}")
    if host.expands is None:
        return
    for word in edit.words_of(entry):
        if replaced := host.expands.search(word):
            change = f"{host.title} may replace what begins with {replaced[0][0]!r} in {word}"
            remark(f"{change}; use a path without it if the server is missing")


def _warn_of_native(host: Host, roots: Sequence[str], platform: Platform | None) -> None:
    """Name the roots whose skills the host would have twice."""
    home = os.path.expanduser("~") if platform is None else platform.home
    for root in roots:
        if os.path.isdir(root) and is_native(host, root, home):
            remark(
                f"{printable(root)}: {host.title} reads skills of this folder by itself and will have "
                "them twice; install the server in other hosts, or serve another folder"
            )


def _path(host: Host, platform: Platform | None, options: InstallOptions) -> Path:
    if options.config is not None:
        return Path(os.path.abspath(options.config))
    return location(host, platform or this_platform(), project=options.project)


def this_platform() -> Platform:
    """Return the folders of this machine and user.

    Raises:
        UsageError: there is no home folder.
    """
    try:
        return Platform.of(sys.platform, Path.home(), Path.cwd(), os.environ)
    except RuntimeError:
        raise UsageError("there is no home folder; name the host's file with --config") from None


def command_of(given: str | None) -> list[str]:
    """Return what the host is to start. Links stay as they are: an update of the program moves what they lead to."""
    if given is not None:
        if os.path.basename(given) == given and given:
            return [given]
        if not os.path.isfile(given):
            raise UsageError(f"--command {printable(given)}: no such file; give the path of mcp-skills-server")
        return [os.path.abspath(given)]
    running = sys.argv[0]
    if Path(running).stem == _PROGRAM:
        found = shutil.which(running) or (running if os.path.isfile(running) else None)
        if found:
            return [os.path.abspath(found)]
    return [os.path.abspath(sys.executable), "-m", "mcp_skills_server"]


def _difference(old: bytes, new: bytes, path: Path) -> str:
    from difflib import unified_diff
    from io import StringIO

    # Not splitlines(), which also breaks at characters that break no line of these files.
    before, after = (StringIO(each.decode(), newline="\n").readlines() for each in (old, new))
    out: list[str] = []
    for line in unified_diff(before, after, str(path), str(path)):
        out.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(out)
