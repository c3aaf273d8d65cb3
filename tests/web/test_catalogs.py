"""Server Card and AI Catalog by a real server: what they say, who may read them, and how long they may be kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import published
from dialects.build import skill
from mcp_skills_server.dialects.aicatalog import ARD, CARD, CATALOG, MOST_SKILLS, CatalogSkill, catalog, server_card
from web.http_wire import Reply, http_serving
from web.test_discovery import BEARER, TOKEN, get
from wire import FIXTURES, write_skill


def read(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply
    return json.loads(reply.body)


def test_the_card_names_the_endpoint_and_no_skill() -> None:
    with http_serving(FIXTURES) as server:
        reply = get(server, CARD)
        card = read(reply)
        assert reply.headers["Content-Type"] == "application/mcp-server-card+json"
        assert reply.headers["Access-Control-Allow-Origin"] == "*" and reply.headers["Cache-Control"].startswith(
            "public"
        )
        assert published.faults(published.SERVER_CARD, card) == []
        (remote,) = card["remotes"]
        assert remote["url"].endswith("/mcp") and "2026-07-28" in remote["supportedProtocolVersions"]
        assert "csv-profiling" not in reply.body.decode()
        tag = reply.headers["ETag"]
        for tags, status in ((tag, 304), (f'"x", W/{tag}', 304), ("*", 304), (f"x{tag}x", 200)):
            assert get(server, CARD, if_none_match=tags).status == status, tags


def test_the_catalog_leads_to_the_card_the_index_and_each_skill() -> None:
    with http_serving(FIXTURES) as server:
        reply = get(server, CATALOG)
        entries = {each["identifier"].split(":", 3)[3]: each for each in read(reply)["entries"]}
        assert reply.headers["Content-Type"] == "application/ai-catalog+json"
        for each in entries.values():
            path = "/" + each["url"].split("/", 3)[3]
            assert get(server, path).status == 200, each
        kinds = {each["type"] for each in entries.values()}
        assert {
            "application/mcp-server-card+json",
            "application/agent-skills+json",
            "application/agent-skills+md",
        } < kinds
        assert len({each["identifier"] for each in read(reply)["entries"]}) == len(read(reply)["entries"]) > 10
        assert published.faults(published.AI_CATALOG, read(reply)) == []
        assert get(server, CATALOG, if_none_match=reply.headers["ETag"]).status == 304


def test_ard_has_the_same_entries_with_the_prompts_of_trigger_sets(tmp_path: Path) -> None:
    write_skill(tmp_path / "plain")
    evals = write_skill(tmp_path / "asked") / "evals"
    evals.mkdir()
    cases = [{"query": f"Please do {number}", "should_trigger": number != 2} for number in range(8)]
    (evals / "trigger_queries.json").write_text(json.dumps(cases), encoding="utf-8")
    (evals / "broken.json").write_text("{", encoding="utf-8")
    (write_skill(tmp_path / "once") / "evals").mkdir()
    (tmp_path / "once/evals/trigger_queries.json").write_text('[{"query": "x", "should_trigger": true}]')
    with http_serving(tmp_path) as server:
        reply = get(server, ARD)
        entries = read(reply)["entries"]
        assert reply.headers["Content-Type"] == "application/json"
        assert published.faults(published.ARD, read(reply)) == []
        queries = {each["identifier"].rpartition(":")[2]: each.pop("representativeQueries", None) for each in entries}
        assert queries["asked"] == [f"Please do {number}" for number in (0, 1, 3, 4, 5)]
        assert queries["plain"] is queries["once"] is None and entries == read(get(server, CATALOG))["entries"]


def test_the_index_and_the_card_lead_to_both_catalogs() -> None:
    with http_serving(FIXTURES) as server:
        for path in (CARD, "/.well-known/agent-skills/index.json"):
            assert get(server, path).headers["Link"] == f'<{CATALOG}>; rel="ai-catalog", <{ARD}>; rel="ard"'


def test_without_publication_there_is_none() -> None:
    with http_serving(FIXTURES, "--no-publish") as server:
        assert [get(server, path).status for path in (CARD, CATALOG, ARD)] == [404, 404, 404]


def test_a_token_is_wanted_for_the_catalog_and_grants_hold_in_it(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN + "\n", encoding="ascii")
    tokens.chmod(0o600)
    for name in ("open", "secret"):
        write_skill(tmp_path / "skills" / name)
    config = tmp_path / "c.toml"
    config.write_text('[[grant]]\nwho = ["token:ops"]\nskills = ["open"]\n', encoding="utf-8")
    with http_serving(tmp_path / "skills", "--token-file", tokens, "--config", config) as server:
        assert get(server, CARD).status == 200
        for path in (CATALOG, ARD):
            assert get(server, path).status == 401
            said = get(server, path, **BEARER).body.decode()
            assert ":skill:open" in said and "secret" not in said
    with http_serving(tmp_path / "skills", "--token-file", tokens, "--publish-open") as server:
        for path in (CATALOG, ARD):
            assert ":skill:secret" in get(server, path).body.decode()


def test_a_name_of_a_host_becomes_one_of_a_card() -> None:
    def named(url: str) -> object:
        return server_card(url, "skills", "1", [])["name"]

    assert named("https://skills.example.com/mcp") == "com.example.skills/skills"
    assert named("http://127.0.0.1:8000/mcp") == "127.0.0.1/skills"
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/skills", str(named("http://[::1]:8000/mcp")))


def test_no_more_skills_have_entries_than_a_reader_wants() -> None:
    many = [CatalogSkill(skill(f"s{number}"), "/x", "sha256:0", "text/markdown") for number in range(600)]
    entries = catalog("https://skills.example", "/index.json", many, has_card=False)["entries"]
    assert isinstance(entries, list) and len(entries) == MOST_SKILLS + 1


def test_a_name_outside_ascii_has_an_identifier_that_the_schema_takes() -> None:
    named = CatalogSkill(skill("über-alles"), "/x", f"sha256:{64 * '0'}", "text/markdown")
    made = catalog("https://skills.example", "/index.json", [named], has_card=False)
    assert published.faults(published.AI_CATALOG, made) == []
