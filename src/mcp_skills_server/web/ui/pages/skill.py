"""One skill: what it says, rendered beside the raw text, its files, who sees it, what it costs, how it is used."""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from anyio import to_thread
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.authoring.tokens import estimated
from mcp_skills_server.catalog.checks import Survey
from mcp_skills_server.dialects import prompts, runtime
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.format import arguments, frontmatter, hidden, identity, media
from mcp_skills_server.format.fields import text as text_of
from mcp_skills_server.hosts.edit import entry_for, remote_entry_for, snippet
from mcp_skills_server.hosts.table import HOSTS
from mcp_skills_server.model import SKILL_MD, Json, Problem, Skill, SkillFile, Standing
from mcp_skills_server.runtime.overlap import is_copy
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.usage_store import Line
from mcp_skills_server.web.ui.look import Look, prefix, shown_problem, source_name
from mcp_skills_server.web.ui.pages.author import report_of
from mcp_skills_server.web.ui.pages.problems import REFRESH_S, file_of, survey_of
from mcp_skills_server.web.ui.render import rendered

_NAME: Final = "skills"
_PROGRAM: Final = "mcp-skills-server"
_TOKEN: Final = "SKILLS_TOKEN"  # noqa: S105 - the name of a variable
GONE: Final = "This skill is not there any more, or you may not read it. It may have been moved, renamed or deleted."
_MOST_RAW: Final = 200_000
"""Characters of a SKILL.md that are shown; the raw file has all of them."""
_MOST_COPIES: Final = 20
_GIVEN: Final = "arg."
_DEEPEST: Final = 8
"""Folders in each other that the tree of files shows."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """The way to have one host use this server.

    Attributes:
        key: a word of its own.
        title: the host.
        command: what to type, "" where there is no command.
        text: its part of the host's file.
        link: an address that the host opens by itself, "" where it has none.
    """

    key: str
    title: str
    command: str
    text: str
    link: str = ""


def snippets(roots: Sequence[str], url: str = "", *, needs_token: bool = False) -> list[Snippet]:
    """Return the snippet of each host that starts a server of these roots, or reaches a server at a URL."""
    token = _TOKEN if needs_token else None
    given = [*roots]
    if url:
        given = ["--url", url] if token is None else ["--url", url, "--token-env", token]
    found: list[Snippet] = []
    for key, host in HOSTS.items():
        try:
            entry = remote_entry_for(host, url, token) if url else entry_for(host, [_PROGRAM], roots)
        except UsageError:
            continue  # it has no such entry in its file
        command = shlex.join([_PROGRAM, "install", key, *given])
        found.append(Snippet(key, host.title, command, snippet(host, _NAME, entry), _link(key, entry)))
    return found


def _link(key: str, entry: Mapping[str, object]) -> str:
    """Return the address by which a host offers to add an entry; "" for a host without one."""
    if "headers" in entry:
        return ""  # it would hold a variable that only files have
    if key == "vscode":
        return f"vscode:mcp/install?{quote(json.dumps({'name': _NAME, **entry}))}"
    if key == "cursor":
        config = b64encode(json.dumps(entry).encode()).decode()
        return f"cursor://anysphere.cursor-deeplink/mcp/install?name={_NAME}&config={quote(config)}"
    return ""


@dataclass(frozen=True, slots=True)
class Text:
    """A SKILL.md as people see it.

    Attributes:
        raw: the text, cut where it is very long.
        is_cut: whether it was.
        rendered: the body as HTML, None where it is too much for that.
        hidden: the number of invisible characters in it.
        trouble: why there is no text; "" where there is.
        body_tokens: about how many tokens the instructions take.
    """

    raw: str = ""
    is_cut: bool = False
    rendered: Markup | None = None
    hidden: int = 0
    trouble: str = ""
    body_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Argument:
    """A declared argument with what was given for it."""

    name: str
    words: str
    is_required: bool
    value: str


@dataclass(frozen=True, slots=True)
class File:
    """A file in the tree."""

    path: str
    name: str
    size: int
    digest: str


@dataclass(slots=True)
class FileTree:
    """A folder in the tree.

    Attributes:
        name: its own, "" for that of the skill.
        folders: those in it, by name.
        files: those right in it.
        count: all files below it.
        size: their bytes.
    """

    name: str = ""
    folders: dict[str, FileTree] = field(default_factory=dict[str, "FileTree"])
    files: list[File] = field(default_factory=list[File])
    count: int = 0
    size: int = 0


async def page(request: Request, look: Look) -> Response:
    """Return the view of a skill; with `part` what a change replaces, with `there` whether there is one."""
    skill = skill_of(request, look)
    if "there" in request.query_params:
        events.concerns([skill])
        return Response(status_code=204)
    text = await _text(look, skill)
    declared, filled, trouble = await _filled(request, look, skill)
    used = await to_thread.run_sync(look.used)
    line: Line | None = None if used is None else used.get(skill.path)
    checks = look.runtime.registry.checks
    is_checked = checks.known(skill) is not None  # asked first: the survey below then has what was found
    survey = await to_thread.run_sync(survey_of, look)
    author = await to_thread.run_sync(report_of, look, skill) if runtime.is_offered(skill) else None
    digests = skill.digests
    response = look.page(
        "about.html" if "part" in request.query_params else "skill.html",
        skill=skill,
        icon=_icon(skill),
        as_it_is=request.query_params.get("text") == "raw",
        copies=_copies(look, skill),
        title=identity.title(skill),
        version=identity.version(skill.frontmatter),
        text=text,
        frontmatter=[(key, _value(value)) for key, value in skill.frontmatter.items()],
        tree=tree_of(skill, digests),
        problems=_problems(look, skill, survey),
        is_checked=is_checked,
        author=author,
        source=source_name(look, skill.root),
        origin=skill.origin if look.site.local else identity.origin(skill),
        revision=getattr(look.runtime.registry.roots[skill.root], "revision", ""),
        place=look.runtime.registry.place(skill) if look.site.local else "",
        seen=seen_by(look, skill),
        costs=_costs(skill, text),
        arguments=declared,
        filled=filled,
        fill_trouble=trouble,
        line=line,
        counts=look.site.usage.are_kept,
        revisions=look.site.revisions.of(skill.path),
        snippets=_snippets(request, look),
    )
    if not is_checked:
        checks.begin(look.runtime.skill_set, skill)
        response.headers["refresh"] = REFRESH_S
    return response


def _icon(skill: Skill) -> str:
    """Return the picture in the skill's folder that its frontmatter names as its icon; "" for none."""
    icons = skill.frontmatter.get("icons")
    first = icons[0] if isinstance(icons, list) and icons else None
    named = first.get("src") if isinstance(first, dict) else skill.frontmatter.get("icon")
    path = named.removeprefix("./") if isinstance(named, str) else ""
    kind = media.media_type(path) or ""
    return path if path in skill.files and kind.startswith("image/") and "svg" not in kind else ""


