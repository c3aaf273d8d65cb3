"""A folder in git as the ROOT of commands: real processes, a real server, and what a person sees."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkserver import Popen, run
from sources.git.remotes import BASE, GitServer, Upstream, link, skill
from sources.publishers import Publisher
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


def test_what_cannot_be_had_is_one_line_and_exit_code_2(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "signers").write_text("")
    for words, said in (
        ([f"{upstream.url}@gone"], "there is no branch or tag 'gone'"),
        (["git+ext::sh"], "git is fetched by https, ssh, file, http"),
        (["git+http://127.0.0.1:9/a"], "no answer"),
        ([upstream.url, "--require-signed-commits", str(tmp_path / "signers")], "is not signed by anybody"),
    ):
        done = command("list", *words, *cache(tmp_path))
        assert done.returncode == 2 and not done.stdout
        assert said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def names(wire: Wire) -> list[str]:
    return sorted(each["frontmatter"]["name"] for each in wire.every_skill())


def until_served(wire: Wire, *expected: str) -> None:
    while names(wire) != [*expected]:
        wire.until(LISTED)


def test_a_change_reaches_the_client_but_no_rewritten_branch_unless_accepted(
    upstream: Upstream, tmp_path: Path
) -> None:
    with GitServer(upstream.directory.parent) as server:
        given = [f"{server.url}/acme.git", *cache(tmp_path)]
        with serving(*given, "--refresh", "1") as wire:
            until_served(wire, "alpha", "beta")
            upstream.commit({**BASE, **skill("gamma")})
            until_served(wire, "alpha", "beta", "gamma")
            upstream.commit(skill("delta"), orphan=True)
            wire.logs(b"was rewritten")
            assert len(names(wire)) == 3
            listed = command("list", *given, "--accept-rewritten")
            assert listed.returncode == 0 and "delta" in listed.stdout
            until_served(wire, "delta")
    with serving(*given) as wire:  # without a server at all
        wire.logs(b"serving the last copy")
        assert names(wire) == ["delta"]


def test_fetch_puts_its_skills_into_a_folder(server: GitServer, upstream: Upstream, tmp_path: Path) -> None:
    given, folder = f"{server.url}/acme.git@main#skills", tmp_path / "folder"
    more = {"XDG_CACHE_HOME": str(tmp_path / "own")}
    done = command("fetch", given, "--output", str(folder), **more)
    assert done.returncode == 0 and f"{given}: 2 added" in done.stderr
    assert (folder / "alpha" / "references" / "guide.md").read_bytes() == b"guide\n"
    origin = json.loads(command("list", str(folder), "--format", "json").stdout)["skills"][0]["origin"]
    assert origin == given.partition("#")[0]
    for arguments, said in (
        ([f"{server.url}/none.git", "--output", str(folder)], "/none.git: there is no repository there"),
        ([given, "--list"], "'mcp-skills-server list"),
    ):
        failed = command("fetch", *arguments, **more)
        assert failed.returncode == 2 and said in failed.stderr


@pytest.fixture
def silent() -> Iterator[Publisher]:
    """A server that is asked by git, and never answers."""
    with Publisher() as site:
        site.routes["/a.git/info/refs"] = site.stall()
        yield site


def test_git_ends_with_the_server(silent: Publisher, tmp_path: Path) -> None:
    with serving(f"git+{silent.url}/a.git", *cache(tmp_path)) as wire:
        assert wire.every_skill() == []
        assert silent.reached.wait(DEADLINE) and running(silent.port)
        assert wire.close() == 0
    wait_for_the_end(silent.port)


@pytest.mark.parametrize("words", [["rpc", "{root}"], ["acp", "{root}", "--", sys.executable, "-c", "input()"]])
def test_git_ends_with_the_other_commands_too(words: list[str], silent: Publisher, tmp_path: Path) -> None:
    root = f"git+{silent.url}/a.git"
    given = [words[0], *cache(tmp_path), *(each.format(root=root) for each in words[1:])]
    with Popen([*COMMAND, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert silent.reached.wait(DEADLINE) and running(silent.port)
        process.communicate(b"\n", timeout=DEADLINE)
    wait_for_the_end(silent.port)


def wait_for_the_end(port: int) -> None:
    """Wait until no git is left: what ends it is a pipe, which it reads late on a busy machine."""
    until = time.monotonic() + DEADLINE
    while running(port):
        assert time.monotonic() < until


def running(port: int) -> bool:
    """Whether a git asks at this port; the server's own command line is none."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return any(f"127.0.0.1:{port}/a.git" in line and "mcp_skills_server" not in line for line in listed.splitlines())


def test_a_lock_file_moves_one_skill_alone(upstream: Upstream, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"1" * 64 + b"\nsize 12345\n"
    upstream.commit({**skill("alpha", "Old alpha."), **skill("beta", "Old beta.", model_bin=pointer)})
    lock = ("--lock", str(tmp_path / "skills.lock"), *cache(tmp_path))
    done = command("lock", f"{upstream.url}@main", "--output", *lock[1:])
    first, *_ = done.stderr.splitlines()
    assert done.returncode == 0 and re.match("mcp-skills-server: WARNING: .*model.bin", first)
    upstream.commit({**skill("alpha", "New alpha."), **skill("beta", "New beta.", model_bin=pointer)})
    assert command("update", "skills/alpha", *lock).stdout == "changed  skills/alpha\n"
    assert command("outdated", *lock).stdout.splitlines()[1:] == ["  changed  skills/beta"]
    changes = command("diff", *lock).stdout
    assert "-Old beta.\n+New beta.\n" in changes and "alpha" not in changes
    shutil.rmtree(upstream.directory)
    done = command("outdated", *lock)
    assert done.returncode == 2 and "what there is of it is not proved" in done.stderr


def test_a_running_server_follows_a_lock_file_to_another_commit(upstream: Upstream, tmp_path: Path) -> None:
    upstream.commit(skill("alpha", "Old."))
    lock, given = str(tmp_path / "skills.lock"), f"{upstream.url}@main"
    assert command("lock", given, "--output", lock, *cache(tmp_path)).returncode == 0
    assert upstream.git("rev-parse", "main") in Path(lock).read_text()
    with serving("--lock", lock, "--frozen", *cache(tmp_path)) as wire:
        assert names(wire) == ["alpha"]
        upstream.commit({**skill("alpha", "New."), **skill("beta")})
        updated = command("update", "--lock", lock, *cache(tmp_path)).stdout
        assert updated == "changed  skills/alpha\nadded    skills/beta\n"
        wire.logs(b"was reloaded; it names 2 skills")
        assert names(wire) == ["alpha", "beta"]
        shutil.rmtree(upstream.directory)  # an outage keeps what was locked
        other = re.sub('revision = "[0-9a-f]{40}', 'revision = "' + "1" * 40, Path(lock).read_text())
        Path(lock).write_text(other)
        wire.logs(b"the former lock stays in force")
        assert names(wire) == ["alpha", "beta"]
