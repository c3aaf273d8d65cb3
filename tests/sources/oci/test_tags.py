"""Repositories with a skill under each tag, and each file as a layer, as ORAS and `agentskills-oci` have them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import anyio
import pytest

from commands.calls import names_served
from mcp_skills_server.provenance.keyless import Identity, KeylessVerifier
from mcp_skills_server.sources.oci import manifests
from mcp_skills_server.sources.oci.access import Access
from mcp_skills_server.sources.oci.client import RegistryClient
from mcp_skills_server.sources.oci.reference import is_skill_tag, parse_reference
from mcp_skills_server.sources.source import AbsentError, UnacceptableError
from provenance.local_sigstore import ISSUER, SUBJECT, LocalSigstore, statement
from sources.fetching import LOCAL, cache_option, fetch_to_cache, open_follower, run_command, skill_names
from sources.oci.registries import REPOSITORY, FakeRegistry, digest, docker_registry
from sources.publishers import respond_with, skill_md
from tables import each_row


def open_name(registry: FakeRegistry) -> str:
    """Return the name of the repository without a tag."""
    return registry.named().removesuffix(":1.0")


def publish(registry: FakeRegistry, *names: str, text: str = "Read on.") -> dict[str, str]:
    """Publish skills under tags of their names, and return their digests."""
    return {name: registry.raw_skill({"SKILL.md": skill_md(name, text), "a/b.md": b"b"}, name) for name in names}


def test_repository_without_latest_is_all_its_tags(
    registry: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(registry, "docx", "pdf")
    registry.raw_skill({"SKILL.md": b"no frontmatter"}, "nameless", "again", artifactType="application/x")
    registry.raw_skill({"README.md": b"x"}, "notes", artifactType="application/x")
    registry.list_tags("1.0", "again", "docx", "nameless", "notes", "pdf", "sha256-" + "a" * 64, "v2.1-rc1")
    follower = fetch_to_cache(open_name(registry), tmp_path)
    assert len(skill_names(follower.path)) == 3
    assert {"docx", "pdf"} < {*skill_names(follower.path)}
    assert (follower.path / "pdf" / "a" / "b.md").read_bytes() == b"b"
    assert follower.name == open_name(registry)
    asked = [request.path.rpartition("/")[2] for request in registry.requests]
    assert not [name for name in asked if name.startswith(("1.0", "v2", "sha256-"))]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "notes: this tag names no artifact of a skill" in line


def test_only_moved_tag_is_fetched_again(registry: FakeRegistry, tmp_path: Path) -> None:
    publish(registry, "docx", "pdf", "xlsx")
    registry.list_tags("docx", "pdf", "xlsx")
    follower = fetch_to_cache(open_name(registry), tmp_path)
    registry.requests.clear()
    anyio.run(follower.refresh)
    assert not [request for request in registry.requests if "/sha256:" in request.path]
    moved = publish(registry, "pdf", text="Moved.")["pdf"]
    registry.list_tags("docx", "pdf")
    anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["docx", "pdf"]
    assert b"Moved." in (follower.path / "pdf" / "SKILL.md").read_bytes()
    fetched = [request.path for request in registry.requests if "manifests/sha256:" in request.path]
    assert fetched == [f"/v2/{REPOSITORY}/manifests/{moved}"]


def test_latest_is_preferred_and_versions_are_named_in_the_error(registry: FakeRegistry, tmp_path: Path) -> None:
    publish(registry, "pdf")
    registry.raw_skill({"SKILL.md": skill_md("newest")}, "latest")
    registry.list_tags("latest", "pdf")
    assert skill_names(fetch_to_cache(open_name(registry), tmp_path).path) == ["newest"]
    del registry.routes[f"/v2/{REPOSITORY}/manifests/latest"]
    registry.list_tags("1.0", "2.0")
    with pytest.raises(AbsentError, match=r"the last of its 2 tags: 1\.0, 2\.0"):
        anyio.run(open_follower(open_name(registry), tmp_path / "versions").refresh)
    with pytest.raises(AbsentError):  # a tag that was asked for stays the only one
        anyio.run(open_follower(registry.named("latest"), tmp_path / "named").refresh)


def test_more_than_a_thousand_tags_are_refused(registry: FakeRegistry, tmp_path: Path) -> None:
    raw = json.dumps({"tags": [f"t{number}" for number in range(1_001)]}).encode()
    registry.routes[f"/v2/{REPOSITORY}/tags/list"] = respond_with(raw)
    with pytest.raises(UnacceptableError, match="1001 tags, at most 1000"):
        anyio.run(open_follower(open_name(registry), tmp_path).refresh)
    assert len(registry.requests) < 10


@each_row("tags", [["../../x", "a/b", "a?b", "a\nb", "", 7, "x" * 129, {}]])
def test_tag_that_is_no_tag_is_not_asked_for(registry: FakeRegistry, tmp_path: Path, tags: list[object]) -> None:
    publish(registry, "pdf")
    raw = json.dumps({"tags": [*tags, "pdf"]}).encode()
    registry.routes[f"/v2/{REPOSITORY}/tags/list"] = respond_with(raw)
    assert skill_names(fetch_to_cache(open_name(registry), tmp_path).path) == ["pdf"]
    asked = {request.path.partition("/manifests/")[2].partition(":")[0] for request in registry.requests}
    assert asked == {"", "latest", "pdf", "sha256"}


def test_tag_names_a_skill_unless_it_is_a_version_or_a_referrer() -> None:
    assert all(map(is_skill_tag, ("pdf", "3d-models", "v", "a1.0", "sha256", "_x", "v2ray")))
    assert not any(
        map(is_skill_tag, ("1", "1.0", "v1.2.3", "1.2.3-rc.1", "2026.11.29_1", "sha256-abc", "sha256-a.sig"))
    )


def test_lock_pins_the_skills_of_all_tags(registry: FakeRegistry, tmp_path: Path) -> None:
    """An earlier state of the tags cannot be fetched, so a skill that changed is refused."""
    publish(registry, "docx", "pdf")
    registry.list_tags("docx", "pdf")
    options, lock = [*cache_option(tmp_path)], tmp_path / "skills.lock"
    run_command("lock", open_name(registry), "--output", lock, *options)
    run_command("update", "--check", "--lock", lock, *options)
    assert names_served("--lock", lock, "--frozen", *options) == ["docx", "pdf"]
    publish(registry, "docx", "pdf", text="Moved.")
    assert "frozen" in run_command("serve", "--lock", lock, "--frozen", *options, code=2).stderr
    done = run_command("diff", "--lock", lock, *options, code=1)
    assert [line for line in done.stdout.splitlines() if line.startswith(("docx", "pdf"))] == [
        "docx: changed", "pdf: changed",
    ]  # fmt: skip
    run_command("update", "pdf", "--lock", lock, *options)
    done = run_command("update", "--check", "--lock", lock, *options, code=1)
    assert "docx" in done.stdout
    assert "pdf" not in done.stdout
    assert lock.read_text().count("[[source]]") == 1
    run_command("update", "--lock", lock, *options)
    assert names_served("--lock", lock, "--frozen", *options) == ["docx", "pdf"]


def test_each_tag_needs_a_signature_of_its_own(registry: FakeRegistry, tmp_path: Path) -> None:
    sigstore = LocalSigstore()
    identity = Identity(SUBJECT, ISSUER, sigstore.trusted_root(tmp_path / "trusted_root.json"))
    # the name of a skill is its own, and not always the tag
    skills = publish(registry, "docx") | {"pdf": registry.raw_skill({"SKILL.md": skill_md("pdf-files")}, "pdf")}
    registry.list_tags("docx", "pdf")
    follower = open_follower(open_name(registry), tmp_path, bundles=KeylessVerifier(identity))

    def refresh() -> tuple[list[str], list[str]]:
        """Return the served skills, and those that a problem names."""
        problems: list[str] = []
        follower.report_to(lambda _, found, __: problems.extend(problem.skill for problem in found))
        problems.clear()
        anyio.run(follower.refresh)
        return skill_names(follower.path), sorted({*problems})

    assert refresh() == ([], ["docx", "pdf"])
    registry.refer(skills["pdf"], sigstore.bundle(statement(skills["pdf"])))
    assert refresh() == (["pdf-files"], ["docx"])
    registry.refer(skills["docx"], sigstore.bundle(statement(skills["docx"])))
    assert refresh() == (["docx", "pdf-files"], [])
    moved = registry.raw_skill({"SKILL.md": skill_md("pdf-files", "Moved.")}, "pdf")
    registry.refer(moved, sigstore.bundle(statement(skills["pdf"])))
    assert refresh() == (["docx", "pdf-files"], ["pdf"])
    assert b"Moved." not in (follower.path / "pdf-files" / "SKILL.md").read_bytes()
    registry.refer(moved, sigstore.bundle(statement(moved)))
    assert refresh() == (["docx", "pdf-files"], [])
    assert b"Moved." in (follower.path / "pdf-files" / "SKILL.md").read_bytes()


@pytest.mark.needs_program("docker-registry")
def test_all_tags_of_a_real_registry_are_listed(tmp_path: Path) -> None:
    with docker_registry(tmp_path / "registry") as registry:
        reference = parse_reference(registry.named())

        async def put() -> None:
            async with RegistryClient(LOCAL, reference, Access(reference)) as client:
                await client.upload(digest(b"{}"), b"{}")
                for name in ("docx", "pdf"):
                    layers: list[dict[str, object]] = []
                    for path, raw in (("SKILL.md", skill_md(name)), ("scripts/run.py", b"print(1)\n")):
                        await client.upload(digest(raw), raw)
                        layer = {"mediaType": "text/plain", "digest": digest(raw), "size": len(raw)}
                        layers.append({**layer, "annotations": {manifests.TITLE: path}})
                    config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest(b"{}"), "size": 2}
                    head = {"schemaVersion": 2, "mediaType": manifests.MANIFEST, "artifactType": manifests.SKILL}
                    raw = json.dumps({**head, "config": config, "layers": layers}).encode()
                    await client.put_manifest(name, manifests.MANIFEST, raw)

        anyio.run(put)
        named = registry.named().removesuffix(":1.0")
        listed = run_command("list", named, *cache_option(tmp_path)).stdout
        assert [line.split()[0] for line in listed.splitlines()[1:]] == ["docx", "pdf"]
        assert "scripts/run.py" in run_command("show", named, "pdf", *cache_option(tmp_path)).stdout
