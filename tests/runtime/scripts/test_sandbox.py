"""What a script in the sandbox sees of the machine and what not, and what happens where there is no sandbox."""

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

from catalog.forest import loaded, plant
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.scripts import sandbox, system_calls
from mcp_skills_server.runtime.scripts.outcome import Outcome
from mcp_skills_server.runtime.scripts.runner import Scripts
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from runtime.scripts import zoo
from tables import each_row

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there is no bubblewrap")]

DEADLINE = 20.0
BOXED = pytest.mark.needs_program("bwrap")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return loaded(zoo.write(tmp_path_factory.mktemp("skills")))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert list(place.iterdir()) == []


async def ran(registry: Registry, name: str, *args: str, **settings: Any) -> Outcome:
    runner = Scripts(registry, ScriptSettings(**{"sandbox": "required", **settings}))
    try:
        with anyio.fail_after(DEADLINE):
            skill = registry.snapshot.skills["zoo"]
            return await runner.run(skill, f"scripts/{name}", runner.workspace(), args=args, timeout_s=10)
    finally:
        runner.close()


def with_script(tmp_path: Path, text: str) -> Registry:
    top = zoo.write(tmp_path / "skills")
    (top / "zoo" / "scripts" / "own.sh").write_text(text)
    return loaded(top)


@BOXED
@pytest.mark.requirement("SP-31")
async def test_network_is_closed_unless_allowed(registry: Registry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"hello")

        for settings in ({}, {"network_of": ("another",)}):
            refused = await ran(registry, "connect.py", port, **settings)
            assert refused.exit_code == 1 and "Error" in refused.stderr
        for settings in ({"network": True}, {"network_of": ("zoo",)}):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(anyio.to_thread.run_sync, answer, abandon_on_cancel=True))
                assert (await ran(registry, "connect.py", port, **settings)).stdout == "hello\n"


@BOXED
@pytest.mark.requirement("SP-32")
async def test_sandbox_is_read_only_outside_work_directories_and_unprivileged(registry: Registry) -> None:
    outcome = await ran(registry, "spoil.py")
    assert outcome.exit_code == 1 and "Read-only file system" in outcome.stderr
    assert (await ran(registry, "write.sh")).stdout.split() == ["/workspace", "/tmp", "/dev/shm"]
    assert (await ran(registry, "pool.py")).stdout == "3\n"  # libraries find shared memory
    reported = (await ran(registry, "status.sh")).stdout.split()
    assert reported == ["CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1"]


