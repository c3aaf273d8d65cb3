"""Runs that fetch a source, and are killed: each skill is whole, old or new, and none is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.killing import Killer, succeed
from mcp_skills_server.format.archive import Files
from sources.git.remotes import Upstream
from sources.oci.registries import docker_registry
from sources.publishers import Publisher, skill_md

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL")

NAMES = [f"skill-{number}" for number in range(6)]


def names(number: int) -> set[str]:
    """The skills of a version: each time another one is not there."""
    return {*NAMES} - {NAMES[number % len(NAMES)]}


def version(name: str, number: int) -> Files:
    """The files of a skill in one of its versions; no two versions share one."""
    said = f"This is version {number}.\n".encode()
    files = {"SKILL.md": (skill_md(name, f"Version {number}."), False)}
    for path in ("references/rules.md", "references/deep/more.md", f"assets/only-in-{number}.bin", "scripts/run.sh"):
        files[path] = (path.encode() + b" " + said * 200, path.endswith(".sh"))
    return files


def found(place: Path) -> Files:
    return {
        path.relative_to(place).as_posix(): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in place.rglob("*")
        if not path.is_dir()
    }


def rounds(
    kind: str,
    given: str,
    tmp_path: Path,
    publish: Callable[[int], None],
    kills: int,
    *,
    away: Callable[[bool], object] | None = None,
    output: Path | None = None,
) -> None:
    """Have a source brought again and again, each time in another version, and killed while it is.

    `kind` is that of the source, as its folder in the cache is called. `publish` has the source be in a version, and
    `away` be out of reach or back again. `output` is a folder of one's own, None for the cache.
    """
    cache = output or tmp_path / "cache"
    words = ["list", given, "--cache-dir", str(cache), "--allow-private"]
    if output is not None:
        words = ["fetch", given, "--output", str(output), "--allow-private", "--prune"]
    killer = Killer(cache, 6)

    def place() -> Path:
        if output is not None:
            return output
        (folder,) = (cache / kind).iterdir()
        return folder / "skills"

    def there(newest: int) -> dict[str, int]:
        """The version of each skill that is there; each is whole."""
        out: dict[str, int] = {}
        for path in place().iterdir():
            if path.name in NAMES:
                files = found(path)
                (out[path.name],) = (each for each in range(newest + 1) if version(path.name, each) == files)
        return out

    publish(0)
    first = killer.measure(*words)
    shutil.rmtree(cache)
    for _ in range(kills // 4):  # while there is nothing yet
        killer.kill(first, *words)
        there(0)
    succeed(*words)
    assert there(0) == dict.fromkeys(names(0), 0)
    publish(1)
    again = killer.measure(*words)
    held = names(1)
    for number in range(2, 2 + kills - kills // 4):
        publish(number)
        held &= names(number)
        killer.kill(again, *words)
        missing = held - there(number).keys()  # taken away, to be replaced
        if missing and away is not None:
            away(True)
            succeed(*words)
            assert held <= there(number).keys()
            away(False)
        if number % 2 == 0:  # otherwise what one that was killed left behind is met by another that is killed
            succeed(*words)
            assert there(number) == dict.fromkeys(names(number), number)
            held = names(number)
    killer.assert_spread()
    publish(kills + 2)
    succeed(*words)
    assert there(kills + 2) == dict.fromkeys(names(kills + 2), kills + 2)
    staged = [path for path in (place() / ".mcp-skills/stage", place().parent / "stage") if path.is_dir()]
    assert not [each for path in staged for each in path.iterdir()]


@pytest.mark.parametrize("own", [False, True])
def test_a_site(tmp_path: Path, own: bool) -> None:
    with Publisher() as site:

        def publish(number: int) -> None:
            site.entries = []
            for name in names(number):
                site.pack(name, version(name, number))

        def away(gone: bool) -> None:
            site.routes.pop("/.well-known/agent-skills/index.json", None)
            if gone:
                site.routes["/.well-known/agent-skills/index.json"] = b"HTTP/1.1 503 Away\r\ncontent-length: 0\r\n\r\n"

        if own:
            rounds("sites", site.url, tmp_path, publish, 24, output=tmp_path / "own")
        else:
            rounds("sites", site.url, tmp_path, publish, 20, away=away)


@pytest.mark.needs_program("git")
def test_a_folder_in_git(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "remotes" / "acme.git")

    def publish(number: int) -> None:
        files = {
            f"skills/{name}/{path}": held for name in names(number) for path, held in version(name, number).items()
        }
        upstream.commit(files)

    def away(gone: bool) -> None:
        shown, hidden = upstream.directory, upstream.directory.with_name("away")
        os.rename(*((shown, hidden) if gone else (hidden, shown)))

    rounds("git", f"{upstream.url}#skills", tmp_path, publish, 24, away=away)


@pytest.mark.needs_program("docker-registry")
def test_an_artifact_of_a_registry(tmp_path: Path) -> None:
    with docker_registry(tmp_path / "registry") as registry:

        def publish(number: int) -> None:
            root = tmp_path / "root" / str(number)
            for name in names(number):
                for path, (raw, executable) in version(name, number).items():
                    file = root / name / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(raw)
                    file.chmod(0o755 if executable else 0o644)
            succeed("push", str(root), registry.named())

        rounds("oci", registry.named(), tmp_path, publish, 12)
