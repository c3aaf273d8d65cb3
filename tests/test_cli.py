"""The commands, as a person or a script runs them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import click
import pytest

import forkserver
from mcp_skills_server.cli import COMMANDS, cli, main
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, ROOT, Era, WireError, serving, write_skill


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return forkserver.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=DEADLINE,
        cwd=ROOT,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def on_terminal(*words: str | Path, stream: str, **environment: str) -> tuple[str, bytes]:
    """What a command writes to a terminal of 90 columns, which is its stdout or stderr, and to its stdout."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 90))
    outputs: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, stream: theirs}
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | environment
    done = forkserver.run([*COMMAND, *map(str, words)], **outputs, timeout=DEADLINE, check=False, env=env)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # how Linux tells the end of a terminal
        while read := os.read(ours, 4096):
            shown += read
    os.close(ours)
    assert done.returncode in {0, 1}
    return shown.decode(), done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "no/such/folder"], "no/such/folder: no such file or folder"),
        (["serve", "README.md"], "README.md: not a folder"),
        (["serve"], "ROOT"),
        (["serve", "fixtures/skills", "--dialect", "esperanto"], "esperanto"),
        (["serve", "fixtures/skills", "--page-size", "0"], "0"),
        (["list", "no/such/folder"], "no such file or folder"),
        (["show", "fixtures/skills"], "name of a skill"),
        (["show", "fixtures/skills", "nothing"], "nothing"),
        (["list", "no/such.zip"], "no/such.zip: no such file or folder; "),
        (["ui", "no/such.zip"], "no/such.zip: no such file or folder; "),
        (["publish", "no/such.tgz", "--output", "no/such"], "no/such.tgz: no such file or folder; "),
        (["fetch", "no/such.zip", "--output", "no/such"], "no/such.zip: no such file; give the path of an archive"),
        (["validate"], "ROOT"),
        (["serve", "fixtures/skills", "--interpreter", ".py=python3"], "--allow-scripts"),
        (["serve", "fixtures/skills", "--script-secret", "PATH"], "--allow-scripts"),
        (["serve", "fixtures/skills", "--transport", "http", "--publish-only", "--no-publish"], "leave nothing"),
        (["list", "https://127.0.0.1:1"], "there is no copy of it"),
        (["new", "Bad Name"], "name-characters"),
        (["dance"], "dance"),
        (["srve", "fixtures/skills"], "Did you mean serve?"),
        (["install", "claude", "fixtures/skills"], "Did you mean claude-code or claude-desktop?"),
        (["install", "cursor", "https://skills.example/mcp"], "'install HOST --url https://skills.example/mcp'"),
        (["install", "cursor", "--url", "https://me:secret@skills.example/mcp"], "--token-env"),
        (["install", "cursor", "fixtures/skills", "--token-env", "TOKEN"], "give --url too"),
        (["install", "cursor", "--url", "https://skills.example/mcp", "--token-env", "a b"], "name of a variable"),
        (["--dance"], "--dance"),
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("mcp-skills-server: ") and said in done.stderr


def test_help_has_each_command_below_a_heading_and_begins_with_what_people_ask_for_first() -> None:
    text = run("--help").stdout
    assert [line for line in text.splitlines() if line and not line.startswith(" ") and line.endswith(":")] == [
        "Options:",
        *dict.fromkeys(f"{heading}:" for _, _, heading in COMMANDS.values()),
    ]
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in COMMANDS)
    _, _, listed = text.partition("Write and check:\n")
    assert "..." not in listed and "speaks ACP on stdio, and add the skills" in " ".join(listed.split())
    serve = run("serve", "--help").stdout
    first = next(line for line in serve.splitlines() if line.startswith("  --"))
    assert first.startswith("  --transport ")


