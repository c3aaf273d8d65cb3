"""The table of kinds: the text that is given decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_skills_server.sources.archive import Archive
from mcp_skills_server.sources.directory import Directory
from mcp_skills_server.sources.git.source import GitFolder
from mcp_skills_server.sources.kinds import open_source
from mcp_skills_server.sources.oci.source import Oci
from mcp_skills_server.sources.settings import SourceSettings
from mcp_skills_server.sources.site import Site


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("https://example.com", Site),
        ("HTTP://example.com", Site),
        ("oci://registry.example/skills:1.0", Oci),
        ("OCI+HTTP://localhost/skills", Oci),
        ("git+https://example.com/a", GitFolder),
        ("git+file:///a.zip", GitFolder),
        ("a.zip", Archive),
        ("b.zip", Directory),
        (".", Directory),
    ],
)
def test_the_text_decides_the_kind(
    given: str, kind: type[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.zip").write_bytes(b"")
    assert type(open_source(given, SourceSettings(tmp_path / "cache"))) is kind