def _copies(look: Look, skill: Skill) -> list[Skill]:
    """Return the same skill at other places."""
    skills = look.snapshot.skills
    others = (skills[path] for path in look.snapshot.named(skill.name, Standing.LENIENT)[:_MOST_COPIES])
    return [each for each in others if each is not skill and is_copy(skill, each)]


def _problems(look: Look, skill: Skill, survey: Survey) -> list[tuple[str, Problem]]:
    """Return the problems of a skill, errors first, each with the path of the file it is in or ""."""
    place = look.runtime.registry.roots[skill.root].show(skill.directory)
    found = sorted(survey.by_skill.get(skill.path, ()), key=lambda each: each.severity)
    return [(file_of(each, place, skill.files), shown_problem(look, each)) for each in found]


def tree_of(skill: Skill, digests: Mapping[str, str]) -> FileTree:
    """Return the files of a skill by their folders. What lies deeper than a person looks keeps its path as its name."""
    top = FileTree()
    for path, file in skill.files.items():
        *above, name = path.split("/", _DEEPEST)
        at = top
        for each in ("", *above):
            at = at if not each else at.folders.setdefault(each, FileTree(each))
            at.count += 1
            at.size += file.size
        at.files.append(File(path, name, file.size, digests.get(path, "")))
    return top


