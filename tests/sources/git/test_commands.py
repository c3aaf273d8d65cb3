"""Commands with a git root, as real processes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from forkserver import Popen
from mcp_skills_server.commands.opening import open_served
from mcp_skills_server.commands.options import FollowOptions
from mcp_skills_server.sources import mirrors
from sources.fetching import cache_option, listed_names, run_command
from sources.git.remotes import (
    ADVERTISEMENT,
    BASE,
    GitServer,
    Upstream,
    is_git_running,
    link,
    skill,
    wait_for_git_to_end,
)
from sources.publishers import Publisher
from web.http_wire import wait_until
from wire import COMMAND, DEADLINE, Wire, serving

pytestmark = pytest.mark.needs_program("git")
LISTED = "notifications/skills/list_changed"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"1" * 64 + b"\nsize 12345\n"


def test_list_show_and_validate_accept_git_root(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    given = f"{server.url}/acme.git@main#skills"
    listed = run_command("list", given, *cache_option(tmp_path), "--format", "json")
    skills = {each["path"]: each for each in json.loads(listed.stdout)["skills"]}
    assert skills.keys() == {"alpha", "beta"}
    assert skills["alpha"]["origin"] == given
    commit = upstream.git("rev-parse", "main")
    assert json.loads(listed.stdout)["sources"] == [{"root": given, "revision": commit}]
    assert f"{given}: revision {commit}" in run_command("list", given, *cache_option(tmp_path)).stderr
    shown = run_command("show", given, "alpha", *cache_option(tmp_path))
    assert given in shown.stdout
    assert f"revision:    {commit}" in shown.stdout
    run_command("validate", given, *cache_option(tmp_path))


def test_refused_skill_and_lfs_pointer_are_reported_with_hints(upstream: Upstream, tmp_path: Path) -> None:
    pointer = skill("alpha", assets__model_bin=LFS_POINTER)
    upstream.commit({**BASE, **pointer, **skill("bad", evil=link("/etc/passwd"))})
    listed = run_command("list", upstream.url, *cache_option(tmp_path), "--format", "json")
    (problem,) = [each for each in json.loads(listed.stdout)["problems"] if each["code"] == "source-refused"]
    assert problem["path"] == f"{upstream.url}/skills/bad"
    assert "'evil' is a symbolic link" in problem["message"]
    assert problem["hint"]
    done = run_command("validate", upstream.url, *cache_option(tmp_path), code=1)
    assert done.stdout.count("[source-refused]") == 1
    assert "symbolic link" not in done.stderr
    assert re.search(r"model\.bin:1: error: .*\[lfs-pointer\]", done.stdout)
    assert "git lfs pull" in done.stdout
    output = tmp_path / "to"
    own_cache = {"XDG_CACHE_HOME": str(tmp_path / "own")}
    done = run_command("fetch", upstream.url, "--output", str(output), code=1, **own_cache)
    assert "refused: skills/bad: 'evil' is a symbolic link" in done.stderr
    assert sorted(path.name for path in output.glob("[!.]*")) == ["alpha", "beta"]


def test_unavailable_root_is_reported_with_exit_code_2(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "signers").write_text("")
    for words, reason in (
        (["git+ext::sh"], "git is fetched by https, ssh, file, http"),
        (["git+http://127.0.0.1:9/a"], "no answer"),
        ([upstream.url, "--require-signed-commits", str(tmp_path / "signers")], "is not signed by anybody"),
    ):
        done = run_command("list", *words, *cache_option(tmp_path), code=2)
        assert not done.stdout
        assert reason in done.stderr.splitlines()[-1]


def until_served(wire: Wire, *expected: str) -> None:
    while listed_names(wire) != [*expected]:
        wire.until(LISTED)


def test_new_commit_is_served_but_rewritten_branch_only_when_accepted(upstream: Upstream, tmp_path: Path) -> None:
    with GitServer(upstream.directory.parent) as server:
        given = [f"{server.url}/acme.git", *cache_option(tmp_path)]
        with serving(*given, "--refresh", "1") as wire:
            until_served(wire, "alpha", "beta")
            upstream.commit({**BASE, **skill("gamma")})
            until_served(wire, "alpha", "beta", "gamma")
            upstream.commit(skill("delta"), orphan=True)
            wire.wait_for_log(b"was rewritten")
            assert len(listed_names(wire)) == 3
            listed = run_command("list", *given, "--accept-rewritten")
            assert "delta" in listed.stdout
            until_served(wire, "delta")
    with serving(*given) as wire:  # the remote server is gone
        wire.wait_for_log(b"serving the last copy")
        assert listed_names(wire) == ["delta"]


def test_fetch_writes_skills_into_folder(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    given = f"{server.url}/acme.git@main#skills"
    folder = tmp_path / "folder"
    own_cache = {"XDG_CACHE_HOME": str(tmp_path / "own")}
    done = run_command("fetch", given, "--output", str(folder), **own_cache)
    assert f"{given}: 2 added" in done.stderr
    assert (folder / "alpha" / "references" / "guide.md").read_bytes() == b"guide\n"
    origin = json.loads(run_command("list", str(folder), "--format", "json").stdout)["skills"][0]["origin"]
    assert origin == given.partition("#")[0]
    for arguments, reason in (
        ([f"{server.url}/none.git", "--output", str(folder)], "/none.git: there is no repository there"),
        ([given, "--list"], "'mcp-skills-server list"),
    ):
        failed = run_command("fetch", *arguments, code=2, **own_cache)
        assert reason in failed.stderr


@pytest.fixture
def endless_server() -> Iterator[Publisher]:
    """A git server that trickles bytes for ever, so git's own timeout never expires."""
    with Publisher() as site:

        def trickle(_: object) -> Iterator[bytes]:
            yield ADVERTISEMENT
            while not site.closing.wait(0.2):
                yield b"03e8" + b"x" * 996

        site.routes["/a.git/info/refs"] = trickle
        yield site


