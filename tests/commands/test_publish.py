"""`publish` as a person or a pipeline runs it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from commands.calls import run
from publish.test_static import files, times, whole
from tables import each_row
from wire import write_skill


def publish(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run("publish", *words)


def refused(*arguments: str | Path) -> str:
    """The one line that is said before it exits with 2."""
    done = publish(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    return done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "lone")
    write_skill(tmp_path / "skills" / "more", notes_md="notes")
    return tmp_path / "skills"


def test_it_publishes_and_says_so_and_does_it_once(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "public"
    done = publish(root, "--output", output)
    assert (done.returncode, done.stdout) == (0, "") and "published 2 skills" in done.stderr and whole(output)
    before = times(output)
    done = publish(root, "--output", output)
    assert done.returncode == 0 and "nothing to change" in done.stderr and times(output) == before


def test_a_check_exits_with_1_and_names_what_differs(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "public"
    done = publish(root, "--output", output, "--check")
    assert done.returncode == 1 and not output.exists()
    assert ".well-known/agent-skills/index.json: missing" in done.stdout.splitlines()
    publish(root, "--output", output)
    done = publish(root, "--output", output, "--check")
    assert (done.returncode, done.stdout) == (0, "")
    (output / ".well-known" / "skills" / "more" / "notes.md").write_bytes(b"tampered")
    done = publish(root, "--output", output, "--check")
    assert (done.returncode, done.stdout) == (1, ".well-known/skills/more/notes.md: different\n")
    assert "not current: 1 file to change" in done.stderr


def test_what_is_left_out_is_told(root: Path, tmp_path: Path) -> None:
    write_skill(root / "Bad")
    (write_skill(root / "foreign") / "Größe.md").write_bytes(b"x")
    done = publish(root, "--output", tmp_path / "public")
    assert done.returncode == 1 and "nothing was published" in done.stderr and "Bad: not published: " in done.stderr
    assert not files(tmp_path / "public")
    done = publish(root, "--output", tmp_path / "public", "--allow-partial")
    assert done.returncode == 0 and "published 3 skills" in done.stderr
    for options, code in ((["--check"], 1), (["--check", "--allow-partial"], 0), ([], 1), (["--allow-partial"], 0)):
        assert publish(root, "--output", tmp_path / "public", *options).returncode == code, options
    assert "Bad: not published: " in done.stderr and "foreign: published only by discovery 0.2.0: " in done.stderr


def test_a_push_without_a_skill_that_is_there_reaches_no_registry(root: Path) -> None:
    write_skill(root / "Bad")
    with socket.create_server(("127.0.0.1", 0)) as registry:
        registry.setblocking(False)
        done = run("push", root, f"oci+http://127.0.0.1:{registry.getsockname()[1]}/team/skills")
        assert done.returncode == 1 and "nothing was pushed" in done.stderr and "Bad: not pushed" in done.stderr
        with pytest.raises(BlockingIOError):
            registry.accept()


def test_several_roots_and_a_base(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "others" / "third")
    base = "https://cdn.example.com/v1"
    done = publish(root, tmp_path / "others", "--output", tmp_path / "public", "--base-url", base, "--headers")
    assert done.returncode == 0 and (tmp_path / "public" / "_headers").is_file()
    index = json.loads((tmp_path / "public/.well-known/agent-skills/index.json").read_bytes())
    assert [entry["name"] for entry in index["skills"]] == ["lone", "more", "third"]
    assert all(entry["url"].startswith(base + "/.well-known/") for entry in index["skills"])


@each_row(
    "base",
    ["cdn.example.com", "ftp://x", "https://", "https://x/?a", "https://x#a", "https://u:p@x", "//x", "/a b", "["],
)
def test_a_base_that_no_client_could_follow_is_refused(root: Path, tmp_path: Path, base: str) -> None:
    assert "--base-url" in refused(root, "--output", tmp_path / "public", "--base-url", base)
    assert not (tmp_path / "public").exists()


def test_folders_that_cannot_be_the_output_are_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "index.html").write_bytes(b"mine")
    assert "not written by this program" in refused(root, "--output", tmp_path / "foreign")
    assert files(tmp_path / "foreign") == {"index.html": b"mine"}
    assert "lies in" in refused(root, "--output", root / "public")
    assert "lies in" in refused(root, "--output", root)
    assert "not a folder" in refused(root, "--output", tmp_path / "foreign" / "index.html")
    assert "cannot be written" in refused(root, "--output", tmp_path / "foreign" / "index.html" / "below")
    assert "no such file or folder" in refused(tmp_path / "nowhere", "--output", tmp_path / "public")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root writes everywhere")
def test_an_output_without_permission_is_one_line(root: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    assert "cannot be written" in refused(root, "--output", tmp_path / "closed")
    assert "cannot be written" in refused(root, "--output", tmp_path / "closed" / "below")
