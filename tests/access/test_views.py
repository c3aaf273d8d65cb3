"""Whoever has some skills is answered as by a server that has no others, byte for byte and on every protocol."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from hypothesis import Phase, example, given, note, settings
from hypothesis import strategies as st

from conversations import ENVELOPE, EXTENSION, HANDSHAKE
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import SkillSet, Views
from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX
from mcp_skills_server.format import cursors
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.server.sdk import PRINCIPAL
from mcp_skills_server.web.discovery import Discovery, DiscoveryByGrants
from scripted import talk

ANN = Principal("token", "ann")
PATHS = ("alpha", "alpha/inner", "alpha/inner/core", "beta", "team/x", "team/y", "team/y/z", "other/x", "deep/er/q")
ABSENT = ("gamma", "team/none", "alpha/none", "team")
PATTERNS = (*PATHS, "*", "**", "team/*", "team/**", "alpha/**", "*/x", "**/x", "alpha*", "none/**")
WORDS = ("refunds", "invoices", "tea", "reports", "colours", "refund policy", "makes tea reports", "kettle")
TOML = 'version = "{version}"\nname = "{name}"\ndescription = "Does {word}."\n'


@dataclass(frozen=True)
class Sample:
    """A skill to write, to one of two roots. Its `manifest` is the name in its `skill.toml`, if it has one."""

    path: str
    root: int
    name: str
    word: str  # what it is about
    breaks: str  # what is wrong with it
    needs: str  # the path of a skill that it names
    manifest: str

    def write(self, roots: Path) -> None:
        """Write it to its root."""
        folder = roots / str(self.root) / self.path
        (folder / "references").mkdir(parents=True, exist_ok=True)
        (folder / "nothing").mkdir(exist_ok=True)
        described = "" if self.breaks == "description" else f"description: Helps with {self.word}.\n"
        named = "name: [1" if self.breaks == "yaml" else f"name: {self.name}"
        needs = f"dependencies:\n  prompts: [{self.needs}]\n  resources: [skill://{self.needs}/SKILL.md]\n"
        arguments = "arguments:\n  - name: topic\n    enum: [one, two]\n" if self.word == "tea" else ""
        text = f"---\n{named}\n{described}{needs}{arguments}---\n# About {self.word}\n\nSee [it](references/guide.md), "
        text += f"[inner](inner/references/guide.md) and [z](z/{SKILL_MD}).\n"
        (folder / SKILL_MD).write_text(text, encoding="utf-8")
        (folder / "references" / "guide.md").write_text(f"guide of {self.path}\n", encoding="utf-8")
        if self.breaks == "link":
            (folder / "away").symlink_to("/etc")
        if self.manifest:
            fields = TOML.format(version="1.2.3", name=self.manifest, word=self.word)
            (folder / "skill.toml").write_text(fields, encoding="utf-8")


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    """Some skills, nested, broken, shadowed and of one name."""
    places = draw(st.lists(st.tuples(st.sampled_from(PATHS), st.integers(0, 1)), min_size=1, max_size=9, unique=True))
    out: list[Sample] = []
    for path, root in places:
        names = [path.rpartition("/")[2]] * 4 + ["x", "beta", "Odd Name"]
        wrong = [""] * 5 + ["description", "yaml", "link"]
        manifests = ["", "", "acme.tool", f"acme.{path.replace('/', '-')}"]
        drawn = [draw(st.sampled_from(each)) for each in (names, WORDS, wrong, (*PATHS, "x"), manifests)]
        out.append(Sample(path, root, *drawn))
    return out


GRANTS = st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4)


def remove_ungranted(roots: Path, served: dict[str, int], patterns: Sequence[Pattern]) -> None:
    """Remove every skill that no pattern fits, and leave the granted ones in its folder.

    `served` has the root from which each skill is served. What another root hides nobody has.
    """
    for number, root in enumerate((roots / "0", roots / "1")):
        skills = {found.parent.relative_to(root).as_posix() for found in root.rglob(SKILL_MD)}

        def is_withheld(place: Path, root: Path = root, skills: set[str] = skills, number: int = number) -> bool:
            where = place.relative_to(root).as_posix()
            holders = [each for each in skills if where == each or where.startswith(f"{each}/")]
            holder = max(holders, key=len, default="")
            return bool(holder) and (served.get(holder) != number or not any(each.matches(holder) for each in patterns))

        for name, folders, files in os.walk(root, topdown=False):
            folder = Path(name)
            withheld = is_withheld(folder)
            for each in (*files, *folders):
                if withheld and (each in files or (folder / each).is_symlink()):
                    (folder / each).unlink()
            if folder != root and not any(folder.iterdir()) and (withheld or files or folders):
                folder.rmdir()  # nothing was in it but what is withheld


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """What clients ask: of every path that there may be, and of none."""
    for method in ("skills/list", "resources/list", "prompts/list"):
        yield method, {}
        kind = method.split("/", 1)[0]
        for path in (*PATHS, *ABSENT):
            yield method, {"cursor": cursors.encode(kind, path)}
    for path in (*PATHS, *ABSENT):
        name = path.rpartition("/")[2]
        for inside in (SKILL_MD, "references/guide.md", f"inner/{SKILL_MD}", "z/references/guide.md", "skill.toml"):
            yield "resources/read", {"uri": f"skill://{path}/{inside}"}
        yield "skills/get", {"uri": f"skill://{path}/{SKILL_MD}"}
        yield "resources/directory/read", {"uri": f"skill://{path}"}
        yield "resources/directory/read", {"uri": f"skill://{path}/inner"}
        for called in {path, name}:
            yield "skills/get", {"name": called, "arguments": {"topic": "one"}}
            yield "prompts/get", {"name": called, "arguments": {"topic": "one"}}
            prompt = {"type": "ref/prompt", "name": called}
            yield "completion/complete", {"ref": prompt, "argument": {"name": "topic", "value": "o"}}
        resource = {"type": "ref/resource", "uri": "skill://{+path}"}
        yield "completion/complete", {"ref": resource, "argument": {"name": "path", "value": path[:4]}}
        yield "resources/subscribe", {"uri": f"skill://{path}/{SKILL_MD}"}
    yield "resources/templates/list", {}
    yield "tools/list", {}
    yield "tools/call", {"name": "skills_list", "arguments": {"limit": 2}}
    yield "tools/call", {"name": "skills_none", "arguments": {}}
    for query in (*WORDS, "the refund of an invoice for tea", "alpa", "team x", "inner core"):
        yield "tools/call", {"name": "skills_search", "arguments": {"query": query}}
    for path in (*PATHS, *ABSENT, "bta", f"skill://alpha/inner/{SKILL_MD}"):
        yield "tools/call", {"name": "skills_load", "arguments": {"names": [path], "mode": "add"}}
        yield "tools/call", {"name": "skills_read", "arguments": {"skill": path, "path": "inner/references/guide.md"}}
        yield "tools/call", {"name": "skills_read", "arguments": {"path": "references/gide.md"}}


REQUESTS = list(requests())


def conversation(asked: Sequence[tuple[str, dict[str, Any]]], *, modern: bool) -> list[bytes]:
    """These requests, made by a client of an era."""
    opening: list[dict[str, Any]] = [{"id": 0, "method": "server/discover", "params": {"_meta": ENVELOPE}}]
    if not modern:
        hands = {**HANDSHAKE, "capabilities": EXTENSION}
        opening = [{"id": 0, "method": "initialize", "params": hands}, {"method": "notifications/initialized"}]
    meta = {"_meta": ENVELOPE} if modern else {}
    made = [{"id": id_, "method": method, "params": {**given, **meta}} for id_, (method, given) in enumerate(asked, 1)]
    return [json.dumps({"jsonrpc": "2.0", **each}).encode() for each in (*opening, *made)]


RUN = re.compile(rb'"run_id":"[^"]*"')
"""What is drawn by lot."""
CHOICES = (Settings(page_size=2, prompt_page_size=2), Settings(dialect="sep-2640"), Settings(dialect="sep-2076"))


def over_pipes(views: Views, chosen: Settings, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """What the user of this machine is told in both eras."""
    out: list[str] = []
    for modern in (True, False):
        lines = conversation(asked, modern=modern)
        out += map(json.dumps, talk(lines, views.registry, chosen, patient=True, views=views))
    return out


def over_rpc(views: Views) -> list[bytes]:
    """What a principal is told by the Skills Protocol."""
    rpc = Rpc(Methods(Runtime(views.registry), views=views))
    asked: list[tuple[str, dict[str, Any]]] = [("list_skills", {"limit": 2}), ("list_skills", {"detail": "full"})]
    asked += [("list_skills", {"namespace": each}) for each in ("acme", "team", "alpha")]
    for path in (*PATHS, *ABSENT):
        for name in (path.replace("/", "."), f"acme.{path.replace('/', '-')}", "acme.tool", "acme.tol"):
            asked.append(("describe_skill", {"name": name, "detail": "full"}))
            asked.append(("describe_skill", {"name": name, "version": "9.9.9"}))
            for inside in (f"inner/{SKILL_MD}", "references/gide.md"):
                asked.append(("read_skill_file", {"name": name, "path": inside}))
            asked.append(("execute_skill", {"name": name, "args": {}}))

    async def ask() -> list[bytes]:
        calls = [json.dumps({"jsonrpc": "2.0", "id": 1, "method": each, "params": given}) for each, given in asked]
        answers = [await rpc.answer(call.encode(), None, ANN) for call in calls]
        return [RUN.sub(b"", each or b"") for each in answers]

    return anyio.run(ask)


def over_discovery(views: Views, asked: Sequence[str]) -> list[dict[str, Any]]:
    """What a principal is sent at these paths, but for the header that says whom it depends on."""

    def make(skill_set: SkillSet, logged: set[str] | None = None) -> Discovery:
        return Discovery(Publication(skill_set), shared=False, logged=logged)

    endpoint = DiscoveryByGrants(views, make) if views.are_restricted else make(views.registry)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        if "headers" in message:
            message["headers"] = [each for each in message["headers"] if each[0] != b"vary"]
        sent.append(dict(message))

    async def receive() -> Any:
        raise AssertionError

    async def ask() -> None:
        for path in asked:
            scope = {"type": "http", "method": "GET", "path": path, "headers": [], PRINCIPAL: ANN}
            await endpoint(scope, receive, send)

    anyio.run(ask)
    return sent


def artifacts_of(registry: Registry) -> list[str]:
    """Every path that a server would publish that has all skills."""
    edition = Publication(registry).edition()
    old = [f"{DIRECTORY_0_1}{name}/{path}" for name in edition.older for path in edition.skills[name].skill.files]
    return [DIRECTORY + INDEX, DIRECTORY_0_1 + INDEX, *(each.artifact.path for each in edition.skills.values()), *old]


NESTED = [
    Sample("alpha", 0, "alpha", "tea", "", "alpha/inner", ""),
    Sample("alpha/inner", 0, "inner", "kettle", "link", "alpha", "acme.tool"),
    Sample("alpha/inner/core", 0, "core", "refunds", "", "alpha", ""),
    Sample("alpha", 1, "alpha", "reports", "description", "beta", ""),
]


@example(NESTED, ["alpha"], CHOICES[0], REQUESTS)
@example([NESTED[0], NESTED[2]], ["alpha"], CHOICES[0], REQUESTS)
@example(NESTED, ["alpha", "alpha/inner/core"], CHOICES[0], REQUESTS)
@settings(max_examples=settings().max_examples // 5, phases=(Phase.explicit, Phase.generate))
@given(samples(), GRANTS, st.sampled_from(CHOICES), st.permutations(REQUESTS).map(lambda order: order[:80]))
def test_the_answer_is_that_of_a_server_that_has_these_skills_only(
    found: list[Sample], patterns: list[str], chosen: Settings, asked: list[tuple[str, dict[str, Any]]]
) -> None:
    granted = [Pattern(each) for each in patterns]
    grants = [Grant(("local", "token:ann"), tuple(granted)), Grant(("token:bob",), (Pattern("**"),))]
    folder = Path(tempfile.mkdtemp(prefix="views-"))
    try:
        for root in ("0", "1"):
            (folder / root).mkdir()
        for each in found:
            each.write(folder)
        whole = Registry([folder / "0", folder / "1"])
        whole.load()
        published = artifacts_of(whole)
        local, remote = (Views(whole, Grants(grants, local=each)) for each in (True, False))
        seen = over_pipes(local, chosen, asked), over_rpc(remote), over_discovery(remote, published)
        remove_ungranted(folder, {path: each.root for path, each in whole.snapshot.skills.items()}, granted)
        part = Registry([folder / "0", folder / "1"])
        part.load()
        everything = Views(part)
        note(f"{[*whole.snapshot.skills]} {patterns} {[*part.snapshot.skills]}")
        expected = over_pipes(everything, chosen, asked), over_rpc(everything), over_discovery(everything, published)
        for mine, theirs in zip(seen, expected, strict=True):
            assert mine == theirs
    finally:
        shutil.rmtree(folder)
