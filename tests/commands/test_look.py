"""Output of `list`, `show` and `validate`: skills, problems and how many are shown."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import click
import pytest

from commands.calls import invoke, json_of, refusal, terminal
from mcp_skills_server.codes import problem
from mcp_skills_server.commands.look import clustered
from mcp_skills_server.model import Problem
from tables import each_row
from web.in_process import app_serving
from web.ui.serving import visible_text
from wire import FIXTURES, write_skill


@each_row("command", ["list", "validate"])
def test_roots_without_skills_are_named(tmp_path: Path, command: str) -> None:
    roots = [tmp_path / name for name in ("one", "two")]
    for root in roots:
        root.mkdir()
    assert invoke(command, *roots, "--format", "json").return_value == 1
    done = invoke(command, *roots)
    assert done.return_value == 1
    assert [line for line in done.stderr.splitlines() if "no skill" in line] == [
        f"mcp-skills-server: no skill to serve at {root}; give a folder of skills, each with a SKILL.md, or begin one "
        "with 'new'"
        for root in roots
    ]


@each_row("command", ["list", "lock --output skills.lock", "publish --output public"])
def test_root_whose_skills_are_all_left_out_is_named(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a SKILL.md, so that no message may say that it has none."""
    monkeypatch.chdir(tmp_path)
    write_skill(tmp_path / "skills/a")
    done = invoke(*command.split(), "skills", "--include", "b")
    assert done.return_value == 1
    assert done.stderr.startswith("mcp-skills-server: no skill to serve at skills; give a folder")
    assert not (tmp_path / "skills.lock").exists() and not (tmp_path / "public").exists()


def test_list_and_show_print_skills_and_fit_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = write_skill(tmp_path / "root/one", description='Does one thing.\nmetadata:\n  version: "1.2"', a_md="a")
    write_skill(tmp_path / "root/bad", name="other")
    write_skill(tmp_path / "root/worse").joinpath("SKILL.md").write_text("nothing")
    done = invoke("list", "root")
    assert done.stdout.splitlines() == [
        "PATH   VERSION  FILES  BYTES  PROBLEMS        DESCRIPTION",
        "bad             1      76     1 (not listed)  Does a thing when it is asked to.",
        "one    1.2      2      84     1               Does one thing.",
        "worse           1      7      1 (not served)",
    ]
    assert done.stderr.startswith("mcp-skills-server: 2 errors, 1 warning: ") and done.stderr.count("\n") == 1
    digests = {name: hashlib.sha256((one / name).read_bytes()).hexdigest() for name in ("SKILL.md", "a.md")}
    combined = hashlib.sha256("".join(f"{name}\0sha256:{digest}\n" for name, digest in digests.items()).encode())
    *lines, problem, blank, last = invoke("show", "root", "one").stdout.splitlines()
    assert lines == [
        *("name:        one", "path:        one", "uri:         skill://one/SKILL.md", "title:       Thing"),
        *("description: Does one thing.", "version:     1.2", "standing:    served"),
        f"digest:      sha256:{combined.hexdigest()}",
        *("models see:  with its whole description", "", "FILE      BYTES  DIGEST"),
        *(f"SKILL.md  83     sha256:{digests['SKILL.md']}", f"a.md      1      sha256:{digests['a.md']}"),
    ]
    assert "[description-vague]" in problem and (blank, last) == ("", "# Thing")
    worse = invoke("show", "root", "worse").stdout
    assert "standing:    not served" in worse and "[frontmatter-missing]" in worse
    bad, listed, unusable = json_of("list", "root")["skills"]
    assert listed == {
        "name": "one", "path": "one", "uri": "skill://one/SKILL.md", "title": "Thing", "description": "Does one thing.",
        "version": "1.2", "files": 2, "bytes": 84, "origin": None, "problems": 1, "served": True,
        "standing": "served",
        "stale": False,
    }  # fmt: skip
    assert not bad["served"] and not unusable["served"]
    found = json_of("show", "root", "one")
    assert found["frontmatter"] == {"name": "one", "description": "Does one thing.", "metadata": {"version": "1.2"}}
    assert [(each["path"], each["uri"], each["size"], each["digest"]) for each in found["files"]] == [
        ("SKILL.md", "skill://one/SKILL.md", 83, f"sha256:{digests['SKILL.md']}"),
        ("a.md", "skill://one/a.md", 1, f"sha256:{digests['a.md']}"),
    ]
    assert found["instructions"] == "# Thing"
    found = json_of("show", "root", "worse")
    assert (found["instructions"], found["revision"], found["served"]) == ("", None, False)
    write_skill(tmp_path / "root/good", description="Does a thing when it is asked to. " * 5)
    with terminal("list", "root", cwd=tmp_path, environment={"NO_COLOR": "", "TERM": "xterm"}) as screen:
        assert screen.end() == 0
    for coloured in ("\x1b[1mPATH ", "\x1b[31mbad ", "\x1b[33mone ", "\x1b[31mworse "):
        assert coloured in screen.seen
    (line,) = (each for each in screen.seen.splitlines() if each.startswith("good "))
    assert len(line.removesuffix("\x1b[0m")) == 90 and "...\x1b" in line
    write_skill(tmp_path / f"wide/{'w' * 60}", description="x" * 90)
    with terminal("list", "wide", cwd=tmp_path, environment={"NO_COLOR": "1"}) as screen:
        assert screen.end() == 0
    assert f"  {'x' * 17}...\r\n" in screen.seen
    assert "\x1b[1m" not in screen.seen


