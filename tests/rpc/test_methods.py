"""Skills Protocol methods that list and read skills, and their errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.model import Standing
from mcp_skills_server.rpc import guide
from rpc.build import ACTIONS, RpcServer, toml, write
from tables import each_row
from wire import WireError, write_skill

pytestmark = pytest.mark.anyio

GUIDE = "skills.protocol.guide 0.1.0"


@pytest.fixture(scope="module")
def rpc() -> RpcServer:
    return RpcServer(ACTIONS)


@pytest.mark.requirement("SP-1", "SP-8")
@each_row(("namespace", "names"), [
    ("salesforce", ["salesforce.contacts.export 0.2.1", "salesforce.leads.sync 0.1.0"]),
    ("writing", ["writing.tone 1.1.0"]), ("sales", []), ("Salesforce", []),
])  # fmt: skip
async def test_namespace_is_an_exact_filter(rpc: RpcServer, namespace: str, names: list[str]) -> None:
    assert await rpc.names(namespace=namespace) == names


@pytest.mark.requirement("SP-1", "SP-2", "SP-6", "SP-7", "SP-8")
@each_row("size", [1, 3, 8, 100])
async def test_pages_add_up_to_the_list_sorted_by_name_and_version(rpc: RpcServer, size: int) -> None:
    seen: list[str] = []
    cursor = None
    while cursor is not None or not seen:
        page = await rpc.call("list_skills", limit=size, cursor=cursor)
        assert set(page) == {"skills", "next_cursor"}
        assert 0 < len(page["skills"]) <= size
        seen += [f"{each['name']} {each['version']}" for each in page["skills"]]
        cursor = page["next_cursor"]
        assert isinstance(cursor, str | None)
    assert seen == [
        "salesforce.contacts.export 0.2.1", "salesforce.leads.sync 0.1.0", GUIDE, "text.line-count 1.0.0",
        "weather 1.0.0", "weather 1.2.0-rc.1", "weather 1.2.0", "writing.tone 1.1.0",
    ]  # fmt: skip
    assert rpc.methods.catalogues.known(rpc.registry.snapshot) is not None  # cached


async def test_page_of_long_descriptions_ends_early(tmp_path: Path) -> None:
    for number in range(9):
        write_skill(tmp_path / f"s{number}", description="x" * 100_000)
    rpc = RpcServer(tmp_path)
    first = await rpc.call("list_skills", limit=1000, detail="summary")
    assert len(first["skills"]) == 6
    assert await rpc.names(cursor=first["next_cursor"]) == ["s6 0.0.0", "s7 0.0.0", "s8 0.0.0", GUIDE]


async def test_next_page_continues_after_skills_came_and_went(tmp_path: Path) -> None:
    for name in "bdf":
        write_skill(tmp_path / name)
    rpc = RpcServer(tmp_path)
    cursor = (await rpc.call("list_skills", limit=2))["next_cursor"]
    for name in "ae":
        write_skill(tmp_path / name)
    (tmp_path / "d" / "SKILL.md").unlink()
    rpc.registry.refresh()
    assert await rpc.names(cursor=cursor) == ["e 0.0.0", "f 0.0.0", GUIDE]


@each_row("cursor", ["", "x", "é", "W10", "W1tdXQ", "a" * 20_000])
async def test_foreign_cursor_is_refused(rpc: RpcServer, cursor: str) -> None:
    with pytest.raises(WireError, match="Invalid cursor") as caught:
        await rpc.call("list_skills", cursor=cursor)
    assert caught.value.code == -32602
    other = (await rpc.call("list_skills", limit=1))["next_cursor"]
    with pytest.raises(WireError, match="of the same list"):
        await rpc.call("list_skills", namespace="salesforce", cursor=other)


async def test_unknown_version_error_names_the_latest_twenty(tmp_path: Path) -> None:
    for number in range(22):
        write(tmp_path / f"v{number}", toml("same", f"1.0.{number}"), name="same")
    known = ", ".join(f"1.0.{number}" for number in range(2, 22))
    with pytest.raises(WireError, match=f"same has no version '2'; known: {known}$"):
        await RpcServer(tmp_path).call("describe_skill", name="same", version="2")


async def test_manifest_changed_since_the_scan_is_read_again(tmp_path: Path) -> None:
    rpc = RpcServer(write(tmp_path / "thing", toml("thing")).parent)
    write(tmp_path / "thing", toml("thing", "1.0.1-changed"))
    assert await rpc.names() == [GUIDE, "thing 1.0.1-changed"]


@pytest.mark.requirement("X-25")
async def test_skill_without_skill_toml_has_a_derived_manifest(rpc: RpcServer) -> None:
    result = (await rpc.call("describe_skill", name="writing.tone"))["skill"]
    description = (
        "Keeps a text in one tone of voice. Use it when the user asks for a text that sounds friendly or formal."
    )
    assert result["manifest"] == {
        "name": "writing.tone", "version": "1.1.0", "description": description, "kind": "instruction",
        "namespace": "writing", "tags": ["writing", "style"],
    }  # fmt: skip
    assert result["skill_md_frontmatter"]["name"] == "tone"


@pytest.mark.requirement("SP-29")
async def test_guide_is_a_skill_and_has_its_own_method(rpc: RpcServer) -> None:
    content = (await rpc.call("load_skills_protocol_guide"))["content"]
    assert content == guide.files()["SKILL.md"].decode()
    assert {"content": content} == await rpc.call("read_skill_file", name="skills.protocol.guide", path="SKILL.md")
    manifest = (await rpc.call("describe_skill", name="skills.protocol.guide"))["skill"]["manifest"]
    assert (manifest["version"], manifest["kind"], manifest["namespace"]) == ("0.1.0", "instruction", "skills")
    assert all(method in content for method in ("list_skills", "read_blob", "run_code"))


@pytest.mark.requirement("SP-13", "SP-14", "SP-15", "X-28")
@each_row("path", [
    "gone.md", "../leads-sync/SKILL.md", "../contacts-export/SKILL.md", "..", ".", "/etc/passwd", "./SKILL.md", "code",
    "code/../SKILL.md", "SKILL.md/", "skill.md", "C:\\x", "..\\SKILL.md", "SKILL.md\0", "%2e%2e/SKILL.md", "~/x",
    "file:///etc/passwd", "\ufffd", "a" * 9000, "../SKILL.md", "/SKILL.md",
])  # fmt: skip
async def test_path_outside_of_the_skill_is_refused(rpc: RpcServer, path: str) -> None:
    with pytest.raises(WireError, match="has no file") as caught:
        await rpc.call("read_skill_file", name="salesforce.leads.sync", path=path)
    assert caught.value.code == -32602
    assert caught.value.data["name"] == "salesforce.leads.sync"
    shown = caught.value.data["path"]
    if len(path) > 200:
        path = f"{path[: len(shown) - 3]}..."
    assert shown == path
    assert str(ACTIONS.parent) not in caught.value.message


async def test_binary_file_is_refused(tmp_path: Path) -> None:
    write_skill(tmp_path / "thing")
    (tmp_path / "thing" / "picture.png").write_bytes(b"\x89PNG\0\xff")
    with pytest.raises(WireError, match="is not a text file"):
        await RpcServer(tmp_path).call("read_skill_file", name="thing", path="picture.png")


@pytest.mark.requirement("X-28", "SP-35")
@each_row(("method", "params", "message", "data"), [
    ("describe_skill", {"name": "gone"}, "Unknown skill 'gone'", {"name": "gone"}),
    ("describe_skill", {"name": "gone", "version": "1"}, "Unknown skill", {"name": "gone", "version": "1"}),
    ("describe_skill", {"name": "wether"}, "nearest: weather", {"name": "wether"}),
    ("describe_skill", {"name": "weather", "version": "9"}, "has no version '9'; known: 1.0.0, 1.2.0-rc.1, 1.2.0",
     {"name": "weather", "version": "9"}),
    ("read_skill_file", {"name": "gone", "path": "a"}, "Unknown skill", {"name": "gone"}),
    ("read_skill_file", {"name": "weather", "path": "a", "version": "1.0.0"}, "no file 'a'",
     {"name": "weather", "path": "a", "version": "1.0.0"}),
    ("read_skill_file", {"name": "weather", "path": "resource/table.md"}, "nearest: resources/table.md",
     {"name": "weather", "path": "resource/table.md"}),
    ("execute_skill", {"name": "gone"}, "Unknown skill", {"name": "gone"}),
    ("describe_skill", {"name": "salesforce/leads-sync"}, "Unknown skill", {"name": "salesforce/leads-sync"}),
    ("describe_skill", {"name": "\x1b[2J"}, r"\\u\{1b\}", {"name": "\x1b[2J"}),
])  # fmt: skip
async def test_unknown_skill_version_or_file_is_named_in_the_error(
    rpc: RpcServer, method: str, params: dict[str, Any], message: str, data: dict[str, Any]
) -> None:
    with pytest.raises(WireError, match=message) as caught:
        await rpc.call(method, **params)
    assert (caught.value.code, caught.value.data) == (-32602, data)


@pytest.mark.requirement("SP-21", "SP-22", "X-28")
@each_row("method", ["", "LIST_SKILLS", "skills/list", "initialize", "salesforce.leads.sync", "__class__"])
async def test_unknown_method_is_not_found(rpc: RpcServer, method: str) -> None:
    with pytest.raises(WireError, match="Method not found") as caught:
        await rpc.call(method)
    assert caught.value.code == -32601


@pytest.mark.requirement("X-27", "SP-20")
@each_row(("method", "params"), [
    ("execute_skill", {"name": "salesforce.leads.sync"}), ("run_code", {"language": "python", "code": "1"}),
    ("create_blob", {"content": "a"}), ("read_blob", {"blob_id": "blob:1"}),
])  # fmt: skip
async def test_execution_is_disabled_by_default(rpc: RpcServer, method: str, params: dict[str, Any]) -> None:
    result = await rpc.call(method, **params)
    assert (result["status"], result["error"]["type"]) == ("failed", "execution_disabled")
    assert "--allow-scripts" in result["error"]["message"]
    with pytest.raises(WireError):
        await rpc.call(method, **{name: [] for name in params})


@pytest.mark.requirement("X-26")
async def test_dotted_name_exists_in_this_protocol_only() -> None:
    rpc = RpcServer(ACTIONS)
    assert "salesforce.contacts.export 0.2.1" in await rpc.names()
    assert not rpc.registry.snapshot.named("salesforce.contacts.export", Standing.UNUSABLE)
    skill = rpc.registry.snapshot.skills["salesforce/contacts-export"]
    assert (skill.name, skill.path) == ("contacts-export", "salesforce/contacts-export")
    codes = {each.code for each in rpc.registry.problems() if each.skill == "salesforce/leads-sync"}
    assert {"name-characters", "name-mismatch"} <= codes
    codes = {each.code for each in rpc.registry.problems() if each.skill == "weather/1.0.0"}
    assert codes == {"name-mismatch"}


BROKEN = {
    "no-toml": (b"name = ", "manifest-syntax"),
    "no-utf8": (b"name = '\xe9'", "manifest-syntax"),
    "no-kind": (b'name = "no-kind"\nversion = "1.0.0"\ndescription = "Does a thing."\nkind = "tool"', "manifest-field"),
    "no-version": (b'name = "no-version"\nversion = "new"\ndescription = "a"\nkind = "action"', "manifest-field"),
}


@pytest.mark.requirement("SP-34")
async def test_broken_manifest_hides_only_its_skill(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, (raw, _) in BROKEN.items():
        write(tmp_path / name, raw)
    write(tmp_path / "sound", toml("sound"))
    rpc = RpcServer(tmp_path)
    assert await rpc.names() == [GUIDE, "sound 1.0.0"]
    for name, (_, code) in BROKEN.items():
        place = f"{tmp_path}/{name}/skill.toml"
        assert any(line.startswith(place) and code in line for line in caplog.messages), name
        assert code in [each.code for each in rpc.registry.checks.problems_of(rpc.registry.snapshot.skills[name])]
    caplog.clear()
    write_skill(tmp_path / "more")
    rpc.registry.refresh()
    assert "more 0.0.0" in await rpc.names()
    assert caplog.messages == []  # a known problem is not logged again
    for raw in (toml("no-toml"), b"name = "):  # a problem that reappears is
        write(tmp_path / "no-toml", raw)
        rpc.registry.refresh()
        await rpc.names()
    assert "no-toml" in caplog.text


async def test_skill_with_the_name_of_another_or_the_guide_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for root in ("b", "a"):
        write(tmp_path / root / root, toml("same"), name="same", notes_md=root)
    write(tmp_path / "b" / "guide", toml("skills.protocol.guide", "9.0.0"), name="guide")
    rpc = RpcServer(tmp_path / "b", tmp_path / "a")
    assert await rpc.names() == ["same 1.0.0", GUIDE]
    assert (await rpc.call("read_skill_file", name="same", path="notes.md"))["content"] == "b"
    hidden, guide_name = caplog.messages
    assert "same 1.0.0 is also that of another skill" in hidden
    assert "is the name of the built-in skill" in guide_name


async def test_only_twenty_problems_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(22):
        write(tmp_path / f"skill-{number}", b"=")
    await RpcServer(tmp_path).names()
    assert len(caplog.messages) == 21
    assert "and 2 more" in caplog.messages[-1]
    for number in range(2):
        (tmp_path / f"skill-{number}" / "skill.toml").unlink()
    caplog.clear()
    await RpcServer(tmp_path).names()
    assert len(caplog.messages) == 20
    assert "more" not in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root can read everything")
async def test_unreadable_manifest_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = write(tmp_path / "thing", toml("thing"))
    rpc = RpcServer(tmp_path)
    (place / "skill.toml").chmod(0)
    await rpc.names()
    assert "cannot be read" in caplog.text
