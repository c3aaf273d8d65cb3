"""Handlers of `resources/*`, and completion of the skill file template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Final

from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import resources as dialect
from mcp_skills_server.dialects.runtime import apps
from mcp_skills_server.errors import NotServedError, RequestError, clipped
from mcp_skills_server.format import cursors, uris
from mcp_skills_server.format.uris import MAX_LENGTH, SCHEME, TEMPLATE, segments, uri
from mcp_skills_server.model import Json, Snapshot, Standing
from mcp_skills_server.runtime.large_answers import limit_large_answers
from mcp_skills_server.server import listing, requests
from mcp_skills_server.server.requests import Caller, Page, Params, Result, Settings

_CURSOR: Final = "resources"


async def list_resources(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Return a page of SKILL.md resources, after HTML views if the client shows them."""
    after = cursors.start_key(params, _CURSOR)
    order = listing.order_of(view.skill_set, settings)
    key = (_CURSOR, order, settings.page_size, after)
    page = requests.cached_page(view.snapshot, *key)
    if page is None:
        skills, more = order.page(view.snapshot, settings.page_size, after)
        page = Page(map(dialect.descriptor, skills), more)
        requests.cache_page(page, view.snapshot, *key)
    shown: list[Json] = page
    if after is None and settings.tools and apps.is_declared(caller.extensions):
        shown = [*apps.descriptors(), *page]
    result = dialect.listing(shown, cursors.encode(_CURSOR, page.more), settings.ttl_ms)
    return requests.with_unread(result, view)


async def list_templates(_view: View, settings: Settings, _: Caller, params: Params) -> Result:
    """Return the one resource template (`resources/templates/list`)."""
    if cursors.start_key(params, "templates") is not None:
        raise RequestError("Invalid cursor: the list of templates has one page")
    return dialect.template_listing(settings.ttl_ms)


async def read_resource(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Return the exact bytes of a served skill's file, or an HTML view (`resources/read`).

    Raises:
        NotServedError: the file does not exist in the caller's view.
    """
    target = str(params["uri"])
    if is_view(settings, target):
        return dialect.contents([apps.content(target, _app())], settings.ttl_ms)
    match = uris.find(view.snapshot, target, settings.least)
    if match is None:
        raise NotServedError(target)
    skill, path = match
    async with limit_large_answers(skill.files[path].size, caller.quota_owner):
        raw = await view.read(skill, path)
        return dialect.contents([dialect.content(target, path, raw)], settings.ttl_ms)


def is_view(settings: Settings, target: str) -> bool:
    """Return whether `target` is the URI of an HTML view, and the tools are enabled."""
    return settings.tools and apps.is_view(target)


@cache
def _app() -> str:
    """Return the HTML document that implements all views."""
    from importlib.resources import files  # lazy: few clients request a view

    return files("mcp_skills_server.server").joinpath("app.html").read_text(encoding="utf-8")


async def read_directory(view: View, settings: Settings, _: Caller, params: Params) -> Result:
    """Return a directory's or path prefix's direct children (`resources/directory/read`)."""
    target = params.get("uri")
    if not isinstance(target, str):
        raise RequestError("Parameter 'uri' must be a string")
    parts = segments(target) or ("",)
    children = view.snapshot.children(parts, settings.least)
    if children is None:
        raise RequestError(f"Not a directory: {clipped(target)}")
    kind = f"directory {'/'.join(parts)}"
    after = cursors.start_key(params, kind)
    names = [name for name in sorted(children) if after is None or name > after]
    page = names[: settings.page_size]
    more = None
    if len(names) > len(page):
        more = page[-1]
    out: list[Json] = []
    for name in page:
        address = uri(parts[0], "/".join((*parts[1:], name)))
        out.append(dialect.child(name, address, children[name]))
    return dialect.listing(out, cursors.encode(kind, more), settings.ttl_ms)


async def complete(view: View, settings: Settings, _: Caller, params: Params) -> Result:
    """Complete the path of the resource template with file paths (`completion/complete`)."""
    reference, argument = params["ref"], params["argument"]
    if (reference.get("type"), reference.get("uri")) != ("ref/resource", TEMPLATE):
        raise RequestError(
            f"Nothing to complete for {json.dumps(reference)[:200]}; known: the template {TEMPLATE}"
        )
    if argument["name"] != "path":
        raise RequestError(
            f"The template has no variable {argument['name'][:100]!r}; it has 'path'"
        )
    return dialect.completion(_completions(view.snapshot, str(argument["value"]), settings.least))


def _completions(snapshot: Snapshot, begun: str, least: Standing) -> Iterator[str]:
    """Yield file paths that start with `begun`, or whose skill name does."""
    if len(begun) > MAX_LENGTH:
        return
    for path in snapshot.paths(least):
        skill, directory = snapshot.skills[path], uri(path).removeprefix(SCHEME)
        is_named = skill.name.startswith(begun)
        # `begun` may end in the directory's path, or go on below it
        if is_named or directory.startswith(begun[: len(directory)]):
            for file_path in skill.files:
                completed = uri(path, file_path).removeprefix(SCHEME)
                if is_named or completed.startswith(begun):
                    yield completed


def canonical(view: View, settings: Settings, target: str) -> str | None:
    """Return the canonical URI of a served file, or None if there is none."""
    if uris.find(view.snapshot, target, settings.least) is None:
        return None
    return uris.canonical(target)
