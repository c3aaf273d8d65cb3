"""Every kind of source as the tests have it: how it publishes, how it goes away, and what an enemy may give it.

A new kind that fetches is a row in `KINDS`: it says how a tree of members is published, and gets all the cases.
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
from sources.oci.registries import Fake
from sources.publishers import INDEX, Publisher, Route, answer, digest, skill_md

SKILL_BYTES = 1 << 20
"""What a skill may have where a case is about too much."""


@dataclass(frozen=True)
class Member:
    """One entry of a skill: a "file", "symlink", "hardlink", "fifo" or "device"."""

    path: str
    raw: bytes = b"!"
    kind: str = "file"
    target: str = ""


@dataclass(frozen=True)
class Case:
    """A skill that brings what it must not, and words of its refusal.

    If `left_out`, a kind that `leaves_out` serves the skill without these members.
    """

    members: tuple[Member, ...]
    said: str
    left_out: bool = False


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
    "git folder": Case((Member(".git/config"),), ".git/config", left_out=True),
    "dot file": Case((Member(".envrc"),), ".envrc", left_out=True),
    "ours": Case((Member(".mcp-skills/skills/x.json"),), ".mcp-skills", left_out=True),
    "ignored name": Case((Member("node_modules/evil.js"),), "node_modules", left_out=True),
    "ignored below": Case((Member("scripts/__pycache__/evil.pyc"),), "__pycache__", left_out=True),
    "backup": Case((Member("evil.md~"),), "evil.md~", left_out=True),
}


def blocks_of(members: Sequence[Member], prefix: str) -> list[bytes]:
    """The blocks of a tar of these members and a SKILL.md, below a folder."""
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


def packed(members: Sequence[Member], prefix: str = "") -> bytes:
    return tar_gz(*blocks_of(members, prefix))


@dataclass
class Place:
    """A ROOT, and what publishes the skill `good` with a text there, and beside it `bad` with any members.

    `take_away` makes the source unreachable.
    """

    given: str
    publish: Callable[[str, Sequence[Member]], object]
    take_away: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class HostileKind:
    """How one kind takes part. `open` makes a place for it, below a folder.

    `http` installs a route as the answer to the first request and to that for the content.
    """

    open: Callable[[Path], AbstractContextManager[Place]]
    keeps_copy: bool = True  # in the cache, for the next process
    leaves_out: bool = False  # a skill comes without what is never served; otherwise such a skill is refused
    neighbours: bool = True  # `good` comes although `bad` does not
    words: bool = True  # a refusal has the words of `Case.said`
    without: frozenset[str] = frozenset()  # cases that its form cannot express
    program: str | None = None  # that must be there
    is_own: bool = False  # a library user has it, and no command
    http: dict[str, Callable[[Publisher, Route], str]] = field(default_factory=dict)


@contextmanager
def _archive(folder: Path) -> Iterator[Place]:
    path = folder / "skills.tar.gz"

    def publish(text: str, bad: Sequence[Member]) -> None:
        blocks = [block("good/SKILL.md", skill_md("good", text))]
        if bad:
            blocks += blocks_of(bad, "bad/")
        fresh = path.with_name("fresh")
        fresh.write_bytes(tar_gz(*blocks))
        fresh.replace(path)

    publish("first", ())
    yield Place(str(path), publish, lambda: path.write_bytes(b"no archive"))


@contextmanager
def _site(_: Path) -> Iterator[Place]:
    with Publisher() as site:

        def publish(text: str, bad: Sequence[Member]) -> None:
            site.entries.clear()
            site.add("good", skill_md("good", text))
            if bad:
                site.add("bad", packed(bad), type="archive")

        yield Place(site.url, publish, lambda: site.routes.update({INDEX: answer(b"", 503)}))


@contextmanager
def _oci(_: Path) -> Iterator[Place]:
    with Fake() as registry:

        def publish(text: str, bad: Sequence[Member]) -> None:
            skills = {"good": registry.skill("good", {"SKILL.md": skill_md("good", text)})}
            if bad:
                layer = registry.layer(packed(bad, "bad/"), manifests.CONTENT)
                skills["bad"] = registry.put(registry.manifest(layer))
            registry.collection(skills, "1.0")

        yield Place(registry.named(), publish, registry.routes.clear)


@contextmanager
def _git(folder: Path) -> Iterator[Place]:
    upstream = Upstream(folder / "upstream.git")

    def publish(text: str, bad: Sequence[Member]) -> None:
        files: dict[str, Content] = {"good/SKILL.md": skill_md("good", text)}
        if bad:
            files["bad/SKILL.md"] = skill_md("bad")
        for each in bad:
            files[f"bad/{each.path}"] = link(each.target) if each.kind == "symlink" else each.raw
        upstream.commit(files)

    yield Place(upstream.url, publish, lambda: shutil.rmtree(upstream.directory))


FAKE_SERVER = """
import json, os, sys, threading, time

