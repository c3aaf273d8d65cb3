"""The table of kinds: the text that is given decides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.archive import Archive
from mcp_skills_server.sources.git.source import GitFolder
from mcp_skills_server.sources.kinds import open_source
from mcp_skills_server.sources.oci.source import Oci
from mcp_skills_server.sources.site import Site
from mcp_skills_server.sources.source import SourceSettings
from tables import each_row


@each_row(
    ("given", "kind"),
    [
        ("https://example.com", Site),
        ("HTTP://example.com", Site),
        ("oci://registry.example/skills:1.0", Oci),
        ("OCI+HTTP://localhost/skills", Oci),
        ("git+https://example.com/a", GitFolder),
        ("git+file:///a.zip", GitFolder),
        ("a.zip", Archive),
        ("b.zip", type(None)),
        (".", type(None)),
    ],
)
def test_the_text_decides_the_kind(
    given: str, kind: type[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.zip").write_bytes(b"")
    source = open_source(given, SourceSettings(tmp_path / "cache", refresh_s=1.0))
    assert type(source) is kind
    if source is not None and source.remote:  # is tried again within five minutes
        assert source.last_retry_s == 300.0 and source.check_s == (source.own_check_s or 1.0)


@each_row(
    ("given", "said"),
    [
        ("git@git.example:acme/skills.git", "write git+ssh://git@git.example/acme/skills.git"),
        ("ssh://git@git.example:22/acme/skills", "write git+ssh://git@git.example:22/acme/skills"),
        ("https://git.example/acme/skills.git", "write git+https://git.example/acme/skills.git"),
        ("https://me:secret@git.example/acme/skills.git", "write git+https://git.example/acme/skills.git"),
    ],
)
def test_an_address_that_git_takes_is_told_how_it_is_written(given: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        open_source(given, SourceSettings(tmp_path / "cache"))
    assert "secret" not in str(caught.value)


def test_only_a_source_over_http_loads_the_http_client() -> None:
    names = "mcp_skills_server.sources.git.source, mcp_skills_server.sources.kinds"
    code = f"import sys, {names}; print('httpcore2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
