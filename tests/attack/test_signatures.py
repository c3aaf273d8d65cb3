"""What a forged bundle makes of the checks that the library leaves to us: it takes each field under two names."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import SIGNATURE_FILE
from mcp_skills_server.provenance import signatures
from mcp_skills_server.provenance.signatures import SignatureGate, UnsignedError, Verifier, sign
from provenance.test_signatures import SKILL, certified, keys
from wire import write_skill


def test_an_expired_certificate_is_refused_under_its_other_name(tmp_path: Path) -> None:
    key, own, root = certified(tmp_path, days=-1)
    bundle = json.loads(sign(SKILL, key, certificates=[own]))
    material = bundle["verificationMaterial"]
    material["x509_certificate_chain"] = material.pop("x509CertificateChain")
    with pytest.raises(UnsignedError):
        Verifier([root]).check({**SKILL, SIGNATURE_FILE: json.dumps(bundle).encode()})


def test_nothing_is_printed_for_a_key_under_its_other_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Anybody can make this file: it is printed before a key is looked at, into the protocol's stdout."""
    _, trusted = keys(tmp_path)
    other, _ = keys(tmp_path / "other")
    bundle = json.loads(sign(SKILL, other))
    material = bundle["verificationMaterial"]
    del material["publicKey"]
    material["public_key"] = {"hint": ""}
    with pytest.raises(UnsignedError):
        Verifier([trusted]).check({**SKILL, SIGNATURE_FILE: json.dumps(bundle).encode()})
    assert capfd.readouterr().out == ""


def test_a_certificate_that_expires_while_it_is_served_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
