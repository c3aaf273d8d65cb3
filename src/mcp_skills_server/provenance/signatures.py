"""Signatures of skills: OpenSSF model signing, in the file `skill.oms.sig` of each skill.

The library proves that the signature is the key's and that the files are those that were signed. What it leaves to its
caller is done here: every file that is served must be signed, whatever the signature says may be ignored, and a
certificate must still be valid.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast

from mcp_skills_server.catalog.disk import signature
from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import SkillsServerError, UsageError, missing_extra
from mcp_skills_server.model import SIGNATURE_FILE, printable

_MOST_BYTES: Final = 1 << 20

Files: TypeAlias = Mapping[str, bytes]
"""The bytes of a skill's files by their path in it."""


class UnsignedError(SkillsServerError):
    """A skill is not signed as it should be."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity that may sign without a key, by a certificate of sigstore.

    `name` is an e-mail address or that of a workflow, `issuer` an OpenID Connect issuer, and `trust` a file with the
    trust root, None for sigstore's own.
    """

    name: str
    issuer: str
    trust: Path | None = None


class Verifier:
    """Proves signatures by some keys. One skill passes where one of the keys signed it.

    Raises:
        UsageError: a key cannot be used, or the library is not installed.
    """

    def __init__(self, keys: Sequence[Path], identity: Identity | None = None) -> None:
        self._keys = [*keys]
        self._marks: list[str] | None = None
        self._digests: list[str] = []
        self._has_certificates = False
        # The library's objects are made anew for each skill: they remember how the last signature was hashed.
        self._configs: list[Callable[[], _Config]] = [
            partial(_by_key, path, _is_certificate(_read(path))) for path in keys
        ]
        for path, make in zip(keys, self._configs, strict=True):
            try:
                make()
            except UsageError:
                raise
            except Exception as error:  # whatever the library finds wrong with it
                raise _unusable(path, "this is no public key or certificate that can be used", error) from None
        if identity is not None:
            self._configs.append(partial(_by_identity, identity))
            try:
                self._configs[-1]()
            except Exception as error:
                reason = f"the trust root of sigstore cannot be had ({' '.join(str(error).split())[:200]})"
                raise UsageError(f"{reason}; give --trust-root FILE") from None

    def asked(self) -> str | None:
        """Return a text that differs for other keys, and with certificates for each day.

        None where that cannot be said: of an identity, and of a key that cannot be read any more.
        """
        if len(self._keys) != len(self._configs):
            return None
        try:
            # It is asked for each skill, and keys are seldom others.
            marks = [signature(path.stat()) for path in self._keys]
            if marks != self._marks:
                raws = [_read(path) for path in self._keys]
                self._digests = sorted(hashlib.sha256(raw).hexdigest() for raw in raws)
                self._has_certificates = any(map(_is_certificate, raws))
                self._marks = marks
        except (OSError, UsageError):
            return None
        return " ".join((*self._digests, f"{datetime.now(UTC):%Y-%m-%d}" if self._has_certificates else ""))

    def check(self, files: Files) -> None:
        """Prove a skill.

        Raises:
            UnsignedError: it is not signed, or not by these keys, or not as it is.
        """
        if SIGNATURE_FILE not in files:
            raise UnsignedError("signature-missing", f"it has no signature, which is a file {SIGNATURE_FILE}")
        bundle = _bundle(files[SIGNATURE_FILE])
        with tempfile.TemporaryDirectory(prefix="mcp-skills-") as place:
            skill, signature = _written(Path(place), files), Path(place, SIGNATURE_FILE)
            signature.write_bytes(files[SIGNATURE_FILE])
            reasons: list[UnsignedError] = []
            for make in self._configs:  # each of which hashes the whole skill
                reason = _refusal(make, skill, signature)
                if reason is None:
                    break
                reasons.append(reason)
            else:
                raise next((each for each in reasons if each.code == "signature-files"), reasons[-1])
        _check_all_is_signed(bundle, files)
        _check_is_valid(bundle)


class _Config(Protocol):
    """A key as the library wants it."""

    def verify(self, model_path: Path, signature_path: Path, /) -> None: ...


def _by_key(path: Path, certificate: bool) -> _Config:
    config = _library().verifying.Config()
    with tempfile.TemporaryDirectory(prefix="mcp-skills-") as place:
        copy = Path(place, "key.pem")
        copy.write_bytes(_read(path))  # the library would wait for the writer of a FIFO
        if certificate:
            return config.use_certificate_verifier(certificate_chain=[copy])
        return config.use_elliptic_key_verifier(public_key=copy)


