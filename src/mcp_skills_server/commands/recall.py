"""`recall`: report from audit logs who was given what an advisory recalls."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final, Literal

import click

from mcp_skills_server.catalog.recalls import read_advisories
from mcp_skills_server.commands.fields import output_format, takes
from mcp_skills_server.commands.options import ConfigOptions, RecallOptions
from mcp_skills_server.commands.printing import remark, say, say_json, say_table
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import Json, printable
from mcp_skills_server.model.decoding import load_json

_GIVEN: Final = frozenset(("load", "read", "run"))
"""The events of an audit log by which a client was given a file."""
_MAX_LINE: Final = 1 << 16
"""The maximum number of bytes of a line that is read; a server writes much shorter ones."""
_FIELDS: Final = ("skill", "principal", "host", "address")
"""The fields of a line that name who was given a file of what."""
_SHOWN: Final = 19
"""Characters of a digest in the table."""


class SearchRecallOptions(ConfigOptions, RecallOptions):
    form: Literal["table", "json"] = output_format("table", "json")


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="AUDIT-LOG...", type=click.Path())
@takes(SearchRecallOptions)
def recall(options: SearchRecallOptions, logs: tuple[str, ...]) -> int:
    """List the principals and hosts that were given a skill that --advisories recalls.

    AUDIT-LOG is a file that `serve --audit-log` wrote, also a rotated one. Exit code 1 if somebody
    had a recalled skill.

    \b
    Examples:
      mcp-skills-server recall --advisories advisories.toml audit.jsonl
      mcp-skills-server recall --config server.toml audit.jsonl.1 audit.jsonl --format json
    """
    if options.advisories is None:
        raise UsageError("there is nothing to look for; give --advisories FILE")
    recalled = {advisory.digest: advisory for advisory in read_advisories(options.advisories)}
    spans: dict[tuple[str, ...], tuple[int, str, str]] = {}
    for recipient, time in chain.from_iterable(_search(path, recalled) for path in logs):
        count, first, last = spans.get(recipient, (0, time, time))
        spans[recipient] = (count + 1, min(first, time), max(last, time))
    keys = ("digest", *_FIELDS, "times", "first", "last")
    rows = [(*recipient, *span) for recipient, span in spans.items()]
    if options.form == "json":
        say_json([dict(zip(keys, row, strict=True)) for row in rows])
        return int(bool(rows))
    table = [(str(row[0])[:_SHOWN], *(str(value or "-") for value in row[1:])) for row in rows]
    header = tuple(key.upper() for key in keys)
    say_table(header, table, empty="nobody was given what is recalled")
    for digest in dict.fromkeys(recipient[0] for recipient in spans):
        say(f"{digest[:_SHOWN]}: {recalled[digest]}")
    return int(bool(rows))


def _search(path: str, recalled: Collection[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (digest and fields, time) of each line of an audit log with a recalled digest."""
    unread = 0
    try:
        with open(path, "rb") as log:
            while line := log.readline(_MAX_LINE):
                fields: dict[str, Json] = {}
                with suppress(ValueError):
                    fields = mapping(load_json(line))
                unread += not fields
                digests = [str(fields.get(key)) for key in ("skill_digest", "digest")]
                known = [digest for digest in digests if digest in recalled]
                if known and fields.get("event") in _GIVEN:
                    texts = [printable(str(fields.get(key, ""))) for key in _FIELDS]
                    yield (known[0], *texts), printable(str(fields.get("time", "")))
    except OSError as error:
        raise UsageError(f"{printable(path)}: cannot be read ({error.strerror})") from None
    if unread:
        remark(f"{printable(path)}: {plural(unread, 'line')} cannot be read, and may name more")
