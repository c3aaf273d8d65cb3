"""`fetch`: copy the skills of a site or a repository into a folder, each verified."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import anyio
import click

from mcp_skills_server.catalog.roots import no_folder
from mcp_skills_server.commands.fields import count, flag, many, option, seconds, takes, text
from mcp_skills_server.commands.options import (
    GitOptions,
    SignatureOptions,
    TrustOptions,
    bearer_token,
    path_or_none,
)
from mcp_skills_server.commands.printing import remark, say_table
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.directories import cache_directory
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.archive import is_archive
from mcp_skills_server.provenance.signatures import UnsignedError, Verifier
from mcp_skills_server.sources.addresses import check_fetchable, relative_to_site, shown
from mcp_skills_server.sources.kinds import kind_of, open_source
from mcp_skills_server.sources.reconcile import reconcile
from mcp_skills_server.sources.records import read_indexes
from mcp_skills_server.sources.source import (
    Bounds,
    FetchLimits,
    FetchReport,
    FetchSettings,
    OriginPolicy,
    RollbackError,
    Source,
    SourceError,
    SourceSettings,
    UnacceptableError,
)

_FRAMING = frozenset((
    "host", "connection", "content-length", "transfer-encoding", "accept-encoding", "te",
    "upgrade", "range", "expect",
))  # fmt: skip
"""Headers that change the response or its framing."""


class FetchOptions(TrustOptions, SignatureOptions, GitOptions):
    output: str | None = text(
        "The folder of fetched skills; made if missing.", "DIR", type=click.Path(file_okay=False)
    )
    skills: tuple[str, ...] = many("Fetch only this skill.", "NAME", "--skill")
    listed: bool = flag("List the skills of the site, and fetch nothing.", "--list")
    update: bool = flag("Fetch even a fresh index; without URL, from all sources of DIR.")
    prune: bool = flag("Remove fetched skills that the site no longer has.")
    force: bool = flag("Replace fetched skills that were edited.")
    token_env: str | None = text("The variable with a bearer token, sent only to the site.", "NAME")
    headers: tuple[str, ...] = many("A header, sent only to the site.", "NAME:VALUE", "--header")
    timeout: float = seconds(600, "Time limit of the whole fetch.", above=True)
    download_timeout: float = seconds(60, "Time limit of one download.", above=True)
    read_timeout: float = seconds(
        10, "Time limit of connecting, and of each wait for bytes.", above=True
    )
    max_bytes: int = count(50 << 20, "Size of one skill, unpacked.", metavar="BYTES")
    max_total_bytes: int = count(1 << 30, "Size of all downloads together.", metavar="BYTES")
    max_unpacked_bytes: int = count(
        2 << 30, "Size of all skills of the site together, unpacked.", metavar="BYTES"
    )
    max_skills: int = count(20_000, "Number of entries of the index.")
    connections: int = option(6, "Concurrent downloads.", type=click.IntRange(1, 64))


@click.command()
@click.argument("url", required=False)
@takes(FetchOptions)
def fetch(options: FetchOptions, url: str | None) -> int:
    """Fetch the skills of a site (/.well-known/agent-skills) or of a folder in git into DIR.

    URL is a site, a folder of one, or its index.json; the last line says which index it was. Every
    skill is checked against it before it appears in DIR, whole; what is current is not downloaded
    again. Exit code 1 when a skill could not be fetched or checked; the others are there. URL may
    also be that of a repository, git+https://HOST/REPOSITORY.

    \b
    Examples:
      mcp-skills-server fetch https://example.com --list
      mcp-skills-server fetch https://example.com --output ~/skills
      mcp-skills-server fetch https://example.com --output ~/skills --skill refunds
      mcp-skills-server fetch git+https://example.com/team/skills@main#skills --output ~/skills
      mcp-skills-server fetch --output ~/skills --update
    """
    output = options.output
    if options.listed and url is None:
        raise UsageError("--list needs the URL of a site, as in 'fetch https://example.com --list'")
    if output is None and not options.listed:
        raise UsageError("fetch needs --output DIR, the folder for the skills")
    if url is None and not options.update:
        raise UsageError("fetch needs the URL of a site, or --update for what --output DIR holds")
    settings = _settings(options)
    if url is not None:
        trust = replace(settings.trust, commands=frozenset((url,)))
        return _fetch(url, replace(settings, trust=trust), options)
    recorded = _recorded_sources(str(output), settings)
    return max(_fetch(given, settings, options) for given, settings in recorded)


def _settings(options: FetchOptions) -> FetchSettings:
    for origin in options.fetch_origins:
        check_fetchable(origin)
    return FetchSettings(
        wanted=frozenset(options.skills) or None,
        revalidate=options.update,
        force=options.force,
        prune=options.prune,
        allow_rollback=options.allow_rollback,
        trust=OriginPolicy(
            frozenset(map(wellknown.origin, options.fetch_origins)),
            options.allow_private,
            options.allow_http,
            tuple(_headers(options.headers, options.token_env)),
        ),
        bounds=Bounds(
            options.read_timeout, options.download_timeout, total_bytes=options.max_total_bytes
        ),
        limits=FetchLimits(
            options.max_skills, options.max_bytes, options.timeout, options.max_unpacked_bytes
        ),
        connections=options.connections,
        prove=_proof(options.require_signature),
    )


def _proof(keys: tuple[str, ...]) -> Callable[[Mapping[str, bytes]], object] | None:
    """Return a function that verifies a skill's signature by one of `keys`; None without keys."""
    if not keys:
        return None
    verifier = Verifier([*map(Path, keys)])

    def prove(files: Mapping[str, bytes]) -> None:
        try:
            verifier.check(files)
        except UnsignedError as error:
            raise UnacceptableError(str(error)) from None

    return prove


