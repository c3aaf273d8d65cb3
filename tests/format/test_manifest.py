"""Manifests of the Skills Protocol from skill.toml or the frontmatter, and semantic versions."""

from __future__ import annotations

import itertools
import json
import tomllib
from codecs import BOM_UTF8
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.codes import CODES
from mcp_skills_server.format import manifest
from mcp_skills_server.format.manifest import Findings, Version, parse_version
from tables import each_row

ACTION = b"""
name = "acme.refunds"
version = "1.0.0"
description = "Refunds."
kind = "action"
tags = ["money"]
colour = "red"

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

[inputs.order]
type = "blob"
description = "The order."

[permissions]
network = ["https://*.example.com"]
secrets = ["KEY"]
"""
FRONTMATTER: dict[str, Any] = {"name": "refunds", "description": "Refunds."}
FILES = ("SKILL.md", "skill.toml", "code/main.py")


def read(raw: bytes | None, frontmatter: dict[str, Any] | None = None, path: str = "acme/refunds") -> Findings:
    return manifest.read(raw, FRONTMATTER if frontmatter is None else frontmatter, path, FILES)


def codes(found: Findings) -> list[str]:
    return sorted({each.code for each in found.problems})


def toml(**fields: Any) -> bytes:
    """Return a valid manifest with some fields replaced, or removed if the value is None."""
    values = {"name": "acme.refunds", "version": "1.0.0", "description": "Refunds.", "kind": "instruction"} | fields
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items() if value is not None).encode()


@pytest.mark.requirement("SP-11", "SP-23", "SP-24")
def test_manifest_keeps_all_fields_of_skill_toml_with_times_as_text() -> None:
    times = b"made = 2026-01-02T03:04:05Z\nat = 12:30:00\non = 2026-01-02\n"
    found = read(BOM_UTF8 + times + ACTION)
    assert found.problems == () and found.manifest is not None
    assert found.manifest.fields == {
        **tomllib.loads(ACTION.decode()), "namespace": "acme",
        "made": "2026-01-02T03:04:05+00:00", "at": "12:30:00", "on": "2026-01-02",
    }  # fmt: skip
    assert not found.manifest.synthesised
    assert (found.manifest.blob_inputs, found.manifest.secrets) == (["order"], ["KEY"])


@each_row(("raw", "reason", "line"), [
    (b"name = ", "not valid TOML", 1), (b"name = 'a'\nname = 'b'\n", "not valid TOML", 2),
    (b"\n\nname = '\xe9'\n", "not UTF-8", 3), (b"name = 'a'\r\n\x00", "not valid TOML", 2),
    (b"#" + b"." * 1001, "dots", 1), (b"a = " + b"[" * 3000 + b"]" * 3000, "deep", None),
    (b"a = " + b"[" * 30 + b"]" * 30, "deeper than", None), (b"a = [" + b"1," * 10_000 + b"]", "more than", None),
    (b"a = nan", "JSON has no nan", None), (b"a = -inf", "JSON has no -inf", None),
    (b"a = 9223372036854775808", "64 bits", None), (b"a = " + b"9" * 5000, "not valid TOML", None),
    (b"#" + b"x" * manifest.MAX_TOML, "it has 131,073 bytes", None), (b"a = -9223372036854775809", "64 bits", None),
])  # fmt: skip
@pytest.mark.requirement("SP-34")
def test_unreadable_skill_toml_is_an_error_with_its_line(raw: bytes, reason: str, line: int | None) -> None:
    found = read(raw)
    (problem,) = found.problems
    assert found.manifest is None
    assert (problem.code, problem.line) == ("manifest-syntax", line)
    assert reason in problem.message and problem.hint


@pytest.mark.requirement("SP-5")
@each_row("fields", [
    *({"name": name} for name in ("Two words", ".a", "a..b", "a/b", "", 3, "é", "a" * 257)),
    *({"version": version} for version in ("latest", 1.0, "v1.0.0")), {"description": 1}, {"description": ["a"]},
    {"namespace": 1}, {"kind": "tool"}, {"kind": True},
])  # fmt: skip
def test_invalid_required_field_is_an_error(fields: dict[str, Any]) -> None:
    found = read(toml(**fields))
    assert found.manifest is None
    assert codes(found) in (["manifest-field"], ["manifest-disagrees", "manifest-field"])


