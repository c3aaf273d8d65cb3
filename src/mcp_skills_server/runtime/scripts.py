"""Runs a script of a skill: what the client may say, what the script is given, and what is told of it.

Off unless the operator turns it on. A script is a file of the skill, looked up in the snapshot; no text of the client
becomes a path outside the session's work directory, or reaches a shell. What runs is a private copy of the bytes that
were scanned, in an environment that holds nothing of ours, with limits on time, output, memory, files and processes,
and in a sandbox where there is one. What a model can mend is a RequestError that says how.
"""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import tempfile
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import anyio
from anyio import to_thread

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.model import Skill, SkillFile, printable
from mcp_skills_server.runtime import sandbox
from mcp_skills_server.runtime.advice import advice
from mcp_skills_server.runtime.arguments import allowed_env, checked_args, checked_env, checked_text, declared_env
from mcp_skills_server.runtime.interpreters import Interpreter, Interpreters
from mcp_skills_server.runtime.policy import Policy
from mcp_skills_server.runtime.processes import NOT_STARTED, Command, Ended, Watched, execute
from mcp_skills_server.runtime.remains import Made, made_since
from mcp_skills_server.runtime.sandbox import Mode, View
from mcp_skills_server.runtime.usage import Usage
from mcp_skills_server.runtime.workspace import Workspace, discard, lay_out, make_directory

logger = logging.getLogger(__name__)

BEAT_S = 2.0
"""Between two reports of progress."""
LOOK_S = 0.05
"""Between two looks at what a run takes."""
PATIENCE_S = 10.0
"""How long a call waits for its turn."""
_TIDYING_S: Final = 20.0

_NAMES_SHOWN: Final = 20
OURS: Final = "mcp-skills-server:"
"""What the lines of stderr begin with that the server has added."""
_FILES_NAMED: Final = 50
_BEGUN: Final = "begun"
_HEAD: Final = 256
_PROCESSES: Final = 256
_OPEN_FILES: Final = 1024
_CPU_SPARE_S: Final = 5

_DIRECTORY_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ScriptSettings:
    """What the operator chose.

    Attributes:
        timeout_s: the time limit of a call that names none.
        max_timeout_s: the longest that a call may ask for.
        output_bytes: how much is kept of each of the two streams.
        concurrent: scripts that may run at once.
        memory_bytes: of one process.
        file_bytes: of one file that a script writes.
        workspace_bytes: of all files that a script makes: above this it is ended; and of a session's work directory:
            above this it is emptied.
        sandbox: whether bubblewrap must be had, or is not used.
        network: whether scripts in the sandbox may use the network.
        folders: folders that scripts in the sandbox may read and write.
        interpreters: program by extension (`.py`), over the built-in map.
        env: names of variables that callers may set for every skill, beside those that a skill declares.
        origins: sites and archives whose approved skills may run (`policy.canonical`).
        approvals: the file of approvals; None for the user's own.
    """

    timeout_s: float = 60
    max_timeout_s: float = 600
    output_bytes: int = 256 << 10
    concurrent: int = 4
    memory_bytes: int = 2 << 30
    file_bytes: int = 64 << 20
    workspace_bytes: int = 256 << 20
    sandbox: Mode = "required"
    network: bool = False
    folders: tuple[str, ...] = ()
    interpreters: Mapping[str, str] = field(default_factory=dict[str, str])
    env: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    approvals: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a script did (RT-19, RTI-7).

    Attributes:
        path: the script's path in the skill.
        exit_code: its exit code; 128 and the number of the signal that ended it; 127 when it could not be started;
            None when the server ended it.
        stdout: what it wrote, with U+FFFD for what is not UTF-8.
        stderr: likewise; the server's own remarks are lines at its end that begin with `mcp-skills-server:`.
        duration_ms: how long it ran.
        timed_out: the server ended it because its time was over.
        stdout_truncated: it wrote more than is kept.
        stderr_truncated: likewise.
        sandbox: what it ran in.
        user: the number of the user that it was to the kernel; None where there are none.
        sandbox_gaps: what of a whole sandbox this machine does not have, in words.
        files: files of the work directory that are new or changed since it began.
        files_not_shown: how many more of them there are.
    """

    path: str
    exit_code: int | None
    stdout: str
    stderr: str
    duration_ms: int
    timed_out: bool
    stdout_truncated: bool
    stderr_truncated: bool
    sandbox: Literal["bubblewrap", "none"]
    user: int | None = None
    sandbox_gaps: tuple[str, ...] = ()
    files: tuple[Made, ...] = ()
    files_not_shown: int = 0


@dataclass(frozen=True, slots=True)
class _RunRequest:
    """What a client asked for, checked.

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


