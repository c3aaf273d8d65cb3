"""Upstream git repositories, and an HTTP server of them with `git http-backend`."""

from __future__ import annotations

import base64
import hashlib
import ssl
import subprocess
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mcp_skills_server.sources.mirrors import Follower
from sources.fetching import read_tree
from sources.publishers import Publisher, ReceivedRequest, redirect, respond_with, skill_md
from wire import DEADLINE

CLOCK = 1_700_000_000
"""Time of the first commit, in seconds since the epoch; each further one is a minute later."""


@dataclass(frozen=True)
class SpecialEntry:
    """A symlink with its target as content, or a submodule with its commit."""

    mode: str
    content: str


Content = bytes | tuple[bytes, bool] | SpecialEntry


def link(target: str) -> SpecialEntry:
    return SpecialEntry("120000", target)


SUBMODULE = SpecialEntry("160000", "1" * 40)


def skill(name: str, body: str = "Read on.", folder: str = "skills/", **files: Content) -> dict[str, Content]:
    """Return the files of a skill, given as `references__guide_md=b"..."`."""
    out: dict[str, Content] = {f"{folder}{name}/SKILL.md": skill_md(name, body)}
    for spelled, raw in files.items():
        path = spelled.replace("__", "/").replace("_", ".")
        out[f"{folder}{name}/{path}"] = raw
    return out


BASE = {
    **skill("alpha", references__guide_md=b"guide\n", scripts__run_sh=(b"#!/bin/sh\n", True)),
    **skill("beta"),
    "README.md": b"outside\n",
    ".github/workflows/x.yml": b"outside\n",
    "src/large.bin": bytes(100_000),
}
SKILL_PATHS = [
    "skills/alpha/SKILL.md",
    "skills/alpha/references/guide.md",
    "skills/alpha/scripts/run.sh",
    "skills/beta/SKILL.md",
]
"""The paths of `BASE` that are fetched."""


HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n"


def packet(raw: bytes) -> bytes:
    return b"%04x" % (len(raw) + 4) + raw


ADVERTISEMENT = HEADERS + packet(b"# service=git-upload-pack\n") + b"0000"
"""The beginning of a response of a git server, before its refs."""


def served_paths(follower: Follower) -> list[str]:
    return [path for path, content in read_tree(follower.path).items() if content != "directory"]


def wait_for_git_to_end(port: int) -> None:
    """Wait for the end of git, which notices its closed pipe late on a busy machine."""
    deadline = time.monotonic() + DEADLINE
    while is_git_running(port):
        assert time.monotonic() < deadline


