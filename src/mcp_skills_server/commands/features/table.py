"""The features of `serve`, most of them with their classes. A new one is a row of `FEATURES`."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.features.records import (
    Audit,
    PrometheusMetrics,
    Traces,
    UsageCounts,
)
from mcp_skills_server.commands.features.replicas import Replicas
from mcp_skills_server.commands.features.services import HttpServices
from mcp_skills_server.commands.fields import count, flag, many, option, seconds, switch, text
from mcp_skills_server.commands.opening import proposals_at
from mcp_skills_server.commands.runtime_options import ScriptsFeature, SearchByMeaning
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_skills_server.access.oauth import ResourceServer
    from mcp_skills_server.access.settings import OAuthSettings
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.proposals.store import ProposalStore
    from mcp_skills_server.runtime.settings import RuntimeSettings
    from mcp_skills_server.web.part import Part

logger = logging.getLogger(__name__)


class ToolsFeature(Feature, heading="Tools", example="--prefer finance --max-loaded 3"):
    """Tools to load, read and search skills, and the instructions about them."""

    tools: bool = switch(
        True, "Offer tools to load, read and search skills, for hosts without support for skills."
    )
    catalog_chars: int | None = option(
        None,
        "How long the instructions, and the description of skills_load, may be. By default 4000, "
        "since hosts cut what is over 4,096, and 10000 for those that are known to cut nothing.",
        type=click.IntRange(min=0),
        metavar="CHARACTERS",
    )
    prefer: tuple[str, ...] = many(
        "Skills with this tag are listed first, and described to models where not all descriptions "
        "fit.",
        "TAG",
    )
    max_loaded: int = count(8, "Skills that a session may have loaded at once.")
    load_dependencies: bool = switch(
        False, "Also load the skills in the dependencies.skills of a skill, one level deep."
    )
    local_paths: bool = switch(
        True, "Over stdio, tell models the directories of local skills, for their shell."
    )

    def proposals(self, folder: str | None, registry: Registry) -> ProposalStore | None:
        """Return the store of proposals in a folder, or None without one."""
        if folder is not None and not self.tools:  # before the folder is made
            raise UsageError("--proposals offers tools, and --no-tools none; leave one of them out")
        return proposals_at(folder, [root.path for root in registry.roots])

    def runtime_settings(self, recent: Sequence[str], *, over_http: bool) -> RuntimeSettings:
        """Return the settings of the runtime; `recent` are the paths of skills used recently."""
        from mcp_skills_server.runtime.settings import RuntimeSettings

        return RuntimeSettings(
            max_loaded=self.max_loaded,
            overview_characters=self.catalog_chars,
            local_root_dirs=self.local_paths and not over_http,
            preferred_tags=self.prefer,
            preferred_paths=recent,
            load_dependencies=self.load_dependencies,
        )


class PromptsFeature(Feature, heading="Prompts", example="--prompt 'acme/*'"):
    """A prompt for each skill."""

    prompts: bool = switch(True, "Offer each skill as a prompt, a slash command in most hosts.")
    prompt_choice: tuple[str, ...] = many(
        "Only skills whose name or path matches appear as prompts, such as 'acme/*'.",
        "PATTERN",
        "--prompt",
    )
    prompt_page_size: int = count(1000, "Prompts in a page; some hosts show only the first page.")


class Publishing(Feature, heading="Discovery (--transport http)", example="--publish-open"):
    """Discovery by `/.well-known/agent-skills`, the AI Catalog and the Server Card."""

    publish: bool = switch(
        True,
        "Also publish the skills below /.well-known/agent-skills, to the clients that may use MCP.",
    )
    publish_only: bool = flag("Publish the skills and answer no MCP.")
    publish_open: bool = flag("Require no token for published files, even if /mcp requires one.")
    publish_grace: float = seconds(
        3600, "How long to keep what an index has named after it changed."
    )

    def start(self, server: Server) -> None:
        if self.publish_only and not self.publish:
            raise UsageError("--publish-only and --no-publish leave nothing to serve; give one")
        if self.publish_only and not server.over_http:
            raise UsageError("--publish-only publishes over HTTP; give --transport http")

    def part(self, server: Server, http: HttpServices) -> Part | None:
        if not self.publish:
            return None
        from mcp_skills_server.web.published import publishing_part

        return publishing_part(
            server.views,
            http.front.policy,
            http.front.root_path,
            is_open=self.publish_open,
            alone=self.publish_only,
            grace_s=self.publish_grace,
        )


class SkillsProtocol(Feature, heading="Skills Protocol (--transport http)", example="--no-rpc"):
    """The Skills Protocol at `/rpc`."""

    rpc: bool = switch(
        True, "Also answer the Skills Protocol at /rpc, to the clients that may use MCP."
    )

    def part(self, server: Server, http: HttpServices) -> Part | None:
        if not self.rpc or server.feature(Publishing).publish_only:
            return None
        from mcp_skills_server.rpc.methods import Methods
        from mcp_skills_server.web.rpc import rpc_part

        allow_code = server.feature(ScriptsFeature).allow_code
        methods = Methods(server.runtime, allow_code, views=server.views)
        return rpc_part(methods, http.front.limits.rate, server.options.max_body)


class Webhook(
    Feature, heading="Webhook (--transport http)", example="--refresh-secret a-long-random-text"
):
    """The webhook of a source's host, such as GitHub, which makes the server poll all sources."""

    refresh_secret: str | None = text(
        "Answer webhooks of GitHub, GitLab, Gitea or Forgejo at /refresh that prove knowledge of "
        "this secret, and poll the sources at once. Meant for MCP_SKILLS_REFRESH_SECRET.",
        "SECRET",
        is_secret=True,
    )

    def part(self, server: Server, http: HttpServices) -> Part | None:
        if self.refresh_secret is None:
            return None
        from mcp_skills_server.web.refresh import PATH, checked_secret, webhook_part

        secret = checked_secret(self.refresh_secret)
        if server.opened.mirrors is None:
            logger.warning(
                "--refresh-secret: %s has nothing to fetch; every ROOT is a folder", PATH
            )
        return webhook_part(secret, http.front.limits.quotas, http.shared.poll_sources)


