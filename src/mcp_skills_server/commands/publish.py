"""`publish`, `push` and `package`: skills as static site, OCI artifacts, bundle or plugin."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio
import click

import mcp_skills_server
from mcp_skills_server.commands.fields import flag, option, seconds, takes, text
from mcp_skills_server.commands.look import report_absent
from mcp_skills_server.commands.opening import UNFETCHED, load_registry, make_registry
from mcp_skills_server.commands.options import (
    RootOptions,
    optional_roots,
    roots_and_last,
    roots_argument,
)
from mcp_skills_server.commands.printing import progress, remark, say, writing
from mcp_skills_server.durable import replace_file, write_folder
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.format import identity
from mcp_skills_server.format.archive import ArchiveRefusedError, Files
from mcp_skills_server.format.plugins import is_plugin_name
from mcp_skills_server.model import printable
from mcp_skills_server.publish import packages
from mcp_skills_server.publish.artifacts import Published
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.publish.static import StaticSite
from mcp_skills_server.sources.oci.reference import OciReference, is_oci, parse_reference
from mcp_skills_server.sources.source import Bounds, FetchSettings, OriginPolicy, SourceError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.sources.oci.push import Package

_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]{1,64})?")


class PackOptions(RootOptions):
    """Options of the skills to pack, and of reading their roots."""

    allow_partial: bool = flag(
        "Publish the others if a skill cannot be. By default nothing is, and the exit code is 1."
    )
    with_evals: bool = flag("Also publish evals of skills; those of a signed one always are.")


class PublishOptions(PackOptions):
    output: str = option(
        "", "The folder for the tree.", required=True, type=click.Path(), metavar="DIR"
    )
    base_url: str = option(
        "",
        "Where DIR will be reached, if that is not the root of the site that serves the index.",
        metavar="URL",
        show_default=False,
    )
    headers: bool = flag("Also write DIR/_headers, for Netlify and Cloudflare Pages.")
    keep: float = option(
        7,
        "How long to keep what the index no longer names, for clients with an older index.",
        type=click.FloatRange(min=0),
        metavar="DAYS",
    )
    check: bool = flag("Write nothing; print what is not current, and exit with 1 if anything is.")


@click.command()
@roots_argument
@takes(PublishOptions)
def publish(options: PublishOptions, roots: tuple[str, ...]) -> int:
    """Publish the skills below each ROOT as files that any web server can serve.

    DIR gets `.well-known/agent-skills` (discovery 0.2.0) and `.well-known/skills` (0.1.0), with the
    bytes that `serve --transport http` answers. Only what has changed is written, and the indexes
    come last. DIR must be empty or written by this command before. Where a skill cannot be
    published, nothing is written, unless --allow-partial says so.

    \b
    Examples:
      mcp-skills-server publish ~/skills --output ./public --base-url https://cdn.example.com
      mcp-skills-server publish ~/skills --output ./public --headers --check
    """
    output = options.output
    _check_base(options.base_url)
    registry = make_registry(roots, options, indexed=True)
    _check_output(output, registry)
    if sys.stderr.isatty():
        remark("reading the skills")
    registry.load()
    empty, _ = report_absent(registry)
    lost = _unfetched(registry)
    if (empty or lost) and not options.allow_partial and not options.check:
        return _refuse_to_publish(output, lost)
    writing, packing = (partial(progress, label=label) for label in ("writing", "packing"))
    # what the index no longer names may be recalled, which the files themselves do not tell
    keep = 0 if registry.recalls.advisories else options.keep
    site = StaticSite(output, headers=options.headers, keep_days=keep, progress=writing)
    publication = Publication(
        registry, options.base_url, progress=packing, evals=options.with_evals
    )
    if options.check:
        differences = site.check(publication)
    else:
        differences = site.write(publication, partial=options.allow_partial)
    edition = publication.latest or publication.edition()
    if differences is None:
        return _refuse_to_publish(output, edition.left_out)
    left_out = [*lost, *edition.left_out]
    _report_left_out([*_recalled(registry), *left_out], "not published")
    for path, reason in edition.left_out_0_1:
        remark(f"{path}: published only by discovery 0.2.0: {reason}")
    shown, changed = printable(output), plural(len(differences), "file")
    if options.check:
        for difference in differences:
            say(str(difference))
        state = f"not current: {changed} to change" if differences else "current"
        remark(f"{shown} is {state}")
        return int(bool(differences or (left_out and not options.allow_partial)))
    done = f"{changed} changed" if differences else "nothing to change"
    remark(f"published {plural(len(edition.skills), 'skill')} in {shown}, {done}")
    return 0


def _check_output(output: str, registry: Registry) -> None:
    """Refuse an output folder that lies in a root."""
    real = os.path.realpath(output)
    for root in registry.roots:
        if real == root.path or real.startswith(root.path.rstrip(os.sep) + os.sep):
            hint = "give a folder outside of it"
            raise UsageError(f"--output {printable(output)} lies in {root.shown}; {hint}")


def _unfetched(registry: Registry) -> list[tuple[str, str]]:
    """Return each fetched root of which a skill is still to be fetched, with the reason."""
    return [(root.shown, UNFETCHED) for root in registry.roots if root.origin and not root.revision]


def _recalled(registry: Registry) -> list[tuple[str, str]]:
    problems = registry.snapshot.problems
    return [(problem.path, problem.message) for problem in problems if problem.code == "recalled"]


def _report_left_out(left_out: Iterable[tuple[str, str]], what: str) -> None:
    for path, reason in left_out:
        remark(f"{path}: {what}: {reason}")


def _refuse_to_publish(output: str, left_out: Iterable[tuple[str, str]]) -> int:
    """Print why nothing was published, and return the exit code."""
    _report_left_out(left_out, "not published")
    hint = "correct this, or publish the rest with --allow-partial"
    remark(f"nothing was published in {printable(output)}; {hint}")
    return 1


def _check_base(url: str) -> None:
    """Refuse a base that is not "", an http(s) URL or a path from the root of the site (X-20)."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is not None:
        is_bare = not (parts.query or parts.fragment or parts.username or parts.password)
        is_plain = is_bare and not re.search(r'[^!-~]|[\\"<>^`{|}]', url)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_path = not parts.scheme and not parts.netloc and url[:1] in {"", "/"}
        if is_plain and (is_whole or is_path):
            return
    hint = "give a URL such as https://cdn.example.com, or a path such as /skills"
    raise UsageError(f"--base-url {printable(url)}: {hint}")


