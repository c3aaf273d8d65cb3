"""The options that several commands share."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from mcp_skills_server.commands.fields import (
    PREFIX,
    Options,
    RootType,
    count,
    file,
    flag,
    many,
    option,
    output_format,
    seconds,
    switch,
    text,
    variable_of,
)
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Standing

if TYPE_CHECKING:
    from mcp_skills_server.access.tokens import Token, TokenLines
    from mcp_skills_server.catalog.index import Index
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.roots import Limits
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.model import Skill

logger = logging.getLogger(__name__)
_WITHOUT_OPTION: Final = frozenset(("MCP_SKILLS_EMBEDDINGS_KEY",))
"""Variables of secrets that have no option, so that no process list shows them."""
_ROOTS: Final = "MCP_SKILLS_ROOTS"


def cache_folder(given: str | None) -> Path:
    """Return the cache directory: that of `--cache-dir`, by default the user's."""
    from mcp_skills_server.directories import cache_directory

    return path_or_none(given) or cache_directory()


def index_of(given: str | None) -> Index:
    """Return the index of every root in `given`, or of large roots in the user's cache."""
    from mcp_skills_server.catalog.index import MIN_SKILLS, Index

    return Index(cache_folder(given) / "index", 1 if given else MIN_SKILLS)


_argument = partial(click.argument, "roots", nargs=-1, type=RootType(), envvar=_ROOTS)
roots_argument: Final = _argument(required=True, metavar="ROOT...")
"""Decorator that adds the argument of roots: folders, archives, sites and repositories."""
optional_roots: Final = _argument(required=False, metavar="[ROOT...]")
"""Decorator that adds the same argument as optional, since a lock file may name the roots."""


def path_or_none(given: str | None) -> Path | None:
    """Return the path of an option, or None if it is missing or empty."""
    return Path(given) if given else None


def bearer_token(variable: str) -> str:
    """Return the token in the variable of --token-env. No error shows it."""
    token = os.environ.get(variable, "").strip()
    if not token:
        raise UsageError(f"--token-env {variable}: no such variable, or it is empty; set it")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"--token-env {variable}: no token has such characters; set another")
    return token


class LimitOptions(Options, heading="Which skills there are"):
    """The limits of a scan. Commands that do not serve take them from the configuration file."""

    max_skill_md: int = count(1 << 20, "Bytes of a SKILL.md.")
    max_files: int = count(512, "Files of one skill.")
    max_bytes: int = count(16 << 20, "Bytes of one skill, all files together.")
    max_depth: int = option(
        32, "How deep below a root a skill may lie.", type=click.IntRange(1, 64)
    )


class TrustOptions(Options, heading="Roots that are fetched"):
    allow_private: bool = flag("Also fetch from private and loopback addresses.")
    allow_http: bool = flag(
        "Also fetch over plain http from other machines.", "--allow-http", "--allow-insecure"
    )
    allow_rollback: bool = flag("Accept an index of a site older than the last one fetched.")
    fetch_origins: tuple[str, ...] = many(
        "A further origin from which skills of a site may be fetched.", "ORIGIN", "--fetch-origin"
    )


class SiteOptions(
    TrustOptions,
    heading="Roots that are fetched",
    example="--cache-dir /var/cache/skills --allow-private",
):
    cache_dir: str | None = text(
        "The folder of fetched copies, and of indexes for the next start; the user's by default.",
        "DIR",
        type=click.Path(file_okay=False),
    )
    cache_size: int = count(
        10 << 30,
        "Size of the copies there; least recently used ones go first, served ones never.",
        metavar="BYTES",
    )


class GitOptions(
    Options, heading="Roots in git", example="--require-signed-commits allowed_signers"
):
    signers: str | None = file(
        "Accept only commits signed with an ssh key in this file of allowed signers.",
        "--require-signed-commits",
    )
    accept_rewritten: bool = flag("Accept a rewritten branch (force-push), or a moved tag.")


