"""What the methods answer, asked over real stdio in both eras."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from wire import EXTENSION, FIXTURES, META, Era, Wire, WireError, serving, write_skill

INVALID_PARAMS = -32602
NOT_FOUND = {"legacy": -32002, "modern": INVALID_PARAMS}


def read(wire: Wire, uri: str) -> bytes:
    """The bytes that resources/read sends for this URI."""
    contents = wire.request("resources/read", {"uri": uri})["contents"]
    assert len(contents) == 1 and contents[0]["uri"] == uri
    item = contents[0]
    return item["text"].encode() if "text" in item else base64.b64decode(item["blob"], validate=True)


# Capabilities


@pytest.mark.requirement("S76-1", "S76-3", "S40-1", "S40-2", "S40-4", "MCP-29", "MCP-30", "X-9")
def test_both_handshakes_declare_skills_the_extension_and_resources(era: Era) -> None:
    with serving(FIXTURES, era=era, opened=False) as wire:
        capabilities = wire.open()["capabilities"]
        assert capabilities["skills"] == {"listChanged": True}
        assert capabilities["extensions"] == {EXTENSION: {"directoryRead": True}}
        assert capabilities["resources"] == {"subscribe": True, "listChanged": True}
        assert wire.request("skills/list")["skills"]


@pytest.mark.requirement("X-9")
@pytest.mark.parametrize(("dialect", "skills", "extension"), [("sep-2076", True, False), ("sep-2640", False, True)])
def test_a_pinned_dialect_declares_itself_alone(era: Era, dialect: str, skills: bool, extension: bool) -> None:
    with serving(FIXTURES, "--dialect", dialect, era=era, opened=False) as wire:
        capabilities = wire.open()["capabilities"]
        assert ("skills" in capabilities) is skills
        assert (EXTENSION in capabilities.get("extensions", {})) is extension


@pytest.mark.requirement("S40C-1")
def test_the_extension_is_declared_inline_without_envelope_keys(wire: Wire) -> None:
    if wire.era == "modern":
        assert wire.open()["capabilities"]["extensions"][EXTENSION] == {"directoryRead": True}


@pytest.mark.requirement("MCP-5", "MCP-12")
def test_discover_tells_versions_and_how_long_it_holds() -> None:
    with serving(FIXTURES, era="modern", opened=False) as wire:
        told = wire.open()
        assert told["supportedVersions"] == ["2026-07-28"]
        assert told["ttlMs"] >= 0 and told["cacheScope"] in {"public", "private"}
        assert told["resultType"] == "complete"
        assert told["_meta"][META + "serverInfo"]["name"] == "mcp-skills-server"


@pytest.mark.requirement("MCP-6")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("server/discover", None),
        ("skills/list", None),
        ("skills/get", {"name": "csv-profiling"}),
        ("skills/get", {"uri": "skill://csv-profiling/SKILL.md"}),
        ("resources/list", None),
        ("resources/templates/list", None),
        ("resources/read", {"uri": "skill://csv-profiling/SKILL.md"}),
        ("resources/directory/read", {"uri": "skill://csv-profiling"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "skill://{+path}"}, "argument": {"name": "path", "value": "b"}},
        ),
        ("tools/list", None),
        ("tools/call", {"name": "skills_list", "arguments": {}}),
        ("prompts/list", None),
        ("prompts/get", {"name": "csv-profiling"}),
    ],
)
def test_every_result_of_the_modern_era_names_the_server(
    wire: Wire, method: str, params: dict[str, Any] | None
) -> None:
    """Whatever the method, the SDK's own ones and ours."""
    if wire.era == "modern":
        assert wire.request(method, params)["_meta"][META + "serverInfo"]["name"] == "mcp-skills-server"


# skills/list


@pytest.mark.requirement("S76-4", "S76-19", "S40-12", "S40-15", "S40-20", "X-10", "X-11")
def test_a_client_that_declares_nothing_gets_the_union(wire: Wire) -> None:
    skills = {skill["uri"]: skill for skill in wire.every_skill()}
    refunds = skills["skill://acme/billing/refunds/SKILL.md"]
    assert refunds["name"] == refunds["frontmatter"]["name"] == "refunds"
    assert refunds["version"] == refunds["frontmatter"]["metadata"]["version"]
    assert next(each["uri"] for each in refunds["resources"]) == refunds["uri"]
    assert len(skills) == len(list(FIXTURES.rglob("SKILL.md")))


