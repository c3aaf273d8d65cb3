"""Features that show skills to hosts without support for skills: tools and prompts."""

from __future__ import annotations

from dataclasses import replace

import click

from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.fields import count, many, option, switch, values_of
from mcp_skills_server.commands.opening import proposals_at
from mcp_skills_server.errors import UsageError


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
        "Skills with this tag are described to models before others where not all descriptions "
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
    only_http = False

    def start(self, server: Server) -> None:
        folder, roots = server.options.proposals, server.opened.registry.roots
        if folder is not None and not self.tools:  # before the folder is made
            raise UsageError("--proposals offers tools, and --no-tools none; leave one of them out")
        proposals = proposals_at(folder, [each.path for each in roots])
        server.settings = replace(server.settings, tools=self.tools, proposals=proposals)
        server.runtime.settings = server.runtime.settings._replace(
            max_loaded=self.max_loaded,
            overview_characters=self.catalog_chars,
            local_root_dirs=self.local_paths and not server.over_http,
            preferred_tags=self.prefer,
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
    only_http = False

    def start(self, server: Server) -> None:
        chosen = values_of(self, "prompts", "prompt_choice", "prompt_page_size")
        server.settings = replace(server.settings, **chosen)
