"""A folder in git as the ROOT of commands: real processes, a real server, and what a person sees."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from forkserver import Popen, run
from sources.git.conftest import BASE
from sources.git.remotes import GitServer, Upstream, link, skill
from sources.git.test_hostile import said as speaking
from sources.git.test_hostile import silence
from wire import COMMAND, DEADLINE, Wire, serving

pytestmark = pytest.mark.needs_program("git")
LISTED = "notifications/skills/list_changed"


def command(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **more}
    return run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False, env=environment)


def cache(tmp_path: Path) -> list[str]:
    return ["--cache-dir", str(tmp_path / "cache")]


def test_list_show_and_validate_take_one(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    given = f"{server.url}/acme.git@main#skills"
    listed = command("list", given, *cache(tmp_path), "--format", "json")
    assert listed.returncode == 0
    found = {each["path"]: each for each in json.loads(listed.stdout)["skills"]}
    assert found.keys() == {"alpha", "beta"} and found["alpha"]["origin"] == given
    commit = upstream.git("rev-parse", "main")
    assert json.loads(listed.stdout)["sources"] == [{"root": given, "revision": commit}]
    assert f"{given}: revision {commit}" in command("list", given, *cache(tmp_path)).stderr
    shown = command("show", given, "alpha", *cache(tmp_path))
    assert shown.returncode == 0 and given in shown.stdout and f"revision:    {commit}" in shown.stdout
    assert command("validate", given, *cache(tmp_path)).returncode == 0


def test_validate_tells_of_pointers_of_lfs(upstream: Upstream, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"1" * 64 + b"\nsize 12345\n"
    upstream.commit(skill("alpha", assets__model_bin=pointer))
    done = command("validate", upstream.url, *cache(tmp_path))
    assert done.returncode == 1 and "lfs-pointer" in done.stdout and "git lfs pull" in done.stdout


def test_what_is_refused_is_a_problem_with_a_hint(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit({**BASE, **skill("bad", evil=link("/etc/passwd"))})
    listed = command("list", upstream.url, *cache(tmp_path), "--format", "json")
    (found,) = [each for each in json.loads(listed.stdout)["problems"] if each["code"] == "source-refused"]
    assert found["code"] == "source-refused" and found["path"] == f"{upstream.url}/skills/bad"
    assert "'evil' is a symbolic link" in found["message"] and found["hint"]
    done = command("validate", upstream.url, *cache(tmp_path))
    assert done.returncode == 1 and done.stdout.count("[source-refused]") == 1
    assert "symbolic link" not in done.stderr  # it is said once
    fetched = command("fetch", upstream.url, "--output", str(tmp_path / "to"), XDG_CACHE_HOME=str(tmp_path / "own"))
    assert fetched.returncode == 1 and "refused: skills/bad: 'evil' is a symbolic link" in fetched.stderr
    assert sorted(path.name for path in (tmp_path / "to").iterdir() if path.name[0] != ".") == ["alpha", "beta"]


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("{url}/acme.git@gone", "there is no branch or tag 'gone'"),
        ("git+ext::sh", "git is fetched by https, ssh, file, http"),
        ("git+http://127.0.0.1:9/a", "no answer"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_exit_code_2(
    root: str, said: str, server: GitServer, tmp_path: Path
) -> None:
    done = command("list", root.format(url=server.url), *cache(tmp_path))
    assert done.returncode == 2 and not done.stdout
    assert said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_a_change_reaches_the_client_and_the_last_copy_stays(upstream: Upstream, tmp_path: Path) -> None:
    with GitServer(upstream.directory.parent) as server:
        given = [f"{server.url}/acme.git", *cache(tmp_path), "--refresh", "1"]
        with serving(*given) as wire:
            while len(wire.every_skill()) < 2:
                wire.until(LISTED)
            upstream.commit({**BASE, **skill("gamma")})
            while len(wire.every_skill()) < 3:
                wire.until(LISTED)
            upstream.commit(skill("evil"), orphan=True)
            wire.logs(b"was rewritten")
            assert len(wire.every_skill()) == 3
    with serving(*given) as wire:  # without a server at all
        wire.logs(b"serving the last copy")
        assert {each["frontmatter"]["name"] for each in wire.every_skill()} == {"alpha", "beta", "gamma"}


def test_fetch_puts_its_skills_into_a_folder(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    given, folder = f"{server.url}/acme.git@main#skills", tmp_path / "folder"
    more = {"XDG_CACHE_HOME": str(tmp_path / "own")}
    done = command("fetch", given, "--output", str(folder), **more)
    assert done.returncode == 0 and f"{given}: 2 added" in done.stderr
    assert (folder / "alpha" / "references" / "guide.md").read_bytes() == b"guide\n"
    upstream.commit({**BASE, **skill("beta", "Another."), **skill("gamma")})
    done = command("fetch", "--output", str(folder), "--update", **more)
    assert done.returncode == 0 and "1 added, 1 updated, 1 unchanged" in done.stderr
    origin = json.loads(command("list", str(folder), "--format", "json").stdout)["skills"][0]["origin"]
    assert origin == given.partition("#")[0]
    for arguments, said in (
        ([f"{server.url}/none.git", "--output", str(folder)], "/none.git: there is no repository there"),
        ([given, "--output", str(folder), "--header", "X-A:b"], "git has credential helpers"),
        ([given, "--list"], "'mcp-skills-server list"),
    ):
        failed = command("fetch", *arguments, **more)
        assert failed.returncode == 2 and said in failed.stderr


def test_a_lock_file_pins_a_commit(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    lock, more = str(tmp_path / "skills.lock"), cache(tmp_path)
    assert command("lock", f"{server.url}/acme.git#skills", "--output", lock, *more).returncode == 0
    assert upstream.git("rev-parse", "main") in Path(lock).read_text()
    assert command("outdated", "--lock", lock, *more).returncode == 0
    upstream.commit({**BASE, **skill("beta", "Another."), **skill("gamma")})
    assert command("outdated", "--lock", lock, *more).returncode == 1
    seen = command("diff", "--lock", lock, *more)
    assert "-Read on." in seen.stdout and "+Another." in seen.stdout
    with serving("--lock", lock, "--frozen", *more) as wire:
        assert {each["frontmatter"]["name"] for each in wire.every_skill()} == {"alpha", "beta"}
    assert command("update", "--lock", lock, *more).returncode == 0
    assert command("outdated", "--lock", lock, *more).returncode == 0


def test_git_ends_with_the_server(tmp_path: Path) -> None:
    asked = threading.Event()
    for port in speaking(partial(quiet, asked)):
        with serving(f"git+http://127.0.0.1:{port}/a.git", *cache(tmp_path)) as wire:
            assert wire.every_skill() == []
            assert asked.wait(DEADLINE) and running(port)
            assert wire.close() == 0
        wait_for_the_end(port)


@pytest.mark.parametrize("words", [["rpc", "{root}"], ["acp", "{root}", "--", sys.executable, "-c", "input()"]])
def test_git_ends_with_the_other_commands_too(words: list[str], tmp_path: Path) -> None:
    asked = threading.Event()
    for port in speaking(partial(quiet, asked)):
        root = f"git+http://127.0.0.1:{port}/a.git"
        given = [words[0], *cache(tmp_path), *(each.format(root=root) for each in words[1:])]
        with Popen([*COMMAND, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert asked.wait(DEADLINE) and running(port)
            process.communicate(b"\n", timeout=DEADLINE)
        wait_for_the_end(port)


def quiet(asked: threading.Event) -> Iterator[bytes]:
    """Say that git has asked, and nothing to git."""
    asked.set()
    yield from silence()


def wait_for_the_end(port: int) -> None:
    """Wait until no git is left: what ends it is a pipe, which it reads late on a busy machine."""
    until = time.monotonic() + DEADLINE
    while running(port):
        assert time.monotonic() < until


def running(port: int) -> bool:
    """Whether a git asks at this port; the server's own command line is none."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return any(f"127.0.0.1:{port}/a.git" in line and "mcp_skills_server" not in line for line in listed.splitlines())