def is_git_running(port: int) -> bool:
    """Tell whether a git connects to this port, which the server's command line names too."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    lines = [line for line in listed.splitlines() if f"127.0.0.1:{port}/a.git" in line]
    return any("mcp_skills_server" not in line for line in lines)


class TreeItem(NamedTuple):
    """An entry of a tree, also with a name that git would refuse."""

    name: bytes
    mode: str
    object_id: str


class Upstream:
    """A bare upstream repository. Its objects are written directly, so that trees may be malformed."""

    def __init__(self, directory: Path, *, filters: bool = True, object_format: str = "sha1") -> None:
        self.directory = directory
        self._object_format = object_format
        self._commits = 0
        init = ["git", "init", "--quiet", "--bare", "--initial-branch=main", f"--object-format={object_format}"]
        subprocess.run([*init, str(directory)], check=True, timeout=20)
        self.git("config", "uploadpack.allowFilter", str(filters).lower())

    @property
    def url(self) -> str:
        return f"git+file://{self.directory}"

    def git(self, *arguments: str, given: bytes = b"") -> str:
        """Run a git command, and return its stdout."""
        words = ["git", f"--git-dir={self.directory}", *arguments]
        done = subprocess.run(words, input=given, stdout=subprocess.PIPE, check=True, timeout=30)
        return done.stdout.decode().strip()

    def commit(
        self, files: Mapping[str, Content], branch: str = "main", *, parent: str | None = None, orphan: bool = False
    ) -> str:
        """Commit exactly these files, and return the id. The default parent is the branch's tip."""
        return self.commit_tree(self.tree(files), branch, parent=parent, orphan=orphan)

    def commit_tree(self, tree: str, branch: str = "main", *, parent: str | None = None, orphan: bool = False) -> str:
        """Commit a tree, and return the id."""
        ref = branch if branch.startswith("refs/") else f"refs/heads/{branch}"
        self._commits += 1
        tip = ""
        if not orphan:
            tip = self.git("for-each-ref", "--format=%(objectname)", parent or ref)
        parents = f"parent {tip}\n" if tip else ""
        person = f"n <n@example.com> {CLOCK + 60 * self._commits} +0000"
        commit = self._object("commit", f"tree {tree}\n{parents}author {person}\ncommitter {person}\n\nchange".encode())
        self.git("update-ref", ref, commit)
        return commit

    def tree(self, files: Mapping[str, Content]) -> str:
        """Write a tree of these files by path, and return its id."""
        items: list[TreeItem] = []
        below: dict[str, dict[str, Content]] = {}
        for path, content in files.items():
            name, deeper, rest = path.partition("/")
            if deeper:
                below.setdefault(name, {})[rest] = content
            elif content is SUBMODULE:
                items.append(TreeItem(name.encode(), SUBMODULE.mode, SUBMODULE.content))
            elif isinstance(content, SpecialEntry):
                items.append(TreeItem(name.encode(), content.mode, self.blob(content.content.encode())))
            else:
                raw, executable = content if isinstance(content, tuple) else (content, False)
                items.append(TreeItem(name.encode(), "100755" if executable else "100644", self.blob(raw)))
        items += [TreeItem(name.encode(), "40000", self.tree(inner)) for name, inner in below.items()]
        return self.tree_of(sorted(items, key=lambda item: item.name + b"/" * (item.mode == "40000")))

    def tree_of(self, items: Iterable[TreeItem]) -> str:
        """Write a tree of these entries in this order, and return its id."""
        raw = [f"{it.mode} ".encode() + it.name + b"\0" + bytes.fromhex(it.object_id) for it in items]
        return self._object("tree", b"".join(raw))

    def blob(self, raw: bytes) -> str:
        return self._object("blob", raw)

    def _object(self, kind: str, raw: bytes) -> str:
        whole = f"{kind} {len(raw)}\0".encode() + raw
        name = hashlib.new(self._object_format, whole).hexdigest()
        place = self.directory / "objects" / name[:2] / name[2:]
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(zlib.compress(whole, 1))
        return name


class GitServer(Publisher):
    """An HTTP server of the repositories below a folder; a password is required of the user `reader`.

    `redirect_for` returns the status and location of a redirect for a path.
    """

    def __init__(self, folder: Path, *, password: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self._folder = folder
        self._password = password
        self.redirect_for: Callable[[str], tuple[int, str]] | None = None

    @property
    def url(self) -> str:
        return f"git+{super().url}"

    def _route(self, request: ReceivedRequest) -> bytes:
        if self.redirect_for is not None:
            status, location = self.redirect_for(request.path)
            return redirect(location, status)
        expected = base64.b64encode(f"reader:{self._password}".encode()).decode()
        if self._password is not None and request.headers.get("authorization") != f"Basic {expected}":
            return respond_with(b"", 401, www_authenticate='Basic realm="git"')
        path, _, query = request.path.partition("?")
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "GIT_PROJECT_ROOT": str(self._folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": str(self._folder),
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": request.method,
            "REMOTE_ADDR": "127.0.0.1",
            "REMOTE_USER": "reader",
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(request.body)),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "HTTP_GIT_PROTOCOL": request.headers.get("git-protocol", ""),
        }
        done = subprocess.run(
            ["git", "http-backend"],
            input=request.body,
            env=environment,
            stdout=subprocess.PIPE,
            check=False,
            timeout=60,
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n") if ": " in line)
        status = int(headers.pop("Status", "200").split()[0])
        return respond_with(content, status, **headers)
