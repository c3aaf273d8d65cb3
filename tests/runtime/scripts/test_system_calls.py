"""The seccomp filter of system calls: its BPF program, and its effect in a sandbox."""

from __future__ import annotations

import errno
import json
import platform
import re
import struct
import sys
from pathlib import Path

import pytest

from catalog.forest import load_registry
from mcp_skills_server.runtime.scripts.runner import RunRequest, Scripts
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from mcp_skills_server.runtime.scripts.system_calls import ALLOW, ARCHITECTURES, ERRNO, KILL, numbers, program
from runtime.scripts import zoo

ALLOWED, REFUSED, ABSENT, INVALID = ALLOW, *(ERRNO | code for code in (errno.EPERM, errno.ENOSYS, errno.EINVAL))
COLUMN = {"x86_64": 0, "aarch64": 1}
CALLS = {
    "clone": (56, 220), "unshare": (272, 97), "ioctl": (16, 29), "socket": (41, 198), "prctl": (157, 167),
    "setsockopt": (54, 208), "mmap": (9, 222),
}  # fmt: skip
FORBIDDEN: dict[str, tuple[int, int]] = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "clone3": (435, 435), "delete_module": (176, 106),
    "finit_module": (313, 273), "fsopen": (430, 430), "init_module": (175, 105), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "kexec_load": (246, 104), "keyctl": (250, 219),
    "inotify_init1": (294, 26), "io_setup": (206, 0), "landlock_create_ruleset": (444, 444), "mbind": (237, 235),
    "semget": (64, 190), "sendfile": (40, 71), "splice": (275, 76), "tee": (276, 77), "vmsplice": (278, 75),
    "lookup_dcookie": (212, 18), "memfd_create": (319, 279), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "pivot_root": (155, 41), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "request_key": (249, 218),
    "setns": (308, 268), "msgget": (68, 186), "shmget": (29, 194), "swapon": (167, 224), "umount2": (166, 39),
    "userfaultfd": (323, 282),
}  # fmt: skip
"""System calls that the sandbox must refuse, with their numbers on x86_64 and aarch64."""
HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


def run_filter(raw: bytes, audit: int, number: int, *arguments: int) -> int:
    """Interpret the BPF program for a call, and return its answer."""
    data = struct.pack(
        "=iIQ6Q", number if number < 1 << 31 else number - (1 << 32), audit, 0, *(*arguments, *[0] * 6)[:6]
    )
    code = list(struct.iter_unpack("=HBBI", raw))
    accumulator = position = 0
    while True:
        operation, if_true, if_false, value = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x06:
            return value
        else:
            tests = {0x15: accumulator == value, 0x25: accumulator > value, 0x45: bool(accumulator & value)}
            position += if_true if tests[operation] else if_false


@pytest.mark.parametrize("machine", COLUMN)
def test_filter_refuses_calls_of_the_table(machine: str) -> None:
    raw, audit, column = program(machine), ARCHITECTURES[machine].audit, COLUMN[machine]
    assert raw is not None and len(raw) // 8 <= 4096 and len(raw) < 65536
    known = numbers(column)
    assert {name: known[name] for name in FORBIDDEN} == {name: of[column] for name, of in FORBIDDEN.items()}
    assert {run_filter(raw, audit, number) for number in known.values()} == {REFUSED, ABSENT, INVALID}
    others = set(range(457)) - set(known.values()) - {of[column] for of in CALLS.values()}
    assert {run_filter(raw, audit, number) for number in others} == {ALLOWED}
    for number in (457, 1000, 0x40000000, 0x40000000 + known["ptrace"], 0xFFFFFFFF):
        assert run_filter(raw, audit, number) == ABSENT  # newer, or x32
    for other in {0x40000003, 0xC000003E, 0xC00000B7, 0x40000028} - {audit}:
        assert run_filter(raw, other, 0) == KILL


