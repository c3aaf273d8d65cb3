"""The sandbox: what a script sees of the machine when bubblewrap is there.

A positive list: the system's programs and libraries and a few files of /etc, read-only; the skill,
read-only; the work directory; the folders that the operator named. No network unless it is allowed,
no capabilities, no other process, no home directory, an unprivileged user even when the server runs
as root; and a filter of system calls, where the kernel has them. It is never assumed to work: it is
tried.

A root server's bubblewrap sets all up as root, and what it starts then becomes `nobody` for good.
(A user namespace only renames root: to the kernel its files, and the settings in /proc/sys, would
be root's own.)
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.scripts import system_calls
from mcp_skills_server.runtime.scripts.processes import ask, piped
from mcp_skills_server.runtime.scripts.settings import Mode
from mcp_skills_server.runtime.scripts.workspace import make_directory

logger = logging.getLogger(__name__)

SKILLS: Final = "/skills"
WORKSPACE: Final = "/workspace"
TEMPORARY: Final = "/tmp"  # noqa: S108 - its name inside; outside it is a private directory
PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_NOBODY: Final = 65534
_NEEDED_TO_DROP: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH")
"""Capabilities that bubblewrap keeps so that its program can become another user; the last to enter
its directory."""
ROOT_WITHOUT: Final = (
    "scripts would run as root without a sandbox, and could do anything to this machine"
)
_AS_ROOT: Final = (
    "scripts are root to the kernel, which calls them nobody, because they cannot become "
    "another user"
)
_NO_FILTER: Final = (
    "no filter of system calls: keys of the kernel are shared, and shared memory is not bounded"
)
_PLACES: Final = ("skills", "work", "tmp", "shm")
_SYSTEM: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
)
_ETC: Final = """
    alternatives ca-certificates crypto-policies group host.conf hosts ld.so.cache ld.so.conf
    ld.so.conf.d localtime mime.types nsswitch.conf passwd pki/ca-trust pki/tls/cert.pem
    pki/tls/certs pki/tls/openssl.cnf protocols resolv.conf services ssl/cert.pem ssl/certs
    ssl/openssl.cnf