def _by_identity(identity: Identity) -> _Config:
    return (
        _library()
        .verifying.Config()
        .use_sigstore_verifier(identity=identity.name, oidc_issuer=identity.issuer, trust_config=identity.trust)
    )


def _is_certificate(raw: bytes) -> bool:
    return b"-----BEGIN CERTIFICATE-----" in raw


def sign(files: Files, key: Path, password: bytes | None = None, certificates: Sequence[Path] = ()) -> bytes:
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
                private_key=key, signing_certificate=certificates[0], certificate_chain=certificates[1:] or certificates
            )
        else:
            config.use_elliptic_key_signer(private_key=key, password=password)
    except Exception as error:  # whatever the library finds wrong with it
        raise _unusable(key, "this key cannot sign", error) from None
    config.set_hashing_config(library.hashing.Config().set_ignored_paths(paths=[], ignore_git_paths=False))
    with tempfile.TemporaryDirectory(prefix="mcp-skills-") as place:
        signature = Path(place, SIGNATURE_FILE)
        config.sign(_written(Path(place), files), signature)
        return signature.read_bytes()


def _unusable(path: Path, what: str, error: Exception) -> UsageError:
    reason = " ".join(str(error).split())[:100]
    return UsageError(f"{printable(str(path))}: {what} ({reason}); give a PEM file of an elliptic curve key")


def _library() -> Any:
    """Import the library, which takes a third of a second."""
    try:
        import model_signing
    except ImportError:
        raise missing_extra("signatures", "signing") from None
    return model_signing


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MOST_BYTES)[0]
    except OSError as error:
        raise UsageError(f"{printable(str(path))}: cannot be read ({error.strerror}); give the file of a key") from None


def _written(place: Path, files: Files) -> Path:
    """Write the files into a folder, since the library reads folders. Nothing else is in it."""
    skill = place / "skill"
    skill.mkdir()
    for path, raw in files.items():
        if path != SIGNATURE_FILE:
            to = skill / path
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(raw)
    return skill


def _refusal(make: Callable[[], _Config], skill: Path, signature: Path) -> UnsignedError | None:
    try:
        make().verify(skill, signature)
    except ValueError as error:
        words = " ".join(str(error).split())
        if words.startswith("Signature mismatch"):
            return UnsignedError("signature-files", "its files are not those that were signed")
        return UnsignedError("signature-invalid", "the signature is not by a key that is trusted, or was changed")
    except Exception:  # foreign bytes: the library raises much
        return UnsignedError("signature-invalid", "the signature is not by a key that is trusted, or was changed")
    return None


def _bundle(raw: bytes) -> dict[str, Any]:
    """Parse a signature and check its required parts."""
    try:
        if len(raw) > _MOST_BYTES:
            raise ValueError(len(raw))
        bundle = json.loads(raw)
        if _has_other_names(bundle):
            raise ValueError("names")
        material = bundle["verificationMaterial"]
        # Without it the library prints to stdout.
        if "publicKey" in material and not material["publicKey"]["hint"]:
            raise ValueError("hint")
        json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnsignedError("signature-invalid", "the signature cannot be read, or an old program made it") from None
    return cast("dict[str, Any]", bundle)


def _has_other_names(value: Any) -> bool:
    """Tell whether a field has its alias (`public_key` for `publicKey`), which the library would read too."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return any("_" in key for key in fields) or any(map(_has_other_names, fields.values()))
    return isinstance(value, list) and any(map(_has_other_names, cast("list[Any]", value)))


def _check_all_is_signed(bundle: Mapping[str, Any], files: Files) -> None:
    """Refuse a signature with paths to ignore, which would be served unsigned."""
    try:
        signed = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))["predicate"]["resources"]
        names = {str(each["name"]) for each in signed}
    except (KeyError, TypeError):
        raise UnsignedError("signature-invalid", "the signature does not say of which files it is") from None
    # A large file may be signed in parts, `name:start:end`.
    whole = names | {name.rsplit(":", 2)[0] for name in names}
    if any(path not in whole for path in files if path != SIGNATURE_FILE):
        raise UnsignedError("signature-files", "it has files that were not signed")


def _check_is_valid(bundle: Mapping[str, Any]) -> None:
    """Check that the certificate is valid today. The library checks the day of issue alone."""
    chain = bundle["verificationMaterial"].get("x509CertificateChain")
    if chain is None:
        return
    from cryptography import x509

    for each in chain["certificates"]:
        found = x509.load_der_x509_certificate(base64.b64decode(each["rawBytes"]))
        if found.not_valid_after_utc < datetime.now(UTC):
            raise UnsignedError("signature-expired", f"a certificate expired on {found.not_valid_after_utc:%Y-%m-%d}")
