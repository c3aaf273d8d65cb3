"""`publish`, `push`, `bundle` and `plugin`: skills as files for a web server, artifacts of a registry, or a package."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

import mcp_skills_server
from mcp_skills_server.catalog.plugins import PLUGIN_NAME
from mcp_skills_server.commands.fields import Options, flag, option, seconds, takes
from mcp_skills_server.commands.look import report_passed
from mcp_skills_server.commands.opening import make_registry
from mcp_skills_server.commands.options import RootOptions, roots, roots_and_last, without_skills
from mcp_skills_server.commands.printing import progress, remark, say
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.format.archive import Files
from mcp_skills_server.model import printable

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.publish.artifacts import Published
    from mcp_skills_server.publish.publication import Publication
    from mcp_skills_server.sources.oci.push import Package, Pushed
    from mcp_skills_server.sources.oci.reference import OciReference

_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]{1,64})?")


class PartialOptions(Options):
    """Options for skills that cannot be published."""

    allow_partial: bool = flag(
        "Publish the others where a skill cannot be; without it nothing is, and it exits with 1."
    )
    with_evals: bool = flag("Publish the folder evals of each skill, too. That of a signed skill always is.")


class PublishOptions(PartialOptions, RootOptions):
    """All options of `publish`."""

    output: str = option("", "The folder for the tree.", required=True, type=click.Path(), metavar="DIR")
    base_url: str = option(
        "",
        "Where DIR will be reached, if that is not the root of the site that serves the index.",
        metavar="URL",
        show_default=False,
    )
    headers: bool = flag("Also write DIR/_headers, for Netlify and Cloudflare Pages.")
    keep: float = option(
        7,
        "Keep what the index no longer names for so long, for clients with an older index.",
        type=click.FloatRange(min=0),
        metavar="DAYS",
    )
    check: bool = flag("Write nothing; print what is not current, and exit with 1 if anything is.")


@click.command()
@roots
@takes(PublishOptions)
def publish(options: PublishOptions, roots: tuple[str, ...]) -> int:
    """Publish the skills below each ROOT as files that any web server can serve.

    DIR gets `.well-known/agent-skills` (discovery 0.2.0) and `.well-known/skills` (0.1.0), with the bytes that
    `serve --transport http` answers. Only what has changed is written, and the indexes come last. DIR must be empty or
    written by this command before. Where a skill cannot be published, nothing is written, unless --allow-partial says
    so.

    \b
    Examples:
      mcp-skills-server publish ~/skills --output ./public
      mcp-skills-server publish ~/skills --output ./public --base-url https://cdn.example.com --headers
      mcp-skills-server publish ~/skills --output ./public --check
    """
    from mcp_skills_server.publish.publication import Publication
    from mcp_skills_server.publish.static import StaticSite

    output = options.output
    _check_base(options.base_url)
    registry = make_registry(roots, options, indexed=True)
    real = os.path.realpath(output)
    for root in registry.roots:
        if real == root.path or real.startswith(root.path.rstrip(os.sep) + os.sep):
            raise UsageError(f"--output {printable(output)} lies in {root.shown}; give a folder outside of it")
    if sys.stderr.isatty():
        remark("reading the skills")
    registry.load()
    report_passed(registry)
    empty = without_skills(registry)
    if empty and not options.allow_partial and not options.check:
        return _refuse_to_publish(output, [(root, "no skill there") for root in empty])
    site = StaticSite(
        output,
        headers=options.headers,
        keep_days=options.keep,
        steps=partial(progress, label="writing"),
    )
    publication = Publication(
        registry,
        options.base_url,
        steps=partial(progress, label="packing"),
        evals=options.with_evals,
    )
    if options.check:
        differences = site.check(publication)
    else:
        differences = site.write(publication, partial=options.allow_partial)
    edition = publication.latest or publication.edition()
    if differences is None:
        return _refuse_to_publish(output, edition.left_out)
    _report_left_out(edition.left_out, "not published")
    for path, reason in edition.left_out_0_1:
        remark(f"{path}: published by discovery 0.2.0 alone: {reason}")
    shown = printable(output)
    if options.check:
        for each in differences:
            say(str(each))
        state = f"not current: {plural(len(differences), 'file')} to change" if differences else "current"
        remark(f"{shown} is {state}")
        return int(bool(differences or (edition.left_out and not options.allow_partial)))
    registry.keep_index()
    done = f"{plural(len(differences), 'file')} changed" if differences else "nothing to change"
    remark(f"published {len(edition.skills)} skills in {shown}, {done}")
    return 0


def _report_left_out(left_out: Iterable[tuple[str, str]], what: str) -> None:
    for path, reason in left_out:
        remark(f"{path}: {what}: {reason}")


def _refuse_to_publish(output: str, left_out: Iterable[tuple[str, str]]) -> int:
    """Print why nothing was published, and return the exit code."""
    _report_left_out(left_out, "not published")
    remark(f"nothing was published in {printable(output)}; correct this, or publish the rest with --allow-partial")
    return 1


def _check_base(url: str) -> None:
    """Refuse a base that is neither "", an http or https URL nor a path from the root of the site (X-20)."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is not None:
        is_plain = not (parts.query or parts.fragment or parts.username or parts.password) and url.isascii()
        is_plain = is_plain and not any(each <= " " or each in '\\"<>^`{|}\x7f' for each in url)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_path = not parts.scheme and not parts.netloc and url[:1] in {"", "/"}
        if is_plain and (is_whole or is_path):
            return
    raise UsageError(
        f"--base-url {printable(url)}: give an http or https URL such as https://cdn.example.com, or a path such "
        "as /skills"
    )