@each_row(("fields", "frontmatter", "code"), [
    ({"version": "1.0"}, {}, "manifest-form"), ({"tags": "a, b"}, {}, "manifest-form"),
    ({"tags": [1]}, {}, "manifest-form"), ({"inputs": 3}, {}, "manifest-form"),
    ({"runtime": [1]}, {}, "manifest-form"), ({"permissions": "all"}, {}, "manifest-form"),
    *(({field: None}, {}, "manifest-incomplete") for field in ("kind", "version", "description", "name")),
    ({"kind": "action"}, {}, "manifest-runtime"), ({"description": "Other."}, {}, "manifest-disagrees"),
    ({"name": "acme.payments"}, {}, "manifest-disagrees"),
    ({}, {"metadata": {"version": "2.0.0"}}, "manifest-disagrees"),
    ({"namespace": "acme"}, {"metadata": {"namespace": "other"}}, "manifest-disagrees"),
    ({"tags": ["b"]}, {"tags": ["a"]}, "manifest-disagrees"), ({}, {"name": "payments"}, "manifest-disagrees"),
    *(({}, {"name": title}, None) for title in ("Acme Refunds", "refunds", "acme-refunds")),
])  # fmt: skip
def test_other_fault_of_a_manifest_is_only_a_warning(
    fields: dict[str, Any], frontmatter: dict[str, Any], code: str | None
) -> None:
    found = read(toml(**fields), {**FRONTMATTER, **frontmatter})
    assert found.manifest is not None
    assert codes(found) == ([code] if code else [])
    assert all(each.severity == "warning" for each in found.problems)
    assert found.manifest.name == (fields.get("name") or "acme.refunds")


def test_absent_fields_of_skill_toml_come_from_the_frontmatter_and_the_path() -> None:
    found = read(b'[runtime]\nentrypoint = "code/main.py"\n', {**FRONTMATTER, "metadata": {"version": "3.1.0"}})
    assert found.manifest is not None
    assert found.manifest.fields == {
        "name": "acme.refunds", "version": "3.1.0", "description": "Refunds.", "kind": "action", "namespace": "acme",
        "runtime": {"entrypoint": "code/main.py"},
    }  # fmt: skip


def test_missing_entry_point_is_reported() -> None:
    (problem,) = read(toml(kind="action") + b'[runtime]\nentrypoint = "code/gone.py"\n').problems
    assert problem.code == "manifest-runtime" and "code/gone.py" in problem.message


def test_version_directory_must_agree_with_skill_toml() -> None:
    for directory, expected in (("1.0.0", []), ("2", []), ("1.1.0", ["manifest-disagrees"])):
        assert codes(read(toml(name="refunds"), path=f"refunds/{directory}")) == expected


@pytest.mark.requirement("X-25")
@each_row(("frontmatter", "path", "expected", "reported"), [  # expected: name, namespace, version
    ({}, "refunds", ("refunds", "", "0.0.0"), []),
    ({}, "acme/billing/refunds", ("acme.billing.refunds", "acme", "0.0.0"), []),
    ({"metadata": {"namespace": "shop"}}, "acme/refunds", ("shop.refunds", "shop", "0.0.0"), []),
    ({"metadata": {"namespace": "shop.money"}}, "refunds", ("shop.money.refunds", "shop.money", "0.0.0"), []),
    ({"metadata": {"version": "1.2.3"}}, "refunds", ("refunds", "", "1.2.3"), []),
    ({"version": "1.2.3-rc.1"}, "refunds", ("refunds", "", "1.2.3-rc.1"), []),
    ({"version": 2}, "refunds", ("refunds", "", "2"), []), ({"version": True}, "refunds", ("refunds", "", "0.0.0"), []),
    ({}, "acme/refunds/1.2.0", ("acme.refunds", "acme", "1.2.0"), []),
    ({}, "refunds/v1.2.0", ("refunds", "", "1.2.0"), []),
    ({}, "puzzles/2048", ("puzzles.2048", "puzzles", "0.0.0"), []),
    ({"metadata": {"version": "2"}}, "refunds/2", ("refunds", "", "2"), []),
    ({}, "1.0.0", ("1-0-0", "", "0.0.0"), []), ({}, "Größe & Maß", ("Gr-e-Ma", "", "0.0.0"), []),
    ({}, "§§", ("skill", "", "0.0.0"), []),
    ({"metadata": {"version": "latest"}}, "refunds", ("refunds", "", "0.0.0"), ["manifest-form"]),
    ({"version": "1.3.0"}, "refunds/1.2.0", ("refunds", "", "1.3.0"), ["manifest-disagrees"]),
    ({"version": "1.2.0-a"}, "refunds/1.2.0-b", ("refunds", "", "1.2.0-a"), ["manifest-disagrees"]),
    ({"version": "1.2"}, "refunds/1.2.0", ("refunds", "", "1.2"), []), ({"version": " "}, "a", ("a", "", "0.0.0"), []),
    ({"version": "2.0.0"}, "refunds/2", ("refunds", "", "2.0.0"), []),
    ({"version": "2-a"}, "refunds/2-b", ("refunds.2-b", "refunds", "2-a"), []),
])  # fmt: skip
def test_manifest_is_synthesised_from_frontmatter_and_path(
    frontmatter: dict[str, Any], path: str, expected: tuple[str, ...], reported: list[str]
):
    found = read(None, {**FRONTMATTER, **frontmatter}, path)
    assert codes(found) == reported
    manifest = found.manifest
    assert manifest is not None and manifest.synthesised
    assert (manifest.name, manifest.namespace, manifest.version.text) == expected
    assert (manifest.fields["kind"], manifest.fields["description"]) == ("instruction", "Refunds.")