@pytest.mark.requirement("X-9", "S40-12")
def test_a_client_that_declares_the_extension_gets_pure_entries(era: Era) -> None:
    with serving(FIXTURES, era=era, extension=True) as wire:
        for skill in wire.every_skill():
            assert skill.keys() == {"uri", "frontmatter", "resources"}


@pytest.mark.requirement("S40-13", "S40-14", "S40-16", "S40-17", "S40-18", "S76-12", "X-3")
def test_every_listed_byte_can_be_read_back_and_proves(wire: Wire) -> None:
    seen = 0
    for skill in wire.every_skill():
        directory = skill["uri"].removesuffix("SKILL.md")
        assert directory.rstrip("/").rpartition("/")[2] == skill["frontmatter"]["name"]
        uris = [each["uri"] for each in skill["resources"]]
        assert len(set(uris)) == len(uris) and skill["uri"] in uris
        for each in skill["resources"]:
            assert each["uri"].startswith(directory)
            raw = read(wire, each["uri"])
            assert len(raw) == each["size"]
            assert "sha256:" + hashlib.sha256(raw).hexdigest() == each["digest"]
            seen += 1
    assert seen > 100


@pytest.mark.requirement("S40-16")
def test_a_nested_skill_is_listed_flat_and_among_the_outer_skills_files(wire: Wire) -> None:
    skills = {skill["uri"]: skill for skill in wire.every_skill()}
    inner = skills["skill://release-checklist/changelog-entry/SKILL.md"]
    outer = skills["skill://release-checklist/SKILL.md"]
    assert {tuple(each.items()) for each in inner["resources"]} < {tuple(each.items()) for each in outer["resources"]}


@pytest.mark.requirement("S76-5", "S40-22")
def test_pages_hold_every_skill_once_in_a_lasting_order(era: Era) -> None:
    with serving(FIXTURES, "--page-size", "3", era=era) as wire:
        first = [skill["uri"] for skill in wire.every_skill()]
        assert len(first) == len(set(first)) == len(list(FIXTURES.rglob("SKILL.md")))
        assert first == [skill["uri"] for skill in wire.every_skill()]
        assert len(wire.request("skills/list")["skills"]) == 3


def test_a_cursor_outlives_a_change_of_the_catalogue(tmp_path: Path, era: Era) -> None:
    for name in ("a", "b", "c", "d", "e"):
        write_skill(tmp_path / name)
    with serving(tmp_path, "--page-size", "2", era=era) as wire:
        if era == "modern":
            wire.listen(skillsListChanged=True)
        first = wire.request("skills/list")
        write_skill(tmp_path / "aa")
        (tmp_path / "b" / "SKILL.md").unlink()
        wire.until("notifications/skills/list_changed")
        second = wire.request("skills/list", {"cursor": first["nextCursor"]})
        assert [skill["name"] for skill in first["skills"] + second["skills"]] == ["a", "b", "c", "d"]


