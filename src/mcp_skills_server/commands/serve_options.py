"""Options of `serve` that no other command has."""

from __future__ import annotations

from typing import ClassVar, Final

import click

from mcp_skills_server.commands.fields import Options, flag, many, option, switch
from mcp_skills_server.dialects.table import AUTO, names

_COUNT: Final = click.IntRange(min=1)


class ShownOptions(Options):
    """What clients are shown."""

    heading: ClassVar[str] = "What clients are shown"
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
    max_loaded: int = option(8, "Skills that a session may have loaded at once.", type=_COUNT)
    local_paths: bool = switch(
        True, "Over stdio, tell models the directory of a skill of a local folder, whose scripts their shell can run."
    )
    page_size: int = option(50, "Entries of one page of a listing.", type=click.IntRange(1, 1000))
    prompt_page_size: int = option(1000, "Prompts of one page; some hosts show the first page alone.", type=_COUNT)


class HttpOptions(Options):
    """How the server is reached over HTTP. They do nothing over stdio."""

    heading: ClassVar[str] = "Over HTTP (--transport http)"
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
    )
    tokens: str | None = option(
        None, "The same lines as a value; meant for MCP_SKILLS_TOKENS.", metavar="LINES", secret=True
    )
    oauth_issuer: str | None = option(
        None,
        "Take the access tokens of this OAuth 2.1 issuer, as its metadata spells it. The table [oauth] of a "
        "configuration says more.",
        metavar="URL",
    )
    oauth_audience: str | None = option(None, "What aud of those tokens must name.", metavar="TEXT")
    oauth_resource: str | None = option(
        None, "The URL by which clients know the endpoint, where that is not the audience.", metavar="URL"
    )
    session_idle: float = option(
        1800, "Close a legacy session that nobody used for so long.", type=click.FloatRange(min=1), metavar="SECONDS"
    )
    max_sessions: int = option(
        1000, "Legacy sessions at once. Then the client with most loses its oldest idle one.", type=_COUNT
    )
    max_connections: int = option(
        1000,
        "Connections at once. Then the client with most loses its oldest idle one. The process's limit of open files "
        "bounds it too.",
        type=_COUNT,
    )
    request_timeout: float = option(
        30,
        "Close a connection that takes so long to send a request's head, or its body.",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
    )
    max_body: int = option(1 << 20, "Size of a request.", type=_COUNT, metavar="BYTES")
    publish: bool = switch(True, "Publish the skills below /.well-known/agent-skills too, to whom MCP is open.")
    publish_only: bool = flag("Publish the skills and answer no MCP.")
    publish_open: bool = flag("Ask no token for what is published, as /mcp does where tokens are given.")
    publish_grace: float = option(
        3600,
        "Keep what an index has named for so long after it changed.",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
    )
    refresh_secret: str | None = option(
        None,
        "Answer webhooks of GitHub, GitLab, Gitea or Forgejo at /refresh, which prove that they know this secret: "
        "sources are then looked at now. Meant for MCP_SKILLS_REFRESH_SECRET.",
        metavar="SECRET",
        secret=True,
    )
    rpc: bool = switch(True, "Answer the Skills Protocol at /rpc too, to whom MCP is open.")
