"""`mcp-skills-server rpc` as a process: lines in, lines out, over real stdin and stdout."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

import forkserver
from mcp_skills_server.rpc.server import MAX_MESSAGE
from rpc.build import ACTIONS, toml, write
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, ROOT, write_skill

GOLDEN = ROOT / "tests" / "golden"


class Lines:
    """A process to which lines are sent, and which answers with lines."""

    def __init__(self, errors: IO[bytes], *arguments: str | Path, environment: dict[str, str] | None) -> None:
        self._errors = errors
        self.process = forkserver.Popen(
            [*COMMAND, "rpc", *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, cwd=ROOT, env={**os.environ, **(environment or {})},
        )  # fmt: skip
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stderr = b""
        self._watchdog = threading.Timer(3 * DEADLINE, self.process.kill)  # a test that waits for a line must end
        self._watchdog.start()

    def send(self, message: Any) -> None:
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.stdin.write(raw + b"\n")
        self.stdin.flush()

    def next(self) -> Any:
        return json.loads(self.stdout.readline())

    def ask(self, method: str, **params: Any) -> Any:
        """Return the answer to a call."""
        self.send({"jsonrpc": "2.0", "id": "x", "method": method, "params": params})
        answer = self.next()
        assert answer["id"] == "x"
        return answer

    def close(self) -> list[Any]:
        """Close stdin, and return the answers that still come."""
        self.stdin.close()
        return [json.loads(line) for line in self.stdout]

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(DEADLINE)
        self._errors.seek(0)
        self.stderr = self._errors.read()
        return code

    def kill(self) -> None:
        self._watchdog.cancel()
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        for stream in (self.stdin, self.stdout):
            with suppress(BrokenPipeError):
                stream.close()


@contextmanager
def lines(*arguments: str | Path, environment: dict[str, str] | None = None) -> Iterator[Lines]:
    """A process on these roots and options; it must not have told of a traceback."""
    with tempfile.TemporaryFile() as errors:
        started = Lines(errors, *arguments, environment=environment)
        try:
            yield started
        finally:
            started.kill()
    assert b"Traceback" not in started.stderr, started.stderr.decode()


@pytest.fixture(scope="module")
def actions() -> Iterator[Lines]:
    with lines(ACTIONS) as started:
        yield started


@pytest.mark.requirement("SP-3", "SP-4", "SP-5", "SP-10", "SP-11", "SP-12", "SP-16", "SP-18")
@each_row("name", ["list", "describe", "read"])
def test_the_requests_of_the_specification_have_its_answers(actions: Lines, name: str) -> None:
    golden = json.loads((GOLDEN / f"skills_protocol.{name}.json").read_text(encoding="utf-8"))
    actions.send(golden["request"])
    answer = actions.next()
    if name == "list":
        # The order must only be the same each time; the page shows no order that names, versions or kinds have.
        golden["response"]["result"]["skills"].sort(key=lambda each: each["name"])
    assert answer == golden["response"]
    assert list(answer["result"]) == list(golden["response"]["result"])


@pytest.mark.requirement("X-28", "SP-17", "SP-18", "SP-29")
def test_the_golden_session_is_answered_byte_for_byte(actions: Lines) -> None:
    text = (GOLDEN / "skills_protocol.session.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(text) > 30
    for request, expected in zip(text[::2], text[1::2], strict=True):
        actions.send(request.encode())
        assert actions.stdout.readline().decode().rstrip("\n") == expected, request


def test_every_line_has_its_answer_and_the_process_ends_with_its_input() -> None:
    with lines(FIXTURES) as started:
        for number in range(50):
            started.send({"jsonrpc": "2.0", "id": number, "method": "list_skills", "params": {"limit": 2}})
        for other in (b"", b"   ", {"jsonrpc": "2.0", "method": "list_skills"}, [], b"\xff\xfe"):
            started.send(other)
        started.stdin.write(b'{"jsonrpc":"2.0","id":50,"method":"load_skills_protocol_guide"}')  # no line end
        answers = started.close()
        assert started.end() == 0
    assert {each["id"] for each in answers if "result" in each} == set(range(51))
    assert sorted(each["error"]["code"] for each in answers if "error" in each) == [-32700, -32600]


def test_a_batch_is_one_line(actions: Lines) -> None:
    call = {"jsonrpc": "2.0", "method": "list_skills", "params": {"limit": 1}}
    actions.send([{**call, "id": 1}, call, {**call, "id": None}])
    answers = actions.next()
    assert [each["id"] for each in answers] == [1, None] and all("result" in each for each in answers)
    assert actions.ask("list_skills")["result"]["skills"]


def test_a_line_that_is_too_long_is_told_and_the_next_one_answered(actions: Lines) -> None:
    actions.send(b'{"jsonrpc":"2.0","id":1,"x":"' + b"a" * MAX_MESSAGE + b'"}')
    assert actions.next()["error"]["code"] == -32600
    assert actions.ask("list_skills")["result"]["skills"]


@each_row("way", [signal.SIGTERM, signal.SIGINT, "no reader", "no reader and a signal"])
def test_it_ends_although_stdin_stays_open(way: signal.Signals | str) -> None:
    guide = {"jsonrpc": "2.0", "id": 1, "method": "load_skills_protocol_guide"}
    with lines(FIXTURES) as started:
        started.ask("list_skills")
        if way == "no reader":
            started.stdout.close()
            started.send(guide)
        elif way == "no reader and a signal":
            started.send([guide] * 100)
            started.process.send_signal(signal.SIGTERM)
        else:
            started.process.send_signal(way)
        assert started.end() == 0


def test_an_edit_shows_at_once(tmp_path: Path) -> None:
    write(tmp_path / "thing", toml("thing"))
    with lines(tmp_path) as started:
        assert started.ask("describe_skill", name="thing")["result"]["skill"]["manifest"]["version"] == "1.0.0"
        (tmp_path / "thing" / "skill.toml").write_text(toml("thing", "1.1.0"))
        write_skill(tmp_path / "later")
        until, names = time.monotonic() + DEADLINE, set[tuple[str, str]]()
        while not {("thing", "1.1.0"), ("later", "0.0.0")} <= names:
            assert time.monotonic() < until
            names = {(each["name"], each["version"]) for each in started.ask("list_skills")["result"]["skills"]}


def test_without_a_watch_only_what_was_there_is_listed(tmp_path: Path) -> None:
    write_skill(tmp_path / "thing")
    with lines(tmp_path, "--no-watch") as started:
        before = started.ask("list_skills")["result"]
        write_skill(tmp_path / "later")
        assert started.ask("list_skills")["result"] == before


def test_a_broken_manifest_is_told_on_stderr_with_its_place(tmp_path: Path) -> None:
    write(tmp_path / "thing", b"name = ")
    with lines(tmp_path) as started:
        assert len(started.ask("list_skills")["result"]["skills"]) == 1
        assert (started.close(), started.end()) == ([], 0)
    assert re.search(rb"thing/skill.toml:1: error: it is not valid TOML.*\[manifest-syntax\]", started.stderr)


SHELL = 'entrypoint = "code/main.sh"'


def test_an_action_and_code_run_where_they_are_allowed(sandbox_mode: str) -> None:
    options = ["--allow-scripts", "--sandbox", sandbox_mode, "--allow-code"]
    options += ["--script-secret", "salesforce/leads-sync:SALESFORCE_API_KEY"]
    with lines(ACTIONS, *options, environment={"SALESFORCE_API_KEY": "k"}) as started:
        blob = started.ask("create_blob", content="name\na\n", kind="text/csv")["result"]["blob_id"]
        args = {"sheet_blob": blob, "env": "dev"}
        seen = started.ask("execute_skill", name="salesforce.leads.sync", args=args)["result"]
        assert seen["output"] == {"env": "dev", "leads": 1, "authorised": True}, seen
        seen = started.ask("run_code", language="python", code="print(6 * 7)")["result"]
        assert seen["output"] == 42, seen


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder for files of scripts, also of those of a root server, which are not root."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    return tmp_path / "shared"


def test_a_long_run_holds_up_nobody_and_its_answer_still_comes(tmp_path: Path, shared: Path, sandbox_mode: str) -> None:
    loop = f"while [ ! -e {shared}/stop ]; do sleep 0.05; done; echo 1"
    write(tmp_path / "root" / "thing", toml("thing", runtime=SHELL), code__main_sh=loop)
    options = ["--allow-scripts", "--sandbox", sandbox_mode, "--script-folder", shared]
    with lines(tmp_path / "root", *options) as started:
        started.send({"jsonrpc": "2.0", "id": "long", "method": "execute_skill", "params": {"name": "thing"}})
        assert started.ask("list_skills")["result"]["skills"]
        started.stdin.close()
        (shared / "stop").touch()
        answer = started.next()
        assert (answer["id"], answer["result"]["output"], started.end()) == ("long", 1, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="no poll there")
@pytest.mark.parametrize("way", ["a signal", "the client leaves"])
def test_what_runs_is_ended_with_the_process_and_leaves_nothing(
    tmp_path: Path, shared: Path, sandbox_mode: str, way: str
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    write(tmp_path / "root" / "thing", toml("thing", runtime=SHELL), code__main_sh=f"touch {shared}/begun; sleep 600")
    options = ["--allow-scripts", "--sandbox", sandbox_mode, "--script-folder", str(shared)]
    with lines(tmp_path / "root", *options, environment={"TMPDIR": str(temporary)}) as started:
        params = {"name": "thing", "timeout_ms": 600_000}
        started.send({"jsonrpc": "2.0", "id": 1, "method": "execute_skill", "params": params})
        until = time.monotonic() + DEADLINE
        while not (shared / "begun").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        if way == "a signal":
            started.process.send_signal(signal.SIGTERM)
        else:
            started.stdin.close()
            started.stdout.close()
        assert started.end() == 0
    assert not [*temporary.iterdir()]


OPEN = ["--allow-scripts", "--sandbox", "off", "--script-secret"]


@each_row(("options", "said"), [
    (["--allow-code"], "--allow-code is for scripts; give --allow-scripts too"),
    (["--script-secret", "HOME"], "--script-secret is for scripts"),
    ([*OPEN, "a/b:NOT_SET"], "no such variable in the server's environment"),
    ([*OPEN, "a/b:LD_PRELOAD"], "programs that start the sandbox"),
    ([*OPEN, "HOME"], "--script-secret HOME: write SKILL:VARIABLE"), (["/nowhere"], "no such file or folder"),
])  # fmt: skip
def test_wrong_usage_is_one_line(options: list[str], said: str) -> None:
    with lines(ACTIONS, *options, environment={"LD_PRELOAD": ""}) as started:
        assert (started.close(), started.end()) == ([], 2)
    assert said in started.stderr.decode() and started.stderr.count(b"\n") == 1


def test_the_guide_is_in_the_package() -> None:
    code = "from mcp_skills_server.rpc import guide, launcher; print(guide.described()[0].version.text, launcher)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd="/").startswith(b"0.1.0 ")
