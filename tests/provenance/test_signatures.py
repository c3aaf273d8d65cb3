"""Signatures, made by the library with real keys: what is signed passes, and nothing else does."""

from __future__ import annotations

import base64
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as some
from model_signing import hashing, signing

from dialects.build import JSON
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SIGNATURE_FILE
from mcp_skills_server.provenance.lock import read as read_lock
from mcp_skills_server.provenance.signatures import Identity, ProofCache, SignatureGate, UnsignedError, Verifier, sign
from tables import each_row
from wire import Wire, serving, write_skill

SKILL = {"SKILL.md": b"---\nname: thing\n---\n", "scripts/run.py": b"print(1)\n", "notes/a.md": b""}
NO_PASSWORD = serialization.NoEncryption()


def keys(folder: Path, name: str = "team", *, password: bytes | None = None) -> tuple[Path, Path]:
    """A private and a public key."""
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(pem(key, password))
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def pem(key: Any, password: bytes | None = None) -> bytes:
    locked = serialization.BestAvailableEncryption(password) if password else NO_PASSWORD
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


def certified(folder: Path, *, days: int) -> tuple[Path, Path, Path]:
    """A private key, its certificate, and that of the authority which signed it; it is valid for so many days more."""
    now = datetime.now(UTC)

    def certificate(names: tuple[str, str], public: Any, by: Any, until: datetime) -> bytes:
        subject, issuer = names
        authority = subject == issuer
        usage = x509.KeyUsage(not authority, False, False, False, False, authority, authority, False, False)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        return builder.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    key, own_file, root_file = folder / "own.key", folder / "own.pem", folder / "root.pem"
    key.write_bytes(pem(own))
    root_file.write_bytes(certificate(("Root", "Root"), root.public_key(), root, now + timedelta(days=900)))
    own_file.write_bytes(certificate(("Team", "Root"), own.public_key(), root, now + timedelta(days=days)))
    return key, own_file, root_file


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return keys(tmp_path_factory.mktemp("keys"))


def signed(private: Path, files: dict[str, bytes] = SKILL, **how: Any) -> dict[str, bytes]:
    """These files with their signature."""
    return {**files, SIGNATURE_FILE: sign(files, private, **how)}


def refused(public: Path, files: dict[str, bytes]) -> str:
    with pytest.raises(UnsignedError) as caught:
        Verifier([public]).check(files)
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_what_was_signed_by_one_of_the_keys_passes(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    private, public = pair
    _, other = keys(tmp_path, "other")
    once = signed(private)
    Verifier([other, public]).check(once)
    Verifier([public, other]).check(once)
    Verifier([public]).check(signed(private, once))  # which does not sign the signature before


@each_row("change", [
    {"SKILL.md": b"---\nname: other\n---\n"}, {"notes/a.md": b"no longer empty"}, {"more.md": b""},
    {"notes/SKILL.md": b"---\nname: inner\n---\n"},
])  # fmt: skip
def test_any_other_byte_and_any_other_file_is_refused(pair: tuple[Path, Path], change: dict[str, bytes]) -> None:
    assert refused(pair[1], {**signed(pair[0]), **change}) == "signature-files"


def test_what_is_not_signed_by_the_key_as_it_is_is_refused(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    private, public = pair
    gone = {path: raw for path, raw in signed(private).items() if path != "notes/a.md"}
    assert refused(public, gone) == "signature-files"
    assert refused(public, SKILL) == "signature-missing"
    assert refused(public, signed(keys(tmp_path, "other")[0])) == "signature-invalid"
    assert refused(public, {**SKILL, SIGNATURE_FILE: sign({"SKILL.md": b"other"}, private)}) == "signature-files"
    # The content says what is there, and the signature is of what was there.
    after = {**SKILL, "notes/a.md": b"after"}
    one, other = json.loads(sign(SKILL, private)), json.loads(sign(after, private))
    one["dsseEnvelope"]["payload"] = other["dsseEnvelope"]["payload"]
    assert refused(public, {**after, SIGNATURE_FILE: json.dumps(one).encode()}) == "signature-invalid"


def by_the_library(place: Path, private: Path, ignored: str) -> dict[str, bytes]:
    """The files of a skill, signed by the library's own program with a path ignored."""
    write_skill(place, scripts__run_py="print(1)\n")
    config = signing.Config().use_elliptic_key_signer(private_key=private)
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=[ignored]))
    config.sign(place, place.with_name(SIGNATURE_FILE))
    files = {each.relative_to(place).as_posix(): each.read_bytes() for each in place.rglob("*") if each.is_file()}
    return {**files, SIGNATURE_FILE: place.with_name(SIGNATURE_FILE).read_bytes()}


@each_row("ignored", ["scripts", "scripts/run.py"])
def test_what_the_signer_ignored_is_not_served_unsigned(tmp_path: Path, pair: tuple[Path, Path], ignored: str) -> None:
    files = by_the_library(tmp_path / "skill", pair[0], ignored)
    assert refused(pair[1], files) == refused(pair[1], {**files, "scripts/run.py": b"evil"}) == "signature-files"
    Verifier([pair[1]]).check(by_the_library(tmp_path / "own", pair[0], SIGNATURE_FILE))


