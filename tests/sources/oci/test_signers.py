"""Registries whose artifacts must be signed by an identity: referrers, refusals that keep the last copy, restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_skills_server.provenance.keyless import Identity, KeylessVerifier
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.source import SourceError, UnidentifiedError, UnreachableError
from provenance.local_sigstore import BUNDLE, ISSUER, SUBJECT, LocalSigstore, statement
from provenance.test_keyless import configuration
from sources.fetching import cache_option, open_follower, run_command, skill_names
from sources.oci.registries import REPOSITORY, FakeRegistry, digest
from sources.publishers import respond_with, skill_md
from tables import each_row


@pytest.fixture(scope="module")
def sigstore() -> LocalSigstore:
    return LocalSigstore()


def follower_of(
    registry: FakeRegistry, sigstore: LocalSigstore, folder: Path, tag: str = "1.0", subject: str = SUBJECT
) -> Follower:
    """Return the follower of an artifact that the identity must have signed."""
    root = sigstore.trusted_root(folder / "trusted_root.json")
    return open_follower(registry.named(tag), folder, bundles=KeylessVerifier(Identity(subject, ISSUER, root)))


def refusal(follower: Follower) -> UnidentifiedError:
    """Refresh, and return the refusal."""
    with pytest.raises(UnidentifiedError) as caught:
        anyio.run(follower.refresh)
    assert "\n" not in str(caught.value)
    return caught.value


@each_row("has_api", [True, False])
def test_signed_artifact_is_served_and_verified_once(
    registry: FakeRegistry, sigstore: LocalSigstore, tmp_path: Path, has_api: bool
) -> None:
    """A registry without the API of referrers lists them under a tag."""
    folder = tmp_path / str(has_api)
    folder.mkdir()
    skill = registry.skill(f"api-{has_api}".lower(), {"SKILL.md": skill_md("a")}, "1.0")
    registry.refer(skill, sigstore.bundle(statement(skill)), has_api=has_api)
    anyio.run(follower_of(registry, sigstore, folder).refresh)
    registry.requests.clear()
    follower = follower_of(registry, sigstore, folder)  # another process
    anyio.run(follower.refresh)
    assert [(request.method, request.path) for request in registry.requests] == [
        ("HEAD", f"/v2/{REPOSITORY}/manifests/1.0")
    ]
    assert len(skill_names(follower.path)) == 1
    # another identity or trust root verifies again
    for other in (follower_of(registry, sigstore, folder, subject="x"), follower_of(registry, LocalSigstore(), folder)):
        assert refusal(other).code == "signature-invalid"
        assert not other.has_copy


def test_collection_is_signed_as_a_whole(registry: FakeRegistry, sigstore: LocalSigstore, tmp_path: Path) -> None:
    skills = {name: registry.skill(name, {"SKILL.md": skill_md(name)}) for name in ("a", "b")}
    index = registry.collection(skills, "1.0")
    registry.refer(skills["a"], sigstore.bundle(statement(skills["a"])))
    follower = follower_of(registry, sigstore, tmp_path)
    assert refusal(follower).code == "signature-missing"
    registry.refer(index, sigstore.bundle(statement(index)))
    anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["a", "b"]


def test_unsigned_revision_keeps_the_last_copy_until_it_is_signed(
    registry: FakeRegistry, sigstore: LocalSigstore, tmp_path: Path
) -> None:
    first = registry.skill("a", {"SKILL.md": skill_md("a")}, "1.0")
    registry.refer(first, sigstore.bundle(statement(first)))
    follower = follower_of(registry, sigstore, tmp_path)
    anyio.run(follower.refresh)
    second = registry.skill("a", {"SKILL.md": skill_md("a", "Changed.")}, "1.0")
    for bundles in ((), (sigstore.bundle(statement(first)),), (sigstore.bundle(statement(second), "x@x.example"),)):
        registry.refer(second, *bundles)
        assert refusal(follower).code == ("signature-invalid" if bundles else "signature-missing")
        assert (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a")
        assert follower.state.revision == first
    # an earlier refusal is not remembered
    registry.refer(second, sigstore.bundle(statement(second)))
    anyio.run(follower.refresh)
    assert (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a", "Changed.")
    # what was admitted stays so when its bundle is gone
    registry.refer(second)
    anyio.run(follower_of(registry, sigstore, tmp_path).refresh)


def test_copy_that_was_fetched_without_the_rule_is_not_served(
    registry: FakeRegistry, sigstore: LocalSigstore, tmp_path: Path
) -> None:
    registry.skill("a", {"SKILL.md": skill_md("a")}, "1.0")
    anyio.run(open_follower(registry.named(), tmp_path).refresh)
    follower = follower_of(registry, sigstore, tmp_path)
    assert not follower.has_copy
    refusal(follower)
    assert not follower.has_copy


def entry(index: int, **changed: Any) -> dict[str, Any]:
    return {"digest": digest(b"%d" % index), "artifactType": BUNDLE, **changed}


def test_good_bundle_is_sought_among_others(registry: FakeRegistry, sigstore: LocalSigstore, tmp_path: Path) -> None:
    skill = registry.skill("a", {"SKILL.md": skill_md("a")}, "1.0")
    good = sigstore.bundle(statement(skill))
    for number, bundles in enumerate((
        (b"", b"{}", sigstore.bundle(statement(digest(b"other"))), good),
        (good.ljust((1 << 20) + 1), sigstore.bundle(statement(skill), "x@x.example"), good),
    )):  # fmt: skip
        registry.refer(skill, *bundles)
        folder = tmp_path / str(number)
        folder.mkdir()
        anyio.run(follower_of(registry, sigstore, folder).refresh)
    # it is not even asked for one that is too large
    large = digest(good.ljust((1 << 20) + 1))
    assert not [request for request in registry.requests if request.path.endswith(large)]
    # a referrer that says to refer to another manifest: the bundle alone decides
    registry.refer(skill, good, to=digest(b"other"))
    (tmp_path / "elsewhere").mkdir()
    anyio.run(follower_of(registry, sigstore, tmp_path / "elsewhere").refresh)


def test_work_on_the_referrers_of_one_manifest_is_bounded(
    registry: FakeRegistry, sigstore: LocalSigstore, tmp_path: Path
) -> None:
    skill = registry.skill("a", {"SKILL.md": skill_md("a")}, "1.0")
    path = f"/v2/{REPOSITORY}/referrers/{skill}"
    registry.refer(skill, sigstore.bundle(statement(skill)))
    (good,) = json.loads(registry.routes[path].partition(b"\r\n\r\n")[2])["manifests"]  # type: ignore[union-attr]

    def list_referrers(entries: list[dict[str, Any]], **headers: str) -> None:
        raw = json.dumps({"manifests": entries}).encode()
        registry.routes[path] = respond_with(raw, **headers)

    follower = follower_of(registry, sigstore, tmp_path)
    list_referrers([entry(number) for number in range(10_000)])
    assert "none of 10000 bundles in the registry will do" in str(refusal(follower))
    assert len(registry.requests) < 250
    # pages that never end
    list_referrers([entry(1)], link=f'<{path}?page=2>; rel="next"')
    with pytest.raises(UnreachableError, match="more than 100 pages"):
        anyio.run(follower.refresh)
    # artifacts of other types, and attestations of other kinds, are not read
    sboms = [entry(number, artifactType="application/spdx+json") for number in range(5_000)]
    scan = {"dev.sigstore.bundle.predicateType": "https://cosign.sigstore.dev/attestation/vuln/v1"}
    scans = [entry(number, annotations=scan) for number in range(5_000)]
    list_referrers([*sboms, *scans, good])
    registry.requests.clear()
    anyio.run(follower.refresh)
    assert follower.has_copy
    assert len(registry.requests) < 10


@each_row("page", [
    respond_with(b"<html>"), respond_with(b"[]"), respond_with(b'{"manifests": 7}'), respond_with(b"", 403),
    respond_with(b'{"manifests": [7, {}, {"digest": "x"}, {"digest": "sha256:../.."}]}'), respond_with(b"", 500),
    respond_with(b'{"manifests": []}', link='<http://192.0.2.1/next>; rel="next"'), respond_with(b" " * 5_000_000),
])  # fmt: skip
def test_malformed_list_of_referrers_admits_nothing_and_is_asked_for_again(
    registry: FakeRegistry, sigstore: LocalSigstore, tmp_path: Path, page: bytes
) -> None:
    skill = registry.skill("a", {"SKILL.md": skill_md("a")}, "1.0")
    registry.routes[f"/v2/{REPOSITORY}/referrers/{skill}"] = page
    follower = follower_of(registry, sigstore, tmp_path)
    with pytest.raises(SourceError) as caught:
        anyio.run(follower.refresh)
    assert isinstance(caught.value, UnidentifiedError | UnreachableError)
    assert not follower.has_copy
    registry.refer(skill, sigstore.bundle(statement(skill)))
    anyio.run(follower.refresh)
    assert follower.has_copy


def test_commands_admit_only_what_the_identity_signed(tmp_path: Path, sigstore: LocalSigstore) -> None:
    sigstore.trusted_root(tmp_path / "trusted_root.json")
    options = cache_option(tmp_path)
    with FakeRegistry() as registry:
        config = configuration(tmp_path, registry.named())

        def refusal_of(command: str, *words: str, code: int = 2) -> str:
            done = run_command(command, "--config", config, *words, code=code)
            return done.stdout + done.stderr

        def shown() -> str:
            return run_command("show", "alpha", "--config", config, *options).stdout

        first = registry.skill("alpha", {"SKILL.md": skill_md("alpha", "First.")}, "1.0")
        registry.refer(first)
        unsigned = refusal_of("list", *options)
        assert "is not signed by the required identity: the registry has no bundle of sigstore" in unsigned
        assert len(unsigned.splitlines()) == 1
        registry.refer(first, sigstore.bundle(statement(first), "x@x.example"))
        assert "Certificate's SANs do not match" in refusal_of("list", *options)
        registry.refer(first, sigstore.bundle(statement(first)))
        assert "First." in shown()
        # the tag moves to what is not signed: the last copy stays, with a problem
        second = registry.skill("alpha", {"SKILL.md": skill_md("alpha", "Second.")}, "1.0")
        registry.refer(second)
        problem = refusal_of("validate", *options, code=1)
        assert "signature-missing" in problem and f"{second[:19]} is not signed" in problem
        assert "serving the last copy" in problem
        assert "First." in shown()
        registry.refer(second, sigstore.bundle(statement(second)))
        assert "Second." in shown()
        registry.refer(second)  # removed: it was admitted before
        assert "Second." in shown()
        assert "no bundle" in refusal_of("list", *cache_option(tmp_path / "other"))
    # without the registry
    assert "Second." in shown()
    config.write_text(config.read_text().replace(SUBJECT, "x@x.example"))
    assert "cannot be reached" in refusal_of("list", *options)
