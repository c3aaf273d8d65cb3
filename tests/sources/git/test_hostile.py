"""Hostile git repositories and servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.source import (
    Bounds,
    FetchLimits,
    FetchSettings,
    SourceError,
    UnacceptableError,
    UnreachableError,
)
from sources.fetching import cache_option, fetch_to_cache, open_follower, run_command
from sources.git.remotes import (
    ADVERTISEMENT,
    HEADERS,
    SKILL_PATHS,
    SUBMODULE,
    GitServer,
    TreeItem,
    Upstream,
    link,
    packet,
    served_paths,
    skill,
    wait_for_git_to_end,
)
from sources.publishers import Publisher, Route, endless, respond_and_close, respond_with, skill_md
from tables import each_row

pytestmark = pytest.mark.needs_program("git")


def test_bad_skill_refuses_no_other(upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upstream.commit(
        {
            **skill("good"),
            "skills/linked/SKILL.md": link("/etc/passwd"),
            "skills/linked/x": b"",
            **skill("within", sub=SUBMODULE),
            **skill("many", **{f"f{number}": b"" for number in range(1001)}),
            **skill("large", big=bytes((16 << 20) + 1)),
        }
    )
    for _ in range(2):  # the second fetch reads the recorded refusals
        caplog.clear()
        assert served_paths(fetch_to_cache(upstream.url, tmp_path)) == ["skills/good/SKILL.md"]
        for reason in (
            "skills/linked: 'SKILL.md' is a symbolic link",
            "skills/within: 'sub' is a submodule",
            "more than 1000 files",
            "has 16777217 bytes",
        ):
            assert reason in caplog.text


def test_links_and_submodules_beside_skills_are_named(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    special = {"skills/again": link("alpha"), "vendor/sub": SUBMODULE, ".agents/skills": link("../skills")}
    upstream.commit({**skill("alpha"), **special})
    line = "links and submodules are not fetched (skills/again, vendor/sub); give what they lead to as a ROOT"
    for _ in range(2):  # the second fetch reads the recorded warning
        caplog.clear()
        assert served_paths(fetch_to_cache(upstream.url, tmp_path)) == ["skills/alpha/SKILL.md"]
        assert caplog.text.count(line) == 1
    assert line in run_command("list", upstream.url, *cache_option(tmp_path)).stderr


def test_skill_in_dot_folder_is_reported(upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upstream.commit({**skill("alpha"), ".claude/skills/hidden/SKILL.md": skill_md("hidden")})
    assert served_paths(fetch_to_cache(upstream.url, tmp_path)) == ["skills/alpha/SKILL.md"]
    assert "(.claude/skills/hidden); --hidden serves them" in caplog.text
    assert ".claude/skills/hidden/SKILL.md" in served_paths(fetch_to_cache(upstream.url, tmp_path, hidden=True))


def _malformed_trees(upstream: Upstream) -> Iterator[str]:
    """Yield trees that git itself would not write."""
    skill_file = TreeItem(b"SKILL.md", "100644", upstream.blob(skill_md("bad")))
    evil = upstream.blob(b"evil")
    for name in (b"..", b".git", b"../../evil", b"/etc/evil", b"."):
        inner = upstream.tree_of([skill_file, TreeItem(name, "100644", evil)])
        yield upstream.tree_of([TreeItem(b"bad", "40000", inner)])
        yield upstream.tree_of([TreeItem(name, "40000", upstream.tree_of([skill_file]))])
    twice = [TreeItem(b"x", "100644", evil), TreeItem(b"x", "100644", skill_file.object_id)]
    yield upstream.tree_of([TreeItem(b"bad", "40000", upstream.tree_of([skill_file, *twice]))])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_repository_of_another_user_in_shared_cache_runs_no_program(upstream: Upstream, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    objects = open_follower(upstream.url, cache).path.parent / "objects"  # an attacker can compute its name, too
    for folder in ("objects", "refs"):
        (objects / folder).mkdir(parents=True)
    (objects / "HEAD").write_text("ref: refs/kept/current\n")
    (objects / "config").write_text(
        "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tpartialclone = source\n"
        f'[remote "source"]\n\tuploadpack = "touch {tmp_path}/run; git-upload-pack"\n'
    )
    for each in (cache, *cache.rglob("*")):
        os.chown(each, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        fetch_to_cache(upstream.url, cache)
    assert not (tmp_path / "run").exists()


def test_path_traversal_in_tree_is_never_written(upstream: Upstream, tmp_path: Path) -> None:
    for number, tree in enumerate(_malformed_trees(upstream)):
        upstream.commit_tree(tree, orphan=True)
        inside = tmp_path / "cache" / str(number)
        with suppress(SourceError):
            assert set(served_paths(fetch_to_cache(upstream.url, inside))) <= {"bad/SKILL.md", "SKILL.md"}
        assert not list(inside.rglob("evil*"))
        assert not (tmp_path / "evil").exists()
        assert not Path("/etc/evil").exists()


def test_tree_bomb_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    tree = upstream.tree({"SKILL.md": b"---"})
    for _ in range(9):
        tree = upstream.tree_of([TreeItem(bytes([97 + number]), "40000", tree) for number in range(20)])
    upstream.commit_tree(tree)
    limits = FetchSettings(limits=FetchLimits(total_s=20))
    with pytest.raises((UnacceptableError, UnreachableError), match=r"too many files|no answer"):
        fetch_to_cache(upstream.url, tmp_path, fetch=limits)


def test_no_program_of_repository_or_environment_is_run(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, git_config: Path
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
        (hooks / name).symlink_to(script)
    git_config.write_text(
        f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = {script}\n\taskPass = {script}\n"
        f'[filter "x"]\n\tsmudge = {script}\n\trequired = true\n[protocol "ext"]\n\tallow = always\n'
        "[transfer]\n\tunpackLimit = 1\n[submodule]\n\trecurse = true\n"
    )
    for name in ("GIT_SSH", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_EXTERNAL_DIFF", "GIT_PROXY_COMMAND"):
        monkeypatch.setenv(name, str(script))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    follower = fetch_to_cache(upstream.url, tmp_path)
    assert served_paths(follower) == ["skills/alpha/SKILL.md"]
    assert not ran.exists()
    assert not (tmp_path / "trace").exists()


def test_rewritten_url_must_keep_the_protocol(upstream: Upstream, tmp_path: Path, git_config: Path) -> None:
    ran = tmp_path / "ran"
    rewriting = f'[url "ext::sh -c touch% {ran}% "]\n\tinsteadOf = file://\n'
    git_config.write_text(f"{rewriting}[protocol]\n\tallow = always\n")
    with pytest.raises(UnreachableError, match="another protocol"):
        fetch_to_cache(upstream.url, tmp_path)
    assert not ran.exists()


def test_redirects_are_not_followed(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    follower = fetch_to_cache(f"{server.url}/acme.git", tmp_path)
    with GitServer(upstream.directory.parent) as elsewhere:
        for status in (301, 302, 307):
            server.redirect_for = lambda path: (status, f"http://127.0.0.1:{elsewhere.port}{path}")  # noqa: B023
            for each in (follower, open_follower(f"{server.url}/acme.git", tmp_path / "anew")):
                with pytest.raises(UnreachableError, match="it is elsewhere"):
                    anyio.run(each.refresh)
        assert served_paths(follower) == SKILL_PATHS
        assert not elsewhere.requests


REFS = "/a.git/info/refs"


def _endless_refs(_: object) -> Iterator[bytes]:
    yield ADVERTISEMENT
    for number in count(1):
        yield b"".join(packet(b"%040x refs/heads/b%d-%d\n" % (number, number, each)) for each in range(1000))


@each_row("kind", ["silence", "bytes", "refs"])
def test_endless_response_times_out_and_git_is_killed(kind: str, tmp_path: Path) -> None:
    bounds = FetchSettings(bounds=Bounds(download_s=1))
    with Publisher() as site:
        responses = {
            "silence": site.stall(),
            "bytes": endless(HEADERS, bytes(1 << 16)),
            "refs": _endless_refs,
        }
        site.routes[REFS] = responses[kind]
        with pytest.raises(UnreachableError) as failed:
            fetch_to_cache(f"git+{site.url}/a.git", tmp_path, fetch=bounds)
        assert "\n" not in str(failed.value)
        wait_for_git_to_end(site.port)


@each_row(("route", "reason"), [
    (respond_with(b"<html>", content_type="text/html"), "no repository"),
    (
        respond_and_close(ADVERTISEMENT + packet(b"ERR evil \x1b[31m" + b"x" * 5000)),
        "git could not fetch it (remote error: evil",
    ),
])  # fmt: skip
def test_server_message_is_reported_in_one_short_line(route: Route, reason: str, tmp_path: Path) -> None:
    with Publisher() as site:
        site.routes[REFS] = route
        with pytest.raises(SourceError) as failed:
            fetch_to_cache(f"git+{site.url}/a.git", tmp_path)
    message = str(failed.value)
    assert reason in message
    assert message.isprintable()
    assert len(message) < 400
