"""Skills in the layers of an artifact or image."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mcp_skills_server.format.archive import ArchiveRefusedError, UnpackLimits
from mcp_skills_server.sources.oci import manifests, source
from mcp_skills_server.sources.oci.manifests import TITLE, Descriptor
from mcp_skills_server.sources.oci.source import read_layers
from mcp_skills_server.sources.source import UnacceptableError, UnitContents
from sources.oci.registries import OCI_LAYER, digest, tar
from sources.publishers import skill_md
from tables import each_row

A = skill_md("a")


def layer(
    raw: bytes | Mapping[str, bytes], media_type: str = OCI_LAYER, **annotations: str
) -> tuple[Descriptor, bytes]:
    if not isinstance(raw, bytes):
        raw = tar(raw)
    return Descriptor(media_type, digest(raw), len(raw), annotations), raw


def titled(title: str, raw: bytes, media_type: str = "text/markdown", **annotations: str) -> tuple[Descriptor, bytes]:
    return layer(raw, media_type, **{TITLE: title}, **annotations)


def read(*given: tuple[Descriptor, bytes], names: tuple[str, ...] = ("named",), hidden: bool = False) -> UnitContents:
    return read_layers(given, names, UnpackLimits(), hidden=hidden)


def file_names(contents: UnitContents) -> dict[str, list[str]]:
    return {name: sorted(files) for name, files in contents.skills.items()}


@each_row("media_type", [
    *(manifests.CONTENT, OCI_LAYER, "application/octet-stream", "application/vnd.cncf.skill.bundle.v1.tar+gzip"),
    *("application/vnd.agent.skill.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip"),
])  # fmt: skip
def test_format_of_layer_is_detected_by_content(media_type: str) -> None:
    for packed in (True, False):
        raw = tar({"a/SKILL.md": A, "a/b.txt": b"b"}, packed=packed)
        assert file_names(read(layer(raw, media_type))) == {"a": ["SKILL.md", "b.txt"]}


def test_skill_at_root_is_named_by_frontmatter_or_fallback() -> None:
    assert file_names(read(layer({"SKILL.md": skill_md("own")}))) == {"own": ["SKILL.md"]}
    nameless = layer({"SKILL.md": b"no frontmatter"})
    assert list(read(nameless, names=("a/b", ".x", "con", "good", "other")).skills) == ["good"]
    with pytest.raises(UnacceptableError, match="without a name that a directory can have"):
        read(nameless, names=("..",))


def test_skills_are_found_among_other_files_of_image() -> None:
    files = {"etc/passwd": b"x", "skills/a/SKILL.md": A, "skills/a/in/SKILL.md": A, "opt/b/SKILL.md": skill_md("b")}
    image = layer(files | {"root/.claude/skills/c/SKILL.md": A})
    assert file_names(read(image)) == {"a": ["SKILL.md", "in/SKILL.md"], "b": ["SKILL.md"]}
    assert read(image).warnings == (
        "not served, since they belong to no skill: etc/passwd, root/.claude/skills/c/SKILL.md",
    )
    assert sorted(read(image, hidden=True).skills) == ["a", "b", "c"]


def test_later_layer_replaces_and_whiteouts_earlier_files() -> None:
    contents = read(
        layer({"a/SKILL.md": A, "a/old.md": b"1", "a/dir/x": b"1", "a/file": b"1", "b/SKILL.md": A, "c/SKILL.md": A}),
        layer({"a/old.md": b"2", "a/dir": b"2", "a/file/x": b"2", ".wh.b": b"", "c/.wh..wh..opq": b"", "c/new": b"2"}),
        layer({"a/.wh.file": b"", "c/SKILL.md": A, "c/.wh.SKILL.md": b""}),  # a whiteout leaves files of its own layer
    )
    assert file_names(contents) == {"a": ["SKILL.md", "dir", "old.md"], "c": ["SKILL.md", "new"]}
    assert contents.skills["a"]["old.md"][0] == b"2"


def test_layers_with_titles_are_single_files() -> None:
    contents = read(
        titled("SKILL.md", A, "application/vnd.oci.image.layer.v1.tar"),
        titled("data/x.tar.gz", tar({"y": b""}), "application/octet-stream"),
        titled("data/y.tar", tar({"y": b""}, packed=False), "application/octet-stream"),
        titled("a-folder", tar({"scripts/run.py": b"1"}), OCI_LAYER),
        titled("b-folder", tar({"more.md": b"1"}), "x/y", **{"io.deis.oras.content.unpack": "true"}),
        layer(b"name: card", "application/vnd.docsclaw.skill.card.v1+yaml"),
    )
    assert file_names(contents) == {"a": ["SKILL.md", "data/x.tar.gz", "data/y.tar", "more.md", "scripts/run.py"]}
    assert "layer 6 is ignored" in contents.warnings[0]
    assert "card" in contents.warnings[0]
    for title in ("../evil", "/evil", "a\\b"):
        with pytest.raises(ArchiveRefusedError):
            read(titled("SKILL.md", A), titled(title, b"x"))


def test_each_file_of_a_large_skill_may_be_a_layer() -> None:
    files = [titled(f"references/{number}.md", b"x") for number in range(999)]
    assert len(read(titled("SKILL.md", A), *files).skills["a"]) == 1_000
    archives = [layer({f"a/{number}": b""}) for number in range(127)]
    assert len(read(*archives, layer({"a/SKILL.md": A})).skills["a"]) == 128
    with pytest.raises(UnacceptableError, match="more than 128 of its layers are archives"):
        read(*archives, layer({"a/SKILL.md": A}), titled("x", b"x"), layer({"a/x": b""}))


def test_artifact_without_skill_is_refused() -> None:
    for layers in ((layer({"a.md": b""}),), (), (layer({"a/SKILL.md": A}), layer({".wh.a": b""}))):
        with pytest.raises(UnacceptableError, match="holds no skill"):
            read(*layers)


def test_bad_skill_refuses_no_other() -> None:
    contents = read_layers(
        [
            layer({"a/SKILL.md": A, "b/SKILL.md": A, "b/.env": b"x", "c/SKILL.md": A, "c/big": bytes(2000)}),
            layer({"x/d/SKILL.md": A, "y/d/SKILL.md": A, "e/SKILL.md": A} | {f"e/{n}": b"" for n in range(20)}),
        ],
        (),
        UnpackLimits(files=10, bytes=1000, file=1000),
        hidden=False,
    )
    assert sorted(contents.skills) == ["a", "d"]
    assert ".env" in contents.refused["b"]
    assert "2000 in one file" in contents.refused["c"]
    assert "two skills of this name" in contents.refused["d"]
    assert "21 files" in contents.refused["e"]


def test_all_layers_share_unpack_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LIMITS", UnpackLimits(files=100, bytes=5000, file=4000))
    one = layer({"a/SKILL.md": A, "a/x": bytes(3000)})
    assert list(read(one).skills) == ["a"]
    with pytest.raises(ArchiveRefusedError, match="unpacks to more than"):
        read(one, one)
    with pytest.raises(ArchiveRefusedError, match="unpack to more than 5000"):
        read(one, titled("b", b"x" * 3000))


def test_thousands_of_whiteouts_are_applied() -> None:
    files = {f"a/f{number}": b"" for number in range(5_000)}
    whiteouts = {f"a/.wh.f{number}": b"" for number in range(5_000)}
    contents = read(layer({"a/SKILL.md": A} | files), layer(whiteouts))
    assert file_names(contents) == {"a": ["SKILL.md"]}
