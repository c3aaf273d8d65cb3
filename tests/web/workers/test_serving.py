"""`serve --workers`: real processes on one socket, asked by real clients; any of them may be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from web.http_wire import Reply, Server, client, http_serving, refused
from web.test_rpc import call, post
from wire import DEADLINE, write_skill

TOKENS = "alpha=made-up-token-of-alpha-000001\nbeta=made-up-token-of-beta-0000002\n"
ALPHA, BETA = (line.partition("=")[2] for line in TOKENS.split())
COUNT = 2
LARGE = "0123456789abcde\n" * (512 << 10)
NEW = 8
"""So many new connections come to every worker, because the one with the least to do takes the next."""

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows cannot pass a socket on")


@contextmanager
def working(*arguments: str | Path, count: int = COUNT, **more: Any) -> Iterator[Server]:
    """A server with workers, all of which accept. None of them is left behind."""
    with http_serving(*arguments, "--workers", str(count), "--log-level", "debug", **more) as server:
        server.said(r"worker \d accepts connections", times=count)
        every = workers(server)
        yield server
        every |= workers(server)
    until(lambda: not any(map(lives, every)))


def until(holds: Callable[[], object]) -> None:
    """Wait for something that nobody says."""
    end = monotonic() + DEADLINE
    while not holds():
        assert monotonic() < end
        sleep(0.01)


def workers(server: Server) -> set[int]:
    """The processes of a server that answer."""
    pid = server.process.pid
    try:
        return {*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())}
    except OSError:
        return set()


def lives(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def worker_of(identifier: str | None) -> int:
    assert identifier is not None
    return int(identifier.rpartition("_w")[2])


def one_of_each(server: Server, stack: ExitStack, count: int = COUNT, **more: Any) -> dict[int, Any]:
    """A legacy client with a session in each worker, by its number."""
    found: dict[int, Any] = {}
    while len(found) < count:
        one = stack.enter_context(client(server, "legacy", **more))
        found.setdefault(worker_of(one.session), one)
    return found


def names(one: Any) -> set[str]:
    return {each["name"] for each in one.every_skill()}


@pytest.fixture(scope="module")
def skills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that no test changes."""
    root = tmp_path_factory.mktemp("skills")
    for number in range(3):
        write_skill(root / f"skill-{number}", references__guide_md="Guide.\n")
    (root / "skill-2" / "large.txt").write_text(LARGE)
    return root


@pytest.fixture
def where() -> Iterator[Path]:
    """A place for temporary files, whose path leaves some letters for that of a socket."""
    with TemporaryDirectory(prefix="w") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(skills: Path) -> Iterator[Server]:
    """Workers, for tests that change nothing but their own sessions."""
    with working(skills) as started:
        yield started


@pytest.fixture
def server_of_its_own(skills: Path, where: Path) -> Iterator[Server]:
    """Workers, for a test that kills some. What they share lies in a folder of their own."""
    with working(skills, environment={"TMPDIR": str(where)}) as started:
        yield started


def test_a_session_is_found_by_any_connection(server: Server) -> None:
    with ExitStack() as stack:
        for one in one_of_each(server, stack).values():
            for _ in range(NEW):  # each on a connection of its own
                assert len(one.every_skill()) == 3
            assert one.read("skill://skill-1/references/guide.md") == b"Guide.\n"
            assert one.delete().status == 200
            for _ in range(NEW):
                assert one.post(one.message("skills/list")).error == (404, -32600, None)


@pytest.mark.requirement("MCP-11", "X-15")
def test_a_handle_of_the_tools_is_found_by_any_connection(server: Server) -> None:
    with client(server, "modern") as one:
        given = {"names": ["skill-0"]}
        minted: set[int] = set()
        for _ in range(COUNT * NEW):
            loaded = one.request("tools/call", {"name": "skills_load", "arguments": given})
            session = loaded["structuredContent"]["session"]
            minted.add(worker_of(session))
            more = {"names": ["skill-1"], "session": session}
            result = one.request("tools/call", {"name": "skills_load", "arguments": more})
            assert not result.get("isError") and session in result["content"][0]["text"]
        unknown = {"names": ["skill-1"], "session": f"{'x' * 24}_w1"}
        assert one.request("tools/call", {"name": "skills_load", "arguments": unknown})["isError"]
    assert minted


