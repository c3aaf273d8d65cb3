"""The script sandbox, based on bubblewrap and an allow-list of paths.

A script can read the system's programs and libraries, a few files of /etc, and its skill. It can
write to its work directory and the operator's folders. It has no network unless allowed, no
capabilities, no other processes, no home directory, and an unprivileged user even if the server
runs as root. A seccomp filter applies if the kernel supports it. A trial run verifies the sandbox.

Under root, bubblewrap sets up the sandbox as root, and the script's process then permanently
becomes `nobody`. (A user namespace alone only renames root: to the kernel, files and the settings
in /proc/sys would still be root's own.)
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.scripts import cgroups, system_calls
from mcp_skills_server.runtime.scripts.processes import piped, query
from mcp_skills_server.runtime.scripts.settings import Mode
from mcp_skills_server.runtime.scripts.workspace import make_directory

logger = logging.getLogger(__name__)

SKILLS: Final = "/skills"
WORKSPACE: Final = "/workspace"
TEMPORARY: Final = "/tmp"  # noqa: S108 - the path in the sandbox, of a private directory
PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_NOBODY: Final = 65534
_NEEDED_TO_DROP: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH")
"""Capabilities that bubblewrap keeps for `setpriv` to change the user; the last one is for entering
the working directory."""
ROOT_WITHOUT: Final = (
    "scripts would run as root without a sandbox, and could do anything to this machine"
)
_AS_ROOT: Final = (
    "scripts are root to the kernel, although they see the user nobody, because they cannot "
    "switch to another user"
)
_NO_FILTER: Final = "no seccomp filter: kernel keyrings are shared, and shared memory is unlimited"
_KERNEL_KEYS: Final = ("/proc/keys", "/proc/key-users")
"""Lists of kernel keys, which have no namespace."""
_PLACES: Final = ("skills", "work", "tmp", "shm")
_SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store",
)  # fmt: skip
_ETC: Final = """
    alternatives ca-certificates crypto-policies group host.conf hosts ld.so.cache ld.so.conf
    ld.so.conf.d localtime mime.types nsswitch.conf passwd pki/ca-trust pki/tls/cert.pem
    pki/tls/certs pki/tls/openssl.cnf protocols resolv.conf services ssl/cert.pem ssl/certs
    ssl/openssl.cnf
