"""How the help of a command with many options shows them: by what they are about, after the examples."""

from __future__ import annotations

from typing import Final

import click

_HTTP: Final = "HTTP: "
_OVER_HTTP: Final = "Over HTTP (--transport http)"
_REST: Final = "Other options"
_HEADINGS: Final = {
    "What clients are shown": ("dialect", "tools", "prompt", "catalog", "max_loaded", "page_size"),
    "Which skills there are": ("hidden", "max_depth", "max_bytes", "max_files", "max_skill_md"),
    "Roots that are sites": ("fetch_", "allow_http", "allow_private", "cache_dir"),
    "Following changes": ("watch", "poll", "reconcile"),
    "Running scripts": ("allow_", "script", "sandbox", "interpreter"),
    _OVER_HTTP: (),
    _REST: (),
}
"""Each heading with how the names of its options begin, in the order of the help; the first that fits counts."""


class Grouped(click.Command):
    """A command whose help has its options below headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in _HEADINGS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                option, said = record
                rows[_heading(parameter)].append((option, said.removeprefix(_HTTP)))
        for heading, records in rows.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def is_for_http(parameter: click.Parameter) -> bool:
    """Whether an option says something of HTTP alone."""
    return isinstance(parameter, click.Option) and (parameter.help or "").startswith(_HTTP)


def _heading(parameter: click.Parameter) -> str:
    if is_for_http(parameter):
        return _OVER_HTTP
    name = parameter.name or ""
    return next((heading for heading, begins in _HEADINGS.items() if begins and name.startswith(begins)), _REST)