@each_row(("target", "hint"), [
    (".", "remove the link, since the folder it leads to is part of this root"),
    ("../root-of-others", "serve the folder it leads to as a root of its own"),
    ("..", "serve the folder it leads to as a root of its own"),
])  # fmt: skip
def test_problem_of_a_symlinked_folder_has_a_fitting_hint(tmp_path: Path, target: str, hint: str) -> None:
    root = write_skill(tmp_path / "root" / "thing").parent
    (tmp_path / "root-of-others").mkdir()
    (root / "link").symlink_to(target)
    (line,) = (each for each in invoke("list", root).stderr.splitlines() if "/link" in each)
    assert line.endswith(f"; {hint} [link-outside]")


def test_list_and_show_count_problems_that_several_skills_share(tmp_path: Path) -> None:
    for path in ("a/dup", "b/dup", "c/other"):
        write_skill(tmp_path / path)
    lines = invoke("list", tmp_path).stdout.splitlines()[1:]
    assert {line.split()[0]: line.split()[3] for line in lines} == {"a/dup": "1", "b/dup": "1", "c/other": "0"}
    shown = json_of("show", tmp_path, "a/dup")["problems"]
    assert [each["code"] for each in shown] == ["name-shared"]
    assert shown == [each for each in json_of("validate", tmp_path)["problems"] if each["skill"] == "a/dup"]


def test_list_install_show_and_validate_report_the_same_problems(tmp_path: Path) -> None:
    broken = FIXTURES.parent / "broken"
    validated = json_of("validate", broken)["problems"]
    listed = json_of("list", broken)
    assert listed["problems"] == validated
    assert {"pipe-to-shell", "shell-injection", "hidden-characters"} < {each["code"] for each in validated}
    counts = Counter(each["skill"] for each in validated)
    assert all(each["problems"] == counts[each["path"]] for each in listed["skills"])
    shown = json_of("show", broken, "pipe-to-shell")["problems"]
    assert shown == [each for each in validated if each["skill"] == "pipe-to-shell"]
    summary = invoke("list", broken).stderr.splitlines()[-1]
    errors = sum(each["severity"] == "error" for each in validated)
    assert f": {errors} errors, {len(validated) - errors} warnings: " in summary
    assert "shell-injection" in summary
    assert summary.endswith(f"'mcp-skills-server validate {broken}' shows each")
    installed = invoke("install", "cursor", broken, "--config", tmp_path / "mcp.json")
    assert installed.stderr.splitlines()[-1] == summary