@pytest.mark.requirement("MCP-21")
@pytest.mark.parametrize("method", ["skills/list", "resources/list", "resources/templates/list"])
@pytest.mark.parametrize("cursor", ["", "x", "!!!!", "W10", "5", "é", "bnVsbA", "WyJvdGhlciIsImEiXQ", "A" * 20_000])
def test_a_cursor_that_is_none_is_refused_and_named(wire: Wire, method: str, cursor: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.request(method, {"cursor": cursor})
    assert caught.value.code == INVALID_PARAMS
    assert "cursor" in caught.value.message


@pytest.mark.parametrize("cursor", [5, None, [], {}, True])
def test_a_cursor_of_a_wrong_type_is_refused(wire: Wire, cursor: Any) -> None:
    if cursor is None:
        assert wire.request("skills/list", {"cursor": None})["skills"]
        return
    with pytest.raises(WireError) as caught:
        wire.request("skills/list", {"cursor": cursor})
    assert caught.value.code == INVALID_PARAMS


# skills/get


@pytest.mark.requirement("S76-6", "S76-7", "S76-19")
def test_get_by_name_answers_instructions_without_frontmatter(wire: Wire) -> None:
    result = wire.request("skills/get", {"name": "commit-messages"})
    assert result["instructions"].startswith("# ")
    assert "description" in result and result["files"] == []


@pytest.mark.requirement("S76-7")
@pytest.mark.parametrize("name", ["windows-paths", "text-encodings", "polite-greetings"])
def test_instructions_are_utf8_with_lf_whatever_the_file_has(wire: Wire, name: str) -> None:
    text = wire.request("skills/get", {"name": name})["instructions"]
    assert "\r" not in text and not text.startswith("\ufeff")
    raw = read(wire, f"skill://{name}/SKILL.md")
    assert raw == (FIXTURES / name / "SKILL.md").read_bytes()


def test_arguments_are_filled_in_and_others_left_alone(wire: Wire) -> None:
    given = {"topic": "{{audience}} $1", "audience": "all"}
    text = wire.request("skills/get", {"name": "meeting-notes", "arguments": given})["instructions"]
    assert "**{{audience}} $1** for all" in text
    assert "{{topic}}" not in text and "{{deadline}}" not in text


@pytest.mark.requirement("S76-8")
@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({}, "name"),
        ({"name": None}, "name"),
        ({"name": 5}, "name"),
        ({"uri": ["x"]}, "uri"),
        ({"name": "no-such-skill"}, "no-such-skill"),
        ({"name": ""}, "''"),
        ({"name": "../commit-messages"}, "../commit-messages"),
        ({"name": "meeting-notes"}, "topic"),
        ({"name": "meeting-notes", "arguments": {}}, "topic"),
        ({"name": "meeting-notes", "arguments": {"topic": 5}}, "topic"),
        ({"name": "meeting-notes", "arguments": {"topic": "x", "colour": "red"}}, "colour"),
        ({"name": "commit-messages", "arguments": {"x": "y"}}, "x"),
        ({"name": "commit-messages", "arguments": ["x"]}, "arguments"),
    ],
)
def test_get_refuses_and_names_what_was_wrong(wire: Wire, params: dict[str, Any], named: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.request("skills/get", params)
    assert caught.value.code == INVALID_PARAMS
    assert named in caught.value.message


@pytest.mark.requirement("S40-23", "S40-25", "S40-26", "X-8")
def test_get_by_uri_answers_the_very_entry_of_the_listing(wire: Wire) -> None:
    for skill in wire.every_skill():
        result = wire.request("skills/get", {"uri": skill["uri"]})
        assert result["skill"] == skill
        assert "nextCursor" not in result


@pytest.mark.requirement("X-8")
def test_with_uri_and_name_the_uri_counts(wire: Wire) -> None:
    result = wire.request("skills/get", {"uri": "skill://csv-profiling/SKILL.md", "name": "commit-messages"})
    assert result["skill"]["frontmatter"]["name"] == "csv-profiling"


@pytest.mark.requirement("S40-24", "S40C-5")
@pytest.mark.parametrize(
    "uri",
    [
        "skill://nothing/SKILL.md",
        "skill://csv-profiling",
        "skill://csv-profiling/",
        "skill://csv-profiling/scripts/profile_csv.py",
        "skill://csv-profiling/scripts",
        "skill://acme/billing",
        "skill://",
        "file:///etc/passwd",
        "",
    ],
)
def test_get_knows_no_other_uri(wire: Wire, uri: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.request("skills/get", {"uri": uri})
    assert caught.value.code == INVALID_PARAMS


def test_a_shared_name_is_refused_and_the_paths_are_told(tmp_path: Path, era: Era) -> None:
    for path in ("one/refunds", "two/refunds"):
        write_skill(tmp_path / path, body=f"# {path}\n")
    with serving(tmp_path, era=era) as wire:
        assert [skill["name"] for skill in wire.every_skill()] == ["one/refunds", "two/refunds"]
        assert wire.request("skills/get", {"name": "two/refunds"})["instructions"] == "# two/refunds"
        with pytest.raises(WireError, match=r"one/refunds, two/refunds") as caught:
            wire.request("skills/get", {"name": "refunds"})
        assert caught.value.code == INVALID_PARAMS


@pytest.mark.requirement("S76-9", "S76-10", "S76-11")
def test_dependencies_name_only_what_this_server_serves(tmp_path: Path, era: Era) -> None:
    skill = write_skill(tmp_path / "needy")
    dependencies = {
        "tools": ["read_pdf"],
        "prompts": [{"type": "ref/prompt", "name": "greet"}],
        "resources": [
            {"type": "ref/resource", "uri": "skill://needy/SKILL.md"},
            {"type": "ref/resource", "uri": "skill://needy/none.md"},
        ],
    }
    text = (
        f"---\nname: needy\ndescription: Needs what others have.\ndependencies: {json.dumps(dependencies)}\n---\n# N\n"
    )
    (skill / "SKILL.md").write_text(text)
    with serving(tmp_path, era=era) as wire:
        kept = {"resources": [{"type": "ref/resource", "uri": "skill://needy/SKILL.md"}]}
        assert wire.every_skill()[0]["dependencies"] == kept
        assert wire.request("skills/get", {"name": "needy"})["dependencies"] == kept
        for each in kept["resources"]:
            assert read(wire, each["uri"])


# Broken skills


@pytest.mark.requirement("S40-5", "S40-7", "X-2")
def test_a_skill_that_breaks_the_rules_is_kept_off_but_for_sep_2076(tmp_path: Path, era: Era) -> None:
    write_skill(tmp_path / "good")
    write_skill(tmp_path / "Shouting", name="Shouting")
    (write_skill(tmp_path / "torn") / "SKILL.md").write_text("---\nname: [\n---\n")
    for dialect, names in (("auto", ["good"]), ("sep-2640", ["good"]), ("sep-2076", ["Shouting", "good"])):
        with serving(tmp_path, "--dialect", dialect, era=era) as wire:
            listed = [skill.get("name") or skill["frontmatter"]["name"] for skill in wire.every_skill()]
            assert listed == names
            wanted = "skill://Shouting/SKILL.md"
            if dialect == "sep-2076":
                assert read(wire, wanted)
                assert wire.request("skills/get", {"name": "Shouting"})["instructions"]
            else:
                with pytest.raises(WireError):
                    read(wire, wanted)
            assert b"torn" in wire.stderr or wire.request("skills/list")


# resources


@pytest.mark.requirement("S40-10", "S40-11", "S40C-5", "MCP-23", "MCP-24")
def test_resources_are_the_skill_mds_with_their_metadata(era: Era) -> None:
    with serving(FIXTURES, "--page-size", "5", era=era) as wire:
        found: list[dict[str, Any]] = []
        scopes: set[str | None] = set()
        cursor: dict[str, Any] = {}
        while True:
            page = wire.request("resources/list", cursor)
            found += page["resources"]
            scopes.add(page.get("cacheScope"))
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert len(scopes) == 1
        assert era == "legacy" or scopes <= {"public", "private"}
        skills = {skill["uri"]: skill for skill in wire.every_skill()}
        assert [each["uri"] for each in found] == sorted(skills, key=lambda uri: uri.removesuffix("/SKILL.md"))
        for each in found:
            frontmatter = skills[each["uri"]]["frontmatter"]
            assert each["mimeType"] == "text/markdown"
            assert (each["name"], each["description"]) == (frontmatter["name"], frontmatter["description"])
            assert each["size"] == len(read(wire, each["uri"]))
            meta = {key.removeprefix("io.modelcontextprotocol.skills/"): value for key, value in each["_meta"].items()}
            assert meta == {key: value for key, value in frontmatter.items() if key not in {"name", "description"}}


def test_one_template_covers_every_file(wire: Wire) -> None:
    templates = wire.request("resources/templates/list")["resourceTemplates"]
    assert [each["uriTemplate"] for each in templates] == ["skill://{+path}"]


def test_text_comes_as_text_and_the_rest_as_blob(wire: Wire) -> None:
    kinds = {
        "skill://colour-palettes/assets/icon.png": ("blob", "image/png"),
        "skill://csv-profiling/scripts/profile_csv.py": ("text", "text/x-python"),
        "skill://retry-with-backoff/assets/backoff.svg": ("text", "image/svg+xml"),
        "skill://colour-palettes/assets/palette.aco": ("blob", "application/octet-stream"),
    }
    for uri, (kind, media) in kinds.items():
        (item,) = wire.request("resources/read", {"uri": uri})["contents"]
        assert kind in item and item["mimeType"] == media


@pytest.mark.requirement("S40-30", "MCP-16", "MCP-17", "MCP-18", "MCP-55", "X-13")
@pytest.mark.parametrize(
    "uri",
    [
        "skill://csv-profiling/none.md",
        "skill://csv-profiling",
        "skill://csv-profiling/scripts",
        "skill://csv-profiling/../commit-messages/SKILL.md",
        "skill://csv-profiling/%2e%2e/commit-messages/SKILL.md",
        "skill://csv-profiling/..%2fcommit-messages/SKILL.md",
        "skill://csv-profiling/%252e%252e/SKILL.md",
        "skill://csv-profiling/./SKILL.md",
        "skill://csv-profiling//SKILL.md",
        "skill://csv-profiling/scripts%2fprofile_csv.py",
        "skill://csv-profiling/SKILL.md%00",
        "skill://csv-profiling/SKILL.md?x",
        "skill://csv-profiling/SKILL.md#x",
        "skill://csv-profiling\\SKILL.md",
        "skill:///etc/passwd",
        "skill://%2fetc%2fpasswd",
        "skill://csv-profiling/%ff",
        "file:///etc/passwd",
        "http://localhost/",
        "x",
    ],
)
def test_what_is_not_served_is_absent_in_any_encoding(wire: Wire, uri: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.request("resources/read", {"uri": uri})
    assert caught.value.code == NOT_FOUND[wire.era]
    assert caught.value.message == f"Resource not found: {uri}"
    assert caught.value.data == {"uri": uri}


@pytest.mark.requirement("S40-30", "MCP-55")
def test_forbidden_and_absent_are_told_in_the_same_words(tmp_path: Path, era: Era) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    skill = write_skill(tmp_path / "root" / "skill", references__a_md="a")
    (skill / "out.txt").symlink_to(secret)
    (skill / ".env").write_text("KEY=1")
    (skill / "node_modules").mkdir()
    (skill / "node_modules" / "x.js").write_text("x")
    (skill / "in.md").symlink_to("references/a.md")
    with serving(tmp_path / "root", era=era) as wire:
        (entry,) = wire.every_skill()
        served = {each["uri"].removeprefix("skill://skill/") for each in entry["resources"]}
        assert served == {"SKILL.md", "in.md", "references/a.md"}
        assert read(wire, "skill://skill/in.md") == b"a"
        answers = set()
        for name in ("out.txt", ".env", "node_modules/x.js", "absent.txt"):
            with pytest.raises(WireError) as caught:
                read(wire, f"skill://skill/{name}")
            answers.add((caught.value.code, caught.value.message.replace(name, "")))
        assert len(answers) == 1


# Directories and completion


def children(wire: Wire, uri: str) -> dict[str, str]:
    """All pages of a directory: name to media type."""
    out: dict[str, str] = {}
    cursor: dict[str, Any] = {}
    while True:
        page = wire.request("resources/directory/read", {"uri": uri, **cursor})
        assert page["ttlMs"] >= 0 and page["cacheScope"] in {"public", "private"}
        for each in page["resources"]:
            assert each["uri"].startswith(uri + "/") and not each["uri"].endswith("/")
            out[each["uri"].rpartition("/")[2]] = each.get("mimeType", "")
        if "nextCursor" not in page:
            return out
        cursor = {"cursor": page["nextCursor"]}


@pytest.mark.requirement("S40-3", "S40-27", "S40-29")
def test_directories_show_their_direct_children(wire: Wire) -> None:
    assert children(wire, "skill://acme") == {"billing": "inode/directory"}
    assert children(wire, "skill://acme/billing") == {"invoices": "inode/directory", "refunds": "inode/directory"}
    assert children(wire, "skill://release-checklist") == {
        "SKILL.md": "text/markdown",
        "changelog-entry": "inode/directory",
        "references": "inode/directory",
    }
    assert "profile_csv.py" in children(wire, "skill://csv-profiling/scripts")


@pytest.mark.requirement("S40-27", "S40-29")
def test_every_file_of_every_skill_is_found_by_descending(wire: Wire) -> None:
    for skill in wire.every_skill():
        directory = skill["uri"].removesuffix("/SKILL.md")
        found: set[str] = set()
        below = [directory]
        while below:
            here = below.pop()
            for name, media in children(wire, here).items():
                (below.append if media == "inode/directory" else found.add)(f"{here}/{name}")
        assert found == {each["uri"] for each in skill["resources"]}


@pytest.mark.requirement("S40-27")
def test_a_directory_comes_in_pages_and_an_empty_one_is_empty(tmp_path: Path, era: Era) -> None:
    skill = write_skill(tmp_path / "skill", **{f"data__f{number}_md": "x" for number in range(7)})
    (skill / "empty" / "deeper").mkdir(parents=True)
    with serving(tmp_path, "--page-size", "3", era=era) as wire:
        assert len(children(wire, "skill://skill/data")) == 7
        assert children(wire, "skill://skill/empty") == {"deeper": "inode/directory"}
        assert wire.request("resources/directory/read", {"uri": "skill://skill/empty/deeper"})["resources"] == []
        cursor = wire.request("resources/directory/read", {"uri": "skill://skill/data"})["nextCursor"]
        with pytest.raises(WireError):
            wire.request("resources/directory/read", {"uri": "skill://skill", "cursor": cursor})


@pytest.mark.requirement("S40-28")
@pytest.mark.parametrize(
    "uri",
    [
        "skill://csv-profiling/SKILL.md",
        "skill://csv-profiling/none",
        "skill://csv-profiling/",
        "skill://csv-profiling/scripts/..",
        "skill://csv-profiling/%2e%2e",
        "skill://acm",
        "skill://",
        "file:///",
        "",
        None,
        5,
    ],
)
def test_what_is_no_directory_is_refused(wire: Wire, uri: Any) -> None:
    with pytest.raises(WireError) as caught:
        wire.request("resources/directory/read", {} if uri is None else {"uri": uri})
    assert caught.value.code == INVALID_PARAMS


def test_the_template_s_path_can_be_completed(wire: Wire) -> None:
    def complete(begun: str) -> list[str]:
        ref = {"type": "ref/resource", "uri": "skill://{+path}"}
        answer = wire.request("completion/complete", {"ref": ref, "argument": {"name": "path", "value": begun}})
        assert len(answer["completion"]["values"]) <= 100
        return answer["completion"]["values"]

    assert {each.rsplit("/", 2)[0] for each in complete("acme/billing/ref")} <= {"acme/billing", "acme/billing/refunds"}
    assert all(each.startswith("csv-profiling/scripts/") for each in complete("csv-profiling/scr"))
    assert "acme/billing/refunds/SKILL.md" in complete("refu")
    assert complete("nothing") == []
    assert len(complete("")) > 90
    for uri in complete("polite"):
        assert read(wire, f"skill://{uri}")


@pytest.mark.parametrize(
    "params",
    [
        {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": ""}},
        {"ref": {"type": "ref/resource", "uri": "file://{x}"}, "argument": {"name": "x", "value": ""}},
        {"ref": {"type": "ref/resource", "uri": "skill://{+path}"}, "argument": {"name": "other", "value": ""}},
        {},
    ],
)
def test_what_cannot_be_completed_is_refused(wire: Wire, params: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        wire.request("completion/complete", params)
    assert caught.value.code == INVALID_PARAMS


def test_a_file_that_vanishes_or_changes_is_scanned_again_before_it_is_served(tmp_path: Path, era: Era) -> None:
    skill = write_skill(tmp_path / "skill", references__a_md="old")
    with serving(tmp_path, "--no-watch", era=era) as wire:
        wire.every_skill()
        (skill / "references" / "a.md").write_text("new text")
        assert read(wire, "skill://skill/references/a.md") == b"new text"
        (entry,) = wire.every_skill()
        digests = {each["uri"]: each["digest"] for each in entry["resources"]}
        assert digests["skill://skill/references/a.md"] == "sha256:" + hashlib.sha256(b"new text").hexdigest()
        (skill / "references" / "a.md").unlink()
        with pytest.raises(WireError):
            read(wire, "skill://skill/references/a.md")
        assert len(wire.every_skill()[0]["resources"]) == 1
        write_skill(skill, body="# Other\n")
        assert wire.request("skills/get", {"name": "skill"})["instructions"] == "# Other"
