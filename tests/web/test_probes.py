"""`/healthz` and `/readyz`: a server is ready when every site among its roots has answered, or has a copy kept."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from sources.publishers import INDEX, Publisher, answer, index_of
from web.http_wire import Server, bearing, client, http_serving, until
from wire import write_skill

TOKEN = "made-up-token-of-alpha-000001"


def options(tmp_path: Path) -> list[str]:
    return ["--allow-private", "--allow-http", "--cache-dir", str(tmp_path / "cache")]


def asked(server: Server, path: str = "/readyz") -> tuple[int, list[str]]:
    reply = server.send("GET", path)
    return reply.status, reply.body.decode().splitlines()


def until_scanned(server: Server) -> None:
    """The log says what is served a moment before the scan counts as done."""
    until(lambda: "first scan" not in asked(server)[1][0])


def test_a_site_that_never_answered_is_not_ready_and_says_why(tmp_path: Path) -> None:
    write_skill(tmp_path / "local" / "mine")
    with Publisher() as publisher:
        publisher.routes[INDEX] = answer(b"", 503)
        site = f"{publisher.url}{INDEX}"
        with http_serving(f"{site}?key=very-secret", tmp_path / "local", *options(tmp_path)) as server:
            server.said("there is no copy of it yet")
            until_scanned(server)
            status, lines = asked(server)
            assert status == 503 and len(lines) == 1
            assert lines[0].startswith(f"{site}: ") and "503" in lines[0]
            assert server.send("GET", "/healthz").status == 200
            assert asked(server, "/readyz?verbose") == (503, [lines[0], f"{tmp_path}/local: read", lines[0]])
            assert "very-secret" not in server.stderr + lines[0]
        with http_serving(publisher.url, site, *options(tmp_path)) as server:
            until_scanned(server)
            status, (line,) = asked(server)
            assert status == 503 and line.startswith(f"{publisher.url}: ")
            assert line.endswith(" (and 1 more; see /readyz?verbose)")
        publisher.routes[INDEX] = answer(index_of([]))  # it publishes nothing, and has answered
        with http_serving(publisher.url, *options(tmp_path)) as server:
            server.until_ready()


def test_every_root_that_fails_is_named_and_counted_whatever_its_kind(tmp_path: Path) -> None:
    for name in ("gone", "closed", "vanished", "cut"):
        write_skill(tmp_path / name / name)
    for name in ("vanished", "cut"):
        shutil.make_archive(str(tmp_path / name), "zip", tmp_path / name)
    roots = [tmp_path / each for each in ("gone", "closed", "vanished.zip", "cut.zip")]
    with http_serving(*roots, "--metrics", "--reconcile", "1") as server, client(server, "modern") as one:

        def failing() -> int:
            shown = server.send("GET", "/metrics").body.decode()
            return int(float(re.findall(r"^skills_sources_failing (\S+)$", shown, re.MULTILINE)[0]))

        server.until_ready()
        assert failing() == 0 and len(one.every_skill()) == 4
        (tmp_path / "gone").rename(tmp_path / "away")
        (tmp_path / "closed").rename(tmp_path / "elsewhere")
        (tmp_path / "closed").write_text("no folder\n")
        (tmp_path / "vanished.zip").unlink()
        os.truncate(tmp_path / "cut.zip", 100)
        until(lambda: failing() == len(roots))
        status, lines = asked(server, "/readyz?verbose")
        assert status == 200 and len(lines) == 5 and f"{roots[0]}: cannot be read now; serving the last copy" in lines
        for root in roots:
            (line,) = (each for each in lines if each.startswith(f"{root}: "))
            assert "serving" in line and ("cannot" in line or "(" in line), line
        assert len(one.every_skill()) == 4  # what was read before


def test_a_start_on_an_empty_folder_is_not_ready_unless_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    with http_serving(tmp_path / "volume") as server:
        until_scanned(server)
        status, lines = asked(server)
        assert status == 503 and "no root has a skill" in lines[0] and "--allow-empty" in lines[0]
        write_skill(tmp_path / "volume" / "a")
        server.until_ready()
        server.said("skill a: added")  # or it comes and goes before the watch is armed, which is no difference
        shutil.rmtree(tmp_path / "volume" / "a")
        server.said("a: removed|removed.*a|a.*vanished|gone")
        assert asked(server)[0] == 200  # an alert is for that, and no restart helps
    with http_serving(tmp_path / "volume", "--allow-empty") as server:
        server.until_ready()


def test_a_site_is_ready_when_its_skills_are_served_and_later_by_its_last_copy(tmp_path: Path) -> None:
    with Publisher() as publisher:
        publisher.add("alpha")
        with http_serving(publisher.url, *options(tmp_path)) as server, client(server, "modern") as one:
            server.until_ready()
            assert [skill["frontmatter"]["name"] for skill in one.every_skill()] == ["alpha"]
            status, (first, line) = asked(server, "/readyz?verbose")
            assert (status, first) == (200, "ready")
            assert re.fullmatch(re.escape(publisher.url) + ": fetched, revision [0-9a-f]{64}", line)
        publisher.routes[INDEX] = answer(b"", 503)
        with http_serving(publisher.url, *options(tmp_path)) as server:
            until_scanned(server)
            server.said("serving the last copy")
            status, lines = asked(server, "/readyz?verbose")
            assert (status, lines[0]) == (200, "ready")
            assert lines[1].startswith(f"{publisher.url}: serving the last copy (") and len(lines) == 2
            assert lines[1].count(publisher.url) == 1 and "index.json does not answer now" in lines[1]


def test_where_sources_lie_is_for_the_operator(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "a")
    config = tmp_path / "c.toml"
    tokens = {"MCP_SKILLS_TOKENS": f"alpha={TOKEN},ops={TOKEN}-of-ops"}
    grant = "[[grant]]\nwho = ['{}']\nskills = ['{}']\n"
    config.write_text(grant.format("*", "a") + grant.format("token:ops", "**") + "may = ['admin']\n")
    with Publisher() as publisher:
        publisher.routes[INDEX] = answer(b"", 503)
        given = [publisher.url, tmp_path / "skills", "--config", config, *options(tmp_path)]
        with http_serving(*given, environment=tokens) as server:
            server.said("there is no copy of it yet")
            until_scanned(server)
            anyone = asked(server)[1]
            assert anyone == ["a source: it has not responded yet, and there is no cached copy"]
            # More than the one line is for who may come in.
            assert [server.send("GET", path).status for path in ("/readyz?verbose", "/healthz?x=1")] == [401, 401]
            assert server.send("GET", "/healthz?x=1", headers=bearing(TOKEN)).status == 200
            alpha, ops = (
                server.send("GET", "/readyz?verbose", headers=bearing(each)).body.decode().splitlines()
                for each in (TOKEN, f"{TOKEN}-of-ops")
            )
            assert alpha == [*anyone, "2 roots, 1 of them failing"]
            assert f"{tmp_path}/skills: read" in ops
        given = [publisher.url, tmp_path / "skills", *options(tmp_path)]
        with http_serving(*given, environment=tokens) as server:  # without grants every token is an operator's
            until_scanned(server)
            assert asked(server)[1] == anyone
            reply = server.send("GET", "/readyz?verbose", headers=bearing(TOKEN))
            assert f"{tmp_path}/skills: read" in reply.body.decode()
