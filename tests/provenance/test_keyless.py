"""Bundles of sigstore by a required identity, against a trust root of this test, and skills that are signed so."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.calls import invoke, names_served, opened
from dialects.build import JSON
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SIGNATURE_FILE
from mcp_skills_server.provenance.keyless import Identity, KeylessVerifier
from mcp_skills_server.provenance.signatures import sign
from provenance.local_sigstore import ISSUER, PROVENANCE, SUBJECT, LocalSigstore, encoded, statement
from provenance.test_signatures import key_pair
from sources.publishers import digest
from tables import each_row
from wire import write_skill

RAW = b'{"layers": []}'
DIGEST = digest(RAW)
OTHER = digest(b"other")
WORKFLOW = "https://git.example/team/skills/.ci/release.yml@refs/heads/main"


class Instance(NamedTuple):
    """A sigstore of this test, and the file of its trust root."""

    sigstore: LocalSigstore
    root: Path

    def verifier(self, subject: str = SUBJECT, issuer: str = ISSUER) -> KeylessVerifier:
        return KeylessVerifier(Identity(subject, issuer, self.root))


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Instance:
    sigstore = LocalSigstore()
    return Instance(sigstore, sigstore.trusted_root(tmp_path_factory.mktemp("trust") / "trusted_root.json"))


@each_row("payload", [statement(DIGEST), statement(DIGEST, PROVENANCE)])
def test_bundle_of_the_identity_vouches_for_the_digest(instance: Instance, payload: bytes) -> None:
    assert instance.verifier().fault(DIGEST, instance.sigstore.bundle(payload)) == ""
    assert instance.verifier(WORKFLOW).fault(DIGEST, instance.sigstore.bundle(payload, WORKFLOW)) == ""
    assert instance.verifier().fault(DIGEST, instance.sigstore.blob_bundle(RAW)) == ""


@each_row(("payload", "reason"), [
    (statement(OTHER), "about another artifact"), (statement(DIGEST, subject=[]), "about another artifact"),
    (statement(DIGEST, subject=[7, {"digest": 7}]), "about another artifact"),
    (statement(DIGEST, "https://cyclonedx.org/bom"), "attestation of another kind"),
    (statement(DIGEST, _type="https://example.com/other"), "something else"), (b"[]", "something else"), (b"{", ""),
])  # fmt: skip
def test_statement_that_does_not_vouch_for_the_digest_is_refused(
    instance: Instance, payload: bytes, reason: str
) -> None:
    fault = instance.verifier().fault(DIGEST, instance.sigstore.bundle(payload))
    assert fault
    assert reason in fault


@each_row(("subject", "issuer"), [
    (SUBJECT + ".evil.example", ISSUER), (SUBJECT.removesuffix("e"), ISSUER), ("x" + SUBJECT, ISSUER),
    (SUBJECT.upper(), ISSUER), (SUBJECT, ISSUER + "/"), (SUBJECT, ISSUER + ".evil.example"), (SUBJECT, ISSUER.upper()),
    (f"https://{SUBJECT}/", ISSUER),
])  # fmt: skip
def test_certificate_of_another_identity_is_refused(instance: Instance, subject: str, issuer: str) -> None:
    verifier, sigstore = instance.verifier(), instance.sigstore
    assert verifier.fault(DIGEST, sigstore.bundle(statement(DIGEST), subject, issuer))
    assert verifier.fault(DIGEST, sigstore.blob_bundle(RAW, subject, issuer))


def test_bundle_that_was_changed_or_is_of_another_instance_is_refused(instance: Instance) -> None:
    verifier, sigstore = instance.verifier(), instance.sigstore
    assert verifier.fault(DIGEST, LocalSigstore().bundle(statement(DIGEST)))
    assert verifier.fault(OTHER, sigstore.blob_bundle(RAW))
    bundle = json.loads(sigstore.bundle(statement(OTHER)))
    bundle["dsseEnvelope"]["payload"] = encoded(statement(DIGEST))
    assert verifier.fault(DIGEST, json.dumps(bundle).encode())
    good = sigstore.bundle(statement(DIGEST))
    longest = good.ljust(1 << 20)
    assert verifier.fault(DIGEST, longest) == ""
    assert "more than 1048576 bytes" in verifier.fault(DIGEST, longest + b" ")


@given(data=st.data())
def test_bundle_with_any_other_content_is_refused_in_one_line(data: st.DataObject, instance: Instance) -> None:
    bundle = json.loads(instance.sigstore.bundle(statement(DIGEST)))
    part = bundle[data.draw(st.sampled_from(["verificationMaterial", "dsseEnvelope"]))]
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(JSON)
    raw = data.draw(st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()))
    for content in (raw, json.dumps(bundle).encode()):
        fault = instance.verifier().fault(DIGEST, content)
        assert fault
        assert "\n" not in fault


def test_trust_root_is_read_alone_or_in_the_configuration_of_a_client(instance: Instance, tmp_path: Path) -> None:
    root = json.loads(instance.root.read_text())
    signing = {"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"}
    kind = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"
    path = tmp_path / "trust.json"
    path.write_text(json.dumps({"mediaType": kind, "trustedRoot": root, "signingConfig": signing}))
    verifier = KeylessVerifier(Identity(SUBJECT, ISSUER, path))
    assert verifier.key == instance.verifier().key
    assert verifier.fault(DIGEST, instance.sigstore.bundle(statement(DIGEST))) == ""
    assert len({verifier.key, instance.verifier(WORKFLOW).key, instance.verifier(issuer="https://x.example").key}) == 3
    for content in ("", "{}", "[]", "{" * 2_000_000):
        path.write_text(content)
        with pytest.raises(UsageError, match=r"trusted_root\.json") as caught:
            KeylessVerifier(Identity(SUBJECT, ISSUER, path))
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(UsageError, match=r"trust\.json"):
        KeylessVerifier(Identity(SUBJECT, ISSUER, path))


def sign_keyless(skill: Path, sigstore: LocalSigstore, subject: str = SUBJECT) -> None:
    """Write the signature of a skill as `model_signing sign sigstore` does."""
    files = {path.relative_to(skill).as_posix(): path.read_bytes() for path in skill.rglob("*") if path.is_file()}
    files.pop(SIGNATURE_FILE, None)
    own = json.loads(sign(files, key_pair(skill.parent / ".keys").private))
    payload = base64.b64decode(own["dsseEnvelope"]["payload"])
    (skill / SIGNATURE_FILE).write_bytes(sigstore.bundle(payload, subject))


def configuration(folder: Path, source: str, more: str = "") -> Path:
    """Write a configuration with one source that requires the identity."""
    trust = '"trusted_root.json"'
    identity = f'{{issuer = "{ISSUER}", subject = "{SUBJECT}", trust-root = {trust}}}'
    path = folder / "config.toml"
    path.write_text(f'[[source]]\nfrom = "{source}"\nrequire-identity = {identity}\n{more}')
    return path


def test_only_skills_of_the_identity_are_served(instance: Instance, tmp_path: Path) -> None:
    skills = tmp_path / "skills"
    for name in ("changed", "other", "signed", "unsigned"):
        write_skill(skills / name)
    sign_keyless(skills / "signed", instance.sigstore)
    sign_keyless(skills / "changed", instance.sigstore)
    sign_keyless(skills / "other", instance.sigstore, f"{SUBJECT}.evil.example")
    (skills / "changed" / "more.md").write_text("More.\n")
    (tmp_path / "trusted_root.json").write_bytes(instance.root.read_bytes())
    config = configuration(tmp_path, "skills")
    with opened("--config", config, "--no-watch") as registry:
        assert [*registry.snapshot.skills] == ["signed"]
        codes = {problem.skill: problem.code for problem in registry.problems()}
    assert codes == {
        "changed": "signature-files", "other": "signature-invalid", "unsigned": "signature-missing",
    }  # fmt: skip
    listed = invoke("list", "--config", config)
    assert "signed" in listed.stdout
    assert "unsigned: error: it has no signature" in listed.stderr
    # a required key is required, too
    public = key_pair(tmp_path / "keys").public
    assert names_served("--config", configuration(tmp_path, "skills", f'require-signature = ["{public}"]\n')) == []


def test_certificate_of_an_identity_counts_at_the_time_of_the_log(instance: Instance, tmp_path: Path) -> None:
    """Older bundles have it as a chain. It was valid for ten minutes, a month ago."""
    skill = write_skill(tmp_path / "skills" / "one")
    sign_keyless(skill, instance.sigstore)
    bundle = json.loads((skill / SIGNATURE_FILE).read_bytes())
    material = bundle["verificationMaterial"]
    material["x509CertificateChain"] = {"certificates": [material.pop("certificate")]}
    bundle["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.2"
    (skill / SIGNATURE_FILE).write_text(json.dumps(bundle))
    (tmp_path / "trusted_root.json").write_bytes(instance.root.read_bytes())
    assert names_served("--config", configuration(tmp_path, "skills"), "--no-watch") == ["one"]


@each_row(("value", "reason"), [
    ("true", "this is true or false"), ('{issuer = "i"}', "other keys"), ('{issuer = "i", subject = ""}', "value"),
    ('{issuer = "i", subject = "s", trust = "f"}', "other keys"), ('{issuer = "i", subject = 7}', "a number"),
])  # fmt: skip
def test_wrong_identity_in_the_configuration_is_refused(tmp_path: Path, value: str, reason: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[[source]]\nfrom = "skills"\nrequire-identity = {value}\n')
    done = invoke("config", "check", config)
    assert f"{config}:3: source.require-identity: " in done.stdout + done.stderr
    assert reason in done.stdout + done.stderr
    assert 'issuer = "https://accounts.example"' in done.stdout + done.stderr
