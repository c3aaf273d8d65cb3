"""Fetched roots served by real processes, and the kind of source of each root."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dispatching import local_serving
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
from sources.fetching import cache_option, run_command
from sources.publishers import INDEX, Publisher, ReceivedRequest, respond_with
from tables import each_row
from web.http_wire import client, http_serving
from web.in_process import app_serving
from wire import Client, Era, write_skill

ORIGIN = "mcp-skills-server/origin"


def options(tmp_path: Path) -> list[str]:
    return ["--allow-private", "--allow-http", *cache_option(tmp_path)]


def skills_by_name(client: Client) -> dict[str, dict[str, Any]]:
    return {skill["frontmatter"]["name"]: skill for skill in client.every_skill()}


def test_site_and_folder_are_served_together(site: Publisher, tmp_path: Path, era: Era) -> None:
    text = site.add("alpha").decode()
    write_skill(tmp_path / "local" / "mine")
    with local_serving(site.url, tmp_path / "local", *options(tmp_path), era=era) as direct:
        skills = skills_by_name(direct)
        assert skills["alpha"]["_meta"] == {ORIGIN: site.url}
        assert "_meta" not in skills["mine"]
        assert direct.read("skill://alpha/SKILL.md").decode() == text
        listed = {each["uri"]: each for each in direct.request("resources/list")["resources"]}
        assert listed["skill://alpha/SKILL.md"]["_meta"][ORIGIN] == site.url
        loaded = direct.call("skills_load", names=["alpha"])
        assert loaded["structuredContent"]["active_skills"][0]["origin"] == site.url
        assert f'origin="{site.url}"' in loaded["content"][0]["text"]


def test_site_that_is_down_private_or_given_with_password_is_refused(site: Publisher, tmp_path: Path) -> None:
    done = run_command("list", "http://127.0.0.1:9", *options(tmp_path), code=2)
    assert not done.stdout
    assert "there is no copy of it" in done.stderr.splitlines()[-1]
    done = run_command("list", site.url, "--cache-dir", str(tmp_path / "cache"), code=2)
    assert "--allow" in done.stderr
    done = run_command("list", "https://user:very-secret@example.com/", *options(tmp_path), code=2)
    assert "a user name or a password" in done.stderr
    assert "very-secret" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_secret_in_url_reaches_no_client_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "mcp_skills_server")
    with Publisher() as publisher:
        publisher.add("alpha")
        shown = f"{publisher.url}{INDEX}"
        given = f"{shown}?key=very-secret"
        with local_serving(given, *options(tmp_path)) as direct:
            assert skills_by_name(direct)["alpha"]["_meta"] == {ORIGIN: shown}
            replies = [direct.request("resources/list"), direct.request("tools/list")]
            replies.append(direct.call("skills_list"))
            replies.append(direct.call("skills_load", names=["alpha"]))
            assert shown in str(replies)
            assert "very-secret" not in str(replies) + caplog.text
        queries = {path.partition("?")[2] for path in publisher.paths if INDEX in path}
        assert queries == {"key=very-secret"}
        done = run_command("list", given, *options(tmp_path), "--format", "json")
        publisher.routes[INDEX] = respond_with(b"", 503)
        failed = run_command("list", given, *options(tmp_path / "other"), code=2)
    assert "alpha" in done.stdout
    assert "does not answer now" in failed.stderr
    assert "there is no copy of it" in failed.stderr
    for each in (done, failed):
        assert "very-secret" not in each.stdout + each.stderr
    assert not [path for path in tmp_path.rglob("*") if "very-secret" in path.name]


def skill_text(name: str, description: str = "Does a thing when it is asked to.") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n\n# Thing\n"


def write_zip(path: Path, files: Mapping[str, str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zipped(*(Zipped(name, text.encode()) for name, text in files.items())))
    return path


@pytest.mark.requirement("S40-48")
def test_path_of_archive_reaches_no_client(tmp_path: Path) -> None:
    one = write_zip(tmp_path / "deep" / "one.zip", {"alpha/SKILL.md": skill_text("alpha")})
    two = write_zip(tmp_path / "two.zip", {"beta/SKILL.md": skill_text("beta")})
    run_command("fetch", str(one), "--output", str(tmp_path / "fetched"))
    with local_serving(tmp_path / "fetched", one, two, *cache_option(tmp_path)) as direct:
        skills = skills_by_name(direct)
        assert skills.keys() == {"alpha", "beta"}
        assert skills["alpha"]["_meta"][ORIGIN] == "one.zip"
        assert skills["beta"]["_meta"][ORIGIN] == "two.zip"
        replies = [direct.request(f"{kind}/list") for kind in ("resources", "tools", "prompts")]
        replies.append(direct.request("prompts/get", {"name": "alpha"}))
        replies.append(direct.call("skills_load", names=["alpha", "beta"]))
        replies += [direct.call("skills_list"), direct.call("skills_search", query="thing")]
        assert str(tmp_path) not in json.dumps(replies)
        assert "one.zip" in json.dumps(replies)


@each_row("raw", [b"", b"PK no archive"])
def test_malformed_archive_is_reported_with_exit_code_2(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "bad.zip").write_bytes(raw)
    done = run_command("list", str(tmp_path / "bad.zip"), code=2)
    (line,) = done.stderr.splitlines()
    assert "bad.zip" in line
    assert "cannot be unpacked" in line


@each_row("roots", [
    ["/a", "/b"], ["https://example.com", "/b"], ["/a", "https://example.com:8443/x", "/b"], ["http://127.0.0.1:80"],
    ["http://127.0.0.1:80", "/b"], ["oci://a.example/b:1.0", "/b"],
    ["git+ssh://git@host:2222/a.git@main#x", "git+https://host/b", "/d"], ["oci://a.example/b:2", "https://c.example"],
    ["/a", "oci://a.example:5000/b", "/b"], ["/a", "mcp+https://b:8443/mcp", "mcp+stdio:server x"],
    ["oci://a.example/b:1.0@sha256:0a", "oci+http://localhost/c:x", "/b", "c"],
])  # fmt: skip
def test_roots_in_environment_are_split_around_urls(roots: list[str]) -> None:
    assert RootType().split_envvar_value(":".join(roots)) == roots


def test_password_in_environment_is_refused_before_its_colon_splits_it() -> None:
    with pytest.raises(UsageError, match="no place for a user or a password"):
        RootType().split_envvar_value("/a:https://me:PASSWORD@skills.example")


def test_archive_is_unpacked_without_ignored_files(tmp_path: Path) -> None:
    files = {".git/config": "x", "alpha/SKILL.md": skill_text("alpha"), "alpha/.envrc": "export A=b"}
    path = write_zip(tmp_path / "skills.zip", files | {".claude/skills/beta/SKILL.md": skill_text("beta")})
    mirrors = Mirrors(SourceSettings(tmp_path / "cache", hidden=True))
    mirrors.root("https://skills.example")
    root = mirrors.root(str(path))
    assert isinstance(root, MirroredRoot)
    assert mirrors.poll_now() == 1  # the site, which alone is remote
    mirrors.stop()
    assert not Path(root.path).exists()
    for options, expected in (([], {"alpha"}), (["--hidden"], {"alpha", ".claude/skills/beta"})):
        done = run_command("list", str(path), "--format", "json", *options)
        assert {each["path"] for each in json.loads(done.stdout)["skills"]} == expected
    (line,) = [each for each in done.stderr.splitlines() if "not served, because of their names" in each]
    assert ".git/config" in line
    assert "alpha/.envrc" in line


@pytest.fixture
def slow_site() -> Iterator[Publisher]:
    """A site whose first response takes longer than a handshake waits for a scan."""
    with Publisher() as publisher:
        raw = publisher.add("alpha")

        def delayed(_: ReceivedRequest) -> Iterator[bytes]:
            publisher.closing.wait(0.8)
            yield respond_with(raw)

        publisher.add("alpha", raw, delayed)
        yield publisher


def test_first_listing_waits_for_unread_source(
    slow_site: Publisher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcp_skills_server")
    with local_serving(slow_site.url, *options(tmp_path), era="modern", opened=False) as wire:
        instructions = wire.open()["instructions"]
        assert "alpha" in instructions
        assert "alpha" in str(wire.request("tools/list"))
        assert skills_by_name(wire).keys() == {"alpha"}
        assert "pending" not in str(wire.request("skills/list")) + instructions
        assert "serving 1 skill from" in caplog.text and "serving 0" not in caplog.text


def test_first_listing_over_http_waits_for_unread_source(slow_site: Publisher, tmp_path: Path) -> None:
    with http_serving(slow_site.url, *options(tmp_path)) as server, client(server, "legacy") as reader:
        assert [each["frontmatter"]["name"] for each in reader.every_skill()] == ["alpha"]
        server.until_ready()


def test_wait_of_first_listing_is_limited(tmp_path: Path, era: Era, caplog: pytest.LogCaptureFixture) -> None:
    with Publisher() as publisher:
        publisher.routes[INDEX] = publisher.stall()
        write_skill(tmp_path / "local/mine")
        arguments = (publisher.url, tmp_path / "local", *options(tmp_path), "--first-load", "0.3")
        with local_serving(*arguments, era=era, opened=False) as direct:
            assert f"Not read yet: {publisher.url}. skills_list shows" in direct.open()["instructions"]
            assert skills_by_name(direct).keys() == {"mine"}
            assert "not read within 0.3 seconds" in caplog.text
            for method in ("skills/list", "tools/list", "prompts/list", "resources/list"):
                meta = direct.request(method)["_meta"]
                assert meta["mcp-skills-server/pending"] == [publisher.url]
        if era == "legacy":
            return
        with app_serving(*arguments, ready=False) as server, client(server, era) as reader:
            assert [each["frontmatter"]["name"] for each in reader.every_skill()] == ["mine"]
            assert server.send("GET", "/readyz").status == 503


@each_row(("given", "kind"), [
    ("https://example.com", Site), ("HTTP://example.com", Site), ("oci://registry.example/skills:1.0", Oci),
    ("OCI+HTTP://localhost/skills", Oci), ("git+https://example.com/a", GitFolder), ("git+file:///a.zip", GitFolder),
    ("a.zip", Archive), ("b.zip", type(None)), (".", type(None)),
])  # fmt: skip
def test_kind_of_source_depends_on_text_of_root(
    given: str, kind: type[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.zip").write_bytes(b"")
    source = open_source(given, SourceSettings(tmp_path / "cache", refresh_s=1.0))
    assert type(source) is kind
    if source is not None and source.remote:
        assert source.last_retry_s == 300.0
        assert source.check_s == (source.own_check_s or 1.0)


@each_row(("given", "hint"), [
    ("git@git.example:acme/skills.git", "write git+ssh://git@git.example/acme/skills.git"),
    ("ssh://git@git.example:22/acme/skills", "write git+ssh://git@git.example:22/acme/skills"),
    ("https://git.example/acme/skills.git", "write git+https://git.example/acme/skills.git"),
    ("https://me:secret@git.example/acme/skills.git", "write git+https://git.example/acme/skills.git"),
    ("ssh://me:secr@secret@git.example:22/acme/skills", "write git+ssh://me@git.example:22/acme/skills"),
])  # fmt: skip
def test_git_address_without_prefix_is_corrected(given: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(hint)) as caught:
        open_source(given, SourceSettings(tmp_path / "cache"))
    assert "secret" not in str(caught.value)
