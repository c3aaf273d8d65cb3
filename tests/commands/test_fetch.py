"""`fetch`, in a process and at a terminal."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.calls import run, terminal
from sources.publishers import INDEX, Publisher, redirect, respond_with, skill_md
from tables import each_row


@pytest.fixture
def site() -> Iterator[Publisher]:
    with Publisher() as publisher:
        publisher.add("billing")
        publisher.pack("refunds", {"SKILL.md": (skill_md("refunds"), False), "a.md": (b"a", False)})
        yield publisher


def fetch(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("fetch", *words, "--allow-private", **environment)


def test_fetch_lists_fetches_and_updates(site: Publisher, tmp_path: Path) -> None:
    done = fetch(site.url, "--list")
    assert (done.returncode, done.stderr) == (0, "")
    rows = "billing  skill-md  Does billing.\nrefunds  archive   Does refunds.\n"
    assert done.stdout == f"NAME     TYPE      DESCRIPTION\n{rows}"
    done = fetch(site.url, "--output", tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mcp-skills-server: {site.url}{INDEX}: 2 added (") and line.endswith("bytes downloaded)")
    site.add("billing", skill_md("billing", "Read more."))
    assert "1 updated, 1 unchanged" in fetch("--output", tmp_path, "--update").stderr
    (tmp_path / "refunds" / "a.md").write_text("mine")
    done = fetch("--output", tmp_path, "--update")
    assert f"refunds: it was edited in {tmp_path}, and stays; --force" in done.stderr
    assert "1 edited" in done.stderr
    assert "1 updated" in fetch("--output", tmp_path, "--update", "--force").stderr
    site.entries.pop()
    done = fetch("--output", tmp_path, "--update")
    assert done.returncode == 0 and "billing: it is gone from the index, and stays; --prune" in done.stderr
    done = fetch("--output", tmp_path, "--update", "--prune")
    assert done.returncode == 0 and "was removed" in done.stderr and "1 removed" in done.stderr
    assert sorted(os.listdir(tmp_path)) == [".mcp-skills", "refunds"]


def test_update_keeps_the_selection_of_skills(site: Publisher, tmp_path: Path) -> None:
    fetch(site.url, "--output", tmp_path, "--skill", "refunds")
    assert "1 unchanged" in fetch("--output", tmp_path, "--update").stderr
    assert sorted(os.listdir(tmp_path)) == [".mcp-skills", "refunds"]


def test_exit_code_depends_on_the_fault_of_the_index(site: Publisher, tmp_path: Path) -> None:
    unknown_version = b'{"$schema": "x", "skills": []}'
    for body, message in ((b"{", "the index is not JSON"), (unknown_version, "unknown version")):
        site.routes[INDEX] = respond_with(body)
        for options in (["--output", str(tmp_path)], ["--list"]):
            done = fetch(site.url, *options)
            assert done.returncode == 1 and message in done.stderr
    for route in (respond_with(b"", 404), respond_with(b"", 503), redirect("http://10.0.0.1/")):
        site.routes[INDEX] = route
        done = fetch(site.url, "--output", tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_oversized_skill_is_reported_and_exits_with_1(site: Publisher, tmp_path: Path) -> None:
    site.pack("large", {"SKILL.md": (skill_md("large"), False), "a.bin": (bytes(5000), False)})
    done = fetch(site.url, "--output", tmp_path, "--max-unpacked-bytes", "5000")
    assert done.returncode == 1 and done.stdout == ""
    first, last = done.stderr.splitlines()
    assert first.startswith("mcp-skills-server: refused: large: all skills of the source together have more than 5000 ")
    assert "2 added, 1 refused" in last
    assert fetch(site.url, "--output", tmp_path).returncode == 0


def test_secret_in_a_url_is_never_printed(site: Publisher, tmp_path: Path) -> None:
    url = f"{site.url}{INDEX}?key=very-secret"
    url_with_password = "https://user:very-secret@example.com"
    done = fetch(url, "--output", tmp_path)
    assert done.returncode == 0 and f"{site.url}{INDEX}: 2 added" in done.stderr
    assert "very-secret" not in done.stdout + done.stderr
    site.routes[INDEX] = respond_with(b"{")
    for words, code in (
        ([url], 1),
        ([url_with_password], 2),
        ([url, "--fetch-origin", url_with_password], 2),
    ):
        done = fetch(*words, "--output", tmp_path)
        assert done.returncode == code
        assert "very-secret" not in done.stdout + done.stderr


@each_row(("command", "option"), [("list", "--cache-dir"), ("fetch", "--output")])
def test_error_names_the_url_of_the_site_once(site: Publisher, tmp_path: Path, command: str, option: str) -> None:
    site.routes[INDEX] = respond_with(b"", 403)
    done = run(command, site.url, "--allow-private", option, tmp_path / "folder")
    assert done.returncode == 2 and done.stderr.count(site.url) == 1
    assert done.stderr.startswith(f"mcp-skills-server: {site.url}: {INDEX} asks for permission")


def test_list_reports_invalid_entries(site: Publisher) -> None:
    site.add("billing", digest="none")
    site.add("later", type="bundle")
    done = fetch(site.url, "--list")
    assert done.returncode == 1 and done.stdout.splitlines()[1].startswith("refunds ")
    assert "refused: billing: its digest" in done.stderr and "warning: later: its type 'bundle'" in done.stderr


SITE = ("https://example.com", "--output", "x")


@each_row(("words", "message"), [
    ([], "--output DIR"), (["https://example.com"], "--output DIR"), (["--output", "x"], "needs the URL of a site"),
    (["--list"], "--list needs the URL"), (["example.com", "--output", "x"], "not an http or https URL"),
    (["ftp://x", "--output", "x"], "not an http or https URL"),
    ([*SITE, "--fetch-origin", "cdn"], "not an http or https URL"), ([*SITE, "--header", "nothing"], "NAME:VALUE"),
    ([*SITE, "--header", "Host: a"], "--header cannot set Host"), ([*SITE, "--timeout", "0"], "--timeout"),
    ([*SITE, "--token-env", "NO_SUCH"], "no such variable, or it is empty; set it"),
    (["https://127.0.0.1:1", "--list"], "--allow-private allows it"), (["http://192.0.2.1", "--list"], "--allow-http"),
    (["--output", "fixtures/skills", "--update"], "nothing was fetched into it"),
    (["https://127.0.0.1:1", "--list", "--allow-private"], "cannot be reached"),
])  # fmt: skip
def test_invalid_usage_is_reported_in_one_line(words: list[str], message: str) -> None:
    done = run("fetch", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("mcp-skills-server: ") and message in done.stderr


@pytest.mark.requirement("WK-57", "WK-58")
def test_token_is_sent_only_to_the_site_and_never_printed(site: Publisher, tmp_path: Path) -> None:
    with Publisher() as other:
        raw = skill_md("billing")
        other.routes["/b"] = respond_with(raw)
        site.routes["/a/billing"] = redirect(f"{other.url}/b")
        words = [site.url, "--output", str(tmp_path), "--token-env", "TOKEN"]
        words += ["--header", "X-Team: billing"]
        done = fetch(*words, TOKEN="very-secret")
        assert done.returncode == 1 and "--fetch-origin" in done.stderr
        done = fetch(*words, "--fetch-origin", other.url, TOKEN="very-secret")
        assert done.returncode == 0
        assert {each.headers.get("authorization") for each in site.requests} == {"Bearer very-secret"}
        assert {each.headers.get("x-team") for each in site.requests} == {"billing"}
        assert other.requests
        assert not any({"authorization", "x-team"} & each.headers.keys() for each in other.requests)
    assert "very-secret" not in done.stdout + done.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"very-secret" in raw for raw in written)


@each_row("options", [("--header", "very-secret"), ("--header", "A: very-secret\x07"), ("--token-env", "TOKEN")])
def test_secret_in_a_header_is_not_in_an_error(tmp_path: Path, options: tuple[str, str]) -> None:
    done = fetch("https://example.com", "--output", tmp_path, *options, TOKEN="very secret")
    assert done.returncode == 2 and "very" not in done.stderr


def test_update_of_several_sources_exits_with_the_worst_code(site: Publisher, tmp_path: Path) -> None:
    with Publisher() as other:
        other.add("other")
        for each in (site, other):
            assert fetch(each.url, "--output", tmp_path).returncode == 0
        done = fetch("--output", tmp_path, "--update", TOKEN="a")
        assert done.returncode == 0 and len(done.stderr.splitlines()) == 2
        with_token = fetch("--output", tmp_path, "--update", "--token-env", "TOKEN", TOKEN="a")
        assert with_token.returncode == 2 and "for one site" in with_token.stderr
        with_skill = fetch("--output", tmp_path, "--update", "--skill", "other")
        assert with_skill.returncode == 2 and "--skill needs the URL" in with_skill.stderr
    done = fetch("--output", tmp_path, "--update")
    assert done.returncode == 2 and "2 unchanged" in done.stderr and "cannot be reached" in done.stderr


def test_terminal_shows_a_progress_bar(site: Publisher, tmp_path: Path) -> None:
    with terminal("fetch", site.url, "--allow-private", "--output", tmp_path) as screen:
        assert screen.end() == 0
    assert "2/2" in screen.seen and "2 added" in screen.seen
