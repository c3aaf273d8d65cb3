"""Behind reverse proxies: client addresses, path prefixes, drains, and real haproxy and nginx."""

from __future__ import annotations

import hashlib
import http.client
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from tables import each_row
from web.http_wire import HttpClient, Server, Stream, Target, bearer_header, client, http_serving, pinging, wait_until
from web.in_process import app_serving
from web.proxies import SPREAD, Edits, HaProxy, Nginx, Proxy, running
from wire import DEADLINE, FIXTURES, Era, write_skill

SKILLS = "notifications/skills/list_changed"
TOKEN = "made-up-token-of-alpha-000001"
TRUSTING = ("--trusted-proxy", "127.0.0.1")
INDEX = "/.well-known/agent-skills/index.json"


class ForwardedClient(HttpClient):
    forwarded_for = ""

    def headers(self, message: Any = None) -> dict[str, str]:
        added = {"X-Forwarded-For": f"6.6.6.6, {self.forwarded_for}"}
        added["Forwarded"] = "for=7.7.7.7;host=evil.example"
        return super().headers(message) | added


@contextmanager
def forwarded_client(
    server: Target, address: str, era: Era = "modern", source: str = "127.0.0.1"
) -> Iterator[HttpClient]:
    """Yield a client whose requests a proxy at `source` forwards for `address`."""
    with closing(ForwardedClient(server, era, source=source)) as opened:
        opened.forwarded_for = address
        opened.open()
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    """A server that trusts a proxy on loopback, for tests that change nothing."""
    with app_serving(FIXTURES, *TRUSTING) as started:
        yield started


def test_clients_behind_one_proxy_have_separate_connection_shares() -> None:
    with (
        http_serving(FIXTURES, "--max-connections", "12", *TRUSTING) as server,
        forwarded_client(server, "203.0.113.1") as hog,
        forwarded_client(server, "203.0.113.2") as other,
    ):
        streams = [hog.listen(number, skillsListChanged=True) for number in range(2)]
        refused = hog.message("subscriptions/listen", {"notifications": {"skillsListChanged": True}})
        assert hog.post(refused).status == 503
        assert other.request("skills/list")["skills"]
        other.listen(skillsListChanged=True)
        assert all(stream.whole is None for stream in streams)


def test_untrusted_client_counts_for_its_own_address() -> None:
    options = ("--max-sessions", "4", "--trusted-proxy", "127.0.0.2")
    with app_serving(FIXTURES, *options) as server, ExitStack() as stack:
        other = stack.enter_context(forwarded_client(server, "6.6.6.6", "legacy", "127.0.0.3"))
        for number in range(20):
            stack.enter_context(forwarded_client(server, f"203.0.113.{number}", "legacy"))
        assert other.request("skills/list")["skills"]


def test_forwarded_host_does_not_replace_host() -> None:
    allowed, foreign = "skills.example", "evil.example"
    with app_serving(FIXTURES, "--allowed-host", allowed, *TRUSTING) as server:
        for host, other, status in ((allowed, foreign, 200), (foreign, allowed, 403)):
            headers = {"Host": host, "X-Forwarded-Host": other, "Forwarded": f"host={other}"}
            assert server.send("GET", INDEX, headers=headers).status == status


@each_row("root", ["/team/a.b/", "/mcp"])
def test_endpoints_answer_with_and_without_root_path(root: str) -> None:
    prefix = root.removesuffix("/")
    origin = "https://app.example"
    preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    options = ("--root-path", root, "--publish-open", "--allowed-origin", origin)
    tokens = {"MCP_SKILLS_TOKENS": f"alpha={TOKEN}"}
    with app_serving(FIXTURES, *options, environment=tokens) as server:
        indexes: list[bytes] = []
        for before in (prefix, ""):
            for path in ("/healthz", "/readyz"):
                assert server.send("GET", before + path).status == 200
            for path in ("/readyz?verbose", "/elsewhere"):
                assert server.send("GET", before + path).status == 401
            for path in ("/mcp", "/rpc"):
                assert server.send(path=before + path, body=b"{}").status == 401
            reply = server.send(path=before + "/rpc/", body=b"{}", headers=bearer_header(TOKEN))
            assert reply.headers["Location"] == prefix + "/rpc"
            reply = server.send("GET", before + INDEX, headers={"Origin": origin})
            assert reply.status == 200
            assert reply.headers["Access-Control-Allow-Origin"] == origin
            indexes.append(reply.body)
            assert server.send("OPTIONS", before + "/mcp", headers=preflight).status == 200
        assert indexes[0] == indexes[1]  # caches keep it by its digest
        for entry in json.loads(indexes[0])["skills"]:
            assert entry["url"].startswith(prefix + "/.well-known/agent-skills/")
            raw = server.send("GET", entry["url"]).body
            assert "sha256:" + hashlib.sha256(raw).hexdigest() == entry["digest"]


