"""`fetch` as a person or a script runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import forkserver
from sources.publishers import INDEX, Publisher, answer, redirect, skill_md
from tables import each_row
from web.http_wire import http_serving
from wire import COMMAND, DEADLINE, FIXTURES


@pytest.fixture
def site() -> Iterator[Publisher]:
    with Publisher() as publisher:
        publisher.add("billing")
        publisher.pack("refunds", {"SKILL.md": (skill_md("refunds"), False), "a.md": (b"a", False)})
        yield publisher


def run(*arguments: str | Path, command: str = "fetch", **environment: str) -> subprocess.CompletedProcess[str]:
    return forkserver.run(
        [*COMMAND, command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def test_it_fetches_lists_and_updates(site: Publisher, tmp_path: Path) -> None:
    done = run(site.url, "--allow-private", "--list")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == "billing  skill-md  Does billing.\nrefunds  archive   Does refunds.\n"
    done = run(site.url, "--allow-private", "--output", tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mcp-skills-server: {site.url}{INDEX}: 2 added (") and line.endswith("bytes downloaded)")
    site.add("billing", skill_md("billing", "Read more."))
    done = run("--output", tmp_path, "--update", "--allow-private")
    assert done.returncode == 0 and "1 updated, 1 unchanged" in done.stderr
    site.entries.pop()
    done = run("--output", tmp_path, "--update", "--allow-private")
    assert done.returncode == 0 and "billing: it is gone from the index, and stays; --prune" in done.stderr
    done = run("--output", tmp_path, "--update", "--allow-private", "--prune")
    assert done.returncode == 0 and "was removed" in done.stderr and "1 removed" in done.stderr
    assert sorted(os.listdir(tmp_path)) == [".mcp-skills", "refunds"]


def test_an_update_keeps_to_what_was_asked_for(site: Publisher, tmp_path: Path) -> None:
    run(site.url, "--allow-private", "--output", tmp_path, "--skill", "refunds")
    assert "1 unchanged" in run("--output", tmp_path, "--update", "--allow-private").stderr
    assert sorted(os.listdir(tmp_path)) == [".mcp-skills", "refunds"]


@pytest.mark.requirement("WK-48", "WK-60", "X-23")
def test_a_failed_proof_is_one_line_and_1(site: Publisher, tmp_path: Path) -> None:
    site.routes["/a/billing"] = answer(skill_md("billing", "Tampered."))
    done = run(site.url, "--allow-private", "--output", tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    first, last = done.stderr.splitlines()
    assert first.startswith("mcp-skills-server: refused: billing: its digest is sha256:")
    assert last.startswith(f"mcp-skills-server: {site.url}{INDEX}: 1 added, 1 refused")
    assert sorted(os.listdir(tmp_path)) == [".mcp-skills", "refunds"]


def test_what_the_index_itself_says_decides_the_code(site: Publisher, tmp_path: Path) -> None:
    for body, said in ((b"{", "the index is not JSON"), (b'{"$schema": "x", "skills": []}', "unknown version")):
        site.routes[INDEX] = answer(body)
        for arguments in (["--output", str(tmp_path)], ["--list"]):
            done = run(site.url, "--allow-private", *arguments)
            assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
    for route in (answer(b"", 404), answer(b"", 503), redirect("http://10.0.0.1/")):
        site.routes[INDEX] = route
        done = run(site.url, "--allow-private", "--output", tmp_path)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_what_does_not_fit_is_one_line_each_and_1(site: Publisher, tmp_path: Path) -> None:
    site.pack("large", {"SKILL.md": (skill_md("large"), False), "a.bin": (bytes(5000), False)})
    done = run(site.url, "--allow-private", "--output", tmp_path, "--max-unpacked-bytes", "5000")
    assert done.returncode == 1 and done.stdout == ""
    first, last = done.stderr.splitlines()
    assert first.startswith("mcp-skills-server: refused: large: all skills of the source together have more than 5000 ")
    assert "2 added, 1 refused" in last
    assert run(site.url, "--allow-private", "--output", tmp_path).returncode == 0


def test_a_secret_in_the_address_is_in_no_line(site: Publisher, tmp_path: Path) -> None:
    given = f"{site.url}{INDEX}?key=very-secret"
    done = run(given, "--allow-private", "--output", tmp_path)
    assert done.returncode == 0 and f"{site.url}{INDEX}: 2 added" in done.stderr
    site.routes[INDEX] = answer(b"{")
    broken = run(given, "--allow-private", "--output", tmp_path)
    wrong = run("https://user:very-secret@example.com", "--output", tmp_path)
    origin = run(given, "--output", tmp_path, "--fetch-origin", "https://user:very-secret@example.com")
    assert [each.returncode for each in (broken, wrong, origin)] == [1, 2, 2]
    for each in (done, broken, wrong, origin):
        assert "very-secret" not in each.stdout + each.stderr


@pytest.mark.parametrize("command", ["list", "fetch"])
def test_an_error_names_the_address_of_the_site_once(site: Publisher, tmp_path: Path, command: str) -> None:
    where = ["--output", str(tmp_path / "out")] if command == "fetch" else ["--cache-dir", str(tmp_path / "cache")]
    site.routes[INDEX] = answer(b"", 403)
    done = run(site.url, "--allow-private", *where, command=command)
    assert done.returncode == 2 and done.stderr.startswith(
        f"mcp-skills-server: {site.url}: {INDEX} asks for permission"
    )
    assert done.stderr.count(site.url) == 1


def test_a_broken_entry_is_listed_as_refused(site: Publisher) -> None:
    site.add("billing", digest="none")
    site.add("later", type="bundle")
    done = run(site.url, "--allow-private", "--list")
    assert done.returncode == 1 and done.stdout.startswith("refunds ")
    assert "refused: billing: its digest" in done.stderr and "warning: later: its type 'bundle'" in done.stderr


@each_row(
    ("arguments", "said"),
    [
        ([], "--output DIR"),
        (["https://example.com"], "--output DIR"),
        (["--output", "x"], "needs the URL of a site"),
        (["--list"], "--list needs the URL"),
        (["example.com", "--output", "x"], "not an http or https URL"),
        (["ftp://x", "--output", "x"], "not an http or https URL"),
        (["https://example.com", "--output", "x", "--fetch-origin", "cdn"], "not an http or https URL"),
        (["https://example.com", "--output", "x", "--header", "nothing"], "NAME:VALUE"),
        (["https://example.com", "--output", "x", "--header", "Host: a"], "--header cannot set Host"),
        (["https://example.com", "--output", "x", "--token-env", "NO_SUCH"], "there is no such variable"),
        (["https://example.com", "--output", "x", "--timeout", "0"], "--timeout"),
        (["https://127.0.0.1:1", "--list"], "--allow-private allows it"),
        (["http://192.0.2.1", "--list"], "--allow-http"),
        (["--output", "fixtures/skills", "--update"], "nothing was fetched into it"),
        (["https://127.0.0.1:1", "--list", "--allow-private"], "cannot be reached"),
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and done.stdout == "" and said in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("mcp-skills-server: ")


@pytest.mark.requirement("WK-57", "WK-58")
def test_a_token_goes_to_the_site_alone_and_is_never_shown(site: Publisher, tmp_path: Path) -> None:
    with Publisher() as other:
        raw = skill_md("billing")
        other.routes["/b"] = answer(raw)
        site.routes["/a/billing"] = redirect(f"{other.url}/b")
        given = [site.url, "--allow-private", "--output", str(tmp_path), "--token-env", "TOKEN"]
        given += ["--header", "X-Team: billing"]
        done = run(*given, TOKEN="very-secret")
        assert done.returncode == 1 and "--fetch-origin" in done.stderr
        done = run(*given, "--fetch-origin", other.url, TOKEN="very-secret")
        assert done.returncode == 0
        assert {each.headers.get("authorization") for each in site.asked} == {"Bearer very-secret"}
        assert {each.headers.get("x-team") for each in site.asked} == {"billing"}
        assert other.asked and not any({"authorization", "x-team"} & each.headers.keys() for each in other.asked)
    assert "very-secret" not in done.stdout + done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"very-secret" in path.read_bytes()]


def test_a_secret_among_the_headers_is_not_in_a_message(tmp_path: Path) -> None:
    for arguments in (["--header", "very-secret"], ["--header", "A: very-secret\x07"], ["--token-env", "TOKEN"]):
        done = run("https://example.com", "--output", tmp_path, *arguments, TOKEN="very secret")
        assert done.returncode == 2 and "very" not in done.stderr


def test_several_sources_are_updated_and_the_worst_counts(site: Publisher, tmp_path: Path) -> None:
    with Publisher() as other:
        other.add("other")
        for each in (site, other):
            assert run(each.url, "--allow-private", "--output", tmp_path).returncode == 0
        done = run("--output", tmp_path, "--update", "--allow-private", TOKEN="a")
        assert done.returncode == 0 and len(done.stderr.splitlines()) == 2
        with_token = run("--output", tmp_path, "--update", "--allow-private", "--token-env", "TOKEN", TOKEN="a")
        assert with_token.returncode == 2 and "for one site" in with_token.stderr
        with_skill = run("--output", tmp_path, "--update", "--skill", "other")
        assert with_skill.returncode == 2 and "--skill needs the URL" in with_skill.stderr
    done = run("--output", tmp_path, "--update", "--allow-private")
    assert done.returncode == 2 and "2 unchanged" in done.stderr and "cannot be reached" in done.stderr


def test_a_terminal_sees_a_progress_bar(site: Publisher, tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    primary, secondary = pty.openpty()
    arguments = [*COMMAND, "fetch", site.url, "--allow-private", "--output", str(tmp_path)]
    process = forkserver.Popen(arguments, stderr=secondary, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    os.close(secondary)
    seen = b""
    with suppress(OSError):  # the end of a terminal
        while piece := os.read(primary, 65536):
            seen += piece
    os.close(primary)
    assert process.wait(DEADLINE) == 0
    assert process.stdout is not None and process.stdout.read() == b""
    process.stdout.close()
    assert b"2/2" in seen and b"2 added" in seen


def test_publish_fetch_and_serve_keep_the_number_of_skills(tmp_path: Path) -> None:
    with http_serving(FIXTURES) as site:
        address = f"http://127.0.0.1:{site.port}"
        words = [*COMMAND, "fetch", address, "--output", str(tmp_path / "mine"), "--allow-private"]
        forkserver.run(words, check=True, capture_output=True, timeout=DEADLINE)
    seen: dict[Path, list[dict[str, Any]]] = {}
    for root in (FIXTURES, tmp_path / "mine"):
        listed = forkserver.run([*COMMAND, "list", str(root), "--format", "json"], check=True, capture_output=True)
        seen[root] = json.loads(listed.stdout)["skills"]
    names = {root: sorted(each["name"] for each in skills) for root, skills in seen.items()}
    assert names[FIXTURES] == names[tmp_path / "mine"] and len(names[FIXTURES]) == 17
    assert {each["origin"] for each in seen[tmp_path / "mine"]} == {address}
