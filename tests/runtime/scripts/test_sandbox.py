"""What a script in the sandbox sees of the machine and what not, and what happens where there is no sandbox."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import UsageError
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
    return zoo.opened(zoo.build(tmp_path_factory.mktemp("skills")))


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


# What a script sees


@BOXED
@pytest.mark.requirement("SP-31")
async def test_there_is_no_network_unless_it_is_allowed(registry: Registry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE)
        port = str(server.getsockname()[1])
        refused = await ran(registry, "connect.py", port)
        assert refused.exit_code == 1 and "Error" in refused.stderr

        async with anyio.create_task_group() as tasks:

            async def answer() -> None:
                accepted, _ = await anyio.to_thread.run_sync(server.accept)
                with accepted:
                    accepted.sendall(b"hello")

            tasks.start_soon(answer)
            allowed = await ran(registry, "connect.py", port, network=True)
        assert allowed.stdout == "hello\n", allowed.stderr


@BOXED
async def test_the_network_may_be_for_one_skill_alone(registry: Registry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert (await ran(registry, "connect.py", port, network_of=("another",))).exit_code == 1
        async with anyio.create_task_group() as tasks:

            async def answer() -> None:
                accepted, _ = await anyio.to_thread.run_sync(server.accept)
                with accepted:
                    accepted.sendall(b"hello")

            tasks.start_soon(answer)
            assert (await ran(registry, "connect.py", port, network_of=("zoo",))).stdout == "hello\n"


@BOXED
@pytest.mark.requirement("SP-32")
async def test_the_skill_is_read_only(registry: Registry) -> None:
    outcome = await ran(registry, "spoil.py")
    assert outcome.exit_code == 1 and "Read-only file system" in outcome.stderr


@BOXED
@pytest.mark.requirement("SP-32")
async def test_only_the_work_directory_and_tmp_can_be_written(registry: Registry) -> None:
    outcome = await ran(registry, "write.sh")
    assert outcome.stdout.split() == ["/workspace", "/tmp", "/dev/shm"], outcome.stderr


@BOXED
@pytest.mark.requirement("SP-33")
async def test_our_environment_is_not_there_to_be_read(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOP_SECRET", "hunter2")
    outcome = await ran(registry, "snoop.py")
    assert outcome.exit_code == 0 and "SKILL_RUN=" in outcome.stdout
    assert "hunter2" not in outcome.stdout and f"/proc/{os.getpid()}" not in outcome.stdout


@BOXED
@pytest.mark.requirement("SP-30")
@pytest.mark.parametrize("place", ["home", "skills", "temporary", "/etc/shadow", "/root/.bashrc", "/var/log", "/sys"])
async def test_other_files_are_not_there_and_the_user_is_nobody(
    registry: Registry, tmp_path: Path, temporary: Path, place: str
) -> None:
    (tmp_path / "secret").write_text("x")
    known = {"home": f"{Path.home()}/.profile", "skills": registry.roots[0].path, "temporary": str(tmp_path)}
    outcome = await ran(registry, "look.py", known.get(place, place))
    assert outcome.stdout == "False 65534\n"


@BOXED
async def test_no_privilege_is_left(registry: Registry) -> None:
    reported = (await ran(registry, "status.sh")).stdout.split()
    assert reported == ["CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1"]


# A root server


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


def with_script(tmp_path: Path, text: str) -> Registry:
    top = zoo.build(tmp_path / "skills")
    (top / "zoo" / "scripts" / "own.sh").write_text(text)
    return zoo.opened(top)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("setting", ["kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory"])
async def test_no_setting_of_the_kernel_can_be_written(tmp_path: Path, setting: str) -> None:
    there = f"/proc/sys/{setting}"
    text = f'was=$(cat {there}); if echo "$was" > {there}; then echo wrote; else echo refused; fi\n'
    outcome = await ran(with_script(tmp_path, text), "own.sh")
    assert outcome.stdout == "refused\n", outcome.stderr


@pytest.mark.usefixtures("way")
async def test_a_new_proc_is_no_way_around_that(tmp_path: Path) -> None:
    inner = "mkdir p; mount -t proc proc p && cat p/sys/kernel/core_pattern > p/sys/kernel/core_pattern && echo wrote"
    text = f"unshare -Urmpf sh -c '{inner}'; mount -o remount,rw /proc && echo wrote\necho end\n"
    assert (await ran(with_script(tmp_path, text), "own.sh")).stdout == "end\n"


@dropped
@pytest.mark.requirement("SP-30")
async def test_to_the_kernel_a_script_of_root_is_nobody(tmp_path: Path) -> None:
    registry = with_script(tmp_path, "touch made $TMPDIR/made /dev/shm/made && echo made\n")
    runner = Scripts(registry, ScriptSettings(sandbox="required"))
    space = runner.workspace()
    skill = registry.snapshot.skills["zoo"]
    outcome = await runner.run(skill, "scripts/own.sh", space, workdir="a/b")
    assert outcome.stdout == "made\n", outcome.stderr
    assert {os.lstat(f"{space.path}/{each}").st_uid for each in ("a", "a/b", "a/b/made")} == {65534}
    assert {os.lstat(f"{space.path}/{each}").st_gid for each in ("", "a", "a/b", "a/b/made")} == {65534}
    runner.close()


@dropped
async def test_what_a_script_leaves_in_a_folder_is_never_roots(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    registry = with_script(
        tmp_path, f"cp /bin/sh {folder}/sh && chmod 6755 {folder}/sh && grep ' {folder} ' /proc/mounts\n"
    )
    outcome = await ran(registry, "own.sh", folders=(str(folder),))
    assert "nosuid" in outcome.stdout, outcome.stderr
    assert ((folder / "sh").stat().st_uid, (folder / "sh").stat().st_gid) == (65534, 65534)


@dropped
def test_a_folder_that_scripts_cannot_write_to_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, mode in (("open", 0o777), ("locked", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    with caplog.at_level(logging.INFO, logger="mcp_skills_server"):
        sandbox.choose("required", network=False, folders=[str(tmp_path / "open"), str(tmp_path / "locked")])
    first, second = caplog.messages
    assert first == "scripts run in a sandbox of bubblewrap, without network, as user 65534"
    assert "65534" in second and f"{tmp_path}/locked" in second


@BOXED
@pytest.mark.skipif(not sandbox.is_root(), reason="only root has another way")
def test_where_root_cannot_become_another_user_that_is_told_and_no_folder_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sandbox, "_setpriv_choices", lambda: ["/no/such/setpriv", None])
    found = sandbox.choose("required", network=False, folders=())
    assert found is not None and found.user is None
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "are root to the kernel" in said.getMessage() and "/no/such/setpriv" in said.getMessage()
    assert found.gaps and "are root to the kernel" in found.gaps[0]
    with pytest.raises(UsageError, match=r"scripts would be root in .*setpriv.*; correct that, or run") as caught:
        sandbox.choose("required", network=False, folders=[str(tmp_path)])
    assert "\n" not in str(caught.value)


# What of /etc is there


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("place", ["/etc/ssl/private", "/etc/pki/tls/private", "/etc/pki/nssdb", "/etc/shadow"])
async def test_private_keys_are_not_there(registry: Registry, place: str) -> None:
    assert (await ran(registry, "look.py", place)).stdout == "False 65534\n"


@pytest.mark.usefixtures("way")
@pytest.mark.skipif(not os.path.isdir("/etc/ssl/certs"), reason="this system has no /etc/ssl/certs")
async def test_certificates_are_there(tmp_path: Path) -> None:
    outcome = await ran(with_script(tmp_path, "ls /etc/ssl/certs\n"), "own.sh")
    assert set(outcome.stdout.split()) >= set(sorted(os.listdir("/etc/ssl/certs"))[:10]), outcome.stderr


@BOXED
async def test_the_operators_folders_can_be_read_and_written(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "shared folder"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "note").write_text("from outside\n")
    outcome = await ran(registry, "share.sh", str(folder), folders=(str(folder),))
    assert outcome.stdout == "from outside\n", outcome.stderr
    assert (folder / "answer").read_text() == "from inside\n"


@BOXED
async def test_libraries_find_shared_memory(registry: Registry) -> None:
    outcome = await ran(registry, "pool.py")
    assert outcome.stdout == "3\n", outcome.stderr


@BOXED
async def test_an_interpreter_outside_the_system_is_shown_with_what_it_needs(
    registry: Registry, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "secret").write_text("x")
    (tools / "mysh").symlink_to(shutil.which("sh") or "/bin/sh")
    outcome = await ran(registry, "three.sh", interpreters={".sh": str(tools / "mysh")})
    assert outcome.exit_code == 3, outcome.stderr
    seen = await ran(registry, "look.py", str(tools / "secret"), interpreters={".sh": str(tools / "mysh")})
    assert seen.stdout.startswith("False")


@BOXED
async def test_a_name_that_is_no_directory_name_is_not_made_one(tmp_path: Path) -> None:
    top = tmp_path / "skills" / "odd"
    top.mkdir(parents=True)
    (top / "SKILL.md").write_text("---\nname: ../../etc\ndescription: Odd.\n---\nx\n")
    (top / "go.sh").write_text("echo $SKILL_DIR\n")
    odd = zoo.opened(tmp_path / "skills")
    runner = Scripts(odd, ScriptSettings(sandbox="required"))
    outcome = await runner.run(odd.snapshot.skills["odd"], "go.sh", runner.workspace())
    assert outcome.stdout == "/skills/skill\n"
    runner.close()


# Where there is none


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH on which bubblewrap is not."""
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: None)


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("root", [True, False])
def test_the_sandbox_is_required_by_default_and_refused_where_it_is_missing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    """11.17: without bubblewrap, scripts of root read /etc/shadow."""
    monkeypatch.setattr(sandbox, "is_root", lambda: root)
    instead = "run the server as another user" if root else "give --sandbox off"
    with pytest.raises(
        UsageError, match=rf"bubblewrap .* is not installed; install a working bubblewrap, or {instead}"
    ) as caught:
        Scripts(registry, ScriptSettings())
    assert "\n" not in str(caught.value)


