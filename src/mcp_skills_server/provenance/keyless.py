"""Keyless signatures by sigstore: the identity of a signer, the trust root, and bundles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcp_skills_server.durable import read_regular
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.fields import items, mapping
from mcp_skills_server.installation import missing_extra
from mcp_skills_server.model import printable
from mcp_skills_server.model.decoding import load_json

_MAX_BYTES: Final = 1 << 20
_TRUST: Final = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"
_SIGNING: Final = "application/vnd.dev.sigstore.signingconfig.v0.2+json"
_STATEMENT: Final = "application/vnd.in-toto+json"
_STATEMENTS: Final = ("https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1")


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity for keyless signing with sigstore; both texts are compared exactly.

    `name` is an e-mail address or a workflow, and `issuer` an OpenID Connect issuer. `trust` is a
    file with the trust root, or None for sigstore's own.
    """

    name: str
    issuer: str
    trust: Path | None = None


class KeylessVerifier:
    """Verifier of bundles by one identity, offline: the trust root is read once.

    Verdicts may be cached under `key`, a digest of the identity and the trust root.

    Raises:
        UsageError: the trust root cannot be used, or the library is not installed.
    """

    predicates: Sequence[str] = (
        "https://sigstore.dev/cosign/sign/v1",
        "https://slsa.dev/provenance/v1",
    )
    """Statements that vouch for an artifact. Others, such as a list of its faults, do not."""

    def __init__(self, identity: Identity) -> None:
        try:
            from sigstore.models import ClientTrustConfig
            from sigstore.verify import Verifier, policy
        except ImportError:
            raise missing_extra("signatures", "signing") from None
        try:
            self.trust_config = _read(identity.trust) if identity.trust else _production()
            config = ClientTrustConfig.from_json(self.trust_config)
            self._verifier = Verifier(trusted_root=config.trusted_root)
        except Exception as error:  # of any type, for any fault that the library finds
            named = printable(str(identity.trust or "of sigstore"))
            reason = " ".join(str(error).split())[:200]
            raise UsageError(
                f"the trust root {named} cannot be loaded ({reason}); "
                "give a trusted_root.json: --trust-root FILE, in --config trust-root"
            ) from None
        self._policy = policy.Identity(identity=identity.name, issuer=identity.issuer)
        parts = json.dumps([identity.name, identity.issuer, self.trust_config])
        self.key = hashlib.sha256(parts.encode()).hexdigest()

    def fault(self, digest: str, bundle: bytes) -> str:
        """Return why a bundle does not vouch for the artifact with this digest, or ""."""
        from sigstore.hashes import Hashed
        from sigstore.models import Bundle
        from sigstore_models.common.v1 import HashAlgorithm

        if len(bundle) > _MAX_BYTES:
            return f"a bundle has more than {_MAX_BYTES} bytes"
        hexadecimal = digest.removeprefix("sha256:")
        try:
            parsed = Bundle.from_json(bundle)
            if "dsseEnvelope" in load_json(bundle):
                kind, payload = self._verifier.verify_dsse(parsed, self._policy)
                return _fault_of_statement(kind, payload, hexadecimal)
            raw = bytes.fromhex(hexadecimal)
            hashed = Hashed(algorithm=HashAlgorithm.SHA2_256, digest=raw)
            self._verifier.verify_artifact(hashed, parsed, self._policy)
        except Exception as error:  # untrusted input makes the library raise many types
            return printable(" ".join(str(error).split())[:200]) or "it cannot be read"
        return ""


def _fault_of_statement(kind: str, payload: bytes, hexadecimal: str) -> str:
    """Return why a signed statement does not vouch for the artifact with this sha256, or ""."""
    statement = mapping(load_json(payload))
    if kind != _STATEMENT or statement.get("_type") not in _STATEMENTS:
        return "it signs something else than an in-toto statement"
    if statement.get("predicateType") not in KeylessVerifier.predicates:
        return "it is an attestation of another kind than signature and provenance"
    subjects = [mapping(subject).get("digest") for subject in items(statement.get("subject"))]
    if not any(mapping(subject).get("sha256") == hexadecimal for subject in subjects):
        return "it is about another artifact"
    return ""


def _read(path: Path) -> str:
    """Return the content of a file with a trust root, alone or in a client's configuration."""
    config = mapping(load_json(read_regular(path, _MAX_BYTES)[0]))
    if "trustedRoot" not in config:
        signing = {"mediaType": _SIGNING}
        config = {"mediaType": _TRUST, "trustedRoot": config, "signingConfig": signing}
    return json.dumps(config, sort_keys=True)


def _production() -> str:
    """Return sigstore's own trust root, without network the one that was last fetched."""
    from sigstore.models import ClientTrustConfig

    config: Any
    try:
        config = ClientTrustConfig.production()
    except Exception:  # of any type: the network, or a fault of the mirror
        config = ClientTrustConfig.production(offline=True)
    return config._inner.to_json()