def test_a_blob_is_found_by_any_connection(skills: Path, sandbox_mode: str) -> None:
    with working(skills, "--allow-scripts", "--sandbox", sandbox_mode) as server:
        seen: set[int] = set()
        for number in range(COUNT * NEW):
            blob = call(server, "create_blob", content=f"{number}\n")["blob_id"]
            seen.add(worker_of(blob))
            assert call(server, "read_blob", blob_id=blob)["content"] == f"{number}\n"
        assert seen <= {*range(COUNT)}


def test_the_clients_of_the_sdk_are_served_in_both_eras(server: Server) -> None:
    async def ask(mode: str) -> None:
        async with Client(f"http://127.0.0.1:{server.port}/mcp", mode=mode) as one:
            for _ in range(5):
                found = await one.list_resources()
                assert "skill://skill-2/SKILL.md" in {str(each.uri) for each in found.resources}

    async def ask_all() -> None:
        async with anyio.create_task_group() as tasks:
            for mode in ("auto", "legacy") * 6:
                tasks.start_soon(ask, mode)

    anyio.run(ask_all)


def test_requests_that_follow_on_one_connection_go_where_each_belongs(server: Server) -> None:
    with ExitStack() as stack, server.connect(receive_buffer=4096) as connection:
        ones = [*one_of_each(server, stack).values()]
        reading = _raw(stack.enter_context(client(server, "modern")), "resources/read", uri="skill://skill-2/large.txt")
        last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        # A large answer waits to be read when the next request turns out to belong elsewhere.
        connection.sendall(b"".join(reading + _raw(one, "skills/list") for one in ones) + last)
        seen = bytearray()
        while piece := connection.recv(1 << 20):
            seen += piece
    assert seen.count(b"HTTP/1.1 ") == seen.count(b"HTTP/1.1 200") == 2 * COUNT + 1
    assert seen.count(json.dumps(LARGE).encode()) == COUNT
    places = [seen.index(one.session.encode()) for one in ones]
    assert places == sorted(places) and seen.endswith(b"alive\n")


def _raw(one: Any, method: str, **params: str) -> bytes:
    message = one.message(method, params)
    body = json.dumps(message).encode()
    headers = {"Host": "localhost", **one.headers(message), "Content-Length": str(len(body))}
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_the_body_of_a_get_does_not_become_a_request(server: Server) -> None:
    inner = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        for one in one_of_each(server, stack).values():
            head = f"GET /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {one.session}\r\nAccept: text/plain\r\n"
            for cut in (0, 10):  # whole at once, or with a part that comes later
                with server.connect() as connection:
                    connection.sendall(f"{head}Connection: close\r\nContent-Length: {len(inner)}\r\n\r\n".encode())
                    connection.sendall(inner[: len(inner) - cut])
                    seen = b""
                    with suppress(OSError):  # it may have been answered, and closed, before all was read
                        connection.sendall(inner[len(inner) - cut :])
                        while piece := connection.recv(65536):
                            seen += piece
                assert seen.count(b"HTTP/1.1 ") == 1 and b"alive" not in seen


def test_a_large_request_is_given_away_whole(server: Server) -> None:
    with ExitStack() as stack:
        for one in one_of_each(server, stack).values():
            for _ in range(NEW):
                filling = {"name": "skills_search", "arguments": {"query": "thing " * 50_000}}
                reply = one.post(one.message("tools/call", filling))
                assert reply.status == 200 and "result" in reply.messages[0]


def test_a_number_of_no_worker_is_an_unknown_session(server: Server) -> None:
    with client(server, "legacy") as one:
        for session in ("x_w0", "x_w999", "x_w-1", "x_w../1", "x_w1e0", f"x_w{10**30}", "_w1"):
            headers = {**one.headers(), "Mcp-Session-Id": session}
            assert server.send("GET", headers=headers).status == 404
            assert one.post(one.message("skills/list"), {"Mcp-Session-Id": session}).error == (404, -32600, None)
        assert one.request("skills/list")["skills"]


