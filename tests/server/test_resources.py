"""`resources/*` and completion of the resource template, in both eras."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from dispatching import Direct, dispatching
from tables import each_row
from wire import Era, WireError, write_skill

NOT_FOUND = {"legacy": -32002, "modern": -32602}


@pytest.mark.requirement("S40-30", "S40-33", "MCP-16", "MCP-17", "MCP-18", "MCP-55", "X-13")
@each_row("uri", [
    "skill://csv-profiling/none.md", "skill://csv-profiling", "skill://index.json",
    "skill://commit-messages.zip", "skill://commit-messages.tar.gz",
    "skill://csv-profiling/scripts", "skill://csv-profiling/../commit-messages/SKILL.md",
    "skill://csv-profiling/%2e%2e/commit-messages/SKILL.md",
    "skill://csv-profiling/..%2fcommit-messages/SKILL.md",
    "skill://csv-profiling/%252e%252e/SKILL.md", "skill://csv-profiling/./SKILL.md",
    "skill://csv-profiling//SKILL.md", "skill://csv-profiling/scripts%2fprofile_csv.py",
    "skill://csv-profiling/SKILL.md%00", "skill://csv-profiling/SKILL.md?x",
    "skill://csv-profiling/SKILL.md#x", "skill://csv-profiling\\SKILL.md", "skill:///etc/passwd",
    "skill://%2fetc%2fpasswd", "skill://csv-profiling/%ff", "file:///etc/passwd",
    "http://localhost/", "x",
])  # fmt: skip
def test_unserved_uri_is_not_found_in_any_encoding(direct: Direct, uri: str) -> None:
    with pytest.raises(WireError) as caught:
        direct.request("resources/read", {"uri": uri})
    assert (caught.value.code, caught.value.data) == (NOT_FOUND[direct.era], {"uri": uri})
    assert caught.value.message == f"Resource not found: {uri}"


@pytest.mark.requirement("S40-30", "MCP-55")
def test_forbidden_and_missing_files_have_the_same_error(tmp_path: Path, era: Era) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    skill = write_skill(tmp_path / "root" / "skill", references__a_md="a")
    (skill / "out.txt").symlink_to(secret)
    (skill / ".env").write_text("KEY=1")
    (skill / "in.md").symlink_to("references/a.md")
    with dispatching(tmp_path / "root", era=era) as wire:
        (entry,) = wire.every_skill()
        served = {each["uri"].removeprefix("skill://skill/") for each in entry["resources"]}
        assert served == {"SKILL.md", "in.md", "references/a.md"}
        assert wire.read("skill://skill/in.md") == b"a"
        for name in ("out.txt", ".env", "absent.txt"):
            with pytest.raises(WireError, match=f"{NOT_FOUND[era]}: Resource not found: skill://skill/{name}$"):
                wire.read(f"skill://skill/{name}")


def children(wire: Direct, uri: str) -> dict[str, str]:
    """Return the media type of each child by its name, from all pages of a directory."""
    page = wire.request("resources/directory/read", {"uri": uri})
    resources = page["resources"]
    while "nextCursor" in page:
        page = wire.request("resources/directory/read", {"uri": uri, "cursor": page["nextCursor"]})
        resources += page["resources"]
    assert page["ttlMs"] >= 0
    assert (page["resultType"], page["cacheScope"]) == ("complete", "private")
    found: dict[str, str] = {}
    for each in resources:
        parent, _, name = each["uri"].rpartition("/")
        assert parent == uri
        assert name
        found[name] = each.get("mimeType", "")
    assert len(found) == len(resources)
    return found


@pytest.mark.requirement("S40-3", "S40-27", "S40-29")
def test_directory_lists_its_direct_children(direct: Direct) -> None:
    assert children(direct, "skill://acme") == {"billing": "inode/directory"}
    assert children(direct, "skill://acme/billing") == {"invoices": "inode/directory", "refunds": "inode/directory"}
    assert children(direct, "skill://release-checklist") == {
        "SKILL.md": "text/markdown", "changelog-entry": "inode/directory", "references": "inode/directory",
    }  # fmt: skip
    assert "profile_csv.py" in children(direct, "skill://csv-profiling/scripts")


@pytest.mark.requirement("S40-27")
def test_directory_has_pages_and_may_be_empty(tmp_path: Path, era: Era) -> None:
    skill = write_skill(tmp_path / "skill", **{f"data__f{number}_md": "x" for number in range(7)})
    (skill / "empty" / "deeper").mkdir(parents=True)
    with dispatching(tmp_path, era=era, page_size=3) as wire:
        assert len(children(wire, "skill://skill/data")) == 7
        assert children(wire, "skill://skill/empty") == {"deeper": "inode/directory"}
        assert children(wire, "skill://skill/empty/deeper") == {}
        cursor = wire.request("resources/directory/read", {"uri": "skill://skill/data"})["nextCursor"]
        with pytest.raises(WireError):
            wire.request("resources/directory/read", {"uri": "skill://skill", "cursor": cursor})


@pytest.mark.requirement("S40-28")
@each_row("uri", [
    "skill://csv-profiling/SKILL.md", "skill://csv-profiling/none", "skill://csv-profiling/",
    "skill://csv-profiling/scripts/..", "skill://csv-profiling/%2e%2e", "skill://acm", "skill://",
    "file:///", "", None, 5,
])  # fmt: skip
def test_uri_without_directory_is_refused(direct: Direct, uri: Any) -> None:
    with pytest.raises(WireError, match=r"^-32602: "):
        direct.request("resources/directory/read", {"uri": uri})


def test_path_of_the_template_is_completed(direct: Direct) -> None:
    def complete(value: str) -> list[str]:
        ref = {"type": "ref/resource", "uri": "skill://{+path}"}
        params = {"ref": ref, "argument": {"name": "path", "value": value}}
        values = direct.request("completion/complete", params)["completion"]["values"]
        assert len(values) <= 100
        return values

    for start in ("acme/billing/ref", "csv-profiling/scr"):
        paths = complete(start)
        assert paths
        assert all(path.startswith(start) for path in paths)
    assert "acme/billing/refunds/SKILL.md" in complete("refu")
    assert complete("nothing") == []
    assert len(complete("")) > 90
    for path in complete("polite"):
        assert direct.read(f"skill://{path}")


@each_row(("ref", "argument"), [
    ({"type": "ref/prompt", "name": "x"}, "a"), ({"type": "ref/resource", "uri": "file://{x}"}, "x"),
    ({"type": "ref/resource", "uri": "skill://{+path}"}, "other"),
])  # fmt: skip
def test_completion_of_another_reference_is_refused(direct: Direct, ref: dict[str, str], argument: str) -> None:
    with pytest.raises(WireError, match="-32602"):
        direct.request("completion/complete", {"ref": ref, "argument": {"name": argument, "value": ""}})


def test_changed_or_deleted_file_is_rescanned_before_it_is_served(tmp_path: Path, era: Era) -> None:
    skill = write_skill(tmp_path / "skill", references__a_md="old")
    with dispatching(tmp_path, era=era) as wire:
        wire.every_skill()
        (skill / "references" / "a.md").write_text("new text")
        assert wire.read("skill://skill/references/a.md") == b"new text"
        (entry,) = wire.every_skill()
        digests = {each["uri"]: each["digest"] for each in entry["resources"]}
        assert digests["skill://skill/references/a.md"] == "sha256:" + hashlib.sha256(b"new text").hexdigest()
        (skill / "references" / "a.md").unlink()
        with pytest.raises(WireError):
            wire.read("skill://skill/references/a.md")
        assert len(wire.every_skill()[0]["resources"]) == 1
        write_skill(skill, body="# Other\n")
        assert wire.request("skills/get", {"name": "skill"})["instructions"] == "# Other"
