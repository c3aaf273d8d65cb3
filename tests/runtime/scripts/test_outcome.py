"""What came of a run: the streams as they are, and the server's remarks as lines at the end of stderr."""

from __future__ import annotations

from mcp_skills_server.runtime.scripts.outcome import OURS, advice, as_line, outcome_of, remarks_on
from mcp_skills_server.runtime.scripts.output_files import OutputFile
from mcp_skills_server.runtime.scripts.processes import ProcessResult
from tables import each_row


@each_row(
    ("stderr", "remark", "shown"),
    [
        ("", "", ""), ("bad", "", "bad"), ("", as_line("ended"), f"{OURS} ended\n"),
        ("bad", as_line("ended"), f"bad\n{OURS} ended\n"), ("bad\n", as_line("ended"), f"bad\n{OURS} ended\n"),
    ],
)  # fmt: skip
def test_remarks_are_appended_to_stderr_as_lines(stderr: str, remark: str, shown: str) -> None:
    ended = ProcessResult(1, "out", stderr, 5, stdout_truncated=True)
    files = (OutputFile("a", 1),), 3
    outcome = outcome_of("scripts/x.sh", ended, remark, None, files)
    assert (outcome.stderr, outcome.stdout, outcome.stdout_truncated) == (shown, "out", True)
    assert (outcome.files, outcome.files_not_shown) == files


def test_remarks_explain_why_the_server_ended_a_script() -> None:
    stderr = "ModuleNotFoundError: No module named 'x'"
    timed_out = ProcessResult(None, "", stderr, 5, timed_out=True)
    said = remarks_on(timed_out, None, 2.5, network_closed=True)
    assert said == ["the script was ended after its time limit of 2.5 s"]
    stopped = ProcessResult(None, "", stderr, 5, stopped=True)
    assert remarks_on(stopped, "it was big", 2.5, network_closed=True) == ["the script was ended because it was big"]
    for code, count in ((0, 0), (1, 1)):
        assert len(remarks_on(ProcessResult(code, "", stderr, 5), None, 1, network_closed=False)) == count
    for length, count in ((16_384, 1), (16_385, 0)):  # errors come last
        assert len(advice(stderr.ljust(length + len("ModuleNotFoundError: "), "."), network_closed=False)) == count


@each_row(
    "stderr",
    [
        "OSError: [Errno 101] Network is unreachable",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "Error: getaddrinfo EAI_AGAIN example.com",
        "curl: (6) Could not resolve host: example.com",
    ],
)
def test_network_error_without_network_names_the_option(stderr: str) -> None:
    (said,) = advice(f"Traceback\n{stderr}\n", network_closed=True)
    assert "no network here" in said and "--script-network" in said
    assert advice(stderr, network_closed=False) == []


@each_row(
    ("stderr", "said"),
    [
        ("ModuleNotFoundError: No module named 'numpy.linalg'\n", "package numpy.linalg"),
        ("/usr/bin/python3: No module named pypdf\n", "package pypdf"),
        ("Error: Cannot find module 'left-pad'\nRequire stack:\n", "package left-pad"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'sharp' imported from /skills/x\n", "package sharp"),
        ("cannot load such file -- nokogiri (LoadError)\n", "package nokogiri"),
        ("Can't locate JSON/XS.pm in @INC\n", "package JSON/XS.pm"),
        ("/skills/a/scripts/x.sh: 3: pdftotext: not found\n", "program pdftotext"),
        ("x.sh: line 1: jq: command not found\n", "program jq"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'\n", "program ffmpeg"),
        ("", None), ("ValueError: x\n", None), ("No such file or directory: '/a/b c.txt'\n", None),
    ],
)  # fmt: skip
def test_missing_package_or_program_is_named_with_remedy(stderr: str, said: str | None) -> None:
    found = advice(stderr, network_closed=True)
    if said is None:
        assert found == []
    elif said.startswith("package"):
        assert f"the {said} is missing" in found[0] and "--interpreter" in found[0] and len(found) == 1
    else:
        assert f"the {said} is not available to scripts" in found[0] and len(found) == 1
