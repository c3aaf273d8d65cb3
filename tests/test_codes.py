"""Problem codes: each has a bundle in fixtures/broken that yields exactly this code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from format.broken import BROKEN, GENERATED_CODES, cause_fault, create_bundle, gate_of, roots_of, skill_md
from mcp_skills_server.authoring.notes import notes
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.codes import CODES, problem, standing, unlisting_problem
from mcp_skills_server.model import Problem, Standing
from tables import each_row

# A word of the line that the problem names, for the codes that name a line.
EVIDENCE = {
    "not-utf8": b"caf\xe9", "nul-byte": b"\0", "frontmatter-missing": b"# Frontmatter missing",
    "frontmatter-unclosed": b"---", "frontmatter-not-mapping": b"- frontmatter-not-mapping",
    **dict.fromkeys(("yaml-syntax", "yaml-colon"), b"description: Two steps:"),
    "yaml-duplicate-key": b"license: Apache-2.0", "yaml-tag": b"!!timestamp", "yaml-alias": b"*c",
    "yaml-depth": b"nest:", "yaml-size": b"zeros:", "yaml-value": b".nan", "yaml-ambiguous": b"yes",
    "yaml-key": b"on: push", "manifest-syntax": b"version = 1.0.0",
    **dict.fromkeys(("name-missing", "description-missing"), b"---"),
    **dict.fromkeys(("name-length", "name-characters", "name-hyphens", "name-mismatch"), b"name:"),
    **{f"description-{fault}": b"description:" for fault in ("length", "utf16", "vague", "when")},
    **dict.fromkeys(("compatibility-length", "compatibility-form"), b"compatibility:"),
    **dict.fromkeys(("allowed-tools-form", "allowed-tools-type"), b"allowed-tools:"),
    "metadata-type": b"reviewers: 3", "metadata-keys": b"metadata:", "license-type": b"license:",
    "smart-quotes": "“two".encode(), "script-line-ends": b"#!/bin/sh", "upload-refused": b"<title>",
    "field-unknown": b"author:", "field-host": b"context:", "yaml-comment": b"#releases",
    "field-type": b"arguments:", "icon-source": b"icons:", "hooks": b"hooks:",
    "broad-permission": b"Bash(*)", "placeholder": b"[TODO", "body-empty": b"", "body-long": b"1. Take step 1.",
    "reference-missing": b"(references/details.md)", "reference-deep": b"(references/more/details.md)",
    "reference-outside": b"(../shared/rules.md)", "yaml-field": b"tags:",
    "hidden-characters": "\u200b".encode(),
    "override": b"Ignore all", "secrecy": b"Do not tell", "credential-theft": b"~/.ssh", "hidden-text": b"<!-- AI",
    "remote-instructions": b"Fetch https", "hidden-comment": b"<!-- Sort",
    "lfs-pointer": b"version https://git-lfs", "pipe-to-shell": b"| sh",
    "encoded-command": b"base64 -d | sh", "secret": b"AKIA", "shell-injection": b"!`date",
    "file-mention": b"@/etc/hostname", "persistence": b"~/.bashrc", "plugin-elsewhere": b'"far"',
    "plugin-manifest": b'"./", }', "plugin-path": b'"./gone"', "plugin-name": b"Tea_Plugin",
}  # fmt: skip


def _validated(registry: Registry, code: str = "") -> list[Problem]:
    registry.load()
    found = [*notes(registry, [*registry.snapshot.skills.values()]), *registry.snapshot.problems]
    noted = [each for each in found if each.code == code and each.severity == "note"]
    return [*registry.problems(), *noted]


def test_generated_bundle_has_a_readme_with_the_reason():
    for code in GENERATED_CODES:
        assert [path.name for path in (BROKEN / code).iterdir()] == ["README.md"]
        assert 0 < (BROKEN / code / "README.md").read_text().count("\n") <= 2


@pytest.mark.requirement("AS-9", "ASG-18", "X-2", "S40-5")
@each_row("code", CODES)
def test_each_bundle_yields_its_code_and_standing(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots, row = roots_of(code, tmp_path), CODES[code]
    registry = Registry(roots, gate=gate_of(code))
    cause_fault(code, roots[0], monkeypatch)
    problems = _validated(registry, code)
    assert {found.code for found in problems} == {code}
    for found in problems:
        assert found.severity == row.severity and found.message and found.hint
        assert any(found.path.startswith(root.shown) for root in registry.roots)
        assert "\n" not in str(found) and str(found).endswith(f"[{code}]")
        _assert_line_has_the_fault(found)
    worst = min((skill.standing for skill in registry.snapshot.skills.values()), default=None)
    assert worst == (None if code == "root-missing" or gate_of(code) is not None else row.allows)


def _assert_line_has_the_fault(found: Problem) -> None:
    if found.code in EVIDENCE:
        assert found.line is not None
        # A missing body is reported on the line after the last one.
        lines = [*Path(found.path).read_bytes().split(b"\n"), b""]
        assert EVIDENCE[found.code] in lines[found.line - 1]
    else:
        assert found.line is None, f"add the words of the line that {found.code} names to EVIDENCE"


@pytest.mark.requirement("X-2")
def test_valid_skill_is_served_beside_any_broken_one(tmp_path: Path):
    root = tmp_path / "root"
    shutil.copytree(BROKEN, root, symlinks=True)
    for code in GENERATED_CODES:
        create_bundle(root / code)
    (root / "sound").mkdir()
    (root / "sound" / "SKILL.md").write_text(skill_md("sound"))

    registry = Registry([root])
    found = {each.code for each in _validated(registry, "near-miss")}
    found |= {each.code for each in notes(registry, [*registry.snapshot.skills.values()])}
    sound = registry.snapshot.skills["sound"]
    assert (sound.standing, sound.problems) == (Standing.VALID, ())
    # These need a second root, a vanishing root, a system error, and a file of another user.
    refused = {code for code in CODES if gate_of(code) is not None}
    of_manifests = {code for code in CODES if code.startswith("plugin-")}  # which lie at a root
    assert found == set(CODES) - {"shadowed", "root-missing", "unreadable", "hard-link"} - of_manifests - refused


@pytest.mark.requirement("AS-1", "AS-15", "ASG-4")
def test_any_directory_with_a_skill_md_is_a_skill(tmp_path: Path):
    files = ["LICENSE", "SKILL.md", "anything/else/notes.md", "assets/logo.svg", "scripts/run.py"]
    for path in (*(f"skill/{file}" for file in files), "folder/notes.md", "loose.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(skill_md("skill"))
    registry = Registry([tmp_path])
    assert _validated(registry) == []
    assert {path: list(skill.files) for path, skill in registry.snapshot.skills.items()} == {"skill": files}


def test_each_code_has_a_hint_and_cites_an_existing_rule():
    page = (BROKEN.parents[1] / "docs" / "requirements.md").read_text()
    known = set(re.findall(r"^([A-Z0-9]+-\d+) \|", page, re.MULTILINE))
    for row in CODES.values():
        assert row.hint and "\n" not in row.hint
        assert not row.cites or row.cites in known


def test_problem_takes_severity_and_hint_from_its_code():
    row = CODES["name-missing"]
    found = problem("name-missing", "there is no name", 1)
    assert found == Problem("name-missing", row.severity, "there is no name", row.hint, 1)
    assert problem("name-missing", "there is no name", hint="ask around").hint == "ask around"


@each_row(("codes", "expected"), [
    ([], Standing.VALID), (["description-vague", "root-missing"], Standing.VALID),
    (["description-vague", "name-mismatch"], Standing.LENIENT),
    (["name-mismatch", "yaml-syntax", "description-vague"], Standing.UNUSABLE),
])  # fmt: skip
def test_worst_problem_decides_standing(codes: list[str], expected: Standing):
    assert standing(problem(each, "") for each in codes) is expected


def test_obstacle_is_first_problem_that_excludes_skill_from_listings():
    """A warning can be the obstacle: a colon without quotes, which other YAML parsers refuse."""
    found = [problem(each, each) for each in ("description-vague", "yaml-colon", "name-mismatch")]
    assert unlisting_problem(found) is found[1]
    assert unlisting_problem(found[:1]) is None