def _read(
    context: click.Context, _parameter: click.Parameter, path: str | None
) -> Configuration | None:
    """Read the configuration file and make it the defaults of the options that are parsed later."""
    if path is None or context.resilient_parsing:
        return None
    from mcp_skills_server.commands.config_file import ConfigurationError, read

    try:
        configuration = read(path, again=bool(context.obj))
    except ConfigurationError as error:
        raise UsageError(str(error)) from None
    context.default_map = {**configuration.values}
    return configuration


class ConfigOptions(Options, heading="Configuration", example="--config server.toml"):
    config: Configuration | None = option(
        None,
        "Take from this TOML file the options that neither the command line nor the environment "
        "gives: page-size = 20. 'config check' checks it, 'config show' shows the values in force.",
        type=click.Path(),
        metavar="FILE",
        in_file=False,
        is_eager=True,
        callback=_read,
    )


class ScanOptions(
    ConfigOptions, heading="Which skills there are", example="--include 'acme/*' --exclude draft"
):
    include: tuple[str, ...] = many(
        "Serve only skills whose path, name or tag matches, such as 'acme/*'.", "PATTERN"
    )
    exclude: tuple[str, ...] = many("Do not serve skills that match, likewise.", "PATTERN")
    hidden: bool = switch(
        False, "Also look for skills in folders with a dot in front, such as .claude/skills."
    )
    follow_links: bool = switch(
        True,
        "Serve a folder that a link in a ROOT leads to, if it holds a SKILL.md and is yours as the "
        "link is.",
    )


class RecallOptions(Options, heading="What is pinned and signed"):
    advisories: str | None = file("Serve no skill that this file recalls; a server follows it.")


class RootOptions(ScanOptions, SiteOptions, GitOptions, RecallOptions):
    """Options of reading the roots of a command."""


class TextOptions(RootOptions):
    form: Literal["text", "json"] = output_format("text", "json")


class TableOptions(RootOptions):
    form: Literal["table", "json"] = output_format("table", "json")


class WatchOptions(Options, heading="Following changes", example="--poll --reconcile 60"):
    watch: bool = switch(True, "Follow changes of the folders.")
    poll: bool = switch(
        False, "Poll time stamps instead of waiting for events, for network file systems."
    )
    reconcile: float = seconds(
        300, "How often to rescan everything, in case an event was lost.", least=1
    )
    optional_root: tuple[str, ...] = many(
        "A further ROOT, a folder that may be absent: it is served once it is there.",
        "DIR",
        type=RootType(),
    )


class RefreshOptions(Options, heading="Following changes"):
    refresh: float = seconds(
        60,
        "How often to poll roots in git or a registry for changes. Sites set their own interval.",
        least=1,
        is_live=True,
    )
    first_load: float = seconds(5, "How long a first list waits for roots that were never fetched.")


class SignatureOptions(
    Options, heading="What is pinned and signed", example="--require-signature team.pem"
):
    require_signature: tuple[str, ...] = many(
        "Accept only skills that this key signed, a public key or the certificate of an "
        "authority in PEM. One of several must have signed.",
        "KEY",
        type=click.Path(dir_okay=False),
    )


class SignedRootOptions(RootOptions, SignatureOptions):
    """Options of reading roots, and the signatures that their skills must have."""


class PinOptions(
    SignatureOptions, heading="What is pinned and signed", example="--lock skills.lock --frozen"
):
    lock: str | None = file(
        "Serve exactly the skills of this lock file, of the ROOTs that it names."
    )
    frozen: bool = flag("With --lock: refuse to start if a skill that it names cannot be served.")


class FollowOptions(LimitOptions, RootOptions, WatchOptions, RefreshOptions, PinOptions):
    """Options of reading the roots of a command and keeping them current."""


class ProposalOptions(Options, heading="Proposals", example="--proposals ~/proposals"):
    proposals: str | None = text(
        "Let models propose skills, and changes of skills in your own folders, and keep what they "
        "propose in this folder; git for a branch each in the working copy of a root. Nothing "
        "changes until a person approves it ('proposals', or the page).",
        "DIR|git",
        path="(?!git$)(.+)",
    )


