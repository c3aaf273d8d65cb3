"""What the methods of the Skills Protocol take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.dialects import skills_protocol as dialect
from mcp_skills_server.dialects.skills_protocol import BlobRequest
from mcp_skills_server.errors import RequestError
from tables import each_row

READERS = {
    dialect.LIST: dialect.listing,
    dialect.DESCRIBE: dialect.description,
    dialect.READ: dialect.file_request,
    dialect.EXECUTE: dialect.execution,
    dialect.RUN_CODE: dialect.code_execution,
    dialect.CREATE_BLOB: dialect.blob_content,
    dialect.READ_BLOB: dialect.blob_request,
}
ENOUGH: dict[str, dict[str, Any]] = {
    dialect.LIST: {},
    dialect.DESCRIBE: {"name": "a"},
    dialect.READ: {"name": "a", "path": "b"},
    dialect.EXECUTE: {"name": "a"},
    dialect.RUN_CODE: {"language": "sh", "code": "true"},
    dialect.CREATE_BLOB: {"content": ""},
    dialect.READ_BLOB: {"blob_id": "blob:1"},
}


@pytest.mark.requirement("SP-21")
def test_there_are_exactly_eight_methods() -> None:
    assert set(dialect.METHODS) == {
        "list_skills", "describe_skill", "read_skill_file", "execute_skill",
        "run_code", "create_blob", "read_blob", "load_skills_protocol_guide",
    }  # fmt: skip
    assert set(READERS) | {dialect.GUIDE} == set(dialect.METHODS)


@pytest.mark.requirement("SP-1", "SP-2")
def test_a_list_has_its_defaults() -> None:
    request = dialect.listing({})
    assert (request.namespace, request.detail, request.limit, request.cursor) == (None, "names", 50, None)


@pytest.mark.requirement("SP-9", "SP-10")
def test_a_description_has_its_defaults() -> None:
    request = dialect.description({"name": "a"})
    assert (request.version, request.detail) == (None, "summary")


@pytest.mark.requirement("SP-28")
def test_a_blob_is_sampled_at_its_head_unless_told_otherwise() -> None:
    assert dialect.blob_request({"blob_id": "b"}) == BlobRequest("b", "sample_head", dialect.SAMPLE_BYTES)
    assert dialect.blob_request({"blob_id": "b", "mode": "full"}) == BlobRequest("b", "full", None)


@each_row("method", READERS)
def test_null_counts_as_left_out_and_other_names_are_passed_over(method: str) -> None:
    empty = dict.fromkeys(
        ("namespace", "detail", "limit", "cursor", "version", "args", "input_blobs", "timeout_ms", "mode", "max_bytes",
         "entrypoint", "mount_skills", "kind")
    )  # fmt: skip
    read = READERS[method]
    assert read({**empty, "of the future": 1, **ENOUGH[method]}) == read(ENOUGH[method])


@each_row(
    ("method", "params", "said"),
    [
        (dialect.LIST, {"detail": "full"}, "detail must be names or summary, not 'full'"),
        (dialect.LIST, {"limit": 0}, "limit must be an integer of at least 1"),
        (dialect.LIST, {"limit": True}, "limit must be an integer"),
        (dialect.LIST, {"limit": 5.0}, "limit must be an integer"),
        (dialect.LIST, {"limit": "5"}, "limit must be an integer"),
        (dialect.LIST, {"cursor": 5}, "cursor must be a string"),
        (dialect.LIST, {"namespace": []}, "namespace must be a string"),
        (dialect.DESCRIBE, {}, "name is missing"),
        (dialect.DESCRIBE, {"name": ""}, "name is missing"),
        (dialect.DESCRIBE, {"name": 1}, "name must be a string"),
        (dialect.DESCRIBE, {"version": 1}, "version must be a string"),
        (dialect.READ, {"path": None}, "path is missing"),
        (dialect.EXECUTE, {"args": []}, "args must be an object"),
        (dialect.EXECUTE, {"input_blobs": "blob:1"}, "input_blobs must be an array of strings"),
        (dialect.EXECUTE, {"input_blobs": [1]}, "input_blobs must be an array of strings"),
        (dialect.EXECUTE, {"timeout_ms": -1}, "timeout_ms must be an integer"),
        (dialect.RUN_CODE, {"code": None}, "code is missing"),
        (dialect.RUN_CODE, {"mount_skills": {}}, "mount_skills must be an array of strings"),
        (dialect.CREATE_BLOB, {"content": None}, "content is missing"),
        (dialect.CREATE_BLOB, {"content": 1}, "content must be a string"),
        (dialect.READ_BLOB, {"mode": "all"}, "mode must be sample_head or sample_tail or full"),
        (dialect.READ_BLOB, {"max_bytes": 0}, "max_bytes must be an integer"),
    ],
)
def test_a_param_that_is_not_what_it_must_be_is_named(method: str, params: dict[str, Any], said: str) -> None:
    given = params if method == dialect.DESCRIBE and "name" not in params else {**ENOUGH[method], **params}
    if params == {"version": 1}:
        given = {"name": "a", **params}
    with pytest.raises(RequestError, match=said):
        READERS[method](given)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
NAMES = st.sampled_from(sorted({name for params in ENOUGH.values() for name in params} | {"limit", "mode", "args"}))


@given(st.sampled_from(sorted(READERS)), st.dictionaries(NAMES, VALUES))
def test_any_params_are_read_or_refused(method: str, params: dict[str, Any]) -> None:
    try:
        READERS[method](params)
    except RequestError:
        return


def test_a_limit_and_a_namespace_are_taken_as_they_are_up_to_the_largest_page() -> None:
    assert [dialect.listing({"limit": limit}).limit for limit in (1, 999, 1000, 1001)] == [1, 999, 1000, 1000]
    assert dialect.listing({"namespace": "acme"}).namespace == "acme"
    assert dialect.listing({"namespace": ""}).namespace is None


def test_a_blob_is_plain_text_unless_told_otherwise() -> None:
    assert dialect.blob_content({"content": "x"}) == ("x", "text/plain")
    assert dialect.blob_content({"content": "x", "kind": "text/csv"}) == ("x", "text/csv")
