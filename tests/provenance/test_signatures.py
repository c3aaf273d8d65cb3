"""Signatures, made by the library with real keys: what is signed passes, and nothing else does."""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as some
from model_signing import hashing, signing

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.cli import cli
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SIGNATURE_FILE
from mcp_skills_server.provenance.lock import read as read_lock
from mcp_skills_server.provenance.signatures import Identity, SignatureGate, UnsignedError, Verifier, sign
from tables import each_row
from wire import COMMAND, Wire, serving, write_skill

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


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return keys(tmp_path)


def refused(verifier: Verifier, files: dict[str, bytes]) -> str:
    with pytest.raises(UnsignedError) as caught:
        verifier.check(files)
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_what_was_signed_passes(pair: tuple[Path, Path]) -> None:
    private, public = pair
    Verifier([public]).check({**SKILL, SIGNATURE_FILE: sign(SKILL, private)})


def test_signing_anew_does_not_sign_the_signature_before(pair: tuple[Path, Path]) -> None:
    private, public = pair
    first = {**SKILL, SIGNATURE_FILE: sign(SKILL, private)}
    Verifier([public]).check({**SKILL, SIGNATURE_FILE: sign(first, private)})


def test_one_of_several_keys_is_enough(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    _, other = keys(tmp_path, "other")
    signed = {**SKILL, SIGNATURE_FILE: sign(SKILL, pair[0])}
    Verifier([other, pair[1]]).check(signed)
    Verifier([pair[1], other]).check(signed)


@each_row(
    "change",
    [
        {"SKILL.md": b"---\nname: other\n---\n"},
        {"notes/a.md": b"no longer empty"},
        {"more.md": b""},
        {"notes/SKILL.md": b"---\nname: inner\n---\n"},
    ],
)
def test_any_other_byte_and_any_other_file_is_refused(pair: tuple[Path, Path], change: dict[str, bytes]) -> None:
    signed = {**SKILL, SIGNATURE_FILE: sign(SKILL, pair[0])}
    assert refused(Verifier([pair[1]]), {**signed, **change}) == "signature-files"


def test_what_is_not_signed_by_the_key_as_it_is_is_refused(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    verifier, signature = Verifier([pair[1]]), sign(SKILL, pair[0])
    gone = {path: raw for path, raw in SKILL.items() if path != "notes/a.md"}
    assert refused(verifier, {**gone, SIGNATURE_FILE: signature}) == "signature-files"
    assert refused(verifier, SKILL) == "signature-missing"
    another_key = sign(SKILL, keys(tmp_path, "other")[0])
    assert refused(verifier, {**SKILL, SIGNATURE_FILE: another_key}) == "signature-invalid"
    another_skill = sign({"SKILL.md": b"other"}, pair[0])
    assert refused(verifier, {**SKILL, SIGNATURE_FILE: another_skill}) == "signature-files"
    # The content says what is there, and the signature is of what was there.
    after = {**SKILL, "notes/a.md": b"after"}
    one, other = json.loads(signature), json.loads(sign(after, pair[0]))
    one["dsseEnvelope"]["payload"] = other["dsseEnvelope"]["payload"]
    assert refused(verifier, {**after, SIGNATURE_FILE: json.dumps(one).encode()}) == "signature-invalid"


@pytest.mark.parametrize("ignored", ["scripts", "scripts/run.py"])
def test_what_the_signer_had_ignored_is_not_served_unsigned(
    tmp_path: Path, pair: tuple[Path, Path], ignored: str
) -> None:
    place = tmp_path / "skill"
    write_skill(place, scripts__run_py="print(1)\n")
    config = signing.Config().use_elliptic_key_signer(private_key=pair[0])
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=[ignored]))
    config.sign(place, tmp_path / SIGNATURE_FILE)
    files = {each.relative_to(place).as_posix(): each.read_bytes() for each in place.rglob("*") if each.is_file()}
    signed = {**files, SIGNATURE_FILE: (tmp_path / SIGNATURE_FILE).read_bytes()}
    assert refused(Verifier([pair[1]]), signed) == "signature-files"
    assert refused(Verifier([pair[1]]), {**signed, "scripts/run.py": b"evil"}) == "signature-files"


