"""The options of a server that stands behind a proxy."""

from __future__ import annotations

from typing import ClassVar

import click

from mcp_skills_server.commands.fields import Options, many, option


class ProxyOptions(Options):
    """How it gets on with the proxies before it. They do nothing over stdio."""

    heading: ClassVar[str] = "Behind a proxy (--transport http)"
    keep_alive: int = option(
        5,
        "Close a connection that had no request for so long. A proxy must give its connections up before.",
        type=click.IntRange(min=1),
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
    drain: float = option(
        0,
        "After SIGTERM answer requests for so long, and say at /readyz that it ends.",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
    )