def _packable(
    roots: Sequence[str], options: PackOptions, refusal: str, *, left_out: str
) -> tuple[Publication, dict[str, Published]]:
    """Return the packable skills by name. Exit with 1 if one is not, without --allow-partial.

    `left_out` is the remark on each skill that cannot be packed, `refusal` that before the exit.
    """
    registry = load_registry(roots, options, proved=True)
    publication = Publication(registry, evals=options.with_evals)
    edition = publication.edition()
    lost = [*_unfetched(registry), *edition.left_out]
    _report_left_out([*_recalled(registry), *lost], left_out)
    if lost and not options.allow_partial:
        remark(refusal)
        raise click.exceptions.Exit(1)
    if not edition.skills:
        raise UsageError("no skill can be packed; 'validate' says what is wrong with each")
    return publication, dict(sorted(edition.skills.items()))


class PushOptions(PackOptions):
    each: bool = flag(
        "One artifact for each skill, in the repository REPOSITORY/NAME, and no collection of them."
    )
    timeout: float = seconds(600, "One upload.", above=True)


@click.command()
@click.argument(
    "arguments", nargs=-1, required=True, metavar="ROOT... oci://REGISTRY/REPOSITORY:TAG"
)
@takes(PushOptions)
def push(options: PushOptions, arguments: tuple[str, ...]) -> int:
    """Push the skills below each ROOT into a registry, as artifacts that oci:// reads.

    One skill becomes an artifact under TAG (default: latest), several become a collection: one
    artifact for each, and an index of them under TAG. Credentials are those of `docker login`. The
    same files give the same digests everywhere, and what the registry has is not sent again. stdout
    has each name with the digest to pin. Where a skill cannot be pushed, nothing is, unless
    --allow-partial says so.

    \b
    Examples:
      mcp-skills-server push ~/skills oci://registry.example.com/team/skills:1.0
      mcp-skills-server push ~/skills/refunds oci://registry.example.com/team/refunds:2.1
      mcp-skills-server push ~/skills oci://registry.example.com/team/skills --each
    """
    from mcp_skills_server.sources.oci.push import Package

    usage = (
        "push takes roots and then where to, as in 'push ~/skills oci://registry.example/skills'"
    )
    roots, target = roots_and_last(arguments, usage)
    if not is_oci(target):
        raise UsageError(usage)
    reference = parse_reference(target, http=options.allow_http)
    if reference.digest is not None:
        raise UsageError(f"{target}: a digest comes from the bytes; give a tag, or none for latest")
    hint = "correct this, or push the rest with --allow-partial"
    publication, skills = _packable(
        roots, options, f"nothing was pushed to {reference}; {hint}", left_out="not pushed"
    )
    packed: list[Package] = []
    for name, skill in skills.items():
        fields = skill.skill.frontmatter
        files = partial(publication.unpacked, skill)
        packed.append(Package(name, fields, identity.version(fields), files))
    try:
        if not options.each:
            anyio.run(_push, reference, packed, options)
            return 0
        for package in packed:
            repository = f"{reference.repository}/{package.name}"
            anyio.run(_push, replace(reference, repository=repository), [package], options)
    except (ArchiveRefusedError, SourceError) as error:
        remark(str(error))
        return 2 if isinstance(error, SourceError) else 1
    return 0