def test_an_edit_is_seen_and_heard_of_at_every_worker(tmp_path: Path) -> None:
    write_skill(tmp_path / "first")
    with working(tmp_path) as server, ExitStack() as stack:
        legacy = one_of_each(server, stack)
        modern = [stack.enter_context(client(server, "modern")) for _ in range(2 * COUNT)]
        streams = [one.hear() for one in (*legacy.values(), *modern)]
        write_skill(tmp_path / "second")
        for stream in streams:
            stream.until("notifications/resources/list_changed")
        assert [names(one) for one in legacy.values()] == [{"first", "second"}] * COUNT
        (tmp_path / "first" / "SKILL.md").unlink()
        for stream in streams:
            stream.until("notifications/resources/list_changed")
        assert [names(one) for one in legacy.values()] == [{"second"}] * COUNT
        assert server.stderr.count("skill second: added") == 1


def owner(server: Server, port: int) -> int:
    """The worker that has the connection from this port."""
    local, remote = (f"0100007F:{each:04X}" for each in (server.port, port))
    lines = [each.split() for each in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (number,) = [each[9] for each in lines if each[1:3] == [local, remote]]
    for process in workers(server):
        for each in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(each) == f"socket:[{number}]":
                    return process
    raise AssertionError(port)


def test_who_heard_of_a_change_from_one_worker_and_asks_one_that_is_behind_hears_of_it_again(tmp_path: Path) -> None:
    changed = "notifications/resources/list_changed"
    write_skill(tmp_path / "first")
    with working(tmp_path) as server, client(server, "modern") as one:
        stream = one.listen(resourcesListChanged=True)
        first, behind = owner(server, stream._socket.getsockname()[1]), None
        asking = HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)

        def ask() -> None:
            message = one.message("skills/list")
            asking.request("POST", "/mcp", json.dumps(message), one.headers(message))

        def answer() -> set[str]:
            with asking.getresponse() as response:
                return {each["name"] for each in json.loads(response.read())["result"]["skills"]}

        while behind in {None, first}:  # a connection that stays with the other worker
            asking.close()
            ask()
            assert answer() == {"first"}
            behind = owner(server, asking.sock.getsockname()[1])
        assert behind is not None
        wanted, times = {"first"}, 0
        while times < 3:
            wanted.add(new := f"skill-{len(wanted)}")
            os.kill(behind, signal.SIGSTOP)
            try:
                write_skill(tmp_path / new)
                stream.until(changed)
                ask()
            finally:
                os.kill(behind, signal.SIGCONT)
            assert len(wanted) < 45
            if answer() == wanted:
                continue  # it had looked before it answered
            times += 1
            while True:  # as a client does
                stream.until(changed)
                ask()
                if answer() == wanted:
                    break
        asking.close()


def test_a_worker_that_is_killed_is_replaced_and_its_clients_begin_anew(tmp_path: Path) -> None:
    write_skill(tmp_path / "first")
    with working(tmp_path, count=2) as server, ExitStack() as stack:
        ones = one_of_each(server, stack, 2)
        before = workers(server)
        lost: list[str] = []
        stop = threading.Event()

        def ask() -> None:
            with client(server, "modern", opened=False) as one:
                while not stop.is_set():
                    try:
                        assert one.request("skills/list")["skills"]
                    except (OSError, HTTPException) as error:  # it was in the middle of its answer
                        lost.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        killed = min(before)
        os.kill(killed, signal.SIGSTOP)  # so that it is killed before it has heard of the edit
        write_skill(tmp_path / "second")
        server.said("skill second: added")
        os.kill(killed, signal.SIGKILL)
        server.said("worker . ended by SIGKILL; starting another")
        statuses = {number: one.post(one.message("skills/list")).status for number, one in ones.items()}
        assert sorted(statuses.values()) == [200, 404]
        server.said(r"worker \d accepts connections", times=3)
        gone = next(number for number, status in statuses.items() if status == 404)
        assert ones[gone].post(ones[gone].message("skills/list")).error == (404, -32600, None)
        assert server.send("GET", "/readyz").status == 200
        again = one_of_each(server, stack, 2)
        assert names(again[0]) == names(again[1]) == {"first", "second"}
        stop.set()
        for thread in threads:
            thread.join()
        assert len(lost) <= len(threads)
        assert workers(server) > before - {killed} and killed not in workers(server)


