"""`resources/*`, and the completion of the template of skill files. No SDK here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog.threads import in_turn
from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import resources as dialect
from mcp_skills_server.dialects.runtime import apps
from mcp_skills_server.errors import NotServedError, RequestError, clipped
from mcp_skills_server.format import cursors, identity, uris
from mcp_skills_server.format.uris import LONGEST, SCHEME, TEMPLATE, segments, uri
from mcp_skills_server.model import Json, Skill, Snapshot, Standing
from mcp_skills_server.server.requests import (
    Caller,
    Page,
    Params,
    Result,
    Settings,
    keep_page,
    kept_page,
    page_of,
    with_pending,
)

_directories: Final[WeakKeyDictionary[Snapshot, dict[str, str]]] = WeakKeyDictionary()
"""By skill path what the URIs of the skill's files begin with, after the scheme."""
_CURSOR: Final = "resources"


async def list_resources(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """`resources/list`: every SKILL.md, behind the views of the tools for a client that shows
    them."""
    after = cursors.key_of(params, _CURSOR)
    key = (_CURSOR, settings.least, settings.page_size, after)
    page = kept_page(view.snapshot, *key)
    if page is None:
        skills, more = page_of(view.snapshot, settings, after)
        page = keep_page(Page(map(descriptor, skills), more), view.snapshot, *key)
    shown: list[Json] = page
    if after is None and settings.tools and apps.is_declared(caller.extensions):
        shown = [*apps.descriptors(), *page]
    return with_pending(
        dialect.listing(shown, cursors.encode(_CURSOR, page.more), settings.ttl_ms), view
    )


async def list_templates(_view: View, settings: Settings, _: Caller, params: Params) -> Result:
    """`resources/templates/list`."""
    if cursors.key_of(params, "templates") is not None:
        raise RequestError("Invalid cursor: the list of templates has one page")
    return dialect.template_listing(settings.ttl_ms)


async def read_resource(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """`resources/read`: the exact bytes of a file of a served skill, or a view of the tools.

    Raises:
        NotServedError: there is no such file, or it is not for everybody.
    """
    target = str(params["uri"])
    if is_view(settings, target):
        return dialect.contents([apps.content(target, _app())], settings.ttl_ms)
    found = uris.find(view.snapshot, target, settings.least)
    if found is None:
        raise NotServedError(target)
    skill, path = found
    async with in_turn(skill.files[path].size, caller.counted):
        raw = await view.read(skill, path)
        return dialect.contents([dialect.content(target, path, raw)], settings.ttl_ms)


def is_view(settings: Settings, target: str) -> bool:
    """Return whether this is the URI of a view of the tools, which are offered."""
    return settings.tools and apps.is_view(target)


@cache
def _app() -> str:
    """Return the document of all views."""
    from importlib.resources import files  # late: few clients ask for a view

    return files("mcp_skills_server.server").joinpath("app.html").read_text(encoding="utf-8")


async def read_directory(view: View, settings: Settings, _: Caller, params: Params) -> Result:
    """`resources/directory/read`: the direct children of a directory of a skill, or of a prefix."""
    target = params.get("uri")
    if not isinstance(target, str):
        raise RequestError("Parameter 'uri' must be a string")
    parts = segments(target)
    children = None
    if parts:
        children = view.snapshot.children(parts, settings.least)
    if parts is None or children is None:
        raise RequestError(f"Not a directory: {clipped(target)}")
    kind = f"directory {'/'.join(parts)}"
    after = cursors.key_of(params, kind)
    names = [name for name in sorted(children) if after is None or name > after]
    page = names[: settings.page_size]
    more = None
    if len(names) > len(page):
        more = page[-1]
    out: list[Json] = []
    for name in page:
        found = children[name]
        title = None
        if found:
            title = identity.title(found[0])
        out.append(dialect.child(name, uri(parts[0], "/".join((*parts[1:], name))), found, title))
    return dialect.listing(out, cursors.encode(kind, more), settings.ttl_ms)


async def complete(view: View, settings: Settings, _: Caller, params: Params) -> Result:
    """`completion/complete` for the path of the resource template: paths of files, as the template
    takes them."""
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
    """Yield the paths that begin so, and those of skills whose name does."""
    if len(begun) > LONGEST:
        return
    directories = _directories.get(snapshot)
    if directories is None:
        directories = _directories[snapshot] = {
            path: uri(path).removeprefix(SCHEME) for path in snapshot.skills
        }
    for path in snapshot.paths(least):
        skill, directory = snapshot.skills[path], directories[path]
        named = skill.name.startswith(begun)
        if named or directory.startswith(begun[: len(directory)]):
            for file_path in skill.files:
                each = uri(path, file_path).removeprefix(SCHEME)
                if named or each.startswith(begun):
                    yield each


def canonical(view: View, settings: Settings, target: str) -> str | None:
    """Return this URI as notifications have it, or None if `resources/read` does not know it."""
    found = uris.find(view.snapshot, target, settings.least)
    if found is None:
        return None
    return uri(found[0].path, found[1])


def is_our_template(reference: Any) -> bool:
    """Return whether a reference of `completion/complete`, an object of the SDK, is to the template
    of skill files."""
    return getattr(reference, "uri", None) == TEMPLATE


def descriptor(skill: Skill) -> dict[str, Json]:
    """Return a SKILL.md as `resources/list` shows it."""
    return dialect.descriptor(skill, identity.title(skill))
