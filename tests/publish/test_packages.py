"""Bundles and plugins, made of plain files."""

from __future__ import annotations

import io
import json
import zipfile

from mcp_skills_server.publish import packages

SKILLS = {"a": {"SKILL.md": (b"# A\n", False), "scripts/run.sh": (b"exit 0\n", True)}}
BELOW = {f"skills/a/{path}": file for path, file in SKILLS["a"].items()}


def test_a_bundle_has_a_program_and_the_skills_with_their_modes() -> None:
    with zipfile.ZipFile(io.BytesIO(packages.bundle(SKILLS, "mine", "1.2.3", "9.9"))) as archive:
        found = {each.filename: (archive.read(each), each.external_attr >> 16) for each in archive.infolist()}
        assert {each.date_time for each in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    own = [found.pop(path) for path in ("manifest.json", "pyproject.toml", "src/server.py")]
    assert found == {path: (raw, 0o100755 if executable else 0o100644) for path, (raw, executable) in BELOW.items()}
    assert {mode for _, mode in own} == {0o100644}
    assert own[0][0].startswith(b'{\n  "manifest_version": "0.4",\n  "name": "mine",\n') and own[0][0].endswith(b"}\n")
    manifest = json.loads(own[0][0])
    assert manifest["tools_generated"] is manifest["prompts_generated"] is True  # they depend on the skills
    assert manifest["description"] == "1 Agent Skill" and b'"mcp-skills-server==9.9"' in own[1][0]


def test_a_plugin_has_the_skills_and_a_server_where_it_is_asked_for() -> None:
    for server in (False, True):
        found = packages.plugin({**SKILLS, "b": {}}, "mine", "1.2.3", server=server)
        about = json.loads(found["plugin.json"][0])
        assert (about["name"], about["version"], about["description"]) == ("mine", "1.2.3", "2 Agent Skills")
        own = {"plugin.json", *(["mcp.json"] if server else [])}
        assert found.items() >= BELOW.items() and found.keys() - BELOW.keys() == own
        assert not any(found[path][1] for path in own)