def test_help_shows_examples() -> None:
    for command in ([], ["serve"], ["list"], ["show"], ["validate"], ["install"], ["new"]):
        done = run(*command, "--help")
        assert done.returncode == 0 and "Examples:" in done.stdout
    assert run("--version").stdout.startswith("mcp-skills-server, version ")
    done = run()
    assert (done.returncode, done.stdout) == (2, "") and "serves folders of Agent Skills" in done.stderr


def test_options_are_taken_from_the_environment() -> None:
    done = run("serve", MCP_SKILLS_ROOTS="no/such/folder")
    assert done.returncode == 2 and "no/such/folder" in done.stderr
    first = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": first}) + "\n"
    environment = {**os.environ, "MCP_SKILLS_ROOTS": str(FIXTURES), "MCP_SKILLS_DIALECT": "sep-2640"}
    served = forkserver.run(
        [*COMMAND, "serve"],
        input=request,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment,
        check=False,
    )
    assert "skills" not in json.loads(served.stdout)["result"]["capabilities"]


def test_list_shows_every_skill_as_table_and_json() -> None:
    done = run("list", "fixtures/skills")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["PATH", "VERSION", "FILES", "BYTES", "PROBLEMS", "DESCRIPTION"]
    seen = json.loads(run("list", "fixtures/skills", "--format", "json").stdout)["skills"]
    assert len(seen) == len(done.stdout.splitlines()) - 1 == len(list(FIXTURES.rglob("SKILL.md")))
    wanted = {"name", "path", "uri", "title", "description", "version", "files", "bytes", "problems"}
    for each in seen:
        assert wanted <= each.keys()
        bundle = [path for path in (FIXTURES / each["path"]).rglob("*") if path.is_file()]
        assert each["files"] == len(bundle) and each["bytes"] == sum(path.stat().st_size for path in bundle)


def test_list_tells_of_what_is_not_served(tmp_path: Path) -> None:
    write_skill(tmp_path / "good")
    write_skill(tmp_path / "torn").joinpath("SKILL.md").write_text("nothing")
    seen = {each["path"]: each for each in json.loads(run("list", tmp_path, "--format", "json").stdout)["skills"]}
    assert [(each, seen[each]["served"], seen[each]["problems"]) for each in seen] == [
        ("good", True, 0),
        ("torn", False, 1),
    ]
    assert "(not served)" in run("list", tmp_path).stdout
    assert "frontmatter-missing" in run("show", tmp_path, "torn").stdout


def test_show_tells_one_skill_whole() -> None:
    done = run("show", "fixtures/skills", "csv-profiling")
    assert done.returncode == 0 and "scripts/profile_csv.py" in done.stdout
    seen = json.loads(run("show", "fixtures/skills", "acme/billing/refunds", "--format", "json").stdout)
    assert seen["frontmatter"]["name"] == seen["name"] == "refunds"
    assert seen["instructions"].startswith("# ")
    assert {each["path"] for each in seen["files"]} >= {"SKILL.md"}
    assert all(each["digest"].startswith("sha256:") for each in seen["files"])


def test_the_fixtures_are_clean_even_strictly() -> None:
    done = run("validate", "fixtures/skills", "--strict")
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("skills, 0 errors, 0 warnings\n")


def test_validate_names_path_line_code_and_hint(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "bad", description="", body="# T\n")
    done = run("validate", skill)
    assert done.returncode == 1
    assert f"{skill}/SKILL.md:3: error: the description is" in done.stdout
    assert "[description-missing]" in done.stdout and "; add 'description:'" in done.stdout
    for given in (skill, skill / "SKILL.md", tmp_path):
        seen = json.loads(run("validate", given, "--format", "json").stdout)
        assert (seen["ok"], seen["skills"]) == (False, 1)
        (problem,) = seen["problems"]
        assert problem.keys() == {"path", "skill", "severity", "code", "message", "hint", "line"}
        assert (problem["severity"], problem["code"], problem["line"]) == ("error", "description-missing", 3)
        assert problem["message"] == "the description is empty" and problem["hint"].startswith("add 'desc")
        assert os.path.samefile(problem["path"], skill / "SKILL.md")


