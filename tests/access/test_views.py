"""Views by grants and gates: a skill that is withheld changes no byte of any answer, on every protocol."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from catalog.forest import load_registry
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import Requester
from mcp_skills_server.catalog.gates import Gate, GateRefusal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import FilteredSkills, Views
from mcp_skills_server.codes import problem
from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX
from mcp_skills_server.format import cursors
from mcp_skills_server.model import SKILL_MD, Skill
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.discovery import Discovery, DiscoveryByGrants
from mcp_skills_server.web.part import REQUESTER
from scripted import replies_to
from web.http_wire import HELLO, MODERN_META
from wire import EXTENSION

ANN = Principal("token", "ann")
PATHS = ("alpha", "alpha/inner", "alpha/inner/core", "beta", "team/x", "team/y", "team/y/z", "other/x", "deep/er/q")
ABSENT = ("gamma", "team/none", "alpha/none", "team")
PATTERNS = (*PATHS, "*", "**", "team/*", "team/**", "alpha/**", "*/x", "**/x", "alpha*", "none/**")
WORDS = ("refunds", "invoices", "tea", "reports", "colours", "refund policy", "makes tea reports", "kettle")
TOML = 'version = "{version}"\nname = "{name}"\ndescription = "Does {word}."\n'


@dataclass(frozen=True)
class Sample:
    """A skill to write into one of two roots."""

    path: str
    root: int
    name: str
    word: str  # in its description
    fault: str  # "description" or "yaml" if invalid, "link" for a symlink out of the skill
    needs: str  # path of a skill that it depends on
    manifest: str  # name in its skill.toml; "" for none

    def write(self, roots: Path) -> None:
        folder = roots / str(self.root) / self.path
        (folder / "references").mkdir(parents=True, exist_ok=True)
        (folder / "nothing").mkdir(exist_ok=True)
        lines = ["---", "name: [1" if self.fault == "yaml" else f"name: {self.name}"]
        if self.fault != "description":
            lines.append(f"description: Helps with {self.word}.")
        lines.append(f"dependencies:\n  prompts: [{self.needs}]\n  resources: [skill://{self.needs}/SKILL.md]")
        if self.word == "tea":
            lines.append("arguments:\n  - name: topic\n    enum: [one, two]")
        lines.append(f"---\n# About {self.word}\n\nSee [it](references/guide.md),")
        lines.append(f"[inner](inner/references/guide.md) and [z](z/{SKILL_MD}).\n")
        (folder / SKILL_MD).write_text("\n".join(lines), encoding="utf-8")
        (folder / "references" / "guide.md").write_text(f"guide of {self.path}\n", encoding="utf-8")
        if self.fault == "link":
            (folder / "away").symlink_to("/etc")
        if self.manifest:
            fields = TOML.format(version="1.2.3", name=self.manifest, word=self.word)
            (folder / "skill.toml").write_text(fields, encoding="utf-8")


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    """Draw skills that are nested, broken, shadowed, or have equal names."""
    places = draw(st.lists(st.tuples(st.sampled_from(PATHS), st.integers(0, 1)), min_size=1, max_size=9, unique=True))
    drawn: list[Sample] = []
    for path, root in places:
        name = draw(st.sampled_from([path.rpartition("/")[2]] * 4 + ["x", "beta", "Odd Name"]))
        word = draw(st.sampled_from(WORDS))
        fault = draw(st.sampled_from([""] * 5 + ["description", "yaml", "link"]))
        needs = draw(st.sampled_from([*PATHS, "x"]))
        manifest = draw(st.sampled_from(["", "", "acme.tool", f"acme.{path.replace('/', '-')}"]))
        drawn.append(Sample(path, root, name, word, fault, needs, manifest))
    return drawn


GRANTS = st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4)


def remove_ungranted(roots: Path, served: dict[str, int], patterns: Sequence[Pattern]) -> None:
    """Remove every skill that no pattern matches, except granted skills nested in it.

    `served` maps each path to the number of the root that serves it. Shadowed skills are removed too.
    """
    for number, root in enumerate((roots / "0", roots / "1")):
        skills = {found.parent.relative_to(root).as_posix() for found in root.rglob(SKILL_MD)}

        def is_withheld(folder: Path, root: Path = root, skills: set[str] = skills, number: int = number) -> bool:
            path = folder.relative_to(root).as_posix()
            owners = [skill for skill in skills if path == skill or path.startswith(f"{skill}/")]
            owner = max(owners, key=len, default="")
            if not owner:
                return False
            return served.get(owner) != number or not any(pattern.matches(owner) for pattern in patterns)

        for name, folders, files in os.walk(root, topdown=False):
            folder = Path(name)
            withheld = is_withheld(folder)
            for entry in (*files, *folders):
                if withheld and (entry in files or (folder / entry).is_symlink()):
                    (folder / entry).unlink()
            if folder != root and not any(folder.iterdir()) and (withheld or files or folders):
                folder.rmdir()  # it contained withheld files only


def client_requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield method and parameters of requests about every path of a sample, and absent ones."""
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
        for alias in {path, name}:
            yield "skills/get", {"name": alias, "arguments": {"topic": "one"}}
            yield "prompts/get", {"name": alias, "arguments": {"topic": "one"}}
            prompt = {"type": "ref/prompt", "name": alias}
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


