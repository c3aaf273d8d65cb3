"""`lock`, `outdated`, `update`, `diff` and a server that keeps to a lock file: folders, archives and a site."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mcp_skills_server.cli import cli
from mcp_skills_server.provenance.lock import LockedSource, read
from web.http_wire import http_serving
from wire import COMMAND, Wire, serving, write_skill


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the skills `refunds` and `greetings`."""
    for name in ("refunds", "greetings"):
        write_skill(tmp_path / "skills" / name, description=f"Helps with {name} when asked.")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    done = CliRunner().invoke(
        cli, [*words, "--cache-dir", "cache", "--allow-private", "--allow-http"], standalone_mode=False
    )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def code(done: Result) -> int:
    """The exit code that the program makes of what a command returns."""
    return done.exit_code or done.return_value or 0


def error(*words: str) -> str:
    """What a run says that is refused."""
    done = CliRunner().invoke(cli, [*words, "--cache-dir", "cache", "--allow-private", "--allow-http"])
    assert done.exception is not None
    return str(done.exception)


def edit(team: Path, name: str = "refunds") -> None:
    write_skill(team / "skills" / name, description="Says something else.", body="See https://new.example/x\n")


def served(wire: Wire) -> list[str]:
    return sorted(each["frontmatter"]["name"] for each in wire.every_skill())


# lock


def test_lock_writes_each_source_and_skill_and_is_the_same_the_next_time(team: Path) -> None:
    assert code(run("lock", "skills")) == 0
    (source,) = read(team / "skills.lock")
    assert (source.given, source.revision, sorted(source.skills)) == ("skills", "", ["greetings", "refunds"])
    before = (team / "skills.lock").read_bytes()
    assert code(run("lock", "skills")) == 0
    assert (team / "skills.lock").read_bytes() == before


def test_paths_are_as_from_the_lock_files_folder(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (team / "deploy").mkdir()
    assert code(run("lock", "skills", "--output", "deploy/skills.lock")) == 0
    assert read(team / "deploy" / "skills.lock")[0].given == "../skills"
    assert code(run("outdated", "--lock", "deploy/skills.lock")) == 0
    monkeypatch.chdir(team / "deploy")
    assert code(run("outdated")) == 0


def test_what_cannot_be_served_is_left_out_and_said(team: Path) -> None:
    (team / "skills" / "greetings" / "SKILL.md").write_text("nothing")
    done = run("lock", "skills")
    assert [*read(team / "skills.lock")[0].skills] == ["refunds"]
    assert "left out: greetings, which cannot be served" in done.stderr


def test_an_address_with_a_password_is_not_written_to_a_file(team: Path) -> None:
    assert "an address with a password" in error("lock", "https://me:secret@skills.example")
    assert not (team / "skills.lock").exists()


# outdated, update


def test_outdated_says_what_is_new_and_changes_nothing(team: Path) -> None:
    run("lock", "skills")
    done = run("outdated")
    assert (code(done), done.stdout) == (0, "")
    assert done.stderr == "mcp-skills-server: nothing is new: the skills match skills.lock\n"
    done = run("outdated", "--format", "json")
    assert (code(done), done.stderr, len(json.loads(done.stdout))) == (0, "", 1)
    before = (team / "skills.lock").read_bytes()
    edit(team)
    write_skill(team / "skills" / "new")
    shutil.rmtree(team / "skills" / "greetings")
    done = run("outdated")
    assert code(done) == 1
    assert done.stdout.splitlines() == ["skills:", "  changed  refunds", "  added    new", "  removed  greetings"]
    done = run("outdated", "--format", "json")
    assert code(done) == 1
    assert json.loads(done.stdout) == [
        {
            "from": "skills",
            "locked": "",
            "newest": "",
            "changed": ["refunds"],
            "added": ["new"],
            "removed": ["greetings"],
        }
    ]
    assert (team / "skills.lock").read_bytes() == before


def test_update_moves_everything_or_what_is_named(team: Path) -> None:
    run("lock", "skills")
    old = read(team / "skills.lock")[0].skills
    edit(team)
    edit(team, "greetings")
    assert run("update", "refunds").stdout == "changed  refunds\n"
    now = read(team / "skills.lock")[0].skills
    assert now["greetings"] == old["greetings"] and now["refunds"] != old["refunds"]
    assert run("outdated").stdout.splitlines() == ["skills:", "  changed  greetings"]
    done = run("update", "refunds")
    assert (done.stdout, done.stderr.count("\n")) == ("", 1) and "nothing of refunds is new: " in done.stderr
    done = run("update", "skills")
    assert (done.stdout, done.stderr) == ("changed  greetings\n", "")
    assert code(run("outdated")) == 0
    done = run("update")
    assert done.stdout == "" and "nothing is new: the skills match skills.lock\n" in done.stderr


def test_update_takes_in_what_is_new_and_lets_go_of_what_is_gone(team: Path) -> None:
    run("lock", "skills")
    write_skill(team / "skills" / "new")
    shutil.rmtree(team / "skills" / "greetings")
    assert run("update").stdout == "removed  greetings\nadded    new\n"
    assert sorted(read(team / "skills.lock")[0].skills) == ["new", "refunds"]


def test_update_of_a_name_that_nothing_has_is_refused(team: Path) -> None:
    run("lock", "skills")
    assert "no such source or skill" in error("update", "refnds")


# diff


def test_diff_of_two_roots_shows_what_decides_and_then_the_lines(team: Path) -> None:
    shutil.copytree(team / "skills", team / "before")
    assert (code(run("diff", "before", "skills")), run("diff", "before", "skills").stdout) == (0, "")
    edit(team)
    done = run("diff", "before", "skills")
    assert code(done) == 1
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "refunds: changed",
        '  description: "Helps with refunds when asked." -> "Says something else."',
        "  link new: https://new.example/x",
    ]
    assert "-description: Helps with refunds when asked." in lines
    assert "+See https://new.example/x" in lines


