"""`push`: skills into a registry, as artifacts of OCI."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mcp_skills_server.commands.fields import flag, seconds, takes
from mcp_skills_server.commands.opening import make_registry
from mcp_skills_server.commands.options import PartialOptions, RootOptions, roots_and_last
from mcp_skills_server.commands.printing import remark, say
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_skills_server.sources.oci.push import Package, Pushed
    from mcp_skills_server.sources.oci.reference import OciReference


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
    from mcp_skills_server.sources.oci.reference import is_oci, parse_reference

    usage = "push takes roots and then where to, as in 'push ~/skills oci://registry.example.com/skills'"
    roots, target = roots_and_last(arguments, usage)
    if not is_oci(target):
        raise UsageError(usage)
    reference = parse_reference(target, http=options.allow_http)
    if reference.digest is not None:
        raise UsageError(f"{target}: what is pushed gets its digest from its bytes; give a tag, or nothing for latest")
    registry = make_registry(roots, options, proved=True)
    from mcp_skills_server.format.identity import version
    from mcp_skills_server.publish.publication import Publication
    from mcp_skills_server.sources.oci.push import Package

    registry.load()
    publication = Publication(registry, evals=options.with_evals)
    edition = publication.edition()
    for path, reason in edition.left_out:
        remark(f"{path}: not pushed: {reason}")
    packages = [
        Package(
            name, each.skill.frontmatter, version(each.skill.frontmatter), lambda each=each: publication.unpacked(each)
        )
        for name, each in sorted(edition.skills.items())
    ]
    if edition.left_out and not options.allow_partial:
        remark(f"nothing was pushed to {reference}; correct this, or push the rest with --allow-partial")
        return 1
    if not packages:
        raise UsageError("there is no skill to push; 'validate' says what is wrong with those that are there")
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