async def _push(reference: OciReference, packed: Sequence[Package], options: PushOptions) -> None:
    """Push one skill, or a collection of several, and print its digest."""
    from mcp_skills_server.sources.oci.access import Access
    from mcp_skills_server.sources.oci.client import RegistryClient
    from mcp_skills_server.sources.oci.push import push_collection, push_skill

    trust = OriginPolicy(private=options.allow_private, http=options.allow_http)
    bounds = Bounds(read_s=min(30.0, options.timeout), download_s=options.timeout)
    settings = FetchSettings(trust=trust, bounds=bounds)
    async with RegistryClient(settings, reference, Access(reference, "pull,push")) as client:
        if len(packed) == 1:
            pushed = await push_skill(client, reference, packed[0])
        else:
            pushed = await push_collection(client, reference, packed)
    named = str(reference).removesuffix(f":{reference.tag}")
    say(f"{named}@{pushed.digest}")
    sent = "nothing to send"
    if pushed.bytes:
        sent = f"{len(pushed.sent)} new ({pushed.bytes:,} bytes sent)"
    remark(f"pushed {reference}: {sent}")


class PackageOptions(PackOptions):
    output: str = option(
        "",
        "What to write: a file NAME.mcpb for an MCP Bundle, else a new folder for a plugin.",
        required=True,
        type=click.Path(),
    )
    name: str | None = text("The name in hosts; by default that of the first folder.", "NAME")
    package_version: str = option("0.1.0", "Its version.", metavar="VERSION")
    package_server: bool = flag(
        "Also have hosts of a plugin start this server with the skills (mcp.json), by uvx.",
        "--server",
    )


@click.command()
@optional_roots
@takes(PackageOptions)
@click.pass_context
def package(context: click.Context, options: PackageOptions, roots: tuple[str, ...]) -> int:
    """Write the skills below each ROOT as an MCP Bundle (.mcpb), or as an Agent Plugin 1.0.

    A bundle also has this server: Claude Desktop installs it by a double click, and uv, which it
    brings, fetches the Python packages that the server needs at the first start. A bundle without a
    ROOT has no skills: its user chooses folders, and edits in them take effect at once. A plugin is
    a folder with plugin.json and skills/NAME. The same skills give the same bytes.

    \b
    Examples:
      mcp-skills-server package --output agent-skills.mcpb
      mcp-skills-server package ~/skills --output skills.mcpb
      mcp-skills-server package ~/skills --output acme-plugin --name acme
    """
    name, version, output = _name_of(options, roots), options.package_version, options.output
    is_bundle = output.lower().endswith(".mcpb")
    if not roots and not is_bundle:
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    if is_bundle and options.package_server:
        raise UsageError(
            "--server is for a plugin: a bundle always starts the server; leave it out"
        )
    if not is_bundle and os.path.lexists(output):
        hint = "already exists; give another folder, or remove it"
        raise UsageError(f"--output {printable(output)}: {hint}")
    skills: Mapping[str, Files] = {}
    if roots:
        skills = _packaged_files(options, roots)
    with writing(f"--output {output}", "give another path"):
        if is_bundle:
            raw = packages.bundle(skills, name, version, *_own_program())
            replace_file(Path(output), raw, None)
        else:
            files = packages.plugin(skills, name, version, server=options.package_server)
            write_folder(Path(output), files)
    kind = "bundle" if is_bundle else "plugin"
    inside = plural(len(skills), "skill") if roots else "a choice of folders"
    remark(f"wrote the {kind} {name} with {inside} to {printable(output)}")
    return 0


def _own_program() -> tuple[Files, list[str]]:
    """Return the files of this package, and the requirements of its installation."""
    folder = Path(mcp_skills_server.__file__).parent
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files = {path.relative_to(folder).as_posix(): (path.read_bytes(), False) for path in paths}
    needs = metadata.requires("mcp-skills-server") or []
    return files, [need for need in needs if "extra ==" not in need]


def _name_of(options: PackageOptions, given: Sequence[str]) -> str:
    """Return the name of the package, checked; check its version too."""
    name = options.name
    if name is None:
        folder = "agent-skills"
        if given:
            folder = os.path.basename(os.path.abspath(given[0])).lower()
        name = re.sub("[^a-z0-9]+", "-", folder).strip("-")[:64].strip("-")
    if not is_plugin_name(name):
        hint = "give 1 to 64 small letters, digits, '-' and '.'"
        raise UsageError(f"--name {printable(name)!r}: {hint}")
    if not _VERSION.fullmatch(options.package_version):
        version = printable(options.package_version)
        raise UsageError(f"--package-version {version}: write three numbers, as in 1.2.0")
    return name


def _packaged_files(options: PackageOptions, given: Sequence[str]) -> Mapping[str, Files]:
    """Return the files of each skill by name, without those of skills nested in it."""
    refusal = "nothing was written; correct this, or take the rest with --allow-partial"
    publication, published = _packable(given, options, refusal, left_out="not packaged")
    skills: dict[str, Files] = {}
    for name, skill in published.items():
        inside = tuple(f"{nested}/" for nested in skill.skill.nested)
        files = publication.unpacked(skill)
        skills[name] = {path: file for path, file in files.items() if not path.startswith(inside)}
    return skills