def test_a_worker_that_is_asked_to_end_alone_leaves_the_socket_to_the_others(tmp_path: Path) -> None:
    write_skill(tmp_path / "alpha")
    with working(tmp_path, "--drain", "0.1") as server:
        alone = min(workers(server))
        os.kill(alone, signal.SIGTERM)
        until(lambda: not lives(alone))
        server.said(r"worker \d accepts connections", times=COUNT + 1)
        for _ in range(NEW):
            with client(server, "modern") as one:
                assert names(one) == {"alpha"}


def test_all_workers_drain_until_a_second_signal(tmp_path: Path) -> None:
    write_skill(tmp_path / "alpha")
    with working(tmp_path, "--drain", "600") as server:
        before = workers(server)
        server.process.send_signal(signal.SIGTERM)
        server.said(r"ends in 600 s", times=COUNT)
        for _ in range(NEW):
            with client(server, "modern") as one:
                assert names(one) == {"alpha"}
        assert workers(server) == before
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE) == 0


def test_workers_that_could_answer_start_again_at_once(server_of_its_own: Server) -> None:
    server = server_of_its_own
    for count in range(1, 4):
        os.kill(min(workers(server)), signal.SIGKILL)
        server.said(r"ended by SIGKILL; starting another in 0\.1 s", times=count)
        server.said(r"worker \d accepts connections", times=COUNT + count)
    assert server.send("GET", "/readyz").status == 200


def test_a_worker_that_ends_again_and_again_soon_starts_later_each_time(server_of_its_own: Server) -> None:
    server = server_of_its_own
    steady = min(workers(server))
    for count, pause in enumerate(("0.1", "0.1", "0.1", "0.2", "0.4"), 1):
        os.kill(*(workers(server) - {steady}), signal.SIGKILL)
        often = rf" \({count} in a row ended within 30 s of their start\)" if count > 1 else ""
        server.said(rf"ended by SIGKILL; starting another in {re.escape(pause)} s{often}\n", times=1)
        server.said(r"worker \d accepts connections", times=COUNT + count)


def test_no_pause_is_long_while_nobody_answers(server_of_its_own: Server) -> None:
    server = server_of_its_own

    def pauses() -> list[float]:
        return [*map(float, re.findall(r"ended by SIGKILL; starting another in (\S+) s", server.stderr))]

    def killed() -> bool:
        for process in workers(server):  # while they start
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return len(pauses()) >= 6 * COUNT

    until(killed)
    assert max(pauses()) == 1.0
    until(lambda: server.send("GET", "/readyz").status == 200)  # one that listens may still be reading the skills


def test_a_connection_that_is_given_to_a_worker_that_dies_is_answered(server_of_its_own: Server, where: Path) -> None:
    server, path = server_of_its_own, f"{next(where.glob('mcp-skills-workers-*'))}/1"
    with ExitStack() as stack:
        one = one_of_each(server, stack)[1]
        stopped = next(each for each in workers(server) if _holds(each, path))
        os.kill(stopped, signal.SIGSTOP)
        replies: list[Reply] = []
        asking = threading.Thread(target=lambda: replies.append(one.post(one.message("skills/list"))))
        asking.start()
        until(lambda: len(_unix(path)) > 1)  # it is given, and nobody takes it
        os.kill(stopped, signal.SIGKILL)
        asking.join()
        assert [each.error for each in replies] == [(404, -32600, None)]


def _unix(path: str) -> set[str]:
    """The sockets at this path: one listens, the others wait to be accepted."""
    lines = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {f"socket:[{line[6]}]" for line in lines if line[-1] == path}