async def test_root_is_refused_without_a_sandbox_at_the_start_and_at_each_call(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """11.17: on every protocol; the library's session has it as a result."""
    monkeypatch.setattr(sandbox, "is_root", lambda: True)
    with pytest.raises(UsageError, match=r"as root without a sandbox.*run the server as another user$") as caught:
        Runtime(registry, scripts=ScriptSettings(sandbox="off"))
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(sandbox, "is_root", lambda: False)
    runtime = Runtime(registry, scripts=ScriptSettings(sandbox="off"))
    monkeypatch.setattr(sandbox, "is_root", lambda: True)
    session = runtime.session()
    await session.call("skills_load", {"names": ["zoo"]})
    result = await session.call("skills_run_script", {"path": "scripts/three.sh"})
    assert result["isError"] is True and "as root without a sandbox" in str(result["content"])
    runtime.close()


def broken(tmp_path: Path, text: str) -> str:
    path = tmp_path / "bwrap"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_required_sandbox_that_does_not_work_is_refused(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = broken(tmp_path, "#!/bin/sh\necho bwrap: No permissions to create new namespace >&2\nexit 1\n")
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: program)
    with pytest.raises(UsageError, match=r"does not work here .*No permissions to create new namespace"):
        Scripts(registry, ScriptSettings(sandbox="required"))


@each_row("text", ["#!/bin/sh\nexit 1\n", "#!/no/such/program\n", "no program"])
def test_a_broken_one_is_refused_and_never_left_out(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    program = broken(tmp_path, text)
    monkeypatch.setattr(sandbox.shutil, "which", lambda _: program)
    with pytest.raises(UsageError, match="does not work here"):
        Scripts(registry, ScriptSettings())


async def test_a_result_says_how_it_ran(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "is_off_forbidden", lambda: False)
    outcome = await ran(registry, "three.sh", sandbox="off")
    assert (outcome.sandbox, outcome.user, outcome.sandbox_gaps) == ("none", os.geteuid(), ())


@BOXED
async def test_a_result_says_what_the_sandbox_lacks(
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
        ("/no/such/folder", "no such folder"),
        ("/", "the whole disk"),
        ("/dev", "its own /dev"),
        ("/tmp", "its own /tmp"),
    ],
)
def test_a_folder_that_cannot_be_shared_is_refused(registry: Registry, folder: str, why: str) -> None:
    for mode in ("required", "off"):
        with pytest.raises(UsageError, match=why):
            Scripts(registry, ScriptSettings(sandbox=mode, folders=(folder,)))


def test_a_whole_home_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    view = sandbox.SandboxView("/s", "/w", "/t", "/m", needs=("/home/someone", "/home", "/", "/opt/x", "/opt/x/bin/x"))
    words = sandbox.Bubblewrap("bwrap", folders=()).prefix(view)(9, None)
    shown = {words[place + 1] for place, word in enumerate(words) if word == "--ro-bind-try"}
    assert "/opt/x" in shown and not shown & {"/home/someone", "/home", "/", "/opt/x/bin/x"}
