"""The team's deployment on one machine: what `deploy/compose.yaml` runs (haproxy, two replicas, Redis), with the
commands, the environment and the files that stand there, and an issuer of tokens.

Two groups with two grants sign in by OAuth through the proxy, find their own skills, hear of edits wherever they are,
and lose nothing when the replica that they are at is killed.
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
from web.http_wire import HELLO, HttpClient, Server, Stream, client, proved
from web.proxies import DEPLOY, SPREAD, HaProxy, edited, running, until, where
from web.test_oauth import TokenStorage, own, signing_in
from wire import COMMAND, DEADLINE, ROOT, Era, write_skill

pytestmark = pytest.mark.needs_program("haproxy", "redis-server")

PROMPTS = "notifications/prompts/list_changed"
GROUPS = {"ann": "finance", "bob": "research"}
MODES = {"ann": "auto", "bob": "legacy"}
EDITED = {"ann": "finance/tax", "bob": "research/papers"}
SEEN = {"ann": {"refunds", "tax"}, "bob": {"papers"}}
GROWN = {"ann": {"refunds", "tax", "audit"}, "bob": {"papers", "notes"}}
HEARD = {"skillsListChanged": True, "promptsListChanged": True}
REACHES_S = 1.0
"""Seconds within which an edit reaches the clients of all replicas. The quickest of some edits has to."""
GRANTED = """
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


# What `deploy/compose.yaml` and the Dockerfile say, as processes of this machine


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


def image_variables(service: str) -> dict[str, str]:
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


@dataclass
class Deployment:
    """What runs, and whoever signed in: name to access token."""

    folder: Path
    proxy: HaProxy
    redis: RealRedis
    login: AuthorizationServer
    stack: ExitStack
    ports: list[int]
    replicas: list[Server] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    edits: int = 0

    def variables(self, port: int) -> dict[str, str]:
        """What the container of a replica has in its environment, with the places of this machine."""
        said = image_variables(f"server-{1 + self.ports.index(port)}")
        places = {
            "/etc/mcp-skills-server": str(self.folder),
            "redis://redis:6379/0": self.redis.url,
            "172.30.87.10": "127.0.0.1",
            "0.0.0.0": "127.0.0.1",
            "8000": str(port),
        }
        return moved(said, places)

    def replica(self, port: int) -> Server:
        """Start one as `deploy/compose.yaml` does."""
        return self.stack.enter_context(replica(self.variables(port)))

    def at(self, server: Server, name: str, era: Era = "modern") -> HttpClient:
        """A client that bears this user's token."""
        return self.stack.enter_context(client(server, era, token=self.tokens[name]))

    def edit(self) -> bytes:
        """Of a skill of each group; what it says now."""
        self.edits += 1
        for path in EDITED.values():
            fresh = write_skill(self.folder / "fresh" / path, body=f"# Edition {self.edits}.\n") / "SKILL.md"
            os.replace(fresh, self.folder / "skills" / path / "SKILL.md")  # which leaves no moment without it
        return f"# Edition {self.edits}.\n".encode()


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """All of it, up, with nobody signed in."""
    for path in ("finance/refunds", "finance/tax", "research/papers", "research/secret/plans"):
        write_skill(folder / "skills" / path, guide_md=f"of {path}")
    (folder / "tokens").write_text("robot=a-made-up-token-0123456789\n")
    (folder / "tokens").chmod(0o600)
    (folder / "proxy").mkdir()
    ports = [free_port(), free_port()]
    compose = services()
    program, *words = compose["redis"]["command"]
    assert program == "redis-server" and compose["redis"]["healthcheck"]["test"] == ["CMD", "redis-cli", "ping"]
    assert compose["proxy"]["environment"].keys() == where(0, 0).keys() - {"LOCATION"}
    with (
        redis_server(folder / "redis", *words) as redis,
        running(HaProxy(folder / "proxy", *ports, edits=SPREAD)) as proxy,
        authorization_server() as login,
        ExitStack() as stack,
    ):
        assert isinstance(proxy, HaProxy)
        places = [('"/skills"', '"skills"'), ('"/run/secrets/tokens"', '"tokens"')]
        with edited(folder, "config.toml", places).open("a") as more:
            more.write(GRANTED.format(issuer=login.url, audience=own(proxy.port)))
        found = Deployment(folder, proxy, redis, login, stack, ports)
        assert redis.say("ping") == "PONG"
        assert not any(is_healthy(found.variables(port)) for port in ports)
        found.replicas = [found.replica(port) for port in ports]
        assert all(is_healthy(found.variables(port)) for port in ports)
        for name in ("replica-1", "replica-2"):
            proxy.sees(name, "UP")
        yield found


