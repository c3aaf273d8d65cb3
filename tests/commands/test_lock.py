"""`lock`, `update`, `diff` and `serve --lock`, with folders, archives and a site."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import Result

from commands.calls import exit_code, invoke, names_served, opened, refusal
from dispatching import local_serving
from mcp_skills_server.provenance.lock import read
from sources.fetching import listed_names
from sources.hostile import mcp_server
from sources.publishers import skill_md
from tables import each_row
from web.http_wire import http_serving
from wire import serving, write_skill


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a root `skills` of `refunds` and `greetings`."""
    for name in ("refunds", "greetings"):
        write_skill(tmp_path / "skills" / name, description=f"Helps with {name} when asked.")
    monkeypatch.chdir(tmp_path)
    return tmp_path


OPTIONS = ("--cache-dir", "cache", "--allow-private", "--allow-http")


def run(*words: str) -> Result:
    return invoke(*words, *OPTIONS)


def refused(*words: str) -> str:
    return refusal(*words, *OPTIONS)


def change_skill(team: Path, name: str = "refunds") -> None:
    write_skill(team / "skills" / name, description="Says something else.", body="See https://new.example/x\n")


def names_served_frozen(team: Path, *options: str | Path) -> list[str]:
    """Return the names of the skills that `serve --lock --frozen` lists."""
    return names_served("--lock", team / "skills.lock", "--frozen", *options)


def test_lock_names_sources_and_skills_and_is_reproducible(team: Path) -> None:
    done = run("lock", "skills")
    assert (exit_code(done), done.stderr) == (0, "mcp-skills-server: skills.lock: 2 skills of 1 source\n")
    (source,) = read(team / "skills.lock")
    assert (source.given, source.revision, sorted(source.skills)) == ("skills", "", ["greetings", "refunds"])
    before = (team / "skills.lock").read_bytes()
    assert exit_code(run("lock", "skills")) == 0 and (team / "skills.lock").read_bytes() == before


