"""Records of fetched skills and of indexes: what is believed of them, and who may read them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.sources.folder import FetchedFolder, SkillState
from mcp_skills_server.sources.records import IndexRecord, read_indexes, read_records
from sources.test_folder import SOURCE, put, state


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"name": "a"}', b"\xff"])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, raw: bytes) -> None:
    put(tmp_path)
    (tmp_path / ".mcp-skills" / "skills" / "a.json").write_bytes(raw)
    assert read_records(tmp_path) == [] and state(tmp_path) is SkillState.FOREIGN


def test_sources_are_remembered_for_their_owner_alone(tmp_path: Path) -> None:
    source = IndexRecord(
        SOURCE, "https://example.com", SOURCE, SOURCE, "{}\udcff", {"If-None-Match": '"1"'}, 5.0, 9.0, ("a",)
    )
    with FetchedFolder.opened(tmp_path) as store:
        assert store.index(SOURCE) is None
        store.put_index(source)
        assert store.index(SOURCE) == source
    assert read_indexes(tmp_path) == [source] and read_indexes(tmp_path / "nothing") == []
    (file,) = (tmp_path / ".mcp-skills" / "sources").iterdir()
    assert json.loads(file.read_bytes())["version"] == 1
    if sys.platform != "win32":
        assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "changed", [{"name": "../../outside"}, {"name": "b"}, {"files": {"../../outside/precious": "0" * 64}}]
)
def test_a_record_that_names_another_place_is_not_believed(tmp_path: Path, changed: dict[str, Any]) -> None:
    seen = {"name": "a", "source": "s", "url": "u", "digest": "", "fetched_at": 0, "files": {}, "former": None}
    folder = tmp_path / "skills" / ".mcp-skills" / "skills"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps(seen))
    assert [record.name for record in read_records(tmp_path / "skills")] == ["a"]
    (folder / "a.json").write_text(json.dumps(seen | changed))
    assert read_records(tmp_path / "skills") == []