"""
"""Public files only: no directory that also holds private keys, such as the whole of /etc/ssl."""


@dataclass(frozen=True, slots=True)
class SandboxView:
    """The directories, files and network access that one run sees.

    `shared` is on disk, where its size is measured, because a tmpfs would be unbounded.
    """

    skills: str  # mounted at /skills, with a directory for each skill
    work: str  # mounted at /workspace
    temporary: str  # new and empty, mounted at /tmp; may get mount points
    shared: str  # mounted at /dev/shm
    workdir: str = WORKSPACE  # an absolute path inside of the sandbox
    needs: tuple[str, ...] = ()  # further files and folders that must be readable
    network: bool = False


class Bubblewrap:
    """A bubblewrap sandbox with absolute paths of writable `folders`.

    `setpriv` is the path of the program that changes the user from root to `nobody`; None starts
    bubblewrap as this user, in a user namespace. `seccomp` is the filter; None for none.
    """

    def __init__(
        self,
        program: str,
        *,
        folders: Sequence[str],
        setpriv: str | None = None,
        seccomp: bytes | None = None,
    ) -> None:
        self._program = program
        self._setpriv = setpriv
        self.seccomp = seccomp
        self._folders = folders
        self.cgroup: Path | None = None
        """The cgroup below which runs have their own."""

    @property
    def user(self) -> int | None:
        """The user and group id that must own writable directories; None for this process's."""
        return None if self._setpriv is None else _NOBODY

    @property
    def gaps(self) -> tuple[str, ...]:
        """Messages about the sandbox features that this machine lacks."""
        gaps: list[str] = []
        if self._setpriv is None and is_root():
            gaps.append(_AS_ROOT)
        if self.seccomp is None:
            gaps.append(_NO_FILTER)
        return tuple(gaps)

    def prefix(self, view: SandboxView, status: int, seccomp: int | None) -> list[str]:
        """Return the command prefix, with the descriptors of status and filter."""
        words = self._words(view, seccomp)
        return [*words, "--json-status-fd", str(status), *self._drop_privileges()]

    def trial_error(self) -> str | None:
        """Run a trial, and return the reason of its failure, or None."""
        try:
            code, stderr = self._run_trial(f": > {WORKSPACE}/trial")
        except OSError as error:
            return error.strerror or str(error)
        if not code:
            return None
        return (stderr.strip().splitlines() or [f"it ended with {code}"])[-1]

    def unwritable_folders(self) -> list[str]:
        """Return the folders that scripts cannot write to, as found by a trial."""
        try:
            return [folder for folder in self._folders if self._run_trial('[ -w "$1" ]', folder)[0]]
        except OSError:
            return []

    def _run_trial(self, shell: str, *args: str) -> tuple[int, str]:
        """Run a shell command in the sandbox, and return its exit code and stderr."""
        with tempfile.TemporaryDirectory(prefix="mcp-skills-trial-") as top:
            places = [os.path.join(os.path.realpath(top), name) for name in _PLACES]
            for path in places:
                make_directory(path, self.user)
            with piped(self.seccomp) as seccomp:
                skills, work, temporary, shared = places
                view = SandboxView(skills, work, temporary, shared)
                words = [*self._words(view, seccomp), *self._drop_privileges()]
                done = query(
                    [*words, "/bin/sh", "-c", shell, "sh", *args],
                    env={"PATH": PATH},
                    pass_fds=[] if seccomp is None else [seccomp],
                )
            return done.returncode, done.stderr

    def _drop_privileges(self) -> list[str]:
        """Return the words before the program, which drop root's rights permanently if needed."""
        if self._setpriv is None:
            return ["--"]
        user = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
        return ["--", self._setpriv, *user, "--inh-caps=-all", "--bounding-set=-all", "--"]

    def _words(self, view: SandboxView, seccomp: int | None) -> list[str]:
        words = [self._program, "--unshare-ipc", "--unshare-pid", "--unshare-uts"]
        words.append("--unshare-cgroup-try")
        if not view.network:
            words.append("--unshare-net")
        words += ["--cap-drop", "ALL"]
        if self._setpriv is None:
            words += ["--unshare-user", "--uid", str(_NOBODY), "--gid", str(_NOBODY)]
        else:
            words += [word for capability in _NEEDED_TO_DROP for word in ("--cap-add", capability)]
        words += ["--die-with-parent", "--new-session"]
        for path in filter(os.path.exists, (*_SYSTEM, *(f"/etc/{name}" for name in _ETC.split()))):
            # A link, such as /bin to /usr/bin, stays a link inside of the sandbox.
            if path in _SYSTEM and os.path.islink(path):
                words += ["--symlink", os.readlink(path), path]
            else:
                words += _read_only(path)
        words += ["--proc", "/proc"]
        for path in filter(os.path.exists, _KERNEL_KEYS):
            words += ["--dev-bind", os.devnull, path]
        # /dev/full reads as zeros too, and cannot be mapped as shared memory of no process.
        words += ["--remount-ro", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"]
        words += ["--bind", view.shared, "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
        words += ["--bind", view.temporary, TEMPORARY]
        for path in _outermost(filter(_is_bindable, view.needs)):
            words += _read_only(path)
        for folder in self._folders:
            words += [*_parent_options(folder), "--bind", folder, folder]
        words += ["--bind", view.work, WORKSPACE, "--ro-bind", view.skills, SKILLS]
        words += ["--remount-ro", "/", "--chdir", view.workdir]
        if seccomp is not None:
            words += ["--seccomp", str(seccomp)]
        return words


def choose(mode: Mode, *, network: bool, folders: Sequence[str]) -> Bubblewrap | None:
    """Return the best sandbox that passes a trial, or None if off, and log the choice.

    Raises:
        UsageError: the required sandbox does not work, it is off under root, or a folder cannot be
            shared.
    """
    program = program_of(mode, folders)
    if program is None:
        logger.info("scripts run without a sandbox (it is off), with all rights of the server")
        return None
    shared, why = _outermost(map(_folder, folders)), ""
    for setpriv in _setpriv_choices():
        for seccomp in dict.fromkeys((system_calls.program(), None)):
            sandbox = Bubblewrap(program, folders=shared, setpriv=setpriv, seccomp=seccomp)
            failure = sandbox.trial_error()
            if failure is None:
                sandbox.cgroup = cgroups.delegated()
                _report(sandbox, why, network=network, folders=shared)
                return sandbox
            why = f"bubblewrap does not work here ({failure})"
    raise _missing(why)


def program_of(mode: Mode, folders: Sequence[str]) -> str | None:
    """Return bubblewrap's path, or None if off; raise as `choose`, but without a trial."""
    for folder in folders:
        _folder(folder)
    if mode == "off":
        if is_off_forbidden():
            hint = "leave --sandbox off out, or run the server as another user"
            raise UsageError(f"{ROOT_WITHOUT}; {hint}")
        return None
    program = shutil.which("bwrap")
    if program is None:
        raise _missing("bubblewrap (bwrap) is not installed")
    return os.path.abspath(program)


def _missing(why: str) -> UsageError:
    instead = "give --sandbox off to run them with all your rights"
    if is_root():
        instead = "run the server as another user"
    remedy = f"install a working bubblewrap, or {instead}"
    return UsageError(f"scripts need a sandbox, but {why}; {remedy}")


def _setpriv_choices() -> list[str | None]:
    """Return the values of `Bubblewrap`'s `setpriv` to try, the best one first."""
    if not is_root():
        return [None]
    places = [f"{folder}/setpriv" for folder in PATH.split(":")]
    return [next((path for path in places if os.access(path, os.X_OK)), places[0]), None]


def _report(sandbox: Bubblewrap, why: str, *, network: bool, folders: Sequence[str]) -> None:
    """Log the chosen sandbox and its gaps; `why` is the failure of a better one, if any."""
    if sandbox.user is None and is_root() and folders:
        raise UsageError(
            f"scripts would be root in {folders[0]}, because they cannot switch to another user: "
            f"{why}; correct that, or run the server as another user"
        )
    how, whom = "without network", "the server's user"
    if network:
        how = "with network"
    if sandbox.user is not None:
        whom = f"user {sandbox.user}"
    logger.info("scripts run in a sandbox of bubblewrap, %s, as %s", how, whom)
    if sandbox.cgroup is not None:
        logger.info("the memory of scripts is limited by cgroups in %s", sandbox.cgroup)
    for gap in sandbox.gaps:
        if gap == _NO_FILTER and system_calls.program() is None:
            why = "none exists for this architecture"
        logger.warning("the sandbox of scripts has a gap: %s (%s)", gap, why)
    for folder in sandbox.unwritable_folders():
        words = "scripts run as %s, which cannot write to %s; make it that user's if they should"
        logger.warning(words, whom, folder)


def is_off_forbidden() -> bool:
    """Return True if the sandbox must not be off. Tests that run as root replace this alone."""
    return is_root()


def is_root() -> bool:
    """Return True if this process runs as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _folder(folder: str) -> str:
    path = os.path.realpath(folder)
    if not os.path.isdir(path):
        raise UsageError(f"{folder}: no such folder; scripts can only be given folders that exist")
    if os.path.dirname(path) == path:
        fault = "sharing the whole disk defeats the sandbox"
        raise UsageError(f"{folder}: {fault}; give --sandbox off instead")
    for own in (SKILLS, WORKSPACE, "/proc", "/dev", TEMPORARY):
        if path == own or (own != TEMPORARY and path.startswith(f"{own}/")):
            remedy = "give a folder in it, or another one" if own == TEMPORARY else "give another"
            raise UsageError(f"{folder}: the sandbox has its own {own}; {remedy}")
    return path


def _read_only(path: str) -> list[str]:
    return [*_parent_options(path), "--ro-bind-try", path, path]


def _parent_options(path: str) -> list[str]:
    """Return options that create a path's parents, which else would be root-only under root."""
    above: list[str] = []
    while (path := os.path.dirname(path)) not in ("/", ""):
        above = ["--dir", path, *above]
    return above


def _outermost(places: Iterable[str]) -> list[str]:
    """Return the paths without those inside of another one, which need no mount."""
    shown: list[str] = []
    for path in sorted(places):
        if not any(path == outer or path.startswith(f"{outer}/") for outer in shown):
            shown.append(path)
    return shown


def _is_bindable(path: str) -> bool:
    """Return True for an interpreter's path to mount: not of the system, nor a whole home."""
    if f"{path}/".startswith(tuple(f"{top}/" for top in _SYSTEM)):
        return False
    home = os.path.expanduser("~")
    return not f"{home}/".startswith(path.rstrip("/") + "/")
