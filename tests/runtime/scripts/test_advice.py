"""What would help a script that failed for want of something that the operator can give."""

from __future__ import annotations

import pytest

from mcp_skills_server.runtime.scripts.advice import advice


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("stderr", "name"),
    [
        ("/skills/a/scripts/x.sh: 3: pdftotext: not found\n", "pdftotext"),
        ("x.sh: line 1: jq: command not found\n", "jq"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'\n", "ffmpeg"),
    ],
)
def test_a_missing_program_is_named(stderr: str, name: str) -> None:
    (said,) = advice(stderr, network_closed=True)
    assert f"the program {name} is not there" in said


@pytest.mark.parametrize("stderr", ["", "ValueError: x\n", "No such file or directory: '/a/b c.txt'\n"])
def test_nothing_is_said_of_other_failures(stderr: str) -> None:
    assert advice(stderr, network_closed=True) == []
