"""Which skills each principal has, as the tables `[[grant]]` of the configuration say."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from mcp_skills_server.access.grants import EVERYBODY, LOCAL, Grants
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.commands.config_file import Configuration

logger = logging.getLogger(__name__)


def make_views(registry: Registry, configuration: Configuration | None, *, local: bool) -> Views:
    """What each principal has of a registry.

    Args:
        registry: all skills.
        configuration: what the file says; without a table `[[grant]]` everybody has everything.
        local: whether the one client is at the other end of a pipe.
    """
    from mcp_skills_server.catalog.views import Views

    if configuration is None or configuration.grants is None:
        return Views(registry)
    grants = Grants(configuration.grants, local=local)
    if local and not grants.permissions(None).grants:
        logger.warning(
            '%s grants nothing to who starts this server; write who = ["%s"] in a table [[grant]]',
            configuration.file,
            LOCAL,
        )
    return Views(registry, grants)


def check_grants(configuration: Configuration | None, tokens: Collection[object]) -> None:
    """Prove that somebody can be who the grants name, of a server that listens on the network.

    Args:
        configuration: what the file says.
        tokens: what proves who a client is; nothing where nobody has to prove anything.

    Raises:
        UsageError: a grant names principals, and no client can prove to be one.
    """
    if configuration is None or configuration.grants is None or tokens:
        return
    for grant, line in zip(configuration.grants, configuration.grant_lines, strict=True):
        if not {EVERYBODY, LOCAL}.issuperset(grant.who):
            raise UsageError(
                f"{configuration.file}:{line}: grant.who: no client can prove who it is; give token-file or [oauth], "
                f'or write who = ["{EVERYBODY}"]'
            )
