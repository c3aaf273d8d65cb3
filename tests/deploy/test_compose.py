"""The Compose deployment: its schema, options, replicas, hardening, and the proxies' files."""

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
from web.proxies import DEPLOY, NGINX, proxy_variables
from wire import ROOT

SCHEMA = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
REPLICAS = ("server-1", "server-2")


def serve_variables() -> set[str]:
    return {f"MCP_SKILLS_{each.name.upper()}" for each in serve.params if each.name}


def serve_default(name: str) -> Any:
    return next(each.default for each in serve.params if each.name == name)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def test_compose_file_is_valid(compose: dict[str, Any]) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator = validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(compose)] == []
    proxy = {**compose["services"]["proxy"], "port": []}  # an unknown key
    assert not validator.is_valid({**compose, "services": {"proxy": proxy}})


def test_shipped_configuration_and_variables_are_known_options() -> None:
    assert read(str(DEPLOY / "config.toml")).values["token_file"] == "/run/secrets/tokens"
    for name in ("deploy/compose.yaml", "Dockerfile", "docs/container.md", "deploy/kubernetes/base/deployment.yaml"):
        named = set(re.findall(r"MCP_SKILLS_[A-Z_]*[A-Z]", (ROOT / name).read_text(encoding="utf-8")))
        assert named <= serve_variables(), name


def test_references_of_services_exist(compose: dict[str, Any]) -> None:
    assert (DEPLOY / compose["configs"]["proxy"]["file"]).is_file()
    for service in compose["services"].values():
        assert {*service.get("depends_on", ())} <= compose["services"].keys()
        assert {*service["networks"]} <= compose["networks"].keys()
        assert {each["source"] for each in service.get("configs", ())} <= compose["configs"].keys()
        assert {*service.get("secrets", ())} <= compose["secrets"].keys()


def test_replicas_are_equal_trust_proxy_and_have_time_to_drain(compose: dict[str, Any]) -> None:
    proxy, first, second = (compose["services"][name] for name in ("proxy", *REPLICAS))
    for number, replica in ((1, first), (2, second)):
        address = replica["networks"]["proxied"]["ipv4_address"]
        assert proxy["environment"][f"REPLICA_{number}"] == f"{address}:8000"
        probed = replica["environment"]["MCP_SKILLS_PROBE_ADDRESS"]
        assert probed == f"0.0.0.0:{proxy['environment'][f'PROBES_{number}']}"
        drain = int(replica["environment"]["MCP_SKILLS_DRAIN"])
        assert drain + 2 < int(replica["stop_grace_period"].removesuffix("s"))
    assert {**first, "networks": 0} == {**second, "networks": 0}
    trusted = first["environment"]["MCP_SKILLS_TRUSTED_PROXY"]
    assert trusted == proxy["networks"]["proxied"]["ipv4_address"]
    assert [name for name, each in compose["services"].items() if "ports" in each] == ["proxy"]
    assert all(each.startswith("127.0.0.1:") for each in proxy["ports"])


def test_containers_and_networks_are_hardened(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["mem_limit"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert compose["networks"]["shared"]["internal"]
    shared = [name for name, each in compose["services"].items() if "shared" in each["networks"]]
    assert shared == [*REPLICAS, "redis"]


def test_redis_refuses_writes_rather_than_drop_sessions(compose: dict[str, Any]) -> None:
    words = compose["services"]["redis"]["command"]
    assert words[words.index("--maxmemory-policy") + 1] == "noeviction"


# Configuration files of the proxies, which tests/web/test_proxies.py runs


@pytest.mark.needs_program("haproxy")
def test_haproxy_accepts_its_file() -> None:
    command = ["haproxy", "-c", "-f", str(DEPLOY / "haproxy.cfg")]
    environment = {**os.environ, **proxy_variables(8080, 8001, 8002)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stdout + done.stderr, done


@pytest.mark.needs_program("nginx")
def test_nginx_accepts_its_file(tmp_path: Path) -> None:
    site = (DEPLOY / "nginx.conf.template").read_text()
    (tmp_path / "skills.conf").write_text(Template(site).safe_substitute(proxy_variables(8080, 8001, 8002)))
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, user=""))
    command = ["nginx", "-t", "-e", "stderr", "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "[warn]" not in done.stderr, done


def test_nginx_closes_idle_connections_before_server_does() -> None:
    site = (DEPLOY / "nginx.conf.template").read_text()
    found = re.search(r"upstream replicas \{.*?keepalive_timeout (\d+)s;", site, re.DOTALL)
    assert found and int(found[1]) < 5  # the default of --keep-alive