def test_validate_annotates_for_github(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "bad,%name", name="bad")
    done = run("validate", skill, "--format", "github")
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"::error file={tmp_path}/bad%2C%25name/SKILL.md,line=2,title=name-mismatch::the name is")


def test_limits_are_options(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "some", a_md="a", b_md="b")
    for option, value, code in (
        ("--max-files", 2, "too-many-files"),
        ("--max-bytes", 50, "too-many-bytes"),
        ("--max-skill-md", 20, "skill-md-too-large"),
    ):
        assert code in run("validate", skill, option, str(value)).stdout
    write_skill(tmp_path / "a" / "b" / "c")
    assert "[too-deep]" in run("validate", tmp_path, "--max-depth", "2").stdout


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    for number in range(300):
        write_skill(tmp_path / f"skill-{number}", description="d" * 900)
    script = f"{sys.executable} -m mcp_skills_server list {tmp_path} --format json | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.stderr == "" and done.stdout


def test_the_command_line_imports_lazily() -> None:
    heavy = ("mcp", "anyio", "yaml", "watchfiles", "markdown_it", "pydantic")
    code = f"import sys, mcp_skills_server.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout.strip() == "[]"


@each_row(
    ("variable", "wanted"),
    [("TOKENS", "tokens"), ("TOKEN_FILE", "tokens"), ("OAUTH_ISSUER", "an issuer"), ("OAUTH_AUDIENCE", "an audience")],
)
def test_an_empty_variable_opens_no_server(variable: str, wanted: str) -> None:
    done = run("serve", FIXTURES, "--transport", "http", "--port", "0", **{f"MCP_SKILLS_{variable}": ""})
    said = f"MCP_SKILLS_{variable} is set but empty; give {wanted}, or unset it for a server without"
    assert (done.returncode, done.stderr) == (2, f"mcp-skills-server: {said}\n")


def test_an_empty_option_of_tokens_opens_no_server() -> None:
    for option in ("--tokens", "--token-file"):
        done = run("serve", FIXTURES, "--transport", "http", "--port", "0", option, "")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def shape_of_dot_folders(top: Path) -> Path:
    """As a public collection has it: every skill in a dot folder; and what no walk may enter."""
    for path in (".curated/one", ".curated/two", ".system/three", "plugin/.claude/skills/four", ".git/hooks/five"):
        write_skill(top / path)
    write_skill(top / ".curated/one/.hidden/six")
    write_skill(top / ".curated/one/nested")
    return top


def test_skills_in_dot_folders_are_counted_and_named_and_never_said_not_to_be_there(tmp_path: Path) -> None:
    shape_of_dot_folders(tmp_path)
    said = (
        f"mcp-skills-server: {tmp_path}: 5 skills in folders whose names begin with a dot: .curated, .system, "
        "plugin/.claude; name one as root, or give --hidden\n"
    )
    counted = {"root": str(tmp_path), "skills": 5, "folders": [".curated", ".system", "plugin/.claude"]}
    for command in (["list"], ["validate"]):
        done = run(*command, tmp_path)
        assert (done.returncode, done.stderr) == (1, said)
        seen = json.loads(run(*command, tmp_path, "--format", "json").stdout)
        assert seen["passed_over"] == [counted | {"complete": True}]
    assert said in run("publish", tmp_path, "--output", tmp_path.parent / "out").stderr


