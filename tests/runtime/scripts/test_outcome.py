"""What came of a run: the streams as they are, and the server's remarks as lines at the end of stderr."""

from __future__ import annotations

from mcp_skills_server.runtime.scripts.outcome import OURS, advice, as_line, outcome_of, remarks_on
from mcp_skills_server.runtime.scripts.output_files import OutputFile
from mcp_skills_server.runtime.scripts.processes import ProcessResult
from tables import each_row


@each_row(
    ("stderr", "remark", "shown"),
    [
        ("", "", ""),
        ("bad", "", "bad"),
        ("", as_line("ended"), f"{OURS} ended\n"),
        ("bad", as_line("ended"), f"bad\n{OURS} ended\n"),
        ("bad\n", as_line("ended"), f"bad\n{OURS} ended\n"),
    ],
)
def test_remarks_are_lines_of_their_own_behind_stderr(stderr: str, remark: str, shown: str) -> None:
    ended = ProcessResult(1, "out", stderr, 5, stdout_truncated=True)
    files = (OutputFile("a", 1),), 3
    outcome = outcome_of("scripts/x.sh", ended, remark, None, files)
    assert (outcome.stderr, outcome.stdout, outcome.stdout_truncated) == (shown, "out", True)
    assert (outcome.files, outcome.files_not_shown) == files
    assert (outcome.sandbox, outcome.sandbox_gaps) == ("none", ())


def test_a_script_that_the_server_ended_is_said_to_be() -> None:
    timed_out = ProcessResult(None, "", "", 5, timed_out=True)
    assert remarks_on(timed_out, None, 2.5, network_closed=True) == [
        "the script was ended after its time limit of 2.5 s"
    ]
    stopped = ProcessResult(None, "", "", 5, stopped=True)
    assert remarks_on(stopped, "it was big", 2.5, network_closed=True) == ["the script was ended because it was big"]


def test_advice_is_for_scripts_that_failed() -> None:
    for code, count in ((0, 0), (1, 1), (None, 0)):
        ended = ProcessResult(code, "", "ModuleNotFoundError: No module named 'x'", 5)
        assert len(remarks_on(ended, None, 1, network_closed=False)) == count


@each_row(
    "stderr",
    [
        "OSError: [Errno 101] Network is unreachable",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "Error: getaddrinfo EAI_AGAIN example.com",
        "curl: (6) Could not resolve host: example.com",
    ],
)
def test_a_closed_network_is_named_with_its_option(stderr: str) -> None:
    (said,) = advice(f"Traceback\n{stderr}\n", network_closed=True)
    assert "no network here" in said and "--script-network" in said
    assert advice(stderr, network_closed=False) == []


@each_row(
    ("stderr", "name"),
    [
        ("ModuleNotFoundError: No module named 'numpy.linalg'\n", "numpy.linalg"),
        ("/usr/bin/python3: No module named pypdf\n", "pypdf"),
        ("Error: Cannot find module 'left-pad'\nRequire stack:\n", "left-pad"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'sharp' imported from /skills/x\n", "sharp"),
        ("cannot load such file -- nokogiri (LoadError)\n", "nokogiri"),
        ("Can't locate JSON/XS.pm in @INC\n", "JSON/XS.pm"),
    ],
)
def test_a_missing_package_is_named_with_the_option_that_helps(stderr: str, name: str) -> None:
    (said,) = advice(stderr, network_closed=True)
    assert f"the package {name} is missing" in said and "--interpreter" in said


@each_row(
    ("stderr", "name"),
    [
        ("/skills/a/scripts/x.sh: 3: pdftotext: not found\n", "pdftotext"),
        ("x.sh: line 1: jq: command not found\n", "jq"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'\n", "ffmpeg"),
    ],
)
def test_a_missing_program_is_named(stderr: str, name: str) -> None:
    (said,) = advice(stderr, network_closed=True)
    assert f"the program {name} is not available to scripts" in said


@each_row("stderr", ["", "ValueError: x\n", "No such file or directory: '/a/b c.txt'\n"])
def test_nothing_is_said_of_other_failures(stderr: str) -> None:
    assert advice(stderr, network_closed=True) == []
