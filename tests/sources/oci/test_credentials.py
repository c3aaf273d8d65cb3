"""Credentials of `docker login`, podman and credential helpers, and WWW-Authenticate challenges."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.oci.access import Credentials, find_credentials, parse_challenges
from tables import each_row

PAIR = base64.b64encode(b"ada:s3:cret").decode()
ADA = Credentials("ada", "s3:cret")


def write_config(folder: Path, config: Any) -> dict[str, str]:
    """Write a configuration, as JSON unless it is a string, and return the environment."""
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text)
    return {"DOCKER_CONFIG": str(folder)}


@each_row(("registry", "key"), [
    *((name, name.lower()) for name in ("registry.example", "Registry.Example", "registry.example:5000")),
    ("registry.example", "https://registry.example"), ("registry.example", "https://registry.example/v2/"),
    ("docker.io", "https://index.docker.io/v1/"),
])  # fmt: skip
def test_credentials_of_registry_are_found_under_each_spelling(tmp_path: Path, registry: str, key: str) -> None:
    environment = write_config(tmp_path, {"auths": {"other.example": {"auth": "x"}, key: {"auth": PAIR}}})
    assert find_credentials(registry, environment) == ADA
    assert find_credentials("registry.example.evil.example", environment) is None


def test_configurations_of_docker_and_podman_are_read(tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    write_config(tmp_path / ".docker", {"auths": {"a.example": {"auth": PAIR}}})
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"b.example": {"auth": PAIR, "identitytoken": "t"}}}))
    environment = {"HOME": str(tmp_path), "REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}
    assert find_credentials("a.example", environment) == ADA
    assert find_credentials("b.example", environment) == Credentials("", "t", identity=True)
    assert find_credentials("c.example", environment) is None
    assert find_credentials("a.example", {}) is None


@each_row(("config", "reason"), [
    ("{\n", "is not JSON (Expecting property name enclosed in double quotes: line 2 column 1"),
    ("[" * 100_000, "is not JSON"),
    ({"auths": {"a.example": {"auth": "%%%"}}}, "cannot be read; run 'docker login a.example'"),
    ({"auths": {"a.example": {"auth": base64.b64encode(b"s3cret").decode()}}}, "cannot be read"),
    ({"credsStore": "../../evil"}, "whose name is none"), ({"credsStore": "-x"}, "whose name is none"),
    ({"credsStore": "missing"}, "docker-credential-missing, which is not on PATH"),
])  # fmt: skip
def test_malformed_configuration_is_reported_in_one_line(tmp_path: Path, config: Any, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_credentials("a.example", write_config(tmp_path, config))
    message = str(caught.value)
    assert reason in message
    assert message.isprintable()
    assert "s3cret" not in message


@each_row(
    "config", [{}, [], {"auths": 7}, {"auths": {"a.example": 7}}, {"auths": {"a.example": {}}}, {"credHelpers": []}]
)
def test_configuration_without_entry_has_no_credentials(tmp_path: Path, config: Any) -> None:
    assert find_credentials("a.example", write_config(tmp_path, config)) is None


@pytest.mark.skipif(os.name == "nt", reason="a script is no program")
@each_row(("script", "expected"), [
    ('echo \'{"Username":"ada","Secret":"s3:cret"}\'', ADA),
    ('echo \'{"Username":"<token>","Secret":"t"}\'', Credentials("", "t", identity=True)),
    ("echo 'credentials not found in native keychain'; exit 1", None),
    ('echo \'{"Username":"ada","Secret":""}\'', None), ("echo s3cret; exit 3", "failed with exit code 3"),
    ("echo s3cret", "did not answer with JSON"),
])  # fmt: skip
def test_credential_helper_supplies_credentials(
    tmp_path: Path, script: str, expected: Credentials | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker-credential-mine"
    program.write_text(f'#!/bin/sh\n[ "$(cat)" = a.example ] || exit 9\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    environment = write_config(tmp_path, {"credHelpers": {"a.example": "mine"}, "auths": {"b.example": {"auth": PAIR}}})
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected) as caught:
            find_credentials("a.example", environment)
        assert "s3cret" not in str(caught.value)
    else:
        assert find_credentials("a.example", environment) == expected
    assert find_credentials("b.example", environment) == ADA
    assert "s3:cret" not in repr(ADA)


@each_row(("header", "expected"), [
    ('Bearer realm="c://a",scope="b:c,d"', {"bearer": {"realm": "c://a", "scope": "b:c,d"}}),
    ('Basic realm="a b, c"', {"basic": {"realm": "a b, c"}}),
    ("BASIC", {"basic": {}}),
    ('Basic realm=x, Bearer realm="y"', {"basic": {"realm": "x"}, "bearer": {"realm": "y"}}),
    ('Bearer realm="a", realm="b"', {"bearer": {"realm": "a"}}),
    ("", {}),
    ('Basic realm="x", Basic realm="y", a=b', {"basic": {"realm": "x"}}),
    ('realm="a"', {}),
    ("\x00\xff=;", {}),
])  # fmt: skip
def test_challenges_are_parsed(header: str, expected: dict[str, dict[str, str]]) -> None:
    assert parse_challenges(header) == expected


@given(st.text(max_size=200))
def test_any_header_is_parsed_without_error(header: str) -> None:
    assert all(each == each.lower() for each in parse_challenges(header))
