"""Names of artifacts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.oci.reference import is_oci, parse_reference
from tables import each_row

D = "sha256:" + "a" * 64


@each_row(
    ("text", "base", "wanted"),
    [
        ("oci://registry.example/team/skills:1.0", "https://registry.example/v2/team/skills", "1.0"),
        ("OCI://registry.example/skills", "https://registry.example/v2/skills", "latest"),
        (f"oci://registry.example:5000/a/b/c@{D}", "https://registry.example:5000/v2/a/b/c", D),
        (f"oci://registry.example/a:1@{D}", "https://registry.example/v2/a", D),
        ("oci://docker.io/alpine", "https://registry-1.docker.io/v2/library/alpine", "latest"),
        ("oci://docker.io/team/x", "https://registry-1.docker.io/v2/team/x", "latest"),
        ("oci+http://localhost:5000/a", "http://localhost:5000/v2/a", "latest"),
        ("oci+http://[::1]:5000/a", "http://[::1]:5000/v2/a", "latest"),
        ("oci+http://127.1/a__b-c.d:_x", "http://127.1/v2/a__b-c.d", "_x"),
    ],
)
def test_a_name_says_where_and_what(text: str, base: str, wanted: str) -> None:
    found = parse_reference(text)
    assert (found.base, found.wanted) == (base, wanted)
    assert parse_reference(str(found)) == found


@each_row(
    ("text", "said"),
    [
        ("oci://", "names no registry"),
        ("oci://registry.example", "names no registry"),
        ("oci://registry.example/", "cannot be the name of a repository"),
        ("oci:///a", "names no registry"),
        ("oci://-x/a", "names no registry"),
        ("oci://ada:s3cret@registry.example/a", "docker login"),
        ("oci://registry.example/Team/x", "write it in lower case"),
        ("oci://registry.example/a//b", "cannot be the name of a repository"),
        ("oci://registry.example/../a", "cannot be the name of a repository"),
        ("oci://registry.example/a/../../b", "cannot be the name of a repository"),
        ("oci://registry.example/a?x=y", "cannot be the name of a repository"),
        ("oci://registry.example/a#b", "cannot be the name of a repository"),
        ("oci://registry.example/a b", "cannot be the name of a repository"),
        ("oci://registry.example/" + "a/" * 200 + "b", "cannot be the name of a repository"),
        ("oci://registry.example/a:", "a tag has letters"),
        ("oci://registry.example/a:-x", "a tag has letters"),
        ("oci://registry.example/a:x/y", "cannot be the name of a repository"),
        ("oci://registry.example/a:" + "x" * 200, "a tag has letters"),
        ("oci://registry.example/a@sha256:abc", "the digest is not"),
        (f"oci://registry.example/a@{D.upper()}", "the digest is not"),
        ("oci://registry.example/a@", "the digest is not"),
        ("oci://registry.example/a@sha512:" + "a" * 128, "the digest is not"),
        ("oci+http://registry.example/a", "--allow-http"),
        ("oci+http://localhost.evil.example/a", "--allow-http"),
        ("oci://registry.example\n/a", "names no registry"),
    ],
)
def test_what_is_no_name_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reference(text)
    message = str(caught.value)
    assert message.isprintable() and "s3cret" not in message
    assert said in message


def test_plain_http_of_another_machine_can_be_allowed() -> None:
    assert parse_reference("oci+http://registry.example/a", http=True).base == "http://registry.example/v2/a"


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_a_line(text: str) -> None:
    assert not is_oci(text) or text[:3].lower() == "oci"
    try:
        found = parse_reference(f"oci://{text}", http=True)
    except UsageError:
        return
    assert parse_reference(str(found), http=True) == found
    assert found.base.isascii() and ".." not in found.base.split("/")
