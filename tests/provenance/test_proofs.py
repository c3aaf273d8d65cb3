"""What was proved once: kept for the same files, keys and user, and for nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import SIGNATURE_FILE
from mcp_skills_server.provenance.signatures import ProofCache, SignatureGate, Verifier, sign
from provenance.test_signatures import certified, keys
from tables import each_row
from wire import write_skill


def test_a_proof_is_of_one_skill_and_one_question(tmp_path: Path) -> None:
    proofs = ProofCache(tmp_path / "kept")
    assert not proofs.has("keys", "digest")
    for _ in range(2):
        proofs.record("keys", "digest")
    assert ProofCache(tmp_path / "kept").has("keys", "digest")
    assert not proofs.has("other keys", "digest") and not proofs.has("keys", "another")
    (tmp_path / "file").write_text("which cannot hold any")
    nowhere = ProofCache(tmp_path / "file")
    nowhere.record("keys", "digest")
    assert not nowhere.has("keys", "digest")


@each_row("what", ["folder", "file", "link"])
def test_what_others_could_have_written_proves_nothing(what: str, tmp_path: Path) -> None:
    proofs = ProofCache(tmp_path / "kept")
    proofs.record("keys", "digest")
    (folder,) = (tmp_path / "kept").iterdir()
    (file,) = folder.iterdir()
    if what == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        os.chmod(folder if what == "folder" else file, 0o777)
    assert not proofs.has("keys", "digest")


def test_the_next_start_proves_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = keys(tmp_path)
    _, other = keys(tmp_path, "other")
    checked: list[int] = []
    check = Verifier.check

    def counted(self: Verifier, files: dict[str, bytes]) -> None:
        checked.append(1)
        check(self, files)

    monkeypatch.setattr(Verifier, "check", counted)
    for name in ("one", "two"):
        write_skill(tmp_path / "root" / name)
        raw = (tmp_path / "root" / name / "SKILL.md").read_bytes()
        (tmp_path / "root" / name / SIGNATURE_FILE).write_bytes(sign({"SKILL.md": raw}, private))

    def served(key: Path) -> list[str]:
        checked.clear()
        gate = SignatureGate(Verifier([key]), ProofCache(tmp_path / "kept"))
        with Registry([tmp_path / "root"], gate=gate) as registry:
            return sorted(registry.snapshot.skills)

    assert (served(public), len(checked)) == (["one", "two"], 2)
    assert (served(public), len(checked)) == (["one", "two"], 0)
    assert (served(other), len(checked)) == ([], 2)
    (tmp_path / "root" / "two" / "SKILL.md").write_text("---\nname: two\ndescription: Is another.\n---\n")
    assert (served(public), len(checked)) == (["one"], 1)
    assert (served(public), len(checked)) == (["one"], 1)  # what was refused is judged anew


def test_what_is_asked_names_the_keys_and_with_certificates_the_day(tmp_path: Path) -> None:
    _, one = keys(tmp_path, "one")
    _, two = keys(tmp_path, "two")
    _, _, root = certified(tmp_path, days=30)
    assert Verifier([one, two]).cache_key() == Verifier([two, one]).cache_key() != Verifier([one]).cache_key()
    named = [Verifier([key]).cache_key() or "" for key in (one, root)]
    assert [each.count("-") for each in named] == [0, 2]
    verifier = Verifier([two])
    two.unlink()
    assert verifier.cache_key() is None
