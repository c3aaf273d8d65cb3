"""What to put into a host's configuration so that it has these skills."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.hosts.edit import entry_for, snippet
from mcp_skills_server.hosts.table import HOSTS

_NAME: Final = "skills"
_PROGRAM: Final = "mcp-skills-server"


@dataclass(frozen=True, slots=True)
class Snippet:
    """Something to copy.

    Attributes:
        key: a word of its own.
        title: where it belongs.
        text: what to copy.
    """

    key: str
    title: str
    text: str


def snippets(roots: Sequence[str], url: str = "", *, needs_token: bool = False) -> list[Snippet]:
    """What to copy for each host that starts a server of these roots; for a server at a URL, what most hosts take."""
    if url:
        entry: dict[str, object] = {"type": "http", "url": url}
        header = ' --header "Authorization: Bearer YOUR-TOKEN"' if needs_token else ""
        if needs_token:
            entry["headers"] = {"Authorization": "Bearer YOUR-TOKEN"}
        return [
            Snippet("json", "A host that reads mcpServers", json.dumps({"mcpServers": {_NAME: entry}}, indent=2)),
            Snippet("claude", "Claude Code", f"claude mcp add --transport http {_NAME} {shlex.quote(url)}{header}"),
        ]
    command = Snippet(
        "install",
        "By the command line",
        "\n".join(shlex.join([_PROGRAM, "install", host, *roots]) for host in HOSTS),
    )
    entries = [
        Snippet(key, host.title, snippet(host, _NAME, entry_for(host, [_PROGRAM], roots)))
        for key, host in HOSTS.items()
    ]
    return [command, *entries]