def _headers(given: tuple[str, ...], token_env: str | None) -> Generator[tuple[str, str]]:
    """Yield the headers of the options. No error shows a value, which may be a secret."""
    for header in given:
        name, colon, value = (part.strip() for part in header.partition(":"))
        is_plain = value.isascii() and value.isprintable()
        if not colon or not re.fullmatch(r"[A-Za-z0-9-]+", name) or not is_plain:
            raise UsageError("--header takes NAME:VALUE in ASCII, such as 'X-Team:billing'")
        if name.lower() in _FRAMING:
            raise UsageError(f"--header cannot set {name}; leave it out")
        yield name, value
    if token_env is not None:
        yield "Authorization", f"Bearer {bearer_token(token_env)}"


def _recorded_sources(folder: str, settings: FetchSettings) -> list[tuple[str, FetchSettings]]:
    """Return the sources that a folder was fetched from, each with the settings of its record."""
    known = read_indexes(folder)
    if not known:
        raise UsageError(f"{folder}: nothing was fetched into it; give the URL of a site")
    if settings.wanted is not None:
        raise UsageError("--skill needs the URL of a site")
    if settings.trust.headers and len({record.source for record in known}) > 1:
        raise UsageError("a token or a header is for one site; give its URL")
    wanted = [None if record.wanted is None else frozenset(record.wanted) for record in known]
    return [
        (record.given, replace(settings, wanted=names))
        for record, names in zip(known, wanted, strict=True)
    ]


def _fetch(url: str, settings: FetchSettings, options: FetchOptions) -> int:
    """Fetch or list a URL. Return 0, 1 for a bad index or skill, or 2 for a failed source."""
    kind, folder, label = kind_of(url).name, str(options.output), shown(url)
    try:
        if options.listed:
            if kind not in {"folder", "site"}:
                raise UsageError(f"--list is for sites; 'mcp-skills-server list {url}' lists this")
            from mcp_skills_server.sources import site  # the HTTP client takes a while to load

            return _list(anyio.run(site.fetch_index, url, settings)[1], settings)
        source = _source(url, folder, settings, options)
        if kind not in {"folder", "site"}:
            label = source.origin

        async def fetch(progress: Callable[[int, int], None]) -> FetchReport:
            return await reconcile(source, await source.resolve(anew=settings.revalidate), progress)

        with _progress_bar() as progress:
            report = anyio.run(fetch, progress)
    except (wellknown.IndexRefusedError, SourceError) as error:
        remark(f"{label}: {relative_to_site(url, str(error))}")
        if isinstance(error, wellknown.IndexRefusedError | RollbackError):
            return 1
        return 2
    _remark_report(report, folder, source.origin)
    return int(not report.ok)


