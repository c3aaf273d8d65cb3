"""The options of `serve` that belong to no feature."""

from __future__ import annotations

from typing import Literal

import click

from mcp_skills_server.commands.fields import (
    Options,
    choice,
    count,
    flag,
    many,
    option,
    seconds,
    text,
)
from mcp_skills_server.commands.logs import Format, Level, log_format, log_level
from mcp_skills_server.commands.options import FollowOptions, ProposalOptions
from mcp_skills_server.dialects.table import AUTO, names


class HttpOptions(
    Options,
    heading="Over HTTP (--transport http)",
    example="--host 0.0.0.0 --port 8080 --token-file tokens",
):
    host: str = option("127.0.0.1", "The address to listen on.")
    port: int = option(8000, "The port; 0 takes one that is free.", type=click.IntRange(0, 65535))
    allow_empty: bool = flag("Be ready without any skill, too; otherwise /readyz returns 503.")
    allowed_host: tuple[str, ...] = many(
        "A name that the Host header may have; * for any. The names of this machine are allowed "
        "by default if --host is one of them.",
        "NAME",
    )
    allowed_origin: tuple[str, ...] = many(
        "An origin that browsers may come from, such as https://app.example; * for any.", "ORIGIN"
    )
    token_file: str | None = text(
        "Clients must send a token of this file, which has lines name=token, and after the token "
        "expires=2027-01-31 and groups=a,b if you like. Read again when it changes.",
        "FILE",
        is_live=True,
        if_empty="tokens",
        type=click.Path(readable=False),  # to read it reports that it cannot be read, once
    )
    tokens: str | None = text(
        "The same lines as a value, for MCP_SKILLS_TOKENS.",
        "LINES",
        is_live=True,
        if_empty="tokens",
        is_secret=True,
    )
    session_idle: float = seconds(1800, "Idle timeout of a legacy session.", least=1)
    max_sessions: int = count(
        1000, "Maximum of legacy sessions; over it, the client with most loses its oldest idle one."
    )
    max_connections: int = count(
        1000, "Maximum of connections, likewise. The limit of open files applies, too."
    )
    request_timeout: float = seconds(
        30, "Time limit for receiving a request's head, and for its body.", above=True
    )
    max_body: int = count(1 << 20, "Size limit of a request.", metavar="BYTES")
    access_log: Literal["all", "errors", "off"] = choice(
        "all", "errors", "off", words="Which requests have a line in the log, at level info."
    )


class ProxyOptions(
    Options,
    heading="Behind a proxy (--transport http)",
    example="--root-path /skills --trusted-proxy 10.0.0.0/8",
):
    keep_alive: int = count(
        5, "Keep-alive timeout of a connection; a proxy's must be shorter.", metavar="SECONDS"
    )
    root_path: str = option(
        "", "The prefix of all paths for clients, whether a proxy strips it or not.", metavar="PATH"
    )
    trusted_proxy: tuple[str, ...] = many(
        "The address or network of a proxy, such as 10.0.0.0/8, whose X-Forwarded-For and "
        "X-Forwarded-Proto are trusted.",
        "CIDR",
    )
    drain: float = seconds(
        0, "How long to drain after SIGTERM: requests are answered, and /readyz says so."
    )


class ServeOptions(
    FollowOptions,
    ProposalOptions,
    HttpOptions,
    ProxyOptions,
    heading="The server",
    example="--transport http --log-format json",
):
    transport: Literal["stdio", "http"] = choice(
        "stdio", "http", words="How clients reach the server."
    )
    dialect: str = option(
        AUTO,
        "The dialect of skills/list and skills/get. auto: all of them, chosen for each client.",
        type=click.Choice(names()),
    )
    page_size: int = option(50, "Entries in a page of a listing.", type=click.IntRange(1, 1000))
    log_level: Level = log_level("info")
    log_format: Format = log_format()
