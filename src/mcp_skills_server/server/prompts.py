"""Handlers of `prompts/*`, and completion of prompt arguments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import prompts, resources, sep2076
from mcp_skills_server.dialects.dialect import Subject
from mcp_skills_server.errors import RequestError, clipped, listed
from mcp_skills_server.format import arguments, cursors, identity
from mcp_skills_server.format.cursors import entry_bytes, first_page
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import LONGEST_PATH, Changes, Json, Skill, Snapshot, Standing
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.server.requests import (
    Caller,
    Page,
    Params,
    Result,
    Settings,
    given_arguments,
    keep_page,
    kept_page,
    with_pending,
)

_CURSOR: Final = "prompts"
_MOST_NAMED: Final = 10
_ALONE: Final = Snapshot({})


async def list_prompts(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Return a page of the skills that a user may start, in path order (`prompts/list`).

    A host that lists skills natively gets prompts only for the other skills.
    """
    after = cursors.start_key(params, _CURSOR)
    elsewhere = settings.spoken.shown_by(caller.client, caller.extensions)
    key = (_CURSOR, settings.prompt_choice, settings.prompt_page_size, after, elsewhere)
    page = kept_page(view.snapshot, *key)
    if page is None:
        page = keep_page(_page(view.snapshot, settings, after, elsewhere), view.snapshot, *key)
    return with_pending(
        prompts.listing(page, cursors.encode(_CURSOR, page.more), settings.ttl_ms), view
    )


async def get_prompt(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """Return a skill's filled-in instructions, and the URIs of linked files (`prompts/get`).

    For a fetched skill, or a host that turns prompts into templates, return a pointer instead. That
    prompt makes the model load the skill.

    Raises:
        RequestError: the prompt does not exist, or its arguments are invalid.
    """
    target, given = str(params["name"]), given_arguments(params)
    skill = _find(view.snapshot, settings, target)
    body = await view.body(skill)
    name = identity.name_of(skill, view.snapshot, prompts.LEAST)
    declared = _declared(skill)
    words = ""
    if _is_free(skill):
        words = arguments.fill_in("{{" + prompts.ARGUMENTS + "}}", declared, given, name)
        text = prompts.put_in(body.text, words, name)
        words = "" if text != body.text else words  # the body has them already
    else:
        text = arguments.fill_in(body.text, declared, given, name)
    if skill.origin is not None or client_of(caller.client).makes_templates_of_prompts:
        return prompts.answer(skill, prompts.pointer(skill, name, given), [], readable=False)
    files = sep2076.files(skill, body.linked)[: len(body.linked)]
    linked = [each for each in files if isinstance(each, dict)]
    message = prompts.instructions(skill, name, text, words)
    return prompts.answer(skill, message, linked, readable=skill.standing >= settings.least)


async def complete_argument(view: View, settings: Settings, _: Caller, params: Params) -> Result:
    """Complete an argument of a prompt with its author's suggestions (`completion/complete`).

    Raises:
        RequestError: the prompt or its argument does not exist.
    """
    name, wanted = str(params["ref"]["name"]), params["argument"]
    declared = {str(each["name"]): each for each in _declared(_find(view.snapshot, settings, name))}
    argument = declared.get(wanted["name"])
    if argument is None:
        asked = clipped(wanted["name"])
        raise RequestError(
            f"Prompt {clipped(name)!r} has no argument {asked!r}; it has: {listed(declared)}"
        )
    return resources.completion(prompts.values(argument, str(wanted["value"])))


def is_our_prompt(view: View, settings: Settings, name: str) -> bool:
    """Return whether `prompts/get` accepts this name."""
    return _known(view.snapshot, settings, name) is not None


class Names(NamedTuple):
    """A container of the names in `prompts/list`, with fast membership tests.

    Attributes:
        view: the skills.
        settings: select the prompts.
        others: names of the server's own prompts.
    """

    view: View
    settings: Settings
    others: Container[str] = ()

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name in self.others:
            return isinstance(name, str)
        skill = _known(self.view.snapshot, self.settings, name)
        return (
            skill is not None and identity.name_of(skill, self.view.snapshot, prompts.LEAST) == name
        )


def is_prompt(reference: Any) -> bool:
    """Return whether a `completion/complete` reference, an SDK object, is to a prompt."""
    return getattr(reference, "type", None) == "ref/prompt"


def changed(changes: Changes, settings: Settings) -> bool:
    """Return whether `prompts/list` may have changed, so that clients fetch it again."""
    return prompts.changed(
        changes.before,
        changes.after,
        settings.prompt_choice,
        lambda skill: _descriptor(skill, _ALONE),
    )


def _page(
    snapshot: Snapshot, settings: Settings, after: str | None, elsewhere: Standing | None
) -> Page:
    offered = _offered(snapshot, settings, after)
    if elsewhere is not None:
        offered = (each for each in offered if each.standing < elsewhere)
    page = list(islice(offered, settings.prompt_page_size))
    kept = first_page(page, entry_bytes)
    more = None
    if page and (len(kept) < len(page) or next(offered, None) is not None):
        more = kept[-1].path
    return Page([_descriptor(skill, snapshot) for skill in kept], more)


def _descriptor(skill: Skill, snapshot: Snapshot) -> dict[str, Json]:
    return prompts.descriptor(
        skill, sep2076.entry(Subject(skill, snapshot, prompts.LEAST, Served()))
    )


def _is_free(skill: Skill) -> bool:
    return not arguments.declared(skill.frontmatter) and prompts.free_argument(skill) is not None


def _declared(skill: Skill) -> list[dict[str, Json]]:
    """Return a prompt's declared arguments, else the one from `argument-hint`, if any."""
    free = prompts.free_argument(skill)
    return arguments.declared(skill.frontmatter) or ([] if free is None else [free])


def _offered(snapshot: Snapshot, settings: Settings, after: str | None) -> Iterator[Skill]:
    """Yield the skills that are prompts, in path order, after the path `after`."""
    paths = snapshot.paths(prompts.LEAST)
    for position in range(0 if after is None else bisect_right(paths, after), len(paths)):
        skill = snapshot.skills[paths[position]]
        if prompts.is_offered(skill, settings.prompt_choice):
            yield skill


def _known(snapshot: Snapshot, settings: Settings, name: str) -> Skill | None:
    """Return the prompt with this name or skill path, or None, with one look-up."""
    skill = identity.lookup(snapshot, name, prompts.LEAST)
    if skill is not None and prompts.is_offered(skill, settings.prompt_choice):
        return skill
    return None


def _find(snapshot: Snapshot, settings: Settings, name: str) -> Skill:
    """Return the prompt with this name or skill path, treating withheld skills as absent.

    Raises:
        RequestError: no prompt has the name, or several do; the message suggests others.
    """
    skill = _known(snapshot, settings, name)
    if skill is not None:
        return skill
    alike = [snapshot.skills[path] for path in snapshot.named(name[:LONGEST_PATH], prompts.LEAST)]
    offered = [each for each in alike if prompts.is_offered(each, settings.prompt_choice)]
    shown = list(islice(offered or _offered(snapshot, settings, None), _MOST_NAMED + 1))
    known = [identity.name_of(each, snapshot, prompts.LEAST) for each in shown[:_MOST_NAMED]]
    more = ""
    if len(shown) > _MOST_NAMED:
        more = " and more"
    raise RequestError(f"Unknown prompt: {name[:200]!r}; known: {', '.join(known) or 'none'}{more}")
