"""An artifact of a registry as a source: what a look costs, and what stays when something fails."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.sources import reconcile
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.oci import manifests
from mcp_skills_server.sources.source import (
    UnacceptableError,
)
from sources.fetching import fetch_to_cache, fetch_to_folder, open_follower, read_tree
from sources.oci.registries import REPOSITORY, FakeRegistry, digest, tar
from sources.publishers import answer, skill_md


def there(follower: Follower) -> list[str]:
    return sorted(path for path in read_tree(follower.path) if "/" not in path)


def asked(registry: FakeRegistry) -> list[str]:
    """The requests since the last call, without what they have in common."""
    common = f"/v2/{REPOSITORY}/"
    found = [f"{each.method} {each.path.removeprefix(common).partition(':')[0]}" for each in registry.asked]
    registry.asked.clear()
    return found


def publish(registry: FakeRegistry, *names: str, text: str = "Read on.") -> dict[str, str]:
    found = {name: registry.skill(name, {"SKILL.md": skill_md(name, text)}) for name in names}
    registry.collection(found, "1.0")
    return found


def test_a_look_with_nothing_new_is_one_head_also_after_a_restart(registry: FakeRegistry, tmp_path: Path) -> None:
    publish(registry, "a", "b")
    follower = fetch_to_cache(registry.named(), tmp_path)
    assert there(follower) == ["a", "b"]
    assert sorted(asked(registry)) == [
        *["GET blobs/sha256"] * 2, *["GET manifests/sha256"] * 3, "HEAD manifests/1.0",
    ]  # fmt: skip
    for again in (follower, follower, open_follower(registry.named(), tmp_path)):
        anyio.run(again.refresh)
        assert asked(registry) == ["HEAD manifests/1.0"]
    (follower.path / "a" / "SKILL.md").write_bytes(b"changed")
    fetch_to_cache(registry.named(), tmp_path)
    assert (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a")
    assert len(asked(registry)) == 4  # the tag, the index, the artifact and its layer
    pinned = f"{registry.named()}@{follower.state.revision}"
    fetch_to_cache(pinned, tmp_path)
    assert "HEAD manifests/1.0" not in asked(registry)
    assert there(fetch_to_cache(pinned, tmp_path)) == ["a", "b"] and asked(registry) == []


def test_what_is_refused_costs_itself_and_is_not_asked_for_again(
    registry: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = registry.skill("bad", {"SKILL.md": skill_md("bad"), ".env": b"x"})
    good = registry.skill("good", {"SKILL.md": skill_md("good")})
    registry.collection({"bad": bad, "good": good}, "1.0")
    follower = open_follower(registry.named(), tmp_path)
    for _ in range(2):
        anyio.run(follower.refresh)
    assert there(follower) == ["good"] and len([each for each in asked(registry) if each.startswith("GET")]) == 5
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "bad: it brings files that are never served" in line
    # Also not by another process, which says it all the same.
    caplog.clear()
    fetch_to_cache(registry.named(), tmp_path)
    assert asked(registry) == ["HEAD manifests/1.0"] and "bad: it brings files" in caplog.text
    # The last good one of it stays, also when its neighbours change.
    publish(registry, "good", "bad")
    anyio.run(follower.refresh)
    assert there(follower) == ["bad", "good"]
    registry.collection({"bad": bad, "good": publish(registry, "good", text="New.")["good"]}, "1.0")
    anyio.run(follower.refresh)
    assert there(follower) == ["bad", "good"]
    assert (follower.path / "good" / "SKILL.md").read_bytes() == skill_md("good", "New.")


@pytest.mark.parametrize("status", [503, 403, 404, 200])
@pytest.mark.parametrize("place", ["manifests", "blobs"])
def test_what_cannot_be_had_is_asked_for_again_and_removes_nothing(
    registry: FakeRegistry, tmp_path: Path, place: str, status: int
) -> None:
    publish(registry, "a", "old")
    follower = fetch_to_cache(registry.named(), tmp_path)
    before = {*registry.routes}
    late = registry.skill("late", {"SKILL.md": skill_md("late")})
    missing = {path: route for path, route in registry.routes.items() if path not in before and place in path}
    registry.routes |= dict.fromkeys(missing, answer(b"", status))
    registry.collection({"a": registry.skill("a", {"SKILL.md": skill_md("a")}), "": late}, "1.0")
    anyio.run(follower.refresh)
    assert missing and there(follower) == ["a", "old"]
    registry.routes |= missing
    anyio.run(follower.refresh)
    assert there(follower) == ["a", "late"]


def test_of_two_skills_of_a_name_the_first_of_the_index_is_taken(
    registry: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["first", "second"]
    found = {text: registry.skill("a", {"SKILL.md": skill_md("a", text)}) for text in texts}
    for order in (texts, texts[::-1]):
        registry.collection({text: found[text] for text in order}, "1.0")
        follower = fetch_to_cache(registry.named(), tmp_path)
        assert (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a", order[0])
    assert "another skill of this name comes before it" in caplog.text
    upper = registry.skill("A", {"SKILL.md": skill_md("a", "upper")})
    registry.collection({"1": found["first"], "2": upper}, "1.0")
    anyio.run(follower.refresh)
    assert there(follower) == ["a"]


def test_the_first_of_two_is_taken_also_when_the_second_is_in_place(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_BATCH", 1)
    raw = tar({"a/SKILL.md": skill_md("a", "first")})

    def late(_: object) -> Iterator[bytes]:
        registry.closing.wait(0.3)
        yield answer(raw, connection="close")

    first = registry.put(registry.manifest(registry.layer(raw)))
    registry.blob(raw, late)
    registry.collection({"1": first, "2": registry.skill("a", {"SKILL.md": skill_md("a", "second")})}, "1.0")
    (refused,) = fetch_to_folder(registry.named(), tmp_path / "own").refused
    assert str(refused) == "a: another skill of this name comes before it"
    assert (tmp_path / "own" / "a" / "SKILL.md").read_bytes() == skill_md("a", "first")


@pytest.mark.parametrize(
    "push",
    [
        lambda registry: registry.collection({}, "1.0"),
        lambda registry: registry.put(registry.manifest(tar({"README.md": b""})), "1.0"),
        lambda registry: registry.put(registry.manifest(b"\x28\xb5\x2f\xfd"), "1.0"),  # zstd
        lambda registry: registry.collection({"x": registry.collection(publish(registry, "a"))}, "1.0"),
    ],
)
def test_a_refused_artifact_leaves_the_last_good_one(
    registry: FakeRegistry, tmp_path: Path, push: Callable[[FakeRegistry], object]
) -> None:
    publish(registry, "a")
    follower = fetch_to_cache(registry.named(), tmp_path)
    push(registry)
    for _ in range(2):
        with pytest.raises(UnacceptableError):
            anyio.run(follower.refresh)
    assert there(follower) == ["a"] and follower.state.trouble is not None
    publish(registry, "a", "b")
    anyio.run(follower.refresh)
    assert there(follower) == ["a", "b"] and follower.state.trouble is None


def test_an_image_of_several_platforms_is_one(registry: FakeRegistry, tmp_path: Path) -> None:
    image = registry.skill("a", {"SKILL.md": skill_md("a")}, artifactType="dev.toolhive.skills.v1")
    entries = [
        {"mediaType": manifests.MANIFEST, "digest": each, "size": 1, "platform": {"os": "linux", "architecture": arch}}
        for each, arch in ((digest(b"never there"), "arm64"), (image, "amd64"))
    ]
    registry.put(json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), "1.0", media_type=manifests.INDEX)
    follower = fetch_to_cache(registry.named(), tmp_path)
    assert there(follower) == ["a"]


def test_a_registry_may_say_no_digest(registry: FakeRegistry, tmp_path: Path) -> None:
    raw = registry.manifest(tar({"a/SKILL.md": skill_md("a")}))
    registry.put(raw)
    registry.routes[f"/v2/{REPOSITORY}/manifests/1.0"] = lambda asked: [
        answer(b"" if asked.method == "HEAD" else raw, length=len(raw), connection="close")
    ]
    assert there(fetch_to_cache(registry.named(), tmp_path)) == ["a"]
