"""Static sites: content, incremental writes, crashes, and protection of foreign files."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.publish import folder
from mcp_skills_server.publish.static import StaticSite
from publish.editions import SITE, parse_index, publication_of, verify
from wire import write_skill

DAY = 86_400
NEW_INDEX, OLD_INDEX = ".well-known/agent-skills/index.json", ".well-known/skills/index.json"


def write(root: Path, output: Path, **options: Any) -> list[str]:
    return [each.path for each in StaticSite(str(output), **options).write(publication_of(root))]


def check(root: Path, output: Path, **options: Any) -> list[str]:
    return [str(each) for each in StaticSite(str(output), **options).check(publication_of(root))]


def files(output: Path) -> dict[str, bytes]:
    return {path.relative_to(output).as_posix(): path.read_bytes() for path in output.rglob("*") if path.is_file()}


def mtimes(output: Path) -> dict[str, int]:
    """Return the modification times of a folder and everything in it."""
    return {str(path): path.stat().st_mtime_ns for path in (output, *output.rglob("*"))}


def tree_of(output: Path) -> tuple[bytes, bytes] | None:
    """Verify every file that the indexes name; return the two indexes, None without a tree."""
    tree = files(output)
    if not (output / ".well-known").exists():
        return None
    entries = parse_index(tree[NEW_INDEX])
    packed = {name: verify(each, tree[each.url.removeprefix(f"{SITE}/")]) for name, each in entries.items()}
    for each in json.loads(tree[OLD_INDEX])["skills"]:
        for path in each["files"]:
            assert tree[f".well-known/skills/{each['name']}/{path}"] == packed[each["name"]][path][0]
    return tree[NEW_INDEX], tree[OLD_INDEX]


def published_files(output: Path) -> tuple[bytes | None, bytes | None]:
    """Return the indexes of an interrupted run, after a check that every file they name exists.

    The old index has no digests, so its files may already be those of the next index.
    """
    tree = files(output)
    for entry in parse_index(tree[NEW_INDEX]).values() if NEW_INDEX in tree else ():
        verify(entry, tree[entry.url.removeprefix(f"{SITE}/")])
    for each in json.loads(tree.get(OLD_INDEX, b'{"skills": []}'))["skills"]:
        assert {f".well-known/skills/{each['name']}/{path}" for path in each["files"]} <= tree.keys()
    return tree.get(NEW_INDEX), tree.get(OLD_INDEX)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "lone")
    write_skill(tmp_path / "skills" / "more", references__a_md="a", references__b_md="b")
    write_skill(tmp_path / "skills" / "third", notes_md="notes")
    return tmp_path / "skills"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "public"


@pytest.mark.requirement("WK-1", "WK1-1", "WK1-3", "WK1-10", "X-18")
def test_tree_equals_publication_and_second_run_changes_nothing(root: Path, output: Path) -> None:
    publication = publication_of(root)
    items = publication.tree(publication.edition())
    expected = {item.path.lstrip("/"): item.read() for item in items}
    assert write(root, output) == sorted(expected)
    before = mtimes(output)
    tree = files(output)
    assert tree.keys() - expected.keys() == {".mcp-skills-server.json"}
    assert json.loads(tree[".mcp-skills-server.json"])["format"] == 2
    assert expected.items() <= tree.items()
    assert tree_of(output)
    assert write(root, output) == []
    assert mtimes(output) == before and files(output) == tree


def test_edit_rewrites_only_the_files_of_its_skill(root: Path, output: Path) -> None:
    write(root, output)
    (output / ".well-known/agent-skills/more/mine.md").write_bytes(b"foreign")
    before = mtimes(output)
    notes = root / "third" / "notes.md"
    status = notes.stat()
    notes.write_bytes(b"NOTES")  # of the same size and modification time
    os.utime(notes, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = write(root, output)
    assert {path.split("/")[2] for path in changed} == {"index.json", "third"}
    after = mtimes(output)
    rewritten = {str(output / path) for path in (*changed, ".mcp-skills-server.json")}
    kept = {path for path in before if Path(path).is_file()} - rewritten
    assert all(after[path] == before[path] for path in kept)
    assert tree_of(output)
    assert (output / ".well-known/skills/third/notes.md").read_bytes() == b"NOTES"


@pytest.mark.requirement("X-7")
def test_old_artifact_is_kept_for_seven_days(root: Path, output: Path) -> None:
    now = 1_000_000.0
    write(root, output, clock=lambda: now)
    old = {path: raw for path, raw in files(output).items() if path.endswith(".tar.gz")}
    (root / "third" / "notes.md").write_bytes(b"other")
    (root / "more" / "SKILL.md").unlink()
    write(root, output, clock=lambda: now + DAY)
    assert old.items() <= files(output).items()
    assert not (output / ".well-known" / "skills" / "more").exists()
    before = mtimes(output)
    assert write(root, output, clock=lambda: now + 8 * DAY - 1) == [] and mtimes(output) == before
    assert check(root, output, clock=lambda: now + 30 * DAY) == []
    assert write(root, output, clock=lambda: now + 8 * DAY) == []
    assert len(old.keys() & files(output).keys()) == 0 and tree_of(output)
    before = mtimes(output)
    assert write(root, output, clock=lambda: now + 9 * DAY) == [] and mtimes(output) == before


def test_check_lists_differences_and_writes_nothing(root: Path, output: Path, tmp_path: Path) -> None:
    assert len(check(root, output)) == 11 and not output.exists()
    write(root, output)
    assert check(root, output) == []
    (output / ".well-known/skills/more/references/a.md").write_bytes(b"tampered")
    (output / ".well-known/skills/more/references/b.md").unlink()
    (root / "more" / "references" / "a.md").write_bytes(b"A")
    (root / "third" / "notes.md").rename(root / "third" / "renamed.md")
    before = mtimes(output)
    lines = check(root, output)
    artifacts = [each for each in lines if "agent-skills/" in each and each.endswith(".tar.gz: missing")]
    assert len(artifacts) == 2
    assert lines == sorted(lines)
    assert [each for each in lines if each not in artifacts] == [
        ".well-known/agent-skills/index.json: different",
        ".well-known/skills/index.json: different",
        ".well-known/skills/more/references/a.md: different",
        ".well-known/skills/more/references/b.md: missing",
        ".well-known/skills/third/notes.md: left over",
        ".well-known/skills/third/renamed.md: missing",
    ]
    assert mtimes(output) == before
    write(root, output)
    assert check(root, output) == [] and tree_of(output)


@pytest.mark.requirement("WK-31", "WK-32", "WK-37", "WK-38")
def test_headers_file_is_written_and_removed(root: Path, output: Path) -> None:
    write(root, output)
    assert check(root, output, headers=True) == ["_headers: missing"]
    assert write(root, output, headers=True) == ["_headers"]
    text = (output / "_headers").read_text()
    assert check(root, output) == ["_headers: left over"]
    assert write(root, output) == ["_headers"] and not (output / "_headers").exists()
    # Hosts join the values of a header that two matching rules set, so no path may match twice.
    rules = re.findall(r"^(/.*)\n((?:  .*\n)+)", text, re.MULTILINE)
    for path in files(output).keys() - {".mcp-skills-server.json"}:
        found: list[str] = []
        for pattern, headers in rules:
            if re.fullmatch(re.sub(r":\w+", "[^/]+", pattern.replace("*", ".*")), f"/{path}"):
                found += re.findall(r"^  ([\w-]+):", headers, re.MULTILINE)
        assert len(found) == len({*found})
        assert {"Cache-Control", "X-Content-Type-Options"} <= {*found}


def test_foreign_file_is_not_overwritten(root: Path, output: Path) -> None:
    write(root, output)
    (root / "third" / "fresh.md").write_bytes(b"ours")
    for path in ("_headers", ".well-known/skills/third/fresh.md"):
        (output / path).write_bytes(b"mine")
        before = files(output)
        with pytest.raises(UsageError, match="not written by this program"):
            write(root, output, headers=True)
        assert files(output) == before
        (output / path).unlink()


def test_output_may_be_an_empty_folder_or_a_symlink_to_one(root: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for notes in (b"notes", b"other"):
        (root / "third" / "notes.md").write_bytes(notes)
        assert write(root, tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert tree_of(tmp_path / "real")


def test_invalid_record_is_refused(root: Path, output: Path) -> None:
    write(root, output)
    record = output / ".mcp-skills-server.json"
    before = files(output)
    for text in (
        "no JSON", "[]", '{"format": 1, "files": {}, "retired": {}}', '{"format": 2}',
        '{"format": 2, "files": 3, "retired": {}}', '{"format": 2, "files": {}, "retired": {"a": null}}',
        '{"format": 2, "files": {}, "retired": {"a": 1e999}}',
        '{"format": 2, "files": {}, "retired": {}, "begun": {"a": 3}}',
    ):  # fmt: skip
        record.write_text(text)
        with pytest.raises(UsageError, match="cannot be read"):
            write(root, output)
        assert files(output) == {**before, record.name: text.encode()}


@pytest.mark.skipif(sys.platform == "win32", reason="no flock there")
def test_locked_output_is_refused(root: Path, output: Path) -> None:
    import fcntl

    write(root, output)
    descriptor = os.open(output, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another process"):
        write(root, output)
    os.close(descriptor)
    assert write(root, output) == []


class Crash(BaseException):
    """Simulated end of the process, which no handler of Exception catches."""


def crash_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Raise Crash in place of every disk write after the first `steps`."""
    counter = itertools.count(1)

    def guard(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if next(counter) > steps:
                raise Crash
            return original(*arguments, **options)

        return step

    for name in ("replace", "unlink", "rmdir", "makedirs"):
        monkeypatch.setattr(os, name, guard(getattr(os, name)))
    monkeypatch.setattr(folder, "_write", guard(folder._write))


@pytest.mark.parametrize("fresh", [True, False])
def test_crash_at_any_step_leaves_a_valid_tree(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    other = tmp_path / "changed"
    write_skill(other / "third", body="# Changed\n", more_md="more")
    write_skill(other / "lone")
    changed = publication_of(other)
    new = (changed.edition().index, changed.edition().index_0_1)
    for steps in range(1, 400):
        output = tmp_path / f"run-{steps}"
        old: tuple[bytes, bytes] | tuple[None, None] | None = (None, None)
        if not fresh:
            write(root, output, headers=True, keep_days=0)
            old = tree_of(output)
        assert old
        site = StaticSite(str(output), headers=True, keep_days=0)
        crashed = False
        with monkeypatch.context() as patched:
            crash_after(patched, steps)
            try:
                site.write(changed)
            except Crash:
                crashed = True
        index, index_0_1 = published_files(output)
        assert index in (old[0], new[0]), f"step {steps}"
        assert index_0_1 in (old[1], new[1]), f"step {steps}"
        site = StaticSite(str(output), headers=True, keep_days=0)
        site.write(changed)
        assert tree_of(output) == new
        assert site.check(changed) == []
        names = {path.name for path in output.iterdir()}
        assert names == {".mcp-skills-server.json", ".well-known", "_headers"}
        assert not (output / ".well-known" / "skills" / "more").exists()
        if not crashed:
            break
    assert not crashed
    assert steps > 15


def test_lost_and_altered_files_are_restored(root: Path, output: Path) -> None:
    write(root, output)
    lost = [output / path for path in files(output) if path.startswith(".well-known/") and "third" in path]
    precious = output.with_name("precious")
    precious.write_bytes(b"other")
    for damage in ("removed", "overwritten", "replaced by a symlink"):
        for path in lost:
            path.unlink()
            if damage == "overwritten":
                path.write_bytes(b"other")
            elif damage == "replaced by a symlink":
                path.symlink_to(precious)
        assert len(write(root, output)) == len(lost) == 3
        assert check(root, output) == []
        assert tree_of(output)
        assert not any(map(Path.is_symlink, lost))
    assert precious.read_bytes() == b"other"


def add_to_record(output: Path, *paths: str, digests: bool = True) -> None:
    """Add these files to the record, with their digests or with those of other content."""
    record = output / ".mcp-skills-server.json"
    content = json.loads(record.read_bytes())
    for path in paths:
        raw = (output / path).read_bytes() if digests else b"something else"
        content["files"][path] = hashlib.sha256(raw).hexdigest()
    record.write_text(json.dumps(content))


@pytest.mark.parametrize("begun", [False, True])
def test_forged_record_causes_no_deletion_of_foreign_files(
    root: Path, output: Path, tmp_path: Path, begun: bool
) -> None:
    """Regression test: a forged record once deleted a foreign security.txt."""
    write(root, output, keep_days=0)
    outside = tmp_path / "outside" / "precious"
    outside.parent.mkdir()
    outside.write_bytes(b"p")
    (output / ".well-known/skills/linked").symlink_to(outside.parent)
    exact = [".well-known/security.txt", "index.html", "../outside/precious", ".well-known/skills/linked/precious"]
    altered = [".well-known/skills/more/mine.md", f".well-known/agent-skills/more/{'0' * 64}/mine.zip", "_headers"]
    for path in (*exact[:2], *altered):
        (output / path).parent.mkdir(parents=True, exist_ok=True)
        (output / path).write_bytes(b"theirs")
    add_to_record(output, *exact, ".well-known/skills/more/../../security.txt")
    add_to_record(output, *altered, digests=False)
    if begun:
        record = output / ".mcp-skills-server.json"
        content = json.loads(record.read_bytes())
        content["begun"] = {path: [digest] for path, digest in content["files"].items()}
        record.write_text(json.dumps(content | {"files": {}}))
    (root / "third" / "notes.md").write_bytes(b"other")
    write(root, output, keep_days=0)
    assert all((output / path).read_bytes() == b"theirs" for path in (*exact[:2], *altered))
    assert outside.read_bytes() == b"p" and tree_of(output)
    with pytest.raises(UsageError, match="_headers was not written by this program"):
        write(root, output, headers=True)


def test_file_and_folder_of_the_same_name_replace_each_other(root: Path, output: Path) -> None:
    notes = root / "third" / "notes.md"
    for _ in range(3):
        write(root, output)
        assert tree_of(output) and check(root, output) == []
        notes.unlink()
        (notes / "deep").mkdir(parents=True)
        (notes / "deep" / "a.md").write_bytes(b"a")
        write(root, output)
        assert tree_of(output) and check(root, output) == []
        shutil.rmtree(notes)
        notes.write_bytes(b"notes")


@pytest.mark.parametrize("folder", [".well-known", ".well-known/skills", ".well-known/skills/third"])
def test_symlink_in_the_output_is_not_followed(root: Path, output: Path, tmp_path: Path, folder: str) -> None:
    write(root, output)
    (output / folder).rename(tmp_path / "elsewhere")
    (output / folder).symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path / "elsewhere")
    (root / "third" / "notes.md").write_bytes(b"other")
    with pytest.raises(UsageError, match="is not a folder; move it away"):
        write(root, output)
    assert files(tmp_path / "elsewhere") == before