def tell_changes():
    before = os.stat(sys.argv[1]).st_ino
    while True:
        time.sleep(0.02)
        if before != (before := os.stat(sys.argv[1]).st_ino):
            print('{"jsonrpc": "2.0", "method": "notifications/skills/list_changed"}', flush=True)

threading.Thread(target=tell_changes, daemon=True).start()
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
"""A server of 2025-11-25 that answers what a file has, and tells when the file is another."""
HELLO = {
    "protocolVersion": "2025-11-25",
    "serverInfo": {"name": "fake", "version": "1"},
    "capabilities": {"resources": {}, "extensions": {"io.modelcontextprotocol/skills": {}}},
}


def skills_of(text: str, bad: Sequence[Member]) -> dict[str, dict[str, bytes]]:
    """The files of `good`, and of `bad` if it has any."""
    skills = {"good": {"SKILL.md": skill_md("good", text)}}
    if bad:
        skills["bad"] = {"SKILL.md": skill_md("bad"), **{each.path: each.raw for each in bad}}
    return skills


def mcp_server(
    folder: Path, skills: Mapping[str, Mapping[str, bytes]], digests: Mapping[str, str] | None = None
) -> str:
    """A root that is an MCP server of these files by skill; `digests` replace the true ones by URI."""
    said: dict[str, object] = {"initialize": HELLO}
    entries: list[object] = []
    for name, files in skills.items():
        resources: list[object] = []
        for path, raw in files.items():
            uri = f"skill://{name}/{path}"
            resources.append({"uri": uri, "digest": (digests or {}).get(uri, digest(raw)), "size": len(raw)})
            said[uri] = {"contents": [{"uri": uri, "text": raw.decode()}]}
        about = frontmatter.parse(files["SKILL.md"]).frontmatter
        entries.append({"uri": f"skill://{name}/SKILL.md", "frontmatter": about, "resources": resources})
    said["skills/list"] = {"skills": entries}
    (folder / "fake.py").write_text(FAKE_SERVER, encoding="utf-8")
    (folder / "fresh.json").write_text(json.dumps(said), encoding="utf-8")
    (folder / "fresh.json").replace(folder / "answers.json")
    return "mcp+stdio:" + shlex.join([sys.executable, str(folder / "fake.py"), str(folder / "answers.json")])


@contextmanager
def _mcp(folder: Path) -> Iterator[Place]:
    given = mcp_server(folder, skills_of("first", ()))
    publish = lambda text, bad: mcp_server(folder, skills_of(text, bad))  # noqa: E731
    yield Place(given, publish, (folder / "fake.py").unlink)


@contextmanager
def _database(folder: Path) -> Iterator[Place]:
    file = folder / "skills.db"

    def publish(text: str, bad: Sequence[Member]) -> None:
        connection = sqlite3.connect(file)
        with connection:
            connection.execute(database_source.TABLE)
            connection.execute("delete from files")
            for name, files in skills_of(text, bad).items():
                rows = [(name, path, raw) for path, raw in files.items()]
                connection.executemany("insert into files values (?, ?, ?)", rows)
        connection.close()

    publish("first", ())
    yield Place(f"sqlite:{file}", publish, file.unlink)


_NO_FILES = frozenset({"link out", "link inside", "hard link", "pipe", "device"})


def _site_index(site: Publisher, route: Route) -> str:
    site.routes[INDEX] = route
    return site.url


def _site_content(site: Publisher, route: Route) -> str:
    site.add("bad", route=route)
    return site.url


def _oci_manifest(site: Publisher, route: Route) -> str:
    site.routes["/v2/team/skills/manifests/1.0"] = route
    return f"oci+http://127.0.0.1:{site.port}/team/skills:1.0"


def _oci_blob(site: Publisher, route: Route) -> str:
    assert isinstance(site, Fake)
    raw = packed(())
    layer = site.layer(raw, manifests.CONTENT)
    site.blob(raw, route)
    site.put(site.manifest(layer), "1.0")
    return site.named()


KINDS = {
    "database": HostileKind(_database, words=False, without=_NO_FILES, is_own=True),  # the quickest first
    "archive": HostileKind(_archive, keeps_copy=False, leaves_out=True, neighbours=False),
    "site": HostileKind(_site, http={"index": _site_index, "content": _site_content}),
    "oci": HostileKind(_oci, http={"index": _oci_manifest, "content": _oci_blob}),
    "git": HostileKind(
        _git, leaves_out=True, program="git", without=frozenset({"absolute", "hard link", "pipe", "device", "drive"})
    ),
    "mcp": HostileKind(_mcp, words=False, without=_NO_FILES | {"bomb"}),  # nothing is packed on its way
}

every_kind = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.needs_program(kind.program)] if kind.program else [])
        for name, kind in KINDS.items()
    ],
)
