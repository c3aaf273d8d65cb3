"""Discovery by a real server over real HTTP: both formats, what may be cached, and who may come in."""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import threading
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import published
from catalog.forest import loaded, plant, skill_md
from dialects.build import skill
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.aicatalog import ARD, CARD, CATALOG, MOST_SKILLS, CatalogSkill, catalog, server_card
from mcp_skills_server.dialects.wellknown import DIRECTORY
from mcp_skills_server.format import archive
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.web.discovery import Discovery
from publish.test_static import write
from tables import each_row
from web.http_wire import Reply, Server, bearing, client, http_serving, refused, token_file, until
from wire import DEADLINE, FIXTURES, write_skill

INDEX = "/.well-known/agent-skills/index.json"
OLD_INDEX = "/.well-known/skills/index.json"
OLD_SKILL = "/.well-known/skills/plain-english/SKILL.md"
SITE = "http://localhost"
FOLDERS = {path.parent.name: path.parent for path in FIXTURES.rglob("SKILL.md")}
TOKEN = "ops=0123456789abcdef"
BEARER = bearing("0123456789abcdef")


def get(server: Server, path: str, **headers: str) -> Reply:
    """GET; `if_none_match="..."` for If-None-Match."""
    return server.send("GET", path, headers=[(name.replace("_", "-"), value) for name, value in headers.items()])


def entries(server: Server, **headers: str) -> list[dict[str, Any]]:
    reply = get(server, INDEX, **headers)
    assert reply.status == 200
    return json.loads(reply.body)["skills"]


def every_kind(server: Server) -> list[str]:
    """The path of both indexes, and of one artifact of each kind."""
    urls = {entry["url"].rpartition(".")[2]: entry["url"] for entry in entries(server)}
    return [INDEX, OLD_INDEX, OLD_SKILL, *urls.values()]


