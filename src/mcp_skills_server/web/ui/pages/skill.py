"""The view of one skill: its text with facts and audiences, its files, and its evaluation."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from anyio import to_thread
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.access.grants import SkillRights, rights_on
from mcp_skills_server.authoring import context, evaluation, lift
from mcp_skills_server.authoring.tokens import estimated_tokens, estimated_tokens_of_bytes
from mcp_skills_server.catalog.bundle import without_nested
from mcp_skills_server.catalog.checks import Survey
from mcp_skills_server.dialects import prompts, runtime
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.format import arguments, frontmatter, hidden, identity, media
from mcp_skills_server.format.fields import text as text_of
from mcp_skills_server.hosts.disk import installed_hosts
from mcp_skills_server.hosts.table import HOSTS
from mcp_skills_server.model import SKILL_MD, Json, Problem, Skill, Standing
from mcp_skills_server.model.clients import client_of
from mcp_skills_server.runtime.overlap import Overlap, is_copy
from mcp_skills_server.runtime.search_index import NoFullTextError
from mcp_skills_server.telemetry import events
from mcp_skills_server.web.ui.addresses import choice_of
from mcp_skills_server.web.ui.context import (
    Argument,
    Context,
    reason_left_out,
    shown_problem,
    source_name,
)
from mcp_skills_server.web.ui.pages.catalogue import can_switch, switched_off
from mcp_skills_server.web.ui.pages.edit import can_edit
from mcp_skills_server.web.ui.pages.problems import REFRESH_S, file_of, survey_of
from mcp_skills_server.web.ui.pages.snippets import probe_command, snippets_for
from mcp_skills_server.web.ui.pages.triggers import CheckedPrompt, check
from mcp_skills_server.web.ui.render import is_raster_name, rendered

GONE: Final = "This skill does not exist any more, or you may not read it. It may have moved."
_TABS: Final = ("text", "files", "evaluation")
_MAX_COPIES: Final = 20
_ARGUMENT_PREFIX: Final = "arg."
_DEEPEST: Final = 8
"""Depth of folders in the file tree."""
_MAX_CASES: Final = 100
_IN_WORDS: Final = {"whole": "with its description", "absent": "not at all; skills_search finds it"}


class Text(NamedTuple):
    """A SKILL.md for display."""

    raw: str = ""
    rendered: Markup | None = None
    hidden: int = 0  # number of its invisible characters
    trouble: str = ""  # why it cannot be shown
    body_tokens: int = 0


@dataclass(slots=True)
class FileTree:
    """A folder of the file tree: subfolders by name, and files as (name, path)."""

    folders: dict[str, FileTree] = field(default_factory=dict[str, "FileTree"])
    files: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    count: int = 0  # of all files below it
    size: int = 0


class AuthorReport(NamedTuple):
    """The findings on a skill for its author."""

    checked: Sequence[CheckedPrompt]  # its trigger set
    errors: Sequence[UsageError | str]  # why files in its folder evals contain no cases
    hosts: Sequence[tuple[str, str]]  # hosts, and how much of it their models see unasked
    neighbours: Sequence[Overlap]  # similar skills, which a model may confuse with it
    lift: Sequence[str]  # what it changes in outputs, as last measured


async def page(request: Request, ctx: Context) -> Response:
    """Return the view of a skill; with `part` in the query only what a change updates."""
    query, path = request.query_params, request.path_params["path"]
    keys = [key for key, (_, folder) in switched_off(ctx).items() if folder == path]
    if path not in ctx.snapshot.skills and keys:
        return ctx.page("off.html", path=path, key=keys[0], switched=query.get("switched"))
    skill = skill_of(request, ctx)
    tab = choice_of(query, "tab", _TABS, "text")
    registry = ctx.runtime.registry
    # read before the survey, which then includes the results
    is_checked = registry.checks.known(skill) is not None
    survey = await to_thread.run_sync(survey_of, ctx)
    values = heading(request, ctx, skill, tab)
    if tab == "text":
        values |= await _text_tab(ctx, skill, query)
    elif tab == "files":
        events.record_mentions([skill])
        values["tree"] = _tree_of(skill)
    else:
        events.record_mentions([skill])
        if runtime.is_offered(skill):
            values["author"] = await to_thread.run_sync(_author_report, ctx, skill)
    response = ctx.page(
        "about.html" if "part" in query else "skill.html",
        **values,
        problems=_problems(ctx, skill, survey),
        switched=query.get("switched"),
        is_checked=is_checked,
    )
    if not is_checked:
        registry.checks.begin(ctx.offering.skill_set, skill)
        response.headers["refresh"] = REFRESH_S
    return response


def heading(request: Request, ctx: Context, skill: Skill, tab: str) -> dict[str, Any]:
    """Return what every view of a skill begins with: names, facts, a switch, ways to add it."""
    origin, folder, own = identity.origin(skill), "", hosts_of_viewer(ctx)
    if ctx.site.is_local:  # a remote viewer learns no path of this machine
        origin, folder = skill.origin, ctx.runtime.registry.place(skill)
    return {
        "skill": skill,
        "tab": tab,
        "icon": _icon(skill),
        "title": identity.title(skill),
        "version": identity.version(skill.frontmatter),
        "source": source_name(ctx, skill.root),
        "origin": origin,
        "revision": getattr(ctx.runtime.registry.roots[skill.root], "revision", ""),
        "place": folder,
        "snippets": sorted(snippets_for(request, ctx), key=lambda snippet: snippet.key not in own),
        "probe": probe_command(request, ctx),
        "own": own,
        "switches": can_switch(ctx, skill),
        "edits": can_edit(ctx, skill),
        "left_out": reason_left_out(ctx, skill),
    }


async def _text_tab(ctx: Context, skill: Skill, query: Mapping[str, str]) -> dict[str, Any]:
    text, form = await _text(ctx, skill), await _filled(query, ctx, skill)
    used = await to_thread.run_sync(ctx.used)
    return {
        "show_raw": query.get("text") == "raw",
        "copies": _copies(ctx, skill),
        "text": text,
        "frontmatter": [(key, _value(value)) for key, value in skill.frontmatter.items()],
        "seen": _seen_by(ctx, skill),
        "access": _access(ctx, skill),
        "costs": _costs(skill, text),
        "form": form,
        "line": (used or {}).get(skill.path),
        "counts": used is not None,
        "revisions": ctx.site.revisions.latest(skill.path),
        "changed": ctx.site.revisions.changed(skill.path),
    }


def _access(ctx: Context, skill: Skill) -> Sequence[SkillRights]:
    if not ctx.sees_others:
        return ()
    return rights_on(skill.path, ctx.site.grants() or (), ctx.site.principals())


def hosts_of_viewer(ctx: Context) -> Collection[str]:
    """Return the hosts of the viewer: those of this machine, or those that sent requests."""
    if ctx.site.is_local:
        return installed_hosts()
    if ctx.principal is None:
        return ()
    clients = ctx.site.activity.clients()
    names = {row.event.host for row in clients if row.event.principal == ctx.principal.id}
    return {key for key, host in HOSTS.items() if host.context.client in names - {None, ""}}


def skill_of(request: Request, ctx: Context) -> Skill:
    """Return the skill in the address; HTTPException 404 if the viewer may see no such skill."""
    path = request.path_params["path"]
    skill = ctx.snapshot.skills.get(path)
    if skill is None:
        reasons = (problem for problem in ctx.snapshot.problems if problem.skill == path)
        reason = next(map(partial(shown_problem, ctx), reasons), None)
        if reason is None:
            raise HTTPException(404, GONE)
        text = "; ".join(filter(None, (reason.message, reason.hint)))
        raise HTTPException(404, f"This skill is not served: {text}.")
    return skill


def _icon(skill: Skill) -> str:
    """Return the path of the raster icon that the frontmatter names; "" for none."""
    named, icons = skill.frontmatter.get("icon"), skill.frontmatter.get("icons")
    if isinstance(icons, list) and icons and isinstance(icons[0], dict):
        named = icons[0].get("src")
    path = (text_of(named) or "").removeprefix("./")
    if path in skill.files and is_raster_name(path):
        return path
    return ""


def _copies(ctx: Context, skill: Skill) -> list[Skill]:
    """Return the copies of a skill at other paths."""
    paths = ctx.snapshot.named(skill.name, Standing.LENIENT)[:_MAX_COPIES]
    others = (ctx.snapshot.skills[path] for path in paths)
    return [other for other in others if other is not skill and is_copy(skill, other)]


def _problems(ctx: Context, skill: Skill, survey: Survey) -> list[tuple[str, Problem]]:
    """Return the problems of a skill, errors first, each with the path of its file or ""."""
    folder = ctx.runtime.registry.roots[skill.root].show(skill.directory)
    freshness = ctx.runtime.registry.freshness.recent(skill)
    unconfirmed = [problem for problem in freshness if problem.severity == "note"]
    known = [*survey.by_skill.get(skill.path, ()), *unconfirmed]
    problems = sorted(known, key=lambda problem: problem.severity)
    return [
        (file_of(problem, folder, skill.files), shown_problem(ctx, problem)) for problem in problems
    ]


def _tree_of(skill: Skill) -> FileTree:
    """Return the file tree of a skill. Below `_DEEPEST` folders, file names are paths."""
    top = FileTree()
    for path, file in skill.files.items():
        *above, name = path.split("/", _DEEPEST)
        folders = [top]
        for parent in above:
            folders.append(folders[-1].folders.setdefault(parent, FileTree()))
        for folder in folders:
            folder.count += 1
            folder.size += file.size
        folders[-1].files.append((name, path))
    return top


async def _text(ctx: Context, skill: Skill) -> Text:
    file = skill.files.get(SKILL_MD)
    if file is None:
        events.record_mentions([skill])
        return Text(trouble="SKILL.md is missing or cannot be read.")
    if file.size > ctx.runtime.registry.limits.skill_md:
        events.record_mentions([skill])
        return Text(trouble=f"SKILL.md has {file.size:,} bytes, more than the limit.")
    raw = await ctx.view.read(skill, SKILL_MD)
    document = await to_thread.run_sync(frontmatter.parse, raw)
    text, body = raw.decode("utf-8", "replace"), document.body
    if document.frontmatter is None and not body:
        body = text  # no frontmatter: all of it is body
    html = await rendered(body, skill.path, skill.files, SKILL_MD)
    return Text(text, html, hidden.count(text), "", estimated_tokens(body))


class _Form(NamedTuple):
    arguments: Sequence[Argument]  # with values
    filled: str | None = None  # the instructions with these values
    trouble: str = ""  # the error of filling


async def _filled(query: Mapping[str, str], ctx: Context, skill: Skill) -> _Form:
    """Fill the arguments of the query into a skill's instructions."""
    declared: Sequence[Mapping[str, Json]] = ()
    if skill.standing > Standing.UNUSABLE:
        declared = arguments.declared(skill.frontmatter)
    keys = [key for key, value in query.items() if key.startswith(_ARGUMENT_PREFIX) and value]
    given = {key.removeprefix(_ARGUMENT_PREFIX): query[key] for key in keys}
    shown: list[Argument] = []
    for argument in declared:
        name, words = str(argument["name"]), text_of(argument.get("description")) or ""
        value = given.get(name) or text_of(argument.get("default")) or ""
        shown.append(Argument(name, words, argument.get("required") is True, value))
    if not declared or "fill" not in query:
        return _Form(shown)
    body = await ctx.view.body(skill)
    try:
        return _Form(shown, arguments.fill_in(body.text, skill.frontmatter, given, skill.name))
    except RequestError as error:
        return _Form(shown, trouble=str(error))