@pytest.mark.parametrize("words", [
    ["serve", "{root}"], ["rpc", "{root}"], ["acp", "{root}", "--", sys.executable, "-c", "input()"],
])  # fmt: skip
@pytest.mark.parametrize("is_killed", [False, True])
def test_git_ends_when_its_server_ends(
    words: list[str], is_killed: bool, endless_server: Publisher, tmp_path: Path
) -> None:
    root = f"git+{endless_server.url}/a.git"
    given = [words[0], *cache_option(tmp_path), *(each.format(root=root) for each in words[1:])]
    with Popen([*COMMAND, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert endless_server.reached.wait(DEADLINE)
        assert is_git_running(endless_server.port)
        if is_killed:
            process.kill()
        process.communicate(b"\n", timeout=DEADLINE)
        assert process.returncode == (-signal.SIGKILL if is_killed else 0)
    wait_for_git_to_end(endless_server.port)


def test_update_of_one_locked_skill_leaves_the_others(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit({**skill("alpha", "Old alpha."), **skill("beta", "Old beta.", model_bin=LFS_POINTER)})
    lock = ("--lock", str(tmp_path / "skills.lock"), *cache_option(tmp_path))
    done = run_command("lock", f"{upstream.url}@main", "--output", *lock[1:])
    assert re.match("mcp-skills-server: WARNING: .*model.bin", done.stderr)
    upstream.commit({**skill("alpha", "New alpha."), **skill("beta", "New beta.", model_bin=LFS_POINTER)})
    assert run_command("update", "skills/alpha", *lock).stdout.splitlines()[1:] == ["  changed  skills/alpha"]
    assert run_command("update", "--check", *lock, code=1).stdout.splitlines()[1:] == ["  changed  skills/beta"]
    changes = run_command("diff", *lock, code=1).stdout
    assert "-Old beta.\n+New beta.\n" in changes
    assert "alpha" not in changes
    shutil.rmtree(upstream.directory)
    done = run_command("update", "--check", *lock, code=2)
    assert "what there is of it is not proved" in done.stderr


def test_former_lock_stays_in_force_if_the_new_copy_cannot_be_linked_or_fetched(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    lock = str(tmp_path / "skills.lock")
    run_command("lock", f"{upstream.url}@main", "--output", lock, *cache_option(tmp_path))
    opened = open_served([], FollowOptions(lock=lock, cache_dir=str(tmp_path / "cache")))
    assert opened.mirrors is not None
    opened.mirrors.fetch()
    opened.registry.load()
    before = opened.registry.snapshot.skills.keys()
    upstream.commit({**BASE, **skill("gamma")})
    run_command("update", "--lock", lock, *cache_option(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(mirrors, "_point_link", fail)
        assert opened.relock() == "[Errno 28] No space left on device; the former lock stays in force"
    opened.registry.refresh()
    assert opened.registry.snapshot.skills.keys() == before
    assert opened.relock() == ""
    assert opened.registry.snapshot.skills.keys() - before == {"skills/gamma"}
    shutil.rmtree(upstream.directory)  # so that a commit without a copy cannot be fetched
    Path(lock).write_text(re.sub('revision = "[0-9a-f]{40}', 'revision = "' + "1" * 40, Path(lock).read_text()))
    assert opened.relock().endswith("; the former lock stays in force")
    assert "skills/gamma" in opened.registry.snapshot.skills
    opened.stop()


def test_sources_are_polled_after_the_skills_of_a_new_lock_are_served(upstream: Upstream, tmp_path: Path) -> None:
    """Before, the former lock would refuse the new skills, and clients would lose them for a moment."""
    upstream.commit(skill("alpha", "Old."))
    lock = str(tmp_path / "skills.lock")
    run_command("lock", f"{upstream.url}@main", "--output", lock, *cache_option(tmp_path))
    opened = open_served([], FollowOptions(lock=lock, cache_dir=str(tmp_path / "cache")))
    registry, followed = opened.registry, opened.mirrors
    assert followed is not None
    opened.start(DEADLINE)
    try:
        registry.load()
        gone: list[str] = []
        registry.subscribe(lambda changes: gone.extend(changes.before.keys() - changes.after.keys()))
        upstream.commit({**skill("alpha", "New."), **skill("beta")})
        run_command("update", "--lock", lock, *cache_option(tmp_path))
        with patch.object(followed, "poll_now", side_effect=lambda: looked.append({*registry.snapshot.skills})):
            looked: list[set[str]] = []
            assert opened.relock() == ""
        assert looked == [{"skills/alpha", "skills/beta"}]
        assert registry.roots[0].revision == ""  # until the source tells
        followed.poll_now()
        wait_until(lambda: registry.roots[0].revision == upstream.git("rev-parse", "main"))
        assert gone == []
    finally:
        opened.stop()