def test_a_certificate_of_the_authority_is_taken_while_it_is_valid(tmp_path: Path) -> None:
    key, own, root = certified(tmp_path, days=10)
    by_certificate = signed(key, certificates=[own])
    for files in (by_certificate, signed(key, certificates=[own, root])):
        Verifier([root]).check(files)
    key, own, another = certified(tmp_path, days=-1)
    assert refused(another, by_certificate) == "signature-invalid"
    assert refused(another, signed(key, certificates=[own])) == "signature-expired"


@given(data=some.data())
def test_a_signature_with_anything_else_in_it_is_refused(data: some.DataObject, pair: tuple[Path, Path]) -> None:
    bundle = json.loads(sign(SKILL, pair[0]))
    bundle["dsseEnvelope"][data.draw(some.sampled_from(["payload", "payloadType", "signatures"]))] = data.draw(JSON)
    raw = data.draw(some.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()))
    for each in (raw, json.dumps(bundle).encode()):
        assert refused(pair[1], {**SKILL, SIGNATURE_FILE: each}) == "signature-invalid"


def test_a_signature_of_something_else_is_refused(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    sound = sign(SKILL, pair[0])
    longest = sound.ljust(1 << 20)
    Verifier([pair[1]]).check({**SKILL, SIGNATURE_FILE: longest})
    assert refused(pair[1], {**SKILL, SIGNATURE_FILE: longest + b" "}) == "signature-invalid"
    bundles = [json.loads(sound) for _ in range(8)]
    for bundle, payload in zip(bundles, ({}, {"predicate": 3}, {"predicate": {"resources": 3}}, [], 3), strict=False):
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    for bundle, key in zip(bundles[5:], ({"hint": ""}, {"hint": None}, {}), strict=True):
        bundle["verificationMaterial"]["publicKey"] = key
    for bundle in bundles:
        assert refused(pair[1], {**SKILL, SIGNATURE_FILE: json.dumps(bundle).encode()}) == "signature-invalid"
    assert capsys.readouterr().out == ""


@each_row(("content", "uses", "reason"), [
    (b"", (Verifier, sign), "PEM file"), (b"no key", (Verifier, sign), "PEM file"),
    (b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", (Verifier, sign), "PEM file"),
    (None, (Verifier, sign), "cannot be read"),
    (pem(rsa.generate_private_key(65537, 2048)), (sign,), "cannot sign"),
])  # fmt: skip
def test_an_unusable_key_is_told(tmp_path: Path, content: bytes | None, uses: tuple[Any, ...], reason: str) -> None:
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_bytes(content)
    for use in uses:
        with pytest.raises(UsageError, match=reason) as caught:
            use([path]) if use is Verifier else use(SKILL, path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value) and "(None)" not in str(caught.value)
    path.write_text("{}")
    with pytest.raises(UsageError, match="--trust-root"):
        Verifier([], Identity("me@example.com", "https://accounts.example", path))


# The gate


def test_only_what_is_signed_is_served(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    root = tmp_path / "root"
    for name in ("signed", "unsigned", "changed"):
        write_skill(root / name)
    assert run("sign", str(root / "signed"), "--key", str(pair[0])).stdout == "signed signed\n"
    run("sign", str(root / "changed"), "--key", str(pair[0]))
    (root / "changed" / "more.md").write_text("More.\n")

    def served(wire: Wire) -> set[str]:
        return {each["frontmatter"]["name"] for each in wire.every_skill()}

    with serving(root, "--require-signature", pair[1]) as wire:
        assert served(wire) == {"signed"}
        for code in (b"signature-missing", b"signature-files"):
            wire.logs(code)
        (root / "changed" / "more.md").unlink()
        wire.until("notifications/skills/list_changed")
        assert served(wire) == {"signed", "changed"}
        (root / "signed" / "SKILL.md").write_text("---\nname: signed\ndescription: Other.\n---\n")
        wire.until("notifications/skills/list_changed")
        assert served(wire) == {"changed"}
    done = CliRunner().invoke(cli, ["serve", str(root), "--require-signature", str(tmp_path / "none")])
    assert isinstance(done.exception, UsageError) and "cannot be read" in str(done.exception)


# What was proved once: kept for the same files, keys and user, and for nothing else


def test_a_proof_is_of_one_skill_and_one_question(tmp_path: Path) -> None:
    proofs = ProofCache(tmp_path / "kept")
    assert not proofs.has("keys", "digest")
    mask = os.umask(0)
    try:
        for _ in range(2):
            proofs.record("keys", "digest")
    finally:
        os.umask(mask)
    assert sorted(each.stat().st_mode & 0o777 for each in (tmp_path / "kept").rglob("*")) == [0o600, 0o700]
    assert ProofCache(tmp_path / "kept").has("keys", "digest")
    assert not proofs.has("other keys", "digest") and not proofs.has("keys", "another")
    (tmp_path / "file").write_text("which cannot hold any")
    nowhere = ProofCache(tmp_path / "file")
    nowhere.record("keys", "digest")
    assert not nowhere.has("keys", "digest")


def test_proofs_that_nobody_asked_for_in_a_month_go_when_others_come(tmp_path: Path) -> None:
    proofs = ProofCache(tmp_path)
    for key, days in (("old", 31), ("used", 29)):
        proofs.record(key, "digest")
        newest = max(tmp_path.iterdir(), key=lambda each: each.stat().st_mtime)
        os.utime(newest, (time.time() - days * 86400,) * 2)
    proofs.record("new", "digest")
    assert [proofs.has(key, "digest") for key in ("old", "used", "new")] == [False, True, True]


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
    check = create_autospec(Verifier.check, side_effect=Verifier.check)
    monkeypatch.setattr(Verifier, "check", check)
    for name in ("one", "two"):
        run("sign", str(write_skill(tmp_path / "root" / name)), "--key", str(private))

    def served(key: Path) -> tuple[list[str], int]:
        """The skills, and how many were checked anew."""
        check.reset_mock()
        gate = SignatureGate(Verifier([key]), ProofCache(tmp_path / "kept"))
        with Registry([tmp_path / "root"], gate=gate) as registry:
            return sorted(registry.snapshot.skills), check.call_count

    assert served(public) == (["one", "two"], 2)
    assert served(public) == (["one", "two"], 0)
    assert served(other) == ([], 2)
    (tmp_path / "root" / "two" / "SKILL.md").write_text("---\nname: two\ndescription: Is another.\n---\n")
    for _ in range(2):  # what was refused is judged anew
        assert served(public) == (["one"], 1)
    gate = SignatureGate(Verifier([public]))
    with Registry([tmp_path / "root"], gate=gate) as registry:
        other.replace(public)  # the next judgement is by the new key
        assert gate(registry, registry.snapshot.skills["one"]) is not None


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


# The commands


def run(*words: str) -> Result:
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_a_folder_of_skills_is_signed_and_verified_nested_ones_too(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    root = tmp_path / "root"
    write_skill(root / "outer")
    write_skill(root / "outer" / "parts" / "inner")
    done = run("sign", str(root), "--key", str(pair[0]))
    assert (done.return_value, done.stdout) == (0, "signed outer/parts/inner\nsigned outer\n")
    done = run("verify", str(root), "--key", str(pair[1]))
    assert (done.return_value, done.stdout) == (0, "outer: signed\nouter/parts/inner: signed\n")
    (root / "outer" / "parts" / "inner" / "more.md").write_text("More.\n")
    done = run("verify", str(root), "--key", str(pair[1]))
    changed = "its files are not those that were signed [signature-files]"
    assert (done.return_value, done.stdout) == (1, f"outer: {changed}\nouter/parts/inner: {changed}\n")


def test_a_key_with_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = keys(tmp_path, password=b"secret")
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


def test_what_cannot_be_served_is_not_signed(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    (tmp_path / "root" / "broken").mkdir(parents=True)
    (tmp_path / "root" / "broken" / "SKILL.md").write_text("nothing")
    done = run("sign", str(tmp_path / "root"), "--key", str(pair[0]))
    assert done.return_value == 1 and "broken: not signed" in done.stderr
    assert not (tmp_path / "root" / "broken" / SIGNATURE_FILE).exists()
    assert run("verify", str(tmp_path / "root"), "--key", str(pair[1])).return_value == 1


def test_a_link_in_the_signatures_place_is_not_followed(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    root, victim = write_skill(tmp_path / "thing"), tmp_path / "victim"
    victim.write_text("mine")
    (root / SIGNATURE_FILE).symlink_to(victim)
    run("sign", str(root), "--key", str(pair[0]))
    assert victim.read_text() == "mine" and not (root / SIGNATURE_FILE).is_symlink()


@each_row("more", [[], ["--identity", "me"], ["--issuer", "i"]])
def test_verify_wants_a_key_or_an_identity(more: list[str]) -> None:
    assert isinstance(CliRunner().invoke(cli, ["verify", "x", *more]).exception, UsageError)


def test_one_source_wants_signatures(tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("own/mine", "theirs/signed", "theirs/unsigned"):
        write_skill(tmp_path / path)
    run("sign", "theirs/signed", "--key", str(pair[0]))
    key = os.path.relpath(pair[1], tmp_path)
    Path("c.toml").write_text(f"roots = ['own']\n[[source]]\nfrom = 'theirs'\nrequire-signature = ['{key}']\n")
    with serving("--config", tmp_path / "c.toml") as wire:
        assert {each["frontmatter"]["name"] for each in wire.every_skill()} == {"mine", "signed"}
        wire.logs(b"it has no signature")
    said = "left out: theirs/unsigned: it has no signature"
    assert said in run("lock", "--config", "c.toml").stderr
    assert [[*each.skills] for each in read_lock(Path("skills.lock"))] == [["mine"], ["signed"]]
    assert run("outdated", "--config", "c.toml").return_value == 0
    done = run("update", "--config", "c.toml")
    assert (done.stdout, said in done.stderr) == ("", True)
    done = run("lock", "own", "theirs", "--require-signature", key)
    assert done.return_value == 1 and "left out: own/mine: it has no signature" in done.stderr
