"""The bubblewrap sandbox: what a script can see and do, and refusals without a sandbox."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from catalog.forest import load_registry, write_files
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.scripts import sandbox, system_calls
from mcp_skills_server.runtime.scripts.outcome import Outcome
from mcp_skills_server.runtime.scripts.runner import RunRequest, Scripts
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from runtime.scripts import zoo
from runtime.support import error_of
from tables import each_row

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there is no bubblewrap")]

DEADLINE = 20.0
needs_bubblewrap = pytest.mark.needs_program("bwrap")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return load_registry(zoo.write(tmp_path_factory.mktemp("skills")))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    assert list(directory.iterdir()) == []


async def run(registry: Registry, name: str, *args: str, **settings: Any) -> Outcome:
    """Run a script of the zoo in a sandbox with these settings."""
    runner = Scripts(registry, ScriptSettings(**{"sandbox": "required", **settings}))
    try:
        with anyio.fail_after(DEADLINE):
            skill = registry.snapshot.skills["zoo"]
            request = RunRequest(skill=skill, path=f"scripts/{name}", args=args, timeout_s=10)
            return await runner.run(request, runner.workspace())
    finally:
        runner.close()


def registry_with_script(tmp_path: Path, text: str) -> Registry:
    """Return a registry with the zoo, to which a script own.sh is added."""
    top = zoo.write(tmp_path / "skills")
    (top / "zoo" / "scripts" / "own.sh").write_text(text)
    return load_registry(top)


@needs_bubblewrap
@pytest.mark.requirement("SP-31")
async def test_network_is_closed_unless_allowed(registry: Registry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"hello")

        for settings in ({}, {"network_of": ("another",)}):
            outcome = await run(registry, "connect.py", port, **settings)
            assert outcome.exit_code == 1 and "Error" in outcome.stderr
        for settings in ({"network": True}, {"network_of": ("zoo",)}):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(anyio.to_thread.run_sync, answer, abandon_on_cancel=True))
                assert (await run(registry, "connect.py", port, **settings)).stdout == "hello\n"


@needs_bubblewrap
@pytest.mark.requirement("SP-32")
async def test_sandbox_is_unprivileged_and_read_only_outside_work_directories(registry: Registry) -> None:
    outcome = await run(registry, "spoil.py")
    assert outcome.exit_code == 1 and "Read-only file system" in outcome.stderr
    assert (await run(registry, "write.sh")).stdout.split() == ["/workspace", "/tmp", "/dev/shm"]
    assert (await run(registry, "pool.py")).stdout == "3\n"  # multiprocessing needs /dev/shm
    reported = (await run(registry, "status.sh")).stdout.split()
    assert reported == ["CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1"]


@needs_bubblewrap
@pytest.mark.requirement("SP-33")
async def test_server_environment_is_unreadable_through_proc(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOP_SECRET", "hunter2")
    outcome = await run(registry, "snoop.py")
    assert outcome.exit_code == 0 and "SKILL_RUN=" in outcome.stdout
    assert "hunter2" not in outcome.stdout and f"/proc/{os.getpid()}" not in outcome.stdout


@needs_bubblewrap
@pytest.mark.requirement("SP-30")
@pytest.mark.parametrize("place", ["home", "skills", "temporary", "/etc/shadow", "/root/.bashrc", "/var/log", "/sys"])
async def test_other_files_are_absent_and_user_is_nobody(registry: Registry, tmp_path: Path, place: str) -> None:
    (tmp_path / "secret").write_text("x")
    paths = {"home": f"{Path.home()}/.profile", "skills": registry.roots[0].path, "temporary": str(tmp_path)}
    outcome = await run(registry, "look.py", paths.get(place, place))
    assert outcome.stdout == "False 65534\n"


def needs_setpriv(test: Any) -> Any:
    """Mark a test of root's scripts, which run as another user with setpriv."""
    needs_root = pytest.mark.skipif(not sandbox.is_root(), reason="only root becomes another user")
    return pytest.mark.needs_program("bwrap", "setpriv")(needs_root(test))


