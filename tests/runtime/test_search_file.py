"""The index of a search that one process leaves to the next: it saves work, and changes nothing that anybody finds."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from bench.search import plausible, queries

from catalog.forest import DEADLINE, loaded, plant, skill_md, skills, together
from catalog.unsafe_files import a_link, folder_writable_by_others, writable_by_others
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime import search_index, search_keeper
from mcp_skills_server.runtime.full_text import FullText
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.search import Search
from mcp_skills_server.runtime.search_file import SearchFile
from mcp_skills_server.runtime.search_index import SearchIndex
from wire import FIXTURES

FRUIT = ("apple", "pear", "plum", "quince", "medlar", "cherry")
FILES = {
    **{f"{each}/SKILL.md": skill_md(each, body=f"# {each.title()} cake\n\nBegin with the {each}.") for each in FRUIT},
    "umlaut/SKILL.md": skill_md("umlaut", "title: Über die Grüße", body="# 図書館の検索\n\nSo."),
    "broken/SKILL.md": "---\nname: [\n---\n",
}
QUESTIONS = (
    *FRUIT,
    "aple",
    "apple/cake",
    "how is a cake of quince made",
    "grusse",
    "図書館",
    "begin",
    "nothing",
    "tell when",
)
HEADER = 512


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return plant(tmp_path / "root", FILES)


@pytest.fixture
def files(tmp_path: Path) -> Index:
    return Index(tmp_path / "cache" / "index", least=1)


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the skills whose texts an index is made of."""
    noted: list[str] = []
    real = search_index.texts_of

    def note(skill: Skill) -> tuple[str, ...]:
        noted.append(skill.path)
        return real(skill)

    monkeypatch.setattr(search_index, "texts_of", note)
    return noted


def answers(search: Search, questions: Sequence[str] = QUESTIONS) -> list[list[tuple[str, float | None]]]:
    """What is found, with the scores, in its order."""
    return [[(hit.skill.path, hit.score) for hit in search.scored(each, 20, _any)] for each in questions]


def _any(_: Skill) -> bool:
    return True


def first(top: Path, files: Index | None) -> Search:
    """The search of a process that has asked nothing yet."""
    return Search(loaded(top, index=files))


def process(top: Path, files: Index) -> Search:
    """What a process does: it answers a question, and leaves its index."""
    search = first(top, files)
    search.find("apple", 5, _any)
    written()
    return search


def written() -> None:
    """Wait until nobody writes an index."""
    for thread in threading.enumerate():
        if thread.name == "skills-search-index" and thread.is_alive():  # and not another's that only begins
            thread.join(DEADLINE)
            assert not thread.is_alive()


def file_of(top: Path, files: Index) -> Path:
    return SearchFile(files, [str(top)]).path


def test_the_next_process_finds_the_same_and_indexes_no_skill(top: Path, files: Index, indexed: list[str]) -> None:
    process(top, files)
    assert file_of(top, files).is_file() and "apple" in indexed
    indexed.clear()
    kept = first(top, files)
    found = answers(kept)
    assert indexed == []
    assert found == answers(first(top, None)) and any(found)
    assert [each.path for each in kept.nearest("aple", 2, _any)] == ["apple"]


def test_all_questions_of_the_benchmark_have_the_same_answers_and_scores(tmp_path: Path, files: Index) -> None:
    top = tmp_path / "root"
    shutil.copytree(FIXTURES, top)
    for path, skill in plausible(300).items():
        fields = json.dumps(dict(skill.frontmatter))
        body = "\n\n".join((skill.reading.opening_text, *(f"## {each}" for each in skill.reading.headings)))
        plant(top, {f"generated/{path}/SKILL.md": f"---\n{fields}\n---\n{body}\n"})
    process(top, files)
    asked = [each.query for each in queries()]
    assert len(asked) >= 200
    assert answers(first(top, files), asked) == answers(first(top, None), asked)


def test_only_what_changed_between_two_processes_is_indexed(top: Path, files: Index, indexed: list[str]) -> None:
    process(top, files)
    plant(top, {"pear/SKILL.md": skill_md("pear", body="Now of lemons."), **skills("new/lemon")})
    shutil.rmtree(top / "plum")
    indexed.clear()
    kept = first(top, files)
    questions = (*QUESTIONS, "lemon", "lemons", "new")
    found = answers(kept, questions)
    assert sorted(indexed) == ["new/lemon", "pear"]
    assert found == answers(first(top, None), questions)
    written()
    assert answers(first(top, files), questions) == found


