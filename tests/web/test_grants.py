"""Grants over HTTP: what each principal sees and is notified of, and how grants change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcp_skills_server.dialects.aicatalog import ARD, CARD, CATALOG
from mcp_skills_server.dialects.wellknown import DIRECTORY, DIRECTORY_0_1, INDEX
from web.http_wire import HttpClient, Target, bearer_header, client, startup_error, token_file
from web.in_process import app_serving
from wire import Era, write_skill

ANN, BOB = "anns-made-up-token-0123456789", "bobs-made-up-token-0123456789"
GRANTS = """
[[grant]]
who = ["token:ann"]
skills = ["finance/**"]
may = ["scripts"]

[[grant]]
who = ["token:bob"]
skills = ["tea"]
"""
CHANGED = "notifications/resources/list_changed"
PROMPTS = "notifications/prompts/list_changed"
UPDATED = "notifications/resources/updated"


def configure(folder: Path, grants: str) -> Path:
    """Write the configuration with these grants by atomic replace."""
    file, fresh = folder / "c.toml", folder / "c.toml.new"
    fresh.write_text(f"roots = ['skills']\ntoken-file = 'tokens'\n{grants}")
    os.replace(fresh, file)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in ("finance/refunds", "finance/tax", "tea"):
        write_skill(tmp_path / "skills" / path, scripts__run_py="print(7)\n")
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    return tmp_path


@contextmanager
def clients_of_ann_and_bob(server: Target, era: Era) -> Iterator[tuple[HttpClient, HttpClient]]:
    with client(server, era, token=ANN) as ann, client(server, era, token=BOB) as bob:
        yield ann, bob


def names(reader: HttpClient) -> list[str]:
    return [each["name"] for each in reader.request("prompts/list")["prompts"]]


def test_principal_sees_and_is_notified_of_granted_skills_only(folder: Path, era: Era) -> None:
    config = configure(folder, GRANTS)
    with app_serving("--config", config) as server, clients_of_ann_and_bob(server, era) as (ann, bob):
        assert names(ann) == ["refunds", "tax"]
        assert names(bob) == ["tea"]
        of_ann, of_bob = ann.hear("skill://finance/tax/SKILL.md"), bob.hear()
        write_skill(folder / "skills" / "finance" / "audit")
        of_ann.until(PROMPTS)  # the last notification of the change
        write_skill(folder / "skills" / "tea", description="Makes green tea.")
        notifications = of_bob.until(PROMPTS)
        assert notifications.count((CHANGED, None)) == 1
        assert not any("finance" in str(uri) for _, uri in notifications)
        assert of_ann.messages.empty()
        assert names(bob) == ["tea"]
        assert names(ann) == ["audit", "refunds", "tax"]


def test_reloaded_grants_change_views_and_sessions_and_notify_clients(folder: Path, era: Era) -> None:
    config = configure(folder, GRANTS)
    with app_serving("--config", config) as server, clients_of_ann_and_bob(server, era) as (ann, bob):
        loaded = ann.call("skills_load", names=["refunds", "tax"])["structuredContent"]
        of_ann, of_bob = ann.hear(), bob.hear()
        configure(folder, GRANTS.replace("finance/**", "finance/tax"))
        server.reload()
        of_ann.until(CHANGED)
        server.wait_for_log("the grants were reloaded; there are 2 of them")
        assert names(ann) == ["tax"]
        assert of_bob.messages.empty()
        session = None
        if era == "modern":
            session = loaded["session"]
        revoked = ann.call("skills_read", skill="refunds", path="SKILL.md", session=session)
        assert revoked["isError"]
        kept = ann.call("skills_read", skill="tax", path="SKILL.md", session=session)
        assert not kept.get("isError")
        revoked = ann.call("skills_load", names=["finance/refunds"])["content"][0]["text"]
        absent = ann.call("skills_load", names=["finance/refumds"])["content"][0]["text"]
        assert absent.replace("refumds", "refunds") == revoked
        configure(folder, "")
        server.reload()
        server.wait_for_log("grant: this takes effect at the next start")
        assert names(ann) == ["tax"]


def test_legacy_client_whose_groups_change_is_disconnected_and_notified_on_reconnect(folder: Path) -> None:
    def set_groups(groups: str) -> None:
        token_file(folder, f"ann={ANN} groups={groups}", f"bob={BOB}")

    set_groups("money")
    grants = "[[grant]]\nwho = ['group:{}']\nskills = ['finance/**']\n[[grant]]\nwho = ['group:{}']\nskills = ['tea']\n"
    config = configure(folder, grants.format("money", "drinks"))
    with app_serving("--config", config) as server, client(server, "legacy", token=ANN) as ann:
        tax = "skill://finance/tax/SKILL.md"
        stream = ann.hear(tax)
        assert names(ann) == ["refunds", "tax"]
        set_groups("drinks")
        server.reload()
        server.wait_for_log("the tokens were reloaded")
        assert stream.rest() == []
        stream = ann.follow()
        received = stream.until(PROMPTS)
        assert (CHANGED, None) in received and (UPDATED, tax) in received
        assert names(ann) == ["tea"]
        # The skill that she subscribed to has left her view.
        write_skill(folder / "skills" / "finance" / "tax", description="Counts what is owed.")
        server.wait_for_log("skill finance/tax: changed")
        write_skill(folder / "skills" / "tea", description="Makes green tea.")
        assert (UPDATED, tax) not in stream.until(PROMPTS)


def test_scripts_run_only_for_granted_principals(folder: Path, sandbox_mode: str) -> None:
    config = configure(folder, GRANTS)
    options = ("--allow-scripts", "--sandbox", sandbox_mode)
    with app_serving("--config", config, *options) as server, clients_of_ann_and_bob(server, "modern") as (ann, bob):
        tools_of_ann = {tool["name"] for tool in ann.request("tools/list")["tools"]}
        tools_of_bob = {tool["name"] for tool in bob.request("tools/list")["tools"]}
        assert tools_of_ann - tools_of_bob >= {"skills_run_script"}
        session = bob.call("skills_load", names=["tea"])["structuredContent"]["session"]
        assert bob.call("skills_run_script", path="scripts/run.py", session=session)["isError"]
        session = ann.call("skills_load", names=["tax"])["structuredContent"]["session"]
        result = ann.call("skills_run_script", path="scripts/run.py", session=session)
        assert result["structuredContent"]["stdout"] == "7\n"


@pytest.mark.requirement("WK-59")
def test_published_documents_require_token_and_apply_grants(folder: Path) -> None:
    path = DIRECTORY + INDEX
    config = configure(folder, GRANTS + '[[grant]]\nwho = ["*"]\nskills = ["open"]\n')
    write_skill(folder / "skills" / "open")
    with app_serving("--config", config) as server:
        index = server.send("GET", path, headers=bearer_header(ANN))
        urls = {each["name"]: each["url"] for each in json.loads(index.body)["skills"]}
        assert [*urls] == ["open", "refunds", "tax"]
        assert index.headers["Vary"] == "authorization"
        assert "private" in index.headers["Cache-Control"]
        for each in (path, DIRECTORY_0_1 + INDEX, CATALOG, ARD, urls["tax"]):
            assert server.send("GET", each).status == 401, each
        assert server.send("GET", CARD).status == 200
        artifact = server.send("GET", urls["tax"], headers=bearer_header(ANN))
        assert artifact.status == 200
        assert artifact.headers["Cache-Control"] == "private, max-age=31536000, immutable"
        assert server.send("GET", urls["tax"], headers=bearer_header(BOB)).status == 404
        for each in (CATALOG, ARD):
            body = server.send("GET", each, headers=bearer_header(BOB)).body
            assert b":skill:tea" in body and b"tax" not in body
        skills = server.rpc("list_skills", token=BOB)["result"]["skills"]
        assert [each["name"] for each in skills] == ["open", "skills.protocol.guide", "tea"]
    with app_serving("--config", config, "--publish-open") as server:
        index = server.send("GET", path)
        assert [each["name"] for each in json.loads(index.body)["skills"]] == ["open"]
        assert "public" in index.headers["Cache-Control"]
        for each in (CATALOG, ARD):
            assert b":skill:open" in server.send("GET", each).body


def test_grant_or_quota_of_principal_requires_authentication(folder: Path) -> None:
    config = configure(folder, GRANTS)
    config.write_text(config.read_text().replace("token-file = 'tokens'\n", ""))
    message = startup_error("--config", config)
    assert "c.toml:3: grant.who: no client can prove who it is; give token-file" in message
    config.write_text("roots = ['skills']\n[[quota]]\nruns = 1\n[[quota]]\nwho = ['group:ci']\nruns = 2\n")
    assert "c.toml:4: quota.who: no client can prove who it is; give token-file" in startup_error("--config", config)
    config.write_text("roots = ['skills']\n[[grant]]\nwho = ['*']\nskills = ['tea']\n")
    with app_serving("--config", config) as server, client(server, "modern") as anonymous:
        assert names(anonymous) == ["tea"]
