"""Signatures of skills by OpenSSF model signing, in a file `skill.oms.sig`, and the gate for them.

The library verifies the signature and the signed files. This module adds two checks: every served
file must be signed, even one that the signature declares as ignored, and certificates must still be
valid.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from mcp_skills_server import __version__
from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.reader import SkillReader
from mcp_skills_server.codes import problem
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import SkillsServerError, UsageError
from mcp_skills_server.installation import missing_extra
from mcp_skills_server.model import SIGNATURE_FILE, Skill, Standing, printable
from mcp_skills_server.model.decoding import load_json
from mcp_skills_server.provenance.keyless import Identity, KeylessVerifier

_MAX_PROVED: Final = 100_000
_MAX_BYTES: Final = 1 << 20

Files: TypeAlias = Mapping[str, bytes]
"""Contents of a skill's files by path in the skill."""


class UnsignedError(SkillsServerError):
    """Raised for a skill without a valid signature; `code` is the code of its problem."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Verifier:
    """A verifier of skills that accepts a signature by any of its keys or its identity.

    Raises:
        UsageError: a key cannot be used, or the library is not installed.
    """

    def __init__(self, keys: Sequence[Path], identity: Identity | None = None) -> None:
        self._keys = [*keys]
        # Each check makes new library objects, because they keep the hashing configuration of the
        # last signature.
        self._configs = [partial(_by_key, path) for path in keys]
        for path, make in zip(keys, self._configs, strict=True):
            try:
                make()
            except UsageError:
                raise
            except Exception as error:  # of any type, for any fault that the library finds
                fault = "this is not a usable public key or certificate"
                raise _unusable(path, fault, error) from None
        self._identity_key = ""
        if identity is not None:
            keyless = KeylessVerifier(identity)
            self._identity_key = keyless.key
            self._configs.append(partial(_by_identity, identity, keyless.trust_config))

    def cache_key(self) -> str | None:
        """Return the key for caching proofs, or None if they must not be cached.

        It has the digests of the keys, the day if one is a certificate, and those of the identity
        and its trust root. Proofs by a key that has become unreadable are not cached.
        """
        try:
            raws = [_read(path) for path in self._keys]
        except UsageError:
            return None
        digests = sorted(hashlib.sha256(raw).hexdigest() for raw in raws)
        day = f"{datetime.now(UTC):%Y-%m-%d}" if any(map(_is_certificate, raws)) else ""
        return " ".join((*digests, day, self._identity_key)).rstrip()

    def check(self, files: Files) -> None:
        """Verify the signature of a skill.

        Raises:
            UnsignedError: the signature is missing, untrusted or expired, or a file was changed.
        """
        if SIGNATURE_FILE not in files:
            message = f"it has no signature, which is a file {SIGNATURE_FILE}"
            raise UnsignedError("signature-missing", message)
        bundle, names = _bundle(files[SIGNATURE_FILE])
        with tempfile.TemporaryDirectory(prefix="mcp-skills-") as folder:
            skill, signature = _write_files(Path(folder), files), Path(folder, SIGNATURE_FILE)
            signature.write_bytes(files[SIGNATURE_FILE])
            faults: set[str] = set()
            for make in self._configs:  # each verification hashes the whole skill
                fault = _fault(make, skill, signature)
                if not fault:
                    break
                faults.add(fault)
            else:
                code = "signature-invalid"
                if "signature-files" in faults:
                    code = "signature-files"
                raise UnsignedError(code, _FAULTS[code])
        # A large file may be signed in parts, `name:start:end`.
        whole = names | {name.rsplit(":", 2)[0] for name in names}
        # The library skips paths that the signature declares as ignored, but they are served.
        if any(path not in whole for path in files if path != SIGNATURE_FILE):
            raise UnsignedError("signature-files", "it has files that were not signed")
        if make.func is _by_key:  # sigstore's certificates last minutes; a log has the time
            _check_is_valid(bundle)


def _by_key(path: Path) -> Any:
    """Return a configuration of the library that verifies with a key or certificate."""
    config, raw = _library().verifying.Config(), _read(path)
    with tempfile.TemporaryDirectory(prefix="mcp-skills-") as folder:
        copy = Path(folder, "key.pem")
        copy.write_bytes(raw)  # `_read` refuses a FIFO, on which the library would block
        if _is_certificate(raw):
            return config.use_certificate_verifier(certificate_chain=[copy])
        return config.use_elliptic_key_verifier(public_key=copy)


def _by_identity(identity: Identity, trust_config: str) -> Any:
    """Return a configuration of the library that verifies with sigstore."""
    config = _library().verifying.Config()
    with tempfile.TemporaryDirectory(prefix="mcp-skills-") as folder:
        copy = Path(folder, "trust.json")
        copy.write_text(trust_config)
        return config.use_sigstore_verifier(
            identity=identity.name, oidc_issuer=identity.issuer, trust_config=copy
        )


def _is_certificate(raw: bytes) -> bool:
    return b"-----BEGIN CERTIFICATE-----" in raw


def sign(
    files: Files, key: Path, password: bytes | None = None, certificates: Sequence[Path] = ()
) -> bytes:
    """Sign a skill and return the signature.

    Raises:
        UsageError: the key cannot be used, or the library is not installed.
    """
    library = _library()
    _read(key)
    config = library.signing.Config()
    try:
        if certificates:
            config.use_certificate_signer(
                private_key=key,
                signing_certificate=certificates[0],
                certificate_chain=certificates[1:] or certificates,
            )
        else:
            config.use_elliptic_key_signer(private_key=key, password=password)
    except Exception as error:  # of any type, for any fault of the key
        raise _unusable(key, "this key cannot sign", error) from None
    hashing = library.hashing.Config()
    config.set_hashing_config(hashing.set_ignored_paths(paths=[], ignore_git_paths=False))
    with tempfile.TemporaryDirectory(prefix="mcp-skills-") as folder:
        signature = Path(folder, SIGNATURE_FILE)
        config.sign(_write_files(Path(folder), files), signature)
        return signature.read_bytes()


def _unusable(path: Path, what: str, error: Exception) -> UsageError:
    shown = f"{printable(str(path))}: {what} ({_one_line(error, 100)})"
    return UsageError(f"{shown}; give a PEM file of an elliptic curve key")


def _one_line(error: Exception, longest: int) -> str:
    return " ".join(str(error).split())[:longest]


def _library() -> Any:
    """Import the library on first use, since this takes a third of a second."""
    try:
        import model_signing
    except ImportError:
        raise missing_extra("signatures", "signing") from None
    return model_signing


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_BYTES)[0]
    except OSError as error:
        raise UsageError(
            f"{printable(str(path))}: cannot be read ({error.strerror}); give the file of a key"
        ) from None


def _write_files(folder: Path, files: Files) -> Path:
    """Write the files into a new folder for the library, and return the folder."""
    skill = folder / "skill"
    skill.mkdir()
    for path, raw in files.items():
        if path != SIGNATURE_FILE:
            to = skill / path
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(raw)
    return skill


_FAULTS: Final = {
    "signature-files": "its files are not those that were signed",
    "signature-invalid": "the signature is not by a trusted key or identity, or was changed",
}


def _fault(make: Callable[[], Any], skill: Path, signature: Path) -> str:
    """Return the code of the fault that the library finds with a signature, or ""."""
    try:
        make().verify(skill, signature)
    except Exception as error:  # untrusted input makes the library raise many types
        if isinstance(error, ValueError) and str(error).startswith("Signature mismatch"):
            return "signature-files"
        return "signature-invalid"
    return ""


def _bundle(raw: bytes) -> tuple[dict[str, Any], set[str]]:
    """Parse a signature, check its required parts, and return it with the names of its files."""
    try:
        if len(raw) > _MAX_BYTES:
            raise ValueError(len(raw))
        bundle = load_json(raw)
        if _has_other_names(bundle):
            raise ValueError("names")
        material = bundle["verificationMaterial"]
        # Without a hint the library prints to stdout.
        if "publicKey" in material and not material["publicKey"]["hint"]:
            raise ValueError("hint")
        payload = load_json(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        names = {str(resource["name"]) for resource in payload["predicate"]["resources"]}
    except (ValueError, KeyError, TypeError):
        message = "the signature cannot be read, or an outdated program made it"
        raise UnsignedError("signature-invalid", message) from None
    return cast("dict[str, Any]", bundle), names


def _has_other_names(value: Any) -> bool:
    """Tell whether a field name is in snake case, an alias that the library accepts as well."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return any("_" in key for key in fields) or any(map(_has_other_names, fields.values()))
    return isinstance(value, list) and any(map(_has_other_names, cast("list[Any]", value)))


