"""`fetch` as a person or a script runs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.calls import run, terminal
from sources.publishers import INDEX, Publisher, answer, redirect, skill_md
from tables import each_row


@pytest.fixture
def site() -> Iterator[Publisher]:
    with Publisher() as publisher:
        publisher.add("billing")
        publisher.pack("refunds", {"SKILL.md": (skill_md("refunds"), False), "a.md": (b"a", False)})
        yield publisher


def fetch(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("fetch", *words, "--allow-private", **environment)


def test_it_fetches_lists_and_updates(site: Publisher, tmp_path: Path) -> None:
    done = fetch(site.url, "--list")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "billing  skill-md  Does billing.\nrefunds  archive   Does refunds.\n"
    done = fetch(site.url, "--output", tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mcp-skills-server: {site.url}{INDEX}: 2 added (") and line.endswith("bytes downloaded)")
    site.add("billing", skill_md("billing", "Read more."))
    assert "1 updated, 1 unchanged" in fetch("--output", tmp_path, "--update").stderr
    (tmp_path / "refunds" / "a.md").write_text("mine")
    done = fetch("--output", tmp_path, "--update")
    assert f"refunds: it was edited in {tmp_path}, and stays; --force" in done.stderr and "1 edited" in done.stderr
    assert "1 updated" in fetch("--output", tmp_path, "--update", "--force").stderr
    site.entries.pop()
    done = fetch("--output", tmp_path, "--update")
    assert done.returncode == 0 and "billing: it is gone from the index, and stays; --prune" in done.stderr
    done = fetch("--output", tmp_path, "--update", "--prune")
    assert done.returncode == 0 and "was removed" in done.stderr and "1 removed" in done.stderr
    assert sorted(os.listdir(tmp_path)) == [".mcp-skills", "refunds"]


def test_a_long_description_is_cut_at_100_characters(site: Publisher) -> None:
    site.add("billing", description="d" * 101)
    site.add("refunds", description="d" * 100)
    lines = fetch(site.url, "--list").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["d" * 97 + "...", "d" * 100]


def test_an_update_keeps_to_what_was_asked_for(site: Publisher, tmp_path: Path) -> None:
    fetch(site.url, "--output", tmp_path, "--skill", "refunds")
    assert "1 unchanged" in fetch("--output", tmp_path, "--update").stderr
    assert sorted(os.listdir(tmp_path)) == [".mcp-skills", "refunds"]


@pytest.mark.requirement("WK-48", "WK-60", "X-23")
def test_a_failed_proof_is_one_line_and_1(site: Publisher, tmp_path: Path) -> None:
    site.routes["/a/billing"] = answer(skill_md("billing", "Tampered."))
    done = fetch(site.url, "--output", tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    first, last = done.stderr.splitlines()
    assert first.startswith("mcp-skills-server: refused: billing: its digest is sha256:")
    assert last.startswith(f"mcp-skills-server: {site.url}{INDEX}: 1 added, 1 refused")
    assert sorted(os.listdir(tmp_path)) == [".mcp-skills", "refunds"]


def test_what_the_index_itself_says_decides_the_code(site: Publisher, tmp_path: Path) -> None:
    for body, said in ((b"{", "the index is not JSON"), (b'{"$schema": "x", "skills": []}', "unknown version")):
        site.routes[INDEX] = answer(body)
        for arguments in (["--output", str(tmp_path)], ["--list"]):
            done = fetch(site.url, *arguments)
            assert done.returncode == 1 and said in done.stderr
    for route in (answer(b"", 404), answer(b"", 503), redirect("http://10.0.0.1/")):
        site.routes[INDEX] = route
        done = fetch(site.url, "--output", tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_what_does_not_fit_is_one_line_each_and_1(site: Publisher, tmp_path: Path) -> None:
    site.pack("large", {"SKILL.md": (skill_md("large"), False), "a.bin": (bytes(5000), False)})
    done = fetch(site.url, "--output", tmp_path, "--max-unpacked-bytes", "5000")
    assert done.returncode == 1 and done.stdout == ""
    first, last = done.stderr.splitlines()
    assert first.startswith("mcp-skills-server: refused: large: all skills of the source together have more than 5000 ")
    assert "2 added, 1 refused" in last
    assert fetch(site.url, "--output", tmp_path).returncode == 0


def test_a_secret_in_the_address_is_in_no_line(site: Publisher, tmp_path: Path) -> None:
    given = f"{site.url}{INDEX}?key=very-secret"
    done = fetch(given, "--output", tmp_path)
    assert done.returncode == 0 and f"{site.url}{INDEX}: 2 added" in done.stderr
    site.routes[INDEX] = answer(b"{")
    broken = fetch(given, "--output", tmp_path)
    wrong = fetch("https://user:very-secret@example.com", "--output", tmp_path)
    origin = fetch(given, "--output", tmp_path, "--fetch-origin", "https://user:very-secret@example.com")
    assert [each.returncode for each in (broken, wrong, origin)] == [1, 2, 2]
    for each in (done, broken, wrong, origin):
        assert "very-secret" not in each.stdout + each.stderr


@each_row(("command", "place"), [("list", "--cache-dir"), ("fetch", "--output")])
def test_an_error_names_the_address_of_the_site_once(site: Publisher, tmp_path: Path, command: str, place: str) -> None:
    site.routes[INDEX] = answer(b"", 403)
    done = run(command, site.url, "--allow-private", place, tmp_path / "folder")
    assert done.returncode == 2 and done.stderr.count(site.url) == 1
    assert done.stderr.startswith(f"mcp-skills-server: {site.url}: {INDEX} asks for permission")


def test_a_broken_entry_is_listed_as_refused(site: Publisher) -> None:
    site.add("billing", digest="none")
    site.add("later", type="bundle")
    done = fetch(site.url, "--list")
    assert done.returncode == 1 and done.stdout.startswith("refunds ")
    assert "refused: billing: its digest" in done.stderr and "warning: later: its type 'bundle'" in done.stderr


SITE = ("https://example.com", "--output", "x")


@each_row(("arguments", "said"), [
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
def test_wrong_usage_is_one_line_and_2(arguments: list[str], said: str) -> None:
    done = run("fetch", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("mcp-skills-server: ") and said in done.stderr


@pytest.mark.requirement("WK-57", "WK-58")
def test_a_token_goes_to_the_site_alone_and_is_never_shown(site: Publisher, tmp_path: Path) -> None:
    with Publisher() as other:
        raw = skill_md("billing")
        other.routes["/b"] = answer(raw)
        site.routes["/a/billing"] = redirect(f"{other.url}/b")
        given = [site.url, "--output", str(tmp_path), "--token-env", "TOKEN"]
        given += ["--header", "X-Team: billing"]
        done = fetch(*given, TOKEN="very-secret")
        assert done.returncode == 1 and "--fetch-origin" in done.stderr
        done = fetch(*given, "--fetch-origin", other.url, TOKEN="very-secret")
        assert done.returncode == 0
        assert {each.headers.get("authorization") for each in site.asked} == {"Bearer very-secret"}
        assert {each.headers.get("x-team") for each in site.asked} == {"billing"}
        assert other.asked and not any({"authorization", "x-team"} & each.headers.keys() for each in other.asked)
    assert "very-secret" not in done.stdout + done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"very-secret" in path.read_bytes()]


@each_row("arguments", [("--header", "very-secret"), ("--header", "A: very-secret\x07"), ("--token-env", "TOKEN")])
def test_a_secret_among_the_headers_is_not_in_a_message(tmp_path: Path, arguments: tuple[str, str]) -> None:
    done = fetch("https://example.com", "--output", tmp_path, *arguments, TOKEN="very secret")
    assert done.returncode == 2 and "very" not in done.stderr


def test_several_sources_are_updated_and_the_worst_counts(site: Publisher, tmp_path: Path) -> None:
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


def test_a_terminal_sees_a_progress_bar(site: Publisher, tmp_path: Path) -> None:
    with terminal("fetch", site.url, "--allow-private", "--output", tmp_path) as person:
        assert person.end() == 0 and "2/2" in person.seen and "2 added" in person.seen
