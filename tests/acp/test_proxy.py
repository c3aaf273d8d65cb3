"""The ACP proxy process: relay between pipes, backpressure, and shutdown."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

import forkserver
from mcp_skills_server.acp import proxy
from mcp_skills_server.acp.proxy import AgentProcess, NotStartedError
from tables import each_row
from web.http_wire import patched, wait_until
from wire import COMMAND, DEADLINE, write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes and signals")
ECHO = """
import os
while chunk := os.read(0, 1 << 16):
    view = memoryview(chunk)
    while view:
        view = view[os.write(1, view):]
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@contextmanager
def running_proxy(
    agent: Sequence[str], *options: str | Path, program: Sequence[str] = COMMAND, **popen: Any
) -> Iterator[Any]:
    """Yield a proxy process whose stdin, stdout and stderr are pipes by default."""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [*program, "acp", *map(str, options), "--", *agent]
    process = forkserver.Popen(command, **{**streams, **popen})
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def run_proxy(raw: bytes, agent: Sequence[str], *options: str | Path, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a proxy on this input, with enough grace for a slow agent."""
    with running_proxy(agent, "--grace", str(DEADLINE), *options, **how) as process:
        stdout, stderr = process.communicate(raw, DEADLINE)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended. A zombie counts, since its parent may not be this process."""
    deadline = time.monotonic() + DEADLINE
    with suppress(ProcessLookupError, FileNotFoundError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, f"process {pid} is still running"
            select.select([], [], [], 0.01)


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def write_forever(stream: IO[bytes]) -> None:
    while True:
        os.write(stream.fileno(), b"x" * 4096)


def read_line(stream: IO[bytes]) -> bytes:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(stream.readline()), daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert found, "no line before the deadline"
    return found[0]


# Relay


def test_proxy_without_session_relays_bytes_unchanged(tmp_path: Path) -> None:
    setup = b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}\n'
    params = {"sessionId": "s", "update": {"sessionUpdate": "available_commands_update"}}
    update = json.dumps({"method": "session/update", "params": params}).encode() + b"\n"
    others = b"".join([
        b"\n",
        b"\0" * 70_000,
        b'{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}\r\n',
        b"\xff\xfe half a line",
        update,
        b'{"id":1,"method":"session/new","x":"' + b"x" * (20 << 20) + b'"}\n',
        setup.replace(b'"/"', b'"' + b"/" * (256 << 10) + b'"'),  # longer than `_MAX_SETUP`
        b"last",
    ])  # fmt: skip
    write_skill(tmp_path / "one")
    for raw, roots in ((setup + others, []), (others, [tmp_path])):
        done = run_proxy(raw, python(ECHO), *roots)
        assert (done.stdout, done.returncode, done.stderr) == (raw, 0, b"")


def test_proxy_relays_over_a_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, running_proxy(python(ECHO), stdin=theirs, stdout=theirs) as process:
        theirs.close()
        ours.settimeout(DEADLINE)
        ours.sendall(b"hello")
        assert ours.recv(9) == b"hello"
        ours.shutdown(socket.SHUT_WR)
        assert ours.recv(9) == b""
        assert process.wait(DEADLINE) == 0


# Backpressure


def test_flooding_agent_is_blocked_without_using_memory(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    code = "import os\nwhile True:\n    os.write(1, b'x' * 65000 + b'\\n')"
    with running_proxy(python(code), tmp_path) as process:
        for _ in range(500):
            process.stdout.read(65001)
        memory = Path(f"/proc/{process.pid}/statm")
        before = int(memory.read_text().split()[1])
        for _ in range(5000):  # a third of a gigabyte
            process.stdout.read(65001)
        pages = int(memory.read_text().split()[1]) - before
        assert pages * os.sysconf("SC_PAGE_SIZE") < 24 << 20


def test_agent_that_reads_nothing_is_terminated_when_the_editor_leaves() -> None:
    code = "import os, time\nos.write(1, b'%d\\n' % os.getpid())\nwhile True: time.sleep(9)"
    with running_proxy(python(code), "--grace", "0.2") as process:
        pid = int(read_line(process.stdout))
        os.set_blocking(process.stdin.fileno(), False)
        with suppress(BlockingIOError):
            write_forever(process.stdin)
        process.stdin.close()
        assert process.wait(DEADLINE) == 128 + signal.SIGTERM
        wait_until_gone(pid)


def bytes_in(pipe: IO[bytes]) -> int:
    """Return the number of bytes that can be read at once."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def flooding_agent(lines: int, done: Path) -> list[str]:
    """Return the command of an agent that writes so many lines and then creates the file `done`."""
    write = f"for _ in range({lines}): os.write(1, b'x' * 999 + b'\\n')"
    return python(f"import os\n{write}\nopen({str(done)!r}, 'w')")


@each_row(
    ("lines", "end", "roots"),  # 100 lines fit into two pipes, so that the agent can end
    [(100, signal.SIGTERM, 0), (10**9, signal.SIGHUP, 1), (100, "close", 1), (10**9, "close", 0)],
)
def test_editor_that_reads_nothing_does_not_delay_the_exit(
    tmp_path: Path, lines: int, end: signal.Signals | str, roots: int
) -> None:
    done = tmp_path / "done"
    write_skill(tmp_path / "skills" / "one")
    options = [*[tmp_path / "skills"] * roots, "--grace", "0.1"]
    with running_proxy(flooding_agent(lines, done), *options) as process:
        assert select.select([process.stdout], [], [], DEADLINE)[0]
        if lines == 100:
            wait_until(done.exists)
        if isinstance(end, str):
            process.stdin.close()
        else:
            process.send_signal(end)
        process.wait(DEADLINE)


def test_slow_editor_receives_all_output_after_it_closes_stdin(tmp_path: Path) -> None:
    """Each small read extends the grace period, which is shorter than the read of all output."""
    with running_proxy(flooding_agent(200, tmp_path / "done"), "--grace", "6") as process:
        wait_until(lambda: bytes_in(process.stdout) > 1 << 15)  # the pipe fills; the rest is not read
        process.stdin.close()
        received = process.stdout.read(1 << 16)
        for _ in range(16):
            received += process.stdout.read(4096)
            select.select([], [], [], 0.4)
        assert len(received + process.stdout.read()) == 200_000
        assert process.wait(DEADLINE) == 0


# Shutdown


@each_row(("code", "exit_code"), [
    ("print('last', flush=True); raise SystemExit(255)", 255),
    ("import os; print('last', flush=True); os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
    ("import os\nwhile os.read(0, 99): pass\nprint('last'); raise SystemExit(5)", 5),
])  # fmt: skip
def test_exit_code_of_the_agent_is_returned(code: str, exit_code: int) -> None:
    done = run_proxy(b"hello", python(code))
    assert (done.stdout, done.returncode, done.stderr) == (b"last\n", exit_code, b"")


def test_missing_agent_is_one_line_and_exit_code_127(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder on PATH with the agent's name cannot be executed, but the agent itself is missing.
    (tmp_path / "no-such-agent").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for command, reason in (("no-such-agent", errno.ENOENT), (str(tmp_path), errno.EACCES)):
        done = run_proxy(b"x", [command], tmp_path)
        assert (done.stdout, done.returncode, done.stderr.count(b"\n")) == (b"", 127, 1)
        message = f"{command}: the agent cannot be started: {os.strerror(reason)}\n"
        assert done.stderr.decode().endswith(message)
    with pytest.raises(NotStartedError, match="the agent cannot be started: embedded null byte"):
        AgentProcess(["an\0agent"])


def test_agent_that_still_writes_is_not_terminated() -> None:
    code = "import os, time\nwhile os.read(0, 99): pass\nfor _ in range(25):\n    os.write(1, b'.'); time.sleep(0.1)"
    done = run_proxy(b"hello", python(code), "--grace", "2")
    assert (done.stdout, done.returncode, done.stderr) == (b"." * 25, 0, b"")


IGNORES_SIGNALS = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(9)"])
os.write(1, b"%d %d\\n" % (os.getpid(), child.pid))
while True: time.sleep(9)
"""


def test_agent_that_ignores_signals_is_killed_with_its_child() -> None:
    with ExitStack() as stack:  # at once, since each takes its grace periods
        ends = ("close stdin", "close both", "SIGTERM")
        command = python(IGNORES_SIGNALS)
        proxies = {end: stack.enter_context(running_proxy(command, "--grace", "0.1")) for end in ends}
        pids = [int(pid) for process in proxies.values() for pid in read_line(process.stdout).split()]
        proxies["SIGTERM"].send_signal(signal.SIGTERM)
        proxies["close stdin"].stdin.close()
        proxies["close both"].stdin.close()
        proxies["close both"].stdout.close()
        codes = {end: process.wait(DEADLINE) for end, process in proxies.items()}
        assert codes == dict.fromkeys(ends, 128 + signal.SIGKILL)
        for pid in pids:
            wait_until_gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG exists only on Linux")
def test_agent_ends_when_the_proxy_is_killed() -> None:
    code = "import os, time\nos.write(1, b'%d\\n' % os.getpid())\nwhile True: time.sleep(9)"
    with running_proxy(python(code)) as process:
        pid = int(read_line(process.stdout))
        process.kill()
        wait_until_gone(pid)


CATCHES_SIGNAL = """
import os, signal, sys, time
def end(*_):
    os.write(1, b"caught\\n")
    os._exit(9)
signal.signal({number}, end)
os.write(1, b"ready\\n")
while True: time.sleep(9)
"""


def test_stopped_process_handles_sigterm_before_it_is_killed() -> None:
    """Test the agent, and an orphan of it that ignores SIGHUP, which Linux sends to stopped orphans."""
    catches = CATCHES_SIGNAL.format(number=int(signal.SIGTERM))
    stopped = catches.replace("while", "os.kill(os.getpid(), signal.SIGSTOP)\nwhile")
    orphan = f"import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n{stopped}"
    start = f"child = subprocess.Popen([sys.executable, '-c', {orphan!r}])"
    wait = "os.waitpid(child.pid, os.WUNTRACED)"
    # A handler on a busy machine may need more than the second before SIGKILL.
    patient = patched("from mcp_skills_server.acp import proxy\nproxy._KILL_S = 5")
    done = run_proxy(b"", python(f"import os, subprocess, sys\n{start}\n{wait}"), program=patient)
    assert (done.stdout, done.returncode, done.stderr) == (b"ready\ncaught\n", 0, b"")
    with running_proxy(python(stopped), "--grace", "0.1", program=patient) as process:
        assert read_line(process.stdout) == b"ready\n"
        process.stdin.close()
        assert read_line(process.stdout) == b"caught\n"
        assert process.wait(DEADLINE) == 9


def test_orphan_that_ignores_sigterm_is_killed() -> None:
    code = (
        "import os, signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(1, b'%d' % subprocess.Popen(['sleep', '60']).pid)"
    )
    done = run_proxy(b"", python(code))
    assert done.returncode == 0
    wait_until_gone(int(done.stdout))


def test_each_signal_ends_the_agent_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_WINDOWS", True)
    agent = AgentProcess(["cat"])
    agent.sweep()
    assert agent._process.args[0].endswith("/cat")  # the full path, as of `npx.cmd` for `npx`
    assert not agent.ended.is_set()
    agent.signal(signal.SIGCONT)
    assert agent.wait() == 128 + signal.SIGTERM
    agent.close_stdin()
    agent.close_stdout()


def test_daemon_with_the_agents_pipe_may_write_but_not_delay_the_exit() -> None:
    code = (
        "import os, subprocess\n"
        "options = {'start_new_session': True, 'stderr': subprocess.DEVNULL}\n"
        "command = ['sh', '-c', 'sleep 0.2; echo late; exec sleep 60']\n"
        "os.write(1, b'%d\\n' % subprocess.Popen(command, **options).pid)"
    )
    done = run_proxy(b"", python(code))
    pid, *lines = done.stdout.splitlines()
    os.kill(int(pid), signal.SIGKILL)
    assert lines == [b"late"]
    assert done.returncode == 0


@each_row("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_is_forwarded_to_the_agent(number: signal.Signals) -> None:
    code = CATCHES_SIGNAL.format(number=int(number))
    with running_proxy(python(code), "--grace", str(DEADLINE)) as process:
        assert read_line(process.stdout) == b"ready\n"
        process.send_signal(number)
        assert process.stdout.read() == b"caught\n"
        assert process.wait(DEADLINE) == 9


def test_agent_that_closes_its_stdin_is_awaited_without_using_cpu() -> None:
    code = (
        "import os, time\nos.close(0); os.write(1, b'closed\\n')\ntime.sleep(0.6)\n"
        "os.write(1, b'awake\\n'); time.sleep(0.2); os.write(1, b'done\\n')"
    )
    with running_proxy(python(code), "--grace", "0.1") as process:
        assert read_line(process.stdout) == b"closed\n"
        with pytest.raises(BrokenPipeError):
            write_forever(process.stdin)
        before = cpu_seconds(process.pid)
        assert read_line(process.stdout) == b"awake\n"
        assert cpu_seconds(process.pid) - before < 0.1
        assert process.stdout.read() == b"done\n"
        assert process.wait(DEADLINE) == 0


def test_agent_gets_a_broken_pipe_when_the_editor_closes_stdout() -> None:
    code = "import os\nos.write(1, b'%d\\n' % os.getpid())\nwhile True: os.write(1, b'x')"
    with running_proxy(python(code)) as process:
        pid = int(read_line(process.stdout))
        process.stdout.close()
        assert process.wait(DEADLINE) == 1  # the agent's own BrokenPipeError
        wait_until_gone(pid)


# Skills

AGENT = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "session/new":
        answer = {"id": message["id"], "result": {"sessionId": "s"}}
        os.write(1, json.dumps(answer).encode() + b"\\n")
    elif message["method"] == "half":
        os.write(1, b'{"half":')
    elif message["method"] == "rest":
        os.write(1, b'1}\\n{')
"""


def send_request(process: Any, method: str) -> None:
    message = {"id": 1, "method": method, "params": {"mcpServers": []}}
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def open_session(process: Any) -> None:
    send_request(process, "session/new")
    assert json.loads(read_line(process.stdout))["result"] == {"sessionId": "s"}


def read_skill_names(process: Any) -> list[str]:
    """Read the next line, an update, and return its skill names."""
    return json.loads(read_line(process.stdout))["params"]["update"]["_meta"]["availableSkills"]


@pytest.mark.requirement("X-34")
def test_update_is_not_inserted_within_a_line_of_the_agent(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with running_proxy(python(AGENT), tmp_path) as process:
        open_session(process)
        assert read_skill_names(process) == ["one"]
        send_request(process, "half")
        assert os.read(process.stdout.fileno(), 99) == b'{"half":'
        write_skill(tmp_path / "two")
        assert not select.select([process.stdout], [], [], 0.3)[0]
        send_request(process, "rest")
        assert read_line(process.stdout) == b"1}\n"
        assert read_skill_names(process) == ["one", "two"]
        assert process.stdout.read(1) == b"{"


def test_unreadable_catalogue_is_reported_once_and_messages_pass(tmp_path: Path) -> None:
    with running_proxy(python(ECHO), tmp_path / "missing") as process:
        line = read_line(process.stderr)
        assert b"missing: no such file or folder" in line
        assert b"Error: " not in line
        deadline = time.monotonic() + proxy._OPENING_S
        for _ in range(3):
            send_request(process, "session/new")
            assert json.loads(read_line(process.stdout))["params"] == {"mcpServers": []}
        assert time.monotonic() < deadline, "a session waited for a catalogue that cannot be read"
        process.stdin.close()
        assert process.wait(DEADLINE) == 0
        assert process.stderr.read() == b""


BROKEN_PROXY = """
import sys
from mcp_skills_server.acp import conversation, proxy
from mcp_skills_server import Registry
from mcp_skills_server.catalog.views import Views
def fail(*_): raise RuntimeError("a bug\\nof two lines")
for name in ("to_agent", "after_agent_lines", "announce"):
    setattr(conversation.Conversation, name, fail)
registry = Registry([sys.argv[1]])
offer = proxy.SkillsOffer(["x"], lambda: (Views(registry), registry.load))
sys.exit(proxy.run([sys.executable, "-c", sys.argv[2]], offer, grace=2))
"""


def test_bug_in_the_proxy_loses_no_byte_and_is_logged_once_per_place(tmp_path: Path) -> None:
    raw = b'"session/new" "result"\n' * 50_000
    command = [*python(BROKEN_PROXY), str(tmp_path), ECHO]
    done = subprocess.run(command, input=raw, capture_output=True, timeout=DEADLINE, check=False)
    assert done.stdout == raw
    assert done.returncode == 0
    lines = done.stderr.decode().splitlines()
    assert len(lines) in {1, 2}
    assert len(set(lines)) == len(lines)
    for line in lines:
        assert "RuntimeError: a bug of two lines" in line


def test_shadowed_skill_is_reported_once_on_stderr(tmp_path: Path) -> None:
    write_skill(tmp_path / "a" / "same")
    write_skill(tmp_path / "b" / "same")
    with running_proxy(python(AGENT), tmp_path) as process:
        assert b"b/same is not announced to the editor" in read_line(process.stderr)
        open_session(process)
        assert read_skill_names(process) == ["same"]
        write_skill(tmp_path / "more")
        assert read_skill_names(process) == ["more", "same"]
        process.stdin.close()
        assert process.wait(DEADLINE) == 0
        assert process.stderr.read() == b""


def test_skills_of_changed_grants_are_announced(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_skill(tmp_path / "skills" / name)
    config = tmp_path / "config.toml"
    config.write_text('[[grant]]\nwho = ["*"]\nskills = ["one"]\n')
    with running_proxy(python(AGENT), "--config", config, tmp_path / "skills") as process:
        open_session(process)
        assert read_skill_names(process) == ["one"]
        config.write_text('[[grant]]\nwho = ["*"]\nskills = ["*"]\n')
        assert read_skill_names(process) == ["one", "two"]
