"""Signatures of skills with real keys: verification, the gate, cached proofs, and commands."""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import create_autospec

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from model_signing import hashing, signing

from commands.calls import names_served, opened
from dialects.build import JSON
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SIGNATURE_FILE
from mcp_skills_server.provenance import signatures
from mcp_skills_server.provenance.lock import read as read_lock
from mcp_skills_server.provenance.signatures import Identity, SignatureGate, UnsignedError, Verifier, sign
from tables import each_row
from wire import write_skill

SKILL = {"SKILL.md": b"---\nname: thing\n---\n", "scripts/run.py": b"print(1)\n", "notes/a.md": b""}


class KeyPair(NamedTuple):
    """Files of a private and a public key."""

    private: Path
    public: Path


class Certificates(NamedTuple):
    """Files of a private key, its certificate, and the certificate of the authority that signed it."""

    key: Path
    own: Path
    root: Path


def key_pair(folder: Path, name: str = "team", *, password: bytes | None = None) -> KeyPair:
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(pem(key, password))
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return KeyPair(private, public)


def pem(key: Any, password: bytes | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def certified(folder: Path, *, days: int) -> Certificates:
    """Make a key with a certificate that is valid for this many more days."""
    now = datetime.now(UTC)
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Root")])
    root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def certificate(name: str, public: Any, days: int) -> bytes:
        authority = name == "Root"
        usage = x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        return builder.sign(root, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    files = Certificates(folder / "own.key", folder / "own.pem", folder / "root.pem")
    files.key.write_bytes(pem(own))
    files.own.write_bytes(certificate("Team", own.public_key(), days))
    files.root.write_bytes(certificate("Root", root.public_key(), 900))
    return files


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return key_pair(tmp_path_factory.mktemp("keys"))


def signed(private: Path, files: dict[str, bytes] = SKILL, **options: Any) -> dict[str, bytes]:
    """Return files with their signature."""
    return {**files, SIGNATURE_FILE: sign(files, private, **options)}


def refusal(public: Path, files: dict[str, bytes]) -> str:
    """Return the code of the problem with which the files are refused."""
    with pytest.raises(UnsignedError) as caught:
        Verifier([public]).check(files)
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_signature_by_one_of_the_keys_passes(tmp_path: Path, pair: KeyPair) -> None:
    private, public = pair
    _, other = key_pair(tmp_path, "other")
    files = signed(private)
    Verifier([other, public]).check(files)
    Verifier([public, other]).check(files)
    Verifier([public]).check(signed(private, files))  # the new signature does not cover the old one


@each_row("change", [
    {"SKILL.md": b"---\nname: other\n---\n"}, {"notes/a.md": b"no longer empty"}, {"more.md": b""},
    {"notes/SKILL.md": b"---\nname: inner\n---\n"},
])  # fmt: skip
def test_changed_or_added_file_is_refused(pair: KeyPair, change: dict[str, bytes]) -> None:
    assert refusal(pair.public, {**signed(pair.private), **change}) == "signature-files"


def test_missing_file_or_signature_or_other_key_is_refused(tmp_path: Path, pair: KeyPair) -> None:
    private, public = pair
    gone = {path: raw for path, raw in signed(private).items() if path != "notes/a.md"}
    assert refusal(public, gone) == "signature-files"
    assert refusal(public, SKILL) == "signature-missing"
    assert refusal(public, signed(key_pair(tmp_path, "other")[0])) == "signature-invalid"
    assert refusal(public, {**SKILL, SIGNATURE_FILE: sign({"SKILL.md": b"other"}, private)}) == "signature-files"
    # the payload lists the changed files, but the signature is of the old payload
    after = {**SKILL, "notes/a.md": b"after"}
    one, other = json.loads(sign(SKILL, private)), json.loads(sign(after, private))
    one["dsseEnvelope"]["payload"] = other["dsseEnvelope"]["payload"]
    assert refusal(public, {**after, SIGNATURE_FILE: json.dumps(one).encode()}) == "signature-invalid"


def signed_by_library(folder: Path, private: Path, ignored: str) -> dict[str, bytes]:
    """Return the files of a skill, signed by `model_signing` itself with an ignored path."""
    write_skill(folder, scripts__run_py="print(1)\n")
    signature = folder.with_name(SIGNATURE_FILE)
    config = signing.Config().use_elliptic_key_signer(private_key=private)
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=[ignored]))
    config.sign(folder, signature)
    files = {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    return {**files, SIGNATURE_FILE: signature.read_bytes()}


@each_row("ignored", ["scripts", "scripts/run.py"])
def test_files_ignored_by_the_signer_are_refused(tmp_path: Path, pair: KeyPair, ignored: str) -> None:
    files = signed_by_library(tmp_path / "skill", pair.private, ignored)
    for changed in (files, {**files, "scripts/run.py": b"evil"}):
        assert refusal(pair.public, changed) == "signature-files"
    Verifier([pair.public]).check(signed_by_library(tmp_path / "own", pair.private, SIGNATURE_FILE))


def test_certificate_of_the_authority_passes_until_it_expires(tmp_path: Path) -> None:
    key, own, root = certified(tmp_path, days=10)
    files = signed(key, certificates=[own])
    Verifier([root]).check(files)
    Verifier([root]).check(signed(key, certificates=[own, root]))
    key, own, other_root = certified(tmp_path, days=-1)
    assert refusal(other_root, files) == "signature-invalid"
    assert refusal(other_root, signed(key, certificates=[own])) == "signature-expired"


@given(data=st.data())
def test_signature_file_with_any_other_content_is_refused(data: st.DataObject, pair: KeyPair) -> None:
    bundle = json.loads(sign(SKILL, pair.private))
    bundle["dsseEnvelope"][data.draw(st.sampled_from(["payload", "payloadType", "signatures"]))] = data.draw(JSON)
    raw = data.draw(st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()))
    for each in (raw, json.dumps(bundle).encode()):
        assert refusal(pair.public, {**SKILL, SIGNATURE_FILE: each}) == "signature-invalid"


