"""The command line: usage errors, help, environment, output, and the commands that inspect skills."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import forkserver
from commands.calls import json_of, run, terminal
from dispatching import local_serving
from mcp_skills_server import __main__
from mcp_skills_server.cli import COMMANDS, HEADINGS, main
from mcp_skills_server.commands.fields import COMMON
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, ROOT, WireError, serving, write_skill


@each_row(("arguments", "message"), [
    (["serve", "no/such/folder"], "no/such/folder: no such file or folder"),
    (["serve", "README.md"], "README.md: not a folder, nor an archive that is read (.zip, .skill, .tar, .tar.gz,"),
    (["serve", "fixtures/skills", "--dialect", "esperanto"], "esperanto"),
    (["show", "fixtures/skills"], "and then a skill"),
    (["show", "fixtures/skills", "colour-palets"], "did you mean colour-palettes?"),
    (["list", "no/such.zip"], "no/such.zip: no such file or folder; "),
    (["fetch", "no/such.zip", "--output", "no/such"], "no/such.zip: no such file; give the path of an archive"),
    (["fetch", "README.md", "--output", "no/such"], "README.md: not a folder, nor an archive that is read"),
    (["validate"], "ROOT"), (["serve", "fixtures/skills", "--interpreter", ".py=python3"], "--allow-scripts"),
    (["serve", "fixtures/skills", "--transport", "http", "--publish-only", "--no-publish"], "leave nothing"),
    (["list", "https://127.0.0.1:1"], "there is no copy of it"), (["srve", "fixtures/skills"], "Did you mean serve?"),
    (["install", "claude", "fixtures/skills"], "Did you mean claude-code or claude-desktop?"),
    (["install"], "Missing argument 'HOST'"),
    (["--dance"], "--dance"),
])  # fmt: skip
def test_usage_error_prints_one_line_and_exits_with_2(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("mcp-skills-server: ") and message in done.stderr


@each_row("arguments", [
    ["list", "ftp://me:PASSWORD@h/a"], ["publish", "x", "--output", "y", "--base-url", "https://me:PASSWORD@h"],
    ["fetch", "--list", "git+https://PASSWORD@h/a"], ["install", "zed", "--url", "ftp://me:PASSWORD@h/mcp"],
    ["lock", "git+ssh://git:PASSWORD@h/a"], ["serve", "--lock", "fixtures/x", "https://me:PASSWORD@h"],
])  # fmt: skip
def test_usage_error_shows_no_password_of_a_url(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and "PASSWORD" not in done.stderr


def test_help_groups_commands_below_headings() -> None:
    text, headings = run("--help").stdout, [f"{heading}:" for heading in HEADINGS]
    assert [line for line in text.splitlines() if re.fullmatch(r"\S.*:", line)] == ["Options:", *headings]
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in COMMANDS)
    _, _, listed = text.partition("Write and check:\n")
    assert "..." not in listed and "speaks ACP on stdio, and add the skills" in " ".join(listed.split())


def test_help_of_serve_shows_common_options_and_help_all_the_others() -> None:
    texts = [run("serve", word).stdout for word in ("--help", "--help-all")]
    shown, everything = (re.findall(r"^  (?:-h, )?(--[\w-]+)", text, re.MULTILINE) for text in texts)
    assert shown[0] == everything[0] == "--transport" and shown[-2:] == ["--help-all", "--help"]
    assert len(shown) == len(COMMON) + 2 and {*shown} < {*everything}
    assert "--max-body" in {*everything} - {*shown}
    assert run("serve", FIXTURES, "--max-body", "0").stderr.count("is not in the range") == 1


@each_row(("words", "hint"), [
    ("rules name-mismatch", "validate --explain CODE"), ("try x y", "evaluate --prompt TEXT"),
    ("outdated", "update --check"), ("approve x y", "scripts approve"), ("run x y", "scripts run"),
    ("bundle x", "package"), ("plugin x", "package"), ("overlap x", "validate"),
    ("list x --max-files 3", "the key max-files of a file that --config names"),
    ("sign x --max-depth=3", "the key max-depth of a file that --config names"),
])  # fmt: skip
def test_former_command_or_option_names_its_successor(words: str, hint: str) -> None:
    done = run(*words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert " is now " in done.stderr and hint in done.stderr


def test_version_is_printed_and_group_without_a_command_prints_its_usage() -> None:
    assert run("--version").stdout.startswith("mcp-skills-server, version ")
    done = run("proposals")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("Usage: mcp-skills-server proposals")


def test_options_are_read_from_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SKILLS_ROOTS", str(FIXTURES))
    monkeypatch.setenv("MCP_SKILLS_DIALECT", "sep-2640")
    with serving(opened=False) as wire:
        assert "skills" not in wire.open()["capabilities"]


def test_validate_names_path_line_code_and_hint(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "bad", description="", body="# T\n")
    done = run("validate", skill)
    assert done.returncode == 1 and f"{skill}/SKILL.md:3: error: the description is" in done.stdout
    assert "[description-missing]" in done.stdout and "; add 'description:'" in done.stdout
    for given in (skill, skill / "SKILL.md", tmp_path):
        found = json_of("validate", given)
        (problem,) = found["problems"]
        assert (found["ok"], found["skills"]) == (False, 1) and os.path.samefile(problem["path"], skill / "SKILL.md")
        assert problem.keys() == {"path", "skill", "severity", "code", "message", "hint", "line", "column"}
        assert (problem["severity"], problem["code"], problem["line"]) == ("error", "description-missing", 3)
        assert problem["message"] == "the description is empty" and problem["hint"].startswith("add 'desc")


def test_skill_limits_are_set_by_the_configuration(tmp_path: Path) -> None:
    skill, file = write_skill(tmp_path / "some", a_md="a", b_md="b"), tmp_path / "c.toml"
    for key, value, code in (
        ("max-files", 2, "too-many-files"), ("max-bytes", 50, "too-many-bytes"),
        ("max-skill-md", 20, "skill-md-too-large"),
    ):  # fmt: skip
        assert code not in run("validate", skill).stdout
        file.write_text(f"{key} = {value}\n")
        assert code in run("validate", skill, "--config", file).stdout
    write_skill(tmp_path / "a" / "b" / "c")
    file.write_text("max-depth = 2\n")
    assert "[too-deep]" in run("validate", tmp_path, "--config", file).stdout
    (tmp_path / "a" / "some").symlink_to(skill)
    (found,) = json_of("list", tmp_path / "a", "--no-follow-links")["problems"]
    assert found["code"] == "link-outside" and json_of("list", tmp_path / "a")["problems"] == []


def test_variable_of_a_limit_that_only_a_server_reads_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SKILLS_MAX_FILES", "1000")
    warning = "MCP_SKILLS_MAX_FILES: only a server reads it; set max-files (--config)"
    assert warning in run("list", write_skill(tmp_path / "some")).stderr


def test_closed_pipe_of_reader_does_not_change_the_exit_code(tmp_path: Path) -> None:
    for number in range(300):
        write_skill(tmp_path / f"skill-{number}", description="d" * 900)
    write_skill(tmp_path / "faulty", description="")
    for words, code in (("list", 0), ("list --format json", 0), ("validate --rules", 0), ("validate", 1)):
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w") as closed:
            done = forkserver.run(
                [*COMMAND, *words.split(), tmp_path],
                stdout=closed, stderr=subprocess.PIPE, timeout=DEADLINE, text=True, check=False,
            )  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (code, False)


def test_command_line_imports_lazily() -> None:
    heavy = ("mcp", "anyio", "yaml", "watchfiles", "markdown_it", "pydantic")
    code = f"import sys, mcp_skills_server.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@each_row(("variable", "wanted"), [
    ("TOKENS", "tokens"), ("TOKEN_FILE", "tokens"), ("OAUTH_ISSUER", "an issuer"), ("OAUTH_AUDIENCE", "an audience"),
])  # fmt: skip
def test_empty_token_or_issuer_variable_is_refused(variable: str, wanted: str) -> None:
    arguments = ("serve", FIXTURES, "--transport", "http", "--port", "0")
    done = run(*arguments, **{f"MCP_SKILLS_{variable}": ""})
    message = f"MCP_SKILLS_{variable} is set but empty; give {wanted}, or unset it for a server without"
    assert (done.returncode, done.stderr) == (2, f"mcp-skills-server: {message}\n")
    done = run(*arguments, f"--{variable.lower().replace('_', '-')}", "")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def write_dot_folders(top: Path) -> Path:
    """Write a collection with every skill in a dot folder, and folders that no scan may enter."""
    for path in (".curated/one", ".curated/two", ".system/three", "plugin/.claude/skills/four", ".git/hooks/five"):
        write_skill(top / path)
    write_skill(top / ".curated/one/.hidden/six")
    write_skill(top / ".curated/one/nested")
    return top


def test_skills_in_dot_folders_are_counted_and_named(tmp_path: Path) -> None:
    write_dot_folders(tmp_path)
    message = (
        f"mcp-skills-server: {tmp_path}: 5 skills in folders whose names begin with a dot: .curated, .system, "
        "plugin/.claude; name one as root, or give --hidden\n"
    )
    folders = [".curated", ".system", "plugin/.claude"]
    for command in ("list", "validate"):
        done = run(command, tmp_path)
        assert (done.returncode, done.stderr) == (1, message)
        counted = {
            "root": str(tmp_path), "skills": 5, "folders": folders, "complete": True, "reason": "dot-folder",
        }  # fmt: skip
        assert json_of(command, tmp_path)["passed_over"] == [counted]
    assert message in run("publish", tmp_path, "--output", tmp_path.parent / "out").stderr


def test_uri_with_dot_folder_works_in_every_method(tmp_path: Path) -> None:
    two, uri = write_dot_folders(tmp_path) / ".curated/two", "skill://.curated/two"
    (two / "guide.md").write_text("Read on.\n")
    (two / "also.md").symlink_to("guide.md")
    (two / ".secret").write_text("x")
    (two / "leak.md").symlink_to(".secret")
    with local_serving(tmp_path, "--hidden", era="modern") as wire:
        entries = {each["uri"] for each in wire.every_skill()}
        assert f"{uri}/SKILL.md" in entries and len(entries) == 5
        found = wire.request("skills/get", {"uri": f"{uri}/SKILL.md"})["skill"]["resources"]
        assert {each["uri"] for each in found} == {f"{uri}/{name}.md" for name in ("SKILL", "guide", "also")}
        assert wire.read(f"{uri}/guide.md") == wire.read(f"{uri}/also.md") == b"Read on.\n"
        listed = wire.request("resources/directory/read", {"uri": "skill://.curated"})
        assert {each["uri"] for each in listed["resources"]} == {"skill://.curated/one", uri}
        for bad in (f"{uri}/.secret", f"{uri}/leak.md", f"{uri}/../one/SKILL.md", f"{uri}/./SKILL.md",
                    f"{uri}/%2e%2e/one/SKILL.md", "skill://../x", "skill://.git/hooks/five/SKILL.md"):  # fmt: skip
            with pytest.raises(WireError):
                wire.read(bad)


def test_list_and_validate_report_shadowed_skills_of_several_roots(tmp_path: Path) -> None:
    write_skill(tmp_path / "one" / "same")
    write_skill(tmp_path / "two" / "same", description="")
    write_skill(tmp_path / "two" / "other")
    (tmp_path / "two" / "link").symlink_to(tmp_path / "one")
    roots = (tmp_path / "one", tmp_path / "two")
    listed, validated = json_of("list", *roots), json_of("validate", *roots)
    assert [each["path"] for each in listed["skills"]] == ["other", "same"]
    shown = {(each["code"], each["skill"]) for each in listed["problems"]}
    assert shown == {("shadowed", "same"), ("link-outside", "")}
    found = {each["code"]: each for each in validated["problems"]}
    assert validated["skills"] == 3 and set(found) == {"shadowed", "link-outside", "description-missing"}
    assert found["shadowed"]["path"] == str(tmp_path / "two/same")
    assert f"is hidden by {tmp_path / 'one/same'}" in found["shadowed"]["message"]
    assert "[shadowed]" not in run("validate", tmp_path / "two", tmp_path / "two/other").stdout


def test_dependency_on_skill_of_another_root_is_resolved(tmp_path: Path) -> None:
    needs = "Does a thing.\ndependencies:\n  resources: [skill://first/SKILL.md]"
    one, two = (
        write_skill(tmp_path / "one" / "first").parent,
        write_skill(tmp_path / "two" / "second", description=needs).parent,
    )
    assert "[dependency-unresolved]" in run("validate", two).stdout
    assert "[dependency-unresolved]" not in run("validate", one, two).stdout


def test_skill_over_a_limit_is_marked_by_every_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_skill(tmp_path / "big", **{f"f{number}_md": "x" for number in range(9)})
    (tmp_path / "c.toml").write_text("max-files = 4\n")
    few, message = ("--config", str(tmp_path / "c.toml")), "the skill has 10 files, 4 are allowed"
    assert "(not listed)" in run("list", tmp_path, *few).stdout
    shown = run("show", tmp_path, "big", *few).stdout
    assert "not listed; tools, prompts and the Skills Protocol have it" in shown and "[too-many-files]" in shown
    done = run("validate", tmp_path, *few)
    assert done.returncode == 1 and f"{message}; it is not listed" in done.stdout
    with local_serving(tmp_path, *few) as wire:
        assert wire.every_skill() == []
        result = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["big"]}})
        assert not result.get("isError") and "# Thing" in json.dumps(result)
        result = wire.request("tools/call", {"name": "skills_read", "arguments": {"skill": "big", "path": "f8.md"}})
        assert result["isError"]
        assert message in caplog.text


@each_row(("command", "first"), [("validate", "3 skills, 0 errors"), ("list", "PATH ")])
def test_progress_is_shown_only_on_a_terminal_and_erased(command: str, first: str, tmp_path: Path) -> None:
    for number in range(3):
        write_skill(tmp_path / f"skill-{number}")
    assert run(command, tmp_path).stderr == ""
    with terminal(command, tmp_path) as screen:
        assert screen.end() == 0 and "Checking skills" in screen.seen
        _, _, after = screen.seen.partition("100%")
        # the bar ends with a line break: one line up, erase it, go on there
        assert re.match(rf"[^\n]*\r?\n\x1b\[A\x1b\[2K(\x1b\[\d*m)?{re.escape(first)}", after), after


@each_row(("variable", "value", "message"), [
    ("MCP_SKILLS_WATCH", "maybe", "MCP_SKILLS_WATCH: 'maybe' is not a valid boolean"),
    ("MCP_SKILLS_PAGE_SIZE", "0", "MCP_SKILLS_PAGE_SIZE: 0 is not in the range"),
    ("MCP_SKILLS_DIALECT", "x", "MCP_SKILLS_DIALECT: 'x' is not one of"),
    ("MCP_SKILLS_SESSION_IDLE", "inf", "MCP_SKILLS_SESSION_IDLE: inf is not a number of seconds"),
    ("MCP_SKILLS_DRAIN", "nan", "MCP_SKILLS_DRAIN: nan is not a number of seconds"),
])  # fmt: skip
def test_bad_environment_value_is_reported_by_variable_name(variable: str, value: str, message: str) -> None:
    done = run("serve", FIXTURES, **{variable: value})
    assert done.returncode == 2
    assert done.stderr.startswith(f"mcp-skills-server: {message}") and done.stderr.count("\n") == 1
    assert "--page-size" in run("serve", FIXTURES, "--page-size", "0", MCP_SKILLS_PAGE_SIZE="7").stderr


def test_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mcp_skills_server.commands.look.make_registry", interrupted)
    monkeypatch.setattr("sys.argv", ["mcp-skills-server", "list", "."])
    for start in (main, __main__.main):
        with pytest.raises(SystemExit) as ended:
            start()
        assert ended.value.code == 130 and "130 ended by" in (ROOT / "README.md").read_text(encoding="utf-8")
        monkeypatch.setattr("mcp_skills_server.cli.main", interrupted)  # as if the import itself were interrupted


@each_row("error", [OSError(errno.ENOSPC, "full", "file"), OSError(errno.EACCES, "no")])
def test_oserror_unrelated_to_output_is_raised(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    monkeypatch.setattr("mcp_skills_server.commands.look.make_registry", Mock(side_effect=error))
    with pytest.raises(OSError, match=r"full|no"):
        main(["list", "."])


@each_row(("options", "environment", "message"), [
    (["--max-body", "5000"], {"MCP_SKILLS_TOKENS": "me=0123456789abcdef0123"}, "--tokens, --max-body"),
    (["--redis", "redis://127.0.0.1:1"], {}, "--redis"),
    (["--ui", "--probe-address", "127.0.0.1:0"], {}, "--probe-address, --ui"), ([], {}, None),
])  # fmt: skip
def test_http_options_over_stdio_are_named_in_one_warning(
    options: list[str], environment: dict[str, str], message: str | None
) -> None:
    """Without the warning, tokens over stdio would seem to protect something."""
    done = run("serve", FIXTURES, *options, **environment)
    warned = [line for line in done.stderr.split("\n") if "WARNING" in line]
    wanted = [f"mcp-skills-server: WARNING: no effect without --transport http: {message}"] if message else []
    assert warned == wanted and "0123456789abcdef" not in done.stderr


OPEN = """
import os, sys
from mcp_skills_server.cli import _open_standard_streams
_open_standard_streams()
sys.stdin.read()
ours = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)] == [0, 1, 2]
closed, others = int(sys.argv[1]), len(os.listdir("/dev/fd")) - 4
sys.exit(f"{ours} {others}" if not ours or others or not os.path.samefile(f"/dev/fd/{closed}", os.devnull) else 0)
"""
CLOSED = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a directory in use")
@each_row("words", ["", "list .", f"install cursor {FIXTURES} --print"])
def test_deleted_working_directory_is_reported_in_one_line(tmp_path: Path, words: str) -> None:
    (gone := tmp_path / "gone").mkdir(exist_ok=True)
    command = " ".join((sys.executable, "-m", "mcp_skills_server", words))
    done = subprocess.run(
        ["sh", "-c", f"rmdir {gone} && exec {command}"],
        cwd=gone, capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    message = "the current folder no longer exists; change to one that does"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"mcp-skills-server: {message}")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors of POSIX")
@each_row("closed", [0, 1, 2])
@each_row("command", ["serve", ""])
def test_standard_stream_closed_by_parent_is_treated_as_empty(command: str, closed: int) -> None:
    module = ["-m", "mcp_skills_server", command, str(FIXTURES)] if command else ["-c", OPEN, str(closed)]
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, str(closed), *module],
        input=b"", capture_output=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@each_row(("command", "message", "code"), [
    ("serve", "the server ends: stdout cannot be written (No space left on device)", 0),
    ("rpc", "the server ends: stdout cannot be written (No space left on device)", 0),
    ("list", "the output cannot be written (No space left on device); make space, or write it elsewhere", 2),
])  # fmt: skip
def test_output_that_cannot_be_written_is_reported_in_one_line(command: str, message: str, code: int) -> None:
    hello = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    with open("/dev/full", "wb") as full:
        done = forkserver.run(
            [*COMMAND, command, str(FIXTURES)], input=hello, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE
        )
    errors = done.stderr.decode()
    assert errors.count(message) == 1 and "Traceback" not in errors and "Exception" not in errors
    assert done.returncode == code


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
@pytest.mark.parametrize("arguments", [["list"], ["validate", "--format", "json"]], ids=" ".join)
def test_output_is_written_in_any_encoding_and_json_stays_valid(
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
    text = written.getvalue().decode("utf-8" if encoding == "ascii" else encoding)  # click replaces ASCII by UTF-8
    if "json" in arguments:
        assert "日本" in str(json.loads(text))