def oauth_settings(table: OAuthSettings | None, options: Mapping[str, Any]) -> OAuthSettings | None:
    """Return the settings of `[oauth]`, overridden by the options --oauth-KEY; None without any.

    Raises:
        UsageError: an option has an invalid value, or an issuer or an audience is missing.
    """
    options = {key: options[f"oauth_{key}"] for key in ("issuer", "audience", "resource")}
    given = {key: value for key, value in options.items() if value is not None}
    if not given:
        return table
    from mcp_skills_server.access.settings import OAuthSettings
    from mcp_skills_server.model.keys import ContradictionError, WrongValueError

    values: dict[str, str] = {}
    if table is not None:
        values = {key: getattr(table, key) for key in options}
        if table.resource == table.audience:
            del values["resource"]  # by default the audience, also a new one
    values |= given
    for key in ("issuer", "audience"):
        if key not in values:
            raise UsageError(f"--oauth-{key} is missing; give it too, or a table [oauth]")
    for key, value in given.items():
        known = OAuthSettings.TABLE.keys[key]
        try:
            known.read(value)
        except WrongValueError as error:
            raise UsageError(f"--oauth-{key}: {error}; give {known.takes}") from None
    try:
        settings = OAuthSettings.from_table(values)
    except ContradictionError as error:
        raise UsageError(f"--oauth-{error.key}: {error}; give --oauth-resource too") from None
    if table is None:
        return settings
    return replace(table, **{key: getattr(settings, key) for key in options})


class OAuth(
    Feature,
    heading="OAuth (--transport http)",
    example="--oauth-issuer https://id.example --oauth-audience https://skills.example/mcp",
):
    """Access tokens of an OAuth 2.1 issuer."""

    oauth_issuer: str | None = text(
        "Accept the access tokens of this OAuth 2.1 issuer, spelled as in its metadata. The "
        "table [oauth] of a configuration has more settings.",
        "URL",
        in_file=False,
        if_empty="an issuer",
    )
    oauth_audience: str | None = text(
        "The aud that these tokens must have.", "TEXT", in_file=False, if_empty="an audience"
    )
    oauth_resource: str | None = text(
        "The URL of the endpoint for clients, if not the audience.", "URL", in_file=False
    )

    def resource_server(self, configuration: Configuration | None) -> ResourceServer | None:
        """Return the verifier of the issuer's tokens, or None without an issuer."""
        settings = oauth_settings(configuration and configuration.oauth, vars(self))
        if settings is None:
            return None
        from mcp_skills_server.access.oauth import ResourceServer
        from mcp_skills_server.web.oauth import fetch

        return ResourceServer(settings, fetch)

    def part(self, server: Server, http: HttpServices) -> Part | None:  # noqa: ARG002
        issuer = http.front.policy.oauth
        if issuer is None:
            return None
        from mcp_skills_server.web.oauth import metadata_part

        return metadata_part(issuer)


class PageFeature(Feature, heading="Page (--transport http)", example="--ui"):
    """The web page for people, at `/ui`."""

    ui: bool = flag("Show the skills to people at /ui, if they may use MCP.")

    def part(self, server: Server, http: HttpServices) -> Part | None:
        if not self.ui:
            return None
        from mcp_skills_server.commands.options import index_of
        from mcp_skills_server.web.ui.app import WebPage  # lazy, since it loads templates
        from mcp_skills_server.web.ui.session import PageSessions

        quotas, store = http.front.limits.quotas, http.shared.page_sessions
        sessions = PageSessions(http.front.policy, quotas, store=store)
        page = WebPage(
            server.runtime,
            server.settings,
            server.views,
            sessions,
            site_states=server.opened.source_states,
            counts=server.feature(UsageCounts).store,
            answers=index_of(server.options.cache_dir),
        )
        return page.part()


FEATURES: Final[tuple[type[Feature], ...]] = (
    ToolsFeature,
    PromptsFeature,
    ScriptsFeature,
    OAuth,
    Replicas,
    Publishing,
    Webhook,
    SkillsProtocol,
    PrometheusMetrics,
    PageFeature,
    SearchByMeaning,
    Audit,
    UsageCounts,
    Traces,
)
"""All features, in the order of their start and of their options in the help."""
