"""Outcomes of runs: output, the server's remarks at the end of stderr, and advice."""

from __future__ import annotations

from mcp_skills_server.runtime.scripts.outcome import OURS, advice, as_line, outcome_of, remarks_on
from mcp_skills_server.runtime.scripts.output_files import OutputFile, OutputFiles
from mcp_skills_server.runtime.scripts.processes import ProcessResult
from tables import each_row


@each_row(("stderr", "remark", "expected"), [
    ("", "", ""), ("bad", "", "bad"), ("", as_line("ended"), f"{OURS} ended\n"),
    ("bad", as_line("ended"), f"bad\n{OURS} ended\n"), ("bad\n", as_line("ended"), f"bad\n{OURS} ended\n"),
])  # fmt: skip
def test_remarks_are_appended_to_stderr_as_lines(stderr: str, remark: str, expected: str) -> None:
    ended = ProcessResult(1, "out", stderr, 5, stdout_truncated=True)
    files = OutputFiles((OutputFile("a", 1),), 3)
    outcome = outcome_of("scripts/x.sh", ended, remark, None, files)
    assert (outcome.stderr, outcome.stdout, outcome.stdout_truncated) == (expected, "out", True)
    assert (outcome.files, outcome.files_not_shown) == files


def test_remarks_explain_why_the_server_ended_a_script() -> None:
    stderr = "ModuleNotFoundError: No module named 'x'"
    timed_out = ProcessResult(None, "", stderr, 5, timed_out=True)
    remarks = remarks_on(timed_out, None, 2.5, network_closed=True)
    assert remarks == ["the script was ended after its time limit of 2.5 s"]
    stopped = ProcessResult(None, "", stderr, 5, stopped=True)
    assert remarks_on(stopped, "it was big", 2.5, network_closed=True) == ["the script was ended because it was big"]


def test_advice_is_for_failed_scripts_and_from_end_of_stderr() -> None:
    stderr = "ModuleNotFoundError: No module named 'x'"
    for code, count in ((0, 0), (1, 1)):
        assert len(remarks_on(ProcessResult(code, "", stderr, 5), None, 1, network_closed=False)) == count
    for length, count in ((16_384, 1), (16_385, 0)):
        assert len(advice(stderr.ljust(length + len("ModuleNotFoundError: "), "."), network_closed=False)) == count


@each_row("stderr", [
    "OSError: [Errno 101] Network is unreachable",
    "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    "Error: getaddrinfo EAI_AGAIN example.com",
    "curl: (6) Could not resolve host: example.com",
])  # fmt: skip
def test_network_error_without_network_names_the_option(stderr: str) -> None:
    (line,) = advice(f"Traceback\n{stderr}\n", network_closed=True)
    assert "no network here" in line and "--script-network" in line
    assert advice(stderr, network_closed=False) == []


@each_row(("stderr", "missing"), [
    ("ModuleNotFoundError: No module named 'numpy.linalg'\n", "package numpy.linalg"),
    ("/usr/bin/python3: No module named pypdf\n", "package pypdf"),
    ("Error: Cannot find module 'left-pad'\nRequire stack:\n", "package left-pad"),
    ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'sharp' imported from /skills/x\n", "package sharp"),
    ("cannot load such file -- nokogiri (LoadError)\n", "package nokogiri"),
    ("Can't locate JSON/XS.pm in @INC\n", "package JSON/XS.pm"),
    ("/skills/a/scripts/x.sh: 3: pdftotext: not found\n", "program pdftotext"),
    ("x.sh: line 1: jq: command not found\n", "program jq"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'\n", "program ffmpeg"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'python3.12'\n", "program python3.12"),
])  # fmt: skip
def test_missing_package_or_program_is_named_with_remedy(stderr: str, missing: str) -> None:
    (line,) = advice(stderr, network_closed=True)
    if missing.startswith("package"):
        assert f"the {missing} is missing" in line and "--interpreter" in line
    else:
        assert f"the {missing} is not available to scripts" in line


@each_row("stderr", [
    "", "ValueError: x\n", "No such file or directory: '/a/b c.txt'\n", "No such file or directory: 'data.csv'\n",
])  # fmt: skip
def test_other_errors_have_no_advice(stderr: str) -> None:
    assert advice(stderr, network_closed=True) == []
