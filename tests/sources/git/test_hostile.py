"""What an enemy may put into a repository, and answer as its server: it is not written, and other skills come."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from mcp_skills_server.sources.source import (
    Bounds,
    FetchLimits,
    FetchSettings,
    SourceError,
    UnacceptableError,
    UnreachableError,
)
from sources.git.remotes import SUBMODULE, Content, GitServer, Upstream, link, skill
from sources.git.test_source import ALL, files, opened, refresh
from sources.publishers import skill_md
from tables import each_row
from wire import DEADLINE

pytestmark = pytest.mark.needs_program("git")
GOOD = skill("good")

HOSTILE: dict[str, tuple[dict[str, Content], str]] = {
    "SKILL.md is a link": (
        {"skills/bad/SKILL.md": link("/etc/passwd"), "skills/bad/x": b""},
        "'SKILL.md' is a symbolic link",
    ),
    "a submodule": (skill("bad", sub=SUBMODULE), "'sub' is a submodule"),
    "too many files": (skill("bad", **{f"f{number}": b"" for number in range(1001)}), "more than 1000 files"),
    "too large a file": (skill("bad", big=bytes((16 << 20) + 1)), "has 16777217 bytes"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_skill_is_left_out_alone(
    what: str, upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content, reason = HOSTILE[what]
    upstream.commit({**GOOD, **content})
    for follower in (
        opened(upstream.url, tmp_path),
        opened(upstream.url, tmp_path),
    ):  # the second one knows it from before
        caplog.clear()
        refresh(follower)
        assert files(follower) == ["skills/good/SKILL.md"]
        assert f"skills/bad: {reason}" in caplog.text or (reason in caplog.text and "skills/bad: " in caplog.text)


def test_a_skill_that_is_good_again_comes_back(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit({**GOOD, **HOSTILE["a submodule"][0]})
    follower = opened(upstream.url, tmp_path)
    refresh(follower)
    upstream.commit({**GOOD, **skill("bad")})
    refresh(follower)
    assert files(follower) == ["skills/bad/SKILL.md", "skills/good/SKILL.md"]


def test_ignored_names_are_never_written(upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upstream.commit(
        {
            **skill("alpha", **{".envrc": b"evil", ".vscode/settings.json": b"{}", "a": b""}),
            "skills/alpha/node_modules/x.js": b"",
            ".claude/skills/hidden/SKILL.md": skill_md("hidden"),
        }
    )
    follower = opened(upstream.url, tmp_path)
    refresh(follower)
    assert files(follower) == ["skills/alpha/SKILL.md", "skills/alpha/a"]
    assert "left out what is never served: .envrc, .vscode/settings.json, node_modules/x.js" in caplog.text
    assert "(.claude/skills/hidden); --hidden serves them" in caplog.text
    shown = opened(upstream.url, tmp_path, hidden=True)
    refresh(shown)
    assert ".claude/skills/hidden/SKILL.md" in files(shown)


def _tricks(upstream: Upstream) -> Iterator[str]:
    """Trees that git itself would not make."""
    evil, good = upstream.blob(b"evil"), upstream.blob(skill_md("bad"))
    bad = {b"SKILL.md": ("100644", good)}
    for name in (b"..", b".git", b"../../evil", b"/etc/evil", b"."):
        inner = upstream.tree({**bad, name: ("100644", evil)})
        yield upstream.tree({b"bad": ("40000", inner)})
        outer = upstream.tree(bad)
        yield upstream.tree({name: ("40000", outer)})
    twice = upstream.git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", given=_twice(good, evil))
    yield upstream.tree({b"bad": ("40000", twice)})


def _twice(good: str, evil: str) -> bytes:
    return b"".join(
        b"100644 " + name + b"\0" + bytes.fromhex(it) for name, it in ((b"SKILL.md", good), (b"x", evil), (b"x", good))
    )


def test_names_that_lead_out_of_the_folder_are_never_written(upstream: Upstream, tmp_path: Path) -> None:
    for number, tree in enumerate(_tricks(upstream)):
        upstream.commit_tree(tree)
        inside = tmp_path / "cache" / str(number)
        follower = opened(upstream.url, inside)
        try:
            refresh(follower)
        except SourceError:
            continue
        assert set(files(follower)) <= {"bad/SKILL.md", "SKILL.md"}
        assert not list(inside.rglob("evil*"))
        assert not (tmp_path / "evil").exists() and not Path("/etc/evil").exists()


def test_a_bomb_of_trees_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    tree = upstream.tree({b"SKILL.md": ("100644", upstream.blob(b"---"))})
    for _ in range(9):
        tree = upstream.tree({bytes([97 + number]): ("40000", tree) for number in range(20)})
    upstream.commit_tree(tree)
    limits = FetchSettings(limits=FetchLimits(total_s=20))
    with pytest.raises((UnacceptableError, UnreachableError), match=r"too many files|no answer"):
        refresh(opened(upstream.url, tmp_path, fetch=limits))


def test_nothing_of_a_repository_or_of_the_environment_is_run(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_configuration: Path
) -> None:
    ran = tmp_path / "ran"
    upstream.commit(
        {
            **skill("alpha"),
            ".gitattributes": b"* filter=x\n",
            "skills/alpha/.gitattributes": b"* filter=x\n",
            ".gitmodules": f'[submodule "x"]\n\tpath = x\n\turl = ext::touch {ran}\n\tupdate = !touch {ran}\n'.encode(),
            "x": SUBMODULE,
        }
    )
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    script.chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction", "pre-auto-gc", "post-index-change"):
        (hooks / name).write_text(script.read_text())
        (hooks / name).chmod(0o755)
    own_configuration.write_text(
        f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = {script}\n\taskPass = {script}\n"
        f'[filter "x"]\n\tsmudge = {script}\n\trequired = true\n[protocol "ext"]\n\tallow = always\n'
        "[transfer]\n\tunpackLimit = 1\n[submodule]\n\trecurse = true\n"
    )
    for name in ("GIT_SSH", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_EXTERNAL_DIFF", "GIT_PROXY_COMMAND"):
        monkeypatch.setenv(name, str(script))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    follower = opened(upstream.url, tmp_path)
    refresh(follower)
    assert files(follower) == ["skills/alpha/SKILL.md"]
    assert not ran.exists() and not (tmp_path / "trace").exists()


def test_a_rewritten_address_speaks_no_other_protocol(
    upstream: Upstream, tmp_path: Path, own_configuration: Path
) -> None:
    ran = tmp_path / "ran"
    own_configuration.write_text(
        f'[url "ext::sh -c touch% {ran}% "]\n\tinsteadOf = file://\n[protocol]\n\tallow = always\n'
    )
    with pytest.raises(UnreachableError, match="another protocol"):
        refresh(opened(upstream.url, tmp_path))
    assert not ran.exists()


@pytest.mark.parametrize("status", [301, 302, 307])
def test_redirects_are_not_followed(status: int, server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    with GitServer(upstream.directory.parent) as elsewhere:
        server.instead = lambda path: (status, f"http://127.0.0.1:{elsewhere.port}{path}")
        with pytest.raises(UnreachableError, match="it is elsewhere"):
            refresh(opened(f"{server.url}/acme.git", tmp_path))
        assert not elsewhere.asked
        server.instead = lambda _: None
        follower = opened(f"{server.url}/acme.git", tmp_path)
        refresh(follower)
        server.instead = lambda path: (status, f"http://127.0.0.1:{elsewhere.port}{path}")
        with pytest.raises(UnreachableError, match="it is elsewhere"):
            refresh(follower)
        assert files(follower) == ALL and not elsewhere.asked


def said(lines: Callable[[], Iterator[bytes]]) -> Iterator[int]:
    """The port of a server that answers every connection with this, until the other end goes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                for piece in lines():
                    connection.sendall(piece)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()[1]
    listening.close()