def _holds(process: int, path: str) -> bool:
    """Whether a process has one of them open."""
    found: set[str] = set()
    for each in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(each))
    return not _unix(path).isdisjoint(found)


def test_the_end_is_said_to_every_client_and_nothing_stays(tmp_path: Path, where: Path) -> None:
    write_skill(tmp_path / "skills" / "first")
    with working(tmp_path / "skills", environment={"TMPDIR": str(where)}) as server, ExitStack() as stack:
        modern = [stack.enter_context(client(server, "modern")) for _ in range(COUNT)]
        streams = [one.hear() for one in (*one_of_each(server, stack).values(), *modern)]
        (folder,) = where.glob("mcp-skills-workers-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        every = workers(server)
        assert len(every) == COUNT
        assert server.signal(signal.SIGTERM)[0] == 0
        for stream in streams:
            stream.rest()
            assert stream.whole
        assert not any(map(lives, every)) and [*where.iterdir()] == []


def test_workers_drain_until_their_supervisor_hears_a_second_signal(tmp_path: Path) -> None:
    write_skill(tmp_path / "first")
    with working(tmp_path, "--drain", "600") as server, ExitStack() as stack:
        modern = stack.enter_context(client(server, "modern"))
        streams = [one.hear() for one in (*one_of_each(server, stack).values(), modern)]
        server.process.send_signal(signal.SIGTERM)
        server.said(r"ends in 600 s", times=COUNT)
        for worker in workers(server):
            os.kill(worker, signal.SIGTERM)  # as from who ends all processes of a service: each has it twice
        write_skill(tmp_path / "second")
        for stream in streams:
            stream.until("notifications/skills/list_changed")
        for _ in range(NEW):
            assert server.send("GET", "/readyz").status == 503 and server.send("GET", "/healthz").status == 200
        assert len(workers(server)) == COUNT
        assert server.signal(signal.SIGTERM)[0] == 0
        for stream in streams:
            stream.rest()
            assert stream.whole


def test_workers_end_with_their_supervisor(tmp_path: Path, where: Path) -> None:
    write_skill(tmp_path / "skills" / "first")
    with working(tmp_path / "skills", environment={"TMPDIR": str(where)}) as server:
        every = workers(server)
        server.process.kill()
        until(lambda: not any(map(lives, every)))
        until(lambda: not [*where.iterdir()])


def test_tokens_are_read_again_by_every_worker(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "first")
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS.splitlines()[0])
    tokens.chmod(0o600)
    with working(tmp_path / "skills", "--token-file", tokens) as server, ExitStack() as stack:
        ones = one_of_each(server, stack, token=ALPHA)
        for one in ones.values():  # of another bearer, whichever worker is asked
            headers = {**one.headers(), "Authorization": f"Bearer {BETA}"}
            assert one.post(one.message("skills/list"), headers).status == 401
        tokens.write_text(TOKENS)
        os.kill(server.process.pid, signal.SIGHUP)
        modern = stack.enter_context(client(server, "modern", token=BETA, opened=False))
        for _ in range(NEW):
            until(lambda: modern.post(modern.message("skills/list")).status == 200)
        for one in ones.values():
            headers = {**one.headers(), "Authorization": f"Bearer {BETA}"}
            until(lambda one=one, headers=headers: one.post(one.message("skills/list"), headers).status == 404)
            assert one.request("skills/list")["skills"]
        server.said("the tokens were read again")  # by the supervisor, which may be the last to do it
        assert server.stderr.count("the tokens were read again") == 1


def test_a_warning_is_said_by_the_supervisor_and_not_by_every_process(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "first")
    (tmp_path / "skills" / "second").mkdir()
    (tmp_path / "skills" / "second" / "SKILL.md").write_text("no frontmatter\n")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alpha={ALPHA} expires=2020-01-31\n")
    tokens.chmod(0o644)
    given = {"MCP_SKILLS_PAGESIZE": "7"}
    with working(tmp_path / "skills", "--token-file", tokens, environment=given) as server:
        said = re.findall("WARNING: (.*)", server.stderr)
        for words in (
            "can be read by every user",
            "tokens have expired: alpha",
            "MCP_SKILLS_PAGESIZE: there is no such",
        ):
            assert sum(words in each for each in said) == 1, words
        assert sorted(said) == sorted({*said})


