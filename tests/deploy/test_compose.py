"""`deploy/compose.yaml` and the proxies' files: by the schema of Compose, and what they must not lack."""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from jsonschema.validators import validator_for

from mcp_skills_server.commands.config_file import read
from mcp_skills_server.commands.serve import serve
from web.proxies import DEPLOY, NGINX, where
from wire import ROOT

SCHEMA = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
REPLICAS = ("server-1", "server-2")


def known() -> set[str]:
    """The variables that `serve` reads."""
    return {f"MCP_SKILLS_{each.name.upper()}" for each in serve.params if each.name}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def test_it_is_what_compose_reads(compose: dict[str, Any]) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator = validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(compose)] == []
    compose["services"]["proxy"]["port"] = []  # and the schema would say so
    assert not validator.is_valid(compose)
    del compose["services"]["proxy"]["port"]


def test_its_configuration_and_variables_are_options() -> None:
    assert read(str(DEPLOY / "config.toml")).values["token_file"] == "/run/secrets/tokens"
    for name in ("deploy/compose.yaml", "Dockerfile", "docs/container.md", "deploy/kubernetes/base/deployment.yaml"):
        named = set(re.findall(r"MCP_SKILLS_[A-Z_]*[A-Z]", (ROOT / name).read_text(encoding="utf-8")))
        assert named <= known(), name


def test_all_that_is_named_is_there(compose: dict[str, Any]) -> None:
    assert (DEPLOY / compose["configs"]["proxy"]["file"]).is_file()
    for service in compose["services"].values():
        assert {*service.get("depends_on", ())} <= compose["services"].keys()
        assert {*service["networks"]} <= compose["networks"].keys()
        assert {each["source"] for each in service.get("configs", ())} <= compose["configs"].keys()
        assert {*service.get("secrets", ())} <= compose["secrets"].keys()


def test_the_replicas_are_alike_believe_the_proxy_alone_and_have_the_time_to_drain(compose: dict[str, Any]) -> None:
    proxy, first, second = (compose["services"][name] for name in ("proxy", *REPLICAS))
    addresses = [each["networks"]["proxied"]["ipv4_address"] for each in (first, second)]
    assert [proxy["environment"][f"REPLICA_{number}"] for number in (1, 2)] == [f"{each}:8000" for each in addresses]
    assert {**first, "networks": 0} == {**second, "networks": 0}
    assert first["environment"]["MCP_SKILLS_TRUSTED_PROXY"] == proxy["networks"]["proxied"]["ipv4_address"]
    assert [name for name, each in compose["services"].items() if "ports" in each] == ["proxy"]
    assert all(each.startswith("127.0.0.1:") for each in proxy["ports"])
    # A replica has the time to drain.
    for name in REPLICAS:
        service = compose["services"][name]
        assert int(service["environment"]["MCP_SKILLS_DRAIN"]) + 2 < int(service["stop_grace_period"].removesuffix("s"))


def test_nothing_in_it_may_more_than_it_needs(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["mem_limit"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert compose["networks"]["shared"]["internal"]
    assert [name for name, each in compose["services"].items() if "shared" in each["networks"]] == [*REPLICAS, "redis"]


# The files of the proxies, which `tests/web/test_proxies.py` runs


@pytest.mark.needs_program("haproxy")
def test_haproxy_has_nothing_to_say_against_its_file() -> None:
    command, environment = (
        ["haproxy", "-c", "-f", str(DEPLOY / "haproxy.cfg")],
        {**os.environ, **where(8080, 8001, 8002)},
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stdout + done.stderr, done


@pytest.mark.needs_program("nginx")
def test_nginx_has_nothing_to_say_against_its_file(tmp_path: Path) -> None:
    site = (DEPLOY / "nginx.conf.template").read_text()
    (tmp_path / "skills.conf").write_text(Template(site).safe_substitute(where(8080, 8001, 8002)))
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, user=""))
    command = ["nginx", "-t", "-e", "stderr", "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "[warn]" not in done.stderr, done


def test_nginx_gives_up_connections_before_a_server_does_by_itself() -> None:
    site = (DEPLOY / "nginx.conf.template").read_text()
    found = re.search(r"upstream replicas \{.*?keepalive_timeout (\d+)s;", site, re.DOTALL)
    assert found and int(found[1]) < 5  # --keep-alive
