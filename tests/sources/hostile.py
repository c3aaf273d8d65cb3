"""Hostile skills, and a publisher of each kind of source that publishes them.

A new kind of source is a row in `KINDS`, and is then tested with all cases.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from examples import database_source

from format.archives import block, pax, tar_gz
from mcp_skills_server.format import frontmatter
from mcp_skills_server.sources.oci import manifests
from sources.git.remotes import Content, Upstream, link
from sources.oci.registries import FakeRegistry
from sources.publishers import INDEX, Publisher, Route, digest, respond_with, skill_md

MAX_SKILL_BYTES = 1 << 20
"""Limit of a skill in all cases."""


@dataclass(frozen=True)
class Member:
    """One entry of a skill: a "file", "symlink", "hardlink", "fifo" or "device"."""

    path: str
    raw: bytes = b"!"
    kind: str = "file"
    target: str = ""


@dataclass(frozen=True)
class Case:
    """Forbidden members of a skill, and the reason for its refusal.

    If `is_omitted`, a kind that `omits_ignored` serves the skill without these members.
    """

    members: tuple[Member, ...]
    reason: str
    is_omitted: bool = False


CASES = {
    "traversal": Case((Member("../evil"),), "leads out of the skill"),
    "traversal inside": Case((Member("a/../../evil"),), "leads out of the skill"),
    "absolute": Case((Member("/evil"),), "is absolute"),
    "drive": Case((Member("C:/evil"),), "begins with a drive letter"),
    "backslash": Case((Member("..\\evil"),), "holds a backslash"),
    "control character": Case((Member("a\x1b[31m.md"),), "holds a control character"),
    "link out": Case((Member("evil", kind="symlink", target="/etc/passwd"),), "is a symbolic link"),
    "link inside": Case((Member("evil", kind="symlink", target="SKILL.md"),), "is a symbolic link"),
    "hard link": Case((Member("evil", kind="hardlink", target="SKILL.md"),), "is a hard link"),
    "pipe": Case((Member("evil", kind="fifo"),), "is a named pipe"),
    "device": Case((Member("evil", kind="device"),), "is a device"),
    "bomb": Case((Member("evil", bytes(8 << 20)),), "unpack"),
    "too deep": Case((Member("/".join("d" * 40) + "/evil"),), "levels deep"),
    "name too long": Case((Member("n" * 300),), "is too long"),
    "case collision": Case((Member("Evil.md"), Member("evil.md")), "cannot tell it from"),
    "Unicode collision": Case((Member("\u00e9.md"), Member("e\u0301.md")), "cannot tell it from"),
    "file and directory": Case((Member("evil"), Member("evil/evil")), "both a file and a directory"),
    "name of a device of Windows": Case((Member("aux.md"),), "Windows cannot hold the name"),
    "invisible name": Case((Member("ev\u200bil.md"),), "invisible character"),
    "git folder": Case((Member(".git/config"),), ".git/config", is_omitted=True),
    "dot file": Case((Member(".envrc"),), ".envrc", is_omitted=True),
    "fetch records": Case((Member(".mcp-skills/skills/x.json"),), ".mcp-skills", is_omitted=True),
    "ignored name": Case((Member("node_modules/evil.js"),), "node_modules", is_omitted=True),
    "ignored below": Case((Member("scripts/__pycache__/evil.pyc"),), "__pycache__", is_omitted=True),
    "backup": Case((Member("evil.md~"),), "evil.md~", is_omitted=True),
}


def tar_blocks(members: Sequence[Member], prefix: str) -> list[bytes]:
    """Return the tar blocks of a skill with these members, below a folder."""
    kinds = {"file": b"0", "hardlink": b"1", "symlink": b"2", "device": b"3", "fifo": b"6"}
    blocks = [block(f"{prefix}SKILL.md", skill_md("bad"))]
    for each in members:
        path = each.path if each.path.startswith(("/", "C:")) else prefix + each.path
        if len(path.encode()) > 99 or not path.isascii():
            blocks.append(pax(path=path))
            path = "named-before"
        raw = each.raw if each.kind == "file" else b""
        blocks.append(block(path, raw, kinds[each.kind], link=each.target.encode()))
    return blocks


def pack_members(members: Sequence[Member], prefix: str = "") -> bytes:
    return tar_gz(*tar_blocks(members, prefix))


@dataclass
class PublishedSource:
    """A source with its root `given`.

    `publish` takes the body of the skill `good` and the members of the skill `bad`; without members
    there is no `bad`. `make_unreachable` ends its service.
    """

    given: str
    publish: Callable[[str, Sequence[Member]], object]
    make_unreachable: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class KindUnderTest:
    """A kind of source under test. `open` creates a source below a folder.

    Each of `http_roots` installs a route as the response to one request, and returns the root.
    """

    open: Callable[[Path], AbstractContextManager[PublishedSource]]
    keeps_copy: bool = True  # in the cache, for the next process
    omits_ignored: bool = False  # serves a skill without never-served files, else refuses it
    is_per_skill: bool = True  # `good` is updated although `bad` is refused
    reports_reason: bool = True  # a refusal has `Case.reason`
    inexpressible: frozenset[str] = frozenset()  # cases that its format cannot express
    program: str | None = None  # that must be installed
    is_own: bool = False  # only for library users, not for commands
    http_roots: dict[str, Callable[[FakeRegistry, Route], str]] = field(default_factory=dict)


@contextmanager
def _archive(folder: Path) -> Iterator[PublishedSource]:
    path = folder / "skills.tar.gz"

    def publish(text: str, bad: Sequence[Member]) -> None:
        blocks = [block("good/SKILL.md", skill_md("good", text))]
        if bad:
            blocks += tar_blocks(bad, "bad/")
        fresh = path.with_name("fresh")
        fresh.write_bytes(tar_gz(*blocks))
        fresh.replace(path)

    publish("first", ())
    yield PublishedSource(str(path), publish, lambda: path.write_bytes(b"no archive"))


@contextmanager
def _site(_: Path) -> Iterator[PublishedSource]:
    with Publisher() as site:

        def publish(text: str, bad: Sequence[Member]) -> None:
            site.entries.clear()
            site.add("good", skill_md("good", text))
            if bad:
                site.add("bad", pack_members(bad), type="archive")

        yield PublishedSource(site.url, publish, lambda: site.routes.update({INDEX: respond_with(b"", 503)}))


@contextmanager
def _oci(_: Path) -> Iterator[PublishedSource]:
    with FakeRegistry() as registry:

        def publish(text: str, bad: Sequence[Member]) -> None:
            skills = {"good": registry.skill("good", {"SKILL.md": skill_md("good", text)})}
            if bad:
                layer = registry.layer(pack_members(bad, "bad/"), manifests.CONTENT)
                skills["bad"] = registry.put(registry.manifest(layer))
            registry.collection(skills, "1.0")

        yield PublishedSource(registry.named(), publish, registry.routes.clear)


@contextmanager
def _git(folder: Path) -> Iterator[PublishedSource]:
    upstream = Upstream(folder / "upstream.git")

    def publish(text: str, bad: Sequence[Member]) -> None:
        files: dict[str, Content] = {"good/SKILL.md": skill_md("good", text)}
        if bad:
            files["bad/SKILL.md"] = skill_md("bad")
        for each in bad:
            files[f"bad/{each.path}"] = link(each.target) if each.kind == "symlink" else each.raw
        upstream.commit(files)

    yield PublishedSource(upstream.url, publish, lambda: shutil.rmtree(upstream.directory))


FAKE_SERVER = """
import json, os, sys, threading, time

