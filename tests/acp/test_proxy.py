"""The proxy as a process between pipes: a pipe where nothing is to be added, and an end in whatever way it comes."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

import forkserver
from mcp_skills_server.acp import proxy
from mcp_skills_server.acp.proxy import AgentProcess, NotStartedError
from tables import each_row
from wire import COMMAND, DEADLINE, write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs processes and signals as POSIX has them")
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
def proxied(agent: Sequence[str], *words: str | Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    how = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE), **how}
    process = forkserver.Popen([*COMMAND, "acp", *map(str, words), "--", *agent], **how)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def through(raw: bytes, agent: Sequence[str], *words: str | Path) -> tuple[bytes, int, str]:
    """What comes out of the proxy when this goes in: bytes, exit code and stderr. The agent may take its time."""
    with proxied(agent, "--grace", str(DEADLINE), *words) as process:
        out, err = process.communicate(raw, DEADLINE)
        return out, process.returncode, err.decode()


def gone(pid: int) -> None:
    """Wait until there is no such process, or only a zombie of somebody else's."""
    deadline = time.monotonic() + DEADLINE
    with suppress(ProcessLookupError, FileNotFoundError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, f"process {pid} is still there"
            select.select([], [], [], 0.01)


def pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    return process.stdin, process.stdout, process.stderr


def write_for_ever(stream: IO[bytes]) -> None:
    while True:
        os.write(stream.fileno(), b"x" * 4096)


def read_line(stream: IO[bytes]) -> bytes:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(stream.readline()), daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert found, "nothing was said in time"
    return found[0]


# A pipe


def test_without_a_session_it_is_byte_for_byte_a_pipe(tmp_path: Path) -> None:
    """With roots, too, where nothing begins a session."""
    setup = b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}\n'
    others = [
        b"\n", b"\0" * 70_000, b'{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}\r\n', b"\xff\xfe half a line",
        b'{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"available_commands_update"}}}\n',
        b'{"id":1,"method":"session/new","x":"' + b"x" * (20 << 20) + b'"}\n',
        setup.replace(b'"/"', b'"' + b"/" * (256 << 10) + b'"'), b"last",  # too long for skills
    ]  # fmt: skip
    write_skill(tmp_path / "one")
    for raw, roots in ((b"".join([setup, *others]), []), (b"".join(others), [tmp_path])):
        assert through(raw, python(ECHO), *roots) == (raw, 0, "")


def test_bytes_pass_at_once_and_not_by_the_line() -> None:
    with proxied(python(ECHO)) as process:
        stdin, stdout, _ = pipes(process)
        for byte in b"ab":
            os.write(stdin.fileno(), bytes([byte]))
            assert select.select([stdout], [], [], DEADLINE)[0]
            assert os.read(stdout.fileno(), 9) == bytes([byte])


def test_the_agent_has_our_environment_directory_and_stderr(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ['GIVEN']); print('told', file=sys.stderr)"
    with proxied(python(code), cwd=tmp_path, env={**os.environ, "GIVEN": "x"}) as process:
        assert process.communicate(timeout=DEADLINE) == (f"{tmp_path} x\n".encode(), b"told\n")


def test_sockets_do_as_well_as_pipes() -> None:
    ours, theirs = socket.socketpair()
    with ours, proxied(python(ECHO), stdin=theirs, stdout=theirs) as process:
        theirs.close()
        ours.settimeout(DEADLINE)
        ours.sendall(b"hello")
        assert ours.recv(9) == b"hello"
        ours.shutdown(socket.SHUT_WR)
        assert ours.recv(9) == b"" and process.wait(DEADLINE) == 0


# Who does not read, and who does not answer


