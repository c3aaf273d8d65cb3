"""Handlers of `prompts/*`, and completion of prompt arguments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import prompts, resources, sep2076
from mcp_skills_server.dialects.dialect import EntryContext
from mcp_skills_server.errors import RequestError, clipped, listed
from mcp_skills_server.format import arguments, cursors, identity
from mcp_skills_server.format.cursors import entry_bytes, first_page
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import MAX_PATH, Changes, Json, Skill, Snapshot
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.server import listing, requests
from mcp_skills_server.server.requests import Caller, Page, Params, Result, Settings

_CURSOR: Final = "prompts"
_MAX_NAMED: Final = 10


async def list_prompts(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Return a page of the skills that a user may start, in path order (`prompts/list`).

    A host that shows skills by itself gets prompts only for the other skills.
    """
    after = cursors.start_key(params, _CURSOR)
    host = listing.host_listing(view.skill_set, settings, caller.client, caller.extensions)
    key = (_CURSOR, settings.prompt_choice, settings.prompt_page_size, after, host)
    page = requests.cached_page(view.snapshot, *key)
    if page is None:
        page = _page(view.snapshot, settings, after, host)
        requests.cache_page(page, view.snapshot, *key)
    result = prompts.listing(page, cursors.encode(_CURSOR, page.more), settings.ttl_ms)
    return requests.with_unread(result, view)


async def get_prompt(
    view: View,
    settings: Settings,
    caller: Caller,
    params: Params,
    *,
    root_dir: Callable[[Skill], str] | None = None,
) -> Result:
    """Return a skill's filled-in instructions, and the URIs of linked files (`prompts/get`).

    For a fetched skill, or a host that turns prompts into templates, return a pointer instead. That
    prompt makes the model load the skill. `root_dir` returns the directory of a skill as models
    see it, by default its URI.

    Raises:
        RequestError: the prompt does not exist, or its arguments are invalid.
    """
    target, given = str(params["name"]), requests.given_arguments(params)
    skill = _find(view.snapshot, settings, target)
    body = await view.body(skill)
    name = identity.name_of(skill, view.snapshot, prompts.MIN_STANDING)
    values = arguments.values_of(_declared(skill), given, name)
    typed = arguments.typed_values(skill.frontmatter, values)
    if _is_free(skill):
        typed = {arguments.ALL: values.pop(prompts.FREE_ARGUMENT)}
    text, is_used = arguments.substitute(body.text, values, typed, name)
    # what a user typed is appended to instructions that have no placeholder for it
    appended = "" if is_used else typed.get(arguments.ALL, "")
    if skill.origin is not None or client_of(caller.client).makes_templates_of_prompts:
        text = prompts.load_prompt(skill, name, given)
        return prompts.prompt_result(skill, text, [], readable=False)
    files = sep2076.files(skill, body.linked)[: len(body.linked)]  # the linked ones come first
    linked = [file for file in files if isinstance(file, dict)]
    directory = root_dir and root_dir(skill)
    message = prompts.instructions(skill, name, text, appended, directory)
    return prompts.prompt_result(skill, message, linked, readable=skill.standing >= settings.least)


async def complete_argument(view: View, settings: Settings, _: Caller, params: Params) -> Result:
    """Complete an argument of a prompt with its author's suggestions (`completion/complete`).

    Raises:
        RequestError: the prompt or its argument does not exist.
    """
    name, wanted = str(params["ref"]["name"]), params["argument"]
    arguments = _declared(_find(view.snapshot, settings, name))
    declared = {str(argument["name"]): argument for argument in arguments}
    argument = declared.get(wanted["name"])
    if argument is None:
        asked = clipped(wanted["name"])
        raise RequestError(
            f"Prompt {clipped(name)!r} has no argument {asked!r}; it has: {listed(declared)}"
        )
    return resources.completion(prompts.suggestions(argument, str(wanted["value"])))


class Names(NamedTuple):
    """A container of the names in `prompts/list` and of `others`, with fast membership tests."""

    view: View
    settings: Settings
    others: Container[str] = ()

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name in self.others:
            return True
        snapshot = self.view.snapshot
        skill = prompt_of(snapshot, self.settings, name)
        return skill is not None and identity.name_of(skill, snapshot, prompts.MIN_STANDING) == name


def changed(changes: Changes, settings: Settings) -> bool:
    """Return whether `prompts/list` may have changed, so that clients fetch it again."""
    # each skill alone: names of others that make its name ambiguous are among the changes
    describe = partial(_descriptor, snapshot=Snapshot({}))
    return prompts.changed(changes.before, changes.after, settings.prompt_choice, describe)


def _page(
    snapshot: Snapshot, settings: Settings, after: str | None, host: listing.HostListing | None
) -> Page:
    offered = _offered(snapshot, settings, after)
    if host is not None:
        shown = host.shown(snapshot)
        offered = (skill for skill in offered if skill.path not in shown)
    page = list(islice(offered, settings.prompt_page_size))
    kept = first_page(page, entry_bytes)
    more = None
    if page and (len(kept) < len(page) or next(offered, None) is not None):
        more = kept[-1].path
    return Page([_descriptor(skill, snapshot) for skill in kept], more)


def _descriptor(skill: Skill, snapshot: Snapshot) -> dict[str, Json]:
    context = EntryContext(skill, snapshot, prompts.MIN_STANDING, Served())
    return prompts.descriptor(skill, sep2076.entry(context))


def _is_free(skill: Skill) -> bool:
    return not arguments.declared(skill.frontmatter) and prompts.free_argument(skill) is not None


def _declared(skill: Skill) -> list[dict[str, Json]]:
    """Return a prompt's declared arguments, else the one from `argument-hint`, if any."""
    free = prompts.free_argument(skill)
    return arguments.declared(skill.frontmatter) or ([] if free is None else [free])


def _offered(snapshot: Snapshot, settings: Settings, after: str | None) -> Iterator[Skill]:
    """Yield the skills that are prompts, in path order, after the path `after`."""
    paths = snapshot.paths(prompts.MIN_STANDING)
    for position in range(0 if after is None else bisect_right(paths, after), len(paths)):
        skill = snapshot.skills[paths[position]]
        if prompts.is_offered(skill, settings.prompt_choice):
            yield skill


def prompt_of(snapshot: Snapshot, settings: Settings, name: str) -> Skill | None:
    """Return the prompt with this name or skill path, or None."""
    skill = identity.lookup(snapshot, name, prompts.MIN_STANDING)
    if skill is not None and prompts.is_offered(skill, settings.prompt_choice):
        return skill
    return None


def _find(snapshot: Snapshot, settings: Settings, name: str) -> Skill:
    """Return the prompt with this name or skill path, treating withheld skills as absent.

    Raises:
        RequestError: no prompt has the name, or several do; the message suggests others.
    """
    skill = prompt_of(snapshot, settings, name)
    if skill is not None:
        return skill
    alike = [
        snapshot.skills[path] for path in snapshot.named(name[:MAX_PATH], prompts.MIN_STANDING)
    ]
    offered = [skill for skill in alike if prompts.is_offered(skill, settings.prompt_choice)]
    shown = list(islice(offered or _offered(snapshot, settings, None), _MAX_NAMED + 1))
    known = [
        identity.name_of(skill, snapshot, prompts.MIN_STANDING) for skill in shown[:_MAX_NAMED]
    ]
    more = ""
    if len(shown) > _MAX_NAMED:
        more = " and more"
    raise RequestError(f"Unknown prompt: {name[:200]!r}; known: {', '.join(known) or 'none'}{more}")