def announce_changes():
    before = os.stat(sys.argv[1]).st_ino
    while True:
        time.sleep(0.02)
        if before != (before := os.stat(sys.argv[1]).st_ino):
            print('{"jsonrpc": "2.0", "method": "notifications/skills/list_changed"}', flush=True)

threading.Thread(target=announce_changes, daemon=True).start()
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answers = json.load(open(sys.argv[1]))
    key = message["params"].get("uri") if message["method"] == "resources/read" else message["method"]
    out = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no such method"}}
    if key in answers:
        del out["error"]
        out["result"] = answers[key]
    print(json.dumps(out), flush=True)
"""
"""A server of 2025-11-25 that sends the responses in a file, and announces changes of the file."""
INITIALIZE_RESULT = {
    "protocolVersion": "2025-11-25",
    "serverInfo": {"name": "fake", "version": "1"},
    "capabilities": {"resources": {}, "extensions": {"io.modelcontextprotocol/skills": {}}},
}


def skill_files(text: str, bad: Sequence[Member]) -> dict[str, dict[str, bytes]]:
    """Return the files by skill: those of `good`, and those of `bad` if it has members."""
    skills = {"good": {"SKILL.md": skill_md("good", text)}}
    if bad:
        skills["bad"] = {"SKILL.md": skill_md("bad"), **{each.path: each.raw for each in bad}}
    return skills


def mcp_server(
    folder: Path, skills: Mapping[str, Mapping[str, bytes]], digests: Mapping[str, str] | None = None
) -> str:
    """Return the root of an MCP server with these files by skill; `digests` by URI may be false."""
    responses: dict[str, object] = {"initialize": INITIALIZE_RESULT}
    entries: list[object] = []
    for name, files in skills.items():
        resources: list[object] = []
        for path, raw in files.items():
            uri = f"skill://{name}/{path}"
            resources.append({"uri": uri, "digest": (digests or {}).get(uri, digest(raw)), "size": len(raw)})
            responses[uri] = {"contents": [{"uri": uri, "text": raw.decode()}]}
        about = frontmatter.parse(files["SKILL.md"]).frontmatter
        entries.append({"uri": f"skill://{name}/SKILL.md", "frontmatter": about, "resources": resources})
    responses["skills/list"] = {"skills": entries}
    (folder / "fake.py").write_text(FAKE_SERVER, encoding="utf-8")
    (folder / "fresh.json").write_text(json.dumps(responses), encoding="utf-8")
    (folder / "fresh.json").replace(folder / "answers.json")
    return "mcp+stdio:" + shlex.join([sys.executable, str(folder / "fake.py"), str(folder / "answers.json")])


@contextmanager
def _mcp(folder: Path) -> Iterator[PublishedSource]:
    given = mcp_server(folder, skill_files("first", ()))

    def publish(text: str, bad: Sequence[Member]) -> None:
        mcp_server(folder, skill_files(text, bad))

    yield PublishedSource(given, publish, (folder / "fake.py").unlink)


@contextmanager
def _database(folder: Path) -> Iterator[PublishedSource]:
    file = folder / "skills.db"

    def publish(text: str, bad: Sequence[Member]) -> None:
        connection = sqlite3.connect(file)
        with connection:
            connection.execute(database_source.TABLE)
            connection.execute("delete from files")
            for name, files in skill_files(text, bad).items():
                rows = [(name, path, raw) for path, raw in files.items()]
                connection.executemany("insert into files values (?, ?, ?)", rows)
        connection.close()

    publish("first", ())
    yield PublishedSource(f"sqlite:{file}", publish, file.unlink)


_SPECIAL_FILES = frozenset({"link out", "link inside", "hard link", "pipe", "device"})


def _site_index(site: FakeRegistry, route: Route) -> str:
    site.routes[INDEX] = route
    return site.url


def _site_content(site: FakeRegistry, route: Route) -> str:
    site.add("bad", route=route)
    return site.url


def _oci_manifest(site: FakeRegistry, route: Route) -> str:
    site.routes["/v2/team/skills/manifests/1.0"] = route
    return site.named()


def _oci_blob(site: FakeRegistry, route: Route) -> str:
    raw = pack_members(())
    layer = site.layer(raw, manifests.CONTENT)
    site.blob(raw, route)
    site.put(site.manifest(layer), "1.0")
    return site.named()


KINDS = {
    "database": KindUnderTest(_database, reports_reason=False, inexpressible=_SPECIAL_FILES, is_own=True),
    "archive": KindUnderTest(_archive, keeps_copy=False, omits_ignored=True, is_per_skill=False),
    "site": KindUnderTest(_site, http_roots={"index": _site_index, "content": _site_content}),
    "oci": KindUnderTest(_oci, http_roots={"index": _oci_manifest, "content": _oci_blob}),
    "git": KindUnderTest(
        _git,
        omits_ignored=True,
        program="git",
        inexpressible=frozenset({"absolute", "hard link", "pipe", "device", "drive"}),
    ),
    # nothing is compressed, so there is no bomb
    "mcp": KindUnderTest(_mcp, reports_reason=False, inexpressible=_SPECIAL_FILES | {"bomb"}),
}

every_kind = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.needs_program(kind.program)] if kind.program else [])
        for name, kind in KINDS.items()
    ],
)