@each_row(("path", "status", "location"), [
    ("/mcp/", 307, "/mcp"), ("/mcp//?a=b&c", 307, "/mcp?a=b&c"), ("//evil.example/", 404, None),
    ("//evil.example/mcp/", 404, None), ("/mcp2/", 404, None), ("/", 404, None), ("//", 404, None),
    ("/%2f/mcp/", 404, None), ("/mcp/x", 404, None), ("/healthz/x", 404, None),
])  # fmt: skip
def test_trailing_slash_redirects_to_no_other_host(
    server: Target, path: str, status: int, location: str | None
) -> None:
    for headers in ({}, {"X-Forwarded-Prefix": "//evil.example"}):
        reply = server.send("POST", path, b"{}", headers=headers)
        assert (reply.status, reply.headers["Location"]) == (status, location)


def test_draining_server_is_not_ready_but_answers_requests(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with http_serving(tmp_path, "--drain", "600") as server, client(server, "modern") as listener:
        stream = listener.listen(skillsListChanged=True)
        server.until_ready()
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.send("GET", "/readyz").status == 503)
        assert server.send("GET", "/readyz").body.startswith(b"draining")
        assert server.send("GET", "/healthz").status == 200
        reply = listener.post(listener.message("skills/list"))
        assert reply.status == 200
        assert "close" in reply.headers["Connection"]
        write_skill(tmp_path / "b")
        assert stream.until(SKILLS)
        assert server.signal(signal.SIGTERM) == 0  # a second signal ends the drain
        assert stream.rest()[-1]["result"] and stream.whole


def test_drain_ends_after_its_time_and_is_skipped_on_sigint() -> None:
    for seconds, number in (("0.2", signal.SIGTERM), ("600", signal.SIGINT)):
        with http_serving(FIXTURES, "--drain", seconds) as server, client(server, "legacy") as follower:
            stream = follower.follow()
            assert server.signal(number) == 0
            assert stream.next() is None and stream.whole


@pytest.fixture(
    params=[
        pytest.param(HaProxy, marks=pytest.mark.needs_program("haproxy")),
        pytest.param(Nginx, marks=pytest.mark.needs_program("nginx")),
    ]
)
def proxy_class(request: pytest.FixtureRequest) -> Callable[..., Proxy]:
    return request.param


@contextmanager
def proxied_server(
    proxy_class: Callable[..., Proxy],
    folder: Path,
    *options: str | Path,
    edits: Edits = (),
    command: list[str] | None = None,
) -> Iterator[Proxy]:
    skills, files = folder / "skills", folder / "proxy"
    write_skill(skills / "a", guide_md="guide")
    files.mkdir()
    with (
        http_serving(skills, *TRUSTING, *options, command=command) as server,
        running(proxy_class(files, server.port, edits=edits)) as proxy,
    ):
        yield proxy


def test_idle_stream_outlasts_timeout_of_proxy(proxy_class: Callable[..., Proxy], era: Era, tmp_path: Path) -> None:
    timeout = {HaProxy: "timeout server", Nginx: "proxy_read_timeout"}[proxy_class]
    edits, command = [(f"{timeout} 60s", f"{timeout} 1s")], pinging(0.3)
    with proxied_server(proxy_class, tmp_path, edits=edits, command=command) as proxy, client(proxy, era) as listener:
        assert listener.read("skill://a/guide.md") == b"guide"
        stream = listener.hear()
        for _ in range(6):  # nearly two seconds
            stream.comments.get(timeout=DEADLINE)
        write_skill(tmp_path / "skills" / "b")
        stream.until(SKILLS)
        assert len(listener.every_skill()) == 2