"""
"""All of it public: no directory that also holds private keys, such as /etc/ssl as a whole."""


@dataclass(frozen=True, slots=True)
class SandboxView:
    """The files and rights that one run sees.

    Attributes:
        skills: the directory that is /skills, with a directory for each skill.
        work: the directory that is /workspace.
        temporary: the directory that is /tmp, new and empty: mount points may be made in it.
        shared: the directory that is /dev/shm, on the disk, where its size can be measured; memory
            would have no bound.
        workdir: where to start, absolute, as seen inside.
        needs: further files and folders that must be readable.
    """

    skills: str
    work: str
    temporary: str
    shared: str
    workdir: str = WORKSPACE
    needs: tuple[str, ...] = ()
    network: bool = False


class Bubblewrap:
    """Runs programs in a sandbox of bubblewrap, with absolute `folders` that they may read and
    write.

    `dropper` is where `setpriv` is, to start bubblewrap as root and scripts as `nobody`; None to
    start it as this user, in a user namespace. `calls` is the filter of system calls; None for
    none.
    """

    def __init__(
        self,
        program: str,
        *,
        folders: Sequence[str],
        dropper: str | None = None,
        calls: bytes | None = None,
    ) -> None:
        self._program = program
        self._dropper = dropper
        self.calls = calls
        self._folders = folders

    @property
    def user(self) -> int | None:
        """The user, and group, who must own what scripts are to write; None if it is us."""
        return None if self._dropper is None else _NOBODY

    @property
    def gaps(self) -> tuple[str, ...]:
        """The parts of a whole sandbox that this machine lacks, in words."""
        found: list[str] = []
        if self._dropper is None and is_root():
            found.append(_AS_ROOT)
        if self.calls is None:
            found.append(_NO_FILTER)
        return tuple(found)

    def box(self, view: SandboxView) -> Callable[[int, int | None], list[str]]:
        """Return what makes the words before a command, of the descriptor to report on and that of
        `calls`, if any."""
        return lambda status, calls: [
            *self._words(view, calls),
            "--json-status-fd",
            str(status),
            *self._drop(),
        ]

    def trouble(self) -> str | None:
        """Try it out: why it does not work here, or None."""
        try:
            code, stderr = self._try(f": > {WORKSPACE}/trial")
        except OSError as error:
            return error.strerror or str(error)
        if not code:
            return None
        return (stderr.strip().splitlines() or [f"it ended with {code}"])[-1]

    def locked(self) -> list[str]:
        """Return those of its folders that a script cannot write to, as far as that can be
        known."""
        try:
            return [each for each in self._folders if self._try('[ -w "$1" ]', each)[0]]
        except OSError:
            return []

    def _try(self, shell: str, *args: str) -> tuple[int, str]:
        """Return the exit code and stderr of a line of shell that is run in it, as scripts are."""
        with tempfile.TemporaryDirectory(prefix="mcp-skills-trial-") as top:
            skills, work, temporary, shared = (
                os.path.join(os.path.realpath(top), each) for each in _PLACES
            )
            os.mkdir(skills)
            for place in (work, temporary, shared):
                make_directory(place, self.user)
            with piped(self.calls) as calls:
                words = [
                    *self._words(SandboxView(skills, work, temporary, shared), calls),
                    *self._drop(),
                ]
                passed = [each for each in (calls,) if each is not None]
                done = ask(
                    [*words, "/bin/sh", "-c", shell, "sh", *args],
                    env={"PATH": PATH},
                    pass_fds=passed,
                )
            return done.returncode, done.stderr

    def _drop(self) -> list[str]:
        """Return what goes right before the program: it becomes `nobody` for good, where bubblewrap
        starts as root."""
        if self._dropper is None:
            return ["--"]
        user = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
        return ["--", self._dropper, *user, "--inh-caps=-all", "--bounding-set=-all", "--"]

    def _words(self, view: SandboxView, calls: int | None) -> list[str]:
        words = [
            self._program,
            "--unshare-ipc",
            "--unshare-pid",
            "--unshare-uts",
            "--unshare-cgroup-try",
        ]
        if not view.network:
            words.append("--unshare-net")
        words += ["--cap-drop", "ALL"]
        if self._dropper is None:
            words += ["--unshare-user", "--uid", str(_NOBODY), "--gid", str(_NOBODY)]
        else:
            words += [word for each in _NEEDED_TO_DROP for word in ("--cap-add", each)]
        words += ["--die-with-parent", "--new-session"]
        for place in filter(os.path.exists, (*_SYSTEM, *(f"/etc/{name}" for name in _ETC.split()))):
            # Where /bin is a link to /usr/bin, it is so inside.
            if place in _SYSTEM and os.path.islink(place):
                words += ["--symlink", os.readlink(place), place]
            else:
                words += _read_only(place)
        words += ["--proc", "/proc", "--remount-ro", "/proc"]
        words += ["--dev", "/dev", "--bind", view.shared, "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
        words += ["--bind", view.temporary, TEMPORARY]
        for place in _outermost(filter(_is_bindable, view.needs)):
            words += _read_only(place)
        for folder in self._folders:
            words += [*_way(folder), "--bind", folder, folder]
        words += ["--bind", view.work, WORKSPACE, "--ro-bind", view.skills, SKILLS]
        words += ["--remount-ro", "/", "--chdir", view.workdir]
        if calls is not None:
            words += ["--seccomp", str(calls)]
        return words


def choose(mode: Mode, *, network: bool, folders: Sequence[str]) -> Bubblewrap | None:
    """Return the sandbox to use, or None for none. Tries it out, and logs which it is.

    Raises:
        UsageError: one is required and cannot be had, none is wanted by root, or a folder cannot be
            shared.
    """
    program = program_of(mode, folders)
    if program is None:
        logger.info(
            "scripts run without a sandbox (it is off), as the server's user, with all its rights"
        )
        return None
    shared, why = _outermost(map(_folder, folders)), ""
    for dropper in _droppers():
        for calls in dict.fromkeys((system_calls.program(), None)):
            sandbox = Bubblewrap(program, folders=shared, dropper=dropper, calls=calls)
            trouble = sandbox.trouble()
            if trouble is None:
                _report(sandbox, why, network=network, folders=shared)
                return sandbox
            why = f"bubblewrap does not work here ({trouble})"
    raise _missing(why)


def program_of(mode: Mode, folders: Sequence[str]) -> str | None:
    """Return the path of bubblewrap, None for no sandbox. Refuse as `choose` what can be refused
    without a trial."""
    for folder in folders:
        _folder(folder)
    if mode == "off":
        if is_off_forbidden():
            raise UsageError(
                f"{ROOT_WITHOUT}; leave --sandbox off out, or run the server as another user"
            )
        return None
    program = shutil.which("bwrap")
    if program is None:
        raise _missing("bubblewrap (bwrap) is not installed")
    return os.path.abspath(program)


def _missing(why: str) -> UsageError:
    instead = "give --sandbox off to run them with all your rights"
    if is_root():
        instead = "run the server as another user"
    return UsageError(
        f"scripts need a sandbox, but {why}; install bubblewrap so that it works, or {instead}"
    )


def _droppers() -> list[str | None]:
    """Return the ways to begin, the best one first: see `Bubblewrap`."""
    if not is_root():
        return [None]
    place = next(
        (each for each in PATH.split(":") if os.access(f"{each}/setpriv", os.X_OK)),
        PATH.split(":")[0],
    )
    return [f"{place}/setpriv", None]


def _report(sandbox: Bubblewrap, why: str, *, network: bool, folders: Sequence[str]) -> None:
    """Log which it is. `why` is what kept the server from a better way."""
    if sandbox.user is None and is_root() and folders:
        raise UsageError(
            f"scripts would be root in {folders[0]}, for they cannot become another user: {why}; "
            "correct that, or run "
            "the server as another user"
        )
    how, whom = "without", "the server's user"
    if network:
        how = "with"
    if sandbox.user is None:
        logger.info("scripts run in a sandbox of bubblewrap, %s network", how)
    else:
        whom = f"user {sandbox.user}"
        logger.info("scripts run in a sandbox of bubblewrap, %s network, as %s", how, whom)
    for gap in sandbox.gaps:
        if gap == _NO_FILTER and system_calls.program() is None:
            why = "none is known for this kind of machine"
        logger.warning("the sandbox of scripts has a gap: %s (%s)", gap, why)
    for folder in sandbox.locked():
        logger.warning(
            "scripts run as %s, which cannot write to %s; make it that user's if they should",
            whom,
            folder,
        )


def is_off_forbidden() -> bool:
    """Tell whether nothing may run without a sandbox: this process is root's."""
    return is_root()