def test_nothing_of_a_skill_steers_the_terminal(team: Path) -> None:
    shutil.copytree(team / "skills", team / "before")
    write_skill(team / "skills" / "refunds", body="\x1b[2Jgone\u202e\n")
    out = run("diff", "before", "skills").stdout
    assert "\x1b" not in out and "\u202e" not in out


def test_diff_of_a_lock_file_names_what_changed_where_the_old_text_is_gone(team: Path) -> None:
    run("lock", "skills")
    assert (code(run("diff", "--lock", "skills.lock")), run("diff", "--lock", "skills.lock").stdout) == (0, "")
    edit(team)
    done = run("diff", "--lock", "skills.lock")
    assert code(done) == 1
    assert done.stdout.splitlines() == [
        "refunds: changed",
        "the source no longer has the locked text",
    ]


@pytest.mark.parametrize("words", [["diff"], ["diff", "a"], ["diff", "a", "b", "c"], ["diff", "a", "--lock", "x"]])
def test_diff_takes_two_roots_or_a_lock_file(team: Path, words: list[str]) -> None:
    assert "two roots" in error(*words)


def test_diff_of_a_lock_file_shows_what_a_new_skill_does(team: Path) -> None:
    run("lock", "skills")
    write_skill(team / "skills" / "new", description="Runs what it likes.")
    out = run("diff", "--lock", "skills.lock").stdout
    assert out.splitlines()[0] == "new: added"
    assert '  description: "Runs what it likes."' in out


def test_a_root_without_a_skill_is_an_error_and_nothing_is_written(team: Path) -> None:
    (team / "empty").mkdir()
    done = run("lock", "skills", "empty")
    assert code(done) == 1 and "empty: no skill there" in done.stderr and not (team / "skills.lock").exists()