REQUESTS = list(client_requests())


def messages_of(requests: Sequence[tuple[str, dict[str, Any]]], *, modern: bool) -> list[bytes]:
    """Return the messages of a client of one era that makes these requests."""
    if modern:
        meta: dict[str, Any] = {"_meta": MODERN_META}
        messages: list[dict[str, Any]] = [{"id": 0, "method": "server/discover", "params": meta}]
    else:
        meta = {}
        handshake = {**HELLO, "capabilities": {"extensions": {EXTENSION: {}}}}
        messages = [{"id": 0, "method": "initialize", "params": handshake}, {"method": "notifications/initialized"}]
    for id_, (method, params) in enumerate(requests, 1):
        messages.append({"id": id_, "method": method, "params": {**params, **meta}})
    return [json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages]


RUN_ID = re.compile(rb'"run_id":"[^"]*"')
"""The random part of an answer."""
SETTINGS = (Settings(page_size=2, prompt_page_size=2), Settings(dialect="sep-2640"), Settings(dialect="sep-2076"))


def answers_over_stdio(views: Views, chosen: Settings, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return the answers to the local user in both eras."""
    answers: list[str] = []
    for modern in (True, False):
        lines = messages_of(requests, modern=modern)
        answers += map(json.dumps, replies_to(lines, views.registry, chosen, patient=True, views=views))
    return answers


def answers_over_rpc(views: Views) -> list[bytes]:
    """Return the answers of the Skills Protocol to Ann."""
    rpc = Rpc(Methods(Runtime(views.registry), views=views))
    calls: list[tuple[str, dict[str, Any]]] = [("list_skills", {"limit": 2}), ("list_skills", {"detail": "full"})]
    calls += [("list_skills", {"namespace": namespace}) for namespace in ("acme", "team", "alpha")]
    for path in (*PATHS, *ABSENT):
        for name in (path.replace("/", "."), f"acme.{path.replace('/', '-')}", "acme.tool", "acme.tol"):
            calls.append(("describe_skill", {"name": name, "detail": "full"}))
            calls.append(("describe_skill", {"name": name, "version": "9.9.9"}))
            for inside in (f"inner/{SKILL_MD}", "references/gide.md"):
                calls.append(("read_skill_file", {"name": name, "path": inside}))
            calls.append(("execute_skill", {"name": name, "args": {}}))

    async def answer_all() -> list[bytes]:
        answers: list[bytes] = []
        for method, params in calls:
            call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            answer = await rpc.answer(call.encode(), Requester(principal=ANN))
            answers.append(RUN_ID.sub(b"", answer or b""))
        return answers

    return anyio.run(answer_all)


def published(views: Views, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return the ASGI messages to Ann for requests of these paths, without the `Vary` header."""

    def make(skill_set: Registry | FilteredSkills) -> Discovery:
        return Discovery(Publication(skill_set), set(), is_public=True)

    endpoint = DiscoveryByGrants(views, make)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        if "headers" in message:
            message["headers"] = [header for header in message["headers"] if header[0] != b"vary"]
        sent.append(dict(message))

    async def receive() -> Any:
        raise AssertionError

    async def request_all() -> None:
        for path in paths:
            scope = {"type": "http", "method": "GET", "path": path, "headers": [], REQUESTER: Requester(ANN)}
            await endpoint(scope, receive, send)

    anyio.run(request_all)
    return sent


def published_paths(registry: Registry) -> list[str]:
    """Return every path that discovery publishes without grants."""
    edition = Publication(registry).edition()
    old = [f"{DIRECTORY_0_1}{name}/{path}" for name in edition.older for path in edition.skills[name].skill.files]
    new = [published.artifact.path for published in edition.skills.values()]
    return [DIRECTORY + INDEX, DIRECTORY_0_1 + INDEX, *new, *old]


NESTED = [
    Sample("alpha", 0, "alpha", "tea", "", "alpha/inner", ""),
    Sample("alpha/inner", 0, "inner", "kettle", "link", "alpha", "acme.tool"),
    Sample("alpha/inner/core", 0, "core", "refunds", "", "alpha", ""),
    Sample("alpha", 1, "alpha", "reports", "description", "beta", ""),
]


def refuse_ungranted(patterns: Sequence[Pattern]) -> Gate:
    """Return a gate that refuses every skill that no pattern matches."""

    def gate(_: Registry, skill: Skill) -> GateRefusal | None:
        if any(pattern.matches(skill.path) for pattern in patterns):
            return None
        return GateRefusal(problem("switched-off", "no pattern matches it"))

    return gate


def is_search(request: tuple[str, dict[str, Any]]) -> bool:
    return request[1].get("name") == "skills_search"


@example(NESTED, ["alpha"], SETTINGS[0], REQUESTS)
@example([NESTED[0], NESTED[2]], ["alpha"], SETTINGS[0], REQUESTS)
@example(NESTED, ["alpha", "alpha/inner/core"], SETTINGS[0], REQUESTS)
@settings(max_examples=settings().max_examples // 5, phases=(Phase.explicit, Phase.generate))
@given(sample_lists(), GRANTS, st.sampled_from(SETTINGS), st.permutations(REQUESTS).map(lambda order: order[:80]))
def test_restricted_view_answers_like_a_server_with_only_granted_skills(
    samples: list[Sample], patterns: list[str], chosen: Settings, requests: list[tuple[str, dict[str, Any]]]
) -> None:
    granted = [Pattern(pattern) for pattern in patterns]
    grants = [Grant(("local", "token:ann"), tuple(granted)), Grant(("token:bob",), (Pattern("**"),))]
    searches = [request for request in requests if is_search(request)]
    requests = [request for request in requests if not is_search(request)]
    with forest(samples) as roots:
        whole = load_registry(*roots)
        paths = published_paths(whole)
        local, remote = (Views(whole, Grants(grants, local=is_local)) for is_local in (True, False))
        for answer in answers_over_stdio(local, chosen, searches):  # ranks depend on all skills
            listed = json.loads(answer)["result"].get("structuredContent", {}).get("skills", ())
            assert all(any(one.matches(skill["location"][8:-9]) for one in granted) for skill in listed)
        answers = answers_over_stdio(local, chosen, requests), answers_over_rpc(remote), published(remote, paths)
        remove_ungranted(roots[0].parent, served_by(whole), granted)
        part = Views(load_registry(*roots))
        assert answers == (answers_over_stdio(part, chosen, requests), answers_over_rpc(part), published(part, paths))


@example(NESTED, ["alpha"], SETTINGS[0], REQUESTS)
@example(NESTED, ["alpha", "alpha/inner/core"], SETTINGS[0], REQUESTS)
@settings(max_examples=settings().max_examples // 5, phases=(Phase.explicit, Phase.generate))
@given(sample_lists(), GRANTS, st.sampled_from(SETTINGS), st.permutations(REQUESTS).map(lambda order: order[:80]))
def test_gated_registry_answers_like_a_server_without_the_refused_skills(
    samples: list[Sample], patterns: list[str], chosen: Settings, requests: list[tuple[str, dict[str, Any]]]
) -> None:
    """A refused skill shadows none, unlike one without a grant."""
    granted = [Pattern(pattern) for pattern in patterns]
    with forest(samples) as roots:
        paths = published_paths(load_registry(*roots))
        with Registry(roots, gate=refuse_ungranted(granted)) as gated:
            views = Views(gated)
            answers = answers_over_stdio(views, chosen, requests), answers_over_rpc(views), published(views, paths)
            remove_ungranted(roots[0].parent, served_by(gated), granted)
        part = Views(load_registry(*roots))
        assert answers == (answers_over_stdio(part, chosen, requests), answers_over_rpc(part), published(part, paths))


@contextmanager
def forest(samples: Sequence[Sample]) -> Iterator[list[Path]]:
    """Write the samples into two roots."""
    with tempfile.TemporaryDirectory(prefix="views-") as folder:
        roots = [Path(folder, root) for root in ("0", "1")]
        for root in roots:
            root.mkdir()
        for sample in samples:
            sample.write(Path(folder))
        yield roots


def served_by(registry: Registry) -> dict[str, int]:
    return {path: skill.root for path, skill in registry.snapshot.skills.items()}