@pytest.mark.parametrize("given", [["--hidden"], []])
def test_with_hidden_they_are_skills_as_any(tmp_path: Path, given: list[str]) -> None:
    shape_of_dot_folders(tmp_path)
    (tmp_path / ".curated/one/.secret").write_text("x")
    environment = {} if given else {"MCP_SKILLS_HIDDEN": "1"}
    seen = json.loads(run("list", tmp_path, "--format", "json", *given, **environment).stdout)
    assert [each["path"] for each in seen["skills"]] == [
        ".curated/one", ".curated/one/nested", ".curated/two", ".system/three", "plugin/.claude/skills/four",
    ]  # fmt: skip
    assert (seen["skills"][0]["uri"], seen["skills"][0]["files"]) == ("skill://.curated/one/SKILL.md", 2)
    assert seen["passed_over"] == [] and {each["code"] for each in seen["problems"]} == {"ignored-file"}
    done = run("validate", tmp_path, *given, **environment)
    assert done.stdout.splitlines()[-1].startswith("5 skills, 0 errors")


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_skill_path_with_a_dot_segment_works_as_a_uri_everywhere(tmp_path: Path, era: Era) -> None:
    shape_of_dot_folders(tmp_path)
    (tmp_path / ".curated/two/guide.md").write_text("Read on.\n")
    (tmp_path / ".curated/two/also.md").symlink_to("guide.md")
    (tmp_path / ".curated/two/.secret").write_text("x")
    (tmp_path / ".curated/two/leak.md").symlink_to(".secret")
    with serving(tmp_path, "--hidden", era=era) as wire:
        entries = {each["uri"]: each for each in wire.every_skill()}
        uri = "skill://.curated/two"
        assert f"{uri}/SKILL.md" in entries and len(entries) == 5
        found = wire.request("skills/get", {"uri": f"{uri}/SKILL.md"})["skill"]
        assert {each["uri"] for each in found["resources"]} == {
            f"{uri}/{name}.md" for name in ("SKILL", "guide", "also")
        }
        for name in ("guide", "also"):
            read = wire.request("resources/read", {"uri": f"{uri}/{name}.md"})
            assert read["contents"][0]["text"] == "Read on.\n"
        listed = wire.request("resources/directory/read", {"uri": "skill://.curated"})
        assert {each["uri"] for each in listed["resources"]} == {"skill://.curated/one", uri}
        for bad in (f"{uri}/.secret", f"{uri}/leak.md", f"{uri}/../one/SKILL.md", f"{uri}/./SKILL.md",
                    f"{uri}/%2e%2e/one/SKILL.md", "skill://../x", "skill://.git/hooks/five/SKILL.md"):  # fmt: skip
            with pytest.raises(WireError):
                wire.request("resources/read", {"uri": bad})


def test_links_that_npx_skills_makes_are_listed_and_can_be_left_alone(tmp_path: Path) -> None:
    write_skill(tmp_path / ".agents/skills/pdf", scripts__run_py="print(1)\n")
    root = tmp_path / ".claude/skills"
    root.mkdir(parents=True)
    (root / "pdf").symlink_to("../../.agents/skills/pdf")
    assert [each["path"] for each in json.loads(run("list", root, "--format", "json").stdout)["skills"]] == ["pdf"]
    for given, environment in ((["--no-follow-links"], {}), ([], {"MCP_SKILLS_FOLLOW_LINKS": "0"})):
        for command in (["list"], ["validate"]):
            seen = json.loads(run(*command, root, *given, "--format", "json", **environment).stdout)
            assert [each["code"] for each in seen["problems"]] == ["link-outside"]


def test_list_and_validate_of_several_roots_tell_what_hides_what(tmp_path: Path) -> None:
    write_skill(tmp_path / "one" / "same")
    write_skill(tmp_path / "two" / "same", description="")
    write_skill(tmp_path / "two" / "other")
    (tmp_path / "two" / "link").symlink_to(tmp_path / "one")
    roots = (tmp_path / "one", tmp_path / "two")
    seen = json.loads(run("list", *roots, "--format", "json").stdout)
    assert [each["path"] for each in seen["skills"]] == ["other", "same"]
    assert {(each["code"], each["skill"]) for each in seen["problems"]} == {("shadowed", "same"), ("link-outside", "")}
    seen = json.loads(run("validate", *roots, "--format", "json").stdout)
    assert seen["skills"] == 3
    found = {each["code"]: each for each in seen["problems"]}
    assert set(found) == {"shadowed", "link-outside", "description-missing"}
    assert found["shadowed"]["path"] == str(tmp_path / "two/same")
    assert f"is hidden by {tmp_path / 'one/same'}" in found["shadowed"]["message"]
    assert "[shadowed]" not in run("validate", tmp_path / "two", tmp_path / "two/other").stdout


