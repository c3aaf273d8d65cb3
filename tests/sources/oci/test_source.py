"""OCI source: cost of a poll, refusal, retries, and failures that keep the last copy."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_skills_server.sources import mirrors
from mcp_skills_server.sources.mirrors import Mirrors
from mcp_skills_server.sources.oci import manifests
from mcp_skills_server.sources.source import SourceSettings, UnacceptableError, UnreachableError
from sources.fetching import LOCAL, fetch_to_cache, fetch_to_folder, open_follower, read_tree, run_command, skill_names
from sources.oci.registries import REPOSITORY, FakeRegistry, digest, tar
from sources.publishers import respond_with, skill_md


def requests_since_last_call(registry: FakeRegistry) -> list[str]:
    """Return method and path of each request since the last call, as "GET blobs/sha256"."""
    requests: list[str] = []
    for each in registry.requests:
        path = each.path.removeprefix(f"/v2/{REPOSITORY}/")
        requests.append(f"{each.method} {path.partition(':')[0]}")
    registry.requests.clear()
    return requests


def publish(registry: FakeRegistry, *names: str, text: str = "Read on.") -> dict[str, str]:
    """Publish a collection of skills, and return their digests by name."""
    digests = {name: registry.skill(name, {"SKILL.md": skill_md(name, text)}) for name in names}
    registry.collection(digests, "1.0")
    return digests


def test_poll_of_unchanged_artifact_is_one_head_request(registry: FakeRegistry, tmp_path: Path) -> None:
    publish(registry, "a", "b")
    follower = fetch_to_cache(registry.named(), tmp_path)
    assert skill_names(follower.path) == ["a", "b"]
    requests = Counter(requests_since_last_call(registry))
    assert requests == {"GET blobs/sha256": 2, "GET manifests/sha256": 3, "HEAD manifests/1.0": 1}
    for each in (follower, follower, open_follower(registry.named(), tmp_path)):
        anyio.run(each.refresh)
        assert requests_since_last_call(registry) == ["HEAD manifests/1.0"]
    (follower.path / "a" / "SKILL.md").write_bytes(b"changed")
    fetch_to_cache(registry.named(), tmp_path)
    assert (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a")
    assert len(requests_since_last_call(registry)) == 4  # the tag, the index, the artifact and its layer


def test_refused_skill_is_not_requested_again(
    registry: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = registry.skill("bad", {"SKILL.md": skill_md("bad"), ".env": b"x"})
    good = registry.skill("good", {"SKILL.md": skill_md("good")})
    registry.collection({"bad": bad, "good": good}, "1.0")
    follower = open_follower(registry.named(), tmp_path)
    for _ in range(2):
        anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["good"]
    requests = requests_since_last_call(registry)
    assert len([each for each in requests if each.startswith("GET")]) == 5
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "bad: it brings files that are never served" in line
    # another process reports it without a request
    caplog.clear()
    fetch_to_cache(registry.named(), tmp_path)
    assert requests_since_last_call(registry) == ["HEAD manifests/1.0"]
    assert "bad: it brings files" in caplog.text
    # the last copy of a refused skill stays when other skills change
    publish(registry, "good", "bad")
    anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["bad", "good"]
    registry.collection({"bad": bad, "good": publish(registry, "good", text="New.")["good"]}, "1.0")
    anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["bad", "good"]
    assert (follower.path / "good" / "SKILL.md").read_bytes() == skill_md("good", "New.")


@pytest.mark.parametrize("status", [503, 403, 404, 200])  # 200 has an empty body
@pytest.mark.parametrize("missing_kind", ["manifests", "blobs"])
def test_unavailable_artifact_is_retried_and_removes_nothing(
    registry: FakeRegistry, tmp_path: Path, missing_kind: str, status: int
) -> None:
    publish(registry, "a", "old")
    follower = fetch_to_cache(registry.named(), tmp_path)
    before = {*registry.routes}
    late = registry.skill("late", {"SKILL.md": skill_md("late")})
    missing = {path: route for path, route in registry.routes.items() if path not in before and missing_kind in path}
    registry.routes |= dict.fromkeys(missing, respond_with(b"", status))
    registry.collection({"a": registry.skill("a", {"SKILL.md": skill_md("a")}), "": late}, "1.0")
    anyio.run(follower.refresh)
    assert missing
    assert skill_names(follower.path) == ["a", "old"]
    registry.routes |= missing
    anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["a", "late"]


def test_lock_file_is_not_written_while_a_skill_cannot_be_fetched(registry: FakeRegistry, tmp_path: Path) -> None:
    bad = registry.skill("bad", {"SKILL.md": skill_md("bad"), ".env": b"x"})
    skills = {name: registry.skill(name, {"SKILL.md": skill_md(name)}) for name in ("a", "b")} | {"bad": bad}
    digest = registry.collection(skills, "1.0")
    command = ("--cache-dir", tmp_path / "cache", "--allow-http", "--allow-private")
    lock = tmp_path / "skills.lock"
    place = f"/v2/{REPOSITORY}/manifests/{skills['b']}"
    lost = registry.routes.pop(place)
    done = run_command("lock", registry.named(), "--output", lock, *command, code=2)
    assert "not all of its skills can be fetched now" in done.stderr
    assert not lock.exists()
    registry.routes[place] = lost
    run_command("lock", registry.named(), "--output", lock, *command)
    before = lock.read_text()
    assert digest in before
    del registry.routes[place]
    shutil.rmtree(tmp_path / "cache")
    run_command("update", "--lock", lock, *command, code=2)
    assert lock.read_text() == before


def test_site_is_not_published_while_a_skill_cannot_be_fetched(registry: FakeRegistry, tmp_path: Path) -> None:
    skills = publish(registry, "a", "b")
    output = tmp_path / "site"
    command = ("publish", registry.named(), "--output", output, "--cache-dir", tmp_path / "cache")
    run_command(*command)
    before = read_tree(output)
    shutil.rmtree(tmp_path / "cache")
    del registry.routes[f"/v2/{REPOSITORY}/manifests/{skills['b']}"]
    done = run_command(*command, code=1)
    assert "not all of its skills can be fetched now" in done.stderr
    assert read_tree(output) == before
    run_command(*command, "--check", code=1)
    run_command(*command, "--allow-partial")
    assert read_tree(output) != before
    run_command(*command, "--check", code=1)
    run_command(*command, "--check", "--allow-partial")


def test_package_leaves_out_a_skill_that_cannot_be_fetched_only_if_allowed(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    del registry.routes[f"/v2/{REPOSITORY}/manifests/{publish(registry, 'a', 'b')['b']}"]
    output = tmp_path / "package"
    command = ("package", registry.named(), "--output", output, "--name", "x", "--cache-dir", tmp_path / "cache")
    done = run_command(*command, code=1)
    assert "not all of its skills can be fetched now" in done.stderr
    assert not output.exists()
    run_command(*command, "--allow-partial")
    assert [each.name for each in (output / "skills").iterdir()] == ["a"]


def test_pinned_copy_is_replaced_only_by_a_complete_one(registry: FakeRegistry, tmp_path: Path) -> None:
    pins: list[str] = []
    for text in ("before", "after"):
        skills = publish(registry, "a", "b", text=text)
        pins.append(registry.collection(skills))
    mirrors = Mirrors(SourceSettings(tmp_path, fetch=LOCAL))
    mirrors.root(registry.named(), pins[0])
    (follower,) = mirrors.followers
    anyio.run(follower.refresh)
    place = f"/v2/{REPOSITORY}/manifests/{skills['b']}"
    lost = registry.routes.pop(place)
    with pytest.raises(UnreachableError, match=re.escape(f"{registry.named()}: b: ")):
        mirrors.repin({str(follower.path): pins[1]})
    assert (follower.path / "b" / "SKILL.md").read_bytes() == skill_md("b", "before")
    registry.routes[place] = lost
    shutil.rmtree(follower.path.parent)  # as cleaners of old temporary files do
    mirrors.repin({str(follower.path): pins[1]})
    assert (follower.path / "b" / "SKILL.md").read_bytes() == skill_md("b", "after")
    mirrors.stop()


def test_all_pinned_sources_are_switched_or_none(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = [registry.collection(publish(registry, "a", text=text)) for text in ("before", "after")]
    followed = Mirrors(SourceSettings(tmp_path, fetch=LOCAL))
    for _ in range(2):
        followed.root(registry.named(), pins[0])
    followed.fetch()
    first, second = followed.followers
    point = mirrors._point_link

    def fail_at_second(link: Path, folder: Path) -> None:
        if link == second.link:
            raise OSError(28, "No space left on device")
        point(link, folder)

    monkeypatch.setattr(mirrors, "_point_link", fail_at_second)
    with pytest.raises(OSError, match="No space left"):
        followed.repin({str(each.path): pins[1] for each in (first, second)})
    for each in (first, second):
        assert (each.path / "a" / "SKILL.md").read_bytes() == skill_md("a", "before")
    followed.stop()


def test_first_of_two_skills_with_one_name_is_served(
    registry: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["first", "second"]
    digests = {text: registry.skill("a", {"SKILL.md": skill_md("a", text)}) for text in texts}
    for order in (texts, texts[::-1]):
        registry.collection({text: digests[text] for text in order}, "1.0")
        follower = fetch_to_cache(registry.named(), tmp_path)
        assert (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a", order[0])
    assert "another skill of this name comes before it" in caplog.text
    upper = registry.skill("A", {"SKILL.md": skill_md("a", "upper")})
    registry.collection({"1": digests["first"], "2": upper}, "1.0")
    anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["a"]


@pytest.mark.parametrize("is_first_late", [False, True])
def test_skill_whose_name_differs_only_in_case_is_refused_for_that(
    registry: FakeRegistry, tmp_path: Path, is_first_late: bool
) -> None:
    raw = tar({"Foo/SKILL.md": skill_md("Foo")})

    def late(_: object) -> Iterator[bytes]:
        if is_first_late:
            registry.closing.wait(0.3)
        yield respond_with(raw, connection="close")

    first = registry.put(registry.manifest(registry.layer(raw)))
    registry.blob(raw, late)
    registry.collection({"1": first, "2": registry.skill("foo", {"SKILL.md": skill_md("foo")})}, "1.0")
    (refused,) = fetch_to_folder(registry.named(), tmp_path / "own").refused
    fault = "its name differs from that of 'Foo', which comes before it, only in case or Unicode form"
    assert str(refused) == f"foo: {fault}"
    assert skill_names(tmp_path / "own") == ["Foo"]


@pytest.mark.parametrize("push", [
    lambda registry: registry.collection({}, "1.0"),
    lambda registry: registry.put(registry.manifest(tar({"README.md": b""})), "1.0"),
    lambda registry: registry.put(registry.manifest(b"\x28\xb5\x2f\xfd"), "1.0"),  # zstd
    lambda registry: registry.collection({"x": registry.collection(publish(registry, "a"))}, "1.0"),
])  # fmt: skip
def test_refused_artifact_leaves_last_copy(
    registry: FakeRegistry, tmp_path: Path, push: Callable[[FakeRegistry], object]
) -> None:
    publish(registry, "a")
    follower = fetch_to_cache(registry.named(), tmp_path)
    push(registry)
    for _ in range(2):
        with pytest.raises(UnacceptableError):
            anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["a"]
    assert follower.state.trouble is not None
    publish(registry, "a", "b")
    anyio.run(follower.refresh)
    assert skill_names(follower.path) == ["a", "b"]
    assert follower.state.trouble is None


def test_multi_platform_image_is_one_artifact(registry: FakeRegistry, tmp_path: Path) -> None:
    image = registry.skill("a", {"SKILL.md": skill_md("a")}, artifactType="dev.toolhive.skills.v1")
    absent, arm, amd, unknown = digest(b"absent"), "linux/arm64", "linux/amd64", "unknown/unknown"
    entries: list[dict[str, Any]] = []
    for each, platform in ((absent, arm), (image, amd), (absent, unknown), (absent, amd)):
        system, _, architecture = platform.partition("/")
        named = {"os": system, "architecture": architecture}
        entries.append({"mediaType": manifests.MANIFEST, "digest": each, "size": 1, "platform": named})
    entries.insert(0, entries.pop() | {"annotations": {"vnd.docker.reference.type": "attestation-manifest"}})
    registry.put(json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), "1.0", media_type=manifests.INDEX)
    follower = fetch_to_cache(registry.named(), tmp_path)
    assert skill_names(follower.path) == ["a"]


def test_digest_header_is_optional(registry: FakeRegistry, tmp_path: Path) -> None:
    raw = registry.manifest(tar({"a/SKILL.md": skill_md("a")}))
    registry.put(raw)
    registry.routes[f"/v2/{REPOSITORY}/manifests/1.0"] = lambda request: [
        respond_with(b"" if request.method == "HEAD" else raw, length=len(raw), connection="close")
    ]
    assert skill_names(fetch_to_cache(registry.named(), tmp_path).path) == ["a"]