@BOXED
@pytest.mark.requirement("SP-33")
async def test_server_environment_is_unreadable_through_proc(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOP_SECRET", "hunter2")
    outcome = await ran(registry, "snoop.py")
    assert outcome.exit_code == 0 and "SKILL_RUN=" in outcome.stdout
    assert "hunter2" not in outcome.stdout and f"/proc/{os.getpid()}" not in outcome.stdout


@BOXED
@pytest.mark.requirement("SP-30")
@pytest.mark.parametrize("place", ["home", "skills", "temporary", "/etc/shadow", "/root/.bashrc", "/var/log", "/sys"])
async def test_other_files_are_absent_and_user_is_nobody(
    registry: Registry, tmp_path: Path, temporary: Path, place: str
) -> None:
    (tmp_path / "secret").write_text("x")
    known = {"home": f"{Path.home()}/.profile", "skills": registry.roots[0].path, "temporary": str(tmp_path)}
    outcome = await ran(registry, "look.py", known.get(place, place))
    assert outcome.stdout == "False 65534\n"


def dropped(test: Any) -> Any:
    """For tests that need a sandbox in which root's scripts are nobody to the kernel too."""
    rooted = pytest.mark.skipif(not sandbox.is_root(), reason="only root becomes another user")
    return pytest.mark.needs_program("bwrap", "setpriv")(rooted(test))


@pytest.fixture(params=[pytest.param(way, marks=BOXED) for way in ("dropped", "renamed")])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to begin; as root, the second one is what is left without setpriv."""
    if request.param == "renamed":
        monkeypatch.setattr(sandbox, "_setpriv_choices", lambda: [None])
    return request.param


@pytest.mark.usefixtures("way")
async def test_kernel_settings_are_read_only_even_through_new_proc(tmp_path: Path) -> None:
    settings = ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory")
    text = "".join(
        f"cd /proc/sys; was=$(cat {each}) && echo tried; echo $was > {each} && echo wrote\n" for each in settings
    )
    inner = "mkdir p; mount -t proc proc p && cat p/sys/kernel/core_pattern > p/sys/kernel/core_pattern && echo wrote"
    text += f"unshare -Urmpf sh -c '{inner}'; mount -o remount,rw /proc && echo wrote\necho end\n"
    outcome = await ran(with_script(tmp_path, text), "own.sh")
    assert outcome.stdout.split() == ["tried", "tried", "tried", "end"], outcome.stderr


@dropped
@pytest.mark.requirement("SP-30")
async def test_scripts_of_root_run_as_nobody_for_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    text = "touch made $TMPDIR/made /dev/shm/made && echo made\n"
    text += f"cp /bin/sh {folder}/sh && chmod 6755 {folder}/sh && grep ' {folder} ' /proc/mounts\n"
    registry = with_script(tmp_path, text)
    runner = Scripts(registry, ScriptSettings(sandbox="required", folders=(str(folder),)))
    space = runner.workspace()
    outcome = await runner.run(registry.snapshot.skills["zoo"], "scripts/own.sh", space, workdir="a/b")
    assert outcome.stdout.startswith("made\n") and "nosuid" in outcome.stdout, outcome.stderr
    left = [os.lstat(f"{space.path}/{each}") for each in ("a", "a/b", "a/b/made")]
    left += [os.lstat(folder / "sh")]
    assert {(each.st_uid, each.st_gid) for each in left} == {(65534, 65534)}
    assert os.lstat(space.path).st_gid == 65534
    runner.close()


@dropped
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


@BOXED
@pytest.mark.skipif(not sandbox.is_root(), reason="only root has another way")
def test_shared_folder_is_refused_if_root_cannot_drop_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sandbox, "_setpriv_choices", lambda: ["/no/such/setpriv", None])
    found = sandbox.choose("required", network=False, folders=())
    assert found is not None and found.user is None
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "are root to the kernel" in said and "/no/such/setpriv" in said
    assert found.gaps and "are root to the kernel" in found.gaps[0]
    with pytest.raises(UsageError, match=r"^scripts would be root in .*setpriv.*; correct that, or run .*$"):
        sandbox.choose("required", network=False, folders=[str(tmp_path)])


@pytest.mark.usefixtures("way")
async def test_certificates_are_present_and_private_keys_absent(tmp_path: Path) -> None:
    private = ("/etc/ssl/private", "/etc/pki/tls/private", "/etc/pki/nssdb", "/etc/shadow")
    outcome = await ran(with_script(tmp_path, f"ls -d {' '.join(private)}; ls /etc/ssl/certs\n"), "own.sh")
    there = set(outcome.stdout.split())
    assert not there & {*private}
    if os.path.isdir("/etc/ssl/certs"):  # noqa: ASYNC240
        assert there >= set(sorted(os.listdir("/etc/ssl/certs"))[:10]), outcome.stderr


@BOXED
async def test_operator_interpreter_and_folders_are_mounted(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "mysh").symlink_to(shutil.which("sh") or "/bin/sh")
    folder = plant(tmp_path / "shared folder", {"note": "from outside\n"})
    folder.chmod(0o777)
    settings: Any = {"interpreters": {".sh": str(tmp_path / "mysh")}, "folders": (str(folder),)}
    outcome = await ran(registry, "share.sh", str(folder), **settings)
    assert outcome.stdout == "from outside\n", outcome.stderr
    assert await anyio.Path(folder, "answer").read_text() == "from inside\n"
    assert (await ran(registry, "look.py", str(tmp_path / "secret"), **settings)).stdout.startswith("False")


def test_home_directory_is_never_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    view = sandbox.SandboxView("/s", "/w", "/t", "/m", needs=("/home/someone", "/home", "/", "/opt/x", "/opt/x/bin/x"))
    words = sandbox.Bubblewrap("bwrap", folders=()).prefix(view, 9, None)
    shown = {words[place + 1] for place, word in enumerate(words) if word == "--ro-bind-try"}
    assert "/opt/x" in shown and not shown & {"/home/someone", "/home", "/", "/opt/x/bin/x"}


@BOXED
async def test_invalid_skill_name_is_not_used_as_directory(tmp_path: Path) -> None:
    odd = {"odd/SKILL.md": "---\nname: ../../etc\ndescription: Odd.\n---\nx\n", "odd/go.sh": "echo $SKILL_DIR\n"}
    registry = loaded(plant(tmp_path / "skills", odd))
    runner = Scripts(registry, ScriptSettings(sandbox="required"))
    outcome = await runner.run(registry.snapshot.skills["odd"], "go.sh", runner.workspace())
    assert outcome.stdout == "/skills/skill\n"
    runner.close()


@pytest.mark.parametrize("root", [True, False])
def test_missing_bubblewrap_is_a_usage_error(registry: Registry, monkeypatch: pytest.MonkeyPatch, root: bool) -> None:
    """11.17: without bubblewrap, scripts of root read /etc/shadow."""
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)
    monkeypatch.setattr(sandbox, "is_root", lambda: root)
    instead = "run the server as another user" if root else "give --sandbox off"
    words = rf"bubblewrap .* is not installed; install a working bubblewrap, or {instead}.*$"
    for waits in (True, False):
        with pytest.raises(UsageError, match=words):
            Scripts(registry, ScriptSettings(wait_for_sandbox=waits))


async def test_root_without_sandbox_is_refused_at_start_and_each_call(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """11.17: on every protocol; the library's session has it as a result."""
    monkeypatch.setattr(sandbox, "is_root", lambda: True)
    with pytest.raises(UsageError, match=r"as root without a sandbox.*run the server as another user$"):
        Runtime(registry, scripts=ScriptSettings(sandbox="off"))
    monkeypatch.setattr(sandbox, "is_root", lambda: False)
    runtime = Runtime(registry, scripts=ScriptSettings(sandbox="off"))
    session = runtime.session()
    await session.call("skills_load", {"names": ["zoo"]})
    run = {"path": "scripts/three.sh"}
    outcome = (await session.call("skills_run_script", run))["structuredContent"]
    assert (outcome["sandbox"], outcome["user"], outcome["sandbox_gaps"]) == ("none", os.geteuid(), [])
    monkeypatch.setattr(sandbox, "is_root", lambda: True)
    result = await session.call("skills_run_script", run)
    assert result["isError"] is True and "as root without a sandbox" in str(result["content"])
    runtime.close()


@each_row(
    ("text", "said"),
    [
        ("#!/bin/sh\necho bwrap: No permissions to create new namespace >&2\nexit 1\n", "No permissions to create new"),
        ("#!/bin/sh\nexit 1\n", "it ended with 1"), ("#!/no/such/program\n", "No such file"), ("no program", "format"),
    ],
)  # fmt: skip
def test_broken_bubblewrap_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: str(program))
    with pytest.raises(UsageError, match=rf"does not work here .*{said}"):
        Scripts(Registry([]), ScriptSettings())
    late = Scripts(Registry([]), ScriptSettings(wait_for_sandbox=False))
    with pytest.raises(RequestError, match=rf"^Nothing was run: .*does not work here .*{said}.* must correct that$"):
        late.workspace()
    assert caplog.messages[0].startswith(
        "no script will run: scripts need a sandbox, but bubblewrap does not work here"
    )


@BOXED
async def test_outcome_names_gaps_of_the_sandbox(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = await ran(registry, "three.sh")
    assert (whole.sandbox, whole.sandbox_gaps) == ("bubblewrap", ())
    assert whole.user == (65534 if sandbox.is_root() else os.geteuid())
    monkeypatch.setattr(system_calls, "program", lambda: None)  # as on a machine that the table does not know
    outcome = await ran(registry, "three.sh")
    assert [each for each in outcome.sandbox_gaps if "no seccomp filter" in each]
    assert len([each for each in caplog.messages if "no seccomp filter" in each]) == 1


@each_row(
    ("folder", "why"),
    [
        ("/no/such/folder", "no such folder"), ("/", "the whole disk"), ("/dev", "its own /dev"),
        ("/tmp", "its own /tmp; give a folder in it"), ("/proc/self", "its own /proc; give another$"),
    ],
)  # fmt: skip
def test_invalid_shared_folder_is_refused(registry: Registry, folder: str, why: str) -> None:
    for mode in ("required", "off"):
        with pytest.raises(UsageError, match=why):
            Scripts(registry, ScriptSettings(sandbox=mode, folders=(folder,)))