class Scripts:
    """Runs scripts for one server, on one event loop.

    Args:
        registry: where the skills' files are read.
        settings: what the operator chose.

    Raises:
        UsageError: the sandbox is required and cannot be had, an interpreter or a folder is not there, or a name is
            none that a caller may be given.
    """

    def __init__(self, registry: Registry, settings: ScriptSettings) -> None:
        self._registry = registry
        self._settings = settings
        self._allowed_env = allowed_env(settings.env)
        self._policy = Policy(registry, settings.origins, settings.approvals)
        self._interpreters = Interpreters(settings.interpreters)
        self._sandbox = sandbox.choose(settings.sandbox, network=settings.network, folders=settings.folders)
        self._owner = None if self._sandbox is None else self._sandbox.user
        self._places = anyio.Semaphore(settings.concurrent)
        self._top: str | None = None
        self._workspaces: set[Workspace] = set()

    def workspace(self) -> Workspace:
        """A new private work directory, for one session."""
        path = os.path.join(self._directory(), f"session-{secrets.token_hex(8)}")
        made = Workspace(path, self._workspaces.discard, self._owner)
        self._workspaces.add(made)
        return made

    def close(self) -> None:
        """Remove every work directory. Safe to call twice."""
        for workspace in list(self._workspaces):
            workspace.close()
        if self._top is not None:
            discard(self._top)
            self._top = None

    @property
    def extensions(self) -> list[str]:
        """The extensions that have an interpreter, whether it is installed or not."""
        return self._interpreters.known()

    async def run(
        self,
        skill: Skill,
        path: str,
        workspace: Workspace,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        workdir: str = ".",
        timeout_s: float | None = None,
        progress: Callable[[float], Awaitable[None]] | None = None,
        directory: str | None = None,
        launcher: str | None = None,
        fill: Callable[[str], None] | None = None,
    ) -> Outcome:
        """Run a file of a skill and wait for its end (RT-18...20, X-29). Cancelled, it leaves nothing behind.

        Args:
            skill: the skill.
            path: the file's path in it, found by exact look-up.
            workspace: the session's work directory.
            args: the script's arguments.
            env: variables for its environment, as the caller wants them: those that the skill declares or the operator
                allows.
            secrets: variables of the operator's own.
            workdir: where it starts, relative to the work directory; made if it is not there.
            timeout_s: the time limit; None for the operator's.
            progress: awaited now and then with the seconds that it has run.
            directory: the name of the skill's directory; None for the skill's own.
            launcher: a file in the work directory that the interpreter runs, with the script as its first argument.
            fill: called in a thread with the work directory when it is this run's turn, before the start: what waits
                for its turn takes no room on the disk. Only for a work directory in which nothing else runs.

        Raises:
            RequestError: the call must be mended, or be tried again later; the message says how.
            StaleFileError: a file of the skill changed; scan it again and call again. The script was not started.
        """
        name = directory or skill.name
        within = name if _DIRECTORY_NAME.fullmatch(name) else "skill"
        wish = _RunRequest(
            {within: skill},
            within,
            path,
            _file(skill, path),
            checked_args(args),
            {
                **checked_env(env or {}, (*declared_env(skill.frontmatter), *self._allowed_env)),
                **checked_env(secrets or {}, None),
            },
            checked_text(workdir, "workdir"),
            self._checked_timeout(timeout_s),
            launcher,
            fill,
        )
        return await self._run(wish, workspace, progress)

    async def run_written(
        self,
        path: str,
        workspace: Workspace,
        *,
        skills: Mapping[str, Skill],
        args: Sequence[str] = (),
        timeout_s: float | None = None,
        launcher: str | None = None,
        fill: Callable[[str], None] | None = None,
    ) -> Outcome:
        """Run a file that lies in the work directory, with some skills at hand.

        Args:
            path: the file's path in the work directory. It is the caller's, and never a client's.
            workspace: the work directory.
            skills: what is laid out below `SKILL_DIR`, by the name of the directory.
            args: as for `run`, and so the rest.
            timeout_s: likewise.
            launcher: likewise.
            fill: likewise; it may be what writes the file.

        Raises:
            RequestError: as for `run`; or a name is none for a directory.
            StaleFileError: as for `run`.
        """
        for name in skills:
            if not _DIRECTORY_NAME.fullmatch(name):
                raise RequestError(f"No directory can have the name {printable(name[:200])!r}; leave the skill out")
        timeout_s = self._checked_timeout(timeout_s)
        wish = _RunRequest(skills, "", path, None, checked_args(args), {}, ".", timeout_s, launcher, fill)
        return await self._run(wish, workspace, None)

    async def _run(
        self, wish: _RunRequest, workspace: Workspace, progress: Callable[[float], Awaitable[None]] | None
    ) -> Outcome:
        # SP-30: this process was not root when it chose to have no sandbox.
        if self._sandbox is None and sandbox.is_off_forbidden():
            raise RequestError(f"Nothing was run: {sandbox.ROOT_WITHOUT}. Whoever runs this server must correct that")
        await to_thread.run_sync(self._policy.check, tuple(wish.skills.values()))
        async with self._place():
            if not workspace.open:
                raise RequestError("The work directory of this session is gone; start a new session")
            left: tuple[tuple[Made, ...], int] = (), 0
            place, emptied, why = os.path.join(self._directory(), f"run-{secrets.token_hex(8)}"), False, None
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(workspace.enter)
            try:
                ended, why = await self._execute(wish, workspace, place, progress)
            except StaleFileError:
                raise
            except OSError as error:
                said = f"{printable(wish.path)} could not be started: {error.strerror or error}"
                ended = Ended(NOT_STARTED, "", _line(said), 0)
            finally:
                with anyio.move_on_after(_TIDYING_S, shield=True):
                    left, emptied = await to_thread.run_sync(self._tidy, place, workspace, abandon_on_cancel=True)
        outcome = self._outcome(wish, ended, why, emptied=emptied)
        return outcome if emptied else replace(outcome, files=left[0], files_not_shown=left[1])

    # Steps of a run

    async def _execute(
        self,
        wish: _RunRequest,
        workspace: Workspace,
        place: str,
        progress: Callable[[float], Awaitable[None]] | None,
    ) -> tuple[Ended, str | None]:
        """What the script did, and why the server ended it, if it did before its time."""
        command = await to_thread.run_sync(self._prepare, wish, workspace, place)
        written = [workspace.path, *_private(place)]
        why: str | None = None
        usage = Usage(written, self._settings.workspace_bytes, self._settings.memory_bytes)

        def look(watched: Watched) -> str | None:
            return usage.over(watched.processes())

        async def beat(watched: Watched) -> bool:
            nonlocal why
            why = await to_thread.run_sync(look, watched, abandon_on_cancel=True)
            return why is not None

        async with _reported(progress):
            ended = await execute(
                command,
                timeout_s=wish.timeout_s,
                output_bytes=self._settings.output_bytes,
                beat_s=LOOK_S,
                beat=beat,
            )
        return ended, why

    def _prepare(self, wish: _RunRequest, workspace: Workspace, place: str) -> Command:
        """Everything that touches the disk before the start."""
        interpreter = self._interpreter(wish)
        workdir = workspace.prepare(wish.workdir)
        if wish.fill is not None:
            workspace.fill(wish.fill)
        os.mkdir(place, 0o700)
        os.mkdir(os.path.join(place, _BEGUN))  # nothing changes it, so it keeps the time
        temporary, shared = _private(place)
        make_directory(temporary, self._owner)
        make_directory(shared, self._owner)
        skills = os.path.join(place, "skills")
        os.mkdir(skills)
        os.chmod(skills, 0o755)  # noqa: S103 - it lies in a private directory, and another user may have to read it
        for name, skill in wish.skills.items():
            lay_out(self._registry, skill, wish.path if name == wish.within else None, os.path.join(skills, name))
        box, seen, work, path = None, skills, workspace.path, os.environ.get("PATH", "")
        if self._sandbox is not None:
            start = sandbox.WORKSPACE + workdir[len(work) :]
            box = self._sandbox.box(View(skills, work, temporary, shared, start, interpreter.needs))
            seen, work, temporary = sandbox.SKILLS, sandbox.WORKSPACE, sandbox.TEMPORARY
            path = sandbox.PATH if not interpreter.argv else _path_with(interpreter.argv[0])
        home = os.path.join(seen, wish.within) if wish.within else seen
        script = os.path.join(home if wish.within else work, *wish.path.split("/"))
        launched = () if wish.launcher is None else (os.path.join(work, wish.launcher),)
        own = {
            **_platform(),
            "PATH": path or os.defpath,
            "HOME": work,
            "TMPDIR": temporary,
            "LANG": "C.UTF-8",
            "SKILL_DIR": home,
            "SKILL_WORKSPACE": work,
        }
        argv = (*interpreter.argv, *launched, script, *wish.args)
        words, calls = (None, None) if box is None else (box.words, box.calls)
        return Command(argv, {**own, **wish.env}, workdir, self._limits(wish.timeout_s), words, calls)

    def _interpreter(self, wish: _RunRequest) -> Interpreter:
        if self._interpreters.maps(wish.path):
            return self._interpreters.by_extension(wish.path)
        file = wish.file
        head = b"" if file is None else self._registry.read(file)[:_HEAD]
        return self._interpreters.by_first_line(wish.path, head, executable=file is not None and file.executable)

    def _limits(self, timeout_s: float) -> dict[str, int]:
        # Processor time counts every thread, so that eight threads may use eight seconds in one; it is for what
        # escapes the time limit. Address space would stop runtimes that reserve much and use little (V8, Go).
        return {
            **({} if self._owner is None else {"USER": self._owner}),
            "CPU": math.ceil(timeout_s + _CPU_SPARE_S) * (os.cpu_count() or 1),
            "DATA": self._settings.memory_bytes,
            "FSIZE": self._settings.file_bytes,
            "NOFILE": _OPEN_FILES,
            "CORE": 0,
            "NPROC": _PROCESSES,
        }

    def _tidy(self, place: str, workspace: Workspace) -> tuple[tuple[tuple[Made, ...], int], bool]:
        """Remove what was made for one run.

        Returns the files that are new since, how many more there are, and whether the work directory had to be emptied.
        """
        left: tuple[tuple[Made, ...], int] = (), 0
        with suppress(OSError):
            begun = os.lstat(os.path.join(place, _BEGUN)).st_ctime_ns
            left = made_since(workspace.path, begun, _FILES_NAMED)
        discard(place)
        return left, workspace.leave(self._settings.workspace_bytes)

    def _outcome(self, wish: _RunRequest, ended: Ended, why: str | None, *, emptied: bool) -> Outcome:
        remarks, most = "", f"more than {self._settings.workspace_bytes:,} bytes"
        if ended.timed_out:
            remarks += _line(f"the script was ended after its time limit of {wish.timeout_s:g} s")
        if ended.stopped:
            remarks += _line(f"the script was ended because {why}")
        if ended.exit_code:
            closed = self._sandbox is not None and not self._settings.network
            remarks += "".join(map(_line, advice(ended.stderr, network_closed=closed)))
        if emptied:
            remarks += _line(f"the session's work directory took {most}, or could not be measured, and was emptied")
        skill = wish.skills.get(wish.within)
        whose = "a call" if skill is None else skill.path
        how = "ended by the server" if ended.exit_code is None else f"exit code {ended.exit_code}"
        logger.info("ran %s of %s: %s, %d ms", wish.path, whose, how, ended.duration_ms)
        return Outcome(
            wish.path,
            ended.exit_code,
            ended.stdout,
            _joined(ended.stderr, remarks),
            ended.duration_ms,
            ended.timed_out,
            ended.stdout_truncated,
            ended.stderr_truncated,
            "none" if self._sandbox is None else "bubblewrap",
            _user() if self._owner is None else self._owner,
            () if self._sandbox is None else self._sandbox.gaps,
        )

    # What runs share

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None]:
        """One of the places for scripts; what waits for it too long is turned away."""
        with anyio.move_on_after(PATIENCE_S) as limit:
            await self._places.acquire()
        if limit.cancelled_caught:
            raise RequestError(
                f"{self._settings.concurrent} scripts are running already, which is all that run at once; "
                "try again in a moment"
            )
        try:
            yield
        finally:
            self._places.release()

    def _directory(self) -> str:
        if self._top is None or not os.path.isdir(self._top):
            self._top = os.path.realpath(tempfile.mkdtemp(prefix="mcp-skills-scripts-"))
            weakref.finalize(self, discard, self._top)  # at the latest when this process ends
        return self._top

    def _checked_timeout(self, timeout_s: float | None) -> float:
        most = self._settings.max_timeout_s
        if timeout_s is None:
            return min(self._settings.timeout_s, most)
        if not 0 < timeout_s <= most:
            raise RequestError(f"The time limit (timeout_s) must be more than 0 and at most {most:g} seconds")
        return timeout_s