def test_of_two_skills_with_one_path_the_one_that_is_served_is_locked(team: Path) -> None:
    write_skill(team / "more" / "refunds", description="Another one.")
    write_skill(team / "more" / "extra")
    done = run("lock", "skills", "more")
    assert code(done) == 0 and "left out: more/refunds: the skill refunds is hidden by skills/refunds" in done.stderr
    assert [sorted(each.skills) for each in read(team / "skills.lock")] == [["greetings", "refunds"], ["extra"]]
    for command in (["outdated"], ["diff", "--lock", "skills.lock"]):
        assert (code(run(*command)), run(*command).stdout) == (0, "")
    with serving("--lock", team / "skills.lock", "--frozen") as wire:
        assert served(wire) == ["extra", "greetings", "refunds"]
    shutil.rmtree(team / "skills" / "refunds")  # now the other one is served
    assert run("outdated").stdout.splitlines() == ["skills:", "  removed  refunds", "more:", "  added    refunds"]
    assert code(run("update")) == 0
    with serving("--lock", team / "skills.lock", "--frozen") as wire:
        assert served(wire) == ["extra", "greetings", "refunds"]
    write_skill(team / "skills" / "refunds")
    assert "left out: refunds of more" in run("update", "skills").stderr
    with serving("--lock", team / "skills.lock", "--frozen") as wire:
        assert served(wire) == ["extra", "greetings", "refunds"]


def test_the_roots_of_a_configuration_are_those_of_every_command(team: Path) -> None:
    (team / "conf").mkdir()
    (team / "conf" / "skills.toml").write_text('lock = "locked.toml"\n[[source]]\nfrom = "../skills"\n')
    given = ["--config", "conf/skills.toml"]
    assert code(run("lock", "--output", "conf/locked.toml", *given)) == 0
    assert [each.given for each in read(team / "conf" / "locked.toml")] == ["../skills"]
    assert code(run("outdated", *given)) == 0
    edit(team)
    for command, words in {
        "outdated": "changed  refunds",
        "diff": "refunds: changed",
        "list": "refunds",
        "validate": "2 skills",
    }.items():
        assert words in run(command, *given).stdout, command
    assert "Says something else" in run("show", "refunds", *given).stdout
    assert code(run("publish", "--output", "public", *given)) == 0
    assert run("update", *given).stdout == "changed  refunds\n"
    with serving("--config", team / "conf" / "skills.toml", "--frozen") as wire:
        assert served(wire) == ["greetings", "refunds"]


# serve


def test_a_server_serves_what_is_locked_and_says_what_is_not(team: Path) -> None:
    run("lock", "skills")
    write_skill(team / "skills" / "new")
    with serving("--lock", team / "skills.lock") as wire:
        assert served(wire) == ["greetings", "refunds"]
        wire.logs(b"the lock file does not name this skill")
        edit(team)
        wire.until("notifications/skills/list_changed")
        assert served(wire) == ["greetings"]
        wire.logs(b"its files are not those that the lock file names")