def _seen_by(ctx: Context, skill: Skill) -> list[tuple[str, str]]:
    """Return each audience of a skill, and why it does not see the skill; "" if it does."""
    settings = ctx.site.settings
    host, model, user = "", "", ""
    left_out = reason_left_out(ctx, skill)
    if left_out is not None:
        host = f"{skill.standing.shown}: {left_out.text}"
    if not runtime.is_offered(skill):
        model = "its frontmatter reserves it for users, it has no description, or it cannot be read"
    elif not settings.tools:
        model = "this server offers no tools"
    if not settings.prompts or not prompts.is_offered(skill, settings.prompt_choice):
        user = "its frontmatter or a server option keeps it from users, or it cannot be read"
    return [
        ("Hosts that support skills", host),
        ("Models, through tools", model),
        ("Users, as a prompt or slash command", user),
    ]


def _costs(skill: Skill, text: Text) -> list[tuple[str, int]]:
    named, others = estimated_tokens(f"{skill.name}{skill.description}"), 0
    for path, file in skill.files.items():
        if path != SKILL_MD and media.is_text(media.media_type(path)):
            others += file.size
    return [
        ("In every conversation, by name and description", named),
        ("When its instructions are loaded", text.body_tokens),
        ("If every other text file were read too", estimated_tokens_of_bytes(others)),
    ]


