"""What `deploy/compose.yaml` and the Dockerfile say, as processes of this machine: commands, variables, checks."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from web.http_wire import Server
from wire import COMMAND, DEADLINE, ROOT

DEPLOY = ROOT / "deploy"


def services() -> dict[str, Any]:
    """The services of the Compose file."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]


def _instruction(name: str) -> str:
    """The text behind the last instruction of this name in the Dockerfile, with its lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(rf"^{name} +(.*)$", text, re.MULTILINE)[-1]


def moved(said: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """Variables, with the places of this machine for those of the containers. Each has to be named."""
    assert all(any(place in value for value in said.values()) for place in places)
    pattern = re.compile("|".join(map(re.escape, places)))  # at once: what stands for one may look like another
    return {name: pattern.sub(lambda found: places[found[0]], value) for name, value in said.items()}


def variables(service: str) -> dict[str, str]:
    """What a container has in its environment: what the image sets for the server, and the Compose file."""
    image = dict(each.split("=", 1) for each in shlex.split(_instruction("ENV")))
    ours = {name: value for name, value in image.items() if name.startswith("MCP_SKILLS_")}
    return ours | services()[service]["environment"]


@contextmanager
def replica(environment: Mapping[str, str]) -> Iterator[Server]:
    """The image's command with this environment."""
    entry, command = json.loads(_instruction("ENTRYPOINT")), json.loads(_instruction("CMD"))
    assert entry == ["/app/bin/mcp-skills-server"]
    server = Server([*COMMAND, *command], environment)
    try:
        yield server
    finally:
        server.kill()
    assert "Traceback" not in server.stderr, server.stderr


def is_healthy(environment: Mapping[str, str]) -> bool:
    """Whether the image's health check finds the server of this environment well."""
    command = json.loads(re.sub(r"^.*?CMD +", "", _instruction("HEALTHCHECK")))
    program, *options, file = command
    assert (program, file) == ("/app/bin/python3", "/app/healthcheck.py")
    told = [sys.executable, *options, str(DEPLOY / "healthcheck.py")]
    return subprocess.run(told, env=environment, capture_output=True, timeout=DEADLINE, check=False).returncode == 0