def test_commands_and_page_count_the_same_skills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested skills count, and those that cannot be served; skills in dot folders and duplicates do not."""
    root = tmp_path / ".claude" / "skills"
    for path in ("one", "group/nested/two", "one/inside", ".hidden/three"):
        write_skill(root / path)
    write_skill(root / "lenient", name="Other Name")
    write_skill(root / "broken").joinpath("SKILL.md").write_text("nothing", encoding="utf-8")
    assert len(json_of("list", root)["skills"]) == len(invoke("list", root).stdout.splitlines()[1:]) == 5
    assert "\n5 skills, " in invoke("validate", root).output
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert len(json_of("list")["skills"]) == 5 and "\n5 skills, " in invoke("validate").output
    assert " 5 skills  mcp-skills-server install HOST " in invoke().stderr
    with app_serving(root, "--ui") as app:
        assert " 5 skills, about " in visible_text(app.send("GET", "/ui/"))
        assert " 5 (1 not served, 1 not listed) " in visible_text(app.send("GET", "/ui/sources"))


def test_list_and_validate_without_a_root_take_the_usual_folders_and_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "project")
    for command in ("list", "validate"):
        assert "there are no skills in the usual folders; give a ROOT" in refusal(command)
    own, project = (
        write_skill(tmp_path / ".claude/skills/one").parent,
        write_skill(tmp_path / "project/skills/two").parent,
    )
    taken = f"no ROOT is given; taking the usual folders: {own} (1 skill), {project} (1 skill)"
    for command in ("list", "validate"):
        assert taken in invoke(command).stderr
    assert [each["path"] for each in json_of("list")["skills"]] == ["one", "two"]
    assert isinstance(invoke("validate", "--fix", "--yes").exception, click.MissingParameter)
    monkeypatch.setenv("MCP_SKILLS_ROOTS", str(own))
    assert [each["path"] for each in json_of("list")["skills"]] == ["one"]


@each_row(("name", "message"), [
    ("dup", "Several skills are named 'dup'; ask for one of: a/dup, b/dup"),
    ("dupp", "Unknown skill: 'dupp'; did you mean b/dup or a/dup?"),  # "dup" is ambiguous
    ("refund", "Unknown skill: 'refund'; did you mean refunds?"),
    ("xyz", "Unknown skill: 'xyz'; 'list' shows what there is"),
    ("/", "Unknown skill: '/'; this is a folder; write the name of a skill after the folders"),
])  # fmt: skip
def test_show_suggests_names_for_an_unknown_skill(tmp_path: Path, name: str, message: str) -> None:
    for path in ("a/dup", "b/dup", "refunds"):
        write_skill(tmp_path / path)
    assert refusal("show", tmp_path, name) == message


def test_show_tells_how_much_of_a_description_is_listed(tmp_path: Path) -> None:
    for number in range(60):
        write_skill(tmp_path / f"s{number}", description=f"{'Does much. ' * 40}Use when {number} is there.")
    write_skill(tmp_path / "own", description="Does it.\ndisable-model-invocation: true")
    listed = {each: json_of("show", tmp_path, each)["listed"] for each in ("own", *(f"s{n}" for n in range(0, 60, 6)))}
    assert listed.pop("own") is None and {"by name alone"} < {*listed.values()}
    cut = next(each for each, words in listed.items() if words != "by name alone")
    lines = invoke("show", tmp_path, cut).stdout.splitlines()
    (line,) = (each for each in lines if each.startswith("models see:"))
    assert " characters of its description: Use when " in line


def test_commands_apply_the_rules_of_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shown", "hidden"):
        write_skill(tmp_path / "skills" / name)
    (tmp_path / "c.toml").write_text('[[source]]\nfrom = "skills"\nexclude = ["hidden"]\n', encoding="utf-8")
    for command, line in (
        ("list", "shown "),
        ("validate", "1 skill, "),
        ("publish --output site", "published 1 skill "),
    ):
        done = invoke(*command.split(), "--config", "c.toml")
        assert line in done.output and "hidden " not in done.stdout, done.output
    index = json.loads((tmp_path / "site/.well-known/agent-skills/index.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in index["skills"]] == ["shown"]


SHOWN = 20


def make_problems(skill: str, count: int, code: str = "link-outside", folder: str = "top") -> list[Problem]:
    return [problem(code, "it is one").at(f"{folder}/{skill}/d/{number:05}", skill) for number in range(count)]


@each_row("few", [
    *(make_problems("a", count) for count in (0, 1, SHOWN)),
    [*make_problems("a", SHOWN), *make_problems("b", SHOWN), *make_problems("a", SHOWN, "file-irregular")],
])  # fmt: skip
def test_up_to_20_problems_of_a_skill_and_rule_have_their_lines(few: list[Problem]) -> None:
    assert list(clustered(few)) == few


def test_more_problems_of_a_skill_and_rule_share_a_line() -> None:
    others = make_problems("b", 3)
    summary, *rest = clustered([*make_problems("a", 40_000), *others])
    assert rest == others and summary.skill == "a"
    places = "00000, 00001, 00002 and 39997 more"
    assert str(summary).startswith(f"top/a/d: warning: it is one, 40,000 times: {places}; ")


def note(code: str, path: str, message: str, line: int | None = None) -> Problem:
    return problem(code, message, line).at(path, path.partition("/")[0])


@each_row(("notes", "lines"), [
    ([], []),
    ([note("body-long", "a/SKILL.md", "600 lines", 5)], ["a/SKILL.md:5: note: 600 lines; move detail"]),
    ([note("body-long", f"top/{name}/SKILL.md", f"{name} lines", 5) for name in "abcde"], [
        "top: note: instructions of more than 500 lines or 5,000 tokens, 5 times: a/SKILL.md:5, b/SKILL.md:5, c/SKI",
    ]),
    ([note("file-unused", "a/SKILL.md", "same"), note("hidden-comment", "a/x.md", "it", 2),
      note("file-unused", "b/SKILL.md", "same"), note("hidden-comment", "a/x.md", "it", 4)], [
        ".: note: same, 2 times: a/SKILL.md, b/SKILL.md; refer to it", "a: note: it, 2 times: x.md:2, x.md:4; write it",
    ]),
    ([note("file-unused", f"https://x.example/{name}/SKILL.md", "it") for name in "ab"],
     ["https://x.example: note: it, 2 times: a/SKILL.md, b/SKILL.md; refer"]),
    ([note("file-unused", "/abs/SKILL.md", "it"), note("file-unused", "b/SKILL.md", "it")],
     [".: note: it, 2 times: /abs/SKILL.md, b/SKILL.md; refer"]),
])  # fmt: skip
def test_notes_of_one_rule_share_a_line_with_their_count_and_first_places(
    notes: list[Problem], lines: list[str]
) -> None:
    shown = [*map(str, clustered(notes))]
    assert len(shown) == len(lines)
    for line, start in zip(shown, lines, strict=True):
        assert line.startswith(start)


ESCAPES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")
COLOURED = {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": ""}


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Skills whose paths and findings are longer than a line."""
    for name in ("a" * 60, "b" * 60):
        file = write_skill(tmp_path / "skills/of/a/team" / name, description="Does a thing. " * 9) / "SKILL.md"
        file.write_text(f"{file.read_text(encoding='utf-8')}\n\nSee [x](gone.md) and [y](lost.md).\n", encoding="utf-8")
    return tmp_path