def _value(value: Json) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=1)


# Author report


def _author_report(ctx: Context, skill: Skill) -> AuthorReport:
    """Return the report of a skill that models are offered. Blocks for some ms per case."""
    registry, show = ctx.runtime.registry, str
    if ctx.site.is_local:
        show = registry.roots[skill.root].show
    cases, errors = evaluation.own_cases(registry.read, skill, show)
    hosts = _hosts(ctx, skill)
    alone = without_nested(skill, skill.nested, registry.roots[skill.root])
    measured = lift.remembered(ctx.site.answers, registry.digest_over(alone))
    try:
        checked = check(ctx, skill, [case for _, case in cases[:_MAX_CASES]])
        neighbours = ctx.offering.search.confusable(skill, ctx.offers)
    except NoFullTextError as error:
        return AuthorReport((), [*errors, str(error)], hosts, (), measured)
    return AuthorReport(checked, errors, hosts, neighbours, measured)


def _hosts(ctx: Context, skill: Skill) -> list[tuple[str, str]]:
    """Return hosts that show the same part of a skill, and the part; the viewer's own first."""
    if not ctx.site.settings.tools:
        return []
    briefing, own = ctx.offering.briefing, hosts_of_viewer(ctx)
    offer = next((offer for offer in briefing.overview.offers if offer.path == skill.path), None)
    if offer is None:
        return []
    out: dict[str, list[str]] = {}
    for key in sorted(HOSTS, key=lambda key: key not in own):
        host = HOSTS[key].context
        parts = context.parts_shown(context.shown_unasked(ctx.offering, host), [offer])
        # a skill has one part: those of the other kinds are empty
        (part,) = (part for part, offers in parts.items() if offers)
        words = _IN_WORDS.get(part) or briefing.shown_part(skill, client_of(host.client)) or ""
        notes = ["yours"] if key in own else []
        if not {"instructions", "tools"} <= {*host.measured}:
            notes.append("assumed")
        note = f" ({', '.join(notes)})" if notes else ""
        out.setdefault(words, []).append(HOSTS[key].title + note)
    return [(", ".join(hosts), words) for words, hosts in out.items()]
