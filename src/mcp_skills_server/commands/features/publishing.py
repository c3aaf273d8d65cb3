"""The feature of discovery: what a server publishes below `/.well-known`, and the Server Card."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.fields import Options, flag, seconds, switch
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.commands.serve_options import ServeOptions
    from mcp_skills_server.web.part import Part


class PublishingOptions(Options):
    """Discovery by `/.well-known/agent-skills`."""

    heading: ClassVar[str] = "Discovery (--transport http)"
    publish: bool = switch(True, "Publish the skills below /.well-known/agent-skills too, to whom MCP is open.")
    publish_only: bool = flag("Publish the skills and answer no MCP.")
    publish_open: bool = flag("Ask no token for what is published, as /mcp does where tokens are given.")
    publish_grace: float = seconds(3600, "Keep what an index has named for so long after it changed.")


class Publishing(Feature[PublishingOptions]):
    """Discovery by `/.well-known/agent-skills`, the AI Catalog and the Server Card."""

    options_class = PublishingOptions

    def __init__(self, options: PublishingOptions, serve: ServeOptions) -> None:
        super().__init__(options, serve)
        if options.publish_only and not options.publish:
            raise UsageError("--publish-only and --no-publish leave nothing to serve; give one of them")
        if options.publish_only and serve.transport != "http":
            raise UsageError("--publish-only publishes over HTTP; give --transport http")

    def part(self, server: Server) -> Part | None:
        """Return what is published."""
        options = self.options
        if not options.publish:
            return None
        from mcp_skills_server.web.published import Publisher

        return Publisher(
            server.views, is_open=options.publish_open, alone=options.publish_only, grace_s=options.publish_grace
        )