def proved(server: Server, entry: dict[str, Any]) -> archive.Files:
    """The files of an entry, by the eyes of our own consumer."""
    raw = get(server, entry["url"]).body
    wellknown.verify_digest(raw, entry["digest"])
    return archive.unpack(raw) if entry["type"] == "archive" else {"SKILL.md": (raw, False)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_skill(tmp_path / "lone")
    write_skill(tmp_path / "more", notes_md="notes")
    return tmp_path


def test_every_byte_has_its_listed_digest_while_files_are_edited(folder: Path) -> None:
    over, seen = threading.Event(), set[str]()

    def edit() -> None:
        for number in count():
            if over.wait(0.01 if number % 8 else 0.4):  # bursts, which are taken in at their ends
                return
            write_skill(folder / "lone", body=f"{number}\n" * 5_000)
            write_skill(folder / "more", notes_md=f"{number}\n" * 5_000)

    with http_serving(folder, "--publish-only") as server:
        writer = threading.Thread(target=edit)
        writer.start()
        try:
            end = time.monotonic() + DEADLINE
            while len(seen) < 8 and time.monotonic() < end:
                for entry in entries(server):
                    assert "SKILL.md" in proved(server, entry)
                    seen.add(entry["digest"])
        finally:
            over.set()
            writer.join(DEADLINE)
    assert len(seen) >= 8


@pytest.mark.requirement("WK-1", "WK-6", "WK-7", "WK-9", "WK-10", "WK-13", "WK-14", "WK-15", "WK-31", "X-18")
def test_every_fixture_is_offered_and_arrives_as_it_is(server: Server) -> None:
    reply = get(server, INDEX)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    index = wellknown.decode(reply.body, SITE + INDEX)
    assert not index.unusable and not index.warnings
    assert [entry.name for entry in index.entries] == sorted(FOLDERS)
    for entry, fields in zip(index.entries, entries(server), strict=True):
        folder = FOLDERS[entry.name]
        there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        got = {path: raw for path, (raw, _) in proved(server, fields).items()}
        assert got == {path: place.read_bytes() for path, place in there.items()}


@pytest.mark.requirement("WK1-1", "WK1-2", "WK1-4", "WK1-5", "WK1-6", "WK1-10", "WK1-11", "X-19")
def test_the_old_format_is_served_at_its_own_place(server: Server) -> None:
    reply = get(server, OLD_INDEX)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    index = wellknown.decode(reply.body, SITE + OLD_INDEX)
    assert index.version == "0.1.0" and not index.unusable and len(index.entries) > 10
    for entry in index.entries:
        for path, url in entry.files.items():
            assert get(server, url.removeprefix(SITE)).body == (FOLDERS[entry.name] / path).read_bytes()


@pytest.mark.requirement("WK-32", "WK-33", "WK-34", "X-22")
def test_each_kind_has_its_content_type_and_no_encoding(server: Server) -> None:
    kinds: dict[str, str] = {}
    for path in every_kind(server):
        reply = server.send("GET", path, headers={"Accept-Encoding": "gzip, br"})
        assert "Content-Encoding" not in reply.headers and reply.headers["X-Content-Type-Options"] == "nosniff"
        kinds[path.rpartition(".")[2]] = reply.headers["Content-Type"]
    markdown = "text/markdown; charset=utf-8"
    assert kinds == {"json": "application/json", "md": markdown, "gz": "application/gzip", "zip": "application/zip"}


def test_live_and_static_publishers_send_the_same_bytes(server: Server, tmp_path: Path) -> None:
    paths = [path for path in write(FIXTURES, tmp_path / "out") if path.startswith(".well-known/")]
    assert len(paths) > 100
    for path in paths:
        assert get(server, "/" + path.replace(" ", "%20")).body == (tmp_path / "out" / path).read_bytes(), path


@pytest.mark.requirement("WK-36", "WK1-11")
@each_row(
    "path",
    [
        "agent-skills", "agent-skills/", "agent-skills/nothing.json", "agent-skills//index.json",
        f"agent-skills/plain-english/{'0' * 64}/SKILL.md", "agent-skills/plain-english/SKILL.md",
        "agent-skills/../agent-skills/index.json", "skills", "skills/nothing/SKILL.md", "skills/plain-english",
        "skills/plain-english/", "skills/plain-english/../plain-english/SKILL.md",
        "skills/plain-english/%2e%2e/plain-english/SKILL.md", "skills/..%2f..%2fetc/passwd",
        "skills/polite-greetings/SKILL.md",  # not in that index, for the name of one of its files
        "skills/plain-english/SKILL.md%00", "skills/plain-english/%ff", "skillsets/index.json",
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_found(server: Server, path: str) -> None:
    assert get(server, OLD_INDEX).status == 200
    assert get(server, f"/.well-known/{path}").status == 404


@pytest.mark.requirement("WK-35", "WK1-11")
@each_row("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_told_which_are_answered(server: Server, method: str) -> None:
    for path in (INDEX, OLD_INDEX, entries(server)[0]["url"]):
        reply = server.send(method, path, body=b"")
        assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.requirement("WK-35", "WK-37", "X-21", "WK1-11")
def test_each_kind_is_cached_by_its_tag_and_head_is_get_without_the_body(server: Server) -> None:
    for path in every_kind(server):
        got, head = get(server, path), server.send("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        for reply in (got, head):
            del reply.headers["Date"], reply.headers["X-Request-Id"]
        assert dict(head.headers) == dict(got.headers)
        assert int(got.headers["Content-Length"]) == len(got.body) > 0
        tag, age = got.headers["ETag"], "60"
        assert tag == f'"{hashlib.sha256(got.body).hexdigest()}"'
        if path not in {INDEX, OLD_INDEX, OLD_SKILL}:
            age = "31536000, immutable"
        assert got.headers["Cache-Control"] == f"public, max-age={age}"
        for fits in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            reply = get(server, path, If_None_Match=fits)
            assert (reply.status, reply.body, reply.headers["ETag"]) == (304, b"", tag)
            assert "Cache-Control" in reply.headers
        assert server.send("HEAD", path, headers={"If-None-Match": tag}).status == 304
        for name, value, status in (
            ("If_None_Match", '"other"', 200), ("If_Modified_Since", "Sun, 01 Jan 2090 00:00:00 GMT", 200),
            ("If_Match", tag, 200), ("If_Match", '"other"', 412),
        ):  # fmt: skip
            assert get(server, path, **{name: value}).status == status
    missing = server.send("HEAD", INDEX + "x")
    assert (missing.status, missing.body, missing.headers["Cache-Control"]) == (404, b"", "no-store")


def test_parts_are_sent_by_range(server: Server) -> None:
    for path in every_kind(server):
        whole = get(server, path)
        size, tag = len(whole.body), whole.headers["ETag"]
        assert whole.headers["Accept-Ranges"] == "bytes"
        for asked, start, end in (
            ("bytes=0-0", 0, 1), ("bytes=3-9", 3, 10), (f"bytes={size - 2}-", size - 2, size),
            ("bytes=-5", size - 5, size), (f"bytes=-{size * 9}", 0, size), (f"bytes=1-{'9' * 30}", 1, size),
        ):  # fmt: skip
            reply = get(server, path, Range=asked)
            assert (reply.status, reply.body) == (206, whole.body[start:end])
            assert reply.headers["Content-Range"] == f"bytes {start}-{end - 1}/{size}"
            assert reply.headers["ETag"] == tag and int(reply.headers["Content-Length"]) == end - start
            assert get(server, path, Range=asked, If_Range=tag).status == 206
            for other in (f"W/{tag}", '"other"', "Sun, 01 Jan 2090 00:00:00 GMT"):
                assert get(server, path, Range=asked, If_Range=other).body == whole.body
            assert server.send("HEAD", path, headers={"Range": asked}).status == 200
        for asked in (f"bytes={size}-", f"bytes={'9' * 400}-", "bytes=-0"):
            reply = get(server, path, Range=asked)
            assert (reply.status, reply.headers["Content-Range"]) == (416, f"bytes */{size}")
        for odd in ("bytes=0-1,3-4", "bytes=9-3", "bytes=x", "lines=0-1", "bytes=", "bytes=-", "bytes=\xb2-\xb3"):
            reply = get(server, path, Range=odd)
            assert (reply.status, reply.body) == (200, whole.body), odd


def test_a_large_artifact_comes_whole_and_in_parts(tmp_path: Path) -> None:
    raw = random.Random(1).randbytes(3_000_000)
    (write_skill(tmp_path / "large") / "data.bin").write_bytes(raw)
    (tmp_path / "large" / "empty.txt").write_bytes(b"")
    with http_serving(tmp_path) as server:
        (entry,) = entries(server)
        assert proved(server, entry)["data.bin"] == (raw, False)
        whole = get(server, entry["url"]).body
        assert get(server, entry["url"], Range="bytes=200000-2800000").body == whole[200000:2800001]
        old = "/.well-known/skills/large/"
        file, empty = get(server, f"{old}data.bin"), get(server, f"{old}empty.txt")
        assert (file.body, file.headers["Content-Type"]) == (raw, "application/octet-stream")
        assert (empty.status, empty.body, empty.headers["Content-Length"]) == (200, b"", "0")
        assert get(server, f"{old}empty.txt", Range="bytes=0-").status == 416


def test_without_grace_nothing_old_stays(folder: Path) -> None:
    with http_serving(folder, "--publish-grace", "0") as server:
        assert get(server, INDEX).headers["Cache-Control"] == "public, max-age=0"
        old = entries(server)
        (folder / "more" / "notes.md").write_bytes(b"other")
        until(lambda: entries(server)[1]["digest"] != old[1]["digest"])
        assert get(server, old[1]["url"]).status == 404
        assert get(server, old[0]["url"]).status == 200


def test_a_server_that_was_started_anew_serves_what_its_predecessor_named(folder: Path) -> None:
    with http_serving(folder) as server:
        entry = entries(server)[1]
    with http_serving(folder) as server:
        proved(server, entry)


PATIENT = """
from mcp_skills_server.web import discovery
from mcp_skills_server.publish.publication import Publication
import sys, threading
gate = threading.Event()
discovery._TIMEOUT_S = 0.2
made = Publication.edition
def edition(self):
    gate.wait()
    return made(self)
Publication.edition = edition
from mcp_skills_server.cli import main
main()
"""


def test_an_index_that_takes_too_long_to_make_is_to_be_asked_for_again(folder: Path) -> None:
    with http_serving(folder, command=[sys.executable, "-c", PATIENT]) as server:
        for path in (INDEX, OLD_INDEX):
            reply = get(server, path)
            assert (reply.status, reply.headers["Retry-After"]) == (503, "2")
            assert "not ready" in reply.body.decode()
        assert get(server, "/healthz").status == 200


@pytest.mark.requirement("X-2")
def test_what_is_not_published_is_told_once_with_its_reason(tmp_path: Path) -> None:
    write_skill(tmp_path / "x" / "twin")
    write_skill(tmp_path / "y" / "twin", body="# Another thing\n")
    write_skill(tmp_path / "other", name="another")
    with http_serving(tmp_path) as server:
        for _ in range(3):
            assert entries(server) == []
        write_skill(tmp_path / "new")
        until(lambda: entries(server))
        server.said("x/twin: not published: twin is also the name of y/twin")
        server.said("other: not published: ")
        server.said(": not published: ", 3)
        assert server.stderr.count(": not published: ") == 3


@each_row(("count", "last"), [(20, "s19: not published: "), (21, "and 1 more skills are not published")])
def test_twenty_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int, last: str) -> None:
    made = Publication(loaded(plant(tmp_path, {f"s{number:02}/SKILL.md": skill_md("x") for number in range(count)})))
    endpoint, edition = Discovery(made, shared=True), made.edition()
    for found in (edition, edition, replace(edition, left_out=(), left_out_0_1=()), edition):
        endpoint._log_left_out(found)
    assert caplog.messages[:count] == caplog.messages[count:], "again once it was mended and comes back"
    assert caplog.messages[-1].startswith(last)
    assert endpoint._skill_path(f"{DIRECTORY}gone/{'0' * 64}/SKILL.md") == "gone"


def test_mcp_and_discovery_stand_side_by_side_or_alone(folder: Path) -> None:
    with http_serving(folder) as server, client(server, "modern") as asked:
        assert len(asked.every_skill()) == len(entries(server)) == 2
    with http_serving(folder, "--no-publish") as server:
        assert [get(server, path).status for path in (INDEX, OLD_INDEX, CARD, CATALOG, ARD)] == [404] * 5
    with http_serving(folder, "--publish-only") as server:
        assert len(entries(server)) == 2
        assert server.send("POST", "/mcp", body=b"{}").status == 404
        assert get(server, "/readyz").status == 200
        write_skill(folder / "third")
        until(lambda: len(entries(server)) == 3)
    with http_serving(folder, "--publish-only", "--no-watch") as server:
        assert len(entries(server)) == 3


def test_publishing_needs_http() -> None:
    assert "--transport http" in refused(FIXTURES, "--transport", "stdio", "--publish-only")


@pytest.mark.requirement("WK-59")
def test_a_token_protects_what_is_published(folder: Path) -> None:
    with http_serving(folder, "--tokens", TOKEN) as server:
        assert get(server, INDEX).status == get(server, OLD_INDEX).status == 401
        (entry, _) = entries(server, **BEARER)
        assert get(server, entry["url"]).status == 401
        reply = get(server, entry["url"], **BEARER)
        assert reply.status == 200 and reply.headers["Cache-Control"] == "private, max-age=31536000, immutable"


@pytest.mark.requirement("WK-38", "X-21")
def test_browsers_may_come_from_where_the_operator_says(folder: Path) -> None:
    with http_serving(folder, "--allowed-origin", "https://app.example") as server:
        reply = get(server, INDEX, Origin="https://app.example")
        assert reply.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert "ETag" in reply.headers["Access-Control-Expose-Headers"]
        assert reply.headers["Vary"] == get(server, INDEX).headers["Vary"] == "Origin"
        asking = {"Origin": "https://app.example", "Access-Control-Request-Method": "HEAD"}
        assert server.send("OPTIONS", INDEX, headers=asking).status == 200
    with http_serving(folder, "--allowed-origin", "*") as server:
        for headers in ({}, {"Origin": "https://any.example"}):
            assert get(server, INDEX, **headers).headers.get_all("Access-Control-Allow-Origin") == ["*"]


def test_a_page_among_the_files_cannot_act_for_the_server(folder: Path) -> None:
    (folder / "more" / "page.html").write_bytes(b"<script>fetch('/mcp')</script>")
    with http_serving(folder) as server:
        headers = get(server, "/.well-known/skills/more/page.html").headers
        assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


def read(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply
    return json.loads(reply.body)


def test_the_card_names_the_endpoint_and_no_skill(server: Server) -> None:
    reply = get(server, CARD)
    card, headers = read(reply), reply.headers
    assert headers["Content-Type"] == "application/mcp-server-card+json"
    assert headers["Access-Control-Allow-Origin"] == "*" and headers["Cache-Control"] == "public, max-age=300"
    for each in (reply, get(server, INDEX)):
        assert each.headers["Link"] == f'<{CATALOG}>; rel="ai-catalog", <{ARD}>; rel="ard"'
    assert published.faults(published.SERVER_CARD, card) == []
    (remote,) = card["remotes"]
    assert remote["url"].endswith("/mcp") and "2026-07-28" in remote["supportedProtocolVersions"]
    assert "csv-profiling" not in reply.body.decode()
    tag = headers["ETag"]
    for tags, status in ((tag, 304), (f'"x", W/{tag}', 304), ("*", 304), (f"x{tag}x", 200)):
        assert get(server, CARD, if_none_match=tags).status == status, tags


def test_the_catalog_leads_to_the_card_the_index_and_each_skill(server: Server) -> None:
    reply = get(server, CATALOG)
    entries = read(reply)["entries"]
    assert reply.headers["Content-Type"] == "application/ai-catalog+json"
    assert [get(server, "/" + each["url"].split("/", 3)[3]).status for each in entries] == [200] * len(entries)
    kinds = {"mcp-server-card+json", "agent-skills+json", "agent-skills+md"}
    assert {f"application/{each}" for each in kinds} < {each["type"] for each in entries}
    assert len({each["identifier"] for each in entries}) == len(entries) > 10
    assert published.faults(published.AI_CATALOG, read(reply)) == []
    assert get(server, CATALOG, if_none_match=reply.headers["ETag"]).status == 304


def test_ard_has_the_same_entries_with_the_prompts_of_trigger_sets(tmp_path: Path) -> None:
    write_skill(tmp_path / "plain")
    cases = [{"query": f"Please do {number}", "should_trigger": number != 2} for number in range(8)]
    write_skill(tmp_path / "asked", evals__queries_json=json.dumps(cases), evals__broken_json="{")
    write_skill(tmp_path / "once", evals__queries_json='[{"query": "x", "should_trigger": true}]')
    with http_serving(tmp_path) as server:
        reply = get(server, ARD)
        entries = read(reply)["entries"]
        assert reply.headers["Content-Type"] == "application/json"
        assert published.faults(published.ARD, read(reply)) == []
        queries = {each["identifier"].rpartition(":")[2]: each.pop("representativeQueries", None) for each in entries}
        assert queries["asked"] == [f"Please do {number}" for number in (0, 1, 3, 4, 5)]
        assert queries["plain"] is queries["once"] is None and entries == read(get(server, CATALOG))["entries"]


def test_a_token_is_wanted_for_the_catalog_and_grants_hold_in_it(tmp_path: Path) -> None:
    for name in ("open", "secret"):
        write_skill(tmp_path / "skills" / name)
    config = tmp_path / "c.toml"
    config.write_text('[[grant]]\nwho = ["token:ops"]\nskills = ["open"]\n', encoding="utf-8")
    options = (tmp_path / "skills", "--token-file", token_file(tmp_path, TOKEN))
    with http_serving(*options, "--config", config) as server:
        assert [get(server, path).status for path in (CARD, CATALOG, ARD)] == [200, 401, 401]
        for path in (CATALOG, ARD):
            said = get(server, path, **BEARER).body.decode()
            assert ":skill:open" in said and "secret" not in said
    with http_serving(*options, "--publish-open") as server:
        assert all(":skill:secret" in get(server, path).body.decode() for path in (CATALOG, ARD))


def test_a_name_of_a_host_becomes_one_of_a_card() -> None:
    def named(host: str) -> object:
        return server_card(f"{host}/mcp", "skills", "1", [])["name"]

    assert named("https://skills.example.com") == "com.example.skills/skills"
    assert named("http://127.0.0.1:8000") == "127.0.0.1/skills"
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/skills", str(named("http://[::1]:8000")))


def test_a_catalog_has_no_more_entries_than_a_reader_wants_and_identifiers_that_the_schema_takes() -> None:
    names = ["über-alles", *(f"s{number}" for number in range(600))]
    many = [CatalogSkill(skill(each), "/x", f"sha256:{64 * '0'}", "text/markdown") for each in names]
    made = catalog("https://skills.example", "/index.json", many, has_card=False)
    assert len(made["entries"]) == MOST_SKILLS + 1  # type: ignore[arg-type]
    assert published.faults(published.AI_CATALOG, made) == []