def _packable(
    registry: Registry, options: PartialOptions, *, what: str, refusal: str, empty: str
) -> tuple[Publication, dict[str, Published]] | None:
    """Return the skills that can be packed, by name; None where one cannot and --allow-partial is missing.

    Each one left out is reported as `what`, and a refusal by the line `refusal`.
    """
    from mcp_skills_server.publish.publication import Publication

    registry.load()
    publication = Publication(registry, evals=options.with_evals)
    edition = publication.edition()
    _report_left_out(edition.left_out, what)
    if edition.left_out and not options.allow_partial:
        remark(refusal)
        return None
    if not edition.skills:
        raise UsageError(f"there is no skill to {empty}; 'validate' says what is wrong with those that are there")
    return publication, dict(sorted(edition.skills.items()))


class PushOptions(PartialOptions, RootOptions):
    """All options of `push`."""

    each: bool = flag("One artifact for each skill, in the repository REPOSITORY/NAME, and no collection of them.")
    timeout: float = seconds(600, "One upload.", above=True)


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="ROOT... oci://REGISTRY/REPOSITORY:TAG")
@takes(PushOptions)
def push(options: PushOptions, arguments: tuple[str, ...]) -> int:
    """Push the skills below each ROOT into a registry, as artifacts that oci:// reads.

    One skill becomes an artifact under TAG (default: latest), several become a collection: one artifact for each, and
    an index of them under TAG. Credentials are those of `docker login`. The same files give the same digests
    everywhere, and what the registry has is not sent again. stdout has each name with the digest to pin. Where a skill
    cannot be pushed, nothing is, unless --allow-partial says so.

    \b
    Examples:
      mcp-skills-server push ~/skills oci://registry.example.com/team/skills:1.0
      mcp-skills-server push ~/skills/refunds oci://registry.example.com/team/refunds:2.1
      mcp-skills-server push ~/skills oci://registry.example.com/team/skills --each
    """
    from mcp_skills_server.format.identity import version
    from mcp_skills_server.sources.oci.push import Package
    from mcp_skills_server.sources.oci.reference import is_oci, parse_reference

    usage = "push takes roots and then where to, as in 'push ~/skills oci://registry.example.com/skills'"
    roots, target = roots_and_last(arguments, usage)
    if not is_oci(target):
        raise UsageError(usage)
    reference = parse_reference(target, http=options.allow_http)
    if reference.digest is not None:
        raise UsageError(f"{target}: what is pushed gets its digest from its bytes; give a tag, or nothing for latest")
    refusal = f"nothing was pushed to {reference}; correct this, or push the rest with --allow-partial"
    found = _packable(
        make_registry(roots, options, proved=True), options, what="not pushed", refusal=refusal, empty="push"
    )
    if found is None:
        return 1
    publication, skills = found
    packages = [
        Package(name, each.skill.frontmatter, version(each.skill.frontmatter), partial(publication.unpacked, each))
        for name, each in skills.items()
    ]
    return _push(reference, packages, options)


