"""The script runner, with misbehaving scripts, with and without a sandbox."""

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from catalog.forest import load_registry, write_files
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError, StaleFileError, UsageError
from mcp_skills_server.runtime.scripts import processes, runner, sandbox
from mcp_skills_server.runtime.scripts.interpreters import Interpreter, Interpreters
from mcp_skills_server.runtime.scripts.outcome import Outcome
from mcp_skills_server.runtime.scripts.processes import Progress
from mcp_skills_server.runtime.scripts.runner import RunRequest, Scripts
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from mcp_skills_server.runtime.scripts.trees import MAX_FILES, discard
from mcp_skills_server.runtime.scripts.workspace import Workspace, lay_out
from runtime.scripts import zoo
from tables import each_row
from wire import ROOT

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
    return load_registry(zoo.write(tmp_path_factory.mktemp("skills")))


@pytest.fixture
def sandbox_kind(request: pytest.FixtureRequest) -> str:
    """The `Outcome.sandbox` of runs: "none", unless the test is `with_and_without_sandbox`."""
    return getattr(request, "param", "none")


with_and_without_sandbox = pytest.mark.parametrize(
    "sandbox_kind",
    ["none", pytest.param("bubblewrap", marks=pytest.mark.needs_program("bwrap"))],
    indirect=True,
)
"""Mark tests of what the sandbox changes: environment, limits and termination."""
in_sandbox = pytest.mark.parametrize(
    "sandbox_kind", [pytest.param("bubblewrap", marks=pytest.mark.needs_program("bwrap"))], indirect=True
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runner's temporary directory. Timeouts are short, and root may run without a sandbox."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setattr(sandbox, "is_off_forbidden", lambda: False)
    for name, seconds in (("GRACE_S", 0.4), ("LINGER_S", 0.2), ("PROGRESS_S", 0.1)):
        monkeypatch.setattr(processes, name, seconds)
    monkeypatch.setattr(runner, "SLOT_TIMEOUT_S", 0.2)
    return directory


class Runner:
    """A callable that runs scripts of the zoo, by default in one work directory."""

    def __init__(self, registry: Registry, sandbox_kind: str, **settings: Any) -> None:
        mode = "required" if sandbox_kind == "bubblewrap" else "off"
        self.scripts = Scripts(registry, ScriptSettings(**{**asdict(QUICK), "sandbox": mode, **settings}))
        self.skill = registry.snapshot.skills["zoo"]
        self.workspace = self.scripts.workspace()
        self.sandbox = sandbox_kind

    async def __call__(
        self,
        name: str,
        *args: str,
        workspace: Workspace | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Outcome:
        request = RunRequest(skill=self.skill, path=f"scripts/{name}", args=args, **options)
        with anyio.fail_after(DEADLINE):
            outcome = await self.scripts.run(request, workspace or self.workspace, progress)
        assert outcome.sandbox == self.sandbox
        return outcome


MakeRunner = Callable[..., Runner]


@pytest.fixture
def make_runner(registry: Registry, sandbox_kind: str, temporary: Path) -> Iterator[MakeRunner]:
    """A factory of runners, which are closed at the end and leave no files and no zombies."""
    with ExitStack() as stack:

        def make(registry: Registry = registry, **settings: Any) -> Runner:
            run = Runner(registry, sandbox_kind, **settings)
            stack.callback(run.scripts.close)
            return run

        yield make
    assert list(temporary.iterdir()) == []
    assert not zoo.zombies()


@pytest.fixture
def run(make_runner: MakeRunner) -> Runner:
    return make_runner()


@pytest.fixture
def marker() -> Iterator[dict[str, str]]:
    """Environment variables that mark the processes of a run; assert that all have ended."""
    value = f"zoo-{secrets.token_hex(8)}"
    yield {"MARK": value}
    deadline = time.monotonic() + DEADLINE
    while zoo.processes_with(value):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def exists(path: str) -> bool:
    return os.path.lexists(path)


def remaining_directories(temporary: Path) -> list[str]:
    """Return the kinds of the runner's directories: "session" or "run"."""
    return sorted(each.name.partition("-")[0] for each in temporary.glob("*/*"))


@pytest.mark.requirement("RT-18", "RT-19", "RTI-7")
@each_row(("name", "code", "stdout", "stderr"), [
    ("three.sh", 3, "out\n", "err\n"), ("killed.sh", 128 + 11, "", ""), ("bytes.py", 0, "\ufffd\ufffdäö€", ""),
    ("read.py", 0, "''\n", ""),  # stdin is empty
    ("pipe.sh", 0, "y\n", ""),  # SIGPIPE has its default action
    ("main.py", 0, "imported a,b\n\n", ""),  # the script reads other files of its skill
    ("flood.py", 0, "x" * QUICK.output_bytes, "x" * QUICK.output_bytes),  # truncated
])  # fmt: skip
@with_and_without_sandbox
async def test_outcome_has_exit_code_and_output(run: Runner, name: str, code: int, stdout: str, stderr: str) -> None:
    outcome = await run(name)
    assert outcome.path == f"scripts/{name}"
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (code, stdout, stderr)
    assert not outcome.timed_out and 0 <= outcome.duration_ms < DEADLINE * 1000
    assert outcome.stdout_truncated == outcome.stderr_truncated == (name == "flood.py")


@pytest.mark.requirement("X-29", "SP-33", "RTI-8")
@with_and_without_sandbox
async def test_environment_has_given_variables_and_none_of_the_server(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOP_SECRET", "hunter2")
    given = {"GREETING": "grüß\ngott", "LANG": "de_DE.UTF-8", "API_KEY": "declared by the skill"}
    outcome = await run("tell.py", "a b", "$HOME", "*", "", "ünï", env=given)
    argv, env, cwd, _ = json.loads(outcome.stdout)
    assert argv[1:] == ["a b", "$HOME", "*", "", "ünï"]
    assert given.items() <= env.items()
    assert "hunter2" not in outcome.stdout
    allowed = {"PATH", "HOME", "TMPDIR", "LANG", "SKILL_DIR", "SKILL_WORKSPACE", "SKILL_RUN", *given}
    assert env.keys() <= allowed | {"PWD", "LC_CTYPE", "__CF_USER_TEXT_ENCODING"}
    with pytest.raises(
        RequestError, match=r"^env: TAR_OPTIONS is not passed on; this skill takes API_KEY, .*, GREETING"
    ):
        await run("tell.py", env={"TAR_OPTIONS": "--checkpoint-action=exec=id"})
    assert env["HOME"] == env["SKILL_WORKSPACE"] == cwd
    assert argv[0] == f"{env['SKILL_DIR']}/scripts/tell.py"
    if run.sandbox == "bubblewrap":
        assert (env["SKILL_DIR"], cwd, env["TMPDIR"]) == ("/skills/zoo", "/workspace", "/tmp")


@with_and_without_sandbox
async def test_workdir_is_created_and_symlinks_out_are_refused(run: Runner) -> None:
    top = (await run("go.sh")).stdout.splitlines()[0]
    for workdir in ("a/b", "./a//b/", "a/b/."):
        assert (await run("go.sh", workdir=workdir)).stdout.splitlines()[0] == f"{top}/a/b"
    assert os.listdir(run.workspace.path) == ["a"]
    assert (await run("link.sh")).stdout == "linked\n"
    for workdir in ("away", "away/tmp", "away/made/by/us", "gone"):
        with pytest.raises(RequestError, match="leads out"):
            await run("go.sh", workdir=workdir)
    assert not exists("/made")
    assert not exists("/nowhere")
    await run("keep.sh", "word")
    with pytest.raises(RequestError, match="cannot be a directory"):
        await run("go.sh", workdir="note")


@pytest.mark.requirement("X-29")
@each_row("workdir", ["..", "a/../..", "/", "/tmp", "a\\..\\..", "x" * 300, "a/" * 256 + "a", "nul\0", "\udc80"])
async def test_workdir_outside_is_refused(run: Runner, workdir: str) -> None:
    with pytest.raises(RequestError, match="workdir"):
        await run("go.sh", workdir=workdir)
    assert run.workspace.prepare("a/" * 256).endswith("/a")


@with_and_without_sandbox
async def test_files_persist_between_runs_of_one_session(run: Runner) -> None:
    assert (await run("keep.sh", "one")).stdout == ""
    assert (await run("keep.sh", "two")).stdout == "one\n"
    other = run.scripts.workspace()
    assert (await run("keep.sh", "three", workspace=other)).stdout == ""
    other.close()
    other.close()
    assert not exists(other.path)
    assert (await run("keep.sh", "four")).stdout == "one\ntwo\n"
    with pytest.raises(RequestError, match="start a new session"):
        await run("keep.sh", "five", workspace=other)
    for removed in (run.workspace.path, os.path.dirname(run.workspace.path)):
        discard(removed)  # as a cleanup of /tmp may do
        assert (await run("keep.sh", "six")).exit_code == 0


async def test_unusable_temporary_directory_is_reported(
    make_runner: MakeRunner, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, user = make_runner(), os.geteuid()
    with monkeypatch.context() as another:
        another.setattr(os, "geteuid", lambda: user + 1)
        with pytest.raises(RequestError, match="belongs to another user"):
            await run("keep.sh", "one")
    discard(os.path.dirname(run.workspace.path))
    os.rmdir(temporary)
    for start in (run.scripts.workspace, make_runner):
        with pytest.raises(RequestError, match=r"cannot be made \(No such file or directory\)"):
            start()
    os.mkdir(temporary)
    assert (await run("keep.sh", "one")).exit_code == 0


@with_and_without_sandbox
async def test_missing_package_or_network_is_explained(run: Runner) -> None:
    lines = (await run("want.py", "no_such_package")).stderr.splitlines()
    assert lines[-1].startswith("mcp-skills-server: the package no_such_package is missing; ")
    if run.sandbox == "bubblewrap":
        lines = (await run("want.py", "network")).stderr.splitlines()
        assert lines[-1].startswith("mcp-skills-server: scripts have no network here; ")


@pytest.mark.requirement("RT-20", "RTI-6")
@pytest.mark.parametrize(("name", "stdout"), [
    *(pytest.param(name, stdout, marks=pytest.mark.needs_program(program)) for name, stdout, program in (
        ("tell.js", '["x"] v', "node"), ("module.mjs", "string", "node"), ("tell.pl", "x", "perl"),
        ("tell.bash", "2 ", "bash"),
    )),
    ("SHOUT.PY", "loud"), ("direct", "direct x"), ("direct.xyz", "env x"), ("ünï cødé.sh", "x|"),
])  # fmt: skip
async def test_interpreter_is_chosen_by_extension_or_shebang(run: Runner, name: str, stdout: str) -> None:
    outcome = await run(name, "x")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.startswith(stdout)


async def test_executable_bit_is_ignored(run: Runner, registry: Registry, tmp_path: Path) -> None:
    skill = registry.snapshot.skills["zoo"]
    for executable in (True, False):
        for path in skill.files:
            os.chmod(f"{registry.place(skill)}/{path}", 0o755 if executable else 0o644)
        registry.refresh()
        skill = registry.snapshot.skills["zoo"]
        assert (await run("plain")).stdout == "direct\n"
        with pytest.raises(RequestError, match=r"\.py .*no #! line$"):
            await run("junk")
        top = tmp_path / str(executable)
        lay_out(registry, skill, None, str(top))
        for name, mode in (("plain", 0o555), ("direct", 0o555), ("junk", 0o444)):
            assert (top / "scripts" / name).stat().st_mode & 0o777 == mode, name


@pytest.mark.requirement("RTI-7")
@with_and_without_sandbox
async def test_script_that_cannot_start_has_exit_code_127(make_runner: MakeRunner, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\x7fELF no program at all")
    (tmp_path / "broken").chmod(0o755)
    run = make_runner(interpreters={".sh": str(tmp_path / "broken")})
    reasons = {"crlf": "CR LF", "nowhere": "/no/such/interpreter", "badformat": "", "three.sh": "broken"}
    for name, reason in reasons.items():
        outcome = await run(name)
        assert outcome.exit_code == 127
        assert reason in outcome.stderr
        assert outcome.stdout == ""
        assert not (outcome.stdout_truncated or outcome.stderr_truncated or outcome.timed_out)


async def test_operator_interpreter_overrides_default(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_runner(interpreters={".Sh": "bash", ".py": sys.executable})
    assert (await run("three.sh")).exit_code == 3
    assert (await run("SHOUT.PY")).stdout == "loud\n"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RequestError, match=r"scripts/types.ts cannot be run: it needs bun, deno, tsx or node 22.18"):
        await run("types.ts")


def test_interpreter_probe_finds_package_folder_or_is_refused(tmp_path: Path) -> None:
    failing = {"python-old": "#!/bin/sh\necho x; exit 1\n", "python-mute": "#!/bin/sh\n"}
    programs = {"lib/node_modules/tsx/cli": "", **failing}
    write_files(tmp_path, programs)
    for name in programs:
        (tmp_path / name).chmod(0o755)
    (tmp_path / "tsx").symlink_to("lib/node_modules/tsx/cli")
    found = Interpreters({".TS": f"{tmp_path}/tsx"}).choose("a.ts", bytes)
    assert found == Interpreter((f"{tmp_path}/tsx",), (f"{tmp_path}/tsx", f"{tmp_path}/lib/node_modules"))
    for name in failing:
        message = f"a.py cannot be run: it needs .*/{name}, which is not installed, or"
        with pytest.raises(RequestError, match=message):
            Interpreters({".py": f"{tmp_path}/{name}"}).choose("a.py", bytes)


@each_row("settings", [
    {"interpreters": {".py": "no-such-program"}}, {"interpreters": {".py": "/etc/passwd"}},
    {"interpreters": {"py": "sh"}}, {"interpreters": {".": "sh"}},
    *({"env": (name,)} for name in ("LD_PRELOAD", "PATH", "A B", "", "GLIBC_TUNABLES")),
])  # fmt: skip
def test_invalid_operator_setting_is_a_usage_error(registry: Registry, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Scripts(registry, ScriptSettings(sandbox="off", **settings))


@pytest.mark.requirement("RT-18", "X-29")
@each_row("path", ["scripts/none.py", "scripts/../scripts/three.sh", "/bin/sh", "scripts/three.sh\0", ""])
async def test_unknown_script_path_is_refused(run: Runner, path: str) -> None:
    with pytest.raises(
        RequestError, match=r"has no file .* its scripts are (scripts/[^,]*, ){19}scripts/\S* and \d+ more"
    ) as caught:
        await run.scripts.run(RunRequest(skill=run.skill, path=path), run.workspace)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.requirement("RTI-8")
@with_and_without_sandbox
async def test_longest_arguments_and_variables_are_passed_or_reported(run: Runner) -> None:
    outcome = await run("tell.py", *["x" * 16_384] * 100, env={f"V{each}": "x" * 32_700 for each in range(8)})
    assert outcome.stdout_truncated, outcome.stderr
    outcome = await run("tell.py", *["x" * 16_384] * 256)
    assert outcome.exit_code == 127
    assert "too long" in outcome.stderr.lower()


@each_row("seconds", [0, -1, 600.1, 1e308, float("nan"), float("inf"), 10**400, -(10**400)])
async def test_time_limit_out_of_range_is_refused(run: Runner, seconds: float) -> None:
    message = r"^The time limit \(timeout_s\) must be more than 0 and at most 600 seconds$"
    with pytest.raises(RequestError, match=message):
        await run("three.sh", timeout_s=seconds)
    assert (await run("three.sh", timeout_s=600)).exit_code == 3


async def test_changed_file_is_stale_and_nothing_runs(make_runner: MakeRunner, tmp_path: Path, temporary: Path) -> None:
    top = zoo.write(tmp_path / "skills")
    run = make_runner(load_registry(top))
    (top / "zoo" / "data" / "table.csv").write_text("changed")
    with pytest.raises(StaleFileError):
        await run("keep.sh", "ran")
    assert os.listdir(run.workspace.path) == []
    assert remaining_directories(temporary) == ["session"]


@pytest.mark.requirement("RTI-7", "X-29", "SP-31")
@each_row(("name", "stdout"), [
    ("sleep.py", "awake\n"), ("stubborn.py", "no\n"), ("polite.py", "here\ngoodbye\n"), ("stop.sh", ""),
])  # fmt: skip
@with_and_without_sandbox
async def test_script_is_ended_at_time_limit(run: Runner, marker: dict[str, str], name: str, stdout: str) -> None:
    outcome = await run(name, timeout_s=1.5, env=marker)
    assert outcome.timed_out
    assert outcome.exit_code is None
    assert outcome.stdout == stdout
    assert "time limit of 1.5 s" in outcome.stderr


@LINUX
@pytest.mark.requirement("X-29")
@pytest.mark.parametrize("name", ["litter.sh", "daemon.sh", "quiet.sh"])
@with_and_without_sandbox
async def test_background_processes_are_killed(run: Runner, marker: dict[str, str], name: str) -> None:
    outcome = await run(name, env=marker)
    assert outcome.exit_code == 0
    assert not outcome.timed_out
    assert outcome.stdout in {"done\n", "left\n"}
    if run.sandbox == "none":  # the processes of a sandbox end with it, a moment later
        assert not zoo.processes_with(marker["MARK"])


@pytest.mark.requirement("SP-31")
@with_and_without_sandbox
async def test_memory_file_size_cores_and_open_files_are_limited(make_runner: MakeRunner) -> None:
    run = make_runner(memory_bytes=128 << 20)
    for name, error in (("hog.py", "MemoryError"), ("huge.py", "File too large")):
        outcome = await run(name)
        assert outcome.exit_code == 1
        assert error in outcome.stderr
    assert os.stat(f"{run.workspace.path}/huge").st_size <= QUICK.file_bytes
    core, files, size = (await run("limits.sh")).stdout.split()
    assert (core, files) == ("0", "64")
    assert int(size) * 512 in {QUICK.file_bytes, QUICK.file_bytes // 2}  # shells differ in the unit


@with_and_without_sandbox
async def test_number_of_processes_is_limited(run: Runner, marker: dict[str, str]) -> None:
    if sandbox.is_root() and (run.sandbox == "none" or shutil.which("setpriv") is None):
        pytest.skip("root has no limit of processes")
    outcome = await run("breed.py", env=marker)
    # Without a sandbox the limit is 64 above all tasks of the user, and those of other tests may end meanwhile.
    most = 200 if run.sandbox == "none" else 64
    assert 0 < int(outcome.stdout) <= most, outcome.stderr


@LINUX
@with_and_without_sandbox
async def test_socket_buffers_are_limited(run: Runner) -> None:
    """No memory limit counts socket buffers: two of 256 processes with 1,024 descriptors held 3.9 GB."""
    outcome = await run("queues.py")
    assert 0 < int(outcome.stdout) * 64 <= 900 << 20, outcome.stderr


async def reason_of_end(run: Runner, marker: dict[str, str], name: str) -> str:
    """Run a script that exceeds a limit and stays, and return why the server ended it."""
    outcome = await run(name, "and stay", env=marker)
    assert outcome.exit_code is None, outcome.stderr
    assert not outcome.timed_out
    return outcome.stderr.partition("the script was ended because ")[2]


@LINUX
@pytest.mark.parametrize(("name", "reason"), [
    ("tables.py", "its processes took"), ("nameless.py", "its files took"), ("mapped.py", "its files took"),
    ("many.py", "its files took"),
])  # fmt: skip
@with_and_without_sandbox
async def test_page_tables_and_total_file_size_end_a_script(
    make_runner: MakeRunner, marker: dict[str, str], name: str, reason: str
) -> None:
    """Regression: page tables took 901 MiB, and deleted files of which a page was mapped filled the disk."""
    run = make_runner(workspace_bytes=8 << 20, memory_bytes=128 << 20)
    assert (await reason_of_end(run, marker, name)).startswith(reason)


@LINUX
async def test_shared_memory_ends_a_script(make_runner: MakeRunner, marker: dict[str, str]) -> None:
    """Regression: a script wrote 3 GiB of shared memory of 2 GiB."""
    assert (await reason_of_end(make_runner(memory_bytes=128 << 20), marker, "shared.py")).startswith("its processes")


@in_sandbox
async def test_shared_memory_of_no_file_is_refused_in_sandbox(run: Runner) -> None:
    """Regression: a script kept 1 GiB of shared memory that no page table had, and no limit counted."""
    outcome = await run("shared.py")
    assert outcome.exit_code == 1
    assert "PermissionError" in outcome.stderr


@in_sandbox
async def test_data_of_waiting_connections_ends_a_script(make_runner: MakeRunner, marker: dict[str, str]) -> None:
    """Regression: connections that were never accepted held 1.1 GiB, with two descriptors of one process."""
    run = make_runner(memory_bytes=128 << 20)
    assert (await reason_of_end(run, marker, "waiting.py")).startswith("its processes took")


@pytest.mark.parametrize("name", ["deep.py", "locked.py"])
@with_and_without_sandbox
async def test_deep_or_locked_directories_are_removed(run: Runner, name: str) -> None:
    outcome = await run(name)
    assert outcome.exit_code in {0, None}
    if name == "deep.py":
        assert "bytes, had too many files, or could not be measured, and was emptied" in outcome.stderr
        assert os.listdir(run.workspace.path) == []
    run.workspace.close()
    assert not exists(run.workspace.path)


@pytest.mark.requirement("SP-31")
async def test_work_directory_is_filled_after_wait_for_slot(make_runner: MakeRunner, marker: dict[str, str]) -> None:
    run = make_runner(concurrent=1)
    started = anyio.Event()

    async def progress(_: float) -> None:
        started.set()

    def fill(work: str) -> None:
        Path(work, "note").write_text("filled\n")

    other = run.scripts.workspace()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run, "sleep.py", env=marker, progress=progress))
        await started.wait()
        with pytest.raises(RequestError, match="1 scripts are running already"):
            await run("keep.sh", "word", workspace=other, fill=fill)
        tasks.cancel_scope.cancel()
    assert os.listdir(other.path) == []
    outcome = await run("keep.sh", "word", workspace=other, fill=fill)
    assert (outcome.stdout, outcome.stderr) == ("filled\n", ""), "the script may write to filled files"


@with_and_without_sandbox
async def test_closed_work_directory_is_removed_after_last_run(run: Runner, marker: dict[str, str]) -> None:
    existed: list[bool] = []

    async def close(_: float) -> None:
        run.workspace.close()
        existed.append(exists(run.workspace.path))

    await run("sleep.py", timeout_s=0.5, env=marker, progress=close)
    assert {*existed} == {True}
    assert not exists(run.workspace.path)


async def test_oversized_work_directory_is_emptied_after_last_run(make_runner: MakeRunner) -> None:
    run = make_runner(workspace_bytes=8 << 20)
    emptied: list[bool] = []

    async def run_many() -> None:
        outcome = await run("many.py", "and stay")
        emptied.append("took more than 8,388,608 bytes, had too many files, or could" in outcome.stderr)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_many)
        tasks.start_soon(run_many)
    assert emptied == [False, True]
    assert os.listdir(run.workspace.path) == []
    assert (await run("keep.sh", "x")).stderr == ""


async def test_progress_is_reported_during_a_run(run: Runner, marker: dict[str, str]) -> None:
    reported: list[float] = []
    with anyio.CancelScope() as scope:

        async def progress(elapsed: float) -> None:
            reported.append(elapsed)
            if len(reported) == 3:
                scope.cancel()

        await run("sleep.py", env=marker, progress=progress)
    assert len(reported) == 3
    assert reported == sorted(reported)
    assert reported[-1] < DEADLINE


async def test_failing_or_hanging_progress_callback_is_ignored(run: Runner) -> None:
    async def fail(_: float) -> None:
        raise OSError("gone")

    async def hang(_: float) -> None:
        await anyio.sleep_forever()

    for progress in (fail, hang):
        assert (await run("sleep.py", timeout_s=0.4, progress=progress)).timed_out


@LINUX
@pytest.mark.parametrize("name", ["sleep.py", "stubborn.py", "daemon.sh", "flood.py"])
@with_and_without_sandbox
async def test_cancelled_run_leaves_nothing(run: Runner, marker: dict[str, str], temporary: Path, name: str) -> None:
    started = anyio.Event()

    async def progress(_: float) -> None:
        started.set()

    async def run_script() -> None:
        await run(name, env=marker, progress=progress)
        started.set()  # a short script may report no progress

    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_script)
            await started.wait()
            tasks.cancel_scope.cancel()
    assert remaining_directories(temporary) == ["session"]
    for step in range(3):  # cancelled at the start of a run
        with anyio.move_on_after(step * 0.03):
            await run(name, env=marker)
        assert remaining_directories(temporary) == ["session"]
    assert (await run("three.sh")).exit_code == 3


async def test_close_and_garbage_collection_remove_work_directories(registry: Registry, temporary: Path) -> None:
    run = Runner(registry, "none")
    run.scripts.workspace()
    await run("keep.sh", "x")
    assert remaining_directories(temporary) == ["session", "session"]
    assert os.stat(run.workspace.path).st_mode & 0o777 == 0o700
    run.scripts.close()
    run.scripts.close()
    assert os.listdir(temporary) == []
    run = Runner(registry, "none")
    assert remaining_directories(temporary) == ["session"]
    del run
    gc.collect()
    assert os.listdir(temporary) == []


def test_default_limits_equal_those_of_manual(registry: Registry) -> None:
    default, manual = ScriptSettings(), (ROOT / "docs/scripts.md").read_text()
    run = Runner(registry, "none", **{**asdict(default), "sandbox": "off", "timeout_s": 60})
    limits = run.scripts.explain(RunRequest(skill=run.skill, path="scripts/three.sh"), run.workspace).command.limits
    assert limits["CPU"] == (default.timeout_s + 5) * (os.cpu_count() or 1)
    assert limits["CORE"] == limits["MSGQUEUE"] == limits["RTPRIO"] == 0
    for text in (
        f"| {default.timeout_s} s; a call may ask for up to {default.max_timeout_s} s |", f"| {limits['NPROC']} beyond",
        f"| {limits['DATA'] / (1 << 30):g} GiB; all", f"| {default.concurrent}, over HTTP",
        f"| {default.output_bytes / 1024:g} KiB |", f"| {limits['FSIZE'] / (1 << 20):g} MiB |",
        f"| {limits['NOFILE']} a process; no core files, no message queues |",
        f"| {default.workspace_bytes / (1 << 20):g} MiB and {MAX_FILES:,} files and folders",
    ):  # fmt: skip
        assert text in manual
    run.workspace.close()
    assert not os.path.exists(run.workspace.path)  # the dry run has ended
    run.scripts.close()


async def test_log_names_script_without_arguments(run: Runner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mcp_skills_server")
    await run("three.sh", "s3cret", env={"KEY": "s3cret"})
    assert "ran scripts/three.sh of zoo: exit code 3" in caplog.text
    assert "s3cret" not in caplog.text
    await run("sleep.py", timeout_s=0.2)
    assert "ran scripts/sleep.py of zoo: ended by the server, " in caplog.messages[-1]
