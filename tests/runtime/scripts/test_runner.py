"""The script runner, with scripts that misbehave; without a sandbox and, where that differs, in one."""

from __future__ import annotations

import gc
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError, StaleFileError, UsageError
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.scripts import processes, runner
from mcp_skills_server.runtime.scripts import sandbox as boxes
from mcp_skills_server.runtime.scripts.outcome import Outcome
from mcp_skills_server.runtime.scripts.runner import Scripts
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from mcp_skills_server.runtime.scripts.workspace import Workspace, discard, lay_out
from runtime.scripts import zoo
from tables import each_row

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")]

DEADLINE = 20.0
LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are found by /proc")
QUICK = ScriptSettings(
    env=("MARK", "KEY", "GREETING", "LANG", *(f"V{each}" for each in range(8))),
    timeout_s=10,
    output_bytes=64 << 10,
    memory_bytes=512 << 20,
    file_bytes=4 << 20,
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return zoo.opened(zoo.build(tmp_path_factory.mktemp("skills")))


@pytest.fixture
def box(request: pytest.FixtureRequest) -> str:
    """The sandbox: none, unless the test is one of `in_both`."""
    return getattr(request, "param", "none")


in_both = pytest.mark.parametrize(
    "box", ["none", pytest.param("bubblewrap", marks=pytest.mark.needs_program("bwrap"))], indirect=True
)
"""For tests of what the sandbox changes: what a script is given, its limits, and its end."""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short times; and nobody is refused, so that root can test what others do."""
    monkeypatch.setattr(boxes, "is_off_forbidden", lambda: False)
    monkeypatch.setattr(processes, "GRACE_S", 0.4)
    monkeypatch.setattr(processes, "LINGER_S", 0.2)
    monkeypatch.setattr(processes, "PROGRESS_S", 0.1)
    monkeypatch.setattr(runner, "SLOT_TIMEOUT_S", 0.2)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runner makes its directories, so that a test sees what is left."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@dataclass
class Runner:
    """Scripts, a workspace of theirs, and the zoo."""

    scripts: Scripts
    skill: Skill
    space: Workspace
    box: str

    async def __call__(self, name: str, *args: str, **more: Any) -> Outcome:
        space = more.pop("space", self.space)
        with anyio.fail_after(DEADLINE):
            outcome = await self.scripts.run(self.skill, f"scripts/{name}", space, args=args, **more)
        assert outcome.sandbox == self.box
        return outcome


def made(registry: Registry, box: str, **settings: Any) -> Runner:
    chosen = {**asdict(QUICK), "sandbox": "required" if box == "bubblewrap" else "off", **settings}
    runner = Scripts(registry, ScriptSettings(**chosen))
    return Runner(runner, registry.snapshot.skills["zoo"], runner.workspace(), box)


@pytest.fixture
def run(registry: Registry, box: str, temporary: Path) -> Iterator[Runner]:
    runner = made(registry, box)
    yield runner
    runner.scripts.close()
    assert list(temporary.iterdir()) == []
    assert not zoo.zombies()


@pytest.fixture
def mark() -> Iterator[dict[str, str]]:
    """Variables for a run; at the end no process may carry them any more."""
    word = f"zoo-{secrets.token_hex(8)}"
    yield {"MARK": word}
    deadline = time.monotonic() + DEADLINE
    while zoo.running(word):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_there(path: str) -> bool:
    return os.path.lexists(path)


def left(temporary: Path) -> list[str]:
    """What the runner has in its directories: sessions and runs."""
    return sorted(each.name.partition("-")[0] for each in temporary.glob("*/*"))


# What a script is given


@pytest.mark.requirement("RT-18", "RT-19", "RTI-7")
@in_both
async def test_a_script_is_run_and_its_exit_code_and_both_streams_told(run: Runner) -> None:
    outcome = await run("three.sh")
    assert (outcome.path, outcome.exit_code, outcome.stdout, outcome.stderr) == (
        "scripts/three.sh",
        3,
        "out\n",
        "err\n",
    )
    assert not outcome.timed_out and not outcome.stdout_truncated and not outcome.stderr_truncated
    assert outcome.duration_ms >= 0


@pytest.mark.requirement("X-29", "SP-33")
@in_both
async def test_the_environment_holds_the_clients_variables_and_nothing_of_ours(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOP_SECRET", "hunter2")
    outcome = await run(
        "tell.py", "a b", "$HOME", "*", "", "ünï", env={"GREETING": "grüß\ngott", "LANG": "de_DE.UTF-8"}
    )
    argv, env, cwd, _ = json.loads(outcome.stdout)
    assert argv[1:] == ["a b", "$HOME", "*", "", "ünï"]
    assert env["GREETING"] == "grüß\ngott" and env["LANG"] == "de_DE.UTF-8"
    assert "hunter2" not in outcome.stdout
    allowed = {"PATH", "HOME", "TMPDIR", "LANG", "SKILL_DIR", "SKILL_WORKSPACE", "SKILL_RUN", "GREETING"}
    assert env.keys() <= allowed | {"PWD", "LC_CTYPE", "__CF_USER_TEXT_ENCODING"}
    assert env["HOME"] == env["SKILL_WORKSPACE"] == cwd
    assert argv[0] == f"{env['SKILL_DIR']}/scripts/tell.py"
    if run.box == "bubblewrap":
        assert (env["SKILL_DIR"], cwd, env["TMPDIR"]) == ("/skills/zoo", "/workspace", "/tmp")


@in_both
async def test_it_starts_in_the_work_directory_or_below(run: Runner) -> None:
    top = (await run("go.sh")).stdout.splitlines()[0]
    for workdir in ("a/b", "./a//b/", "a/b/."):
        assert (await run("go.sh", workdir=workdir)).stdout.splitlines()[0] == f"{top}/a/b"
    assert os.listdir(run.space.path) == ["a"]


@pytest.mark.requirement("X-29")
@each_row("workdir", ["..", "a/../..", "/", "/tmp", "a\\..\\..", "x" * 300, "a/" * 5000, "nul\0", "\udc80"])
async def test_no_workdir_leads_out(run: Runner, workdir: str) -> None:
    with pytest.raises(RequestError, match="workdir"):
        await run("go.sh", workdir=workdir)


@in_both
async def test_no_link_that_a_script_left_leads_out(run: Runner) -> None:
    assert (await run("link.sh")).stdout == "linked\n"
    for workdir in ("away", "away/tmp", "away/made/by/us", "gone"):
        with pytest.raises(RequestError, match="leads out"):
            await run("go.sh", workdir=workdir)
    assert not is_there("/made") and not is_there("/nowhere")


async def test_a_workdir_that_is_a_file_is_refused(run: Runner) -> None:
    await run("keep.sh", "word")
    with pytest.raises(RequestError, match="cannot be a directory"):
        await run("go.sh", workdir="note")


@in_both
async def test_what_one_run_leaves_the_next_finds_and_another_session_does_not(run: Runner) -> None:
    assert (await run("keep.sh", "one")).stdout == ""
    assert (await run("keep.sh", "two")).stdout == "one\n"
    other = run.scripts.workspace()
    assert (await run("keep.sh", "three", space=other)).stdout == ""
    other.close()
    other.close()
    assert not is_there(other.path)
    assert (await run("keep.sh", "four")).stdout == "one\ntwo\n"
    with pytest.raises(RequestError, match="start a new session"):
        await run("keep.sh", "five", space=other)


async def test_a_work_directory_that_was_cleaned_away_is_made_again(run: Runner) -> None:
    await run("keep.sh", "one")
    discard(run.space.path)
    assert (await run("keep.sh", "two")).exit_code == 0


@in_both
async def test_there_is_nothing_on_stdin(run: Runner) -> None:
    assert (await run("read.py")).stdout == "''\n"


@in_both
async def test_a_failure_for_want_of_a_package_or_the_network_says_which_option_helps(run: Runner) -> None:
    """11.E"""
    outcome = await run("want.py", "no_such_package")
    assert "ModuleNotFoundError" in outcome.stderr
    assert outcome.stderr.splitlines()[-1].startswith("mcp-skills-server: the package no_such_package is missing; ")
    if run.box == "bubblewrap":
        closed = await run("want.py", "network")
        assert closed.stderr.splitlines()[-1].startswith("mcp-skills-server: scripts have no network here; ")


async def test_a_closed_pipe_ends_a_writer_as_it_does_in_a_shell(run: Runner) -> None:
    outcome = await run("pipe.sh")
    assert (outcome.stdout, outcome.stderr) == ("y\n", "")


# Interpreters


@pytest.mark.requirement("RT-20", "RTI-6")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("tell.js", '["x"] v', marks=pytest.mark.needs_program("node")),
        pytest.param("module.mjs", "string", marks=pytest.mark.needs_program("node")),
        pytest.param("tell.pl", "x", marks=pytest.mark.needs_program("perl")),
        pytest.param("tell.bash", "2 ", marks=pytest.mark.needs_program("bash")),
        ("SHOUT.PY", "loud"),
        ("direct", "direct x"),
        ("direct.xyz", "env x"),
        ("ünï cødé.sh", "x|"),
    ],
)
async def test_the_extension_or_the_first_line_chooses_the_interpreter(run: Runner, name: str, said: str) -> None:
    outcome = await run(name, "x")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.startswith(said)


async def test_a_file_that_is_no_script_is_refused_with_the_extensions_that_are(run: Runner) -> None:
    with pytest.raises(RequestError, match=r"\.py .*no #! line") as caught:
        await run("junk")
    assert "\n" not in str(caught.value)


async def test_an_executable_bit_changes_nothing(run: Runner, registry: Registry, tmp_path: Path) -> None:
    skill = registry.snapshot.skills["zoo"]
    for made in (True, False):
        for file in skill.files.values():
            file.executable = made
        assert (await run("plain")).stdout == "direct\n"
        with pytest.raises(RequestError, match="no #! line"):
            await run("junk")
        lay_out(registry, skill, None, str(top := tmp_path / str(made)))
        modes = {name: (top / "scripts" / name).stat().st_mode & 0o777 for name in ("plain", "direct", "junk")}
        assert modes == {"plain": 0o555, "direct": 0o555, "junk": 0o444}


@pytest.mark.requirement("RTI-7")
@each_row(("name", "why"), [("crlf", "CR LF"), ("nowhere", "/no/such/interpreter"), ("badformat", "")])
@in_both
async def test_what_cannot_be_started_is_exit_code_127(run: Runner, name: str, why: str) -> None:
    outcome = await run(name)
    assert outcome.exit_code == 127 and why in outcome.stderr and outcome.stdout == ""


@in_both
async def test_a_program_that_fails_to_start_is_exit_code_127(registry: Registry, box: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF no program at all")
    broken.chmod(0o755)
    run = made(registry, box, interpreters={".sh": str(broken)})
    outcome = await run("three.sh")
    assert outcome.exit_code == 127 and "broken" in outcome.stderr
    run.scripts.close()


async def test_a_missing_interpreter_is_named(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RequestError, match=r"scripts/types.ts cannot be run: it needs bun, deno, tsx or node 22.18"):
        await run("types.ts")


async def test_the_operators_interpreter_comes_first(registry: Registry, box: str) -> None:
    run = made(registry, box, interpreters={".Sh": "bash", ".py": sys.executable})
    assert (await run("three.sh")).exit_code == 3
    assert (await run("SHOUT.PY")).stdout == "loud\n"
    run.scripts.close()


@pytest.mark.parametrize("named", [{".py": "no-such-program"}, {"py": "sh"}, {".": "sh"}, {".py": "/etc/passwd"}])
def test_an_interpreter_that_is_not_there_is_a_usage_error(registry: Registry, named: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Scripts(registry, ScriptSettings(sandbox="off", interpreters=named))


@in_both
async def test_a_script_finds_the_other_files_of_its_skill(registry: Registry, box: str, tmp_path: Path) -> None:
    top = zoo.build(tmp_path / "skills")
    (top / "zoo" / "scripts" / "lib.py").write_text("WORD = 'imported'\n")
    (top / "zoo" / "scripts" / "main.py").write_text(
        "import lib, os; print(lib.WORD, open(os.environ['SKILL_DIR'] + '/data/table.csv').read())"
    )
    run = made(zoo.opened(top), box)
    assert (await run("main.py")).stdout == "imported a,b\n\n"
    run.scripts.close()


# What a client may ask for


@pytest.mark.requirement("RT-18", "X-29")
@each_row("path", ["scripts/none.py", "scripts/../scripts/three.sh", "/bin/sh", "scripts/three.sh\0", ""])
async def test_only_a_file_of_the_skill_is_run(run: Runner, path: str) -> None:
    with pytest.raises(RequestError, match=r"has no file .* its scripts are scripts/") as caught:
        await run.scripts.run(run.skill, path, run.space)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.requirement("RTI-8")
async def test_arguments_and_variables_are_checked(run: Runner) -> None:
    with pytest.raises(RequestError, match="257 elements"):
        await run("three.sh", *["x"] * 257)
    with pytest.raises(RequestError, match="LD_PRELOAD is set by the server"):
        await run("three.sh", env={"LD_PRELOAD": "x"})


@pytest.mark.requirement("RTI-8")
@in_both
async def test_the_longest_arguments_and_variables_arrive_or_are_told_to_be_too_long(run: Runner) -> None:
    outcome = await run("tell.py", *["x" * 16_384] * 100, env={f"V{each}": "x" * 32_700 for each in range(8)})
    assert outcome.stdout_truncated, outcome.stderr
    outcome = await run("tell.py", *["x" * 16_384] * 256)
    assert outcome.exit_code == 127 and "too long" in outcome.stderr.lower()


async def test_the_variables_that_the_skill_declares_or_the_operator_allows_are_passed_on(run: Runner) -> None:
    env = dict.fromkeys(("API_KEY", "LDAP_URL", "TZ", "lower", "KEY"), "1")
    seen = json.loads((await run("tell.py", env=env)).stdout)[1]
    assert {name: seen[name] for name in env} == env


async def test_no_other_variable_is_passed_on(run: Runner) -> None:
    """11.18: TAR_OPTIONS ran a command."""
    for name in ("TAR_OPTIONS", "PYTHONPATH", "Lower", "MANPATH"):
        with pytest.raises(
            RequestError, match=rf"^env: {name} is not passed on; this skill takes API_KEY, .*, KEY"
        ) as caught:
            await run("tell.py", env={name: "--checkpoint-action=exec=id"})
        assert "metadata.env" in str(caught.value) and "--script-env" in str(caught.value)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "A B", "", "GLIBC_TUNABLES"])
def test_the_operator_cannot_leave_every_variable_to_callers(registry: Registry, name: str) -> None:
    with pytest.raises(UsageError):
        Scripts(registry, ScriptSettings(sandbox="off", env=(name,)))


@each_row("seconds", [0, -1, 600.1, 1e308, float("nan"), float("inf"), 10**400, -(10**400)])
async def test_a_time_limit_out_of_range_is_refused(run: Runner, seconds: float) -> None:
    with pytest.raises(
        RequestError, match=r"^The time limit \(timeout_s\) must be more than 0 and at most 600 seconds$"
    ):
        await run("three.sh", timeout_s=seconds)


async def test_a_file_that_changed_is_stale_and_nothing_is_started(
    registry: Registry, box: str, tmp_path: Path, temporary: Path
) -> None:
    top = zoo.build(tmp_path / "skills")
    run = made(zoo.opened(top), box)
    (top / "zoo" / "data" / "table.csv").write_text("changed")
    with pytest.raises(StaleFileError):
        await run("keep.sh", "ran")
    assert os.listdir(run.space.path) == []
    run.scripts.close()
    assert os.listdir(temporary) == []


# Time, processes and output


@pytest.mark.requirement("RTI-7", "X-29", "SP-31")
@each_row(
    ("name", "said"),
    [("sleep.py", "awake\n"), ("stubborn.py", "no\n"), ("polite.py", "here\ngoodbye\n"), ("stop.sh", "")],
)
@in_both
async def test_the_time_limit_ends_a_script(run: Runner, mark: dict[str, str], name: str, said: str) -> None:
    outcome = await run(name, timeout_s=1.5, env=mark)
    assert outcome.timed_out and outcome.exit_code is None
    assert outcome.stdout == said and "time limit of 1.5 s" in outcome.stderr


@LINUX
@pytest.mark.requirement("X-29")
@pytest.mark.parametrize("name", ["litter.sh", "daemon.sh", "quiet.sh"])
@in_both
async def test_what_a_script_leaves_behind_is_killed(run: Runner, mark: dict[str, str], name: str) -> None:
    outcome = await run(name, env=mark)
    assert outcome.exit_code == 0 and not outcome.timed_out
    assert outcome.stdout in {"done\n", "left\n"}
    assert not zoo.running(mark["MARK"]) or run.box == "bubblewrap"


@in_both
async def test_a_signal_is_told_as_128_and_its_number(run: Runner) -> None:
    assert (await run("killed.sh")).exit_code == 128 + 11


async def test_output_is_capped_and_the_rest_read_and_forgotten(run: Runner) -> None:
    outcome = await run("flood.py")
    assert outcome.exit_code == 0
    assert outcome.stdout == outcome.stderr == "x" * (64 << 10)
    assert outcome.stdout_truncated and outcome.stderr_truncated


async def test_output_that_is_not_utf8_is_made_so(run: Runner) -> None:
    assert (await run("bytes.py")).stdout == "\ufffd\ufffdäö€"


# Limits


@pytest.mark.requirement("SP-31")
@in_both
async def test_a_script_that_wants_all_the_memory_fails(registry: Registry, box: str) -> None:
    run = made(registry, box, memory_bytes=128 << 20)
    outcome = await run("hog.py")
    assert outcome.exit_code == 1 and "MemoryError" in outcome.stderr
    run.scripts.close()


@pytest.mark.requirement("SP-31")
@in_both
async def test_a_script_that_writes_a_huge_file_fails(run: Runner) -> None:
    outcome = await run("huge.py")
    assert outcome.exit_code == 1 and "File too large" in outcome.stderr
    assert os.stat(f"{run.space.path}/huge").st_size <= QUICK.file_bytes


@in_both
async def test_core_files_and_open_files_are_limited(run: Runner) -> None:
    core, files, size = (await run("limits.sh")).stdout.split()
    assert (core, files) == ("0", "64") and int(size) * 512 in {QUICK.file_bytes, QUICK.file_bytes // 2}


@in_both
async def test_processes_are_limited(run: Runner, mark: dict[str, str]) -> None:
    if boxes.is_root() and (run.box == "none" or shutil.which("setpriv") is None):
        pytest.skip("root has no limit of processes")
    outcome = await run("breed.py", env=mark)
    assert 0 < int(outcome.stdout) <= 64, outcome.stderr


@LINUX
@in_both
async def test_what_a_script_queues_in_sockets_is_bounded(run: Runner) -> None:
    """The kernel keeps it for no process: two of 256 processes with 1,024 descriptors each held 3.9 GB."""
    outcome = await run("queues.py")
    assert 0 < int(outcome.stdout) * 64 <= 900 << 20, outcome.stderr


async def test_a_work_directory_that_grew_too_big_is_emptied(registry: Registry, box: str) -> None:
    run = made(registry, box, workspace_bytes=8 << 20)
    outcome = await run("many.py")
    assert "took more than 8,388,608 bytes" in outcome.stderr
    assert not is_there(f"{run.space.path}/part1")
    assert (await run("keep.sh", "x")).stderr == ""
    run.scripts.close()


@in_both
async def test_a_script_that_fills_the_disk_is_ended(registry: Registry, box: str, mark: dict[str, str]) -> None:
    run = made(registry, box, workspace_bytes=8 << 20)
    outcome = await run("many.py", "and stay", env=mark)
    assert outcome.exit_code is None and not outcome.timed_out
    assert "the script was ended" in outcome.stderr
    run.scripts.close()


@LINUX
@pytest.mark.parametrize(("name", "why"), [("shared.py", "of memory"), ("nameless.py", "its files took")])
@in_both
async def test_what_no_limit_of_the_kernel_counts_is_counted(
    registry: Registry, box: str, mark: dict[str, str], name: str, why: str
) -> None:
    """11.18: 3 GiB of shared memory were written against 2 GiB, and removed files filled the disk."""
    run = made(registry, box, workspace_bytes=8 << 20, memory_bytes=128 << 20)
    outcome = await run(name, env=mark)
    assert outcome.exit_code is None and not outcome.timed_out
    assert "the script was ended because" in outcome.stderr and why in outcome.stderr
    run.scripts.close()


@pytest.mark.parametrize("name", ["deep.py", "locked.py"])
@in_both
async def test_whatever_a_script_makes_can_be_removed(run: Runner, name: str) -> None:
    assert (await run(name)).exit_code in {0, None}
    run.space.close()
    assert not is_there(run.space.path)


@pytest.mark.requirement("SP-31")
async def test_only_so_many_run_at_once_and_a_work_directory_is_filled_only_when_its_turn_comes(
    registry: Registry, box: str, mark: dict[str, str]
) -> None:
    run = made(registry, box, concurrent=1)
    begun = anyio.Event()

    async def tell(_: float) -> None:
        begun.set()

    async def hold() -> None:
        await run("sleep.py", env=mark, progress=tell)

    def fill(work: str) -> None:
        Path(work, "note").write_text("filled\n")

    other = run.scripts.workspace()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await begun.wait()
        with pytest.raises(RequestError, match="1 scripts are running already"):
            await run("keep.sh", "word", space=other, fill=fill)
        tasks.cancel_scope.cancel()
    assert os.listdir(other.path) == []
    outcome = await run("keep.sh", "word", space=other, fill=fill)
    assert (outcome.stdout, outcome.stderr) == ("filled\n", ""), "what was put in is the script's to write"
    run.scripts.close()


@in_both
async def test_a_work_directory_that_is_closed_goes_with_the_last_script_in_it(
    registry: Registry, box: str, mark: dict[str, str]
) -> None:
    run = made(registry, box)
    there: list[bool] = []

    async def close(_: float) -> None:
        run.space.close()
        there.append(is_there(run.space.path))

    await run("sleep.py", timeout_s=0.5, env=mark, progress=close)
    assert there and all(there) and not is_there(run.space.path)
    run.scripts.close()


async def test_a_work_directory_is_not_emptied_under_a_script_that_runs(
    registry: Registry, box: str, mark: dict[str, str]
) -> None:
    run = made(registry, box, workspace_bytes=8 << 20)
    seen: list[Outcome] = []

    async def go(*words: str) -> None:
        seen.append(await run(*words, env=mark))

    async with anyio.create_task_group() as tasks:
        for words in (("many.py", "and stay"), ("many.py", "and stay")):
            tasks.start_soon(go, *words)
    assert ["was emptied" in each.stderr for each in seen] == [False, True]
    assert os.listdir(run.space.path) == []
    run.scripts.close()


# Progress and cancellation


async def test_progress_is_told_while_it_runs(run: Runner, mark: dict[str, str]) -> None:
    seen: list[float] = []
    with anyio.CancelScope() as scope:

        async def tell(elapsed: float) -> None:
            seen.append(elapsed)
            if len(seen) == 3:
                scope.cancel()

        await run("sleep.py", env=mark, progress=tell)
    assert len(seen) == 3 and seen == sorted(seen)


async def test_progress_that_fails_or_hangs_harms_nothing(run: Runner) -> None:
    async def fail(_: float) -> None:
        raise OSError("gone")

    async def hang(_: float) -> None:
        await anyio.sleep_forever()

    for tell in (fail, hang):
        assert (await run("sleep.py", timeout_s=0.4, progress=tell)).timed_out


@LINUX
@pytest.mark.parametrize("name", ["sleep.py", "stubborn.py", "daemon.sh", "flood.py"])
@in_both
async def test_a_cancelled_run_leaves_no_process_and_no_directory(
    run: Runner, mark: dict[str, str], temporary: Path, name: str
) -> None:
    begun = anyio.Event()

    async def tell(_: float) -> None:
        begun.set()

    async with anyio.create_task_group() as tasks:

        async def go() -> None:
            await run(name, env=mark, progress=tell)
            begun.set()

        tasks.start_soon(go)
        with anyio.fail_after(DEADLINE):
            await begun.wait()
        tasks.cancel_scope.cancel()
    assert left(temporary) == ["session"]


@LINUX
@in_both
async def test_a_run_cancelled_at_any_moment_leaves_nothing(run: Runner, mark: dict[str, str], temporary: Path) -> None:
    for step in range(12):
        with anyio.move_on_after(step * 0.01):
            await run("daemon.sh", env=mark)
        assert left(temporary) == ["session"]
    assert (await run("three.sh")).exit_code == 3


async def test_close_removes_every_work_directory(registry: Registry, box: str, temporary: Path) -> None:
    run = made(registry, box)
    run.scripts.workspace()
    await run("keep.sh", "x")
    assert left(temporary) == ["session", "session"]
    assert os.stat(run.space.path).st_mode & 0o777 == 0o700
    run.scripts.close()
    run.scripts.close()
    assert os.listdir(temporary) == []


async def test_without_close_the_end_of_the_program_removes_them(registry: Registry, temporary: Path) -> None:
    run = made(registry, "none")
    assert left(temporary) == ["session"]
    del run
    gc.collect()
    assert os.listdir(temporary) == []


async def test_a_change_on_disk_during_the_run_does_not_reach_it(registry: Registry, box: str, tmp_path: Path) -> None:
    top = zoo.build(tmp_path / "skills")
    late = top / "zoo" / "scripts" / "late.sh"
    late.write_text('echo one\nwhile [ ! -e "$SKILL_WORKSPACE/go" ]; do sleep 0.02; done\necho two; cat "$0" | wc -l\n')
    run = made(zoo.opened(top), box)

    async def change(_: float) -> None:
        late.write_text("echo evil\n" * 50)
        (Path(run.space.path) / "go").write_text("")

    assert (await run("late.sh", progress=change)).stdout.split() == ["one", "two", "3"]
    run.scripts.close()


# The log


async def test_the_log_names_the_script_and_no_argument(run: Runner, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mcp_skills_server"):
        await run("three.sh", "s3cret", env={"KEY": "s3cret"})
    assert "ran scripts/three.sh of zoo: exit code 3" in caplog.text and "s3cret" not in caplog.text
