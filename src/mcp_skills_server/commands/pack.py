"""`bundle` and `plugin`: skills as one file or one folder that hosts install."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

import mcp_skills_server
from mcp_skills_server.catalog.roots import PLUGIN_NAME
from mcp_skills_server.commands.fields import flag, option, takes
from mcp_skills_server.commands.opening import make_registry
from mcp_skills_server.commands.options import PartialOptions, RootOptions, roots
from mcp_skills_server.commands.printing import remark
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.format.archive import Files
from mcp_skills_server.model import printable

_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]{1,64})?")


class PackageOptions(PartialOptions, RootOptions):
    """What `bundle` and `plugin` have in common."""

    name: str | None = option(None, "What hosts call it; by default the name of the first folder.", metavar="NAME")
    package_version: str = option("0.1.0", "Its version.", metavar="VERSION")


class BundleOptions(PackageOptions):
    """All options of `bundle`."""

    output: str = option("", "The file to write, by custom NAME.mcpb.", required=True, type=click.Path(dir_okay=False))


class PluginOptions(PackageOptions):
    """All options of `plugin`."""

    output: str = option("", "The folder to write; it must not be there yet.", required=True, type=click.Path())
    server: bool = flag("Also have hosts start this server with the skills (mcp.json), by uvx.")


@click.command()
@roots
@takes(BundleOptions)
def bundle(options: BundleOptions, roots: tuple[str, ...]) -> int:
    """Write the skills below each ROOT and what starts this server into an MCP Bundle (.mcpb).

    Claude Desktop installs it by a double click, and needs uv, which it brings; uv fetches the server at the first
    start. The same skills give the same bytes.

    \b
    Example:
      mcp-skills-server bundle ~/skills --output skills.mcpb
    """
    from mcp_skills_server.durable import replace_file
    from mcp_skills_server.publish import packages

    name, version = _named(options, roots)
    skills = _skills(options, roots)
    if skills is None:
        return 1
    raw = packages.bundle(skills, name, version, mcp_skills_server.__version__)
    try:
        replace_file(Path(options.output), raw, None)
    except OSError as error:
        raise UsageError(f"--output {printable(options.output)}: cannot be written ({error.strerror})") from None
    remark(f"wrote {plural(len(skills), 'skill')} in {len(raw):,} bytes to {printable(options.output)}")
    return 0


@click.command()
@roots
@takes(PluginOptions)
def plugin(options: PluginOptions, roots: tuple[str, ...]) -> int:
    """Write the skills below each ROOT as an Agent Plugin 1.0: plugin.json, and each skill in skills/NAME.

    \b
    Example:
      mcp-skills-server plugin ~/skills --output acme-plugin --name acme
    """
    from mcp_skills_server.durable import write_folder
    from mcp_skills_server.publish import packages

    name, version = _named(options, roots)
    if os.path.lexists(options.output):
        raise UsageError(f"--output {printable(options.output)}: is there already; give another folder, or remove it")
    skills = _skills(options, roots)
    if skills is None:
        return 1
    try:
        write_folder(Path(options.output), packages.plugin(skills, name, version, server=options.server))
    except OSError as error:
        raise UsageError(f"--output {printable(options.output)}: cannot be written ({error.strerror})") from None
    remark(f"wrote the plugin {name} with {plural(len(skills), 'skill')} to {printable(options.output)}")
    return 0


def _named(options: PackageOptions, given: Sequence[str]) -> tuple[str, str]:
    """Return name and version of the package.

    Raises:
        UsageError: one is none.
    """
    folder = re.sub(r"[^a-z0-9]+", "-", os.path.basename(os.path.abspath(given[0])).lower()).strip("-")
    name = options.name if options.name is not None else folder[:64].strip("-")
    if not PLUGIN_NAME.fullmatch(name):
        raise UsageError(f"--name {printable(name)!r}: give 1 to 64 small letters, digits, '-' and '.'")
    if not _VERSION.fullmatch(options.package_version):
        raise UsageError(f"--package-version {printable(options.package_version)}: write three numbers, as in 1.2.0")
    return name, options.package_version


def _skills(options: PackageOptions, given: Sequence[str]) -> Mapping[str, Files] | None:
    """Return the files of each skill by name; None where one cannot be published, which is said.

    Raises:
        UsageError: there is no skill.
    """
    from mcp_skills_server.publish.publication import Publication

    registry = make_registry(given, options, proved=True)
    registry.load()
    publication = Publication(registry, evals=options.with_evals)
    edition = publication.edition()
    for path, reason in edition.left_out:
        remark(f"{path}: left out: {reason}")
    if edition.left_out and not options.allow_partial:
        remark("nothing was written; correct this, or take the rest with --allow-partial")
        return None
    if not edition.skills:
        raise UsageError("there is no skill to take; 'validate' says what is wrong with those that are there")
    skills: dict[str, Files] = {}
    for name, each in sorted(edition.skills.items()):
        inside = tuple(f"{place}/" for place in each.skill.nested)  # each a skill of its own in the package
        files = publication.unpacked(each)
        skills[name] = {path: file for path, file in files.items() if not path.startswith(inside)}
    return skills
