"""`new`: what it makes is valid, and what is there stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.cli import cli
from mcp_skills_server.commands.welcome import bundle, new
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import frontmatter
from mcp_skills_server.validation import rules


def make(*arguments: str | Path) -> Result:
    return CliRunner().invoke(new, [str(each) for each in arguments])


def refused(*arguments: str | Path) -> str:
    """The one line that the command line prints before it exits with 2."""
    done = make(*arguments)
    assert isinstance(done.exception, UsageError) and done.stdout == ""
    assert len(str(done.exception).splitlines()) == 1
    return str(done.exception)


@pytest.mark.parametrize("name", ["refunds", "a", "x" * 64, "yes", "null", "123", "1e3", "0755", "on", "csv-2-json"])
def test_what_it_makes_is_valid_and_says_what_is_still_to_be_written(tmp_path: Path, name: str) -> None:
    done = make(name, "--directory", tmp_path / "my skills")
    assert done.exit_code == 0, done.output
    skill = tmp_path / "my skills" / name
    assert sorted(path.relative_to(skill).as_posix() for path in skill.rglob("*") if path.is_file()) == [
        "SKILL.md",
        "references/details.md",
    ]
    assert os.listdir(skill.parent) == [name]
    seen = CliRunner().invoke(cli, ["validate", str(skill), "--strict", "--format", "json"], standalone_mode=False)
    found = json.loads(seen.stdout)["problems"]
    assert {(each["code"], each["severity"]) for each in found} == {("placeholder", "warning")}
    assert [each["line"] for each in found] == [3, 10]
    assert seen.return_value == 1


def test_what_its_author_has_written_is_no_placeholder(tmp_path: Path) -> None:
    make("refunds", "--directory", tmp_path, "--description", "Pays money back. Use when a buyer asks for a refund.")
    skill = tmp_path / "refunds" / "SKILL.md"
    begun = skill.read_text(encoding="utf-8").partition("\n# ")[0]
    skill.write_text(begun + "\n# Refunds\n\nAsk for the [order](references/details.md).\n", encoding="utf-8")
    seen = CliRunner().invoke(cli, ["validate", str(skill), "--strict"], standalone_mode=False)
    assert seen.return_value == 0, seen.output


def test_it_says_what_to_do_next_on_stderr(tmp_path: Path) -> None:
    done = make("refunds", "--directory", tmp_path / "a b")
    assert done.stdout == ""
    made, following = done.stderr.splitlines()
    assert made.startswith("mcp-skills-server: made ") and "references/details.md" in made
    assert f"mcp-skills-server validate '{tmp_path}/a b/refunds' --strict" in following


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("Refunds", "name-characters"),
        ("../refunds", "name-characters"),
        ("/tmp/refunds", "name-characters"),
        ("re funds", "name-characters"),
        ("ré", "name-characters"),
        ("a\nb", "name-characters"),
        ("a--b", "name-hyphens"),
        ("a-", "name-hyphens"),
        ("x" * 65, "name-length"),
        ("", "name-missing"),
        ("\udcff", "not-utf8"),
    ],
)
def test_a_name_that_breaks_a_rule_is_refused_with_the_rule(tmp_path: Path, name: str, rule: str) -> None:
    said = refused("--directory", tmp_path / "skills", "--", name)
    assert f"[{rule}]" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("description", "rule"),
    [("", "description-missing"), ("too short", "description-vague"), ("d" * 1025, "description-length")],
)
def test_a_description_that_validate_would_complain_of_is_refused(tmp_path: Path, description: str, rule: str) -> None:
    assert f"[{rule}]" in refused("refunds", "--directory", tmp_path, "--description", description)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "description", "head"),
    [
        (
            "refunds",
            "Pays money back. Use it for refunds.",
            "refunds\ndescription: Pays money back. Use it for refunds.",
        ),
        ("refunds", "Pays: money back. Use it.", 'refunds\ndescription: "Pays: money back. Use it."'),
        ("refunds", 'Says "no". Use it for refunds.', 'refunds\ndescription: "Says \\"no\\". Use it for refunds."'),
        ("true", "Tells what is true. Use it.", '"true"\ndescription: "Tells what is true. Use it."'),
    ],
)
def test_what_yaml_would_read_otherwise_is_in_quotes_and_nothing_else(
    tmp_path: Path, name: str, description: str, head: str
) -> None:
    assert make(name, "--directory", tmp_path, "--description", description).exit_code == 0
    assert (tmp_path / name / "SKILL.md").read_text(encoding="utf-8").startswith(f"---\nname: {head}\nmetadata:\n")


def test_what_is_there_stays(tmp_path: Path) -> None:
    for place, make_it in (("folder", Path.mkdir), ("file", Path.touch)):
        make_it(tmp_path / place)
        assert "exists already" in refused(place, "--directory", tmp_path)
    (tmp_path / "link").symlink_to("nowhere")
    assert "exists already" in refused("link", "--directory", tmp_path)
    assert not list((tmp_path / "folder").iterdir()) and not (tmp_path / "file").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "link"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made" in refused("refunds", "--directory", tmp_path / "file")


def test_half_a_skill_is_never_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    assert "No space left" in refused("refunds", "--directory", tmp_path)
    assert not list(tmp_path.iterdir())


@given(st.text(min_size=20, max_size=200))
def test_any_description_is_kept_or_refused(description: str) -> None:
    try:
        files = bundle("refunds", description)
    except UsageError:
        return
    document = frontmatter.parse(files["SKILL.md"].encode())
    assert document.frontmatter is not None and document.frontmatter["description"] == description
    assert not document.problems and not rules.check(document, "refunds")
    assert {each.code for each in rules.check_deeply(document, files)} - {"description-when"} == {"placeholder"}
