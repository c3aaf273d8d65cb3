"""A Sigstore instance in memory: certificate authority, CT log and Rekor log, whose bundles verify offline."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ISSUER = "https://accounts.example"
SUBJECT = "release@team.example"
SIGNED = "https://sigstore.dev/cosign/sign/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_ISSUER_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_SCT_OID = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_START = "2020-01-01T00:00:00Z"


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def statement(digest: str, predicate: str = SIGNED, **changed: Any) -> bytes:
    """Return the in-toto statement that `cosign sign` makes about a manifest."""
    subject = [{"digest": {"sha256": digest.removeprefix("sha256:")}}]
    kind = "https://in-toto.io/Statement/v1"
    fields = {"_type": kind, "subject": subject, "predicateType": predicate, "predicate": {}}
    return json.dumps(fields | changed).encode()


class _Key:
    """A key with its id, the digest of its public key."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self.public = self.private.public_key().public_bytes(serialization.Encoding.DER, form)
        self.id = hashlib.sha256(self.public).digest()

    def sign(self, data: bytes) -> bytes:
        return self.private.sign(data, ec.ECDSA(hashes.SHA256()))

    def as_log(self, url: str) -> dict[str, Any]:
        key = {"rawBytes": encoded(self.public), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": {"start": _START}}
        return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": key, "logId": {"keyId": encoded(self.id)}}


class LocalSigstore:
    """An instance of its own keys. Its bundles are those of a signer whom it has certified for ten minutes."""

    def __init__(self) -> None:
        self._authority, self._log, self._certificates = _Key(), _Key(), _Key()
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fulcio.example")])
        self._now = datetime.now(UTC) - timedelta(days=30)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self._root = (
            self._builder(self._authority, self._name, days=3_650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._authority.private.public_key()), False)
            .sign(self._authority.private, hashes.SHA256())
        )

    def trusted_root(self, path: Path) -> Path:
        """Write the trust root, as `cosign trusted-root create` does, and return the path."""
        certificate = {"rawBytes": encoded(self._root.public_bytes(serialization.Encoding.DER))}
        authority = {
            "subject": {"organization": "example", "commonName": "fulcio.example"},
            "uri": "https://fulcio.example",
            "certChain": {"certificates": [certificate]},
            "validFor": {"start": _START},
        }
        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self._log.as_log("https://rekor.example")],
            "certificateAuthorities": [authority],
            "ctlogs": [self._certificates.as_log("https://ctfe.example")],
        }
        path.write_text(json.dumps(root))
        return path

    def bundle(self, payload: bytes, subject: str = SUBJECT, issuer: str = ISSUER) -> bytes:
        """Sign an in-toto statement, and return the bundle."""
        signer = _Key()
        kind = "application/vnd.in-toto+json"
        signature = signer.sign(b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload))
        envelope = {"payload": encoded(payload), "payloadType": kind, "signatures": [{"sig": encoded(signature)}]}
        certificate = self._certify(signer, subject, issuer)
        logged = {"signature": encoded(signature), "verifier": encoded(_pem(certificate))}
        digest = {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        spec = {"envelopeHash": digest, "payloadHash": digest, "signatures": [logged]}
        return self._encode(certificate, "dsse", spec, {"dsseEnvelope": envelope})

    def blob_bundle(self, raw: bytes, subject: str = SUBJECT, issuer: str = ISSUER) -> bytes:
        """Sign bytes themselves, as `cosign sign-blob` does, and return the bundle."""
        signer = _Key()
        signature, digest = signer.sign(raw), hashlib.sha256(raw).digest()
        certificate = self._certify(signer, subject, issuer)
        spec = {
            "data": {"hash": {"algorithm": "sha256", "value": digest.hex()}},
            "signature": {"content": encoded(signature), "publicKey": {"content": encoded(_pem(certificate))}},
        }
        hashed = {"algorithm": "SHA2_256", "digest": encoded(digest)}
        message = {"messageDigest": hashed, "signature": encoded(signature)}
        return self._encode(certificate, "hashedrekord", spec, {"messageSignature": message})

    def _encode(self, certificate: x509.Certificate, kind: str, spec: Any, content: dict[str, Any]) -> bytes:
        """Log an entry as the first of the log, and return a bundle with the proof."""
        entry = {"apiVersion": "0.0.1", "kind": kind, "spec": spec}
        body = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
        root, time = hashlib.sha256(b"\0" + body).digest(), int(self._now.timestamp()) + 60
        note = f"rekor.example - 1\n1\n{encoded(root)}\n"
        signed_note = encoded(self._log.id[:4] + self._log.sign(note.encode()))
        promised = {"body": encoded(body), "integratedTime": time, "logID": self._log.id.hex(), "logIndex": 0}
        promise = self._log.sign(json.dumps(promised, sort_keys=True, separators=(",", ":")).encode())
        proof = {"logIndex": "0", "rootHash": encoded(root), "treeSize": "1", "hashes": []}
        logged = {
            "logIndex": "0",
            "logId": {"keyId": encoded(self._log.id)},
            "kindVersion": {"kind": kind, "version": "0.0.1"},
            "integratedTime": str(time),
            "inclusionPromise": {"signedEntryTimestamp": encoded(promise)},
            "inclusionProof": {**proof, "checkpoint": {"envelope": f"{note}\n\u2014 rekor.example {signed_note}\n"}},
            "canonicalizedBody": encoded(body),
        }
        raw = encoded(certificate.public_bytes(serialization.Encoding.DER))
        material = {"certificate": {"rawBytes": raw}, "tlogEntries": [logged]}
        return json.dumps({"mediaType": BUNDLE, "verificationMaterial": material, **content}).encode()

    def _builder(self, key: _Key, name: x509.Name, *, days: float) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now)
            .not_valid_after(self._now + timedelta(days=days))
        )

    def _certify(self, signer: _Key, subject: str, issuer: str) -> x509.Certificate:
        """Return a certificate of an identity, with the timestamp of the CT log."""
        name = x509.UniformResourceIdentifier(subject) if "://" in subject else x509.RFC822Name(subject)
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._authority.private.public_key())
        builder = (
            self._builder(signer, x509.Name([]), days=10 / 1_440)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(authority, critical=False)
            .add_extension(x509.SubjectAlternativeName([name]), critical=True)
            .add_extension(x509.UnrecognizedExtension(_ISSUER_OID, issuer.encode()), critical=False)
        )
        before = builder.sign(self._authority.private, hashes.SHA256()).tbs_certificate_bytes
        time = int(self._now.timestamp() * 1_000)
        entry = self._authority.id + len(before).to_bytes(3, "big") + before
        signature = self._certificates.sign(struct.pack("!BBQH", 0, 0, time, 1) + entry + b"\0\0")
        timestamp = struct.pack("!B32sQHBBH", 0, self._certificates.id, time, 0, 4, 3, len(signature)) + signature
        listed = struct.pack("!HH", len(timestamp) + 2, len(timestamp)) + timestamp
        length = bytes([len(listed)]) if len(listed) < 128 else bytes([0x81, len(listed)])
        extension = x509.UnrecognizedExtension(_SCT_OID, b"\x04" + length + listed)
        return builder.add_extension(extension, critical=False).sign(self._authority.private, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
