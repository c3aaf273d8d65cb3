"""An artifact of a registry as a source: what a look costs, and what stays when something fails."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.mirrors import Follower
from mcp_skills_server.sources.oci import manifests
from mcp_skills_server.sources.oci.source import Oci
from mcp_skills_server.sources.source import (
    Bounds,
    FetchSettings,
    OriginPolicy,
    SourceError,
    SourceSettings,
    UnacceptableError,
    UnreachableError,
)
from sources.fetching import listing
from sources.oci.registries import REPOSITORY, Fake, digest, tar
from sources.publishers import answer, skill_md

FETCH = FetchSettings(trust=OriginPolicy(), bounds=Bounds(read_s=2, download_s=5))


def followed(registry: Fake, folder: Path, given: str = "") -> Follower:
    source = Oci(given or registry.named(), SourceSettings(folder / "cache", fetch=FETCH))
    return Follower(source)


def there(follower: Follower) -> list[str]:
    return sorted(path for path in listing(follower.path) if "/" not in path)


def asked(registry: Fake) -> list[str]:
    """The requests since the last call, without what they have in common."""
    found = [
        f"{each.method} {each.path.removeprefix(f'/v2/{REPOSITORY}/').partition(':')[0]}" for each in registry.asked
    ]
    registry.asked.clear()
    return found


def publish(registry: Fake, *names: str, text: str = "Read on.") -> dict[str, str]:
    found = {name: registry.skill(name, {"SKILL.md": skill_md(name, text)}) for name in names}
    registry.collection(found, "1.0")
    return found


def test_a_look_with_nothing_new_is_one_head(registry: Fake, tmp_path: Path) -> None:
    publish(registry, "a", "b")
    follower = followed(registry, tmp_path)
    anyio.run(follower.refresh)
    assert there(follower) == ["a", "b"]
    assert sorted(asked(registry)) == [
        *["GET blobs/sha256"] * 2, *["GET manifests/sha256"] * 3, "HEAD manifests/1.0",
    ]  # fmt: skip
    for _ in range(2):
        anyio.run(follower.refresh)
        assert asked(registry) == ["HEAD manifests/1.0"]


def test_a_restart_is_one_head_and_puts_right_what_was_changed(registry: Fake, tmp_path: Path) -> None:
    publish(registry, "a", "b")
    anyio.run(followed(registry, tmp_path).refresh)
    asked(registry)
    follower = followed(registry, tmp_path)
    anyio.run(follower.refresh)
    assert asked(registry) == ["HEAD manifests/1.0"]
    (follower.path / "a" / "SKILL.md").write_bytes(b"changed")
    anyio.run(followed(registry, tmp_path).refresh)
    assert (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a")
    assert len(asked(registry)) == 4  # the tag, the index, the artifact and its layer
    (follower.path / "b" / "SKILL.md").unlink()
    anyio.run(followed(registry, tmp_path).refresh)
    assert (follower.path / "b" / "SKILL.md").read_bytes() == skill_md("b")


def test_one_changed_skill_of_many_costs_that_skill(registry: Fake, tmp_path: Path) -> None:
    found = publish(registry, *(f"s{number}" for number in range(30)))
    follower = followed(registry, tmp_path)
    anyio.run(follower.refresh)
    asked(registry)
    inodes = {name: (follower.path / name).stat().st_ino for name in found}
    changed = registry.skill("s7", {"SKILL.md": skill_md("s7", "Changed.")})
    registry.collection(found | {"s7": changed}, "1.0")
    anyio.run(follower.refresh)
    assert len(asked(registry)) == 4
    now = {name: (follower.path / name).stat().st_ino for name in found}
    assert {name for name in found if now[name] != inodes[name]} == {"s7"}


def test_a_digest_is_asked_for_once(registry: Fake, tmp_path: Path) -> None:
    pinned = registry.skill("a", {"SKILL.md": skill_md("a")}, "1.0")
    follower = followed(registry, tmp_path, f"oci+http://{registry.host}/{REPOSITORY}@{pinned}")
    assert anyio.run(follower.refresh) >= 60 and there(follower) == ["a"]
    assert asked(registry) == ["GET manifests/sha256", "GET blobs/sha256"]
    registry.skill("a", {"SKILL.md": skill_md("a", "Another.")}, "1.0")
    anyio.run(follower.refresh)
    anyio.run(followed(registry, tmp_path, follower.source.origin).refresh)
    assert asked(registry) == [] and (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a")


def test_what_is_refused_costs_itself_and_is_not_asked_for_again(
    registry: Fake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = registry.skill("bad", {"SKILL.md": skill_md("bad"), ".env": b"x"})
    good = registry.skill("good", {"SKILL.md": skill_md("good")})
    registry.collection({"bad": bad, "good": good}, "1.0")
    follower = followed(registry, tmp_path)
    for _ in range(2):
        anyio.run(follower.refresh)
    assert there(follower) == ["good"] and len([each for each in asked(registry) if each.startswith("GET")]) == 5
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "bad: it brings files that are never served" in line
    # Also not by another process, which says it all the same.
    caplog.clear()
    anyio.run(followed(registry, tmp_path).refresh)
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
def test_what_cannot_be_had_is_asked_for_again_and_nothing_is_removed_meanwhile(
    registry: Fake, tmp_path: Path, status: int
) -> None:
    publish(registry, "a", "old")
    follower = followed(registry, tmp_path)
    anyio.run(follower.refresh)
    raw = tar({"late/SKILL.md": skill_md("late")})
    late = registry.put(registry.manifest(registry.layer(raw)))
    registry.blob(raw, answer(b"", status))
    registry.collection({"a": registry.skill("a", {"SKILL.md": skill_md("a")}), "": late}, "1.0")
    anyio.run(follower.refresh)
    assert there(follower) == ["a", "old"]
    registry.blob(raw)
    anyio.run(follower.refresh)
    assert there(follower) == ["a", "late"]


@pytest.mark.parametrize("place", ["manifests", "blobs"])
def test_a_permission_that_is_missing_may_be_given_later(registry: Fake, tmp_path: Path, place: str) -> None:
    registry.skill("a", {"SKILL.md": skill_md("a")}, "1.0")
    paths = [path for path in registry.routes if f"/{place}/sha256" in path]
    before = {path: registry.routes[path] for path in paths}
    registry.routes |= dict.fromkeys(paths, answer(b"", 403))
    follower = followed(registry, tmp_path)
    for _ in range(2):
        with pytest.raises(UnreachableError, match="asks for permission"):
            anyio.run(follower.refresh)
    registry.routes |= before
    anyio.run(follower.refresh)
    assert there(follower) == ["a"]


def test_of_two_skills_of_a_name_the_first_of_the_index_is_taken(
    registry: Fake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digests = [registry.skill("a", {"SKILL.md": skill_md("a", text)}) for text in ("first", "second")]
    for number, order in enumerate((digests, digests[::-1])):
        registry.collection({f"{place}": each for place, each in enumerate(order)}, "1.0")
        follower = followed(registry, tmp_path)
        anyio.run(follower.refresh)
        first = "first" if number == 0 else "second"
        assert (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a", first)
    assert "another skill of this name comes before it" in caplog.text
    upper = registry.skill("A", {"SKILL.md": skill_md("a", "upper")})
    registry.collection({"1": digests[0], "2": upper}, "1.0")
    anyio.run(follower.refresh)
    assert there(follower) == ["a"]


@pytest.mark.parametrize("whole", ["nothing", "no skill", "zstd", "nested"])
def test_what_is_refused_as_a_whole_leaves_the_last_good_one(registry: Fake, tmp_path: Path, whole: str) -> None:
    found = publish(registry, "a")
    follower = followed(registry, tmp_path)
    anyio.run(follower.refresh)
    if whole == "nothing":
        registry.collection({}, "1.0")
    elif whole == "no skill":
        registry.put(registry.manifest(tar({"README.md": b""})), "1.0")
    elif whole == "zstd":
        registry.put(registry.manifest(b"\x28\xb5\x2f\xfd"), "1.0")
    else:
        registry.collection({"x": registry.collection(found)}, "1.0")
    for _ in range(2):
        with pytest.raises(UnacceptableError):
            anyio.run(follower.refresh)
    assert there(follower) == ["a"] and follower.state.trouble is not None
    publish(registry, "a", "b")
    anyio.run(follower.refresh)
    assert there(follower) == ["a", "b"] and follower.state.trouble is None


def test_an_image_of_several_platforms_is_one(registry: Fake, tmp_path: Path) -> None:
    image = registry.skill("a", {"SKILL.md": skill_md("a")}, artifactType="dev.toolhive.skills.v1")
    entries = [
        {"mediaType": manifests.MANIFEST, "digest": each, "size": 1, "platform": {"os": "linux", "architecture": arch}}
        for each, arch in ((digest(b"never there"), "arm64"), (image, "amd64"))
    ]
    registry.put(json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), "1.0", media_type=manifests.INDEX)
    follower = followed(registry, tmp_path)
    anyio.run(follower.refresh)
    assert there(follower) == ["a"]


def test_a_registry_that_is_not_there_or_says_no_digest(registry: Fake, tmp_path: Path) -> None:
    raw = registry.manifest(tar({"a/SKILL.md": skill_md("a")}))
    registry.put(raw)
    registry.routes[f"/v2/{REPOSITORY}/manifests/1.0"] = lambda asked: [
        answer(b"" if asked.method == "HEAD" else raw, length=len(raw), connection="close")
    ]
    follower = followed(registry, tmp_path)
    anyio.run(follower.refresh)
    assert there(follower) == ["a"]
    registry.routes[f"/v2/{REPOSITORY}/manifests/1.0"] = answer(b"", 503)
    with pytest.raises(UnreachableError):
        anyio.run(follower.refresh)
    assert there(follower) == ["a"]
    with pytest.raises(SourceError):
        anyio.run(followed(registry, tmp_path, f"oci+http://127.0.0.1:1/{REPOSITORY}").refresh)


def test_a_pin_is_brought_however_far_the_tag_has_moved_and_then_without_a_question(
    registry: Fake, tmp_path: Path
) -> None:
    first = registry.skill("a", {"SKILL.md": skill_md("a", "first")}, "1.0")
    registry.skill("a", {"SKILL.md": skill_md("a", "second")}, "1.0")
    settings = SourceSettings(tmp_path / "cache", fetch=FETCH, pin=first)
    for _ in range(2):
        source = Oci(registry.named(), settings)
        follower = Follower(source)
        anyio.run(follower.refresh)
        assert (follower.path / "a" / "SKILL.md").read_bytes() == skill_md("a", "first")
        assert follower.state.revision == first and source.origin == registry.named()
    assert asked(registry) == ["GET manifests/sha256", "GET blobs/sha256"]
    newest = followed(registry, tmp_path)
    anyio.run(newest.refresh)
    assert (newest.path / "a" / "SKILL.md").read_bytes() == skill_md("a", "second")
    with pytest.raises(UsageError, match="lock it again"):
        Oci(registry.named(), replace(settings, pin="0123abc"))
