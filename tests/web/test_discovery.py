"""Discovery over HTTP: both formats, AI catalogs, the Server Card, caching, ranges, and access."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import published
from catalog.forest import skill_md, write_files
from dialects.build import skill
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.aicatalog import ARD, CARD, CATALOG, CatalogSkill, catalog, server_card
from mcp_skills_server.format import archive
from mcp_skills_server.publish.publication import Publication
from mcp_skills_server.web import discovery
from tables import each_row
from web.http_wire import JSON, Reply, Target, client, wait_until
from web.in_process import app_serving
from wire import DEADLINE, FIXTURES, write_skill

INDEX = "/.well-known/agent-skills/index.json"
OLD_INDEX = "/.well-known/skills/index.json"
OLD_SKILL = "/.well-known/skills/plain-english/SKILL.md"
SITE = "http://localhost"
FOLDERS = {path.parent.name: path.parent for path in FIXTURES.rglob("SKILL.md")}


def get(server: Target, path: str, **headers: str) -> Reply:
    """GET with headers: `if_none_match="..."` for If-None-Match."""
    given = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return server.send("GET", path, headers=given)


def get_json(server: Target, path: str, **headers: str) -> dict[str, Any]:
    reply = get(server, path, **headers)
    assert reply.status == 200, reply
    return json.loads(reply.body)


def entries(server: Target, **headers: str) -> list[dict[str, Any]]:
    return get_json(server, INDEX, **headers)["skills"]


def one_path_of_each_kind(server: Target) -> list[str]:
    """Return the paths of both indexes, of a file, and of one artifact of each suffix."""
    urls = {entry["url"].rpartition(".")[2]: entry["url"] for entry in entries(server)}
    return [INDEX, OLD_INDEX, OLD_SKILL, *urls.values()]


def fetch_files(server: Target, entry: dict[str, Any]) -> archive.Files:
    """Fetch the artifact of an entry, verify its digest, and return its files."""
    raw = get(server, entry["url"]).body
    wellknown.verify_digest(raw, entry["digest"])
    return archive.unpack(raw) if entry["type"] == "archive" else {"SKILL.md": (raw, False)}


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    with app_serving(FIXTURES) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_skill(tmp_path / "lone")
    write_skill(tmp_path / "more", notes_md="notes")
    return tmp_path


def test_artifacts_match_their_listed_digests_while_files_are_edited(folder: Path) -> None:
    stopped, digests = threading.Event(), set[str]()

    def edit() -> None:
        for number in count():
            pause = 0.01
            if number % 8 == 0:
                pause = 0.4  # the server reads the files after each burst of edits
            if stopped.wait(pause):
                return
            write_skill(folder / "lone", body=f"{number}\n" * 5_000)
            write_skill(folder / "more", notes_md=f"{number}\n" * 5_000)

    with app_serving(folder, "--publish-only") as server:
        writer = threading.Thread(target=edit)
        writer.start()
        try:
            end = time.monotonic() + DEADLINE
            while len(digests) < 8 and time.monotonic() < end:
                for entry in entries(server):
                    assert "SKILL.md" in fetch_files(server, entry)
                    digests.add(entry["digest"])
        finally:
            stopped.set()
            writer.join(DEADLINE)
    assert len(digests) >= 8


@pytest.mark.requirement("WK-1", "WK-6", "WK-7", "WK-9", "WK-10", "WK-13", "WK-14", "WK-15")
@pytest.mark.requirement("WK-20", "WK-23", "WK-31", "X-18")
def test_index_lists_every_fixture_and_artifacts_have_its_files(server: Target) -> None:
    reply = get(server, INDEX)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    index = wellknown.decode(reply.body, SITE + INDEX)
    assert not index.unusable and not index.warnings
    assert [entry.name for entry in index.entries] == sorted(FOLDERS)
    for entry, fields in zip(index.entries, entries(server), strict=True):
        folder = FOLDERS[entry.name]
        paths = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "evals"]
        expected = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        expected.pop("evals/evals.json", None)  # `--with-evals` adds it
        fetched = fetch_files(server, fields)
        assert {path: raw for path, (raw, _) in fetched.items()} == expected


@pytest.mark.requirement("WK1-1", "WK1-2", "WK1-3", "WK1-4", "WK1-5", "WK1-6", "WK1-10", "WK1-11", "X-18", "X-19")
def test_discovery_0_1_index_and_files_are_served(server: Target) -> None:
    reply = get(server, OLD_INDEX)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    index = wellknown.decode(reply.body, SITE + OLD_INDEX)
    assert index.version == "0.1.0" and not index.unusable and len(index.entries) > 10
    for entry in index.entries:
        for path, url in entry.files.items():
            raw = (FOLDERS[entry.name] / path).read_bytes()
            reply = get(server, url.removeprefix(SITE))
            assert reply.body == raw
            assert path != "SKILL.md" or reply.headers["Content-Type"] == "text/markdown; charset=utf-8"


@pytest.mark.requirement("WK-21", "WK-32", "WK-33", "WK-34", "X-22")
def test_content_types_are_exact_and_nothing_is_compressed(server: Target) -> None:
    types: dict[str, str] = {}
    for path in one_path_of_each_kind(server):
        reply = server.send("GET", path, headers={"Accept-Encoding": "gzip, br"})
        assert "Content-Encoding" not in reply.headers
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        types[path.rpartition(".")[2]] = reply.headers["Content-Type"]
    assert types == {
        "json": "application/json",
        "md": "text/markdown; charset=utf-8",
        "gz": "application/gzip",
        "zip": "application/zip",
    }


@pytest.mark.requirement("WK-36", "WK1-11")
@each_row("path", [
    "agent-skills", "agent-skills/", "agent-skills/nothing.json", "agent-skills//index.json",
    f"agent-skills/plain-english/{'0' * 64}/SKILL.md", "agent-skills/plain-english/SKILL.md",
    "agent-skills/../agent-skills/index.json", "skills", "skills/nothing/SKILL.md", "skills/plain-english",
    "skills/plain-english/", "skills/plain-english/../plain-english/SKILL.md",
    "skills/plain-english/%2e%2e/plain-english/SKILL.md", "skills/..%2f..%2fetc/passwd",
    "skills/polite-greetings/SKILL.md",  # the 0.1 index cannot contain the name of one of its files
    "skills/plain-english/SKILL.md%00", "skills/plain-english/%ff", "skillsets/index.json",
])  # fmt: skip
def test_unknown_path_is_not_found(server: Target, path: str) -> None:
    assert get(server, OLD_INDEX).status == 200
    assert get(server, f"/.well-known/{path}").status == 404


@pytest.mark.requirement("WK-35", "WK1-11")
@each_row("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused_with_allowed_ones(server: Target, method: str) -> None:
    for path in (INDEX, OLD_INDEX, entries(server)[0]["url"]):
        reply = server.send(method, path, body=b"")
        assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.requirement("WK-35", "WK-37", "X-21", "WK1-11")
def test_responses_have_etag_and_max_age_and_head_equals_get(server: Target) -> None:
    for path in one_path_of_each_kind(server):
        whole, head = get(server, path), server.send("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        for reply in (whole, head):
            del reply.headers["Date"], reply.headers["X-Request-Id"]
        assert dict(head.headers) == dict(whole.headers)
        assert int(whole.headers["Content-Length"]) == len(whole.body) > 0
        tag, age = whole.headers["ETag"], "60"
        assert tag == f'"{hashlib.sha256(whole.body).hexdigest()}"'
        if path not in {INDEX, OLD_INDEX, OLD_SKILL}:
            age = "31536000, immutable"
        assert whole.headers["Cache-Control"] == f"public, max-age={age}"
        for matching in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            reply = get(server, path, If_None_Match=matching)
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


def test_byte_ranges_are_sent(server: Target) -> None:
    for path in one_path_of_each_kind(server):
        whole = get(server, path)
        size, tag = len(whole.body), whole.headers["ETag"]
        assert whole.headers["Accept-Ranges"] == "bytes"
        for header, start, end in (
            ("bytes=0-0", 0, 1), ("bytes=3-9", 3, 10), (f"bytes={size - 2}-", size - 2, size),
            ("bytes=-5", size - 5, size), (f"bytes=-{size * 9}", 0, size), (f"bytes=1-{'9' * 30}", 1, size),
        ):  # fmt: skip
            reply = get(server, path, Range=header)
            assert (reply.status, reply.body) == (206, whole.body[start:end])
            assert reply.headers["Content-Range"] == f"bytes {start}-{end - 1}/{size}"
            assert reply.headers["ETag"] == tag
            assert int(reply.headers["Content-Length"]) == end - start
            assert get(server, path, Range=header, If_Range=tag).status == 206
            for other in (f"W/{tag}", '"other"', "Sun, 01 Jan 2090 00:00:00 GMT"):
                assert get(server, path, Range=header, If_Range=other).body == whole.body
            assert server.send("HEAD", path, headers={"Range": header}).status == 200
        for unsatisfiable in (f"bytes={size}-", f"bytes={'9' * 400}-", "bytes=-0"):
            reply = get(server, path, Range=unsatisfiable)
            assert (reply.status, reply.headers["Content-Range"]) == (416, f"bytes */{size}")
        for ignored in (
            "bytes=0-1,3-4", "bytes=9-3", "bytes=x", "lines=0-1", "bytes=", "bytes=-", "bytes=\xb2-\xb3",
        ):  # fmt: skip
            reply = get(server, path, Range=ignored)
            assert (reply.status, reply.body) == (200, whole.body), ignored


def test_large_artifact_is_sent_whole_and_by_range(tmp_path: Path) -> None:
    raw = random.Random(1).randbytes(3_000_000)
    (write_skill(tmp_path / "large") / "data.bin").write_bytes(raw)
    (tmp_path / "large" / "empty.txt").write_bytes(b"")
    with app_serving(tmp_path) as server:
        (entry,) = entries(server)
        assert fetch_files(server, entry)["data.bin"] == (raw, False)
        whole = get(server, entry["url"]).body
        assert get(server, entry["url"], Range="bytes=200000-2800000").body == whole[200000:2800001]
        old = "/.well-known/skills/large/"
        file, empty = get(server, f"{old}data.bin"), get(server, f"{old}empty.txt")
        assert (file.body, file.headers["Content-Type"]) == (raw, "application/octet-stream")
        assert (empty.status, empty.body, empty.headers["Content-Length"]) == (200, b"", "0")
        assert get(server, f"{old}empty.txt", Range="bytes=0-").status == 416


def test_audit_has_the_bytes_sent_and_no_load_by_a_revalidation(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    audit = tmp_path_factory.mktemp("audit") / "log"
    with app_serving(folder, "--audit-log", audit) as server:
        path = entries(server)[0]["url"]
        whole = get(server, path)
        tag, size = whole.headers["ETag"], len(whole.body)
        for headers in (
            {"If_None_Match": tag}, {"If_Match": '"other"'}, {"Range": f"bytes={size}-"}, {"Range": "bytes=3-9"},
        ):  # fmt: skip
            get(server, path, **headers)
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [record["event"] for record in records] == ["load", "load"], "whole and by range"


def test_json_file_of_a_skill_does_not_link_the_catalog(tmp_path: Path) -> None:
    (write_skill(tmp_path / "a") / "data.json").write_text("{}")
    with app_serving(tmp_path) as server:
        replies = {path: get(server, path) for path in (OLD_INDEX, "/.well-known/skills/a/data.json")}
    assert {reply.headers["Content-Type"] for reply in replies.values()} == {"application/json"}
    assert ["Link" in reply.headers for reply in replies.values()] == [True, False]


def test_replaced_artifact_is_gone_without_grace(folder: Path) -> None:
    with app_serving(folder, "--publish-grace", "0") as server:
        assert get(server, INDEX).headers["Cache-Control"] == "public, max-age=0"
        old = entries(server)
        (folder / "more" / "notes.md").write_bytes(b"other")
        wait_until(lambda: entries(server)[1]["digest"] != old[1]["digest"])
        assert get(server, old[1]["url"]).status == 404
        assert get(server, old[0]["url"]).status == 200


def test_artifact_of_removed_skill_is_audited_by_the_name_in_its_url(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    audit = tmp_path_factory.mktemp("audit") / "log"
    with app_serving(folder, "--audit-log", audit) as server:
        listed = entries(server)[0]
        shutil.rmtree(folder / "lone")
        wait_until(lambda: len(entries(server)) == 1)
        assert get(server, listed["url"]).status == 200
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [record["skill"] for record in records] == ["lone"]


def test_artifact_listed_before_restart_is_served(folder: Path) -> None:
    with app_serving(folder) as server:
        entry = entries(server)[1]
    with app_serving(folder) as server:
        fetch_files(server, entry)


def test_index_that_is_not_ready_in_time_causes_503_with_retry_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(discovery, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(Publication, "edition", lambda _: ended.wait(DEADLINE))
    with app_serving(folder) as server:
        for path in (INDEX, OLD_INDEX):
            reply = get(server, path)
            assert (reply.status, reply.headers["Retry-After"]) == (503, "2")
            assert "not ready" in reply.body.decode()
        assert get(server, "/healthz").status == 200
        ended.set()


@pytest.mark.requirement("X-2")
def test_unpublished_skills_are_logged_once_with_reason(tmp_path: Path) -> None:
    write_skill(tmp_path / "x" / "twin")
    write_skill(tmp_path / "y" / "twin", body="# Another thing\n")
    write_skill(tmp_path / "other", name="another")
    with app_serving(tmp_path) as server:
        for _ in range(3):
            assert entries(server) == []
        write_skill(tmp_path / "new")
        wait_until(lambda: entries(server))
        server.wait_for_log("x/twin: not published: twin is also the name of y/twin")
        server.wait_for_log("other: not published: ")
        server.wait_for_log(": not published: ", 3)
        assert server.stderr.count(": not published: ") == 3


def test_at_most_twenty_unpublished_skills_are_logged(tmp_path: Path) -> None:
    write_files(tmp_path, {f"s{number:02}/SKILL.md": skill_md("x") for number in range(21)})
    with app_serving(tmp_path) as server:
        assert entries(server) == []
        server.wait_for_log("and 1 more skills are not published")
        assert server.stderr.count(": not published: ") == 20


def test_mcp_discovery_and_rpc_are_served_together_or_alone(folder: Path) -> None:
    with app_serving(folder) as server, client(server, "modern") as reader:
        assert len(reader.every_skill()) == len(entries(server)) == 2
    with app_serving(folder, "--no-publish", "--no-rpc") as server:
        for path in (INDEX, OLD_INDEX, CARD, CATALOG, ARD):
            assert get(server, path).status == 404, path
        assert server.send("POST", "/rpc", body=b"{}", headers=JSON).status == 404
    with app_serving(folder, "--publish-only") as server:
        assert len(entries(server)) == 2
        for path in ("/mcp", "/rpc"):
            assert server.send("POST", path, body=b"{}", headers=JSON).status == 404
        assert get(server, "/readyz").status == 200
        write_skill(folder / "third")
        wait_until(lambda: len(entries(server)) == 3)


@pytest.mark.requirement("WK-38", "X-21")
def test_published_documents_may_be_read_from_any_allowed_origin(folder: Path) -> None:
    with app_serving(folder, "--allowed-origin", "*") as server:
        for headers in ({}, {"Origin": "https://any.example"}):
            reply = get(server, INDEX, **headers)
            assert reply.headers.get_all("Access-Control-Allow-Origin") == ["*"]
    with app_serving(folder) as server:
        assert "Access-Control-Allow-Origin" not in get(server, INDEX).headers


def test_html_file_is_sandboxed_by_content_security_policy(folder: Path) -> None:
    (folder / "more" / "page.html").write_bytes(b"<script>fetch('/mcp')</script>")
    with app_serving(folder) as server:
        headers = get(server, "/.well-known/skills/more/page.html").headers
        assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


def test_server_card_names_endpoint_but_no_skill(server: Target) -> None:
    reply = get(server, CARD)
    card, headers = json.loads(reply.body), reply.headers
    assert headers["Content-Type"] == "application/mcp-server-card+json"
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert headers["Cache-Control"] == "public, max-age=300"
    for each in (reply, get(server, INDEX)):
        assert each.headers["Link"] == f'<{CATALOG}>; rel="ai-catalog", <{ARD}>; rel="ard"'
    assert published.faults(published.SERVER_CARD, card) == []
    (remote,) = card["remotes"]
    assert remote["url"].endswith("/mcp")
    assert "2026-07-28" in remote["supportedProtocolVersions"]
    assert "csv-profiling" not in reply.body.decode()
    tag = headers["ETag"]
    for tags, status in ((tag, 304), (f'"x", W/{tag}', 304), ("*", 304), (f"x{tag}x", 200)):
        assert get(server, CARD, if_none_match=tags).status == status, tags


def test_ai_catalog_links_card_index_and_each_skill(server: Target) -> None:
    reply = get(server, CATALOG)
    document = json.loads(reply.body)
    entries = document["entries"]
    assert reply.headers["Content-Type"] == "application/ai-catalog+json"
    for entry in entries:
        assert get(server, urlsplit(entry["url"]).path).status == 200
    types = {f"application/{each}" for each in ("mcp-server-card+json", "agent-skills+json", "agent-skills+md")}
    assert types < {entry["type"] for entry in entries}
    assert len({entry["identifier"] for entry in entries}) == len(entries) > 10
    assert published.faults(published.AI_CATALOG, document) == []
    assert get(server, CATALOG, if_none_match=reply.headers["ETag"]).status == 304


def test_ard_adds_queries_of_trigger_sets_to_catalog_entries(tmp_path: Path) -> None:
    write_skill(tmp_path / "plain")
    cases = [{"query": f"Please do {number}", "should_trigger": number != 2} for number in range(8)]
    write_skill(tmp_path / "several", evals__queries_json=json.dumps(cases), evals__broken_json="{")
    write_skill(tmp_path / "once", evals__queries_json='[{"query": "x", "should_trigger": true}]')
    with app_serving(tmp_path) as server:
        reply = get(server, ARD)
        document = json.loads(reply.body)
        assert reply.headers["Content-Type"] == "application/json"
        assert published.faults(published.ARD, document) == []
        queries: dict[str, Any] = {}
        for entry in document["entries"]:
            name = entry["identifier"].rpartition(":")[2]
            queries[name] = entry.pop("representativeQueries", None)
        assert queries["several"] == [f"Please do {number}" for number in (0, 1, 3, 4, 5)]
        assert queries["plain"] is queries["once"] is None
        in_catalog = get_json(server, CATALOG)["entries"]
        assert all("displayName" in entry for entry in document["entries"])
        for entry, less in zip(document["entries"], in_catalog, strict=True):
            assert less.items() <= entry.items()


def test_catalog_refers_to_the_published_signature_of_a_skill(tmp_path: Path) -> None:
    write_skill(tmp_path / "plain", notes_md="notes")
    write_skill(tmp_path / "signed")
    (tmp_path / "signed" / "skill.oms.sig").write_bytes(b"{}")
    with app_serving(tmp_path) as server:
        document = get_json(server, CATALOG)
        assert published.faults(published.AI_CATALOG, document) == []
        (signed,) = (entry for entry in document["entries"] if "trustManifests" in entry)
        assert signed["identifier"].endswith(":skill:signed")
        (attestation,) = signed["trustManifests"][0]["attestations"]
        reply = get(server, urlsplit(attestation["uri"]).path)
        assert (reply.body, attestation["size"]) == (b"{}", 2)
        assert attestation["digest"] == "sha256:" + hashlib.sha256(b"{}").hexdigest()


def test_card_name_is_derived_from_host() -> None:
    def card_name(site: str) -> object:
        return server_card(f"{site}/mcp", "skills", "1", [])["name"]

    assert card_name("https://skills.example.com") == "com.example.skills/skills"
    assert card_name("http://127.0.0.1:8000") == "127.0.0.1/skills"
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/skills", str(card_name("http://[::1]:8000")))


def test_catalog_identifier_of_non_ascii_name_is_valid() -> None:
    entry = CatalogSkill(skill("über-alles"), "/x", f"sha256:{64 * '0'}", "text/markdown")
    document = catalog("https://skills.example", "/index.json", [entry], has_card=False)
    assert published.faults(published.AI_CATALOG, document) == []