def skill_of(request: Request, look: Look) -> Skill:
    """Return the skill that the address names.

    Raises:
        HTTPException: 404, there is none that the viewer may see.
    """
    skill = look.snapshot.skills.get(request.path_params["path"])
    if skill is None:
        raise HTTPException(404, GONE)
    return skill


async def _text(look: Look, skill: Skill) -> Text:
    file: SkillFile | None = skill.files.get(SKILL_MD)
    if file is None or file.size > look.runtime.registry.limits.skill_md:
        events.concerns([skill])
        if file is None:
            return Text(trouble="There is no SKILL.md that can be read.")
        return Text(trouble=f"SKILL.md has {file.size:,} bytes, which is more than is read.")
    raw = await look.view.read(skill, SKILL_MD)
    document = await to_thread.run_sync(frontmatter.parse, raw)
    text = raw.decode("utf-8", "replace")
    body = text if document.frontmatter is None and not document.body else document.body  # what has no fences
    html = await rendered(body, skill.path, skill.files, SKILL_MD)
    return Text(text[:_MOST_RAW], len(text) > _MOST_RAW, html, hidden.count(text), "", estimated(body))


async def _filled(request: Request, look: Look, skill: Skill) -> tuple[list[Argument], str | None, str]:
    """Return the declared arguments with their values, the filled-in instructions, and the error of filling them in."""
    declared = arguments.declared(skill.frontmatter) if skill.standing > Standing.UNUSABLE else []
    given = {
        key.removeprefix(_GIVEN): value
        for key, value in request.query_params.items()
        if key.startswith(_GIVEN) and value
    }
    shown = [_argument(each, given) for each in declared]
    if not declared or "fill" not in request.query_params:
        return shown, None, ""
    body = await look.view.body(skill)
    try:
        return shown, arguments.fill_in(body.text, declared, given, skill.name), ""
    except RequestError as error:
        return shown, None, str(error)


def _argument(declared: Mapping[str, Json], given: Mapping[str, str]) -> Argument:
    name = str(declared["name"])
    value = given.get(name) or text_of(declared.get("default")) or ""
    return Argument(name, text_of(declared.get("description")) or "", declared.get("required") is True, value)


def seen_by(look: Look, skill: Skill) -> list[tuple[str, bool, str]]:
    """Return each audience of a skill, whether it is shown the skill, and the reason if not."""
    strict = skill.standing is Standing.VALID
    first = next((each for each in skill.problems if each.severity == "error"), None)
    broken = "it breaks the specification" if first is None else shown_problem(look, first).text
    model = runtime.is_offered(skill)
    reserved = "its frontmatter reserves it for users, it has no description, or it cannot be read"
    chosen = look.site.settings.prompt_choice
    user = look.site.settings.prompts and prompts.is_offered(skill, chosen)
    kept = "its frontmatter or an option of the server keeps it from users, or it cannot be read"
    return [
        ("Hosts that know skills", strict, "" if strict else broken),
        ("A model, by the tools", look.site.settings.tools and model, "" if model else reserved),
        ("A user, as a prompt or slash command", user, "" if user else kept),
    ]


def _costs(skill: Skill, text: Text) -> list[tuple[str, int]]:
    others = sum(
        file.size for path, file in skill.files.items() if path != SKILL_MD and media.is_text(media.media_type(path))
    )
    return [
        ("In every conversation, by name and description", estimated(f"{skill.name}{skill.description}")),
        ("When its instructions are loaded", text.body_tokens),
        ("If every other text file were read too", -(-others // 4)),
    ]


def _snippets(request: Request, look: Look) -> list[Snippet]:
    if look.site.local:
        return snippets([root.given for root in look.runtime.registry.roots])
    address = f"{request.url.scheme}://{request.url.netloc}{prefix.get()}/mcp"
    return snippets([], address, needs_token=not look.site.open)


def _value(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