@pytest.fixture(params=[pytest.param(each, marks=needs_bubblewrap) for each in ("setpriv", "namespace")])
def user_change(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which scripts of root become nobody: setpriv, or only a user namespace."""
    if request.param == "namespace":
        monkeypatch.setattr(sandbox, "_setpriv_choices", lambda: [None])
    return request.param


@pytest.mark.usefixtures("user_change")
async def test_kernel_settings_are_read_only_even_through_new_proc(tmp_path: Path) -> None:
    text = "cd /proc/sys\n"
    for each in ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory"):
        text += f"was=$(cat {each}) && echo tried; echo $was > {each} && echo wrote\n"
    inner = "mkdir p; mount -t proc proc p && cat p/sys/kernel/core_pattern > p/sys/kernel/core_pattern && echo wrote"
    text += f"unshare -Urmpf sh -c '{inner}'; mount -o remount,rw /proc && echo wrote\necho end\n"
    outcome = await run(registry_with_script(tmp_path, text), "own.sh")
    assert outcome.stdout.split() == ["tried", "tried", "tried", "end"], outcome.stderr


@pytest.mark.usefixtures("user_change")
async def test_lists_of_kernel_keys_are_empty(tmp_path: Path) -> None:
    """Regression: /proc/keys listed the keys of the operator."""
    text = "for each in keys key-users; do [ -e /proc/$each ] && cat /proc/$each; done; echo end\n"
    outcome = await run(registry_with_script(tmp_path, text), "own.sh")
    assert (outcome.stdout, outcome.stderr) == ("end\n", "")


@pytest.mark.usefixtures("user_change")
async def test_zero_device_is_readable_but_no_shared_memory(tmp_path: Path) -> None:
    """Regression: shared memory that was in no page table any more, of /dev/zero, had no limit."""
    code = "import mmap, os; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)"
    text = f'head -c 3 /dev/zero | od -An -tx1; python3 -c "{code}"\n'
    outcome = await run(registry_with_script(tmp_path, text), "own.sh")
    assert outcome.stdout == " 00 00 00\n"
    assert "No such device" in outcome.stderr


@needs_setpriv
@pytest.mark.requirement("SP-30")
async def test_scripts_of_root_run_as_nobody_for_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    text = "touch made $TMPDIR/made /dev/shm/made && echo made\n"
    text += f"cp /bin/sh {folder}/sh && chmod 6755 {folder}/sh && grep ' {folder} ' /proc/mounts\n"
    registry = registry_with_script(tmp_path, text)
    runner = Scripts(registry, ScriptSettings(sandbox="required", folders=(str(folder),)))
    workspace = runner.workspace()
    request = RunRequest(skill=registry.snapshot.skills["zoo"], path="scripts/own.sh", workdir="a/b")
    outcome = await runner.run(request, workspace)
    assert outcome.stdout.startswith("made\n"), outcome.stderr
    assert "nosuid" in outcome.stdout
    created = [f"{workspace.path}/{each}" for each in ("a", "a/b", "a/b/made")]
    for stat in map(os.lstat, [*created, folder / "sh"]):
        assert (stat.st_uid, stat.st_gid) == (65534, 65534)
    assert os.lstat(workspace.path).st_gid == 65534
    runner.close()


@needs_setpriv
def test_folder_not_writable_by_scripts_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mcp_skills_server")
    folders = [str(tmp_path / "open"), str(tmp_path / "locked")]
    for name, mode in zip(folders, (0o777, 0o755), strict=True):
        os.mkdir(name)
        os.chmod(name, mode)
    sandbox.choose("required", network=False, folders=folders)
    first, second = caplog.messages
    assert first == "scripts run in a sandbox of bubblewrap, without network, as user 65534"
    assert "65534" in second and folders[1] in second


@needs_bubblewrap
@pytest.mark.skipif(not sandbox.is_root(), reason="only root changes the user")
def test_shared_folder_is_refused_if_root_cannot_drop_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sandbox, "_setpriv_choices", lambda: ["/no/such/setpriv", None])
    found = sandbox.choose("required", network=False, folders=())
    assert found is not None and found.user is None
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "are root to the kernel" in warning and "/no/such/setpriv" in warning
    assert "are root to the kernel" in found.gaps[0]
    with pytest.raises(UsageError, match=r"^scripts would be root in .*setpriv.*; correct that, or run .*$"):
        sandbox.choose("required", network=False, folders=[str(tmp_path)])


@pytest.mark.usefixtures("user_change")
async def test_certificates_are_present_and_private_keys_absent(tmp_path: Path) -> None:
    private = ("/etc/ssl/private", "/etc/pki/tls/private", "/etc/pki/nssdb", "/etc/shadow")
    outcome = await run(registry_with_script(tmp_path, f"ls -d {' '.join(private)}; ls /etc/ssl/certs\n"), "own.sh")
    visible = set(outcome.stdout.split())
    assert not visible & {*private}
    if os.path.isdir("/etc/ssl/certs"):  # noqa: ASYNC240
        assert visible >= set(sorted(os.listdir("/etc/ssl/certs"))[:10]), outcome.stderr


@needs_bubblewrap
async def test_operator_interpreter_and_folders_are_mounted(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "mysh").symlink_to(shutil.which("sh") or "/bin/sh")
    folder = write_files(tmp_path / "shared folder", {"note": "from outside\n"})
    folder.chmod(0o777)
    settings: Any = {"interpreters": {".sh": str(tmp_path / "mysh")}, "folders": (str(folder),)}
    outcome = await run(registry, "share.sh", str(folder), **settings)
    assert outcome.stdout == "from outside\n", outcome.stderr
    assert await anyio.Path(folder, "answer").read_text() == "from inside\n"
    assert (await run(registry, "look.py", str(tmp_path / "secret"), **settings)).stdout.startswith("False")


def test_home_directory_is_never_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    view = sandbox.SandboxView("/s", "/w", "/t", "/m", needs=("/home/someone", "/home", "/", "/opt/x", "/opt/x/bin/x"))
    argv = sandbox.Bubblewrap("bwrap", folders=()).prefix(view, 9, None)
    mounted = {argv[number + 1] for number, word in enumerate(argv) if word == "--ro-bind-try"}
    assert "/opt/x" in mounted
    assert not mounted & {"/home/someone", "/home", "/", "/opt/x/bin/x"}


@needs_bubblewrap
async def test_invalid_skill_name_is_not_used_as_directory(tmp_path: Path) -> None:
    odd = {"odd/SKILL.md": "---\nname: ../../etc\ndescription: Odd.\n---\nx\n", "odd/go.sh": "echo $SKILL_DIR\n"}
    registry = load_registry(write_files(tmp_path / "skills", odd))
    runner = Scripts(registry, ScriptSettings(sandbox="required"))
    outcome = await runner.run(RunRequest(skill=registry.snapshot.skills["odd"], path="go.sh"), runner.workspace())
    assert outcome.stdout == "/skills/skill\n"
    runner.close()


@pytest.mark.parametrize(
    ("is_root", "alternative"), [(True, "run the server as another user"), (False, "give --sandbox off")]
)
def test_missing_bubblewrap_is_a_usage_error(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, is_root: bool, alternative: str
) -> None:
    """Regression: without bubblewrap, scripts of root read /etc/shadow."""
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    monkeypatch.setattr(sandbox, "is_root", lambda: is_root)
    message = rf"bubblewrap .* is not installed; install a working bubblewrap, or {alternative}.*$"
    for waits in (True, False):
        with pytest.raises(UsageError, match=message):
            Scripts(registry, ScriptSettings(wait_for_sandbox=waits))


async def test_root_without_sandbox_is_refused_at_start_and_each_call(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: root's scripts ran without a sandbox."""
    monkeypatch.setattr(sandbox, "is_root", lambda: True)
    with pytest.raises(UsageError, match=r"as root without a sandbox.*run the server as another user$"):
        Runtime(registry, scripts=ScriptSettings(sandbox="off"))
    monkeypatch.setattr(sandbox, "is_root", lambda: False)
    runtime = Runtime(registry, scripts=ScriptSettings(sandbox="off"))
    session = runtime.session()
    await session.call("skills_load", {"names": ["zoo"]})
    arguments = {"path": "scripts/three.sh"}
    outcome = (await session.call("skills_run_script", arguments))["structuredContent"]
    assert (outcome["sandbox"], outcome["user"], outcome["sandbox_gaps"]) == ("none", os.geteuid(), [])
    monkeypatch.setattr(sandbox, "is_root", lambda: True)
    assert "as root without a sandbox" in await error_of(session, "skills_run_script", arguments)
    runtime.close()


@each_row(("text", "reason"), [
    ("#!/bin/sh\necho bwrap: No permissions to create new namespace >&2\nexit 1\n", "No permissions to create new"),
    ("#!/bin/sh\nexit 1\n", "it ended with 1"), ("#!/no/such/program\n", "No such file"), ("no program", "format"),
])  # fmt: skip
def test_broken_bubblewrap_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: str(program))
    with pytest.raises(UsageError, match=rf"does not work here .*{reason}"):
        Scripts(Registry([]), ScriptSettings())
    runner = Scripts(Registry([]), ScriptSettings(wait_for_sandbox=False))
    with pytest.raises(RequestError, match=rf"^Nothing was run: .*does not work here .*{reason}.* must correct that$"):
        runner.workspace()
    assert caplog.messages[0].startswith(
        "no script will run: scripts need a sandbox, but bubblewrap does not work here"
    )


@needs_bubblewrap
async def test_outcome_names_gaps_of_the_sandbox(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = await run(registry, "three.sh")
    assert (outcome.sandbox, outcome.sandbox_gaps) == ("bubblewrap", ())
    assert outcome.user == (65534 if sandbox.is_root() else os.geteuid())
    monkeypatch.setattr(system_calls, "program", lambda: None)  # an unsupported machine
    outcome = await run(registry, "three.sh")
    assert [each for each in outcome.sandbox_gaps if "no seccomp filter" in each]
    assert len([each for each in caplog.messages if "no seccomp filter" in each]) == 1


@each_row(("folder", "reason"), [
    ("/no/such/folder", "no such folder"), ("/", "the whole disk"), ("/dev", "its own /dev"),
    ("/tmp", "its own /tmp; give a folder in it"), ("/proc/self", "its own /proc; give another$"),
])  # fmt: skip
def test_invalid_shared_folder_is_refused(registry: Registry, folder: str, reason: str) -> None:
    for mode in ("required", "off"):
        with pytest.raises(UsageError, match=reason):
            Scripts(registry, ScriptSettings(sandbox=mode, folders=(folder,)))