@each_row("words", [
    "list skills", "validate skills", "evaluate skills --prompt thing", "install --list", "doctor", "validate --rules",
])  # fmt: skip
def test_tables_and_findings_fit_80_columns_of_a_terminal(wide: Path, words: str) -> None:
    environment = COLOURED | {"HOME": str(wide), "XDG_CONFIG_HOME": str(wide)}
    (wide / ".cursor").mkdir(exist_ok=True)
    entry = {"command": "/gone/program", "args": ["serve", "x" * 30]}
    (wide / ".cursor/mcp.json").write_text(json.dumps({"mcpServers": {"skills": entry}}))
    with terminal(*words.split(), cwd=wide, environment=environment) as screen:
        screen.end()
    lines = [ESCAPES.sub("", line).rstrip().rpartition("\r")[2] for line in screen.seen.split("\n")]
    table = [line for line in lines if not line.startswith("mcp-skills-server: ")]
    assert any(table)
    assert [line for line in table if len(line) > 80 and " " in line.strip()] == []


@each_row(("environment", "is_coloured"), [
    ({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False),
])  # fmt: skip
def test_severities_are_coloured_only_on_a_terminal_that_wants_it(
    wide: Path, environment: dict[str, str], is_coloured: bool
) -> None:
    with terminal("validate", "skills", cwd=wide, environment=COLOURED | environment) as screen:
        screen.end()
    _, _, report = screen.seen.partition("skills/of")
    assert ("\x1b[33m\x1b[1mwarning\x1b[0m:" in report) == is_coloured == ("\x1b[" in report)
    assert "\x1b" not in invoke("validate", wide / "skills", **COLOURED).output


@each_row("words", [["validate"], ["list"], ["show", "a"]])
def test_many_problems_share_a_line_except_in_json(tmp_path: Path, words: list[str]) -> None:
    for folder in (tmp_path, write_skill(tmp_path / "a")):
        for number in range(60):
            link = folder / f"link-{number:02}"
            link.unlink(missing_ok=True)
            link.symlink_to("/")
    command, *more = words
    done = invoke(command, tmp_path, *more)
    lines = [line for line in done.output.splitlines() if line.endswith("[link-outside]")]
    kinds = 2 if command == "validate" else 1  # those of the skill, and those of the root
    assert len(lines) == kinds == sum("60 times: link-00, link-01, link-02 and 57 more; " in line for line in lines)
    assert "120 warnings" in done.output or command == "show"
    assert len(json_of("validate", tmp_path)["problems"]) == 120
    assert invoke("validate", tmp_path, "--format", "github").stdout.count("title=link-outside") == 120
