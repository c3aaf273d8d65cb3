"""What `docker login` and credential helpers leave, and WWW-Authenticate as registries and their enemies write it."""

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


def written(folder: Path, config: Any) -> dict[str, str]:
    """The environment of who has this configuration."""
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return {"DOCKER_CONFIG": str(folder)}


@each_row(("registry", "key"), [
    *((name, name.lower()) for name in ("registry.example", "Registry.Example", "registry.example:5000")),
    ("registry.example", "https://registry.example"), ("registry.example", "https://registry.example/v2/"),
    ("docker.io", "https://index.docker.io/v1/"),
])  # fmt: skip
def test_the_entry_of_a_registry_is_found(tmp_path: Path, registry: str, key: str) -> None:
    environment = written(tmp_path, {"auths": {"other.example": {"auth": "x"}, key: {"auth": PAIR}}})
    assert find_credentials(registry, environment) == ADA
    assert find_credentials("registry.example.evil.example", environment) is None


def test_the_home_folder_and_the_file_of_podman_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    written(tmp_path / ".docker", {"auths": {"a.example": {"auth": PAIR}}})
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"b.example": {"auth": PAIR, "identitytoken": "t"}}}))
    environment = {"HOME": str(tmp_path), "REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}
    assert find_credentials("a.example", environment) == ADA
    assert find_credentials("b.example", environment) == Credentials("", "t", identity=True)
    assert find_credentials("c.example", environment) is None
    assert find_credentials("a.example", {}) is None


@each_row(("config", "said"), [
    ("{", "is not JSON"), ("[" * 100_000, "is not JSON"),
    ({"auths": {"a.example": {"auth": "%%%"}}}, "cannot be read; run 'docker login a.example'"),
    ({"auths": {"a.example": {"auth": base64.b64encode(b"s3cret").decode()}}}, "cannot be read"),
    ({"credsStore": "../../evil"}, "whose name is none"), ({"credsStore": "-x"}, "whose name is none"),
    ({"credsStore": "that-nobody-has"}, "docker-credential-that-nobody-has, which is not on PATH"),
])  # fmt: skip
def test_a_broken_configuration_is_one_line(tmp_path: Path, config: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_credentials("a.example", written(tmp_path, config))
    assert said in str(caught.value) and str(caught.value).isprintable() and "s3cret" not in str(caught.value)


@each_row(
    "config", [{}, [], {"auths": 7}, {"auths": {"a.example": 7}}, {"auths": {"a.example": {}}}, {"credHelpers": []}]
)
def test_a_configuration_without_an_entry_is_nobody(tmp_path: Path, config: Any) -> None:
    assert find_credentials("a.example", written(tmp_path, config)) is None


@pytest.mark.skipif(os.name == "nt", reason="a script is no program")
@each_row(("script", "found"), [
    ('echo \'{"Username":"ada","Secret":"s3:cret"}\'', ADA),
    ('echo \'{"Username":"<token>","Secret":"t"}\'', Credentials("", "t", identity=True)),
    ("echo 'credentials not found in native keychain'; exit 1", None),
    ('echo \'{"Username":"ada","Secret":""}\'', None), ("echo s3cret; exit 3", "failed with exit code 3"),
    ("echo s3cret", "did not answer with JSON"),
])  # fmt: skip
def test_a_helper_answers(
    tmp_path: Path, script: str, found: Credentials | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker-credential-mine"
    program.write_text(f'#!/bin/sh\n[ "$(cat)" = a.example ] || exit 9\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    environment = written(tmp_path, {"credHelpers": {"a.example": "mine"}, "auths": {"b.example": {"auth": PAIR}}})
    if isinstance(found, str):
        with pytest.raises(UsageError, match=found) as caught:
            find_credentials("a.example", environment)
        assert "s3cret" not in str(caught.value)
    else:
        assert find_credentials("a.example", environment) == found
    assert find_credentials("b.example", environment) == ADA and "s3:cret" not in repr(ADA)


@each_row(
    ("header", "found"),
    [
        (
            'Bearer realm="https://a/token",scope="a:pull,push"',
            {"bearer": {"realm": "https://a/token", "scope": "a:pull,push"}},
        ),
        ('Basic realm="a b, c"', {"basic": {"realm": "a b, c"}}),
        ("BASIC", {"basic": {}}),
        ('Basic realm=x, Bearer realm="y"', {"basic": {"realm": "x"}, "bearer": {"realm": "y"}}),
        ('Bearer realm="a", realm="b"', {"bearer": {"realm": "a"}}),
        ("", {}),
        ('Basic realm="x", Basic realm="y", a=b', {"basic": {"realm": "x"}}),
        ('realm="a"', {}),
        ("\x00\xff=;", {}),
    ],
)
def test_the_ways_in_are_read(header: str, found: dict[str, dict[str, str]]) -> None:
    assert parse_challenges(header) == found


@given(st.text(max_size=200))
def test_any_header_is_read(header: str) -> None:
    assert all(each == each.lower() for each in parse_challenges(header))
