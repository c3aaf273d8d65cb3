"""References to artifacts: parsing and refusal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.oci.reference import is_oci, parse_reference
from tables import each_row

D = "sha256:" + "a" * 64


@each_row(("text", "base", "wanted"), [
    ("oci://registry.example/team/skills:1.0", "https://registry.example/v2/team/skills", "1.0"),
    ("OCI://registry.example/skills", "https://registry.example/v2/skills", "latest"),
    (f"oci://registry.example:5000/a/b/c@{D}", "https://registry.example:5000/v2/a/b/c", D),
    (f"oci://registry.example/a:1@{D}", "https://registry.example/v2/a", D),
    ("oci://docker.io/alpine", "https://registry-1.docker.io/v2/library/alpine", "latest"),
    ("oci://docker.io/team/x", "https://registry-1.docker.io/v2/team/x", "latest"),
    ("oci+http://localhost:5000/a", "http://localhost:5000/v2/a", "latest"),
    ("oci+http://[::1]:5000/a", "http://[::1]:5000/v2/a", "latest"),
    ("oci+http://127.1/a__b-c.d:_x", "http://127.1/v2/a__b-c.d", "_x"),
])  # fmt: skip
def test_reference_is_parsed(text: str, base: str, wanted: str) -> None:
    reference = parse_reference(text)
    assert (reference.base, reference.wanted) == (base, wanted)
    assert parse_reference(str(reference)) == reference


HOST = "oci://registry.example"


@each_row(("reason", "texts"), [
    ("names no registry", ("oci://", HOST, "oci:///a", "oci://-x/a", f"{HOST}\n/a")),
    ("docker login", ("oci://ada:s3cret@registry.example/a",)),
    ("write it in lower case", (f"{HOST}/Team/x",)),
    ("cannot be the name of a repository", (f"{HOST}/", f"{HOST}/a//b", f"{HOST}/../a", f"{HOST}/a/../../b")),
    ("cannot be the name of a repository", (f"{HOST}/a?x=y", f"{HOST}/a#b", f"{HOST}/a b", f"{HOST}/{'a/' * 200}b")),
    ("cannot be the name of a repository", (f"{HOST}/a:x/y",)),
    ("a tag has letters", (f"{HOST}/a:", f"{HOST}/a:-x", f"{HOST}/a:{'x' * 200}")),
    ("the digest is not", [f"{HOST}/a@{digest}" for digest in ("sha256:abc", D.upper(), "", "sha512:" + "a" * 128)]),
    ("--allow-http", ("oci+http://registry.example/a", "oci+http://localhost.evil.example/a")),
])  # fmt: skip
def test_malformed_reference_is_refused_in_one_line(reason: str, texts: Sequence[str]) -> None:
    for text in texts:
        with pytest.raises(UsageError) as caught:
            parse_reference(text)
        message = str(caught.value)
        assert reason in message
        assert message.isprintable()
        assert "s3cret" not in message


def test_plain_http_can_be_allowed() -> None:
    assert parse_reference("oci+http://registry.example/a", http=True).base == "http://registry.example/v2/a"


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    assert not is_oci(text) or text[:3].lower() == "oci"
    try:
        reference = parse_reference(f"oci://{text}", http=True)
    except UsageError:
        return
    assert parse_reference(str(reference), http=True) == reference
    assert reference.base.isascii() and ".." not in reference.base.split("/")