def test_an_agent_that_floods_is_held_up_and_fills_no_memory(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    code = "import os\nwhile True:\n    os.write(1, b'x' * 65000 + b'\\n')"
    with proxied(python(code), tmp_path) as process:
        _, stdout, _ = pipes(process)
        for _ in range(500):
            stdout.read(65001)
        memory = Path(f"/proc/{process.pid}/statm")
        before = int(memory.read_text().split()[1])
        for _ in range(5000):  # a third of a gigabyte
            stdout.read(65001)
        assert (int(memory.read_text().split()[1]) - before) * os.sysconf("SC_PAGE_SIZE") < 24 << 20


def test_an_agent_that_reads_nothing_holds_up_the_editor_and_not_the_other_direction() -> None:
    code = "import os, time\nos.write(1, b'begun\\n')\nwhile True: os.write(1, b'.\\n'); time.sleep(0.05)"
    with proxied(python(code)) as process:
        stdin, stdout, _ = pipes(process)
        assert read_line(stdout) == b"begun\n"
        os.set_blocking(stdin.fileno(), False)
        sent = 0
        with suppress(BlockingIOError):
            while sent < 8 << 20:
                sent += os.write(stdin.fileno(), b"y" * 65536)
                select.select([], [stdin], [], 0.2)
        assert sent < 1 << 20  # two pipes full, and what is on the way
        assert read_line(stdout) == b".\n"


def test_an_editor_that_goes_while_the_agent_reads_nothing_leaves_no_process() -> None:
    code = "import os, time\nos.write(1, b'%d\\n' % os.getpid())\nwhile True: time.sleep(9)"
    with proxied(python(code), "--grace", "0.2") as process:
        stdin, stdout, _ = pipes(process)
        pid = int(read_line(stdout))
        os.set_blocking(stdin.fileno(), False)
        with suppress(BlockingIOError):
            write_for_ever(stdin)
        stdin.close()
        assert process.wait(DEADLINE) == 128 + signal.SIGTERM
        gone(pid)


def flood(lines: int, done: Path) -> list[str]:
    return python(f"import os\nfor _ in range({lines}): os.write(1, b'x' * 999 + b'\\n')\nopen({str(done)!r}, 'w')")


@each_row(
    ("lines", "end", "roots"),  # 100 lines are what two pipes hold, so that the agent ends
    [(100, signal.SIGTERM, 0), (10**9, signal.SIGHUP, 1), (100, "closed", 1), (10**9, "closed", 0)],
)
def test_a_deaf_editor_cannot_delay_the_end(tmp_path: Path, lines: int, end: signal.Signals | str, roots: int) -> None:
    done = tmp_path / "done"
    write_skill(tmp_path / "skills" / "one")
    with proxied(flood(lines, done), *[tmp_path / "skills"] * roots, "--grace", "0.1") as process:
        stdin, stdout, _ = pipes(process)
        assert select.select([stdout], [], [], DEADLINE)[0]
        deadline = time.monotonic() + DEADLINE
        while lines == 100 and not done.exists():
            assert time.monotonic() < deadline
            select.select([], [], [], 0.01)
        if isinstance(end, str):
            stdin.close()
        else:
            process.send_signal(end)
        process.wait(DEADLINE)


def test_an_editor_that_reads_slowly_gets_everything(tmp_path: Path) -> None:
    with proxied(flood(300, tmp_path / "done"), "--grace", "5") as process:
        stdin, stdout, _ = pipes(process)
        select.select([], [], [], 1)  # longer than anything lingers, and it is there yet
        heard = os.read(stdout.fileno(), 20_000)
        stdin.close()
        while piece := os.read(stdout.fileno(), 20_000):
            heard += piece
            select.select([], [], [], 0.1)
        assert len(heard) == 300_000 and process.wait(DEADLINE) == 0


# Ends


@each_row(("code", "exit_code"), [
    ("print('last', flush=True); raise SystemExit(0)", 0), ("print('last', flush=True); raise SystemExit(255)", 255),
    (f"import os; print('last', flush=True); os.kill(os.getpid(), {int(signal.SIGHUP)})", 128 + signal.SIGHUP),
    (f"import os; print('last', flush=True); os.kill(os.getpid(), {int(signal.SIGKILL)})", 128 + signal.SIGKILL),
    ("import os\nwhile os.read(0, 99): pass\nprint('last'); raise SystemExit(5)", 5),
])  # fmt: skip
def test_the_end_of_the_agent_is_handed_on(code: str, exit_code: int) -> None:
    assert through(b"hello", python(code)) == (b"last\n", exit_code, "")


def test_an_agent_that_cannot_be_started_is_one_line_and_127(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is found on the way there and cannot be run, as in a folder that may not be entered, is not what was missed.
    (tmp_path / "no-such-agent").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for command, reason in (("no-such-agent", errno.ENOENT), (str(tmp_path), errno.EACCES)):
        out, code, err = through(b"x", [command], tmp_path)
        assert (out, code, err.count("\n")) == (b"", 127, 1)
        assert err.endswith(f"{command}: the agent cannot be started: {os.strerror(reason)}\n")
    with pytest.raises(NotStartedError, match="the agent cannot be started: embedded null byte"):
        AgentProcess(["an\0agent"])


def test_an_agent_that_still_talks_is_not_cut_off() -> None:
    code = "import os, time\nwhile os.read(0, 99): pass\nfor _ in range(12):\n    os.write(1, b'.'); time.sleep(0.1)"
    assert through(b"hello", python(code), "--grace", "0.6") == (b"." * 12, 0, "")


STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(9)"])
os.write(1, b"%d %d\\n" % (os.getpid(), child.pid))
while True: time.sleep(9)
"""


@each_row("end", ["stdin", "both", signal.SIGTERM])
def test_an_editor_that_ends_leaves_no_process_however_stubborn_the_agent(end: signal.Signals | str) -> None:
    with proxied(python(STUBBORN), "--grace", "0.1") as process:
        stdin, stdout, _ = pipes(process)
        pids = [int(each) for each in read_line(stdout).split()]
        if isinstance(end, str):
            stdin.close()
            if end == "both":
                stdout.close()
        else:
            process.send_signal(end)
        assert process.wait(DEADLINE) == 128 + signal.SIGKILL
        for pid in pids:
            gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_a_proxy_that_is_killed_leaves_no_agent_that_ignores_the_end_of_its_stdin() -> None:
    """SIGKILL leaves the proxy no time; the kernel ends the agent."""
    code = "import os, time\nos.write(1, b'%d\\n' % os.getpid())\nwhile True: time.sleep(9)"
    with proxied(python(code)) as process:
        agent = int(read_line(pipes(process)[1]))
        process.kill()
        gone(agent)


CATCHES = """
import os, signal, sys, time
def end(*_):
    os.write(1, b"caught\\n")
    os._exit(9)
signal.signal({number}, end)
os.write({stream}, b"ready\\n")
while True: time.sleep(9)
"""


def test_who_is_stopped_is_asked_to_end_before_it_is_made_to() -> None:
    """The agent, and what an agent leaves behind, which Linux continues by a SIGHUP."""
    catches = CATCHES.format(number=int(signal.SIGTERM), stream=1)
    stopped = catches.replace("while", "os.kill(os.getpid(), signal.SIGSTOP)\nwhile")
    left = f"import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n{stopped}"
    code = f"import os, subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {left!r}])\n"
    assert through(b"", python(f"{code}os.waitpid(child.pid, os.WUNTRACED)")) == (b"ready\ncaught\n", 0, "")
    with proxied(python(stopped), "--grace", "0.1") as process:
        stdin, stdout, _ = pipes(process)
        assert read_line(stdout) == b"ready\n"
        stdin.close()
        assert read_line(stdout) == b"caught\n" and process.wait(DEADLINE) == 9


def test_what_an_agent_leaves_behind_that_will_not_end_is_made_to() -> None:
    code = (
        "import os, signal, subprocess\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(1, b'%d' % subprocess.Popen(['sleep', '60']).pid)"
    )
    out, exit_code, _ = through(b"", python(code))
    assert exit_code == 0
    gone(int(out))


def test_on_windows_each_signal_ends_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_WINDOWS", True)
    agent = AgentProcess(["cat"])
    agent.sweep()
    assert agent._process.args[0].endswith("/cat") and not agent.ended.is_set()  # as `npx.cmd` is found for `npx`
    agent.signal(signal.SIGCONT)
    assert agent.wait() == 128 + signal.SIGTERM
    agent.close_stdin()
    agent.close_stdout()


def test_a_pipe_that_a_daemon_holds_open_does_not_hold_up_the_end() -> None:
    code = (
        "import os, subprocess\nhow = {'start_new_session': True, 'stderr': subprocess.DEVNULL}\n"
        "child = subprocess.Popen(['sleep', '60'], **how)\nos.write(1, b'%d' % child.pid)"
    )
    out, exit_code, _ = through(b"", python(code))
    os.kill(int(out), signal.SIGKILL)
    assert exit_code == 0


@each_row("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_handed_on(number: signal.Signals) -> None:
    code = CATCHES.format(number=int(number), stream=1)
    with proxied(python(code), "--grace", str(DEADLINE)) as process:
        _, stdout, _ = pipes(process)
        assert read_line(stdout) == b"ready\n"
        process.send_signal(number)
        assert stdout.read() == b"caught\n" and process.wait(DEADLINE) == 9


def test_an_agent_that_reads_no_more_is_not_ended_for_it() -> None:
    code = "import os, time\nos.close(0); os.write(1, b'deaf\\n')\ntime.sleep(0.6)\nos.write(1, b'done\\n')"
    with proxied(python(code), "--grace", "0.1") as process:
        stdin, stdout, _ = pipes(process)
        assert read_line(stdout) == b"deaf\n"
        with pytest.raises(BrokenPipeError):
            write_for_ever(stdin)
        assert stdout.read() == b"done\n" and process.wait(DEADLINE) == 0


def test_an_editor_that_reads_no_more_is_no_reader_for_the_agent_either() -> None:
    code = "import os\nos.write(1, b'%d\\n' % os.getpid())\nwhile True: os.write(1, b'x')"
    with proxied(python(code)) as process:
        _, stdout, _ = pipes(process)
        pid = int(read_line(stdout))
        stdout.close()
        assert process.wait(DEADLINE) == 1  # the agent's own BrokenPipeError
        gone(pid)


# The skills

AGENT = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "session/new":
        os.write(1, json.dumps({"id": message["id"], "result": {"sessionId": "s"}}).encode() + b"\\n")
    elif message["method"] == "half":
        os.write(1, b'{"half":')
    elif message["method"] == "rest":
        os.write(1, b'1}\\n{')
"""


def say(stream: IO[bytes], method: str) -> None:
    stream.write(json.dumps({"id": 1, "method": method, "params": {"mcpServers": []}}).encode() + b"\n")
    stream.flush()


def names(line: bytes) -> list[str]:
    return json.loads(line)["params"]["update"]["_meta"]["availableSkills"]


@pytest.mark.requirement("X-34")
def test_ours_never_comes_within_a_line_of_the_agent_s(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with proxied(python(AGENT), tmp_path) as process:
        stdin, stdout, _ = pipes(process)
        say(stdin, "session/new")
        assert json.loads(read_line(stdout))["result"] == {"sessionId": "s"}
        assert names(read_line(stdout)) == ["one"]
        say(stdin, "half")
        assert os.read(stdout.fileno(), 99) == b'{"half":'
        write_skill(tmp_path / "two")
        assert not select.select([stdout], [], [], 0.3)[0]  # nothing, though the catalogue has changed
        say(stdin, "rest")
        assert read_line(stdout) == b"1}\n"
        assert names(read_line(stdout)) == ["one", "two"]  # before the next line, of which a part came along
        assert stdout.read(1) == b"{"


def test_a_catalogue_that_cannot_be_had_is_told_once_and_all_else_passes(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with proxied(python(ECHO), missing) as process:
        stdin, stdout, stderr = pipes(process)
        line = read_line(stderr)
        assert b"missing: no such file or folder" in line and b"Error: " not in line
        deadline = time.monotonic() + proxy._OPENING_S
        for _ in range(3):
            say(stdin, "session/new")
            assert json.loads(read_line(stdout))["params"] == {"mcpServers": []}
        assert time.monotonic() < deadline, "each session would wait for a catalogue that cannot come"
        stdin.close()
        assert process.wait(DEADLINE) == 0 and stderr.read() == b""


BROKEN = """
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


def test_a_bug_of_ours_costs_no_byte_and_is_told_once_a_place(tmp_path: Path) -> None:
    raw = b'"session/new" "result"\n' * 50_000
    command = [*python(BROKEN), str(tmp_path), ECHO]
    done = subprocess.run(command, input=raw, capture_output=True, timeout=DEADLINE, check=False)
    assert (done.stdout, done.returncode) == (raw, 0)
    lines = done.stderr.decode().splitlines()
    assert sorted(lines) == sorted(set(lines)) and 1 <= len(lines) <= 2
    assert all("RuntimeError: a bug of two lines" in line for line in lines)


def test_a_shadowed_skill_is_told_of_on_stderr(tmp_path: Path) -> None:
    write_skill(tmp_path / "a" / "same")
    write_skill(tmp_path / "b" / "same")
    with proxied(python(AGENT), tmp_path) as process:
        stdin, stdout, stderr = pipes(process)
        assert b"b/same is not announced to the editor" in read_line(stderr)
        say(stdin, "session/new")
        read_line(stdout)
        assert names(read_line(stdout)) == ["same"]
        write_skill(tmp_path / "more")
        assert names(read_line(stdout)) == ["more", "same"]
        stdin.close()
        assert process.wait(DEADLINE) == 0 and stderr.read() == b""  # once


def test_other_grants_are_told(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_skill(tmp_path / "skills" / name)
    config = tmp_path / "config.toml"
    config.write_text('[[grant]]\nwho = ["*"]\nskills = ["one"]\n')
    with proxied(python(AGENT), "--config", config, tmp_path / "skills") as process:
        stdin, stdout, _ = pipes(process)
        say(stdin, "session/new")
        read_line(stdout)
        assert names(read_line(stdout)) == ["one"]
        config.write_text('[[grant]]\nwho = ["*"]\nskills = ["*"]\n')
        assert names(read_line(stdout)) == ["one", "two"]
