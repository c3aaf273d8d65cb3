"""Behind proxies: what clients are counted as, what paths they see, and that streams come through real ones."""

from __future__ import annotations

import hashlib
import http.client
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from tables import each_row
from web.http_wire import HttpClient, Server, Stream, client, http_serving, pinging, until
from web.proxies import SPREAD, Edits, HaProxy, Nginx, Proxy, running
from wire import DEADLINE, FIXTURES, Era, write_skill

SKILLS = "notifications/skills/list_changed"
TOKEN = "made-up-token-of-alpha-000001"
TRUSTING = ("--trusted-proxy", "127.0.0.1")
INDEX = "/.well-known/agent-skills/index.json"


class Forwarded(HttpClient):
    """A client for whom a proxy on this machine asks."""

    said: dict[str, str]

    def headers(self, message: Any = None) -> dict[str, str]:
        return super().headers(message) | self.said


@contextmanager
def behind(server: Server, address: str, era: Era = "modern", source: str = "127.0.0.1") -> Iterator[HttpClient]:
    """A client of this address, hands shaken."""
    one = Forwarded(server, era, source=source)
    one.said = {"X-Forwarded-For": f"6.6.6.6, {address}", "Forwarded": "for=7.7.7.7;host=evil.example"}
    with closing(one):
        one.open()
        yield one


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that believes this machine, for tests that change nothing."""
    with http_serving(FIXTURES, *TRUSTING) as started:
        yield started


def test_clients_behind_one_proxy_do_not_share_its_places() -> None:
    with (
        http_serving(FIXTURES, "--max-connections", "4", *TRUSTING) as server,
        behind(server, "203.0.113.1") as hog,
        behind(server, "203.0.113.2") as other,
    ):
        streams = [hog.listen(number, skillsListChanged=True) for number in range(4)]
        assert hog.post(hog.message("skills/list")).status == 503
        assert other.request("skills/list")["skills"]
        assert streams[0].next() is None  # the oldest of who holds most
        assert all(stream.whole is None for stream in streams[1:])


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8")
def test_who_is_no_proxy_is_counted_by_its_own_address_whatever_it_sends() -> None:
    with http_serving(FIXTURES, "--max-sessions", "4", "--trusted-proxy", "127.0.0.2") as server, ExitStack() as stack:
        mine = stack.enter_context(behind(server, "6.6.6.6", "legacy", "127.0.0.3"))
        for number in range(20):
            stack.enter_context(behind(server, f"203.0.113.{number}", "legacy"))
        assert mine.request("skills/list")["skills"]


def test_a_header_of_a_proxy_makes_no_name_good_or_bad() -> None:
    good, evil = "skills.example", "evil.example"
    with http_serving(FIXTURES, "--allowed-host", good, *TRUSTING) as server:
        for host, forwarded, status in ((good, evil, 200), (evil, good, 403)):
            said = {"Host": host, "X-Forwarded-Host": forwarded, "Forwarded": f"host={forwarded}"}
            assert server.send("GET", INDEX, headers=said).status == status


@each_row("root", ["/team/a.b/", "/mcp"])
def test_all_is_answered_below_a_root_path_and_without_it(root: str) -> None:
    prefix = root.removesuffix("/")
    origin = "https://app.example"
    options = ("--root-path", root, "--publish-open", "--allowed-origin", origin)
    with http_serving(FIXTURES, *options, environment={"MCP_SKILLS_TOKENS": f"alpha={TOKEN}"}) as server:
        indexes: list[bytes] = []
        server.until_ready()
        for before in (prefix, ""):
            assert [server.send("GET", before + path).status for path in ("/healthz", "/readyz")] == [200, 200]
            for path in ("/readyz?verbose", "/elsewhere"):
                assert server.send("GET", before + path).status == 401
            for path in ("/mcp", "/rpc"):
                assert server.send(path=before + path, body=b"{}").status == 401
            asked = {"Authorization": f"Bearer {TOKEN}"}
            assert server.send(path=before + "/rpc/", body=b"{}", headers=asked).headers["Location"] == prefix + "/rpc"
            reply = server.send("GET", before + INDEX, headers={"Origin": origin})
            assert reply.status == 200 and reply.headers["Access-Control-Allow-Origin"] == origin
            indexes.append(reply.body)
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            assert server.send("OPTIONS", before + "/mcp", headers=asked).status == 200
        assert indexes[0] == indexes[1]  # which is kept by caches, and by a digest
        for entry in json.loads(indexes[0])["skills"]:
            assert entry["url"].startswith(prefix + "/.well-known/agent-skills/")
            raw = server.send("GET", entry["url"]).body
            assert "sha256:" + hashlib.sha256(raw).hexdigest() == entry["digest"]


@each_row(
    ("sent", "location"),
    [
        ("/mcp/", "/mcp"), ("/mcp//?a=b&c", "/mcp?a=b&c"),
        *((path, None) for path in ("//evil.example/", "//evil.example/mcp/", "/mcp2/", "/", "//", "/%2f/mcp/")),
    ],
)  # fmt: skip
def test_slashes_too_many_are_redirected_to_no_other_host(server: Server, sent: str, location: str | None) -> None:
    for said in ({}, {"X-Forwarded-Prefix": "//evil.example"}):
        reply = server.send("POST", sent, b"{}", headers=said)
        assert (reply.status, reply.headers["Location"]) == (404 if location is None else 307, location)


def test_a_server_that_drains_is_not_ready_and_answers_all_the_same(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with http_serving(tmp_path, "--drain", "600") as server, client(server, "modern") as one:
        stream = one.listen(skillsListChanged=True)
        server.until_ready()
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.send("GET", "/readyz").status == 503)
        assert server.send("GET", "/readyz").body.startswith(b"draining")
        assert server.send("GET", "/healthz").status == 200
        reply = one.post(one.message("skills/list"))
        assert reply.status == 200 and "close" in reply.headers["Connection"]
        write_skill(tmp_path / "b")
        assert stream.until(SKILLS)
        assert server.signal(signal.SIGTERM)[0] == 0  # the second one ends it at once
        assert stream.rest()[-1]["result"] and stream.whole


def test_a_drain_ends_by_itself_and_is_not_for_who_presses_a_key() -> None:
    for seconds, number in (("0.2", signal.SIGTERM), ("600", signal.SIGINT)):
        with http_serving(FIXTURES, "--drain", seconds) as server, client(server, "legacy") as one:
            stream = one.follow()
            assert server.signal(number)[0] == 0
            assert stream.next() is None and stream.whole


@pytest.fixture(
    params=[
        pytest.param(HaProxy, marks=pytest.mark.needs_program("haproxy")),
        pytest.param(Nginx, marks=pytest.mark.needs_program("nginx")),
    ]
)
def kind(request: pytest.FixtureRequest) -> Callable[..., Proxy]:
    return request.param


@contextmanager
def through(
    kind: Callable[..., Proxy], folder: Path, *options: str | Path, edits: Edits = (), command: list[str] | None = None
) -> Iterator[tuple[Server, Proxy]]:
    """A server on the skills of a folder, and a proxy before it."""
    skills, files = folder / "skills", folder / "proxy"
    write_skill(skills / "a", guide_md="guide")
    files.mkdir()
    with (
        http_serving(skills, *TRUSTING, *options, command=command) as server,
        running(kind(files, server.port, edits=edits)) as proxy,
    ):
        yield server, proxy


def test_a_stream_without_news_outlives_a_proxys_patience(kind: Callable[..., Proxy], era: Era, tmp_path: Path) -> None:
    wait = {HaProxy: "timeout server", Nginx: "proxy_read_timeout"}[kind]
    edits, command = [(f"{wait} 60s", f"{wait} 1s")], pinging(0.3)
    with through(kind, tmp_path, edits=edits, command=command) as (_, proxy), client(proxy, era) as one:
        assert one.read("skill://a/guide.md") == b"guide"
        stream = one.hear()
        for _ in range(6):  # which takes nearly two seconds
            stream.comments.get(timeout=DEADLINE)
        write_skill(tmp_path / "skills" / "b")
        stream.until(SKILLS)
        assert len(one.every_skill()) == 2


def test_a_client_that_leaves_is_gone_behind_the_proxy(kind: Callable[..., Proxy], era: Era, tmp_path: Path) -> None:
    streams: list[Stream] = []

    def opened() -> bool:
        wanted = one.message("subscriptions/listen", {"notifications": {"skillsListChanged": True}})
        given = ("POST", json.dumps(wanted).encode(), one.headers(wanted))
        if era == "legacy":
            given = ("GET", None, one.headers())
        with suppress(http.client.RemoteDisconnected):  # the proxy lost the connection that it would use again
            if one.post(one.message("skills/list")).status == 200:
                streams.append(Stream(proxy, *given))
                if streams[-1].status == 200:
                    return True
                streams[-1].close()
        return False

    with through(kind, tmp_path, "--max-connections", "2") as (_, proxy), client(proxy, era) as one:
        for _ in range(6):  # three times as many as there are places, or as a session may have
            until(opened)
            streams[-1].close()


def test_large_bodies_come_through_and_larger_ones_are_refused(kind: Callable[..., Proxy], tmp_path: Path) -> None:
    with through(kind, tmp_path) as (_, proxy), client(proxy, "modern") as one:
        raw = b"x" * (3 << 20)
        (tmp_path / "skills" / "a" / "large.bin").write_bytes(raw)
        until(lambda: any("large" in each["uri"] for skill in one.every_skill() for each in skill["resources"]))
        assert one.read("skill://a/large.bin") == raw
        for size, is_refused in ((900_000, False), (1_100_000, True)):
            message = one.message("skills/get", {"name": "a", "arguments": {"x": "y" * size}})
            assert (one.post(message).status == 413) is is_refused


@pytest.mark.needs_program("nginx")
@pytest.mark.parametrize("strips", [True, False])
def test_a_prefix_is_taken_off_or_not(strips: bool, era: Era, tmp_path: Path) -> None:
    strip = "        rewrite ^/skills(/.*)$ $1 break;\n" if strips else ""
    edits = [("location ${LOCATION} {\n", "location /skills/ {\n" + strip)]
    with through(Nginx, tmp_path, "--root-path", "/skills", edits=edits) as (_, proxy):
        assert proxy.send("GET", INDEX).status == 404  # nginx's own
        proxy.prefix = "/skills"
        with client(proxy, era) as one:
            stream = one.hear()
            write_skill(tmp_path / "skills" / "b")
            stream.until(SKILLS)
        for entry in json.loads(proxy.send("GET", INDEX).body)["skills"]:
            proxy.prefix = ""
            assert proxy.send("GET", entry["url"]).status == 200


class Load:
    """Modern clients that ask all the time, each on a connection that it keeps while it can; and what failed."""

    def __init__(self, proxy: Proxy, clients: int) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(proxy,), daemon=True) for _ in range(clients)]
        for each in self._threads:
            each.start()

    def _ask(self, proxy: Proxy) -> None:
        one = HttpClient(proxy, "modern")
        with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)) as kept:
            while not self._over.is_set():
                message = one.message("resources/read", {"uri": "skill://a/SKILL.md"})
                try:
                    kept.request("POST", "/mcp", json.dumps(message), one.headers(message))
                    reply = kept.getresponse()
                    answer = json.loads(reply.read())
                    assert reply.status == 200 and answer["result"]["contents"]
                    self.answered += 1
                except Exception as error:
                    self.failed.append(repr(error))
                    kept.close()

    def goes_on(self) -> None:
        """Wait until so much more was answered that each client came by more than once."""
        enough = self.answered + 10 * len(self._threads)
        until(lambda: self.answered >= enough or self.failed)

    def end(self) -> None:
        self._over.set()
        for each in self._threads:
            each.join(30)


@pytest.mark.needs_program("haproxy")
def test_a_rolling_restart_fails_no_request_and_streams_come_back(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "a")
    (tmp_path / "proxy").mkdir()
    ports = [free_port(), free_port()]
    with ExitStack() as stack:

        def replica(port: int) -> Server:
            options = ("--port", str(port), "--drain", "600", *TRUSTING)
            return stack.enter_context(http_serving(tmp_path / "skills", *options))

        replicas = [replica(port) for port in ports]
        proxy = HaProxy(tmp_path / "proxy", *ports, edits=SPREAD)
        stack.enter_context(running(proxy))
        names = ("replica-1", "replica-2")
        for name in names:
            proxy.sees(name, "UP")
        listening = [stack.enter_context(client(proxy, "modern")) for _ in range(4)]
        streams = [one.listen(skillsListChanged=True) for one in listening]
        legacy = stack.enter_context(client(proxy, "legacy"))
        followed = legacy.follow()
        load = Load(proxy, 4)
        stack.callback(load.end)
        for number, name in enumerate(names):
            load.goes_on()
            replicas[number].process.send_signal(signal.SIGTERM)
            proxy.sees(name, "DOWN")
            load.goes_on()
            assert all(stream.whole is None for stream in streams)  # it drains, and ends none yet
            assert replicas[number].signal(signal.SIGTERM)[0] == 0
            # Streams that have ended or are just ending: their last message is here.
            ended = [place for place, stream in enumerate(streams) if not stream.messages.empty()]
            assert ended  # leastconn gave each replica some
            for place in ended:
                assert streams[place].rest()[-1]["result"] and streams[place].whole
                streams[place] = listening[place].listen(skillsListChanged=True)
            load.goes_on()
            replicas[number] = replica(ports[number])
            proxy.sees(name, "UP")
        load.goes_on()
        load.end()
        assert load.failed == [] and load.answered > 100
        assert followed.next() is None and followed.whole
        assert legacy.post(legacy.message("skills/list")).status == 404
        legacy.session = None
        legacy.open()  # as the protocol wants it after 404
        streams.append(legacy.follow())
        write_skill(tmp_path / "skills" / "b")
        for stream in streams:
            stream.until(SKILLS)
