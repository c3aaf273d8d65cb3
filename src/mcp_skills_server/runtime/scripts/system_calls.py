"""A seccomp filter for scripts in bubblewrap (`--seccomp`), as a classic BPF program.

The table of system call numbers is part of this module. A library would need `libseccomp.so.2`,
which small containers lack, and would start a compiler or `ldconfig` to find it. The tests
interpret the BPF program, and try every call in a real sandbox.

Denied are calls used for sandbox escapes, and resources that no limit counts: kernel keys, which
have no namespace; new namespaces and mounts; access to other processes; `io_uring`, which bypasses
seccomp; memory of no process (`memfd_create`, `semget`, `splice`); what the user's other processes
share (`inotify`); and sockets outside of network namespaces, such as vsock. Calls newer than the
table fail with ENOSYS.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

NEWEST: Final = 456
"""The highest call number that the table covers (futex_requeue, Linux 6.7)."""

_LOAD: Final = 0x20
_EQUAL: Final = 0x15
_ABOVE: Final = 0x25
_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_ARGUMENTS: Final = 16
"""Offsets in `struct seccomp_data`. Only the lower 32 bits of an argument are compared."""
ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
ERRNO: Final = 0x00050000

_NEW_NAMESPACES: Final = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_NEW_TIME: Final = 0x80
"""CLONE_NEWTIME, for `unshare` alone: to `clone` the bit is part of a signal."""
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which inject input into the controlling terminal."""
_SET_DUMPABLE: Final = 4
"""PR_SET_DUMPABLE of `prctl`, which would hide a process's open files from the server."""
_SOCKETS: Final = (0, 1, 2, 10, 16)
"""AF_UNSPEC, AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK."""
_SOCKET_LEVEL: Final = 1
_OPTIONS: Final = (2, 5, 6, 9, 10, 12, 13, 15, 16, 20, 21, 29, 35, 66, 67, 76)
"""Options of SOL_SOCKET. Others take kernel memory (SO_ATTACH_FILTER), or pin it (SO_ZEROCOPY)."""
_BUFFER_SIZES: Final = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and their FORCE variants, which succeed without effect: as in the kernel, a
lower limit is no error. Where `net.core.wmem_max` is 4 MiB, two processes queued 909 MiB."""
_SHARED: Final = 0x1
_ANONYMOUS: Final = 0x20
_HUGE: Final = 0x40000
"""Flags of `mmap`. Shared anonymous memory stays when no process maps it any more; huge pages come
from the operator's pool. No process is charged for either."""

_Table: TypeAlias = Mapping[str, tuple[int | None, int | None]]


def _table(text: str) -> _Table:
    """Parse a table of names with the numbers on x86-64 and arm64, "-" for a missing call."""
    words = text.split()
    numbers = [int(word) if word.isdigit() else None for word in words]
    return {words[at]: (numbers[at + 1], numbers[at + 2]) for at in range(0, len(words), 3)}


_REFUSED: Final = _table("""
    acct 163 89                 add_key 248 217             adjtimex 159 171            bpf 321 280
    clock_adjtime 305 266       clock_settime 227 112       delete_module 176 106       fanotify_init 300 262
    finit_module 313 273        fsconfig 431 431            fsmount 432 432             fsopen 430 430
    fspick 433 433              init_module 175 105         ioperm 173 -                iopl 172 -
    kcmp 312 272                kexec_file_load 320 294     kexec_load 246 104          keyctl 250 219
    lookup_dcookie 212 18       mount 165 40                mount_setattr 442 442       move_mount 429 429
    name_to_handle_at 303 264   nfsservctl 180 42           open_by_handle_at 304 265   open_tree 428 428
    perf_event_open 298 241     pidfd_getfd 438 438         pivot_root 155 41           process_madvise 440 440
    process_vm_readv 310 270    process_vm_writev 311 271   ptrace 101 117              quotactl 179 60
    quotactl_fd 443 443         reboot 169 142              request_key 249 218         setdomainname 171 162
    sethostname 170 161         setns 308 268               settimeofday 164 170        swapoff 168 225
    swapon 167 224              syslog 103 116              umount2 166 39              uselib 134 -
    userfaultfd 323 282         vhangup 153 58              mbind 237 235               modify_ldt 154 -
""")
"""Calls that fail with EPERM."""
_ABSENT: Final = _table("""
    clone3 435 435              io_uring_enter 426 426      io_uring_register 427 427   io_uring_setup 425 425
    memfd_create 319 279        memfd_secret 447 447        msgget 68 186               shmget 29 194
    inotify_init 253 -          inotify_init1 294 26        io_setup 206 0              semget 64 190
    landlock_create_ruleset 444 444
""")
"""Calls that fail with ENOSYS, so that programs use a fallback. BPF cannot read the flags of
`clone3`, which are in memory; programs fall back to `clone`.
"""
_INVALID: Final = _table("""
    sendfile 40 71              splice 275 76               tee 276 77                  vmsplice 278 75
""")
"""Calls that fail with EINVAL, so that programs copy instead. A byte in a pipe pins its page, which
may have 2 MiB: 24 pipes held 768 MiB of no process."""
_CLONE: Final = (56, 220)
_UNSHARE: Final = (272, 97)
_IOCTL: Final = (16, 29)
_PRCTL: Final = (157, 167)
_SOCKET: Final = (41, 198)
_SETSOCKOPT: Final = (54, 208)
_MMAP: Final = (9, 222)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A processor's AUDIT_ARCH value in filters, and the column of its numbers in the table."""

    audit: int
    column: int


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "x86_64": Architecture(0xC000003E, 0),
    "aarch64": Architecture(0xC00000B7, 1),
}


