"""End-to-end test of `deploy/compose.yaml`: haproxy, two replicas, Redis, and a token issuer.

All run as processes of this machine, with the commands, variables and files of the deployment. Users
of two groups sign in by OAuth through the proxy, see their granted skills, are notified of edits,
and continue when a replica is killed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import httpx2
import pytest
import yaml
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from ports import free_port
from shared.redis_servers import RealRedis, redis_server
from web.authorization_server import AuthorizationServer, authorization_server
from web.http_wire import HELLO, JSON, HttpClient, Server, Stream, client, verify_files
from web.proxies import DEPLOY, SPREAD, HaProxy, edited, proxy_variables, running, wait_until
from web.test_oauth import TokenStorage, mcp_url, oauth_provider
from wire import COMMAND, DEADLINE, ROOT, Era, write_skill

pytestmark = pytest.mark.needs_program("haproxy", "redis-server")

PROMPTS = "notifications/prompts/list_changed"
GROUPS = {"ann": "finance", "bob": "research"}
MODES = {"ann": "auto", "bob": "legacy"}
EDITED = {"ann": "finance/tax", "bob": "research/papers"}
GRANTED = {"ann": {"refunds", "tax"}, "bob": {"papers"}}
GRANTED_LATER = {"ann": {"refunds", "tax", "audit"}, "bob": {"papers", "notes"}}
SUBSCRIBED = {"skillsListChanged": True, "promptsListChanged": True}
PROPAGATION_S = 1.0
"""Limit of the seconds until the fastest of several edits reaches the clients of all replicas."""
OAUTH_AND_GRANTS = """
[oauth]
issuer = "{issuer}"
audience = "{audience}"
[[grant]]
who = ["group:finance"]
skills = ["finance/**"]
[[grant]]
who = ["group:research"]
skills = ["research/*"]
"""


# `deploy/compose.yaml` and the Dockerfile as processes of this machine


def services() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]


def _instruction(name: str) -> str:
    """Return the arguments of the last instruction of this name in the Dockerfile, on one line."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(rf"^{name} +(.*)$", text, re.MULTILINE)[-1]


def container_variables(service: str) -> dict[str, str]:
    """Return the variables for the server that the image and the Compose file set."""
    image = dict(each.split("=", 1) for each in shlex.split(_instruction("ENV")))
    ours = {name: value for name, value in image.items() if name.startswith("MCP_SKILLS_")}
    return ours | services()[service]["environment"]


@contextmanager
def replica(environment: Mapping[str, str]) -> Iterator[Server]:
    entry, command = json.loads(_instruction("ENTRYPOINT")), json.loads(_instruction("CMD"))
    assert entry == ["/app/bin/mcp-skills-server"]
    server = Server([*COMMAND, *command], environment)
    try:
        yield server
    finally:
        server.kill()
    assert "Traceback" not in server.stderr, server.stderr


def is_healthy(environment: Mapping[str, str]) -> bool:
    command = json.loads(re.sub(r"^.*?CMD +", "", _instruction("HEALTHCHECK")))
    program, *options, file = command
    assert (program, file) == ("/app/bin/python3", "/app/healthcheck.py")
    command = [sys.executable, *options, str(DEPLOY / "healthcheck.py")]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=DEADLINE, check=False)
    return done.returncode == 0