def _source(url: str, folder: str, settings: FetchSettings, options: GitOptions) -> Source:
    """Open the source of a URL, to fetch its skills into this folder."""
    kind = kind_of(url)
    if kind.name == "folder" and is_archive(url) and not os.path.exists(url):
        raise UsageError(f"{url}: no such file; give the path of an archive, or a URL")
    if kind.name == "folder" and os.path.isfile(url):
        raise no_folder(url)
    chosen = SourceSettings(
        cache_directory(),
        fetch=settings,
        signers=path_or_none(options.signers),
        rewritten=options.accept_rewritten,
        output=Path(folder),
    )
    if kind.name in {"folder", "site"}:
        from mcp_skills_server.sources import site  # the HTTP client takes a while to load

        return site.Site(url, chosen)
    if settings.trust.headers:
        way = "git has credential helpers"
        if kind.name == "oci":
            way = "registries have 'docker login'"
        raise UsageError(f"--token-env and --header are for sites; {way}, which are used here too")
    if kind.is_path:
        url = os.path.abspath(url)  # recorded for --update, which may be called from another folder
    return cast("Source", open_source(url, chosen))


def _list(index: wellknown.SiteIndex, settings: FetchSettings) -> int:
    wanted = settings.wanted
    entries = [entry for entry in index.entries if wanted is None or entry.name in wanted]
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        rows.append((entry.name, entry.kind or "files", " ".join(entry.description.split())))
    say_table(("NAME", "TYPE", "DESCRIPTION"), rows)
    for line in index.warnings:
        remark(f"warning: {line}")
    broken = [unusable for unusable in index.unusable if wanted is None or unusable.name in wanted]
    for unusable in broken:
        severity = "refused" if unusable.is_fault else "warning"
        remark(f"{severity}: {unusable}")
    return int(index.version is None or any(unusable.is_fault for unusable in broken))


def _remark_report(report: FetchReport, folder: str, origin: str) -> None:
    """Print the report of a fetch on stderr."""
    where, source, size = report.url, "the source", ""
    if report.version != "tree":
        where, source = shown(report.url), "the index"
        size = f" ({report.bytes:,} bytes downloaded)"
    for line in (*report.warnings, *map(str, report.pointer_problems(origin))):
        remark(f"warning: {line}")
    for name in report.edited:
        remark(f"{name}: it was edited in {folder}, and stays; --force replaces it")
    for name in report.gone:
        fate = "was removed" if name in report.pruned else "stays; --prune removes it"
        remark(f"{name}: it is gone from {source}, and {fate}")
    for refusal in report.refused:
        remark(f"refused: {refusal}")
    counts = {
        "added": report.added,
        "updated": report.updated,
        "unchanged": report.unchanged,
        "edited": report.edited,
        "removed": report.pruned,
        "refused": report.refused,
    }
    done = ", ".join(f"{len(names)} {word}" for word, names in counts.items() if names)
    remark(f"{where}: {done or 'nothing to do'}{size}")


@contextmanager
def _progress_bar() -> Generator[Callable[[int, int], None]]:
    """Yield the function that draws a progress bar if stderr is a terminal.

    The bar shows no time left: the sizes of skills differ too much for an estimate.
    """
    is_hidden, file = not sys.stderr.isatty(), sys.stderr
    with click.progressbar(
        length=1, label="fetching", hidden=is_hidden, file=file, show_pos=True, show_eta=False
    ) as bar:

        def draw(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield draw