def test_a_kept_index_follows_its_registry(top: Path, files: Index) -> None:
    process(top, files)
    kept = first(top, files)
    kept.find("apple", 5, _any)
    file_of(top, files).unlink()
    registry = kept._skill_set  # pyright: ignore[reportPrivateUsage]
    assert isinstance(registry, Registry)
    for change in ({"apple/SKILL.md": skill_md("apple", body="Now of figs.")}, skills("fig"), skills("fig/inner")):
        plant(top, change)
        registry.refresh()
        assert answers(kept, (*QUESTIONS, "figs", "inner")) == answers(first(top, None), (*QUESTIONS, "figs", "inner"))


def test_texts_are_looked_up_once_however_many_skills_changed(
    top: Path, files: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(top, skills(*(f"more/tool-{number}" for number in range(80))))
    process(top, files)
    for number in range(30):
        plant(top, {f"more/tool-{number}/SKILL.md": skill_md(f"tool-{number}", body="Now of figs.")})
    read: list[int] = []
    real = json.loads
    monkeypatch.setattr(json, "loads", lambda raw: [read.append(len(raw)), real(raw)][1])
    search = first(top, files)
    read.clear()
    assert len(search.find("figs", 100, _any)) == 30
    assert len(read) < 30 + 15  # a record for each that changed, and the parts of the file
    monkeypatch.undo()
    assert answers(search) == answers(first(top, None))


def test_of_other_skills_the_index_is_made_anew(top: Path, files: Index, indexed: list[str]) -> None:
    process(top, files)
    shutil.rmtree(top)
    plant(top, skills(*(f"other-{each}" for each in FRUIT), "apple"))
    indexed.clear()
    assert answers(first(top, files)) == answers(first(top, None))
    assert len(indexed) == 2 * 7


def test_it_is_written_again_when_a_share_has_changed(top: Path, files: Index) -> None:
    plant(top, skills(*(f"more/tool-{number}" for number in range(80))))
    process(top, files)
    path = file_of(top, files)
    before = path.stat().st_ino, path.read_bytes()
    process(top, files)
    plant(top, {"apple/SKILL.md": skill_md("apple", body="Now of figs.")})
    process(top, files)
    assert (path.stat().st_ino, path.read_bytes()) == before
    plant(top, skills("fig", "date", "olive", "grape"))
    process(top, files)
    assert path.read_bytes() != before[1]


# What must not be used


def rewrite(
    path: Path,
    image: Callable[[bytes], bytes] = lambda raw: raw,
    lines: Callable[[list[bytes]], list[bytes]] = lambda lines: lines,
) -> None:
    """Change parts of the file, with the checksum that belongs to them."""
    raw = path.read_bytes()
    fields = json.loads(raw[:HEADER])
    end = HEADER + fields["image"]
    begin = fields["rest"]
    made, rest = image(raw[HEADER:end]), b"".join(b"%b\n" % each for each in lines(raw[begin:].splitlines()))
    body = made + raw[end:begin] + rest
    fields |= {"image": len(made), "rest": HEADER + len(made) + begin - end, "length": HEADER + len(body)}
    fields["sha256"] = hashlib.sha256(made + rest).hexdigest()
    path.write_bytes(json.dumps(fields).encode().ljust(HEADER - 1) + b"\n" + body)


def with_field(path: Path, **changed: object) -> None:
    raw = path.read_bytes()
    path.write_bytes(json.dumps({**json.loads(raw[:HEADER]), **changed}).encode().ljust(HEADER - 1) + raw[HEADER - 1 :])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 4
    path.write_bytes(raw)


def a_bit_of_the_database(path: Path) -> None:
    flip(path, HEADER + 5_000)


def a_bit_of_the_rest(path: Path) -> None:
    flip(path, -9)


def a_bit_of_the_header(path: Path) -> None:
    flip(path, 3)


def other_version(path: Path) -> None:
    with_field(path, code="older")


def other_catalogue(path: Path) -> None:
    with_field(path, roots="0" * 64)


def lengths_that_mean_nothing(path: Path) -> None:
    with_field(path, image=-1)


def lengths_of_another_kind(path: Path) -> None:
    with_field(path, rest=[])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def nested(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def no_database(path: Path) -> None:
    rewrite(path, image=lambda raw: b"x" * len(raw))


def changed_by(path: Path, *statements: str) -> None:
    def change(raw: bytes) -> bytes:
        database = sqlite3.connect(":memory:", isolation_level=None)
        database.deserialize(raw)
        for each in statements:
            database.execute(each)
        made = database.serialize()
        database.close()
        return made

    rewrite(path, image=change)


def a_trigger(path: Path) -> None:
    changed_by(path, "CREATE TRIGGER t AFTER INSERT ON names BEGIN DELETE FROM names; END")


def a_view_for_a_table(path: Path) -> None:
    changed_by(path, "DROP TABLE names", "CREATE VIEW names AS SELECT 'apple' AS name, 1 AS row")


def a_table_too_few(path: Path) -> None:
    changed_by(path, "DROP TABLE openings")


def a_table_of_another_shape(path: Path) -> None:
    changed_by(path, "DROP TABLE words", "CREATE TABLE words(name)")


def a_row_of_nobody(path: Path) -> None:
    changed_by(path, "UPDATE names SET row = row + 1000")


def a_path_twice(path: Path) -> None:
    def change(lines: list[bytes]) -> list[bytes]:
        paths, digests = json.loads(lines[1]), json.loads(lines[2])
        twice = ([each[0], each[0], *each[2:]] for each in (paths, digests))
        return [lines[0], *(json.dumps(each).encode() for each in twice), *lines[3:]]

    rewrite(path, lines=change)


def lines_of_another_shape(path: Path) -> None:
    rewrite(path, lines=lambda lines: [b"[[1]]", b"[{}]", *lines[2:]])


def a_line_too_few(path: Path) -> None:
    rewrite(path, lines=lambda lines: lines[1:])


@pytest.mark.parametrize(
    "spoil",
    [
        cut, a_bit_of_the_database, a_bit_of_the_rest, a_bit_of_the_header, other_version, other_catalogue,
        lengths_that_mean_nothing, lengths_of_another_kind, empty, nested, no_database, a_trigger, a_view_for_a_table,
        a_table_too_few, a_table_of_another_shape, a_row_of_nobody, a_path_twice, lines_of_another_shape,
        a_line_too_few, writable_by_others, folder_writable_by_others, a_link,
    ],
)  # fmt: skip
def test_what_must_not_be_used_is_passed_over_with_one_line(
    top: Path, files: Index, indexed: list[str], caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    process(top, files)
    path = file_of(top, files)
    spoil(path)
    indexed.clear()
    with caplog.at_level(logging.INFO):
        found = answers(first(top, files))
        written()
    assert len([line for line in caplog.messages if line.startswith("the search index of an earlier start")]) == 1
    assert {*FRUIT} <= {*indexed}
    assert found == answers(first(top, None))
    if spoil is not folder_writable_by_others:  # only its owner can say that it is his alone
        process(top, files)
        indexed.clear()
        assert answers(first(top, files)) == found and indexed == []


def test_a_file_that_others_may_write_is_not_used(top: Path, files: Index, indexed: list[str]) -> None:
    process(top, files)
    changed_by(file_of(top, files), "UPDATE names SET name = 'plum' WHERE name = 'apple'")
    assert [found.path for found in first(top, files).find("plum", 5, _any)][:1] == ["apple"]  # if it were the user's
    file_of(top, files).chmod(0o622)
    indexed.clear()
    assert [found.path for found in first(top, files).find("plum", 5, _any)] == ["plum"]
    assert "plum" in indexed


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_used(top: Path, files: Index, indexed: list[str]) -> None:
    process(top, files)
    os.chown(file_of(top, files), 65534, 65534)
    indexed.clear()
    assert answers(first(top, files)) == answers(first(top, None))
    assert {*FRUIT} <= {*indexed}


def test_a_row_of_a_skill_that_is_not_there_shows_nothing(top: Path, files: Index) -> None:
    plant(top, skills("secret"))
    process(top, files)
    shutil.rmtree(top / "secret")
    kept = first(top, files)
    assert kept.find("secret", 5, _any) == kept.nearest("secret", 5, _any) == []


def test_texts_that_were_changed_take_no_row_out(top: Path, files: Index, caplog: pytest.LogCaptureFixture) -> None:
    process(top, files)
    path = file_of(top, files)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"Begin with the pear", b"Begin with the bear"))
    assert path.read_bytes() != raw
    assert answers(first(top, files)) == answers(first(top, None))  # nobody reads them
    shutil.rmtree(top / "pear")
    with caplog.at_level(logging.INFO):
        assert answers(first(top, files)) == answers(first(top, None))
    assert [line for line in caplog.messages if "a part of it means nothing" in line]


@pytest.mark.parametrize("spans", [[1 << 62], [HEADER, 1 << 62], [1 << 62, HEADER], [0, 0], [1 << 400, 1 << 401]])
def test_texts_that_lie_nowhere_in_the_file_take_no_row_out(
    top: Path, files: Index, caplog: pytest.LogCaptureFixture, spans: list[int]
) -> None:
    process(top, files)
    path = file_of(top, files)

    def change(lines: list[bytes]) -> list[bytes]:
        ends = json.loads(lines[-2])
        return [*lines[:-2], json.dumps((spans * len(ends))[: len(ends)]).encode(), lines[-1]]

    rewrite(path, lines=change)
    for each in FRUIT[:2]:
        shutil.rmtree(top / each)
    with caplog.at_level(logging.INFO):
        assert answers(first(top, files)) == answers(first(top, None))
    assert len([line for line in caplog.messages if "a part of it means nothing; it is written anew" in line]) == 1


# Where and when it is written


def test_what_is_written_is_the_users_alone(top: Path, files: Index) -> None:
    process(top, files)
    path = file_of(top, files)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_two_processes_at_once(top: Path, files: Index) -> None:
    expected = answers(first(top, None))

    def run() -> None:
        for _ in range(4):
            assert answers(process(top, files)) == expected
            file_of(top, files).unlink(missing_ok=True)

    together(run, run, run)
    process(top, files)
    assert [each.suffix for each in file_of(top, files).parent.iterdir()] == [".search"]


def test_of_two_that_looked_at_the_same_time_one_writes(top: Path, files: Index) -> None:
    other = SearchFile(files, [str(top)])
    search = first(top, files)

    def leave(skill: Skill) -> bool:
        """Another process writes while this one answers."""
        if other.identity is None:
            index = SearchIndex()
            index.follow(loaded(top).snapshot)
            assert other.save(index.copy, lambda: False)
        return _any(skill)

    search.find("apple", 5, leave)
    theirs = other.identity
    written()
    assert other.identity == theirs


@pytest.mark.parametrize("least", [0, 1000])
def test_without_a_place_to_write_or_with_too_few_skills_nothing_is_left(top: Path, tmp_path: Path, least: int) -> None:
    plant(tmp_path, {"file": ""})
    files = Index(tmp_path / "file" / "index" if not least else tmp_path / "index", least)
    assert answers(process(top, files)) == answers(first(top, None))
    assert not (tmp_path / "index").exists()


def test_an_end_leaves_nothing_half_written(top: Path, files: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_keeper, "_STEP_S", DEADLINE * 10)
    search = first(top, files)
    search.find("apple", 5, _any)
    search.close()
    written()
    assert [*files.folder.path.iterdir()] == []
    assert answers(search) == answers(first(top, None))
    search.close()


def test_the_end_of_a_runtime_ends_the_writing(top: Path, files: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_keeper, "_STEP_S", DEADLINE * 10)
    registry = loaded(top, index=files)
    with Runtime(registry) as runtime:
        runtime.searches.of(registry).find("apple", 5, _any)
    written()
    assert [*files.folder.path.iterdir()] == []


def test_a_full_disk_is_no_matter(top: Path, files: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object, __: object) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(FullText, "copy_to", full)
    assert answers(process(top, files)) == answers(first(top, None))
    assert [*files.folder.path.iterdir()] == []


def test_of_a_registry_with_a_gate_nothing_is_kept(top: Path, files: Index) -> None:
    registry = Registry([top], quiet_s=0, index=files, gate=lambda _registry, _skill: None)
    registry.load()
    Search(registry).find("apple", 5, _any)
    written()
    assert not files.folder.path.exists()


def test_what_grants_leave_is_not_kept_and_nothing_else_is_found(top: Path, files: Index, indexed: list[str]) -> None:
    process(top, files)
    before = file_of(top, files).read_bytes()
    registry = loaded(top, index=files)
    some = Views(registry, Grants([Grant(("*",), (Pattern("apple"), Pattern("pear")))], local=False)).of(None)
    indexed.clear()
    search = Search(some)
    assert {path for each in answers(search) for path, _ in each} == {"apple", "pear"}
    assert {*indexed} == {"apple", "pear"}
    shutil.rmtree(top / "pear")
    registry.refresh()
    assert {path for each in answers(search) for path, _ in each} == {"apple"}
    written()
    assert file_of(top, files).read_bytes() == before
    indexed.clear()
    whole = Views(registry, Grants([Grant(("*",), (Pattern("**"),))], local=False)).of(None)
    assert Search(whole).find("plum", 5, _any)[0].path == "plum" and indexed == []


def test_before_the_skills_are_read_nothing_is_looked_at(top: Path, files: Index, indexed: list[str]) -> None:
    process(top, files)
    registry = Registry([top], quiet_s=0, index=files)
    search = Search(registry)
    assert search.find("apple", 5, _any) == []
    registry.load()
    indexed.clear()
    assert [found.path for found in search.find("apple", 1, _any)] == ["apple"]
    assert {*FRUIT} <= {*indexed}