def test_relative_paths_start_at_the_lock_files_folder(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (team / "deploy").mkdir()
    assert exit_code(run("lock", "skills", "--output", "deploy/skills.lock")) == 0
    assert read(team / "deploy" / "skills.lock")[0].given == "../skills"
    assert exit_code(run("update", "--check", "--lock", "deploy/skills.lock")) == 0
    assert exit_code(run("lock", str(team / "skills"))) == 0 and read(team / "skills.lock")[0].given == f"{team}/skills"
    monkeypatch.chdir(team / "deploy")
    assert exit_code(run("update", "--check")) == 0


def test_sources_and_skills_that_cannot_be_locked_are_reported(team: Path) -> None:
    for root in ("https://me:secret@skills.example", "git+ssh://git:secret@git.example/a", "https://me:secret@[::1/"):
        said = refused("lock", root)
        assert "secret" not in said and ("password" in said or "cannot be read as a URL" in said)
    assert "two of these are the same folder; name it once" in refused("lock", "skills", "./skills")
    (team / "empty").mkdir()
    done = run("lock", "skills", "empty")
    assert exit_code(done) == 1
    assert "no skill to serve at empty" in done.stderr and "skills.lock was not written" in done.stderr
    assert not (team / "skills.lock").exists()
    (team / "skills" / "greetings" / "SKILL.md").write_text("nothing")
    assert "not locked: greetings, which cannot be served" in run("lock", "skills").stderr
    assert [*read(team / "skills.lock")[0].skills] == ["refunds"]


def test_check_lists_changes_and_update_accepts_them(team: Path) -> None:
    run("lock", "skills")
    done = run("update", "--check")
    assert (exit_code(done), done.stdout) == (0, "")
    assert done.stderr == "mcp-skills-server: nothing is new: the skills match skills.lock\n"
    done = run("update", "--check", "--format", "json")
    assert (exit_code(done), done.stderr, len(json.loads(done.stdout))) == (0, "", 1)
    before = (team / "skills.lock").read_bytes()
    change_skill(team)
    write_skill(team / "skills" / "new")
    shutil.rmtree(team / "skills" / "greetings")
    done = run("update", "--check")
    assert exit_code(done) == 1
    changes = ["skills:", "  changed  refunds", "  added    new", "  removed  greetings"]
    assert done.stdout.splitlines() == changes
    kinds = {"changed": ["refunds"], "added": ["new"], "removed": ["greetings"]}
    done = run("update", "--check", "--format", "json")
    assert (exit_code(done), json.loads(done.stdout)) == (1, [{"from": "skills", "locked": "", "newest": "", **kinds}])
    assert (team / "skills.lock").read_bytes() == before
    assert run("update").stdout.splitlines() == changes
    assert sorted(read(team / "skills.lock")[0].skills) == ["new", "refunds"]


def test_update_accepts_all_changes_or_the_named_ones(team: Path) -> None:
    run("lock", "skills")
    old = read(team / "skills.lock")[0].skills
    change_skill(team)
    change_skill(team, "greetings")
    assert "no such source or skill" in refused("update", "refnds")
    done = run("update", "--check", "refunds")
    assert (exit_code(done), done.stdout) == (1, "skills:\n  changed  refunds\n")
    assert read(team / "skills.lock")[0].skills == old
    assert run("update", "refunds").stdout == "skills:\n  changed  refunds\n"
    new = read(team / "skills.lock")[0].skills
    assert new["greetings"] == old["greetings"]
    assert new["refunds"] != old["refunds"]
    done = run("update", "refunds")
    assert (done.stdout, done.stderr.count("\n")) == ("", 1) and "nothing of refunds is new: " in done.stderr
    done = run("update", "skills")
    assert (done.stdout, done.stderr) == ("skills:\n  changed  greetings\n", "")
    done = run("update")
    assert done.stdout == "" and "nothing is new: the skills match skills.lock\n" in done.stderr


def test_update_takes_the_name_of_a_nested_skill(team: Path) -> None:
    paths = ("acme/billing/refunds", "acme/gone", "one/twin", "two/twin", "twin/three")
    for path in paths:
        write_skill(team / "deep" / path)
    run("lock", "deep")
    for path in paths:
        write_skill(team / "deep" / path, body="New.\n")
    shutil.rmtree(team / "deep/acme/gone")
    assert run("update", "refunds").stdout == "deep:\n  changed  acme/billing/refunds\n"
    assert run("update", "gone").stdout == "deep:\n  removed  acme/gone\n"
    assert refused("update", "twin") == "twin: several skills have this name; write one/twin or two/twin"
    for name in ("unds", "billing", "deep/twin", ""):
        assert "no such source or skill" in refused("update", name)
    assert run("update", "two/twin").stdout == "deep:\n  changed  two/twin\n"
    assert run("update", "deep").stdout == "deep:\n  changed  one/twin\n  changed  twin/three\n"


def test_diff_of_two_roots_shows_summary_before_lines(team: Path) -> None:
    shutil.copytree(team / "skills", team / "before")
    done = run("diff", "before", "skills")
    assert (exit_code(done), done.stdout) == (0, "")
    change_skill(team)
    done = run("diff", "before", "skills")
    lines = done.stdout.splitlines()
    assert exit_code(done) == 1
    assert lines[:3] == [
        "refunds: changed",
        '  description: "Helps with refunds when asked." -> "Says something else."',
        "  link new: https://new.example/x",
    ]
    assert {"-description: Helps with refunds when asked.", "+See https://new.example/x"} < {*lines}
    write_skill(team / "skills" / "refunds", body="\x1b[2Jgone\u202e\n")
    out = run("diff", "before", "skills").stdout
    assert "\x1b" not in out and "\u202e" not in out


def test_diff_of_lock_file_names_changed_skills_and_shows_new_ones(team: Path) -> None:
    run("lock", "skills")
    done = run("diff", "--lock", "skills.lock")
    assert (exit_code(done), done.stdout) == (0, "")
    change_skill(team)
    write_skill(team / "skills" / "new", description="Runs what it likes.")
    done = run("diff", "--lock", "skills.lock")
    lines = done.stdout.splitlines()
    assert exit_code(done) == 1
    assert "new: added" in lines and '  description: "Runs what it likes."' in lines
    heading = lines.index("refunds: changed")
    assert lines[heading + 1] == "the source no longer has the locked text"


@each_row("words", [["diff"], ["diff", "a"], ["diff", "a", "b", "c"], ["diff", "a", "--lock", "x"]])
def test_diff_takes_two_roots_or_a_lock_file(team: Path, words: list[str]) -> None:
    assert "two roots" in refused(*words)


def test_lock_names_the_served_one_of_two_skills_with_one_path(team: Path) -> None:
    write_skill(team / "more" / "refunds", description="Another one.")
    write_skill(team / "more" / "extra")
    names = ["extra", "greetings", "refunds"]
    done = run("lock", "skills", "more")
    assert exit_code(done) == 0
    assert "not locked: more/refunds: the skill refunds is hidden by skills/refunds" in done.stderr
    assert [sorted(each.skills) for each in read(team / "skills.lock")] == [["greetings", "refunds"], ["extra"]]
    for command in (["update", "--check"], ["diff", "--lock", "skills.lock"]):
        done = run(*command)
        assert (exit_code(done), done.stdout) == (0, "")
    assert names_served_frozen(team) == names
    shutil.rmtree(team / "skills" / "refunds")  # which uncovers more/refunds
    changes = ["skills:", "  removed  refunds", "more:", "  added    refunds"]
    assert run("update", "--check").stdout.splitlines() == changes
    assert exit_code(run("update")) == 0 and names_served_frozen(team) == names
    write_skill(team / "skills" / "refunds")
    assert "not locked: refunds of more" in run("update", "skills").stderr and names_served_frozen(team) == names


def test_every_command_takes_roots_from_the_configuration(team: Path) -> None:
    (team / "conf").mkdir()
    (team / "conf" / "skills.toml").write_text('lock = "locked.toml"\n[[source]]\nfrom = "../skills"\n')
    options = ["--config", "conf/skills.toml"]
    assert exit_code(run("lock", "--output", "conf/locked.toml", *options)) == 0
    assert [each.given for each in read(team / "conf" / "locked.toml")] == ["../skills"]
    assert exit_code(run("update", "--check", *options)) == 0
    change_skill(team)
    for command, output in (
        ("update --check", "changed  refunds"),
        ("diff", "refunds: changed"),
        ("list", "refunds"),
        ("validate", "2 skills"),
        ("show refunds", "Says something else"),
        ("update", "changed  refunds"),
    ):
        assert output in run(*command.split(), *options).stdout, command
    assert exit_code(run("publish", "--output", "public", *options)) == 0
    assert names_served("--config", team / "conf" / "skills.toml", "--frozen") == ["greetings", "refunds"]


def test_only_locked_skills_are_served_and_the_others_reported(team: Path) -> None:
    run("lock", "skills")
    write_skill(team / "skills" / "new")
    with opened("--lock", "skills.lock", "--frozen", "--no-watch") as registry:
        assert [*registry.snapshot.skills] == ["greetings", "refunds"]
        assert "the lock file does not name this skill" in str(registry.snapshot.problems)
        change_skill(team)
        registry.refresh()
        assert [*registry.snapshot.skills] == ["greetings"]
        assert "its files are not those that the lock file names" in str(registry.snapshot.problems)
    message = refused("serve", "--lock", "skills.lock", "--frozen")
    assert "refunds cannot be served: its files are not those that the lock file names" in message


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_running_server_reloads_its_lock_file(team: Path) -> None:
    write_skill(team / "more" / "extra")
    run("lock", "skills")
    with serving("--lock", team / "skills.lock") as wire:
        change_skill(team)
        shutil.rmtree(team / "skills" / "greetings")
        write_skill(team / "skills" / "new")
        assert run("update").stdout.count("\n") == 4
        wire.wait_for_log(b"skills.lock was reloaded; it names 2 skills")
        descriptions = {each["frontmatter"]["name"]: each["frontmatter"]["description"] for each in wire.every_skill()}
        assert descriptions.keys() == {"new", "refunds"}
        assert descriptions["refunds"] == "Says something else."
        (team / "skills.lock").write_text("nothing")
        wire.process.send_signal(signal.SIGHUP)
        wire.wait_for_log(b"not a valid lock file")
        run("lock", "skills", "more")
        wire.process.send_signal(signal.SIGHUP)
        wire.wait_for_log(b"restart the server; the former lock stays in force")
        assert listed_names(wire) == ["new", "refunds"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_sighup_rescans_every_source(team: Path) -> None:
    with serving(team / "skills", "--no-watch") as wire:
        assert listed_names(wire) == ["greetings", "refunds"]
        write_skill(team / "skills" / "new")
        wire.process.send_signal(signal.SIGHUP)
        wire.wait_for_log(b"polling every source now")
        assert listed_names(wire) == ["greetings", "new", "refunds"]


def test_given_roots_select_among_the_locked_ones(team: Path) -> None:
    write_skill(team / "more" / "third")
    run("lock", "skills", "more")
    assert names_served_frozen(team, team / "more") == ["third"]
    assert "does not name this root" in refused("serve", "elsewhere", "--lock", "skills.lock")
    assert "give --lock FILE too" in refused("serve", "skills", "--frozen")


def test_changed_skill_of_replaced_archive_is_not_served(team: Path) -> None:
    def pack() -> None:
        with tarfile.open(team / "skills.tar.gz", "w:gz") as archive:
            archive.add(team / "skills", "skills")

    pack()
    run("lock", "skills.tar.gz")
    before = read(team / "skills.lock")[0].revision
    change_skill(team)
    pack()
    moved, changed = run("update", "--check").stdout.splitlines()
    assert len(before) == 64 and changed == "  changed  skills/refunds"
    assert moved.startswith(f"skills.tar.gz: {before[:12]} -> ") and len(moved) == len("skills.tar.gz: ") + 28
    assert names_served("--lock", "skills.lock") == ["greetings"]


def test_locked_site_is_served_from_cache_after_changes_and_offline(team: Path) -> None:
    options = ("--cache-dir", team / "cache", "--allow-private", "--allow-http")
    with http_serving(team / "skills") as server:
        run("lock", f"http://127.0.0.1:{server.port}")
        (before,) = read(team / "skills.lock")
        assert names_served_frozen(team, *options) == ["greetings", "refunds"]
        change_skill(team)
        shutil.rmtree(team / "skills" / "greetings")
        done = run("update", "--check")
        for _ in range(200):  # until the site serves the change
            if not exit_code(done):
                done = run("update", "--check")
        assert "changed  refunds" in done.stdout
        assert names_served_frozen(team, *options) == ["greetings", "refunds"]
        assert exit_code(run("update")) == 0
        (after,) = read(team / "skills.lock")
        assert after.revision != before.revision
        assert names_served_frozen(team, *options) == ["refunds"]
    assert names_served_frozen(team, *options) == ["refunds"]  # with the site down


@each_row(("root", "names"), [
    ("mcp+stdio:touch ran", ["update", "--check"]),
    ("mcp+stdio:touch ran", ["update"]),
    ("mcp+stdio:touch ran", ["diff", "--lock", "skills.lock"]),
    ("mcp+stdio:touch ran", ["serve", "--lock", "skills.lock", "--frozen"]),
    ("./x/../mcp+stdio:touch ran", ["update", "--check"]),  # a path until it is normalized
])  # fmt: skip
def test_command_of_a_lock_file_is_not_started(team: Path, root: str, names: list[str]) -> None:
    text = f"version = 1\n[[source]]\nfrom = {json.dumps(root)}\n[source.skills]\n"
    (team / "skills.lock").write_text(text, encoding="utf-8")
    said = refused(*names)
    assert "mcp+stdio:" in said and not (team / "ran").exists()


def test_command_of_the_command_line_is_served_as_locked(team: Path) -> None:
    given = mcp_server(team, {"good": {"SKILL.md": skill_md("good")}})
    assert exit_code(run("lock", given)) == 0
    options = ("--lock", team / "skills.lock", "--cache-dir", team / "cache", "--first-load", "60")
    with local_serving(*options, given) as wire:
        assert listed_names(wire) == ["good"]


def test_file_named_as_a_command_is_not_started(team: Path) -> None:
    """`validate *` has the names of files among its roots."""
    name = "mcp+stdio:touch ran"
    (team / name).touch()
    assert "a file here has the name of this command" in refused("validate", *(each.name for each in team.iterdir()))
    assert not (team / "ran").exists()