@pytest.mark.parametrize("machine", COLUMN)
def test_filter_checks_arguments_of_some_calls(machine: str) -> None:
    raw, audit = program(machine), ARCHITECTURES[machine].audit
    assert raw is not None

    def answer(name: str, *arguments: int) -> int:
        return run_filter(raw, audit, CALLS[name][COLUMN[machine]], *arguments)

    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer("clone", flag | 17) == answer("unshare", flag) == REFUSED
        assert answer("unshare", flag | 0x200 | 1 << 32) == REFUSED
    assert answer("unshare", 0x80) == REFUSED
    assert answer("clone", 0x3D0F00 & ~0x20000 | 17) == answer("clone", 17) == answer("unshare", 0x200) == ALLOWED
    assert answer("ioctl", 0, 0x5412) == answer("ioctl", 0, 0x5412 | 1 << 32) == answer("ioctl", 9, 0x541C) == REFUSED
    assert answer("ioctl", 0x5412, 0x5401) == answer("prctl", 22) == ALLOWED
    assert answer("prctl", 4) == REFUSED
    assert [answer("socket", family) for family in (1, 2, 10, 16)] == [ALLOWED] * 4
    for family in (3, 17, 38, 40, 2 | 1 << 32 | 32):  # AX.25, packets, cryptography, virtual machines
        assert answer("socket", family) == ERRNO | errno.EAFNOSUPPORT
    # Shared anonymous memory and huge pages; private memory and shared files.
    assert {answer("mmap", 0, 1, 3, flags) for flags in (0x21, 0x23, 0x4021, 0x40022, 0x40002)} == {REFUSED}
    assert {answer("mmap", 0, 1, 3, flags) for flags in (0x22, 0x4022, 0x32, 0x1, 0x2, 0x3)} == {ALLOWED}
    assert {answer("setsockopt", 9, 1, option) for option in (2, 6, 9, 13, 15, 16, 20, 21)} == {ALLOWED}
    assert {answer("setsockopt", 9, 1, option) for option in (7, 8, 32, 33)} == {ERRNO}, "success without effect"
    for option in (26, 50, 51, 60, 1000):  # filters of packets, SO_ZEROCOPY, what is not known yet
        assert answer("setsockopt", 9, 1, option) == ERRNO | errno.ENOPROTOOPT
    assert answer("setsockopt", 9, 6, 26) == answer("setsockopt", 9, 41, 26) == ALLOWED


@pytest.mark.parametrize("machine", COLUMN)
def test_numbers_equal_those_of_kernel_headers(machine: str) -> None:
    if not Path(HEADERS[machine]).is_file():
        pytest.skip("the kernel's headers are not installed")
    text = Path(HEADERS[machine]).read_text()
    defined = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    table = numbers(COLUMN[machine]) | {name: each[COLUMN[machine]] for name, each in CALLS.items()}
    common = table.keys() & defined.keys()
    assert len(common) > 50
    for name in common:
        assert table[name] == defined[name], name


def test_unknown_machine_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert program("sparc64") is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert program() is None


SCRIPT = """\
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
out = {}
for name, words in json.loads(sys.argv[1]).items():
    got = libc.syscall(*map(ctypes.c_long, words))
    out[name] = errno.errorcode[ctypes.get_errno()] if got < 0 else "allowed"
print(json.dumps(out))
"""


@pytest.mark.anyio
@pytest.mark.needs_program("bwrap")
@pytest.mark.skipif(platform.machine() not in COLUMN, reason="no table for this processor")
async def test_kernel_refuses_filtered_calls_in_sandbox(tmp_path: Path) -> None:
    """Regression: a script read the operator's key, and one session read that of another."""
    column = COLUMN[platform.machine()]
    calls = {name: [number, 0, 0, 0, 0, 0] for name, number in numbers(column).items() if name != "vhangup"}
    expected = dict.fromkeys(calls, "EPERM")
    absent = "clone3 memfd_create memfd_secret msgget semget shmget io_uring_enter io_uring_register io_uring_setup"
    absent += " inotify_init inotify_init1 io_setup landlock_create_ruleset"
    expected |= {name: "ENOSYS" for name in absent.split() if name in calls}
    expected |= dict.fromkeys(("sendfile", "splice", "tee", "vmsplice"), "EINVAL")
    for name, arguments, answer in (
        ("unshare user", (0x10000000,), "EPERM"),
        ("clone user", (0x10000000 | 17, 0, 0, 0, 0), "EPERM"),
        ("ioctl TIOCSTI", (0, 0x5412, 0), "EPERM"),
        ("prctl PR_SET_DUMPABLE", (4, 0, 0), "EPERM"),
        ("socket vsock", (40, 1, 0), "EAFNOSUPPORT"),
        ("socket alg", (38, 5, 0), "EAFNOSUPPORT"),
        ("socket unix", (1, 1, 0), "allowed"),
        ("mmap shared", (0, 4096, 3, 0x21, -1, 0), "EPERM"),
        ("mmap private", (0, 0, 3, 0x22, -1, 0), "EINVAL"),  # by the kernel: no length
        ("setsockopt SO_SNDBUF", (99, 1, 7, 0, 4), "allowed"),  # although there is no such socket
        ("setsockopt SO_ATTACH_FILTER", (99, 1, 26, 0, 0), "ENOPROTOOPT"),
        ("socket inet", (2, 1, 0), "allowed"),
        ("unshare files", (0x400,), "allowed"),
    ):
        calls[name] = [CALLS[name.partition(" ")[0]][column], *arguments]
        expected[name] = answer
    top = zoo.write(tmp_path)
    (top / "zoo" / "scripts" / "calls.py").write_text(SCRIPT)
    registry = load_registry(top)
    runner = Scripts(registry, ScriptSettings())
    skill, workspace = registry.snapshot.skills["zoo"], runner.workspace()
    outcome = await runner.run(RunRequest(skill=skill, path="scripts/calls.py", args=[json.dumps(calls)]), workspace)
    runner.close()
    assert outcome.exit_code == 0, outcome.stderr
    assert json.loads(outcome.stdout) == expected
    assert outcome.sandbox_gaps == ()