def test_a_skill_over_a_limit_is_said_to_be_so_everywhere(tmp_path: Path) -> None:
    write_skill(tmp_path / "big", **{f"f{number}_md": "x" for number in range(9)})
    few = ("--max-files", "4")
    assert "(not listed)" in run("list", tmp_path, *few).stdout
    shown = run("show", tmp_path, "big", *few).stdout
    assert "only by tools, prompts and the Skills Protocol" in shown and "[too-many-files]" in shown
    done = run("validate", tmp_path, *few)
    assert done.returncode == 1 and "the skill has 10 files, 4 are allowed; it is not listed" in done.stdout
    with serving(tmp_path, *few) as wire:
        assert wire.every_skill() == []
        result = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["big"]}})
        assert not result.get("isError") and "# Thing" in json.dumps(result)
        result = wire.request("tools/call", {"name": "skills_read", "arguments": {"skill": "big", "path": "f8.md"}})
        assert result["isError"]
        wire.close()
        assert b"the skill has 10 files, 4 are allowed" in wire.stderr


def test_validate_shows_how_far_it_is_on_a_terminal_alone(tmp_path: Path) -> None:
    for number in range(3):
        write_skill(tmp_path / f"skill-{number}")
    assert run("validate", tmp_path).stderr == ""
    shown, out = on_terminal("validate", tmp_path, stream="stderr")
    assert "Checking skills" in shown and "100%" in shown
    assert out == b"3 skills, 0 errors, 0 warnings\n"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("MCP_SKILLS_WATCH", "maybe", "MCP_SKILLS_WATCH: 'maybe' is not a valid boolean"),
        ("MCP_SKILLS_PAGE_SIZE", "0", "MCP_SKILLS_PAGE_SIZE: 0 is not in the range"),
        ("MCP_SKILLS_HIDDEN", "x", "MCP_SKILLS_HIDDEN: 'x' is not a valid boolean"),
        ("MCP_SKILLS_DIALECT", "x", "MCP_SKILLS_DIALECT: 'x' is not one of"),
    ],
)
def test_a_bad_value_of_the_environment_is_reported_under_the_variables_name(
    variable: str, value: str, said: str
) -> None:
    """Whoever wrote it has not written the option's name (11.E)."""
    done = run("serve", FIXTURES, **{variable: value})
    assert done.returncode == 2
    assert done.stderr.startswith(f"mcp-skills-server: {said}") and done.stderr.count("\n") == 1
    assert "--page-size" in run("serve", FIXTURES, "--page-size", "0", MCP_SKILLS_PAGE_SIZE="7").stderr


def test_show_names_what_may_have_been_meant() -> None:
    """A name that there is not is most often one letter off."""
    done = run("show", FIXTURES, "colour-palets")
    assert done.returncode == 2 and "did you mean colour-palettes?" in done.stderr
    assert "'list' shows what there is" in run("show", FIXTURES, "0123456789").stderr


@pytest.mark.parametrize("name", ["serve", "rpc", "acp"])
def test_the_help_has_options_below_headings_and_examples_before_them(name: str) -> None:
    """Every option stands once, below what it is about."""
    text = run(name, "--help", COLUMNS="100").stdout
    heads = [line for line in text.split("\n") if line and not line.startswith(" ")]
    assert heads[0].startswith("Usage:") and heads[-1] == "Other options:" and "Running scripts:" in heads
    assert text.index("Example") < text.index(heads[1])
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for option in command.params:
        if isinstance(option, click.Option):
            assert len(re.findall(rf"^  {option.opts[0]}(?![\w-])", text, re.MULTILINE)) == 1, option.opts
    if name == "serve":
        _, _, below = text.partition("Over HTTP (--transport http):")
        assert "--token-file" in below and "HTTP: " not in text