def _packet(raw: bytes) -> bytes:
    return b"%04x" % (len(raw) + 4) + raw


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n"


def _endless_refs() -> Iterator[bytes]:
    yield HEAD + _packet(b"# service=git-upload-pack\n") + b"0000"
    number = 0
    while True:
        number += 1
        yield b"".join(_packet(b"%040x refs/heads/b%d-%d\n" % (number, number, each)) for each in range(1000))


def _endless_bytes() -> Iterator[bytes]:
    yield HEAD
    while True:
        yield bytes(1 << 16)


def silence() -> Iterator[bytes]:
    yield b""
    threading.Event().wait(30)


@each_row("answers", [_endless_refs, _endless_bytes, silence])
def test_a_server_that_never_ends_is_left(answers: Callable[[], Iterator[bytes]], tmp_path: Path) -> None:
    bounds = FetchSettings(bounds=Bounds(download_s=2))
    for port in said(answers):
        follower = opened(f"git+http://127.0.0.1:{port}/a.git", tmp_path, fetch=bounds)
        with pytest.raises(UnreachableError) as failed:
            refresh(follower)
        assert "\n" not in str(failed.value)


def test_a_text_that_is_no_git_is_one_line(tmp_path: Path) -> None:
    def page() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nContent-Type: text/html\r\n\r\n<html>"

    for port in said(page):
        with pytest.raises(SourceError) as failed:
            refresh(opened(f"git+http://127.0.0.1:{port}/a.git", tmp_path))
        assert "\n" not in str(failed.value) and "no repository" in str(failed.value)


def test_what_the_server_says_is_printable_and_short(tmp_path: Path, upstream: Upstream, server: GitServer) -> None:
    hook = upstream.directory / "evil"
    hook.write_text(
        "#!/bin/sh\nprintf 'ERR evil \\033[31m%s\\n' \"$(head -c 5000 /dev/zero | tr '\\0' x)\" >&2\nexit 1\n"
    )
    server.instead = lambda _: (500, "\x1b[31mevil" * 100)
    with pytest.raises(UnreachableError) as failed:
        refresh(opened(f"{server.url}/acme.git", tmp_path))
    assert str(failed.value).isprintable() and len(str(failed.value)) < 400


def test_the_process_group_of_git_is_gone_after_a_timeout(tmp_path: Path) -> None:
    bounds = FetchSettings(bounds=Bounds(download_s=1))
    for port in said(silence):
        with pytest.raises(UnreachableError):
            refresh(opened(f"git+http://127.0.0.1:{port}/a.git", tmp_path, fetch=bounds))
        until = monotonic() + DEADLINE  # a busy machine takes a moment to end what was killed
        while f"127.0.0.1:{port}/a.git" in subprocess.check_output(["ps", "-eo", "args"], text=True):
            assert monotonic() < until
