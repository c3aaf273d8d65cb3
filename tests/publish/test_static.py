"""The tree of files: what the live server answers, whatever ends a run, and nobody else's files touched."""

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
from publish.editions import SITE, offered, proved
from publish.editions import published as publication
from wire import write_skill

DAY = 86_400
NEW_INDEX, OLD_INDEX = ".well-known/agent-skills/index.json", ".well-known/skills/index.json"


def write(root: Path, output: Path, **options: Any) -> list[str]:
    return [each.path for each in StaticSite(str(output), **options).write(publication(root))]


def check(root: Path, output: Path, **options: Any) -> list[str]:
    return [str(each) for each in StaticSite(str(output), **options).check(publication(root))]


def files(output: Path) -> dict[str, bytes]:
    return {path.relative_to(output).as_posix(): path.read_bytes() for path in output.rglob("*") if path.is_file()}


def times(output: Path) -> dict[str, int]:
    """When everything in a folder, and the folder itself, was last written."""
    return {str(path): path.stat().st_mtime_ns for path in (output, *output.rglob("*"))}


def whole(output: Path) -> tuple[bytes, bytes] | None:
    """Prove everything that the indexes of a folder name; the indexes, None when there is no tree."""
    tree = files(output)
    if not (output / ".well-known").exists():
        return None
    entries = offered(tree[NEW_INDEX])
    packed = {name: proved(each, tree[each.url.removeprefix(f"{SITE}/")]) for name, each in entries.items()}
    for each in json.loads(tree[OLD_INDEX])["skills"]:
        for path in each["files"]:
            assert tree[f".well-known/skills/{each['name']}/{path}"] == packed[each["name"]][path][0]
    return tree[NEW_INDEX], tree[OLD_INDEX]


def served(output: Path) -> tuple[bytes | None, bytes | None]:
    """The indexes of a folder in which a run was ended; everything that they name is there.

    Files of the old index have no digest there: they may already be those of the index to come.
    """
    tree = files(output)
    for entry in offered(tree[NEW_INDEX]).values() if NEW_INDEX in tree else ():
        proved(entry, tree[entry.url.removeprefix(f"{SITE}/")])
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
def test_a_tree_is_the_publication_and_a_record_and_a_second_run_changes_nothing(root: Path, output: Path) -> None:
    made = publication(root)
    expected = {item.path.lstrip("/"): item.read() for item in made.tree(made.edition())}
    assert write(root, output) == sorted(expected)
    before, bytes_before = times(output), files(output)
    assert bytes_before.keys() - expected.keys() == {".mcp-skills-server.json"}
    assert json.loads(bytes_before[".mcp-skills-server.json"])["format"] == 2  # which later versions read as well
    assert expected.items() <= bytes_before.items() and whole(output)
    assert write(root, output) == []
    assert times(output) == before and files(output) == bytes_before


def test_an_edit_rewrites_only_its_own_files(root: Path, output: Path) -> None:
    write(root, output)
    (output / ".well-known/agent-skills/more/mine.md").write_bytes(b"somebody's own, which stays as it is")
    before, notes = times(output), root / "third" / "notes.md"
    written = notes.stat()
    notes.write_bytes(b"NOTES")  # of the same size and time
    os.utime(notes, ns=(written.st_atime_ns, written.st_mtime_ns))
    changed = write(root, output)
    assert {path.split("/")[2] for path in changed} == {"index.json", "third"}
    after = times(output)
    rewritten = {str(output / path) for path in (*changed, ".mcp-skills-server.json")}
    assert all(after[path] == before[path] for path in before if Path(path).is_file() and path not in rewritten)
    assert whole(output) and (output / ".well-known/skills/third/notes.md").read_bytes() == b"NOTES"


@pytest.mark.requirement("X-7")
def test_an_old_artifact_stays_for_some_days(root: Path, output: Path) -> None:
    now = 1_000_000.0
    write(root, output, clock=lambda: now)
    old = {path: raw for path, raw in files(output).items() if path.endswith(".tar.gz")}
    (root / "third" / "notes.md").write_bytes(b"other")
    (root / "more" / "SKILL.md").unlink()
    write(root, output, clock=lambda: now + DAY)
    assert old.items() <= files(output).items()
    assert not (output / ".well-known" / "skills" / "more").exists()
    before = times(output)
    assert write(root, output, clock=lambda: now + 8 * DAY - 1) == [] and times(output) == before
    assert check(root, output, clock=lambda: now + 30 * DAY) == []
    assert write(root, output, clock=lambda: now + 8 * DAY) == []
    assert len(old.keys() & files(output).keys()) == 0 and whole(output)
    before = times(output)
    assert write(root, output, clock=lambda: now + 9 * DAY) == [] and times(output) == before


