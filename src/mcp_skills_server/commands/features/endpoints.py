"""The features that are an endpoint beside MCP: the Skills Protocol, the webhook of sources, OAuth, the page."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

import click

from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.features.records import UsageCounts
from mcp_skills_server.commands.fields import Options, flag, option, switch
from mcp_skills_server.commands.options import oauth_of

if TYPE_CHECKING:
    from mcp_skills_server.access.oauth import ResourceServer
    from mcp_skills_server.web.part import Part

logger = logging.getLogger(__name__)


class SkillsProtocolOptions(Options):
    """The Skills Protocol."""

    heading: ClassVar[str] = "Skills Protocol (--transport http)"
    rpc: bool = switch(True, "Answer the Skills Protocol at /rpc too, to whom MCP is open.")


class SkillsProtocol(Feature[SkillsProtocolOptions]):
    """The Skills Protocol at `/rpc`."""

    options_class = SkillsProtocolOptions

    def part(self, server: Server) -> Part | None:
        """Return the endpoint."""
        if not self.options.rpc:
            return None
        from mcp_skills_server.web.rpc import SkillsProtocolEndpoint

        return SkillsProtocolEndpoint(server.runtime, server.views, allow_code=self.serve.allow_code)


class WebhookOptions(Options):
    """The webhook of remote sources."""

    heading: ClassVar[str] = "Webhook (--transport http)"
    refresh_secret: str | None = option(
        None,
        "Answer webhooks of GitHub, GitLab, Gitea or Forgejo at /refresh, which prove that they know this secret: "
        "sources are then looked at now. Meant for MCP_SKILLS_REFRESH_SECRET.",
        metavar="SECRET",
        is_secret=True,
    )


class Webhook(Feature[WebhookOptions]):
    """The webhook by which the host of a source has all sources polled now."""

    options_class = WebhookOptions

    def part(self, server: Server) -> Part | None:
        """Return the endpoint.

        Raises:
            UsageError: the secret is too weak.
        """
        if self.options.refresh_secret is None:
            return None
        from mcp_skills_server.web.refresh import PATH, WebhookEndpoint, checked_secret

        secret = checked_secret(self.options.refresh_secret)
        if server.opened.mirrors is None:
            logger.warning("--refresh-secret: every ROOT is a folder, which is watched; %s has nothing to fetch", PATH)
        return WebhookEndpoint(secret)


class OAuthOptions(Options):
    """OAuth, as a resource server."""

    heading: ClassVar[str] = "OAuth (--transport http)"
    oauth_issuer: str | None = option(
        None,
        "Take the access tokens of this OAuth 2.1 issuer, as its metadata spells it. The table [oauth] of a "
        "configuration says more.",
        metavar="URL",
        in_file=False,
        if_empty="an issuer",
    )
    oauth_audience: str | None = option(
        None, "What aud of those tokens must name.", metavar="TEXT", in_file=False, if_empty="an audience"
    )
    oauth_resource: str | None = option(
        None,
        "The URL by which clients know the endpoint, where that is not the audience.",
        metavar="URL",
        in_file=False,
    )


class OAuth(Feature[OAuthOptions]):
    """Access tokens of an OAuth 2.1 issuer.

    Attributes:
        resource_server: takes the tokens; None where there is no issuer.
    """

    options_class = OAuthOptions
    resource_server: ResourceServer | None = None

    def start(self, server: Server) -> None:  # noqa: ARG002
        """Read which issuer is trusted.

        Raises:
            UsageError: an option or the table [oauth] does not take its value, or one is missing.
        """
        settings = oauth_of(click.get_current_context())
        if settings is None:
            return
        from mcp_skills_server.access.oauth import ResourceServer
        from mcp_skills_server.web.issuer_fetch import fetch

        self.resource_server = ResourceServer(settings, fetch)

    def part(self, server: Server) -> Part | None:  # noqa: ARG002
        """Return the metadata that clients need to sign in."""
        if self.resource_server is None:
            return None
        from mcp_skills_server.web.resource_metadata import ResourceMetadata

        return ResourceMetadata(self.resource_server)


class PageOptions(Options):
    """The page."""

    heading: ClassVar[str] = "Page (--transport http)"
    ui: bool = flag("Show the skills to people at /ui, to whom MCP is open.")


class PageFeature(Feature[PageOptions]):
    """The page for people, at `/ui`."""

    options_class = PageOptions

    def part(self, server: Server) -> Part | None:
        """Return the page."""
        if not self.options.ui:
            return None
        from mcp_skills_server.web.settings import UiSettings
        from mcp_skills_server.web.ui.app import PagePart  # with its templates, where it is wanted

        settings = UiSettings(counts=server.feature(UsageCounts).store)
        return PagePart(server.runtime, server.settings, settings, server.views)