def test_an_interrupt_ends_a_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code that shells know, and that the README has."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mcp_skills_server.commands.look.load_registry", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["list", "."])
    assert ended.value.code == 130
    assert "130 ended by" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_options_that_say_nothing_over_stdio_are_named_in_one_warning() -> None:
    """Tokens above all: nobody is kept out by them there."""
    done = run("serve", FIXTURES, "--max-body", "5000", MCP_SKILLS_TOKENS="me=0123456789abcdef0123")
    warned = [line for line in done.stderr.split("\n") if "WARNING" in line]
    assert warned == ["mcp-skills-server: WARNING: no effect without --transport http: --tokens, --max-body"]
    assert "0123456789abcdef" not in done.stderr
    assert (
        "no effect without --transport http: --redis" in run("serve", FIXTURES, "--redis", "redis://127.0.0.1:1").stderr
    )
    shown = run("serve", FIXTURES, "--ui", "--metrics", "--metrics-address", "127.0.0.1:0")
    assert "no effect without --transport http: --metrics, --metrics-address, --ui" in shown.stderr
    assert "unused" not in run("serve", FIXTURES).stderr


CLOSED = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors of POSIX")
@pytest.mark.parametrize("closed", [0, 1, 2])
@pytest.mark.parametrize("command", ["serve", "list"])
def test_a_standard_stream_that_the_parent_closed_is_an_empty_one(command: str, closed: int) -> None:
    module = ["-m", "mcp_skills_server", command, str(FIXTURES)]
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, str(closed), *module],
        input=b"", capture_output=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is full")
@pytest.mark.parametrize(
    ("command", "said", "code"),
    [
        ("serve", "the server ends: stdout cannot be written (No space left on device)", 0),
        ("rpc", "the server ends: stdout cannot be written (No space left on device)", 0),
        ("list", "the output cannot be written (No space left on device); make space, or write it elsewhere", 2),
        ("validate", "the output cannot be written (No space left on device); make space, or write it elsewhere", 2),
    ],
)
def test_output_that_cannot_be_written_is_a_line(command: str, said: str, code: int) -> None:
    hello = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    with open("/dev/full", "wb") as full:
        done = forkserver.run(
            [*COMMAND, command, str(FIXTURES)],
            input=hello, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE, check=False,
        )  # fmt: skip
    errors = done.stderr.decode()
    assert errors.count(said) == 1 and "Traceback" not in errors and "Exception" not in errors
    assert done.returncode == code


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_table_on_a_terminal_is_as_wide_as_it_and_has_colours(
    tmp_path: Path, environment: dict[str, str], coloured: bool
) -> None:
    write_skill(tmp_path / "tea", description="x" * 500)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").write_text("---\nname: other\ndescription: " + "y" * 300 + "\n---\n")
    text, _ = on_terminal("list", tmp_path, stream="stdout", **environment)
    assert ("\x1b[31m" in text) is coloured
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert len(lines) == 3 and max(map(len, lines)) == 90


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("arguments", [["list"], ["validate", "--format", "json"]], ids=" ".join)
def test_output_in_any_encoding_is_written_and_json_stays_json(
    tmp_path: Path, encoding: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "tea", description="Brews ä tea for 日本. Use when thirsty \U0001f375.")
    (tmp_path / "日本").mkdir()
    (tmp_path / "日本" / "SKILL.md").write_text("no frontmatter: ä\n", encoding="utf-8")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    with pytest.raises(SystemExit) as ended:
        main([*arguments[:1], str(tmp_path), *arguments[1:]])
    sys.stdout.flush()
    assert ended.value.code in {0, 1}
    text = written.getvalue().decode("utf-8" if encoding == "ascii" else encoding)  # click takes ASCII for no locale
    if "json" in arguments:
        assert "日本" in str(json.loads(text))