def _push(reference: OciReference, packages: Sequence[Package], options: PushOptions) -> int:
    """Push, and print what became of it; 1 where a skill cannot be packed, 2 where the registry does not take it."""
    import anyio

    from mcp_skills_server.format.archive import ArchiveRefusedError
    from mcp_skills_server.sources.source import SourceError

    async def run() -> None:
        if not options.each:
            _report(reference, await _push_all(reference, packages, options))
            return
        for package in packages:
            own = replace(reference, repository=f"{reference.repository}/{package.name}")
            _report(own, await _push_all(own, [package], options))

    try:
        anyio.run(run)
    except ArchiveRefusedError as error:
        remark(str(error))
        return 1
    except SourceError as error:
        remark(str(error))
        return 2
    return 0


async def _push_all(reference: OciReference, packages: Sequence[Package], options: PushOptions) -> Pushed:
    from mcp_skills_server.sources.http import HttpClient
    from mcp_skills_server.sources.oci.access import Access
    from mcp_skills_server.sources.oci.client import RegistryClient
    from mcp_skills_server.sources.oci.push import push_collection, push_skill
    from mcp_skills_server.sources.source import Bounds, OriginPolicy

    trust = OriginPolicy(private=options.allow_private, http=options.allow_http)
    bounds = Bounds(read_s=min(30.0, options.timeout), download_s=options.timeout)
    async with HttpClient(bounds) as http:
        client = RegistryClient(http, reference, Access(reference, "pull,push"), trust)
        if len(packages) == 1:
            return await push_skill(client, reference, packages[0])
        return await push_collection(client, reference, packages)


def _report(reference: OciReference, pushed: Pushed) -> None:
    named = str(reference).removesuffix(f":{reference.tag}")
    say(f"{named}@{pushed.digest}")
    sent = f"{len(pushed.sent)} new ({pushed.bytes:,} bytes sent)" if pushed.bytes else "nothing to send"
    remark(f"pushed {reference}: {sent}")


class PackageOptions(PartialOptions, RootOptions):
    """Options that `bundle` and `plugin` share."""

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
    skills = _packaged_files(options, roots)
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
    skills = _packaged_files(options, roots)
    if skills is None:
        return 1
    try:
        write_folder(Path(options.output), packages.plugin(skills, name, version, server=options.server))
    except OSError as error:
        raise UsageError(f"--output {printable(options.output)}: cannot be written ({error.strerror})") from None
    remark(f"wrote the plugin {name} with {plural(len(skills), 'skill')} to {printable(options.output)}")
    return 0


def _named(options: PackageOptions, given: Sequence[str]) -> tuple[str, str]:
    """Return name and version of the package, checked."""
    folder = re.sub(r"[^a-z0-9]+", "-", os.path.basename(os.path.abspath(given[0])).lower()).strip("-")
    name = options.name if options.name is not None else folder[:64].strip("-")
    if not PLUGIN_NAME.fullmatch(name):
        raise UsageError(f"--name {printable(name)!r}: give 1 to 64 small letters, digits, '-' and '.'")
    if not _VERSION.fullmatch(options.package_version):
        raise UsageError(f"--package-version {printable(options.package_version)}: write three numbers, as in 1.2.0")
    return name, options.package_version


def _packaged_files(options: PackageOptions, given: Sequence[str]) -> Mapping[str, Files] | None:
    """Return the files of each skill by name; None where one cannot be published."""
    refusal = "nothing was written; correct this, or take the rest with --allow-partial"
    found = _packable(
        make_registry(given, options, proved=True), options, what="left out", refusal=refusal, empty="take"
    )
    if found is None:
        return None
    publication, published = found
    skills: dict[str, Files] = {}
    for name, each in published.items():
        inside = tuple(f"{place}/" for place in each.skill.nested)  # each a skill of its own in the package
        files = publication.unpacked(each)
        skills[name] = {path: file for path, file in files.items() if not path.startswith(inside)}
    return skills
