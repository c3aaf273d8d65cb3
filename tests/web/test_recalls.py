"""Recalls over HTTP: the session that loaded a recalled skill is told so, once, and no other."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from commands.calls import exit_code, invoke, names_served
from mcp_skills_server.catalog.registry import Registry
from web.http_wire import HttpClient, client, http_serving, token_file
from web.in_process import App, app_serving
from web.test_grants import ANN, BOB, GRANTS, clients_of_ann_and_bob, configure
from wire import Era, WireError, write_skill

REASON = "it pays everyone twice"
MARK = "lapsang"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in ("finance/refunds", "finance/tax", "tea"):
        write_skill(tmp_path / "skills" / path)
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    recall(tmp_path, {})
    return tmp_path


def digests_of(folder: Path) -> dict[str, str]:
    with Registry([folder / "skills"]) as registry:
        return {path: registry.digest_over(skill) for path, skill in registry.snapshot.skills.items()}


def recall(folder: Path, replacements: dict[str, str], digests: dict[str, str] | None = None) -> None:
    """Recall these skills as they are or were, each with its replacement, by atomic replace."""
    digests = digests or digests_of(folder)
    text = "version = 1\n"
    for path, replacement in replacements.items():
        text += f'[[advisory]]\ndigest = "{digests[path]}"\nreason = "{REASON}"\nseverity = "high"\n'
        text += f'replacement = "{replacement}"\n'
    (folder / "new.toml").write_text(text)
    os.replace(folder / "new.toml", folder / "advisories.toml")


def load(user: HttpClient, name: str) -> str:
    """Load a skill in a new session, and return its handle."""
    return user.call("skills_load", names=[name], session=None)["structuredContent"]["session"]


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])


def listing(user: HttpClient, session: str) -> str:
    return text_of(user.call("skills_list", session=session))


def test_session_that_loaded_a_recalled_skill_is_told_once_and_no_other(folder: Path) -> None:
    config = configure(folder, 'advisories = "advisories.toml"\n' + GRANTS)
    with app_serving("--config", config) as server, clients_of_ann_and_bob(server, "modern") as (ann, bob):
        had, other, foreign = load(ann, "refunds"), load(ann, "tax"), load(bob, "tea")
        unloaded = load(ann, "refunds")
        ann.call("skills_unload", all=True, session=unloaded)
        recall(folder, {"finance/refunds": "tax"})
        server.reload()
        for user, session in ((ann, other), (bob, foreign)):
            assert "RECALLED" not in listing(user, session)
        read = ann.call("skills_read", skill="refunds", path="SKILL.md", session=had)
        assert read["isError"]
        assert "RECALLED (high): the skill finance/refunds" in text_of(read)
        assert REASON in text_of(read)
        assert "Load tax instead." in text_of(read)
        assert "RECALLED" in listing(ann, unloaded)
        for session in (had, unloaded):
            assert "RECALLED" not in listing(ann, session)


def test_session_that_loaded_an_older_version_is_told_and_keeps_the_present_one(folder: Path) -> None:
    skills, advisories = folder / "skills", folder / "advisories.toml"
    with app_serving(skills, "--advisories", advisories) as server, client(server, "modern") as user:
        before = load(user, "tea")
        recall(folder, {"tea": "tea"})
        write_skill(skills / "tea", description="Makes another tea when it is asked to.")
        assert server.server is not None
        server.server.opened.registry.refresh()
        after = load(user, "tea")
        server.reload()
        assert "RECALLED" not in listing(user, after)
        assert "Load tea instead." in listing(user, before)
        assert "RECALLED" not in listing(user, before)
        assert not user.call("skills_read", path="SKILL.md", session=before).get("isError")


REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("skills/list", {}), ("skills/get", {"name": "tea"}), ("resources/list", {}), ("prompts/list", {}),
    ("resources/read", {"uri": "skill://tea/SKILL.md"}), ("prompts/get", {"name": "tea"}),
    ("tools/call", {"name": "skills_list"}), ("tools/call", {"name": "skills_search", "arguments": {"query": MARK}}),
    ("tools/call", {"name": "skills_load", "arguments": {"names": ["tea"]}}),
    ("resources/directory/read", {"uri": "skill://tea"}),
    ("completion/complete", {
        "ref": {"type": "ref/resource", "uri": "skill://{+path}"}, "argument": {"name": "path", "value": "tea/"},
    }),
)  # fmt: skip
PAGES = (
    "/.well-known/agent-skills/index.json", "/.well-known/skills/index.json", "/.well-known/skills/tea/SKILL.md",
    "/.well-known/ai-catalog.json", "/ui/", "/ui/skills/tea", "/ui/raw/tea?file=SKILL.md", "/ui/model",
    "/ui/tools?tool=skills_load&call=1&arg.names=tea",
)  # fmt: skip

RPC = {
    "list_skills": {"detail": "summary"}, "describe_skill": {"name": "tea"},
    "read_skill_file": {"name": "tea", "path": "SKILL.md"},
}  # fmt: skip


def ways_to(mark: str, server: App, user: HttpClient, archive: str) -> set[str]:
    """Return the requests whose response has a text."""
    ways: set[str] = set()
    for method, params in REQUESTS:
        with suppress(WireError):
            if mark in str(user.request(method, params)):
                ways.add(f"{method} {params}")
    for page in (*PAGES, archive):
        if mark.encode() in server.send("GET", page).body:
            ways.add(page)
    for method, given in RPC.items():
        if mark in str(server.rpc(method, **given)):
            ways.add(method)
    return ways


def test_recalled_skill_is_served_by_no_method(folder: Path, era: Era) -> None:
    write_skill(folder / "skills" / "tea", description=f"Makes {MARK} when it is asked to.", lapsang_md="Tea.")
    options = ("--advisories", folder / "advisories.toml", "--rpc", "--ui")
    with app_serving(folder / "skills", *options) as server, client(server, era) as user:
        index = json.loads(server.send("GET", PAGES[0]).body)
        (archive,) = [skill["url"] for skill in index["skills"] if skill["name"] == "tea"]
        assert len(ways_to(MARK, server, user, archive)) == len(REQUESTS) + len(PAGES) + len(RPC) + 1
        recall(folder, {"tea": "none"})
        server.reload()
        assert ways_to(MARK, server, user, archive) == set()
        assert server.send("GET", archive).status == 404


def test_notice_names_no_skill_that_the_caller_may_not_see(folder: Path) -> None:
    config = configure(folder, 'advisories = "advisories.toml"\n' + GRANTS)
    with app_serving("--config", config) as server, clients_of_ann_and_bob(server, "modern") as (ann, bob):
        tea, refunds = load(bob, "tea"), load(ann, "refunds")
        recall(folder, {"tea": "finance/tax", "finance/refunds": "finance/tax"})
        configure(folder, 'advisories = "advisories.toml"\n' + GRANTS.replace("finance/**", "finance/tax"))
        server.reload()
        notice = listing(bob, tea)
        assert "RECALLED" in notice
        assert "tax" not in notice
        assert "RECALLED" not in listing(ann, refunds)  # the grant is gone, and with it all knowledge


def test_session_of_another_principal_is_neither_told_nor_opened(folder: Path) -> None:
    grants = '[[grant]]\nwho = ["token:ann", "token:bob"]\nskills = ["**"]\n'
    config = configure(folder, 'advisories = "advisories.toml"\n' + grants)
    with app_serving("--config", config) as server, clients_of_ann_and_bob(server, "modern") as (ann, bob):
        session = load(ann, "tea")
        recall(folder, {"tea": "tax"})
        server.reload()
        assert "RECALLED" not in listing(bob, session)
        assert "RECALLED" in listing(ann, session)


def test_version_is_the_same_for_a_client_that_may_read_only_a_part_of_it(folder: Path) -> None:
    inner = folder / "skills" / "tea" / "green"
    write_skill(inner)
    grants = '[[grant]]\nwho = ["token:bob"]\nskills = ["tea"]\n'
    config = configure(folder, f'advisories = "advisories.toml"\naudit-log = "audit.jsonl"\n{grants}')
    with app_serving("--config", config) as server, client(server, "modern", token=BOB) as bob:
        had = load(bob, "tea")
        bob.call("skills_unload", all=True, session=had)
        before = digests_of(folder)
        write_skill(inner, description="Makes another green tea when it is asked to.")
        assert server.server is not None
        server.server.opened.registry.refresh()
        assert "RECALLED" not in listing(bob, had)
        recall(folder, {"tea": "none"}, before)
        server.reload()
        assert "RECALLED" in listing(bob, had)
        assert "RECALLED" not in text_of(bob.call("skills_load", names=["tea"], session=None))
    done = invoke("recall", "--advisories", folder / "advisories.toml", folder / "audit.jsonl")
    assert exit_code(done) == 1
    assert "token:bob" in done.stdout


def test_server_follows_the_file_of_advisories_and_keeps_the_former_if_it_is_broken(folder: Path) -> None:
    advisories = folder / "advisories.toml"
    with http_serving(folder / "skills", "--advisories", advisories) as server, client(server, "modern") as user:
        recall(folder, {"tea": "none"})
        server.wait_for_log(r"advisories\.toml was reloaded; its advisories: 1")
        assert user.call("skills_load", names=["tea"])["isError"]
        advisories.write_text("version = 2\n")
        server.wait_for_log("the former advisories stay in force")
        assert user.call("skills_load", names=["tea"])["isError"]
        recall(folder, {})
        server.wait_for_log(r"advisories\.toml was reloaded; its advisories: 0")
        assert not user.call("skills_load", names=["tea"]).get("isError")


def test_page_warns_of_a_recalled_skill_with_the_reason(folder: Path) -> None:
    with app_serving(folder / "skills", "--advisories", folder / "advisories.toml", "--ui") as server:
        assert b"recalled" not in server.send("GET", "/ui/").body
        recall(folder, {"tea": "none"})
        server.reload()
        for page in ("/ui/", "/ui/problems?code=recalled", "/ui/skills/tea"):
            assert f"recalled (high): {REASON}" in server.send("GET", page).body.decode()
        for page in ("/ui/skills/tea", "/ui/raw/tea?file=SKILL.md", "/ui/history/tea"):
            assert server.send("GET", page).status == 404


def test_fetched_copy_is_refused_after_a_restart_without_network(folder: Path) -> None:
    options = ("--cache-dir", folder / "cache", "--allow-private", "--advisories", folder / "advisories.toml")
    with http_serving(folder / "skills") as site:
        root = f"http://127.0.0.1:{site.port}"
        assert "tea" in names_served(root, *options)
    recall(folder, {"tea": "none"})
    left = names_served(root, *options)
    assert "tax" in left
    assert "tea" not in left
