"""Options that several commands share: the roots and what a skill may measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.scan import Limits

_F = TypeVar("_F", bound=Callable[..., Any])


def limits(command: _F) -> _F:
    """The options that bound a skill."""
    for name, default, words in (
        ("depth", 6, "Levels of folders between a root and a skill."),
        ("bytes", 16 << 20, "Bytes of one skill, all files together."),
        ("files", 512, "Files of one skill."),
        ("skill-md", 1 << 20, "Bytes of a SKILL.md."),
    ):
        option = click.option(
            f"--max-{name}",
            type=click.IntRange(min=1),
            default=default,
            show_default=True,
            help=words,
        )
        command = option(command)
    return command


def roots(command: _F) -> _F:
    """The folders to look at."""
    return click.argument(
        "roots", nargs=-1, required=True, metavar="ROOT...", type=click.Path(), envvar="MCP_SKILLS_ROOTS"
    )(command)


def make_registry(given: tuple[str, ...], options: dict[str, Any]) -> Registry:
    """A registry of these roots with the limits among the options, which are taken out."""
    from mcp_skills_server.catalog.registry import Registry

    return Registry(given, take_limits(options))


def take_limits(options: dict[str, Any]) -> Limits:
    """The limits among the options, which are taken out."""
    from mcp_skills_server.catalog.scan import Limits

    return Limits(*(options.pop(f"max_{name}") for name in ("skill_md", "files", "bytes", "depth")))