def is_root() -> bool:
    """Tell whether this process has all rights."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _folder(folder: str) -> str:
    path = os.path.realpath(folder)
    if not os.path.isdir(path):
        raise UsageError(f"{folder}: no such folder; scripts can only be given folders that exist")
    if os.path.dirname(path) == path:
        raise UsageError(
            f"{folder}: to give scripts the whole disk is to have no sandbox; give --sandbox off "
            "for that"
        )
    for own in (SKILLS, WORKSPACE, "/proc", "/dev"):
        if f"{path}/".startswith(f"{own}/"):
            raise UsageError(f"{folder}: the sandbox has its own {own}; put the folder elsewhere")
    if path == TEMPORARY:
        raise UsageError(
            f"{folder}: the sandbox has its own {TEMPORARY}; give a folder in it, or another one"
        )
    return path


def _read_only(place: str) -> list[str]:
    return [*_way(place), "--ro-bind-try", place, place]


def _way(place: str) -> list[str]:
    """Makes the directories that a place lies in. Where bubblewrap makes them by itself for root,
    only root gets in."""
    above: list[str] = []
    while (place := os.path.dirname(place)) not in ("/", ""):
        above = ["--dir", place, *above]
    return above


def _outermost(places: Iterable[str]) -> list[str]:
    """Return what of these must be bound: a place inside another one is there with it."""
    shown: list[str] = []
    for place in sorted(places):
        if not any(place == outer or place.startswith(f"{outer}/") for outer in shown):
            shown.append(place)
    return shown


def _is_bindable(place: str) -> bool:
    """Tell whether a path that an interpreter needs is to be shown: not what is shown anyway, and
    never a whole home.
    """
    if f"{place}/".startswith(tuple(f"{top}/" for top in _SYSTEM)):
        return False
    home = os.path.expanduser("~")
    return not f"{home}/".startswith(place.rstrip("/") + "/")
