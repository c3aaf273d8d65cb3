"""What is told on stderr; stdout belongs to the protocol or to the answer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def log_level(default: str) -> Callable[[_F], _F]:
    """The option for what is told on stderr."""
    levels = click.Choice(["debug", "info", "warning", "error"])
    return click.option("--log-level", type=levels, default=default, help="What is told on stderr.")


def log_to_stderr(level: str) -> None:
    """Tell on stderr what is of this level or above; of other packages warnings, or all if it is `debug`."""
    logging.basicConfig(
        stream=sys.stderr, format="mcp-skills-server: %(levelname)s: %(message)s", level=logging.WARNING
    )
    logging.getLogger("mcp_skills_server").setLevel(level.upper())
    if level == "debug":
        logging.getLogger().setLevel(logging.DEBUG)
