"""What the methods of the Skills Protocol answer."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.dialects import skills_protocol as dialect
from mcp_skills_server.dialects.skills_protocol import BlobRequest, Run
from mcp_skills_server.format import manifest
from tables import each_row

FOUND = manifest.read(
    b'name = "a.b"\nversion = "1.0.0"\ndescription = "D."\nkind = "instruction"\nx = 1\n', {"name": "b"}, "a/b"
).manifest
assert FOUND is not None


@pytest.mark.requirement("SP-3", "SP-4", "SP-5", "SP-6")
def test_a_list_shows_exactly_what_its_detail_says() -> None:
    assert dialect.skill_list([FOUND], "names", None) == {
        "skills": [{"name": "a.b", "version": "1.0.0"}],
        "next_cursor": None,
    }
    (entry,) = dialect.skill_list([FOUND], "summary", "more")["skills"]  # type: ignore[misc]
    assert entry == {"name": "a.b", "version": "1.0.0", "description": "D.", "namespace": "a", "kind": "instruction"}


@pytest.mark.requirement("SP-20", "SP-25")
def test_a_run_has_all_its_fields_and_an_error_only_if_it_failed() -> None:
    fields = {"status", "run_id", "summary", "output", "output_blobs", "logs_preview"}
    done = dialect.run(Run("run_1", "Done.", {"a": 1}, ("blob:1",), "log"))
    assert set(done) == fields and done["status"] == "completed" and done["output_blobs"] == ["blob:1"]
    gone = dialect.run(Run("run_1", "No.", error=("timeout", "No.")))
    assert set(gone) == fields | {"error"} and gone["status"] == "failed"
    assert gone["error"] == {"type": "timeout", "message": "No."}


@pytest.mark.requirement("SP-28")
@each_row(("mode", "most", "content", "truncated"), [
    ("sample_head", 3, "aé", True), ("sample_head", 2, "a", True), ("sample_tail", 3, "éz", True),
    ("sample_tail", 2, "z", True), ("full", None, "aéz", False), ("full", 1, "a", True),
    ("sample_head", 4, "aéz", False),
])  # fmt: skip
def test_a_part_of_a_blob_is_cut_between_characters(mode: Any, most: int | None, content: str, truncated: bool) -> None:
    part = dialect.blob_part("aéz".encode(), BlobRequest("b", mode, most))
    assert part == {"content": content, "truncated": truncated}


@given(st.binary(max_size=64), st.sampled_from(["sample_head", "sample_tail", "full"]), st.none() | st.integers(1, 80))
def test_any_part_of_any_blob_is_of_that_blob(raw: bytes, mode: Any, most: int | None) -> None:
    part = dialect.blob_part(raw, BlobRequest("b", mode, most))
    seen = str(part["content"])
    got = b64decode(seen) if part.get("encoding") == "base64" else seen.encode()
    assert (raw.endswith(got) if mode == "sample_tail" else raw.startswith(got)) and len(got) <= (most or 64)
    assert part["truncated"] == (most is not None and most < len(raw))
    assert part["truncated"] or got == raw
    json.dumps(part)