def test_signature_of_another_payload_or_over_one_mebibyte_is_refused(
    pair: KeyPair, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = sign(SKILL, pair.private)
    longest = signature.ljust(1 << 20)
    Verifier([pair.public]).check({**SKILL, SIGNATURE_FILE: longest})
    assert refusal(pair.public, {**SKILL, SIGNATURE_FILE: longest + b" "}) == "signature-invalid"
    bundles = [json.loads(signature) for _ in range(8)]
    for bundle, payload in zip(bundles, ({}, {"predicate": 3}, {"predicate": {"resources": 3}}, [], 3), strict=False):
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    for bundle, key in zip(bundles[5:], ({"hint": ""}, {"hint": None}, {}), strict=True):
        bundle["verificationMaterial"]["publicKey"] = key
    for bundle in bundles:
        assert refusal(pair.public, {**SKILL, SIGNATURE_FILE: json.dumps(bundle).encode()}) == "signature-invalid"
    assert capsys.readouterr().out == ""


def test_signature_with_field_in_snake_case_is_refused(pair: KeyPair, capfd: pytest.CaptureFixture[str]) -> None:
    """The library prints this field, which anybody can write, to the protocol's stdout before it checks a key."""
    signature = json.loads(sign(SKILL, pair.private))
    material = signature["verificationMaterial"]
    material["public_key"] = {**material.pop("publicKey"), "hint": ""}
    assert refusal(pair.public, {**SKILL, SIGNATURE_FILE: json.dumps(signature).encode()}) == "signature-invalid"
    assert capfd.readouterr().out == ""


@each_row(("content", "uses", "reason"), [
    (b"", (Verifier, sign), "PEM file"), (b"no key", (Verifier, sign), "PEM file"),
    (b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", (Verifier, sign), "PEM file"),
    (None, (Verifier, sign), "cannot be read"),
    (pem(rsa.generate_private_key(65537, 2048)), (sign,), "cannot sign"),
])  # fmt: skip
def test_unusable_key_is_refused_with_one_line(
    tmp_path: Path, content: bytes | None, uses: tuple[Any, ...], reason: str
) -> None:
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
    for use in uses:
        with pytest.raises(UsageError, match=reason) as caught:
            use([path]) if use is Verifier else use(SKILL, path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "(None)" not in str(caught.value)
    path.write_text("{}")
    with pytest.raises(UsageError, match="--trust-root"):
        Verifier([], Identity("me@example.com", "https://accounts.example", path))


def test_only_signed_skills_are_served(tmp_path: Path, pair: KeyPair) -> None:
    root = tmp_path / "root"
    for name in ("signed", "unsigned", "changed"):
        write_skill(root / name)
    assert run("sign", str(root / "signed"), "--key", str(pair.private)).stdout == "signed signed\n"
    run("sign", str(root / "changed"), "--key", str(pair.private))
    (root / "changed" / "more.md").write_text("More.\n")
    with opened(root, "--require-signature", pair.public, "--no-watch") as registry:
        assert [*registry.snapshot.skills] == ["signed"]
        assert {problem.code for problem in registry.problems()} == {"signature-missing", "signature-files"}
        (root / "changed" / "more.md").unlink()
        registry.refresh()
        assert [*registry.snapshot.skills] == ["changed", "signed"]
        (root / "signed" / "SKILL.md").write_text("---\nname: signed\ndescription: Other.\n---\n")
        registry.refresh()
        assert [*registry.snapshot.skills] == ["changed"]
    done = CliRunner().invoke(cli, ["serve", str(root), "--require-signature", str(tmp_path / "none")])
    assert isinstance(done.exception, UsageError)
    assert "cannot be read" in str(done.exception)


def test_skill_is_dropped_when_its_certificate_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(days=100)

    key, own, root = certified(tmp_path, days=10)
    thing = write_skill(tmp_path / "skills" / "thing")
    files = {path.name: path.read_bytes() for path in thing.iterdir()}
    (thing / SIGNATURE_FILE).write_bytes(sign(files, key, certificates=[own]))
    with Registry([tmp_path / "skills"], gate=SignatureGate(Verifier([root]))) as registry:
        assert [*registry.snapshot.skills] == ["thing"]
        monkeypatch.setattr(signatures, "datetime", Later)
        registry.refresh()
        assert not registry.snapshot.skills


@each_row("untrusted", ["folder", "file", "link"])
def test_proof_that_others_could_have_written_is_ignored(
    untrusted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = key_pair(tmp_path)
    run("sign", str(write_skill(tmp_path / "root" / "one")), "--key", str(private))
    check = create_autospec(Verifier.check, side_effect=Verifier.check)
    monkeypatch.setattr(Verifier, "check", check)

    def start() -> int:
        gate = SignatureGate(Verifier([public]), Index(tmp_path / "kept"))
        with Registry([tmp_path / "root"], gate=gate) as registry:
            assert [*registry.snapshot.skills] == ["one"]
        return check.call_count

    assert (start(), start()) == (1, 1)
    (file,) = (tmp_path / "kept").glob("*.sqlite3")
    if untrusted == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif untrusted == "folder":
        (tmp_path / "kept").chmod(0o777)
    else:
        file.chmod(0o666)
    assert start() == 2


def test_next_start_verifies_only_new_signatures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = key_pair(tmp_path)
    _, other = key_pair(tmp_path, "other")
    check = create_autospec(Verifier.check, side_effect=Verifier.check)
    monkeypatch.setattr(Verifier, "check", check)
    for name in ("one", "two"):
        run("sign", str(write_skill(tmp_path / "root" / name)), "--key", str(private))

    def start(key: Path) -> tuple[list[str], int]:
        """Return the served skills, and the number of verified signatures."""
        check.reset_mock()
        gate = SignatureGate(Verifier([key]), Index(tmp_path / "kept"))
        with Registry([tmp_path / "root"], gate=gate) as registry:
            return sorted(registry.snapshot.skills), check.call_count

    assert start(public) == (["one", "two"], 2)
    assert start(public) == (["one", "two"], 0)
    assert start(other) == ([], 2)
    (tmp_path / "root" / "two" / "SKILL.md").write_text("---\nname: two\ndescription: Is another.\n---\n")
    for _ in range(2):  # refusals are not cached
        assert start(public) == (["one"], 1)
    gate = SignatureGate(Verifier([public]))
    with Registry([tmp_path / "root"], gate=gate) as registry:
        other.replace(public)  # the next skill is verified with the new key
        assert gate(registry, registry.snapshot.skills["one"]) is not None


def test_cache_key_depends_on_the_keys_and_with_certificates_on_the_day(tmp_path: Path) -> None:
    _, one = key_pair(tmp_path, "one")
    _, two = key_pair(tmp_path, "two")
    _, _, root = certified(tmp_path, days=30)
    assert Verifier([one, two]).cache_key() == Verifier([two, one]).cache_key()
    assert Verifier([one, two]).cache_key() != Verifier([one]).cache_key()
    assert "-" not in (Verifier([one]).cache_key() or "-")
    assert (Verifier([root]).cache_key() or "").count("-") == 2, "ends with the day"
    verifier = Verifier([two])
    two.unlink()
    assert verifier.cache_key() is None


def run(*arguments: str) -> Result:
    """Run a command that ends without an error."""
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_sign_and_verify_include_nested_skills(tmp_path: Path, pair: KeyPair) -> None:
    root = tmp_path / "root"
    write_skill(root / "outer")
    write_skill(root / "outer" / "parts" / "inner")
    done = run("sign", str(root), "--key", str(pair.private))
    assert (done.return_value, done.stdout) == (0, "signed outer/parts/inner\nsigned outer\n")
    done = run("verify", str(root), "--key", str(pair.public))
    assert (done.return_value, done.stdout) == (0, "outer: signed\nouter/parts/inner: signed\n")
    (root / "outer" / "parts" / "inner" / "more.md").write_text("More.\n")
    done = run("verify", str(root), "--key", str(pair.public))
    changed = "its files are not those that were signed [signature-files]"
    assert (done.return_value, done.stdout) == (1, f"outer: {changed}\nouter/parts/inner: {changed}\n")


def test_key_password_is_read_from_an_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = key_pair(tmp_path, password=b"secret")
    root = write_skill(tmp_path / "thing")
    monkeypatch.setenv("KEY_PASSWORD", "secret")
    assert run("sign", str(root), "--key", str(private), "--password-env", "KEY_PASSWORD").return_value == 0
    assert run("verify", str(root), "--key", str(public)).return_value == 0
    for name, value in (("KEY_PASSWORD", "wrong"), ("OTHER", "")):
        monkeypatch.setenv(name, value)
        done = CliRunner().invoke(cli, ["sign", str(root), "--key", str(private), "--password-env", name])
        assert isinstance(done.exception, UsageError)
    done = CliRunner().invoke(cli, ["sign", str(root), "--key", str(private), "--password-env", "NONE"])
    assert "no such variable" in str(done.exception)


def test_broken_skill_is_not_signed(tmp_path: Path, pair: KeyPair) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "SKILL.md").write_text("nothing")
    done = run("sign", str(tmp_path), "--key", str(pair.private))
    assert done.return_value == 1
    assert "broken: not signed" in done.stderr
    assert not (broken / SIGNATURE_FILE).exists()
    assert run("verify", str(tmp_path), "--key", str(pair.public)).return_value == 1


def test_signature_replaces_a_link_and_does_not_follow_it(tmp_path: Path, pair: KeyPair) -> None:
    root, victim = write_skill(tmp_path / "thing"), tmp_path / "victim"
    victim.write_text("mine")
    (root / SIGNATURE_FILE).symlink_to(victim)
    run("sign", str(root), "--key", str(pair.private))
    assert victim.read_text() == "mine"
    assert not (root / SIGNATURE_FILE).is_symlink()


@each_row("more", [[], ["--identity", "me"], ["--issuer", "i"]])
def test_verify_needs_a_key_or_a_complete_identity(more: list[str]) -> None:
    assert isinstance(CliRunner().invoke(cli, ["verify", "x", *more]).exception, UsageError)


def test_config_source_can_require_signatures(tmp_path: Path, pair: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("own/mine", "theirs/signed", "theirs/unsigned"):
        write_skill(tmp_path / path)
    run("sign", "theirs/signed", "--key", str(pair.private))
    key = os.path.relpath(pair.public, tmp_path)
    Path("c.toml").write_text(f"roots = ['own']\n[[source]]\nfrom = 'theirs'\nrequire-signature = ['{key}']\n")
    assert names_served("--config", tmp_path / "c.toml") == ["mine", "signed"]
    left_out = "not locked: theirs/unsigned: it has no signature"
    assert left_out in run("lock", "--config", "c.toml").stderr
    assert [[*each.skills] for each in read_lock(Path("skills.lock"))] == [["mine"], ["signed"]]
    assert run("update", "--check", "--config", "c.toml").return_value == 0
    done = run("update", "--config", "c.toml")
    assert done.stdout == ""
    assert left_out in done.stderr
    done = run("lock", "own", "theirs", "--require-signature", key)
    assert done.return_value == 1
    assert "not locked: own/mine: it has no signature" in done.stderr


def test_unsigned_nested_skill_takes_its_files_out_of_a_signed_outer_one(tmp_path: Path) -> None:
    """The signature of the outer skill covers them, and stays valid."""
    keys, root = key_pair(tmp_path / "keys"), tmp_path / "skills"
    outer = write_skill(root / "outer", own_md="own\n")
    write_skill(outer / "inner", notes_md="unsigned\n")
    with Registry([root]) as registry:
        files = registry.read_all(registry.snapshot.skills["outer"])
    (outer / SIGNATURE_FILE).write_bytes(sign(files, keys.private))
    with Registry([root], gate=SignatureGate(Verifier([keys.public]))) as registry:
        assert [*registry.snapshot.skills] == ["outer"]
        assert sorted(registry.snapshot.skills["outer"].files) == ["SKILL.md", "own.md", SIGNATURE_FILE]
        (outer / "own.md").write_text("changed\n")
        registry.refresh()
        assert not registry.snapshot.skills
