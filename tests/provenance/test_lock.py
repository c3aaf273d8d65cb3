"""Lock files: format, one-line errors, and atomic replace."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.provenance.lock import LockedSource, parse, read, to_toml, write
from tables import each_row

DIGEST = "sha256:" + 64 * "a"
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
SKILLS = st.dictionaries(TEXT, st.just(DIGEST), max_size=4)
SOURCE = st.builds(LockedSource, TEXT.filter(bool), TEXT, SKILLS)
SOURCES = st.lists(SOURCE, max_size=4, unique_by=lambda each: (each.given, each.revision))


@given(SOURCES)
def test_parsing_returns_the_written_sources(sources: list[LockedSource]) -> None:
    assert parse(to_toml(sources)) == tuple(sources)


def test_lock_file_has_one_sorted_line_per_skill() -> None:
    text = to_toml([LockedSource("git+https://git.example/skills", "4c0c", {"b": DIGEST, "a/x": DIGEST})])
    assert text.splitlines()[1:] == [
        "version = 1", "", "[[source]]", 'from = "git+https://git.example/skills"', 'revision = "4c0c"', "",
        "[source.skills]", f'"a/x" = "{DIGEST}"', f'b = "{DIGEST}"',
    ]  # fmt: skip


SOURCE_TABLE = "version = 1\n[[source]]\n"


@each_row(("text", "message"), [
    ("", "version is missing"), ("version = 2\n", "version is 2"), ("version = 1\nversion = 1\n", "line 2"),
    ("version = 1\nmore = 1\n", "unknown keys: more"), ("version = 1\nsource = 3\n", "not a list of tables"),
    ("version = 1\nsource = [3]\n", "source 1 is not a table"),
    *((SOURCE_TABLE + entry, "source 1 needs 'from'")
      for entry in ("revision = 'x'\n", "from = ''\n", 'from = "a\\u0000"\n',
                    "from = 'x'\nrevision = 3\n", "from = 'x'\nskills = 3\n")),
    (SOURCE_TABLE + "from = 'x'\nextra = 3\n", "unknown keys: extra"),
    (SOURCE_TABLE + "from = 'x'\n[source.skills]\na = 'sha1:0'\n", "the digest of a"),
    (SOURCE_TABLE + "from = 'x'\n[source.skills]\na = 3\n", "the digest of a"),
    (SOURCE_TABLE + "from = 'x'\n[[source]]\nfrom = 'x'\n", "twice"), ("version = 1\nx = " + "[" * 2_000, "lock file"),
])  # fmt: skip
def test_malformed_lock_file_is_reported_in_one_line_with_its_path(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "skills.lock"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_or_too_large_lock_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "skills.lock"
    with pytest.raises(UsageError, match="'mcp-skills-server lock ROOT"):
        read(path)
    path.write_bytes(b"version = 1\n# \xff\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        read(path)
    for size, message in ((64 << 20, "not a valid lock file"), ((64 << 20) + 1, "more than 67,108,864 bytes")):
        os.truncate(path, size)
        with pytest.raises(UsageError, match=message):
            read(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        write(tmp_path / "none" / "skills.lock", [])


def test_lock_file_is_replaced_atomically_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "skills.lock"
    mask = os.umask(0o027)
    try:
        write(path, [])
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.write_text("old")
    path.chmod(0o604)
    with path.open() as before:
        write(path, [LockedSource("skills", "", {"a": DIGEST})])
        assert before.read() == "old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert read(path) == (LockedSource("skills", "", {"a": DIGEST}),)
    assert os.listdir(tmp_path) == ["skills.lock"]


def test_lock_file_that_is_a_link_is_refused_with_its_target(tmp_path: Path) -> None:
    """A clone may bring `skills.lock -> ~/.bashrc`, and choose the names of skills in it."""
    other, link = tmp_path / "other", tmp_path / "skills.lock"
    other.write_text("precious")
    link.symlink_to(other)
    with pytest.raises(UsageError, match=f"a link to {re.escape(str(other))}"):
        write(link, [LockedSource("skills", "", {"a": DIGEST})])
    assert other.read_text() == "precious"
