"""`recall`: report from audit logs who was given what an advisory recalls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import click

from mcp_skills_server.commands.fields import file, output_format, takes
from mcp_skills_server.commands.options import ConfigOptions, RecallOptions
from mcp_skills_server.commands.printing import remark, say, say_json, say_table
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.model import printable
from mcp_skills_server.model.decoding import load_json

if TYPE_CHECKING:
    from mcp_skills_server.catalog.recalls import Advisory

_GIVEN: Final = frozenset(("load", "read", "run"))
"""The events of an audit log by which a client was given a file."""
_MAX_LINE: Final = 1 << 16
"""The maximum number of bytes of a line that is read; a server writes much shorter ones."""
_SHOWN: Final = 19
"""Characters of a digest in the table."""


class SearchRecallOptions(ConfigOptions, RecallOptions):
    audit_log: str | None = file("The audit log of the server.")
    form: Literal["table", "json"] = output_format("table", "json")


class _Recipient(NamedTuple):
    """A client that was given a recalled digest, as the audit log names it."""

    digest: str
    skill: str
    principal: str
    host: str
    address: str


@dataclass(slots=True)
class _Receipts:
    """The number of times that a client was given a digest, the first time and the last."""

    count: int
    first: str
    last: str


@click.command()
@click.argument("logs", nargs=-1, metavar="[AUDIT-LOG]...", type=click.Path(dir_okay=False))
@takes(SearchRecallOptions)
def recall(options: SearchRecallOptions, logs: tuple[str, ...]) -> int:
    """List the principals and hosts that were given a skill that --advisories recalls.

    AUDIT-LOG is a file that `serve --audit-log` wrote, such as a rotated one; without any, that of
    --audit-log. Exit code 1 if somebody had a recalled skill.

    \b
    Examples:
      mcp-skills-server recall --advisories advisories.toml audit.jsonl
      mcp-skills-server recall --config server.toml --format json
    """
    from mcp_skills_server.provenance import advisories

    if options.advisories is None:
        raise UsageError("there is nothing to look for; give --advisories FILE")
    files = logs or tuple(filter(None, (options.audit_log,)))
    if not files:
        raise UsageError("there is nothing to search; give AUDIT-LOG, or --audit-log FILE")
    recalled = {advisory.digest: advisory for advisory in advisories.read(Path(options.advisories))}
    recipients: dict[_Recipient, _Receipts] = {}
    for path in files:
        _search(path, recalled, recipients)
    if options.form == "json":
        say_json(
            [
                {
                    **recipient._asdict(),
                    "times": times.count,
                    "first": times.first,
                    "last": times.last,
                }
                | {"reason": recalled[recipient.digest].reason}
                for recipient, times in recipients.items()
            ]
        )
    else:
        _show(recipients, recalled)
    return int(bool(recipients))


def _search(
    path: str, recalled: Mapping[str, Advisory], recipients: dict[_Recipient, _Receipts]
) -> None:
    """Add the recipients that an audit log names."""
    unread = 0
    try:
        for record in _records(path):
            if record is None:
                unread += 1
                continue
            whole = record.pop("skill_digest")
            if whole in recalled:
                record["digest"] = whole
            if record["digest"] not in recalled:
                continue
            recipient = _Recipient(**{key: record[key] for key in _Recipient._fields})
            times = recipients.setdefault(recipient, _Receipts(0, record["time"], ""))
            times.count += 1
            times.first = min(times.first, record["time"])
            times.last = max(times.last, record["time"])
    except OSError as error:
        raise UsageError(f"{printable(path)}: cannot be read ({error.strerror})") from None
    if unread:
        remark(f"{printable(path)}: {plural(unread, 'line')} cannot be read, and may name more")


def _records(path: str) -> Iterator[dict[str, str] | None]:
    """Yield the texts of each line by which a client was given a file, None for an invalid line."""
    with open(path, "rb") as log:
        while line := log.readline(_MAX_LINE):
            try:
                record = load_json(line)
            except ValueError:
                yield None
                continue
            if not isinstance(record, dict):
                yield None
            elif record.get("event") in _GIVEN:
                fields = cast("dict[str, Any]", record)
                keys = ("time", "skill_digest", *_Recipient._fields)
                yield {key: printable(str(fields.get(key, ""))) for key in keys}


def _show(recipients: Mapping[_Recipient, _Receipts], recalled: Mapping[str, Advisory]) -> None:
    rows: list[tuple[str, ...]] = []
    for recipient, times in recipients.items():
        client = (text or "-" for text in (recipient.principal, recipient.host, recipient.address))
        seen = (str(times.count), times.first[:19], times.last[:19])
        rows.append((recipient.skill, recipient.digest[:_SHOWN], *client, *seen))
    header = ("SKILL", "DIGEST", "PRINCIPAL", "HOST", "ADDRESS", "TIMES", "FIRST", "LAST")
    say_table(header, rows, empty="nobody was given what is recalled")
    for digest in dict.fromkeys(recipient.digest for recipient in recipients):
        say(f"{digest[:_SHOWN]}: {recalled[digest]}")
