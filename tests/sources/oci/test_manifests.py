"""Manifests and indexes: decoding, encoding and refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.sources.oci import manifests
from mcp_skills_server.sources.oci.manifests import Collection, Descriptor, ImageManifest, decode_manifest
from mcp_skills_server.sources.source import UnacceptableError
from tables import each_row

D = "sha256:" + "d" * 64
LAYER = {"mediaType": "a/b", "digest": D, "size": 7}


def entry(digit: str, **fields: Any) -> dict[str, Any]:
    return {"mediaType": manifests.MANIFEST, "digest": "sha256:" + digit * 64, "size": 1, **fields}


def encoded(**data: Any) -> bytes:
    return json.dumps(data).encode()


def test_manifest_is_decoded_into_layers() -> None:
    raw = encoded(layers=[LAYER, {**LAYER, "annotations": {"a": "b", "c": 7}}], annotations={"x": "y"})
    layers = Descriptor("a/b", D, 7), Descriptor("a/b", D, 7, {"a": "b"})
    assert decode_manifest(raw, 10) == ImageManifest(layers, {"x": "y"})


@each_row(("raw", "reason"), [
    (b"", "not JSON"), (b"[" * 100_000, "not JSON"), (b"[]", "neither layers nor manifests"),
    (b'{"schemaVersion":1,"fsLayers":[]}', "neither layers nor manifests"),
    (encoded(layers=[LAYER] * 1_001), "1001 layers, at most 1000"),
    (encoded(manifests=[entry("1")] * 11), "11 entries, at most 10"),
    (encoded(layers=[7]), "without media type or size"),
    (encoded(layers=[{**LAYER, "size": -1}]), "without media type or size"),
    (encoded(layers=[{**LAYER, "size": True}]), "without media type or size"),
    (encoded(layers=[{**LAYER, "digest": "sha256:../../x"}]), "not sha256"),
    (encoded(layers=[{**LAYER, "digest": "sha512:" + "a" * 128}]), "not sha256"),
    (encoded(layers=[{**LAYER, "urls": ["https://x"]}]), "other addresses"),
])  # fmt: skip
def test_malformed_manifest_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(UnacceptableError, match=reason):
        decode_manifest(raw, 10)


def test_index_of_skills_with_platforms_is_a_collection() -> None:
    linux = {"os": "linux", "architecture": "amd64"}
    named = [entry(each, platform=linux, annotations={manifests.SKILL_NAME: each}) for each in "12"]
    for raw in (
        encoded(manifests=named),
        encoded(manifests=[entry("1"), entry("2", platform=linux)]),
        encoded(artifactType=manifests.COLLECTION, manifests=[entry("1", platform=linux), entry("2", platform=linux)]),
    ):
        decoded = decode_manifest(raw, 10)
        assert isinstance(decoded, Collection)
        assert not decoded.is_one_artifact
        assert [each.digest[-1] for each in decoded.entries] == ["1", "2"]


def test_attestations_in_an_index_are_no_artifacts() -> None:
    """Docker's buildx lists them for an unknown platform, in recent versions with an annotation."""
    linux, unknown = ({"os": name, "architecture": name} for name in ("linux", "unknown"))
    attestation = {"vnd.docker.reference.type": "attestation-manifest"}
    for extra in ({"platform": unknown}, {"platform": linux, "annotations": attestation}):
        raw = encoded(manifests=[entry("1", **extra), entry("2", platform=linux), entry("3", **extra)])
        decoded = decode_manifest(raw, 10)
        assert isinstance(decoded, Collection)
        assert [each.digest[-1] for each in decoded.entries] == ["2"]
        assert decoded.is_one_artifact


def test_encoded_manifests_are_decoded() -> None:
    layer, config = Descriptor(manifests.CONTENT, D, 7), Descriptor(manifests.CONFIG, D, 2)
    raw = manifests.skill_manifest(config, layer, {"a": "é"})
    assert decode_manifest(raw, 1) == ImageManifest((layer,), {"a": "é"}, is_skill=True)
    assert json.loads(raw)["artifactType"] == manifests.SKILL
    described = Descriptor(manifests.MANIFEST, D, len(raw), {manifests.SKILL_NAME: "a"})
    collection = Collection((described,), is_one_artifact=False)
    assert decode_manifest(manifests.collection_index("all", [described]), 1) == collection


_KEYS = st.sampled_from(["layers", "manifests", "mediaType", "digest", "size", "annotations", "platform", "os", "urls"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(D),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(_JSON)
def test_any_json_is_decoded_or_refused(data: Any) -> None:
    try:
        decoded = decode_manifest(json.dumps(data).encode(), 5)
    except UnacceptableError:
        return
    assert isinstance(decoded, ImageManifest | Collection)
