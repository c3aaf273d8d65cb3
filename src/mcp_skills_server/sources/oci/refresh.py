"""Ask a registry what a name stands for now: to bring a folder up to it, or to list what it has."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike

from mcp_skills_server.sources.oci.access import Access
from mcp_skills_server.sources.oci.client import Client
from mcp_skills_server.sources.oci.pull import bring
from mcp_skills_server.sources.oci.reader import Reader
from mcp_skills_server.sources.oci.reference import Reference, parse
from mcp_skills_server.sources.report import Report
from mcp_skills_server.sources.settings import FetchSettings


async def refresh(
    given: str,
    directory: str | PathLike[str],
    settings: FetchSettings,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Bring a folder of one's own up to what the name of an artifact names now.

    `progress` hears how many artifacts of how many are done.

    Raises:
        UsageError: it is no name, or the folder cannot be used.
        UnacceptableError, UnreachableError: nothing of it can be had; the folder stays as it is.
    """
    reference = parse(given, http=settings.trust.http)
    async with client_for(reference, Access(reference), settings) as client:
        digest = await newest(client, reference)
        return await bring(client, reference, digest, directory, settings, progress=progress)


async def look(given: str, settings: FetchSettings) -> list[tuple[str, str]]:
    """Name and description of each skill of a collection, of an artifact those of its own; nothing is unpacked.

    Raises:
        UsageError, UnacceptableError, UnreachableError: as for `refresh`.
    """
    reference = parse(given, http=settings.trust.http)
    async with client_for(reference, Access(reference), settings) as client:
        reader = Reader(client, reference, settings, hidden=False)
        wanted = await reader.wanted(await newest(client, reference))
    return [(each.label, each.description) for each in wanted]


def client_for(reference: Reference, access: Access, settings: FetchSettings) -> Client:
    """What reads the repository of an artifact."""
    return Client(reference, access, settings.trust, settings.bounds, connections=settings.connections)


async def newest(client: Client, reference: Reference) -> str:
    """The digest of what a reference names now, by one HEAD; where the digest was given, it is that without a question.

    Raises:
        SourceError: it cannot be had now.
    """
    if reference.digest is not None:
        return reference.digest
    digest = await client.digest()
    if digest is None:  # a registry that says it only of what it sends
        digest, _ = await client.manifest(reference.wanted)
    return digest