def _check_is_valid(bundle: Mapping[str, Any]) -> None:
    """Check that no certificate has expired; the library checks the day of issue only."""
    chain = bundle["verificationMaterial"].get("x509CertificateChain")
    if chain is None:
        return
    from cryptography import x509

    for entry in chain["certificates"]:
        certificate = x509.load_der_x509_certificate(base64.b64decode(entry["rawBytes"]))
        if certificate.not_valid_after_utc < datetime.now(UTC):
            message = f"a certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
            raise UnsignedError("signature-expired", message)


class SignatureGate:
    """A gate of the registry that refuses skills without a valid signature.

    Results are cached; `proofs` has successful verifications, which take long, of other processes.
    """

    def __init__(self, verifier: Verifier, proofs: Index | None = None) -> None:
        self._verifier = verifier
        self._proofs = proofs
        self._cache_key: str | None = None
        """The cache key under which `_refusals` is valid."""
        self._refusals: dict[str, GateRefusal | None] = {}

    def __call__(self, reader: SkillReader, skill: Skill) -> GateRefusal | None:
        """Return the refusal of a skill, or None if its signature is valid."""
        if skill.standing is Standing.UNUSABLE:  # may have any size, and is not served anyway
            return GateRefusal(None)
        digest, key = reader.digest_over(skill), self._verifier.cache_key()
        if key != self._cache_key or len(self._refusals) >= _MAX_PROVED:
            self._cache_key = key
            self._refusals.clear()
        if digest not in self._refusals:
            self._refusals[digest] = self._judge(reader, skill, digest, key)
        return self._refusals[digest]

    def _judge(
        self, reader: SkillReader, skill: Skill, digest: str, key: str | None
    ) -> GateRefusal | None:
        # Another version of this program may check more.
        kind, proof = f"signature {__version__} {key}", digest.encode()
        proofs = self._proofs if key is not None else None
        if proofs is not None and proofs.memos(kind, [proof]):
            return None
        try:
            self._verifier.check(reader.read_all(skill))
        except UnsignedError as error:
            return GateRefusal(problem(error.code, str(error)))
        if proofs is not None:
            proofs.save_memos(kind, {proof: b""})
        return None