SCALARS = st.one_of(
    st.text(max_size=20), st.integers(), st.floats(), st.booleans(), st.datetimes(), st.dates(), st.times()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
FIELDS = st.sampled_from(
    ["name", "version", "description", "kind", "namespace", "tags", "runtime", "inputs", "permissions", "metadata", "x"]
)
PATHS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4).map("/".join)


def assert_valid(found: Findings) -> None:
    """Assert the invariants of every result."""
    assert all(each.code in CODES and each.message and each.hint for each in found.problems)
    if found.manifest is None:
        assert any(each.severity == "error" for each in found.problems)
        return
    fields = found.manifest.fields
    assert all(isinstance(fields[name], str) for name in ("name", "version", "description", "kind", "namespace"))
    assert found.manifest.name and fields["kind"] in {"action", "instruction"}
    json.dumps(fields, allow_nan=False)


@given(st.dictionaries(FIELDS, VALUES, max_size=6), st.dictionaries(FIELDS, VALUES, max_size=4), PATHS)
def test_any_table_is_a_manifest_or_refused(table: dict[str, Any], frontmatter: dict[str, Any], path: str) -> None:
    assert_valid(read(tomli_w.dumps(table).encode(), frontmatter, path))
    synthesised = read(None, frontmatter, path)
    assert synthesised.manifest is not None
    assert_valid(synthesised)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_refused(raw: bytes) -> None:
    assert_valid(read(raw))


@each_row(("opening", "closing"), [("{a = ", "}"), ("[", "]")])
def test_nesting_is_limited_to_24_levels(opening: str, closing: str) -> None:
    for depth, reasons in ((22, []), (23, ["nested deeper than 24 levels"])):  # the table and its key are two
        nested = ACTION + f"[x]\ny = {opening * depth}1{closing * depth}\n".encode()
        assert [each.message.rpartition(": ")[2] for each in read(nested).problems] == reasons


@each_row("more", [
    b"a = [" + b"1," * 9_995 + b"]", b"#" + b"." * 256, b"a = [-9223372036854775808, 9223372036854775807, 1.5]",
    b"#" + b"x" * (manifest.MAX_TOML - len(toml(name="a" * 256)) - 1),
])  # fmt: skip
def test_manifest_at_a_limit_is_accepted(more: bytes) -> None:
    assert codes(read(toml(name="a" * 256) + more)) == ["manifest-disagrees"]


NUMBERS = st.integers(0, 10**6).map(str)
WORDS = st.from_regex(r"(0|[1-9][0-9]{0,5}|[0-9]{0,5}[a-zA-Z-][0-9a-zA-Z-]{0,5})", fullmatch=True)
BUILDS = st.from_regex(r"[0-9A-Za-z-]{1,5}(\.[0-9A-Za-z-]{1,5})?", fullmatch=True)


@st.composite
def versions(draw: st.DrawFn) -> Version:
    text = ".".join(draw(st.lists(NUMBERS, min_size=1, max_size=3)))
    if draw(st.booleans()):
        text += "-" + ".".join(draw(st.lists(WORDS, min_size=1, max_size=3)))
    if draw(st.booleans()):
        text += "+" + draw(BUILDS)
    return parsed(text)


def parsed(text: str) -> Version:
    found = parse_version(text)
    assert found is not None, text
    return found


@pytest.mark.requirement("SP-9")
@each_row("ascending", [
    "1.0.0 2.0.0 2.1.0 2.1.1", "1.0.0-alpha 1.0.0",
    "1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0",
    "1.9.0 1.10.0 1.11.0", "0.9 1 1.0.1 1.2", "1.0.0-1 1.0.0--1",
])  # fmt: skip
def test_versions_have_the_order_of_semantic_versioning(ascending: str) -> None:
    keys = [parsed(text).key for text in ascending.split()]
    assert all(one < other for one, other in itertools.pairwise(keys))


@each_row("text", ["", "v1.0.0", "1.0.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0+", "1.0.0-a..b", "a",
    "1.0.0\n", "1.0.0 ", "\uff11.0.0", "1" * 20, "1.0.0-" + "a" * 123])  # fmt: skip
def test_invalid_version_is_not_parsed(text: str) -> None:
    assert parse_version(text) is None


def test_absent_numbers_of_a_version_are_zero() -> None:
    assert [parsed(text).is_short for text in ("1", "1.0", "1.0.0", "1.0-rc.1")] == [True, True, False, True]
    assert parsed("1").key[:3] == parsed("1.0.0").key[:3]
    assert parsed("1.0.0-" + "a" * 122)


@given(versions(), versions())
def test_versions_have_a_total_order(one: Version, two: Version) -> None:
    assert (one.key < two.key) + (one.key > two.key) == (one.text != two.text)
