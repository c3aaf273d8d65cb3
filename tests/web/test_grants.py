"""Grants of a real server over real HTTP: what each bearer finds and hears of, and when they change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from web.http_wire import HttpClient, Server, bearing, client, http_serving, refused, token_file
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


def configure(folder: Path, grants: str) -> Path:
    """Write the file, as careful tools do."""
    file, fresh = folder / "c.toml", folder / "c.toml.new"
    fresh.write_text(f"roots = ['skills']\ntoken-file = 'tokens'\n{grants}")
    os.replace(fresh, file)
    return file


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three skills and two tokens."""
    for path in ("finance/refunds", "finance/tax", "tea"):
        write_skill(tmp_path / "skills" / path, scripts__run_py="print(7)\n")
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    return tmp_path


@contextmanager
def both(server: Server, era: Era) -> Iterator[tuple[HttpClient, HttpClient]]:
    """A client of each bearer."""
    with ExitStack() as stack:
        ann, bob = (stack.enter_context(client(server, era, token=each)) for each in (ANN, BOB))
        yield ann, bob


def names(reader: HttpClient) -> list[str]:
    return [each["name"] for each in reader.request("prompts/list")["prompts"]]


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_each_bearer_finds_and_hears_of_its_own_skills(place: Path, era: Era) -> None:
    with http_serving("--config", configure(place, GRANTS)) as server, both(server, era) as (ann, bob):
        assert (names(ann), names(bob)) == (["refunds", "tax"], ["tea"])
        heard = ann.hear("skill://finance/tax/SKILL.md"), bob.hear()
        write_skill(place / "skills" / "finance" / "audit")
        heard[0].until(PROMPTS)  # the last of them
        write_skill(place / "skills" / "tea", description="Makes green tea.")
        told = heard[1].until(PROMPTS)
        assert told.count((CHANGED, None)) == 1 and not any("finance" in str(uri) for _, uri in told)
        assert heard[0].messages.empty() and names(bob) == ["tea"] and names(ann) == ["audit", "refunds", "tax"]


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_grants_that_are_read_again_change_views_sessions_and_tell_whom_it_concerns(place: Path, era: Era) -> None:
    file = configure(place, GRANTS)
    with http_serving("--config", file) as server, both(server, era) as (ann, bob):
        receipt = ann.call("skills_load", names=["refunds", "tax"])["structuredContent"]
        heard = ann.hear(), bob.hear()
        configure(place, GRANTS.replace("finance/**", "finance/tax"))
        heard[0].until(CHANGED)
        server.said("the grants were reloaded; there are 2 of them")
        assert names(ann) == ["tax"] and heard[1].messages.empty()
        session = {"session": receipt["session"]} if era == "modern" else {}
        gone = ann.call("skills_read", skill="refunds", path="SKILL.md", **session)
        assert gone["isError"]
        assert not ann.call("skills_read", skill="tax", path="SKILL.md", **session).get("isError")
        absent = [ann.call("skills_load", names=[f"finance/{name}"]) for name in ("refunds", "refumds")]
        texts = [each["content"][0]["text"].replace("refumds", "refunds") for each in absent]
        assert texts[0] == texts[1]
        configure(place, "")
        server.said("grant: this takes effect at the next start")
        assert names(ann) == ["tax"]


def test_a_legacy_client_with_other_groups_fetches_its_lists_again(place: Path) -> None:
    def belong(groups: str) -> None:
        token_file(place, f"ann={ANN} groups={groups}", f"bob={BOB}")

    belong("money")
    grants = "[[grant]]\nwho = ['group:{}']\nskills = ['finance/**']\n[[grant]]\nwho = ['group:{}']\nskills = ['tea']\n"
    file = configure(place, grants.format("money", "drinks"))
    with http_serving("--config", file) as server, client(server, "legacy", token=ANN) as ann:
        cut = ann.hear()
        assert names(ann) == ["refunds", "tax"]
        belong("drinks")
        server.said("the tokens were reloaded")
        assert cut.rest() == []
        heard = ann.follow()
        assert (CHANGED, None) in heard.until(PROMPTS) and names(ann) == ["tea"]
        # Both files at once, so that the client was cut off before it could hear of the grants.
        belong("kitchen")
        configure(place, grants.format("kitchen", "drinks"))
        assert heard.rest() == []
        heard = ann.follow()
        assert (CHANGED, None) in heard.until(PROMPTS) and names(ann) == ["refunds", "tax"]
        belong("kitchen,office")  # of which nothing comes for its skills
        assert heard.rest() == []
        quiet = ann.follow()
        write_skill(place / "skills" / "finance" / "audit")
        assert quiet.until(PROMPTS).count((PROMPTS, None)) == 1 and quiet.messages.empty()


def test_tools_run_scripts_for_whom_they_are_granted(place: Path, sandbox_mode: str) -> None:
    file = configure(place, GRANTS)
    options = ("--allow-scripts", "--sandbox", sandbox_mode)
    with http_serving("--config", file, *options) as server, both(server, "modern") as (ann, bob):
        offered = [[each["name"] for each in one.request("tools/list")["tools"]] for one in (ann, bob)]
        assert "skills_run_script" in offered[0] and "skills_run_script" not in offered[1]
        session = bob.call("skills_load", names=["tea"])["structuredContent"]["session"]
        assert bob.call("skills_run_script", path="scripts/run.py", session=session)["isError"]
        session = ann.call("skills_load", names=["tax"])["structuredContent"]["session"]
        done = ann.call("skills_run_script", path="scripts/run.py", session=session)
        assert done["structuredContent"]["stdout"] == "7\n"


def test_discovery_and_the_skills_protocol_answer_by_grants_and_no_cache_mixes_them_up(place: Path) -> None:
    path = "/.well-known/agent-skills/index.json"
    file = configure(place, GRANTS + '[[grant]]\nwho = ["*"]\nskills = ["open"]\n')
    write_skill(place / "skills" / "open")
    with http_serving("--config", file) as server:
        index = server.send("GET", path, headers=bearing(ANN))
        listed = {each["name"]: each["url"] for each in json.loads(index.body)["skills"]}
        assert [*listed] == ["open", "refunds", "tax"]
        assert index.headers["Vary"] == "authorization" and "private" in index.headers["Cache-Control"]
        assert [server.send("GET", listed["tax"], headers=bearing(each)).status for each in (ANN, BOB)] == [200, 404]
        found = server.rpc("list_skills", token=BOB)["result"]["skills"]
        assert [each["name"] for each in found] == ["open", "skills.protocol.guide", "tea"]
    with http_serving("--config", file, "--publish-open") as server:
        index = server.send("GET", path)
        assert [each["name"] for each in json.loads(index.body)["skills"]] == ["open"]
        assert "public" in index.headers["Cache-Control"]


def test_grants_that_name_somebody_want_a_proof_of_who_comes(place: Path) -> None:
    file = configure(place, GRANTS)
    file.write_text(file.read_text().replace("token-file = 'tokens'\n", ""))
    said = refused("--config", file)
    assert "c.toml:3: grant.who: no client can prove who it is; give token-file" in said and said.count("\n") == 1
    file.write_text("roots = ['skills']\n[[grant]]\nwho = ['*']\nskills = ['tea']\n")
    with http_serving("--config", file) as server, client(server, "modern") as anybody:
        assert names(anybody) == ["tea"]