def test_the_signature_of_the_librarys_own_program_is_taken(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    place = write_skill(tmp_path / "skill", scripts__run_py="print(1)\n")
    config = signing.Config().use_elliptic_key_signer(private_key=pair[0])
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=[SIGNATURE_FILE]))
    config.sign(place, place / SIGNATURE_FILE)
    files = {each.relative_to(place).as_posix(): each.read_bytes() for each in place.rglob("*") if each.is_file()}
    Verifier([pair[1]]).check(files)


def test_a_certificate_is_taken_while_it_is_valid(tmp_path: Path) -> None:
    key, own, root = certified(tmp_path, days=10)
    Verifier([root]).check({**SKILL, SIGNATURE_FILE: sign(SKILL, key, certificates=[own])})
    key, own, root = certified(tmp_path, days=-1)
    expired = {**SKILL, SIGNATURE_FILE: sign(SKILL, key, certificates=[own])}
    assert refused(Verifier([root]), expired) == "signature-expired"


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    key, own, _ = certified(tmp_path, days=10)
    _, _, root = certified(tmp_path / "other", days=10)
    assert (
        refused(Verifier([root]), {**SKILL, SIGNATURE_FILE: sign(SKILL, key, certificates=[own])})
        == "signature-invalid"
    )


@pytest.fixture(scope="module")
def module_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return keys(tmp_path_factory.mktemp("keys"))


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=2) | some.dictionaries(some.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


@settings(deadline=None)
@given(data=some.data())
def test_a_signature_of_any_bytes_is_refused_with_a_line(data: some.DataObject, module_pair: tuple[Path, Path]) -> None:
    raw = data.draw(some.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()))
    assert refused(Verifier([module_pair[1]]), {**SKILL, SIGNATURE_FILE: raw}) == "signature-invalid"


@settings(deadline=None)
@given(data=some.data())
def test_a_signature_with_a_part_that_is_something_else_is_refused_with_a_line(
    data: some.DataObject, module_pair: tuple[Path, Path]
) -> None:
    bundle = json.loads(sign(SKILL, module_pair[0]))
    key = data.draw(some.sampled_from(["payload", "payloadType", "signatures"]))
    bundle["dsseEnvelope"][key] = data.draw(JSON)
    raw = json.dumps(bundle).encode()
    assert refused(Verifier([module_pair[1]]), {**SKILL, SIGNATURE_FILE: raw}) == "signature-invalid"


@each_row("payload", [{}, {"predicate": 3}, {"predicate": {"resources": 3}}, [], 3])
def test_a_signature_of_something_else_is_refused(pair: tuple[Path, Path], payload: Any) -> None:
    bundle = json.loads(sign(SKILL, pair[0]))
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    assert refused(Verifier([pair[1]]), {**SKILL, SIGNATURE_FILE: json.dumps(bundle).encode()}) == "signature-invalid"