def test_a_frozen_server_refuses_to_start_where_something_is_not_as_it_was_locked(team: Path) -> None:
    run("lock", "skills")
    write_skill(team / "skills" / "new")
    with serving("--lock", team / "skills.lock", "--frozen") as wire:
        assert served(wire) == ["greetings", "refunds"]
        wire.logs(b"serving 2 skills")
        wire.logs(b"the lock file does not name this skill")
    edit(team)
    wire = Wire([*COMMAND, "serve", "--lock", str(team / "skills.lock"), "--frozen"])
    try:
        assert wire.close() == 2
        (line,) = wire.stderr.decode().splitlines()
        assert "refunds cannot be served: its files are not those that the lock file names" in line
    finally:
        wire.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_a_running_server_follows_its_lock_file(team: Path) -> None:
    write_skill(team / "more" / "extra")
    run("lock", "skills")
    with serving("--lock", team / "skills.lock") as wire:
        edit(team)
        shutil.rmtree(team / "skills" / "greetings")
        write_skill(team / "skills" / "new")
        assert run("update").stdout.count("\n") == 3
        wire.logs(b"skills.lock was reloaded; it names 2 skills")
        found = {each["frontmatter"]["name"]: each["frontmatter"]["description"] for each in wire.every_skill()}
        assert found.keys() == {"new", "refunds"} and found["refunds"] == "Says something else."
        (team / "skills.lock").write_text("nothing")
        wire.process.send_signal(signal.SIGHUP)
        wire.logs(b"not a valid lock file")
        run("lock", "skills", "more")
        wire.process.send_signal(signal.SIGHUP)
        wire.logs(b"restart the server; the former lock stays in force")
        assert served(wire) == ["new", "refunds"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_a_hangup_has_every_source_looked_at_now(team: Path) -> None:
    with serving(team / "skills", "--no-watch") as wire:
        assert served(wire) == ["greetings", "refunds"]
        write_skill(team / "skills" / "new")
        wire.process.send_signal(signal.SIGHUP)
        wire.logs(b"polling every source now")
        assert served(wire) == ["greetings", "new", "refunds"]


def test_roots_choose_among_those_that_are_locked(team: Path) -> None:
    write_skill(team / "more" / "third")
    run("lock", "skills", "more")
    with serving(team / "more", "--lock", team / "skills.lock") as wire:
        assert served(wire) == ["third"]
    assert "does not name this root" in error("serve", "elsewhere", "--lock", "skills.lock")


def test_frozen_without_a_lock_file_and_nothing_to_serve_are_refused(team: Path) -> None:
    assert "give --lock FILE too" in error("serve", "skills", "--frozen")
    assert "there is nothing to serve" in error("serve")


def test_an_archive_that_was_replaced_is_not_served(team: Path) -> None:
    def pack() -> None:
        with tarfile.open(team / "skills.tar.gz", "w:gz") as archive:
            archive.add(team / "skills", "skills")

    pack()
    run("lock", "skills.tar.gz")
    assert len(read(team / "skills.lock")[0].revision) == 64
    edit(team)
    pack()
    assert "changed  skills/refunds" in run("outdated").stdout
    with serving("--lock", team / "skills.lock") as wire:
        assert served(wire) == ["greetings"]


# A site


@pytest.fixture
def site(team: Path) -> Iterator[str]:
    with http_serving(team / "skills") as server:
        yield f"http://127.0.0.1:{server.port}"


def serve_locked(team: Path) -> Any:
    options = ["--cache-dir", team / "cache", "--allow-private", "--allow-http"]
    return serving("--lock", team / "skills.lock", "--frozen", *options)


def test_a_frozen_site_is_served_as_it_was_also_without_it(team: Path) -> None:
    with http_serving(team / "skills") as server:
        run("lock", f"http://127.0.0.1:{server.port}")
        with serve_locked(team) as wire:
            assert served(wire) == ["greetings", "refunds"]
    with serve_locked(team) as wire:  # nothing answers there any more
        assert served(wire) == ["greetings", "refunds"]


def test_a_site_that_moves_on_changes_nothing_of_a_copy_that_is_pinned(team: Path, site: str) -> None:
    run("lock", site)
    (before,) = read(team / "skills.lock")
    with serve_locked(team) as wire:
        assert served(wire) == ["greetings", "refunds"]
    edit(team)
    shutil.rmtree(team / "skills" / "greetings")
    for _ in range(200):  # the site notices by itself
        done = run("outdated")
        if code(done):
            break
    assert "changed  refunds" in done.stdout
    with serve_locked(team) as wire:
        assert served(wire) == ["greetings", "refunds"]
    assert code(run("update")) == 0
    (after,) = read(team / "skills.lock")
    assert isinstance(after, LockedSource) and after.revision != before.revision
    assert os.path.isdir(team / "cache")
    with serve_locked(team) as wire:
        assert served(wire) == ["refunds"]