def test_an_option_says_whose_commits_are_taken(upstream: Upstream, tmp_path: Path) -> None:
    signers = tmp_path / "allowed_signers"
    signers.write_text("")
    done = command("list", upstream.url, *cache(tmp_path), "--require-signed-commits", str(signers))
    assert done.returncode == 2 and "is not signed by anybody" in done.stderr


def described(wire: Wire) -> dict[str, str]:
    return {each["frontmatter"]["name"]: each["frontmatter"]["description"] for each in wire.every_skill()}


def test_a_running_server_follows_a_lock_file_to_another_commit(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit(skill("alpha", "Old."))
    lock, given = str(tmp_path / "skills.lock"), f"{upstream.url}@main"
    assert command("lock", given, "--output", lock, *cache(tmp_path)).returncode == 0
    with serving("--lock", lock, "--frozen", *cache(tmp_path)) as wire:
        assert [*described(wire)] == ["alpha"]
        upstream.commit({**skill("alpha", "New."), **skill("beta")})
        assert (
            command("update", "--lock", lock, *cache(tmp_path)).stdout
            == "changed  skills/alpha\nadded    skills/beta\n"
        )
        wire.logs(b"was reloaded; it names 2 skills")
        assert sorted(described(wire)) == ["alpha", "beta"]
        shutil.rmtree(upstream.directory)  # an outage keeps what was locked
        (tmp_path / "skills.lock").write_text(
            re.sub('revision = "[0-9a-f]{40}', 'revision = "' + "1" * 40, Path(lock).read_text())
        )
        wire.logs(b"the former lock stays in force")
        assert sorted(described(wire)) == ["alpha", "beta"]


def test_a_rewritten_branch_is_accepted_without_a_restart(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit(skill("alpha"))
    given = f"{upstream.url}@main"
    with serving(given, "--refresh", "1", *cache(tmp_path)) as wire:
        while [*described(wire)] != ["alpha"]:
            wire.until(LISTED)
        upstream.commit(skill("gamma"), orphan=True)
        wire.logs(b"was rewritten")
        assert [*described(wire)] == ["alpha"]
        listed = command("list", given, "--accept-rewritten", *cache(tmp_path))
        assert listed.returncode == 0 and "gamma" in listed.stdout
        while [*described(wire)] != ["gamma"]:
            wire.until(LISTED)