def _file(skill: Skill, path: str) -> SkillFile:
    file = skill.files.get(path)
    if file is None:
        there = [each for each in skill.files if each.startswith("scripts/")]
        more = f" and {len(there) - _NAMES_SHOWN} more" if len(there) > _NAMES_SHOWN else ""
        hint = f"its scripts are {', '.join(there[:_NAMES_SHOWN])}{more}" if there else "it has no scripts"
        raise RequestError(f"The skill {skill.name} has no file {printable(path[:200])!r}; {printable(hint)}")
    return file


def _path_with(program: str) -> str:
    """The sandbox's PATH, with the program's directory before it if it is not there."""
    directory = os.path.dirname(program)
    return sandbox.PATH if directory in sandbox.PATH.split(":") else f"{directory}:{sandbox.PATH}"


def _platform() -> dict[str, str]:
    """What no program of this platform can do without."""
    needed = ("SYSTEMROOT", "PATHEXT", "COMSPEC") if os.name == "nt" else ()
    return {name: os.environ[name] for name in needed if name in os.environ}


def _private(place: str) -> tuple[str, str]:
    """Where, in a run's own directory, its temporary files and its shared memory are."""
    return os.path.join(place, "tmp"), os.path.join(place, "shm")


@asynccontextmanager
async def _reported(progress: Callable[[float], Awaitable[None]] | None) -> AsyncGenerator[None]:
    """Report progress at every beat. Whoever listens has no say in whether the script goes on."""

    async def report(whom: Callable[[float], Awaitable[None]]) -> None:
        begun = anyio.current_time()
        while True:
            await anyio.sleep(BEAT_S)
            try:
                with anyio.move_on_after(BEAT_S):
                    await whom(anyio.current_time() - begun)
            except Exception:
                logger.debug("progress could not be reported", exc_info=True)

    wrong: Exception | None = None
    async with anyio.create_task_group() as tasks:
        if progress is not None:
            tasks.start_soon(report, progress)
        try:
            yield
        except Exception as error:  # the group would make another kind of it
            wrong = error
        tasks.cancel_scope.cancel()
    if wrong is not None:
        raise wrong


def _user() -> int | None:
    return os.geteuid() if hasattr(os, "geteuid") else None


def _line(said: str) -> str:
    return f"{OURS} {said}\n"


def _joined(stderr: str, remarks: str) -> str:
    return f"{stderr}\n{remarks}" if remarks and stderr and not stderr.endswith("\n") else stderr + remarks