def numbers(column: int) -> dict[str, int]:
    """Return the numbers of the calls that always fail, by name, for a column of the table."""
    calls = {**_REFUSED, **_ABSENT, **_INVALID}
    by_name = {name: columns[column] for name, columns in calls.items()}
    return {name: number for name, number in by_name.items() if number is not None}


def program(machine: str | None = None) -> bytes | None:
    """Return the BPF filter for `uname -m` (None: this machine), or None if it is unsupported."""
    if machine is None:
        if sys.platform != "linux" or sys.maxsize < 1 << 32:
            return None
        machine = platform.machine()
    here = ARCHITECTURES.get(machine)
    if here is None:
        return None
    return b"".join(_instructions(here))


def _instructions(here: Architecture) -> list[bytes]:
    refuse, absent = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
    out = [_load(_ARCHITECTURE), _op(_EQUAL, here.audit, 1, 0), _op(_RETURN, KILL)]
    out += [_load(_NUMBER), *_return_if(_ABOVE, NEWEST, absent)]  # also x32 calls, from 2^30
    for calls, answer in (
        (_REFUSED, refuse), (_ABSENT, absent), (_INVALID, ERRNO | errno.EINVAL)
    ):  # fmt: skip
        for columns in calls.values():
            number = columns[here.column]
            if number is not None:
                out += _return_if(_EQUAL, number, answer)
    out += _check_argument(_CLONE[here.column], 0, _return_if(_ANY_BIT, _NEW_NAMESPACES, refuse))
    out += _check_argument(
        _UNSHARE[here.column], 0, _return_if(_ANY_BIT, _NEW_NAMESPACES | _NEW_TIME, refuse)
    )
    out += _check_argument(_IOCTL[here.column], 1, _return_for(_TERMINAL_INPUT, refuse))
    out += _check_argument(_PRCTL[here.column], 0, _return_if(_EQUAL, _SET_DUMPABLE, refuse))
    families = [*_return_for(_SOCKETS, ALLOW), _op(_RETURN, ERRNO | errno.EAFNOSUPPORT)]
    out += _check_argument(_SOCKET[here.column], 0, families)
    options = [_op(_EQUAL, _SOCKET_LEVEL, 1, 0), _op(_RETURN, ALLOW), _load(_ARGUMENTS + 8 * 2)]
    options += [*_return_for(_OPTIONS, ALLOW), *_return_for(_BUFFER_SIZES, ERRNO)]
    options.append(_op(_RETURN, ERRNO | errno.ENOPROTOOPT))
    out += _check_argument(_SETSOCKOPT[here.column], 1, options)
    memory = _return_if(_ANY_BIT, _HUGE, refuse)
    memory += [_op(_ANY_BIT, _ANONYMOUS, 0, 2), *_return_if(_ANY_BIT, _SHARED, refuse)]
    out += _check_argument(_MMAP[here.column], 3, memory)
    return [*out, _op(_RETURN, ALLOW)]


def _check_argument(number: int, argument: int, rules: list[bytes]) -> list[bytes]:
    """Return the instructions that apply rules to an argument of a call, and else allow it."""
    within = [_load(_ARGUMENTS + 8 * argument), *rules, _op(_RETURN, ALLOW)]
    return [_op(_EQUAL, number, 0, len(within)), *within]


def _return_if(test: int, value: int, answer: int) -> list[bytes]:
    return [_op(test, value, 0, 1), _op(_RETURN, answer)]


def _return_for(values: Iterable[int], answer: int) -> list[bytes]:
    """Return the instructions that return `answer` for each of these values."""
    return [instruction for value in values for instruction in _return_if(_EQUAL, value, answer)]


def _load(offset: int) -> bytes:
    return _op(_LOAD, offset)


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """Return an instruction; a test skips the next `yes` instructions if it is true, else `no`."""
    return struct.pack("=HBBI", code, yes, no, value)
