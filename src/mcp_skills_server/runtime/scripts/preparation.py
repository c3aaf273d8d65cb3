"""All that a run needs on the disk and in its environment, made of a checked request: the command to execute.

What runs is a private copy of the bytes that were scanned, in an environment that holds nothing of ours, with limits on
processor time, memory, files and processes, and in a sandbox where there is one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import Skill, SkillFile
from mcp_skills_server.runtime.scripts import sandbox
from mcp_skills_server.runtime.scripts.interpreters import Interpreter, Interpreters
from mcp_skills_server.runtime.scripts.output_files import OutputFile, files_since
from mcp_skills_server.runtime.scripts.processes import Command
from mcp_skills_server.runtime.scripts.sandbox import Choose, View
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from mcp_skills_server.runtime.scripts.workspace import Workspace, discard, lay_out, make_directory

_FILES_NAMED: Final = 50
_HEAD: Final = 256
"""Bytes of a script in which its first line must end."""
_PROCESSES: Final = 64
_OPEN_FILES: Final = 64
"""Kernel buffers of sockets belong to no process, so no limit counts them; few sockets in few processes hold little."""
_CPU_SPARE_S: Final = 5


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that was asked for and checked.

    Attributes:
        skills: the skills to lay out, by the name of the directory.
        within: the directory of the skill that the script is in, "" for the work directory.
        path: the script's path in it.
        file: the script, None where it is in the work directory.
        args: the arguments.
        env: variables to add.
        workdir: where to start, below the work directory.
        timeout_s: the time limit.
        launcher: a file in the work directory that the interpreter runs, and that is given the script's path.
        fill: puts into the work directory what the run is given.
        permissions: of the caller; None where the options alone decide.
        needs: secrets without which it is not to begin.
        network: whether it may use the network.
    """

    skills: Mapping[str, Skill]
    within: str
    path: str
    file: SkillFile | None
    args: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    timeout_s: float
    launcher: str | None
    fill: Callable[[str], None] | None
    permissions: Permissions | None = None
    needs: tuple[str, ...] = ()
    network: bool = False


class RunDirectory:
    """The directory of one run, beside the work directory of its session.

    Attributes:
        skills: where the skills are laid out.
        temporary: its temporary files.
        shared: its shared memory.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._begun = os.path.join(path, "begun")
        self.skills = os.path.join(path, "skills")
        self.temporary = os.path.join(path, "tmp")
        self.shared = os.path.join(path, "shm")

    def make(self, owner: int | None) -> None:
        """Make it.

        Args:
            owner: the number of the user who runs the script; None for us.

        Raises:
            OSError: the disk does not do its part.
        """
        os.mkdir(self._path, 0o700)
        os.mkdir(self._begun)  # nothing changes it, so it keeps the time
        make_directory(self.temporary, owner)
        make_directory(self.shared, owner)
        os.mkdir(self.skills)
        os.chmod(self.skills, 0o755)  # noqa: S103 - it lies in a private directory, and another user may have to read it

    def files_made(self, workspace: str) -> tuple[tuple[OutputFile, ...], int]:
        """Return the files of a work directory that are new or changed since this was made, and how many more there
        are.
        """
        with suppress(OSError, RequestError):
            return files_since(workspace, os.lstat(self._begun).st_ctime_ns, _FILES_NAMED)
        return (), 0

    def discard(self) -> None:
        """Remove it, if it is there."""
        discard(self._path)


class Preparation:
    """Makes the command of a run.

    Args:
        registry: where the skills' files are read.
        settings: what the operator chose.
        interpreters: what runs which script.
        box: returns the sandbox, None for none; may block.
    """

    def __init__(self, registry: Registry, settings: ScriptSettings, interpreters: Interpreters, box: Choose) -> None:
        self._registry = registry
        self._settings = settings
        self._interpreters = interpreters
        self._sandbox = box

    def command(self, request: RunRequest, workspace: Workspace, directory: RunDirectory) -> Command:
        """Put everything on the disk and say what is to be executed. Blocks.

        Raises:
            RequestError: the call must be put right; the message says how.
            StaleFileError: a file of the skill changed.
            OSError: the disk does not do its part.
        """
        bubblewrap = self._sandbox()
        owner = None if bubblewrap is None else bubblewrap.user
        interpreter = self._interpreter(request)
        workdir = workspace.prepare(request.workdir)
        if request.fill is not None:
            workspace.fill(request.fill)
        directory.make(owner)
        for name, skill in request.skills.items():
            started = request.path if name == request.within else None
            lay_out(self._registry, skill, started, os.path.join(directory.skills, name))
        skills, work, temporary = directory.skills, workspace.path, directory.temporary
        path, box = os.environ.get("PATH", ""), None
        if bubblewrap is not None:
            start = sandbox.WORKSPACE + workdir[len(work) :]
            box = bubblewrap.box(
                View(skills, work, temporary, directory.shared, start, interpreter.needs, network=request.network)
            )
            skills, work, temporary = sandbox.SKILLS, sandbox.WORKSPACE, sandbox.TEMPORARY
            path = sandbox.PATH if not interpreter.argv else _path_with(interpreter.argv[0])
        home = os.path.join(skills, request.within) if request.within else skills
        script = os.path.join(home if request.within else work, *request.path.split("/"))
        launched = () if request.launcher is None else (os.path.join(work, request.launcher),)
        env = {
            **_platform(),
            "PATH": path or os.defpath,
            "HOME": work,
            "TMPDIR": temporary,
            "LANG": "C.UTF-8",
            "SKILL_DIR": home,
            "SKILL_WORKSPACE": work,
            **request.env,
        }
        argv = (*interpreter.argv, *launched, script, *request.args)
        words, calls = (None, None) if box is None else (box.words, box.calls)
        return Command(argv, env, workdir, self._limits(request.timeout_s, owner), words, calls)

    def _interpreter(self, request: RunRequest) -> Interpreter:
        if self._interpreters.maps(request.path):
            return self._interpreters.by_extension(request.path)
        file = request.file
        head = b"" if file is None else self._registry.read(file)[:_HEAD]
        return self._interpreters.by_first_line(request.path, head)

    def _limits(self, timeout_s: float, owner: int | None) -> dict[str, int]:
        # Processor time counts every thread, so that eight threads may use eight seconds in one; it is for what
        # escapes the time limit. Address space would stop runtimes that reserve much and use little (V8, Go).
        return {
            **({} if owner is None else {"USER": owner}),
            "CPU": math.ceil(timeout_s + _CPU_SPARE_S) * (os.cpu_count() or 1),
            "DATA": self._settings.memory_bytes,
            "FSIZE": self._settings.file_bytes,
            "NOFILE": _OPEN_FILES,
            "CORE": 0,
            "MSGQUEUE": 0,
            "NPROC": _PROCESSES,
        }


def _path_with(program: str) -> str:
    """Return the sandbox's PATH, with the program's directory before it if it is not there."""
    directory = os.path.dirname(program)
    return sandbox.PATH if directory in sandbox.PATH.split(":") else f"{directory}:{sandbox.PATH}"


def _platform() -> dict[str, str]:
    """Return what no program of this platform can do without."""
    needed = ("SYSTEMROOT", "PATHEXT", "COMSPEC") if os.name == "nt" else ()
    return {name: os.environ[name] for name in needed if name in os.environ}
