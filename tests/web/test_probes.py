"""Health and readiness probes: sites that do not respond, failing roots, and what each principal sees."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path

from sources.publishers import INDEX, Publisher, index_of, respond_with
from web.http_wire import Target, bearer_header, client, wait_until
from web.in_process import app_serving
from wire import write_skill

serving = partial(app_serving, ready=False)
TOKEN = "made-up-token-of-alpha-000001"


def site_options(tmp_path: Path) -> list[str]:
    return ["--allow-private", "--allow-http", "--cache-dir", str(tmp_path / "cache")]


def probe(server: Target, path: str = "/readyz", token: str | None = None) -> tuple[int, list[str]]:
    headers = {} if token is None else bearer_header(token)
    reply = server.send("GET", path, headers=headers)
    return reply.status, reply.body.decode().splitlines()


def wait_for_scan(server: Target) -> None:
    """Wait for the end of the first scan, which comes a moment after its line in the log."""
    wait_until(lambda: "first scan" not in probe(server)[1][0])


def test_site_that_never_responded_makes_server_not_ready(tmp_path: Path) -> None:
    write_skill(tmp_path / "local" / "mine")
    with Publisher() as publisher:
        publisher.routes[INDEX] = respond_with(b"", 503)
        site = f"{publisher.url}{INDEX}"
        with serving(f"{site}?key=very-secret", tmp_path / "local", *site_options(tmp_path)) as server:
            server.wait_for_log("there is no copy of it yet")
            wait_for_scan(server)
            status, lines = probe(server)
            assert status == 503 and len(lines) == 1
            assert lines[0].startswith(f"{site}: ") and "503" in lines[0]
            assert server.send("GET", "/healthz").status == 200
            assert probe(server, "/readyz?verbose") == (503, [lines[0], f"{tmp_path}/local: read", lines[0]])
            assert "very-secret" not in server.stderr + lines[0]
        with serving(publisher.url, site, *site_options(tmp_path)) as server:
            wait_for_scan(server)
            status, (line,) = probe(server)
            assert status == 503 and line.startswith(f"{publisher.url}: ")
            assert line.endswith(" (and 1 more; see /readyz?verbose)")
        publisher.routes[INDEX] = respond_with(index_of([]))  # an empty index is a response
        with serving(publisher.url, *site_options(tmp_path)) as server:
            server.until_ready()


def test_failing_roots_of_each_kind_are_named_and_counted(tmp_path: Path) -> None:
    for name in ("gone", "closed", "vanished", "cut"):
        write_skill(tmp_path / name / name)
    for name in ("vanished", "cut"):
        shutil.make_archive(str(tmp_path / name), "zip", tmp_path / name)
    roots = [tmp_path / each for each in ("gone", "closed", "vanished.zip", "cut.zip")]
    options = ("--metrics", "--reconcile", "1")
    with serving(*roots, *options) as server, client(server, "modern") as reader:

        def failing() -> int:
            metrics = server.send("GET", "/metrics").body.decode()
            return int(float(re.findall(r"^skills_sources_failing (\S+)$", metrics, re.MULTILINE)[0]))

        server.until_ready()
        assert failing() == 0
        assert len(reader.every_skill()) == 4
        (tmp_path / "gone").rename(tmp_path / "away")
        (tmp_path / "closed").rename(tmp_path / "elsewhere")
        (tmp_path / "closed").write_text("no folder\n")
        (tmp_path / "vanished.zip").unlink()
        os.truncate(tmp_path / "cut.zip", 100)
        wait_until(lambda: failing() == len(roots))
        status, lines = probe(server, "/readyz?verbose")
        assert status == 200 and len(lines) == 5
        assert f"{roots[0]}: cannot be read now; serving the last copy" in lines
        for root in roots:
            (line,) = (each for each in lines if each.startswith(f"{root}: "))
            assert "serving" in line and ("cannot" in line or "(" in line), line
        assert len(reader.every_skill()) == 4  # the last copies


def test_server_without_skills_is_not_ready_unless_allowed(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    with serving(tmp_path / "volume") as server:
        wait_for_scan(server)
        status, lines = probe(server)
        assert status == 503 and "no root has a skill" in lines[0] and "--allow-empty" in lines[0]
        write_skill(tmp_path / "volume" / "a")
        server.until_ready()
        server.wait_for_log("skill a: added")  # a skill removed before the watch starts is never logged
        shutil.rmtree(tmp_path / "volume" / "a")
        server.wait_for_log("skill a: removed")
        assert probe(server)[0] == 200  # a restart would not help
    with serving(tmp_path / "volume", "--allow-empty") as server:
        server.until_ready()


def test_site_is_ready_once_fetched_and_later_by_cached_copy(tmp_path: Path) -> None:
    with Publisher() as publisher:
        publisher.add("alpha")
        arguments = (publisher.url, *site_options(tmp_path))
        with serving(*arguments) as server, client(server, "modern") as reader:
            server.until_ready()
            assert [skill["frontmatter"]["name"] for skill in reader.every_skill()] == ["alpha"]
            status, (first, line) = probe(server, "/readyz?verbose")
            assert (status, first) == (200, "ready")
            assert re.fullmatch(re.escape(publisher.url) + ": fetched, revision [0-9a-f]{64}", line)
        publisher.routes[INDEX] = respond_with(b"", 503)
        with serving(publisher.url, *site_options(tmp_path)) as server:
            wait_for_scan(server)
            server.wait_for_log("serving the last copy")
            status, lines = probe(server, "/readyz?verbose")
            assert (status, lines[0]) == (200, "ready")
            assert lines[1].startswith(f"{publisher.url}: serving the last copy (") and len(lines) == 2
            assert lines[1].count(publisher.url) == 1
            assert "index.json does not answer now" in lines[1]


def test_locations_of_sources_are_shown_to_operators_only(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "a")
    config = tmp_path / "c.toml"
    tokens = {"MCP_SKILLS_TOKENS": f"alpha={TOKEN},ops={TOKEN}-of-ops"}
    grant = "[[grant]]\nwho = ['{}']\nskills = ['{}']\n"
    config.write_text(grant.format("*", "a") + grant.format("token:ops", "**") + "may = ['admin']\n")
    with Publisher() as publisher:
        publisher.routes[INDEX] = respond_with(b"", 503)
        roots = (publisher.url, tmp_path / "skills")
        options = ("--config", config, *site_options(tmp_path))
        with serving(*roots, *options, environment=tokens) as server:
            server.wait_for_log("there is no copy of it yet")
            wait_for_scan(server)
            anonymous = probe(server)[1]
            assert anonymous == ["a source: it has not responded yet, and there is no cached copy"]
            # A query requires a token.
            assert probe(server, "/readyz?verbose")[0] == 401
            assert probe(server, "/healthz?x=1")[0] == 401
            assert probe(server, "/healthz?x=1", TOKEN)[0] == 200
            alpha = probe(server, "/readyz?verbose", TOKEN)[1]
            assert alpha == [*anonymous, "2 roots, 1 of them failing"]
            assert f"{tmp_path}/skills: read" in probe(server, "/readyz?verbose", f"{TOKEN}-of-ops")[1]
        # Without grants every principal is an operator.
        with serving(*roots, *site_options(tmp_path), environment=tokens) as server:
            wait_for_scan(server)
            assert probe(server)[1] == anonymous
            assert f"{tmp_path}/skills: read" in probe(server, "/readyz?verbose", TOKEN)[1]