def test_a_signature_that_would_have_the_library_print_is_refused(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = json.loads(sign(SKILL, pair[0]))
    for hint in ("", None):
        bundle["verificationMaterial"]["publicKey"]["hint"] = hint
        assert (
            refused(Verifier([pair[1]]), {**SKILL, SIGNATURE_FILE: json.dumps(bundle).encode()}) == "signature-invalid"
        )
    del bundle["verificationMaterial"]["publicKey"]["hint"]
    assert refused(Verifier([pair[1]]), {**SKILL, SIGNATURE_FILE: json.dumps(bundle).encode()}) == "signature-invalid"
    assert capsys.readouterr().out == ""


@each_row("content", [b"", b"no key", b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"])
def test_a_key_that_cannot_be_used_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    for use in (lambda: Verifier([path]), lambda: sign(SKILL, path)):
        with pytest.raises(UsageError) as caught:
            use()
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_key_of_another_kind_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rsa.key"
    path.write_bytes(pem(rsa.generate_private_key(65537, 2048)))
    with pytest.raises(UsageError, match="cannot sign"):
        sign(SKILL, path)


def test_a_key_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Verifier([tmp_path / "none.pub"])


def test_a_signature_by_a_key_is_none_of_an_identity(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    trust = tmp_path / "trust.json"
    trust.write_text("{}")
    with pytest.raises(UsageError, match="--trust-root"):
        Verifier([pair[1]], Identity("me@example.com", "https://accounts.example", trust))


# The gate


def test_only_what_is_signed_is_served(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    root = tmp_path / "root"
    for name in ("signed", "unsigned", "changed"):
        write_skill(root / name)
    assert run("sign", str(root / "signed"), "--key", str(pair[0])).stdout == "signed signed\n"
    run("sign", str(root / "changed"), "--key", str(pair[0]))
    (root / "changed" / "more.md").write_text("More.\n")
    with Registry([root], gate=SignatureGate(Verifier([pair[1]]))) as registry:
        assert [*registry.snapshot.skills] == ["signed"]
        found = {each.skill: each.code for each in registry.problems()}
        assert found == {"unsigned": "signature-missing", "changed": "signature-files"}
        (root / "changed" / "more.md").unlink()
        registry.refresh([str(root / "changed" / "more.md")])
        assert sorted(registry.snapshot.skills) == ["changed", "signed"]


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
    assert done.return_value == 1
    assert done.stdout.splitlines() == [
        "outer: its files are not those that were signed [signature-files]",
        "outer/parts/inner: its files are not those that were signed [signature-files]",
    ]


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
    assert done.return_value == 1
    assert "broken: not signed" in done.stderr
    assert not (tmp_path / "root" / "broken" / SIGNATURE_FILE).exists()
    assert run("verify", str(tmp_path / "root"), "--key", str(pair[1])).return_value == 1


def test_a_link_in_the_signatures_place_is_not_followed(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    root, victim = write_skill(tmp_path / "thing"), tmp_path / "victim"
    victim.write_text("mine")
    (root / SIGNATURE_FILE).symlink_to(victim)
    run("sign", str(root), "--key", str(pair[0]))
    assert victim.read_text() == "mine"
    assert not (root / SIGNATURE_FILE).is_symlink()


@each_row("more", [[], ["--identity", "me"], ["--issuer", "i"]])
def test_verify_wants_a_key_or_an_identity(more: list[str]) -> None:
    done = CliRunner().invoke(cli, ["verify", "x", *more])
    assert isinstance(done.exception, UsageError)


def test_a_configuration_wants_signatures_of_one_source_alone(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    for path in ("own/mine", "theirs/signed", "theirs/unsigned"):
        write_skill(tmp_path / path)
    run("sign", str(tmp_path / "theirs" / "signed"), "--key", str(pair[0]))
    file = tmp_path / "c.toml"
    key = os.path.relpath(pair[1], tmp_path)
    file.write_text(f"roots = ['own']\n[[source]]\nfrom = 'theirs'\nrequire-signature = ['{key}']\n")
    with serving("--config", file) as wire:
        assert {each["frontmatter"]["name"] for each in wire.every_skill()} == {"mine", "signed"}
        wire.logs(b"it has no signature")


def test_no_skill_without_its_signature_gets_into_a_lock_file(
    tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("own/mine", "theirs/signed", "theirs/unsigned"):
        write_skill(tmp_path / path)
    run("sign", "theirs/signed", "--key", str(pair[0]))
    key = os.path.relpath(pair[1], tmp_path)
    Path("c.toml").write_text(f"roots = ['own']\n[[source]]\nfrom = 'theirs'\nrequire-signature = ['{key}']\n")
    said = "left out: theirs/unsigned: it has no signature"
    done = run("lock", "--config", "c.toml")
    assert said in done.stderr
    assert [[*each.skills] for each in read_lock(Path("skills.lock"))] == [["mine"], ["signed"]]
    assert run("outdated", "--config", "c.toml").return_value == 0
    done = run("update", "--config", "c.toml")
    assert (done.stdout, said in done.stderr) == ("", True)
    done = run("lock", "own", "theirs", "--require-signature", key)
    assert done.return_value == 1 and "left out: own/mine: it has no signature" in done.stderr


def test_a_server_that_wants_signatures_serves_nothing_else(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    root = tmp_path / "root"
    write_skill(root / "signed")
    write_skill(root / "unsigned")
    run("sign", str(root / "signed"), "--key", str(pair[0]))
    with serving(root, "--require-signature", pair[1]) as wire:
        assert [each["frontmatter"]["name"] for each in wire.every_skill()] == ["signed"]
        wire.logs(b"it has no signature")
        (root / "signed" / "SKILL.md").write_text("---\nname: signed\ndescription: Other.\n---\n")
        wire.until("notifications/skills/list_changed")
        assert wire.every_skill() == []
    wire = Wire([*COMMAND, "serve", str(root), "--require-signature", str(tmp_path / "none")])
    try:
        assert wire.close() == 2
        assert b"cannot be read" in wire.stderr
    finally:
        wire.kill()