def sign_in(deployment: Deployment, name: str) -> set[str]:
    """By the SDK's client, through the proxy; the skills that it finds."""
    mode: Any = MODES[name]
    deployment.login.user, deployment.login.groups = name, [GROUPS[name]]
    url, storage = own(deployment.proxy.port), TokenStorage()

    async def work() -> set[str]:
        with anyio.fail_after(DEADLINE):
            async with (
                httpx2.AsyncClient(auth=signing_in(url, storage)) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as found,
            ):
                return {each.name for each in (await found.list_prompts()).prompts}

    seen = anyio.run(work)
    assert storage.tokens is not None
    deployment.tokens[name] = storage.tokens.access_token
    return seen


def reaches(deployment: Deployment, clients: list[HttpClient], streams: list[Stream]) -> float:
    """Edit, and wait until each client was notified and reads the new edition; the seconds that it took."""
    for stream in streams:
        while not stream.messages.empty():
            stream.messages.get()
    begun = monotonic()
    edition = deployment.edit()
    for number, (one, stream) in enumerate(zip(clients, streams, strict=True)):
        while True:
            assert stream.next() is not None, "the stream ended"
            if edition in one.read(f"skill://{EDITED[[*GROUPS][number % 2]]}/SKILL.md"):
                break
    return monotonic() - begun


def names(one: HttpClient) -> set[str]:
    """The skills that it lists, each byte of which is proved."""
    entries = one.every_skill()
    assert all(proved(one, entry) for entry in entries)
    return {entry["name"] for entry in entries}


def test_a_team_signs_in_hears_of_edits_and_loses_nothing_with_a_replica(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        proxy = deployment.proxy
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        refused = proxy.send(body=json.dumps(hello).encode(), headers={"Content-Type": "application/json"})
        metadata = f"http://127.0.0.1:{proxy.port}/.well-known/oauth-protected-resource"
        assert refused.status == 401 and metadata in refused.headers["WWW-Authenticate"]

        # Each group finds its own skills, through the proxy and at either replica.
        for name, seen in SEEN.items():
            assert sign_in(deployment, name) == seen
            for server in (proxy, *deployment.replicas):
                assert names(deployment.at(server, name)) == seen

        # An edit reaches the clients of both replicas: the proxy gives each of them some.
        clients = [deployment.at(proxy, name) for name in (*GROUPS, *GROUPS)]
        streams = [one.listen(number, **HEARD) for number, one in enumerate(clients)]
        took = [reaches(deployment, clients, streams) for _ in range(5)]
        print(f"seconds until an edit had reached {len(clients)} clients of 2 replicas: {sorted(took)}")
        assert min(took) <= REACHES_S

        # What one replica answered goes on at the other when the first is killed, at once and through the proxy.
        load = {"name": "skills_load", "arguments": {"names": ["tax"]}}
        loaded = deployment.at(deployment.replicas[0], "ann").request("tools/call", load)["structuredContent"]
        deployment.replicas[0].process.send_signal(signal.SIGKILL)
        deployment.replicas[0].process.wait(DEADLINE)
        load["arguments"] = {"names": ["refunds"], "mode": "add", "session": loaded["session"]}
        active = deployment.at(proxy, "ann").request("tools/call", load)["structuredContent"]["active_skills"]
        assert [each["name"] for each in active] == ["tax", "refunds"]
        proxy.sees("replica-1", "DOWN")
        dead = [stream.whole is not None for stream in streams]
        assert any(dead) and not all(dead)  # leastconn gave each replica some

        # Whoever was at the other hears of what is new, and who comes back finds it, but nobody what is not granted.
        for path in ("finance/audit", "research/notes"):
            write_skill(tmp_path / "skills" / path)
        for number, name in enumerate((*GROUPS, *GROUPS)):
            if not dead[number]:
                streams[number].until(PROMPTS)
            until(lambda one=clients[number], name=name: names(one) == GROWN[name])
        deployment.replicas[0] = deployment.replica(deployment.ports[0])
        proxy.sees("replica-1", "UP")
        bob = deployment.at(deployment.replicas[0], "bob", "legacy")
        assert names(bob) == GROWN["bob"]
        answers: list[str] = []
        for unseen in ("tax", "nix"):
            load["arguments"] = {"names": [unseen]}
            answers.append(bob.request("tools/call", load)["content"][0]["text"].replace(unseen, "it"))
        assert answers[0] == answers[1]