def test_closed_stream_frees_its_slot_behind_proxy(proxy_class: Callable[..., Proxy], era: Era, tmp_path: Path) -> None:
    streams: list[Stream] = []

    def open_stream() -> bool:
        message = listener.message("subscriptions/listen", {"notifications": {"skillsListChanged": True}})
        request = ("POST", json.dumps(message).encode(), listener.headers(message))
        if era == "legacy":
            request = ("GET", None, listener.headers())
        with suppress(http.client.RemoteDisconnected):  # the proxy reused a closed connection
            if listener.post(listener.message("skills/list")).status == 200:
                streams.append(proxy.open(*request))
                if streams[-1].status == 200:
                    return True
                streams[-1].close()
        return False

    options = ("--max-connections", "2")
    with proxied_server(proxy_class, tmp_path, *options) as proxy, client(proxy, era) as listener:
        for _ in range(6):  # three times the number of slots
            wait_until(open_stream)
            streams[-1].close()


def test_body_passes_proxy_up_to_limit(proxy_class: Callable[..., Proxy], tmp_path: Path) -> None:
    with proxied_server(proxy_class, tmp_path) as proxy, client(proxy, "modern") as reader:
        raw = b"x" * (3 << 20)
        (tmp_path / "skills" / "a" / "large.bin").write_bytes(raw)
        wait_until(lambda: "large.bin" in json.dumps(reader.every_skill()))
        assert reader.read("skill://a/large.bin") == raw
        for size, is_refused in ((900_000, False), (1_100_000, True)):
            message = reader.message("skills/get", {"name": "a", "arguments": {"x": "y" * size}})
            assert (reader.post(message).status == 413) is is_refused


class Load:
    """Clients that send requests without pause on keep-alive connections, and the failures."""

    def __init__(self, proxy: Proxy, clients: int) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        for _ in range(clients):
            self._threads.append(threading.Thread(target=self._send, args=(proxy,), daemon=True))
            self._threads[-1].start()

    def _send(self, proxy: Proxy) -> None:
        reader = HttpClient(proxy, "modern")
        with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)) as connection:
            while not self._stopped.is_set():
                message = reader.message("resources/read", {"uri": "skill://a/SKILL.md"})
                try:
                    connection.request("POST", "/mcp", json.dumps(message), reader.headers(message))
                    reply = connection.getresponse()
                    answer = json.loads(reply.read())
                    assert reply.status == 200 and answer["result"]["contents"]
                    self.answered += 1
                except Exception as error:
                    self.failed.append(repr(error))
                    connection.close()

    def wait_for_replies(self) -> None:
        """Wait for ten more replies for each client, or for a failure."""
        enough = self.answered + 10 * len(self._threads)
        wait_until(lambda: self.answered >= enough or self.failed)

    def stop(self) -> None:
        self._stopped.set()
        for each in self._threads:
            each.join(30)


@pytest.mark.needs_program("haproxy")
def test_haproxy_checks_replicas_at_their_probe_address(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "a")
    probe, nobody = free_port(), free_port()
    with (
        http_serving(tmp_path / "skills", "--probe-address", f"127.0.0.1:{probe}") as server,
        running(HaProxy(tmp_path, nobody, server.port, probes=[probe, nobody])) as proxy,
    ):
        assert isinstance(proxy, HaProxy)
        proxy.wait_for_state("replica-1", "UP")
        proxy.wait_for_state("replica-2", "DOWN")


@pytest.mark.needs_program("haproxy")
def test_rolling_restart_fails_no_request(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "a")
    (tmp_path / "proxy").mkdir()
    ports, names = [free_port(), free_port()], ("replica-1", "replica-2")
    with ExitStack() as stack:

        def replica(port: int) -> Server:
            options = ("--port", str(port), "--drain", "600", *TRUSTING)
            return stack.enter_context(http_serving(tmp_path / "skills", *options))

        replicas = [replica(port) for port in ports]
        proxy = HaProxy(tmp_path / "proxy", *ports, edits=SPREAD)
        stack.enter_context(running(proxy))
        for name in names:
            proxy.wait_for_state(name, "UP")
        load = Load(proxy, 4)
        stack.callback(load.stop)
        for number, name in enumerate(names):
            load.wait_for_replies()
            replicas[number].process.send_signal(signal.SIGTERM)
            proxy.wait_for_state(name, "DOWN")
            load.wait_for_replies()
            assert replicas[number].signal(signal.SIGTERM) == 0
            load.wait_for_replies()
            replicas[number] = replica(ports[number])
            proxy.wait_for_state(name, "UP")
        load.wait_for_replies()
        load.stop()
        assert load.failed == []
