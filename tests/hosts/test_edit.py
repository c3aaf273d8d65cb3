"""Edits of a configuration, bytes to bytes: what is proved before it is handed out, and what is refused."""

from __future__ import annotations

import json

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import edit
from mcp_skills_server.hosts.table import HOSTS

COMMAND = ["mcp-skills-server"]
BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"\xff", 1),
        (BOM + b"\xff", 1),
        (b'{\n"a": "\xfc"}', 2),
        (BOM + b'{\n\n"a": "\xfc"\n\n}', 3),
        (b"{}\n\xe9\n", 2),
    ],
)
@pytest.mark.parametrize("host", ["cursor", "codex"])
def test_bytes_that_are_no_utf8_are_told_by_their_line(host: str, raw: bytes, line: int) -> None:
    for change in (
        lambda: edit.install(raw, HOSTS[host], "skills", edit.entry_for(HOSTS[host], COMMAND, ["/s"]), COMMAND),
        lambda: edit.uninstall(raw, HOSTS[host], "skills", COMMAND),
    ):
        with pytest.raises(UsageError, match=rf"^not UTF-8 at line {line}; save it as UTF-8$"):
            change()


@pytest.mark.parametrize("bom", [b"", BOM])
@pytest.mark.parametrize("host", HOSTS)
def test_an_entry_comes_and_goes_and_the_mark_at_the_beginning_stays(host: str, bom: bytes) -> None:
    row = HOSTS[host]
    before = b"" if row.form == "toml" else b"{}"
    entry = edit.entry_for(row, COMMAND, ["/s"])
    after = edit.install(bom + before, row, "skills", entry, COMMAND)
    assert after.startswith(bom) and not after.removeprefix(bom).startswith(BOM)
    assert edit.install(after, row, "skills", entry, COMMAND) == after
    gone = edit.uninstall(after, row, "skills", COMMAND)
    assert gone is not None and gone.startswith(bom)
    assert edit.uninstall(gone, row, "skills", COMMAND) is None


def test_the_snippet_is_what_a_new_file_has() -> None:
    for host in HOSTS.values():
        entry = edit.entry_for(host, COMMAND, ["/s"])
        assert edit.install(None, host, "skills", entry, COMMAND) == edit.snippet(host, "skills", entry).encode()


def test_another_server_of_the_same_name_stays() -> None:
    raw = json.dumps({"mcpServers": {"skills": {"command": "other", "args": ["mcp-skills-server"]}}}).encode()
    host = HOSTS["cursor"]
    with pytest.raises(UsageError, match="choose another name with --name"):
        edit.install(raw, host, "skills", edit.entry_for(host, COMMAND, ["/s"]), COMMAND)
    with pytest.raises(UsageError, match="and stays; name ours with --name"):
        edit.uninstall(raw, host, "skills", COMMAND)
