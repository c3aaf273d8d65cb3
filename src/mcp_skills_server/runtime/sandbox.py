"""The sandbox: what a script sees of the machine when bubblewrap is there.

A positive list: the system's programs and libraries and a few files of /etc, read-only; the skill, read-only; the work
directory; the folders that the operator named. No network unless it is allowed, no capabilities, no other process, no
home directory, an unprivileged user even when the server runs as root. It is never assumed to work: it is tried.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.processes import ask

logger = logging.getLogger(__name__)

Mode: TypeAlias = Literal["required", "auto", "off"]

SKILLS: Final = "/skills"
WORKSPACE: Final = "/workspace"
TEMPORARY: Final = "/tmp"  # noqa: S108 - its name inside; outside it is a private directory
PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_NOBODY: Final = "65534"
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_ETC: Final = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "group",
    "host.conf",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "passwd",
    "pki",
    "protocols",
    "resolv.conf",
    "services",
    "ssl",
)


@dataclass(frozen=True, slots=True)
class View:
    """What one run is to see.

    Attributes:
        skills: the directory that is /skills, with a directory for each skill.
        work: the directory that is /workspace.
        temporary: the directory that is /tmp, new and empty: mount points may be made in it.
        shared: the directory that is /dev/shm. Like /tmp it is on the disk, where its size can be measured; memory
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


class Bubblewrap:
    """Runs programs in a sandbox of bubblewrap.

    Args:
        program: where bubblewrap is.
        network: whether scripts may use the network.
        folders: absolute folders that they may read and write.
    """

    def __init__(self, program: str, *, network: bool, folders: Sequence[str]) -> None:
        self._program = program
        self._network = network
        self._folders = folders

    def box(self, view: View) -> Callable[[int], list[str]]:
        """What makes the words that go before a command, given the descriptor on which bubblewrap is to report."""
        return lambda status: [*self._words(view), "--json-status-fd", str(status), "--"]

    def trouble(self) -> str | None:
        """Try it out: why it does not work here, or None."""
        with tempfile.TemporaryDirectory(prefix="mcp-skills-trial-") as top:
            view = View(top, top, top, top)
            try:
                done = ask([*self._words(view), "--", "/bin/sh", "-c", ":"], env={"PATH": PATH})
            except OSError as error:
                return error.strerror or str(error)
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        return said[-1] if done.returncode else None

    def _words(self, view: View) -> list[str]:
        words = [self._program, "--unshare-all", *(["--share-net"] if self._network else [])]
        words += ["--unshare-user", "--uid", _NOBODY, "--gid", _NOBODY, "--cap-drop", "ALL"]
        words += ["--die-with-parent", "--new-session"]
        for place in _SYSTEM:
            # Where /bin is a link to /usr/bin, it is so inside.
            words += ["--symlink", os.readlink(place), place] if os.path.islink(place) else _read_only(place)
        for name in _ETC:
            words += _read_only(f"/etc/{name}")
        words += ["--proc", "/proc", "--dev", "/dev", "--bind", view.shared, "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
        words += ["--bind", view.temporary, TEMPORARY]
        for place in _outermost(filter(_is_bindable, view.needs)):
            words += _read_only(place)
        for folder in self._folders:
            words += ["--bind", folder, folder]
        words += ["--bind", view.work, WORKSPACE, "--ro-bind", view.skills, SKILLS]
        return [*words, "--remount-ro", "/", "--chdir", view.workdir]


def choose(mode: Mode, *, network: bool, folders: Sequence[str]) -> Bubblewrap | None:
    """The sandbox to use, or None for none. Tries it out, and logs which it is.

    Raises:
        UsageError: one is required and cannot be had, or a folder cannot be shared.
    """
    shared = _outermost(map(_folder, folders))
    if mode == "off":
        return _none("the sandbox is off")
    program = shutil.which("bwrap")
    if program is None:
        why = "bubblewrap (bwrap) is not installed"
    else:
        sandbox = Bubblewrap(os.path.abspath(program), network=network, folders=shared)
        trouble = sandbox.trouble()
        if trouble is None:
            logger.info("scripts run in a sandbox of bubblewrap, %s network", "with" if network else "without")
            return sandbox
        why = f"bubblewrap does not work here ({trouble})"
    if mode == "required":
        raise UsageError(f"a sandbox is required for scripts, but {why}; mend that, or give --sandbox auto")
    return _none(why)


def _none(why: str) -> None:
    who = "root: they can do anything to this machine" if is_root() else "the server's user, with all its rights"
    logger.log(logging.WARNING if is_root() else logging.INFO, "scripts run without a sandbox (%s), as %s", why, who)


def is_root() -> bool:
    """Whether this process has all rights."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _folder(folder: str) -> str:
    path = os.path.realpath(folder)
    if not os.path.isdir(path):
        raise UsageError(f"{folder}: no such folder; scripts can only be given folders that exist")
    if os.path.dirname(path) == path:
        raise UsageError(f"{folder}: to give scripts the whole disk is to have no sandbox; give --sandbox off for that")
    for own in (SKILLS, WORKSPACE, "/proc", "/dev"):
        if f"{path}/".startswith(f"{own}/"):
            raise UsageError(f"{folder}: the sandbox has its own {own}; put the folder elsewhere")
    if path == TEMPORARY:
        raise UsageError(f"{folder}: the sandbox has its own {TEMPORARY}; give a folder in it, or another one")
    return path


def _read_only(place: str) -> list[str]:
    return ["--ro-bind-try", place, place]


def _outermost(places: Iterable[str]) -> list[str]:
    """What of these must be bound: a place inside another one is there with it."""
    shown: list[str] = []
    for place in sorted(places):
        if not any(place == outer or place.startswith(f"{outer}/") for outer in shown):
            shown.append(place)
    return shown


def _is_bindable(place: str) -> bool:
    """Whether a path that an interpreter needs is to be shown: not what is shown anyway, and never a whole home."""
    if f"{place}/".startswith(tuple(f"{top}/" for top in _SYSTEM)):
        return False
    home = os.path.expanduser("~")
    return not f"{home}/".startswith(place.rstrip("/") + "/")
