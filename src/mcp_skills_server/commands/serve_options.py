"""The options of `serve` that belong to no feature of `commands/features`."""

from __future__ import annotations

from typing import Literal

import click

from mcp_skills_server.commands.fields import Options, choice, count, flag, many, option, seconds, switch
from mcp_skills_server.commands.logs import Format, Level, log_format, log_level
from mcp_skills_server.commands.options import FollowOptions, ProposalOptions
from mcp_skills_server.commands.runtime_options import RuntimeOptions
from mcp_skills_server.dialects.table import AUTO, names


class ShownOptions(Options, heading="What clients are shown"):
    dialect: str = option(
        AUTO,
        "What skills/list and skills/get speak. auto: all of them, to each client what it can take.",
        type=click.Choice(names()),
    )
    tools: bool = switch(True, "Offer tools to load, read and search skills, for hosts that know no skills.")
    prompts: bool = switch(True, "Offer each skill as a prompt, a slash command in most hosts.")
    prompt_choice: tuple[str, ...] = many(
        "Only skills whose name or path fits appear as prompts, such as 'acme/*'. May be repeated.",
        "--prompt",
        metavar="PATTERN",
    )
    catalog_chars: int | None = option(
        None,
        "How long the instructions, and the description of skills_load, may be. By default 4000, since hosts cut what "
        "is over 4,096, and 10000 for those that are known to cut nothing.",
        type=click.IntRange(min=0),
        metavar="CHARACTERS",
    )
    prefer: tuple[str, ...] = many(
        "Skills with this tag are described to models before others where not all descriptions fit. May be repeated.",
        metavar="TAG",
    )
    max_loaded: int = count(8, "Skills that a session may have loaded at once.")
    load_dependencies: bool = switch(
        False, "Load with a skill those that its dependencies.skills names, too, one level deep."
    )
    local_paths: bool = switch(
        True, "Over stdio, tell models the directory of a skill of a local folder, whose scripts their shell can run."
    )
    page_size: int = option(50, "Entries of one page of a listing.", type=click.IntRange(1, 1000))
    prompt_page_size: int = count(1000, "Prompts of one page; some hosts show the first page alone.")


class HttpOptions(Options, heading="Over HTTP (--transport http)"):
    host: str = option("127.0.0.1", "The address to listen on.")
    port: int = option(8000, "The port; 0 takes one that is free.", type=click.IntRange(0, 65535))
    allow_empty: bool = flag("Be ready although there is no skill yet in any folder; without it /readyz says 503.")
    allowed_host: tuple[str, ...] = many(
        "A name that the Host header may have. May be repeated; * for any. The names of this machine may pass without "
        "it where --host is one of them.",
        metavar="NAME",
    )
    allowed_origin: tuple[str, ...] = many(
        "An origin that browsers may come from, such as https://app.example. May be repeated; * for any.",
        metavar="ORIGIN",
    )
    token_file: str | None = option(
        None,
        "Clients must send a token of this file, which has lines name=token, and after the token expires=2027-01-31 "
        "and groups=a,b if you like. Read again when it changes.",
        type=click.Path(),
        metavar="FILE",
        is_live=True,
        if_empty="tokens",
    )
    tokens: str | None = option(
        None,
        "The same lines as a value; meant for MCP_SKILLS_TOKENS.",
        metavar="LINES",
        is_secret=True,
        is_live=True,
        if_empty="tokens",
    )
    session_idle: float = seconds(1800, "Close a legacy session that was not used for so long.", least=1)
    max_sessions: int = count(1000, "Legacy sessions at once. Then the client with most loses its oldest idle one.")
    max_connections: int = count(
        1000,
        "Connections at once. Then the client with most loses its oldest idle one. The process's limit of open files "
        "bounds it too.",
    )
    request_timeout: float = seconds(
        30, "Close a connection that takes so long to send a request's head, or its body.", above=True
    )
    max_body: int = count(1 << 20, "Size of a request.", metavar="BYTES")


class ProxyOptions(Options, heading="Behind a proxy (--transport http)"):
    keep_alive: int = count(
        5,
        "Close a connection that had no request for so long. A proxy must give its connections up before.",
        metavar="SECONDS",
    )
    root_path: str = option(
        "",
        "What stands before all paths that clients see, such as /skills, if a proxy takes it off or not.",
        metavar="PATH",
    )
    trusted_proxy: tuple[str, ...] = many(
        "The address or network of a proxy, such as 10.0.0.0/8, that is believed when it says for whom it asks "
        "(X-Forwarded-For and -Proto). May be repeated.",
        metavar="CIDR",
    )
    drain: float = seconds(0, "After SIGTERM answer requests for so long, and say at /readyz that it ends.")


class ServeOptions(
    ShownOptions, FollowOptions, ProposalOptions, RuntimeOptions, HttpOptions, ProxyOptions, heading="The server"
):
    transport: Literal["stdio", "http"] = choice("stdio", "http", words="How clients reach the server.")
    log_level: Level = log_level("info")
    log_format: Format = log_format()