def test_a_check_names_what_differs_and_writes_nothing(root: Path, output: Path, tmp_path: Path) -> None:
    assert len(check(root, output)) == 11 and not output.exists()
    write(root, output)
    assert check(root, output) == []
    (output / ".well-known/skills/more/references/a.md").write_bytes(b"tampered")
    (output / ".well-known/skills/more/references/b.md").unlink()
    (root / "more" / "references" / "a.md").write_bytes(b"A")
    (root / "third" / "notes.md").rename(root / "third" / "renamed.md")
    before, bytes_before = times(output), files(output)
    reported = check(root, output)
    artifacts = [each for each in reported if "agent-skills/" in each and each.endswith(".tar.gz: missing")]
    assert len(artifacts) == 2 and reported == sorted(reported)
    assert [each for each in reported if each not in artifacts] == [
        ".well-known/agent-skills/index.json: different",
        ".well-known/skills/index.json: different",
        ".well-known/skills/more/references/a.md: different",
        ".well-known/skills/more/references/b.md: missing",
        ".well-known/skills/third/notes.md: left over",
        ".well-known/skills/third/renamed.md: missing",
    ]
    assert times(output) == before and files(output) == bytes_before
    write(root, output)
    assert check(root, output) == [] and whole(output)


@pytest.mark.requirement("WK-31", "WK-32", "WK-37", "WK-38")
def test_headers_for_hosts_are_written_and_taken_away(root: Path, output: Path) -> None:
    write(root, output)
    assert check(root, output, headers=True) == ["_headers: missing"]
    assert write(root, output, headers=True) == ["_headers"]
    text = (output / "_headers").read_text()
    assert check(root, output) == ["_headers: left over"]
    assert write(root, output) == ["_headers"] and not (output / "_headers").exists()
    # A host joins what several rules say of one header, so none may stand in two rules that fit one path.
    rules = re.findall(r"^(/.*)\n((?:  .*\n)+)", text, re.MULTILINE)
    for path in files(output).keys() - {".mcp-skills-server.json"}:
        found: list[str] = []
        for pattern, headers in rules:
            if re.fullmatch(re.sub(r":\w+", "[^/]+", pattern.replace("*", ".*")), f"/{path}"):
                found += re.findall(r"^  ([\w-]+):", headers, re.MULTILINE)
        assert len(found) == len({*found}) and {"Cache-Control", "X-Content-Type-Options"} <= {*found}


# What is not ours


def test_a_folder_of_somebody_else_is_refused_and_stays(root: Path, output: Path) -> None:
    output.mkdir()
    (output / "index.html").write_bytes(b"mine")
    with pytest.raises(UsageError, match="not written by this program"):
        write(root, output)
    assert files(output) == {"index.html": b"mine"}
    below = output / "index.html" / "below"
    for place, said in ((output / "index.html", "not a folder; give"), (below, f"cannot be written .*: {below}")):
        with pytest.raises(UsageError, match=f"^[^\n]*{said}[^\n]*$"):
            write(root, place)


def test_a_file_of_another_is_not_written_over(root: Path, output: Path) -> None:
    write(root, output)
    (root / "third" / "fresh.md").write_bytes(b"ours")
    for path in ("_headers", ".well-known/skills/third/fresh.md"):
        (output / path).write_bytes(b"mine")
        before = files(output)
        with pytest.raises(UsageError, match="not written by this program"):
            write(root, output, headers=True)
        assert files(output) == before
        (output / path).unlink()


