"""`publish`: the skills as a tree of files for a web server or a CDN."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

from mcp_skills_server.commands.fields import flag, option, takes
from mcp_skills_server.commands.look import report_passed
from mcp_skills_server.commands.opening import make_registry
from mcp_skills_server.commands.options import (
    PartialOptions,
    RootOptions,
    roots,
    without_skills,
)
from mcp_skills_server.commands.printing import progress, remark, say
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.model import printable


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
    output = options.output
    _check_base(options.base_url)
    registry = make_registry(roots, options, indexed=True)
    real = os.path.realpath(output)
    for root in registry.roots:
        if real == root.path or real.startswith(root.path.rstrip(os.sep) + os.sep):
            raise UsageError(f"--output {printable(output)} lies in {root.shown}; give a folder outside of it")
    if sys.stderr.isatty():
        remark("reading the skills")
    from mcp_skills_server.publish.publication import Publication
    from mcp_skills_server.publish.static import StaticSite

    registry.load()
    report_passed(registry)
    empty = without_skills(registry)
    if empty and not options.allow_partial and not options.check:
        return _refuse(output, [(root, "no skill there") for root in empty])
    site = StaticSite(
        output,
        headers=options.headers,
        keep_days=options.keep,
        steps=lambda items: progress(items, length=len(items), label="writing"),
    )
    publication = Publication(
        registry,
        options.base_url,
        steps=lambda skills: progress(skills, length=len(skills), label="packing"),
        evals=options.with_evals,
    )
    if options.check:
        differences = site.check(publication)
    else:
        differences = site.write(publication, partial=options.allow_partial)
    edition = publication.latest or publication.edition()
    if differences is None:
        return _refuse(output, edition.left_out)
    _report_left_out(edition.left_out)
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


def _report_left_out(left_out: Iterable[tuple[str, str]]) -> None:
    for path, reason in left_out:
        remark(f"{path}: not published: {reason}")


def _refuse(output: str, left_out: Iterable[tuple[str, str]]) -> int:
    """Print why nothing was published, and return the exit code."""
    _report_left_out(left_out)
    remark(f"nothing was published in {printable(output)}; correct this, or publish the rest with --allow-partial")
    return 1


def _check_base(url: str) -> None:
    """Refuse a base that is neither "", an http or https URL nor a path from the root of the site (X-20)."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        bad = bool(parts.query or parts.fragment or parts.username or parts.password) or not url.isascii()
        bad = bad or any(each <= " " or each in '\\"<>^`{|}\x7f' for each in url)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname)
        path_only = not parts.scheme and not parts.netloc and url[:1] in {"", "/"}
    except ValueError:
        bad, whole, path_only = True, False, False
    if bad or not (whole or path_only):
        raise UsageError(
            f"--base-url {printable(url)}: give an http or https URL such as https://cdn.example.com, or a path such "
            "as /skills"
        )
