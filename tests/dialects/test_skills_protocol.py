"""Skills Protocol: params of its methods, and parts of blobs."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.dialects import skills_protocol as dialect
from mcp_skills_server.dialects.skills_protocol import BlobRequest
from mcp_skills_server.errors import RequestError
from tables import each_row

from .build import JSON

METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    dialect.LIST: (dialect.listing, {}),
    dialect.DESCRIBE: (dialect.description, {"name": "a"}),
    dialect.READ: (dialect.file_request, {"name": "a", "path": "b"}),
    dialect.EXECUTE: (dialect.execution, {"name": "a"}),
    dialect.RUN_CODE: (dialect.code_execution, {"language": "sh", "code": "true"}),
    dialect.CREATE_BLOB: (dialect.blob_content, {"content": ""}),
    dialect.READ_BLOB: (dialect.blob_request, {"blob_id": "blob:1"}),
}
"""The parser of each method's params, and the params that it requires."""


@pytest.mark.requirement("SP-21")
def test_protocol_has_eight_methods() -> None:
    assert set(dialect.METHODS) == {
        "list_skills", "describe_skill", "read_skill_file", "execute_skill",
        "run_code", "create_blob", "read_blob", "load_skills_protocol_guide",
    }  # fmt: skip
    assert set(METHODS) | {dialect.GUIDE} == set(dialect.METHODS)


@pytest.mark.requirement("SP-1", "SP-2", "SP-9", "SP-10", "SP-28")
@each_row(("parse", "params", "request"), [
    (dialect.listing, {}, (None, "names", 50, None)),
    (dialect.listing, {"namespace": "acme", "limit": 1}, ("acme", "names", 1, None)),
    (dialect.listing, {"namespace": "", "limit": 999}, (None, "names", 999, None)),
    (dialect.listing, {"limit": 1000}, (None, "names", 1000, None)),
    (dialect.listing, {"limit": 1001}, (None, "names", 1000, None)),
    (dialect.description, {"name": "a"}, ("a", None, "summary")),
    (dialect.blob_content, {"content": "x", "kind": "text/csv"}, "x"),
    (dialect.blob_request, {"blob_id": "b"}, ("b", "sample_head", 4096)),
    (dialect.blob_request, {"blob_id": "b", "mode": "full"}, ("b", "full", None)),
])  # fmt: skip
def test_absent_params_have_defaults(parse: Any, params: dict[str, Any], request: tuple[Any, ...]) -> None:
    assert parse(params) == request


@each_row("method", METHODS)
def test_null_and_unknown_params_are_ignored(method: str) -> None:
    nulls = dict.fromkeys(
        ("namespace", "detail", "limit", "cursor", "version", "args", "input_blobs", "timeout_ms", "mode", "max_bytes",
         "entrypoint", "mount_skills", "kind")
    )  # fmt: skip
    parse, required = METHODS[method]
    assert parse({**nulls, "of the future": 1, **required}) == parse(required)


@each_row(("method", "params", "reason"), [
    (dialect.LIST, {"detail": "full"}, "detail must be names or summary, not 'full'"),
    (dialect.LIST, {"limit": 0}, "limit must be an integer of at least 1"),
    (dialect.LIST, {"limit": 5.0}, "limit must be an integer"),
    (dialect.LIST, {"cursor": 5}, "cursor must be a string"), (dialect.DESCRIBE, {"name": ""}, "name is missing"),
    (dialect.DESCRIBE, {"version": 1}, "version must be a string"),
    (dialect.EXECUTE, {"args": []}, "args must be an object"),
    (dialect.EXECUTE, {"input_blobs": "blob:1"}, "input_blobs must be an array of strings"),
    (dialect.EXECUTE, {"input_blobs": [1]}, "input_blobs must be an array of strings"),
    (dialect.RUN_CODE, {"mount_skills": {}}, "mount_skills must be an array of strings"),
    (dialect.CREATE_BLOB, {"content": None}, "content is missing"),
    (dialect.READ_BLOB, {"mode": "all"}, "mode must be sample_head or sample_tail or full"),
])  # fmt: skip
def test_invalid_param_is_refused_by_name(method: str, params: dict[str, Any], reason: str) -> None:
    parse, required = METHODS[method]
    with pytest.raises(RequestError, match=reason):
        parse({**required, **params})


NAMES = st.sampled_from(["name", "path", "language", "code", "content", "blob_id", "limit", "mode", "args"])


@given(st.sampled_from(sorted(METHODS)), st.dictionaries(NAMES, JSON))
def test_any_params_are_parsed_or_refused(method: str, params: dict[str, Any]) -> None:
    with suppress(RequestError):
        METHODS[method][0](params)


@pytest.mark.requirement("SP-28")
@each_row(("mode", "most", "content", "truncated"), [
    ("sample_head", 3, "aé", True), ("sample_head", 2, "a", True), ("sample_tail", 3, "éz", True),
    ("sample_tail", 2, "z", True), ("full", None, "aéz", False), ("full", 1, "a", True),
    ("sample_head", 4, "aéz", False),
])  # fmt: skip
def test_part_of_a_text_blob_ends_between_characters(
    mode: Any, most: int | None, content: str, truncated: bool
) -> None:
    part = dialect.blob_part("aéz".encode(), BlobRequest("b", mode, most))
    assert part == {"content": content, "truncated": truncated}
    four_bytes = BlobRequest("b", "sample_head", 4)
    assert dialect.blob_part("a😀".encode(), four_bytes) == {"content": "a", "truncated": True}
    assert dialect.blob_part(b"a" + b"\xff" * 5, BlobRequest("b", "sample_head", 5))["encoding"] == "base64"


@example(b"\xff" * 9, "sample_head", 5)
@given(st.binary(max_size=64), st.sampled_from(["sample_head", "sample_tail", "full"]), st.none() | st.integers(1, 80))
def test_part_of_any_blob_is_its_beginning_or_end(raw: bytes, mode: Any, most: int | None) -> None:
    part = dialect.blob_part(raw, BlobRequest("b", mode, most))
    json.dumps(part)
    decoded = str(part["content"]).encode()
    if part.get("encoding") == "base64":
        decoded = b64decode(decoded)
    assert raw.endswith(decoded) if mode == "sample_tail" else raw.startswith(decoded)
    assert len(decoded) <= (most or 64)
    assert part["truncated"] == (most is not None and most < len(raw))
    assert part["truncated"] or decoded == raw