def test_a_replaced_worker_serves_what_the_others_do(tmp_path: Path) -> None:
    for number in range(3):
        write_skill(tmp_path / "skills" / f"skill-{number}")
    file = tmp_path / "skills.toml"
    file.write_text('roots = ["skills"]\npage-size = 2\nworkers = 2\ntransport = "http"\nport = 0\n')
    command_line = ("--config", file, "--log-level", "debug")
    with http_serving(*command_line) as server, ExitStack() as stack:
        server.said(r"worker \d accepts connections", times=2)
        file.write_text("this is not TOML")
        server.said("this is not TOML: .*; the configuration stays as it was")
        os.kill(min(workers(server)), signal.SIGKILL)
        server.said(r"worker \d accepts connections", times=3)
        for one in one_of_each(server, stack, 2).values():
            assert len(one.request("skills/list")["skills"]) == 2


def test_what_is_fetched_is_fetched_once_and_served_by_all(tmp_path: Path) -> None:
    file = tmp_path / "skills.zip"
    _pack(file, "first")
    with working(file, count=2) as server, ExitStack() as stack:
        ones = one_of_each(server, stack, 2)
        assert [names(one) for one in ones.values()] == [{"first"}] * 2
        os.kill(min(workers(server)), signal.SIGKILL)
        server.said(r"worker \d accepts connections", times=3)
        assert [names(one) for one in one_of_each(server, stack, 2).values()] == [{"first"}] * 2


def _pack(path: Path, *skills: str) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name in skills:
            file.writestr(f"{name}/SKILL.md", f"---\nname: {name}\ndescription: Does a thing.\n---\n\n# Thing\n")


def test_what_an_index_has_named_is_there_for_every_connection(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "first", description="Of old.")
    with working(tmp_path) as server:

        def get(path: str) -> Reply:
            return server.send("GET", path)

        index = "/.well-known/agent-skills/index.json"
        (old,) = json.loads(get(index).body)["skills"]
        write_skill(skill, description="Of late.")
        until(lambda: json.loads(get(index).body)["skills"][0]["description"] == "Of late.")
        for _ in range(NEW):
            assert get(old["url"]).status == 200


def test_limits_hold_for_all_workers_together(tmp_path: Path) -> None:
    write_skill(tmp_path / "first")
    with working(tmp_path, "--max-sessions", "4", count=2) as server, ExitStack() as stack:
        ones = [stack.enter_context(client(server, "legacy")) for _ in range(8)]
        open_ones = [one for one in ones if one.post(one.message("skills/list")).status == 200]
        assert 2 <= len(open_ones) <= 4


def test_wrong_usage_is_one_line(tmp_path: Path) -> None:
    write_skill(tmp_path / "first")
    assert "--max-sessions 1 cannot be divided among 2 workers" in refused(
        tmp_path, "--workers", "2", "--max-sessions", "1"
    )
    assert "refusing to listen on 0.0.0.0" in refused(tmp_path, "--workers", "2", "--host", "0.0.0.0")
    assert "--embeddings" in refused(tmp_path, "--workers", "2", "--embeddings", str(tmp_path))
    for value in ("x", "0", "99999"):
        assert "MCP_SKILLS_WORKER is set" in refused(tmp_path, environment={"MCP_SKILLS_WORKER": value})
    deep = tmp_path / ("x" * 60) / ("x" * 60)
    deep.mkdir(parents=True)
    assert "too long for the path of a socket" in refused(tmp_path, "--workers", "2", environment={"TMPDIR": str(deep)})
    with http_serving(tmp_path) as other:
        assert "cannot listen on" in refused(tmp_path, "--workers", "2", "--port", str(other.port))


def test_a_batch_of_the_skills_protocol_is_answered_by_any(server: Server) -> None:
    for _ in range(NEW):
        assert post(server, [{"jsonrpc": "2.0", "id": 1, "method": "list_skills"}]).status == 200