def roots_and_last(arguments: Sequence[str], usage: str) -> tuple[Sequence[str], str]:
    """Return the roots and the last argument; roots default to MCP_SKILLS_ROOTS or the file's.

    Raises:
        UsageError: there are no roots. The message is `usage`.
    """
    from mcp_skills_server.sources.kinds import split

    roots = arguments[:-1]
    if not roots and (value := os.environ.get(_ROOTS)):
        roots = split(value)
    roots = roots or (click.get_current_context().default_map or {}).get("roots", ())
    if not roots:
        raise UsageError(usage)
    return roots, arguments[-1]


def named_skill(registry: Registry, name: str, standing: Standing = Standing.LENIENT) -> Skill:
    """Return the skill of this name or path, of at least this standing.

    Raises:
        UsageError: no skill has the name, or several do. The message suggests similar names.
    """
    from mcp_skills_server.errors import RequestError
    from mcp_skills_server.format import identity
    from mcp_skills_server.format.nearest import nearest

    snapshot = registry.snapshot
    try:
        return identity.require(snapshot, name, standing)
    except RequestError as error:
        if snapshot.named(name, standing):
            raise UsageError(str(error)) from None  # several have the name; this has their paths
        names = dict.fromkeys(
            known_as
            for path, skill in snapshot.skills.items()
            for known_as in (identity.name_of(skill, snapshot, standing), path)
        )
        hint = "'list' shows what there is"
        if near := nearest(name, names):
            hint = f"did you mean {' or '.join(near)}?"
        elif os.path.isdir(name):
            hint = "this is a folder; write the name of a skill after the folders"
        raise UsageError(f"{error}; {hint}") from None


def limits_of(options: ScanOptions) -> Limits:
    """Return the limits of a scan: of the options that set them, else of the configuration."""
    from mcp_skills_server.catalog.roots import Limits

    given, limits = vars(options), dict[str, int]()
    values = given if options.config is None else {**options.config.values, **given}
    for name in ("skill_md", "files", "bytes", "depth"):
        field = f"max_{name}"
        if field in values:
            limits[name] = values[field]
        variable = PREFIX + field.upper()
        if field not in given and variable in os.environ:
            key = field.replace("_", "-")
            logger.warning("%s: only a server reads it; set %s (--config)", variable, key)
    return Limits(**limits, hidden=options.hidden, links=options.follow_links)


def tokens_of(file: str | None, lines: str | None) -> list[Token]:
    """Return the validated tokens of `--token-file` or `--tokens`; warn if they expire soon."""
    from mcp_skills_server.access.tokens import warn_of_expiry

    tokens = token_lines_of(file, lines).require_valid()
    warn_of_expiry(tokens, time.time())
    return tokens


def token_lines_of(file: str | None, lines: str | None, *, again: bool = False) -> TokenLines:
    """Return the tokens and the invalid lines; `again` is for the reload of a running server."""
    from mcp_skills_server.access.tokens import TokenLines, read_token_file, read_token_value

    if file is not None and lines is not None:
        raise UsageError("--token-file and MCP_SKILLS_TOKENS exclude each other; give one of them")
    if lines is not None:
        return read_token_value(lines, "MCP_SKILLS_TOKENS")
    if file is not None:
        return read_token_file(file, is_reload=again)
    return TokenLines(())


def warn_of_unknown_variables(context: click.Context) -> None:
    """Warn of each variable MCP_SKILLS_* that no command reads, and suggest the nearest one."""
    given = {name for name in os.environ if name.startswith(PREFIX)} - _WITHOUT_OPTION
    own = _variables(context.command)
    if given <= own:
        return
    from mcp_skills_server.format.nearest import nearest

    root = context.find_root()
    if isinstance(root.command, click.Group):
        for name in root.command.list_commands(root):
            own |= _variables(root.command.get_command(root, name))
    for name in sorted(given - own):
        near = nearest(name, sorted(own), 1)
        remedy = f"set {near[0]}" if near else "unset it"
        logger.warning("%s: there is no such variable; %s", name, remedy)


def _variables(command: click.Command | None) -> set[str]:
    parameters = command.params if command is not None else ()
    return {variable_of(parameter) for parameter in parameters}
