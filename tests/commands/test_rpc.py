"""`rpc` as a process: JSON-RPC lines over stdin and stdout."""

from __future__ import annotations

import json
import os
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
from rpc.build import ACTIONS, toml, write
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, ROOT, write_skill

GOLDEN = ROOT / "tests" / "golden"


class RpcProcess(forkserver.Popen):
    """A running `rpc` command; `said` is its stderr once it has ended."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    said = b""

    def send(self, message: Any) -> None:
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.stdin.write(raw + b"\n")
        self.stdin.flush()

    def read(self) -> Any:
        return json.loads(self.stdout.readline())

    def call(self, method: str, **params: Any) -> Any:
        """Send a request, and return its response."""
        self.send({"jsonrpc": "2.0", "id": "x", "method": method, "params": params})
        answer = self.read()
        assert answer["id"] == "x"
        return answer

    def close(self) -> list[Any]:
        """Close stdin, and return the remaining responses."""
        self.stdin.close()
        return [json.loads(line) for line in self.stdout]


@contextmanager
def rpc_process(*arguments: str | Path, environment: dict[str, str] | None = None) -> Iterator[RpcProcess]:
    """Run `rpc` with these roots and options; fail if it prints a traceback."""
    with tempfile.TemporaryFile() as errors:
        rpc = RpcProcess(
            [*COMMAND, "rpc", *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            cwd=ROOT, env={**os.environ, **(environment or {})},
        )  # fmt: skip
        # Without it, a test could wait for a line forever.
        watchdog = threading.Timer(3 * DEADLINE, rpc.kill)
        watchdog.start()
        try:
            yield rpc
        finally:
            watchdog.cancel()
            rpc.kill()
            with suppress(BrokenPipeError), rpc:
                pass
            errors.seek(0)
            rpc.said = errors.read()
    assert b"Traceback" not in rpc.said, rpc.said.decode()


@pytest.fixture(scope="module")
def actions() -> Iterator[RpcProcess]:
    with rpc_process(ACTIONS) as rpc:
        yield rpc


@pytest.mark.requirement("SP-3", "SP-4", "SP-5", "SP-10", "SP-11", "SP-12", "SP-16", "SP-18", "SP-23", "SP-24")
@each_row("name", ["list", "describe", "read"])
def test_requests_of_the_specification_get_its_responses(actions: RpcProcess, name: str) -> None:
    golden = json.loads((GOLDEN / f"skills_protocol.{name}.json").read_text(encoding="utf-8"))
    actions.send(golden["request"])
    answer = actions.read()
    if name == "list":
        # The specification sets no order; this server sorts by name.
        golden["response"]["result"]["skills"].sort(key=lambda each: each["name"])
    assert answer == golden["response"]
    assert list(answer["result"]) == list(golden["response"]["result"])


@pytest.mark.requirement("SP-3", "SP-9", "SP-10", "SP-17", "SP-18", "SP-21", "SP-22", "SP-29", "X-24", "X-28")
def test_golden_session_is_answered_byte_for_byte(actions: RpcProcess) -> None:
    text = (GOLDEN / "skills_protocol.session.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(text) > 30
    for request, expected in zip(text[::2], text[1::2], strict=True):
        actions.send(request.encode())
        assert actions.stdout.readline().decode().rstrip("\n") == expected, request


def test_every_request_is_answered_before_the_end_of_input_ends_the_process() -> None:
    with rpc_process(FIXTURES) as rpc:
        for number in range(50):
            rpc.send({"jsonrpc": "2.0", "id": number, "method": "list_skills", "params": {"limit": 2}})
        for other in (b"", b"   ", {"jsonrpc": "2.0", "method": "list_skills"}, [], b"\xff\xfe"):
            rpc.send(other)
        rpc.stdin.write(b'{"jsonrpc":"2.0","id":50,"method":"load_skills_protocol_guide"}')  # no line end
        answers = rpc.close()
        assert rpc.wait() == 0
    assert {each["id"] for each in answers if "result" in each} == set(range(51))
    assert sorted(each["error"]["code"] for each in answers if "error" in each) == [-32700, -32600]


def test_line_over_8_mib_is_an_error_and_the_next_one_is_answered(actions: RpcProcess) -> None:
    message = b'{"jsonrpc":"2.0","id":1,"method":"list_skills"}'
    actions.send(message.ljust(8 << 20))
    assert actions.read()["result"]["skills"]
    actions.send(message.ljust((8 << 20) + 1))
    assert actions.read()["error"]["code"] == -32600
    assert actions.call("list_skills")["result"]["skills"]


@each_row("reason", [signal.SIGTERM, signal.SIGINT, "closed stdout", "signal while stdout is not read"])
def test_process_ends_while_stdin_is_open(reason: signal.Signals | str) -> None:
    guide = {"jsonrpc": "2.0", "id": 1, "method": "load_skills_protocol_guide"}
    with rpc_process(FIXTURES) as rpc:
        rpc.call("list_skills")
        if reason == "closed stdout":
            rpc.stdout.close()
            rpc.send(guide)
        elif reason == "signal while stdout is not read":
            rpc.send([guide] * 100)
            rpc.send_signal(signal.SIGTERM)
        else:
            rpc.send_signal(reason)
        assert rpc.wait() == 0


def test_edit_is_visible_in_responses(tmp_path: Path) -> None:
    write(tmp_path / "thing", toml("thing"))
    with rpc_process(tmp_path) as rpc:
        assert rpc.call("describe_skill", name="thing")["result"]["skill"]["manifest"]["version"] == "1.0.0"
        (tmp_path / "thing" / "skill.toml").write_text(toml("thing", "1.1.0"))
        write_skill(tmp_path / "later")
        deadline = time.monotonic() + DEADLINE
        expected = {"thing": "1.1.0", "later": "0.0.0"}
        versions: dict[str, str] = {}
        while not expected.items() <= versions.items():
            assert time.monotonic() < deadline
            listed = rpc.call("list_skills")["result"]["skills"]
            versions = {each["name"]: each["version"] for each in listed}


SHELL = 'entrypoint = "code/main.sh"'


def test_allowed_action_and_code_are_run(sandbox_mode: str) -> None:
    options = ["--allow-scripts", "--sandbox", sandbox_mode, "--allow-code"]
    options += ["--script-secret", "salesforce/leads-sync:SALESFORCE_API_KEY"]
    with rpc_process(ACTIONS, *options, environment={"SALESFORCE_API_KEY": "k"}) as rpc:
        blob = rpc.call("create_blob", content="name\na\n", kind="text/csv")["result"]["blob_id"]
        args = {"sheet_blob": blob, "env": "dev"}
        result = rpc.call("execute_skill", name="salesforce.leads.sync", args=args)["result"]
        assert result["output"] == {"env": "dev", "leads": 1, "authorised": True}, result
        result = rpc.call("run_code", language="python", code="print(6 * 7)")["result"]
        assert result["output"] == 42, result


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that scripts can write, also if they run as another user than the server."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    return tmp_path / "shared"


def test_long_run_blocks_no_other_request_and_is_answered(tmp_path: Path, shared: Path, sandbox_mode: str) -> None:
    loop = f"while [ ! -e {shared}/stop ]; do sleep 0.05; done; echo 1"
    write(tmp_path / "root" / "thing", toml("thing", runtime=SHELL), code__main_sh=loop)
    options = ["--allow-scripts", "--sandbox", sandbox_mode, "--script-folder", shared]
    with rpc_process(tmp_path / "root", *options) as rpc:
        rpc.send({"jsonrpc": "2.0", "id": "long", "method": "execute_skill", "params": {"name": "thing"}})
        assert rpc.call("list_skills")["result"]["skills"]
        rpc.stdin.close()
        (shared / "stop").touch()
        answer = rpc.read()
        assert (answer["id"], answer["result"]["output"], rpc.wait()) == ("long", 1, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="no poll there")
@pytest.mark.parametrize("reason", ["signal", "disconnect"])
def test_running_script_ends_with_the_process_and_leaves_no_files(
    tmp_path: Path, shared: Path, sandbox_mode: str, reason: str
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    write(tmp_path / "root" / "thing", toml("thing", runtime=SHELL), code__main_sh=f"touch {shared}/begun; sleep 600")
    options = ["--allow-scripts", "--sandbox", sandbox_mode, "--script-folder", str(shared)]
    with rpc_process(tmp_path / "root", *options, environment={"TMPDIR": str(temporary)}) as rpc:
        params = {"name": "thing", "timeout_ms": 600_000}
        rpc.send({"jsonrpc": "2.0", "id": 1, "method": "execute_skill", "params": params})
        deadline = time.monotonic() + DEADLINE
        while not (shared / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if reason == "signal":
            rpc.send_signal(signal.SIGTERM)
        else:
            rpc.stdin.close()
            rpc.stdout.close()
        assert rpc.wait() == 0
    assert not [*temporary.iterdir()]
