"""Roots that are not folders: what they are taken for, and how real processes serve them beside local ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from forkserver import run
from format.archives import Zipped, zipped
from mcp_skills_server.catalog.registry import MirroredRoot
from mcp_skills_server.commands.options import RootType
from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.archive import Archive
from mcp_skills_server.sources.git.source import GitFolder
from mcp_skills_server.sources.kinds import open_source
from mcp_skills_server.sources.mirrors import Mirrors
from mcp_skills_server.sources.oci.source import Oci
from mcp_skills_server.sources.site import Site
from mcp_skills_server.sources.source import SourceSettings
from sources.oci.registries import tar
from sources.publishers import INDEX, Publisher, ReceivedRequest, answer
from tables import each_row
from web.http_wire import Server, client, http_serving
from wire import COMMAND, DEADLINE, FIXTURES, Era, Wire, serving, write_skill

ORIGIN = "mcp-skills-server/origin"
LISTED = "notifications/skills/list_changed"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """What a site publishes: a lone SKILL.md and a bundle."""
    folder = tmp_path / "published"
    write_skill(folder / "alpha", body="# Alpha\n\nFrom afar.\n")
    write_skill(folder / "beta", references__guide_md="guide", scripts__run_py="print(1)\n")
    return folder


@pytest.fixture
def site(published: Path) -> Iterator[Server]:
    with http_serving(published) as server:
        yield server


def address(site: Server) -> str:
    return f"http://127.0.0.1:{site.port}"


def options(tmp_path: Path) -> list[str]:
    return ["--allow-private", "--allow-http", "--cache-dir", str(tmp_path / "cache")]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False)


def named(wire: Wire) -> dict[str, dict[str, Any]]:
    return {skill["frontmatter"]["name"]: skill for skill in wire.every_skill()}


def until_there(wire: Wire, *names: str) -> dict[str, dict[str, Any]]:
    """The listing as soon as it has these skills."""
    wire.every_skill()
    if wire.era == "modern":
        wire.listen(skillsListChanged=True)
    while not set(names) <= (there := named(wire)).keys():
        wire.until(LISTED)
    return there


def test_a_site_is_served_beside_a_folder(site: Server, published: Path, tmp_path: Path, era: Era) -> None:
    write_skill(tmp_path / "local" / "mine")
    with serving(address(site), tmp_path / "local", *options(tmp_path), era=era) as wire:
        there = until_there(wire, "alpha", "beta", "mine")
        assert there["alpha"]["_meta"] == there["beta"]["_meta"] == {ORIGIN: address(site)}
        assert "_meta" not in there["mine"]
        for name in ("alpha", "beta"):
            for each in there[name]["resources"]:
                (item,) = wire.request("resources/read", {"uri": each["uri"]})["contents"]
                path = published / each["uri"].removeprefix("skill://")
                assert item["text"] == path.read_text()
        listed = {each["uri"]: each for each in wire.request("resources/list")["resources"]}
        assert listed["skill://alpha/SKILL.md"]["_meta"][ORIGIN] == address(site)
        loaded = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["alpha"]}})
        assert loaded["structuredContent"]["active_skills"][0]["origin"] == address(site)
        assert f'origin="{address(site)}"' in loaded["content"][0]["text"]


def test_a_site_that_cannot_be_had_is_told_in_one_line(site: Server, tmp_path: Path) -> None:
    seen = command("list", "http://127.0.0.1:9", *options(tmp_path))
    assert seen.returncode == 2 and not seen.stdout and "there is no copy of it" in seen.stderr.splitlines()[-1]
    seen = command("list", address(site), "--cache-dir", str(tmp_path / "cache"))
    assert seen.returncode == 2 and "--allow" in seen.stderr
    seen = command("list", "https://user:very-secret@example.com/", *options(tmp_path))
    assert seen.returncode == 2 and "a user name or a password" in seen.stderr
    assert "very-secret" not in seen.stderr and len(seen.stderr.splitlines()) == 1


def test_a_secret_in_the_address_reaches_no_client_and_no_log(tmp_path: Path) -> None:
    with Publisher() as publisher:
        publisher.add("alpha")
        shown = f"{publisher.url}{INDEX}"
        given = f"{shown}?key=very-secret"
        with serving(given, *options(tmp_path)) as wire:
            there = until_there(wire, "alpha")
            assert there["alpha"]["_meta"] == {ORIGIN: shown}
            seen = [wire.request("resources/list"), wire.request("tools/list")]
            for name, arguments in (("skills_list", {}), ("skills_load", {"names": ["alpha"]})):
                seen.append(wire.request("tools/call", {"name": name, "arguments": arguments}))
            assert shown in str(seen) and "very-secret" not in str(seen)
            wire.kill()
        assert {asked.path.partition("?")[2] for asked in publisher.asked if INDEX in asked.path} == {"key=very-secret"}
        done = command("list", given, *options(tmp_path), "--format", "json")
        publisher.routes[INDEX] = answer(b"", 503)
        failed = command("list", given, *options(tmp_path / "other"))
    assert done.returncode == 0 and "alpha" in done.stdout
    assert "does not answer now" in failed.stderr and "there is no copy of it" in failed.stderr
    for each in (done, failed):
        assert "very-secret" not in each.stdout + each.stderr
    assert not [path for path in tmp_path.rglob("*") if "very-secret" in path.name]


def skill(name: str, said: str = "Does a thing when it is asked to.") -> str:
    return f"---\nname: {name}\ndescription: {said}\n---\n\n# Thing\n"


def zip_of(path: Path, files: Mapping[str, str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zipped(*(Zipped(name, text.encode()) for name, text in files.items())))
    return path


@pytest.mark.requirement("S40-48")
def test_where_an_archive_lies_on_the_disk_reaches_no_client(tmp_path: Path) -> None:
    one, two = (
        zip_of(tmp_path / path, {f"{name}/SKILL.md": skill(name), f"{name}/scripts/x.py": "print()\n"})
        for path, name in (("deep/one.zip", "alpha"), ("two.zip", "beta"))
    )
    command("fetch", str(one), "--output", str(tmp_path / "fetched"))
    more = ("--allow-scripts", "--sandbox", "off") if os.geteuid() else ()
    with serving(tmp_path / "fetched", one, two, *more) as wire:
        there = until_there(wire, "beta")
        assert {name: entry["_meta"][ORIGIN] for name, entry in there.items()} == {
            "alpha": "one.zip",
            "beta": "two.zip",
        }
        seen = [wire.request(f"{kind}/list") for kind in ("resources", "tools", "prompts")]
        seen.append(wire.request("prompts/get", {"name": "alpha"}))
        loaded = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["alpha", "beta"]}})
        calls = [("skills_list", {}), ("skills_search", {"query": "thing"})]
        if more:
            session = loaded["structuredContent"]["session"]
            calls.append(("skills_run_script", {"path": "alpha/scripts/x.py", "session": session}))
        seen += [loaded, *(wire.request("tools/call", {"name": n, "arguments": given}) for n, given in calls)]
        assert str(tmp_path) not in json.dumps(seen) and "one.zip" in json.dumps(seen)


def test_an_archive_is_served_and_followed(tmp_path: Path) -> None:
    path, fresh = tmp_path / "team.tgz", tmp_path / "fresh"
    path.write_bytes(tar({"repo/skills/alpha/SKILL.md": skill("alpha").encode(), "repo/README.md": b"no skill"}))
    with serving(path) as wire:
        assert named(wire)["alpha"]["_meta"] == {ORIGIN: path.name}
        fresh.write_bytes(tar({"alpha/SKILL.md": skill("alpha", "Another one, of some length.").encode(), "b": b"x"}))
        fresh.replace(path)
        wire.until(LISTED)
        assert named(wire)["alpha"]["frontmatter"]["description"].startswith("Another one")


@each_row("raw", [b"", b"PK no archive"])
def test_an_archive_that_is_refused_is_one_line_and_exit_code_2(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "bad.zip").write_bytes(raw)
    seen = command("list", str(tmp_path / "bad.zip"))
    (line,) = seen.stderr.splitlines()
    assert seen.returncode == 2 and "bad.zip" in line and "cannot be unpacked" in line


@each_row("roots", [
    ["/a", "/b"], ["https://example.com", "/b"], ["/a", "https://example.com:8443/x", "/b"], ["http://127.0.0.1:80"],
    ["http://127.0.0.1:80", "/b"], ["oci://a.example/b:1.0", "/b"],
    ["git+ssh://git@host:2222/a.git@main#x", "git+https://host/b", "/d"], ["oci://a.example/b:2", "https://c.example"],
    ["/a", "oci://a.example:5000/b", "/b"], ["/a", "mcp+https://b:8443/mcp", "mcp+stdio:server x"],
    ["oci://a.example/b:1.0@sha256:0a", "oci+http://localhost/c:x", "/b", "c"],
])  # fmt: skip
def test_roots_of_the_environment_may_be_addresses(roots: list[str]) -> None:
    assert RootType().split_envvar_value(":".join(roots)) == roots


def test_install_writes_an_address_as_it_is(tmp_path: Path) -> None:
    seen = command("install", "cursor", "https://example.com/skills", str(FIXTURES), "--print")
    assert '"https://example.com/skills"' in seen.stdout and seen.returncode == 0


def test_an_archive_is_unpacked_without_what_is_never_served(tmp_path: Path) -> None:
    files = {".git/config": "x", "alpha/SKILL.md": skill("alpha"), "alpha/.envrc": "export A=b"}
    path = zip_of(tmp_path / "skills.zip", files | {".claude/skills/beta/SKILL.md": skill("beta")})
    mirrors = Mirrors(SourceSettings(tmp_path / "cache", hidden=True))
    mirrors.root("https://skills.example")
    root = mirrors.root(str(path))
    assert isinstance(root, MirroredRoot) and mirrors.look() == 1, "an archive needs no look"
    mirrors.stop()
    assert not Path(root.path).exists()
    for more, expected in (([], {"alpha"}), (["--hidden"], {"alpha", ".claude/skills/beta"})):
        listed = command("list", str(path), "--format", "json", *more)
        assert listed.returncode == 0 and {each["path"] for each in json.loads(listed.stdout)["skills"]} == expected
    (line,) = [each for each in listed.stderr.splitlines() if "left out" in each]
    assert ".git/config" in line and "alpha/.envrc" in line


@pytest.fixture
def slow() -> Iterator[Publisher]:
    """A site that takes longer for its first answer than a handshake waits for a scan."""
    with Publisher() as publisher:
        raw = publisher.add("alpha")

        def after_a_while(_: ReceivedRequest) -> Iterator[bytes]:
            publisher.closing.wait(0.8)
            yield answer(raw)

        publisher.add("alpha", raw, after_a_while)
        yield publisher


def test_the_first_lists_wait_for_a_source_that_was_never_read(slow: Publisher, tmp_path: Path, era: Era) -> None:
    with serving(slow.url, *options(tmp_path), era=era, opened=False) as wire:
        hello = wire.open()
        assert "alpha" in hello["instructions"]
        assert "alpha" in str(wire.request("tools/list"))
        assert named(wire).keys() == {"alpha"}
        assert "pending" not in str(wire.request("skills/list")) + hello["instructions"]
        wire.logs(b"serving 1 skill from")
        assert b"serving 0" not in wire.stderr


def test_over_http_the_first_lists_wait_too(slow: Publisher, tmp_path: Path, era: Era) -> None:
    with http_serving(slow.url, *options(tmp_path)) as server, client(server, era) as reader:
        assert [each["frontmatter"]["name"] for each in reader.every_skill()] == ["alpha"]
        server.until_ready()  # a moment later: the list waits for less


def test_a_first_list_waits_no_longer_than_it_may(tmp_path: Path, era: Era) -> None:
    with Publisher() as publisher:
        publisher.routes[INDEX] = publisher.stall()
        write_skill(tmp_path / "local/mine")
        where = (publisher.url, tmp_path / "local", *options(tmp_path), "--first-load", "0.3")
        pending = {"mcp-skills-server/pending": [publisher.url]}
        with serving(*where, era=era, opened=False) as wire:
            assert f"Not read yet: {publisher.url}. skills_list shows" in wire.open()["instructions"]
            assert named(wire).keys() == {"mine"}
            wire.logs(b"not read within 0.3 seconds")
            for method in ("skills/list", "tools/list", "prompts/list", "resources/list"):
                assert wire.request(method)["_meta"].items() >= pending.items()
        with http_serving(*where) as server, client(server, era) as reader:
            assert [each["frontmatter"]["name"] for each in reader.every_skill()] == ["mine"]
            assert server.send("GET", "/readyz").status == 503


# The text that is given decides the kind


@each_row(("given", "kind"), [
    ("https://example.com", Site), ("HTTP://example.com", Site), ("oci://registry.example/skills:1.0", Oci),
    ("OCI+HTTP://localhost/skills", Oci), ("git+https://example.com/a", GitFolder), ("git+file:///a.zip", GitFolder),
    ("a.zip", Archive), ("b.zip", type(None)), (".", type(None)),
])  # fmt: skip
def test_the_text_tells_the_kind(
    given: str, kind: type[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.zip").write_bytes(b"")
    source = open_source(given, SourceSettings(tmp_path / "cache", refresh_s=1.0))
    assert type(source) is kind
    if source is not None and source.remote:  # is tried again within five minutes
        assert source.last_retry_s == 300.0 and source.check_s == (source.own_check_s or 1.0)


@each_row(("given", "said"), [
    ("git@git.example:acme/skills.git", "write git+ssh://git@git.example/acme/skills.git"),
    ("ssh://git@git.example:22/acme/skills", "write git+ssh://git@git.example:22/acme/skills"),
    ("https://git.example/acme/skills.git", "write git+https://git.example/acme/skills.git"),
    ("https://me:secret@git.example/acme/skills.git", "write git+https://git.example/acme/skills.git"),
    ("ssh://me:secr@secret@git.example:22/acme/skills", "write git+ssh://me@git.example:22/acme/skills"),
])  # fmt: skip
def test_an_address_that_git_takes_is_told_how_it_is_written(given: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        open_source(given, SourceSettings(tmp_path / "cache"))
    assert "secret" not in str(caught.value)


def test_only_a_source_over_http_loads_the_http_client() -> None:
    names = "mcp_skills_server.sources.git.source, mcp_skills_server.sources.kinds"
    code = f"import sys, {names}; print('httpcore2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