@dataclass
class Deployment:
    """The running processes, and the access tokens of signed-in users by name."""

    folder: Path
    proxy: HaProxy
    redis: RealRedis
    login: AuthorizationServer
    stack: ExitStack
    ports: list[int]
    probes: list[int]
    replicas: list[Server] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    edits: int = 0

    def variables(self, port: int) -> dict[str, str]:
        """Return the variables of the replica on this port, with the locations of this machine."""
        number = self.ports.index(port)
        locations = {
            "/etc/mcp-skills-server": str(self.folder),
            "redis://redis:6379/0": self.redis.url,
            "172.30.87.10": "127.0.0.1",
            "0.0.0.0": "127.0.0.1",
            "8000": str(port),
            "9464": str(self.probes[number]),
        }
        # In one pass: a replacement may contain another location.
        pattern = re.compile("|".join(map(re.escape, locations)))
        used: set[str] = set()

        def replace(found: re.Match[str]) -> str:
            used.add(found[0])
            return locations[found[0]]

        variables = container_variables(f"server-{1 + number}")
        replaced = {name: pattern.sub(replace, value) for name, value in variables.items()}
        assert used == locations.keys()
        return replaced

    def start_replica(self, port: int) -> Server:
        return self.stack.enter_context(replica(self.variables(port)))

    def connect(self, server: Server, name: str, era: Era = "modern") -> HttpClient:
        return self.stack.enter_context(client(server, era, token=self.tokens[name]))

    def edit(self) -> bytes:
        """Edit a skill of each group by atomic replace, and return the new text."""
        self.edits += 1
        text = f"# Edition {self.edits}.\n"
        for path in EDITED.values():
            written = write_skill(self.folder / "written" / path, body=text) / "SKILL.md"
            os.replace(written, self.folder / "skills" / path / "SKILL.md")
        return text.encode()


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    for path in ("finance/refunds", "finance/tax", "research/papers", "research/secret/plans"):
        write_skill(folder / "skills" / path, guide_md=f"of {path}")
    (folder / "tokens").write_text("robot=a-made-up-token-0123456789\n")
    (folder / "tokens").chmod(0o600)
    (folder / "proxy").mkdir()
    ports, probes = [free_port(), free_port()], [free_port(), free_port()]
    compose = services()
    program, *words = compose["redis"]["command"]
    assert program == "redis-server" and compose["redis"]["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]
    assert compose["proxy"]["environment"].keys() == proxy_variables(0, 0).keys() - {"LOCATION"}
    with (
        redis_server(folder / "redis", *words) as redis,
        running(HaProxy(folder / "proxy", *ports, edits=SPREAD, probes=probes)) as proxy,
        authorization_server() as login,
        ExitStack() as stack,
    ):
        assert isinstance(proxy, HaProxy)
        edits = [('"/skills"', '"skills"'), ('"/run/secrets/tokens"', '"tokens"')]
        with edited(folder, "config.toml", edits).open("a") as more:
            more.write(OAUTH_AND_GRANTS.format(issuer=login.url, audience=mcp_url(proxy.port)))
        deployment = Deployment(folder, proxy, redis, login, stack, ports, probes)
        assert redis.say("ping") == "PONG"
        assert not any(is_healthy(deployment.variables(port)) for port in ports)
        deployment.replicas = [deployment.start_replica(port) for port in ports]
        assert all(is_healthy(deployment.variables(port)) for port in ports)
        for name in ("replica-1", "replica-2"):
            proxy.wait_for_state(name, "UP")
        yield deployment


def sign_in(deployment: Deployment, name: str) -> set[str]:
    """Sign in a user with the SDK's client through the proxy, and return the listed skills."""
    mode: Any = MODES[name]
    deployment.login.user, deployment.login.groups = name, [GROUPS[name]]
    url, storage = mcp_url(deployment.proxy.port), TokenStorage()

    async def work() -> set[str]:
        with anyio.fail_after(DEADLINE):
            async with (
                httpx2.AsyncClient(auth=oauth_provider(url, storage)) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as sdk_client,
            ):
                return {each.name for each in (await sdk_client.list_prompts()).prompts}

    listed = anyio.run(work)
    assert storage.tokens is not None
    deployment.tokens[name] = storage.tokens.access_token
    return listed


def time_edit(deployment: Deployment, clients: list[HttpClient], streams: list[Stream]) -> float:
    """Edit, and return the seconds until each client was notified and reads the new text."""
    for stream in streams:
        while not stream.messages.empty():
            stream.messages.get()
    start = monotonic()
    text = deployment.edit()
    for name, reader, stream in zip([*GROUPS, *GROUPS], clients, streams, strict=True):
        while True:
            assert stream.next() is not None, "the stream ended"
            if text in reader.read(f"skill://{EDITED[name]}/SKILL.md"):
                break
    return monotonic() - start


def names(reader: HttpClient) -> set[str]:
    """Return the names of the listed skills, and verify all their files."""
    entries = reader.every_skill()
    assert all(verify_files(reader, entry) for entry in entries)
    return {entry["name"] for entry in entries}


def test_team_signs_in_is_notified_and_survives_killed_replica(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        proxy = deployment.proxy
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        refused = proxy.send(body=json.dumps(hello).encode(), headers=JSON)
        metadata = f"http://127.0.0.1:{proxy.port}/.well-known/oauth-protected-resource"
        assert refused.status == 401
        assert metadata in refused.headers["WWW-Authenticate"]

        # Each group sees its own skills, through the proxy and on either replica.
        for name, granted in GRANTED.items():
            assert sign_in(deployment, name) == granted
            for server in (proxy, *deployment.replicas):
                assert names(deployment.connect(server, name)) == granted

        # An edit reaches the clients of both replicas.
        clients = [deployment.connect(proxy, name) for name in (*GROUPS, *GROUPS)]
        streams = [each.listen(number, **SUBSCRIBED) for number, each in enumerate(clients)]
        seconds = sorted(time_edit(deployment, clients, streams) for _ in range(5))
        print(f"seconds until an edit had reached {len(clients)} clients of 2 replicas: {seconds}")
        assert seconds[0] <= PROPAGATION_S

        # A session of a killed replica continues on the other one, through the proxy.
        caller = deployment.connect(deployment.replicas[0], "ann")
        session = caller.call("skills_load", names=["tax"])["structuredContent"]["session"]
        deployment.replicas[0].process.send_signal(signal.SIGKILL)
        deployment.replicas[0].process.wait(DEADLINE)
        caller = deployment.connect(proxy, "ann")
        result = caller.call("skills_load", names=["refunds"], mode="add", session=session)
        active = result["structuredContent"]["active_skills"]
        assert [each["name"] for each in active] == ["tax", "refunds"]
        proxy.wait_for_state("replica-1", "DOWN")
        dead = [stream.whole is not None for stream in streams]
        assert any(dead) and not all(dead)  # leastconn gave each replica some

        # New skills reach the clients that they are granted to, on either replica.
        for path in ("finance/audit", "research/notes"):
            write_skill(tmp_path / "skills" / path)
        for number, name in enumerate((*GROUPS, *GROUPS)):
            if not dead[number]:
                streams[number].until(PROMPTS)
            wait_until(lambda reader=clients[number], name=name: names(reader) == GRANTED_LATER[name])
        deployment.replicas[0] = deployment.start_replica(deployment.ports[0])
        proxy.wait_for_state("replica-1", "UP")
        bob = deployment.connect(deployment.replicas[0], "bob", "legacy")
        assert names(bob) == GRANTED_LATER["bob"]
        hidden = bob.call("skills_load", names=["tax"])["content"][0]["text"]
        absent = bob.call("skills_load", names=["nix"])["content"][0]["text"]
        assert hidden.replace("tax", "it") == absent.replace("nix", "it")