def test_an_empty_folder_and_a_link_to_one_are_taken(root: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for notes in (b"notes", b"other"):
        (root / "third" / "notes.md").write_bytes(notes)
        assert write(root, tmp_path / "link")
        assert (tmp_path / "link").is_symlink() and whole(tmp_path / "real")


def test_a_record_that_cannot_be_read_is_told(root: Path, output: Path) -> None:
    write(root, output)
    record, before = output / ".mcp-skills-server.json", files(output)
    for said in (
        "no JSON", "[]", '{"format": 1, "files": [], "retired": {}}', '{"format": 2}',
        '{"format": 2, "files": 3, "retired": {}}', '{"format": 2, "files": {}, "retired": {"a": null}}',
        '{"format": 2, "files": {}, "retired": {"a": 1e999}}',
    ):  # fmt: skip
        record.write_text(said)
        with pytest.raises(UsageError, match="cannot be read"):
            write(root, output)
        assert files(output) == {**before, record.name: said.encode()}
    record.with_suffix(".next").write_text('{"format": 2, "files": {"a": 3}}')
    record.write_bytes(before[record.name])
    with pytest.raises(UsageError, match="cannot be read"):
        write(root, output)


@pytest.mark.skipif(sys.platform == "win32", reason="no flock there")
def test_two_publishers_do_not_meet(root: Path, output: Path) -> None:
    import fcntl

    write(root, output)
    descriptor = os.open(output, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another process"):
        write(root, output)
    os.close(descriptor)
    assert write(root, output) == []


# Crashes


class Crash(BaseException):
    """The end of the process at this step, without its clearing up."""


def crash_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Have no change of the disk happen after so many."""
    made = itertools.count(1)

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if next(made) > steps:
                raise Crash
            return real(*arguments, **options)

        return step

    for owner, names in ((os, ("replace", "unlink", "rmdir", "makedirs")), (folder, ("_remove", "_write"))):
        for name in names:
            monkeypatch.setattr(owner, name, guarded(getattr(owner, name)))


@pytest.mark.parametrize("fresh", [True, False])
def test_a_crash_leaves_a_whole_tree(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool) -> None:
    other = tmp_path / "changed"
    write_skill(other / "third", body="# Changed\n", more_md="more")
    write_skill(other / "lone")
    made = publication(other)
    new = (made.edition().index, made.edition().index_0_1)
    crashed, at = True, 0
    while crashed:
        output, at = tmp_path / f"run-{at}", at + 1
        if not fresh:
            write(root, output, headers=True, keep_days=0)
        old = (None, None) if fresh else whole(output)
        assert old and at < 400
        with monkeypatch.context() as patched:
            crash_after(patched, at)
            try:
                StaticSite(str(output), headers=True, keep_days=0).write(made)
                crashed = False
            except Crash:
                pass
        found = served(output)
        assert all(each in both for each, both in zip(found, zip(old, new, strict=True), strict=True)), f"step {at}"
        StaticSite(str(output), headers=True, keep_days=0).write(made)
        assert whole(output) == new
        assert StaticSite(str(output), headers=True, keep_days=0).check(made) == []
        assert {path.name for path in output.iterdir()} == {".mcp-skills-server.json", ".well-known", "_headers"}
        assert not (output / ".well-known" / "skills" / "more").exists()
    assert at > 15


def test_what_is_not_there_any_more_is_put_again(root: Path, output: Path) -> None:
    write(root, output)
    lost = [output / path for path in files(output) if path.startswith(".well-known/") and "third" in path]
    precious = output.with_name("precious")
    precious.write_bytes(b"other")
    for break_it in (Path.exists, lambda path: path.write_bytes(b"other"), lambda path: path.symlink_to(precious)):
        for path in lost:
            path.unlink()
            break_it(path)
        assert len(write(root, output)) == len(lost) == 3
        assert check(root, output) == [] and whole(output) and not any(map(Path.is_symlink, lost))
    assert precious.read_bytes() == b"other"


# What a record may claim


def claim(output: Path, *paths: str, digests: bool = True) -> None:
    """Have the record name these files too, with their right digests or with none that fits."""
    place = output / ".mcp-skills-server.json"
    said = json.loads(place.read_bytes())
    for path in paths:
        raw = (output / path).read_bytes() if digests else b"something else"
        said["files"][path] = hashlib.sha256(raw).hexdigest()
    place.write_text(json.dumps(said))


@pytest.mark.parametrize("journal", [False, True])
def test_a_planted_record_costs_nobody_a_file(root: Path, output: Path, tmp_path: Path, journal: bool) -> None:
    """11.22: it had other people's security.txt deleted."""
    write(root, output, keep_days=0)
    outside = tmp_path / "outside" / "precious"
    outside.parent.mkdir()
    outside.write_bytes(b"p")
    (output / ".well-known/skills/linked").symlink_to(outside.parent)
    right = [".well-known/security.txt", "index.html", "../outside/precious", ".well-known/skills/linked/precious"]
    wrong = [".well-known/skills/more/mine.md", f".well-known/agent-skills/more/{'0' * 64}/mine.zip", "_headers"]
    for path in (*right[:2], *wrong):
        (output / path).parent.mkdir(parents=True, exist_ok=True)
        (output / path).write_bytes(b"theirs")
    claim(output, *right, ".well-known/skills/more/../../security.txt")
    claim(output, *wrong, digests=False)
    if journal:
        said = json.loads((output / ".mcp-skills-server.json").read_bytes())
        said["files"] = {path: [digest] for path, digest in said["files"].items()}
        (output / ".mcp-skills-server.next").write_text(json.dumps(said))
    (root / "third" / "notes.md").write_bytes(b"other")
    write(root, output, keep_days=0)
    assert all((output / path).read_bytes() == b"theirs" for path in (*right[:2], *wrong))
    assert outside.read_bytes() == b"p" and whole(output)
    with pytest.raises(UsageError, match="_headers was not written by this program"):
        write(root, output, headers=True)


def test_a_file_becomes_a_folder_and_a_folder_a_file(root: Path, output: Path) -> None:
    notes = root / "third" / "notes.md"
    for _ in range(3):
        write(root, output)
        assert whole(output) and check(root, output) == []
        notes.unlink()
        (notes / "deep").mkdir(parents=True)
        (notes / "deep" / "a.md").write_bytes(b"a")
        write(root, output)
        assert whole(output) and check(root, output) == []
        shutil.rmtree(notes)
        notes.write_bytes(b"notes")


@pytest.mark.parametrize("folder", [".well-known", ".well-known/skills", ".well-known/skills/third"])
def test_nothing_is_written_through_a_link(root: Path, output: Path, tmp_path: Path, folder: str) -> None:
    write(root, output)
    (output / folder).rename(tmp_path / "elsewhere")
    (output / folder).symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path / "elsewhere")
    (root / "third" / "notes.md").write_bytes(b"other")
    with pytest.raises(UsageError, match="is not a folder; move it away"):
        write(root, output)
    assert files(tmp_path / "elsewhere") == before
