"""The script runner: validates a call, lays out files, executes the script, and cleans up.

A run uses a private copy of the scanned bytes, in an environment without the server's variables,
with limits of CPU time, memory, files and processes, and in a sandbox unless that is off.

Scripts are off by default. A script is a file of the skill, looked up in the snapshot. No text of
the client becomes a path outside the session's work directory, or reaches a shell. An error that a
model can correct is a RequestError that says how.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import secrets
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import anyio
from anyio import to_thread

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.access.quota import Owner
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError, SkillsServerError, UsageError, listed
from mcp_skills_server.model import Skill, SkillFile, printable
from mcp_skills_server.runtime.scripts import cgroups, sandbox
from mcp_skills_server.runtime.scripts.arguments import (
    allowed_env,
    checked_args,
    checked_env,
    checked_text,
    declared_env,
)
from mcp_skills_server.runtime.scripts.interpreters import Interpreters
from mcp_skills_server.runtime.scripts.limits import ResourceUsage, RunSlots
from mcp_skills_server.runtime.scripts.outcome import Outcome, as_line, outcome_of, remarks_on
from mcp_skills_server.runtime.scripts.output_files import OutputFiles
from mcp_skills_server.runtime.scripts.policy import ExecutionPolicy
from mcp_skills_server.runtime.scripts.processes import (
    NOT_STARTED,
    Command,
    ProcessResult,
    ProcessTree,
    Progress,
    execute,
)
from mcp_skills_server.runtime.scripts.sandbox import Bubblewrap, SandboxView
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from mcp_skills_server.runtime.scripts.trees import discard
from mcp_skills_server.runtime.scripts.workspace import RunDirectory, Workspace, lay_out
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

POLL_S = 0.05
"""The interval between two measurements of a run, in seconds."""
SLOT_TIMEOUT_S = 10.0
"""Seconds that a call waits for a slot of the concurrency limit."""
_CLEANUP_S: Final = 20.0
_NOTHING_RUN: Final = "Nothing was run: {}. The operator of this server must correct that"
_DIRECTORY_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)

_HEAD_BYTES: Final = 256
"""The first bytes of a script, in which its shebang line must end."""
_MAX_PROCESSES: Final = 64
_MAX_OPEN_FILES: Final = 64
"""A low limit, because socket buffers belong to no process and are counted by no memory limit."""
_CPU_SPARE_S: Final = 5
_PLATFORM_NEEDS: Final = ("SYSTEMROOT", "PATHEXT", "COMSPEC") if os.name == "nt" else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A request to run a file of a skill, or of the session's work directory.

    Attributes:
        skill: the skill; None for a file in the work directory.
        path: the exact path of a file of the skill; or a path in the work directory, which must not
            come from a client.
        env: environment variables, which the skill must declare or the operator allow.
        workdir: the working directory, relative to the work directory; created if missing.
        timeout_s: the time limit; None for the operator's default.
        directory: the directory name of the skill; None for the skill's name.
        skills: if `skill` is None, the skills to lay out below `SKILL_DIR`, by directory name.
        launcher: a file in the work directory that the interpreter runs, with the script as its
            first argument.
        fill: writes files into the work directory, in a thread, once the run has its slot, so that
            waiting runs use no disk. The work directory must have no other run.
        stdin: the reading end of a pipe, which must be no other file of this process's user:
            through its descriptor a script in the sandbox could open that file again.
        owner: the owner whose concurrency limit the run counts toward.
        permissions: those of the caller; None if there are no grants.
        needs: the secrets that the run cannot do without.
    """

    skill: Skill | None
    path: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str = "."
    timeout_s: float | None = None
    directory: str | None = None
    skills: Mapping[str, Skill] = field(default_factory=dict[str, Skill])
    launcher: str | None = None
    fill: Callable[[str], None] | None = None
    stdin: int | None = None
    owner: Owner | None = None
    permissions: Permissions | None = None
    needs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _CheckedRun:
    """A validated request, with what the server adds to it."""

    request: RunRequest
    skills: Mapping[str, Skill]  # to lay out, by directory name
    skill_directory: str  # of the script's skill; "" for the work directory
    file: SkillFile | None  # the script; None if it is in the work directory
    timeout_s: float
    env: Mapping[str, str]
    network: bool = False


@dataclass(frozen=True, slots=True)
class DryRun:
    """A dry run: the prepared command, and the `folders` of the operator that it may write to."""

    command: Command
    sandbox: Bubblewrap | None
    network: bool
    folders: Sequence[str]


class Scripts:
    """The script runner of one server, on one event loop.

    Raises:
        UsageError: the required sandbox does not work, an interpreter or a folder is missing, or a
            variable may not be set by callers.
    """

    def __init__(
        self, registry: Registry, settings: ScriptSettings, server: events.Events | None = None
    ) -> None:
        self._registry = registry
        self._server = server or events.Events()
        self._settings = settings
        self._allowed_env = allowed_env(settings.env)
        self._policy = ExecutionPolicy(registry, settings)
        self._interpreters = Interpreters(settings.interpreters)
        self._trial: Future[Bubblewrap | None] = Future()
        if settings.wait_for_sandbox:
            self._trial.set_result(self._choose())
        else:
            sandbox.program_of(settings.sandbox, settings.folders)
            threading.Thread(target=self._try_sandbox, name="skills-sandbox", daemon=True).start()
        self._slots = RunSlots(settings.concurrent)
        self._top: str | None = None
        self._workspaces: set[Workspace] = set()

    async def ready(self) -> None:
        """Wait for the trial of the sandbox, so that `workspace` does not block."""
        await to_thread.run_sync(self._sandbox)

    def workspace(self) -> Workspace:
        """Return a new private work directory for one session."""
        box = self._sandbox()
        path = os.path.join(self._directory(), f"session-{secrets.token_hex(8)}")
        made = Workspace(path, self._workspaces.discard, None if box is None else box.user)
        self._workspaces.add(made)
        return made

    def close(self) -> None:
        """Remove every work directory. Safe to call twice."""
        with suppress(TimeoutError):
            self._trial.exception(1.0)  # wait for a trial, which removes its own directories
        for workspace in list(self._workspaces):
            workspace.close()
        if self._top is not None:
            discard(self._top)
            self._top = None

    @property
    def extensions(self) -> list[str]:
        """The file extensions that have an interpreter, installed or not."""
        return self._interpreters.known()

    def _choose(self) -> Bubblewrap | None:
        settings = self._settings
        return sandbox.choose(settings.sandbox, network=settings.network, folders=settings.folders)

    def _try_sandbox(self) -> None:
        try:
            self._trial.set_result(self._choose())
        except Exception as error:
            logger.error("no script will run: %s", error)
            self._trial.set_exception(error)

    def _sandbox(self) -> Bubblewrap | None:
        """Wait for the trial and return the sandbox, or None if off; RequestError if it fails."""
        try:
            return self._trial.result()
        except UsageError as error:
            raise RequestError(_NOTHING_RUN.format(error)) from None

    async def run(
        self, request: RunRequest, workspace: Workspace, progress: Progress | None = None
    ) -> Outcome:
        """Run a script to its end; cancellation cleans up.

        Raises:
            QuotaError: the owner has too many runs; retry later.
            RunRefusedError: the caller may not run it.
            RequestError: the call must be changed or retried later; the message says how.
            OSError: a file of a skill changed, and nothing was started; rescan it and retry.
        """
        run, box = self._checked(request), self._sandbox()
        # SP-30: checked for each run, because the process may have become root since the start.
        if box is None and sandbox.is_off_forbidden():
            raise RequestError(_NOTHING_RUN.format(sandbox.ROOT_WITHOUT))
        run = await to_thread.run_sync(self._authorized, run)
        async with self._slots.slot(request.owner, SLOT_TIMEOUT_S):
            return await self._run(run, workspace, box, progress)

    def explain(self, request: RunRequest, workspace: Workspace) -> DryRun:
        """Return the command that `run` would execute, as a dry run. Blocks; raises as `run`."""
        box, run = self._sandbox(), self._authorized(self._checked(request))
        directory = self._run_directory()
        workspace.begin_run()
        try:
            command = self._command(run, workspace, directory)
        finally:
            self._clean_up(directory, workspace)
        return DryRun(command, box, run.network, self._settings.folders)

    def _checked(self, request: RunRequest) -> _CheckedRun:
        skill, skills, folder, file = request.skill, request.skills, "", None
        declared: Sequence[str] = ()
        if skill is not None:
            folder, file = request.directory or skill.name, _file(skill, request.path)
            if not _DIRECTORY_NAME.fullmatch(folder):
                folder = "skill"
            skills = {folder: skill}
            declared = declared_env(skill.frontmatter)
        for name in skills:
            if not _DIRECTORY_NAME.fullmatch(name):
                words = f"{printable(name[:200])!r} is not a valid directory name"
                raise RequestError(f"{words}; leave the skill out")
        timeout_s = self._checked_timeout(request.timeout_s)
        checked_args(request.args)
        env = checked_env(request.env, (*declared, *self._allowed_env))
        checked_text(request.workdir, "workdir")
        return _CheckedRun(request, skills, folder, file, timeout_s, env)

    async def _run(
        self,
        run: _CheckedRun,
        workspace: Workspace,
        box: Bubblewrap | None,
        progress: Progress | None,
    ) -> Outcome:
        if not workspace.is_open:
            raise RequestError("The work directory of this session is gone; start a new session")
        files, emptied, reason = OutputFiles(), False, None
        path = run.request.path
        directory = self._run_directory()
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(workspace.begin_run)
        try:
            ended, reason = await self._execute(run, workspace, directory, progress)
        except SkillsServerError:
            raise
        except OSError as error:
            problem = f"{printable(path)} could not be started: {error.strerror or error}"
            ended = ProcessResult(NOT_STARTED, "", as_line(problem), 0)
        finally:
            with anyio.move_on_after(_CLEANUP_S, shield=True):
                files, emptied = await to_thread.run_sync(
                    self._clean_up, directory, workspace, abandon_on_cancel=True
                )
        closed = box is not None and not run.network
        remarks = remarks_on(ended, reason, run.timeout_s, network_closed=closed)
        if emptied:
            files = OutputFiles()
            most = f"more than {self._settings.workspace_bytes:,} bytes, had too many files"
            remarks.append(
                f"the session's work directory took {most}, or could not be measured, and was "
                "emptied"
            )
        self._log(run.request, ended)
        return outcome_of(path, ended, "".join(map(as_line, remarks)), box, files)

    async def _execute(
        self,
        run: _CheckedRun,
        workspace: Workspace,
        directory: RunDirectory,
        progress: Progress | None,
    ) -> tuple[ProcessResult, str | None]:
        """Execute the script, and return its result and the limit that it exceeded, if any."""
        command = await to_thread.run_sync(self._command, run, workspace, directory)
        await to_thread.run_sync(self._record, run)
        written = [workspace.path, directory.temporary, directory.shared]
        usage = ResourceUsage(written, self._settings.workspace_bytes, self._settings.memory_bytes)
        reason: str | None = None

        async def poll(tree: ProcessTree) -> bool:
            nonlocal reason
            reason = await to_thread.run_sync(usage.exceeded, tree, abandon_on_cancel=True)
            return reason is not None

        box = self._sandbox()
        top = None if box is None else box.cgroup
        async with cgroups.limited(top, usage.memory_bytes) as cgroup:
            ended = await execute(
                replace(command, cgroup=cgroup),
                timeout_s=run.timeout_s,
                output_bytes=self._settings.output_bytes,
                poll_s=POLL_S,
                poll=poll,
                progress=progress,
            )
            if cgroup is not None and cgroups.is_exceeded(cgroup):
                ended = replace(ended, exit_code=None, stopped=True)
                reason = usage.too_much_memory
        return ended, reason

    def _command(self, run: _CheckedRun, workspace: Workspace, directory: RunDirectory) -> Command:
        """Lay out the files of a run, and return the command to execute. Blocks."""
        box = self._sandbox()
        owner = None if box is None else box.user
        request, file = run.request, run.file
        interpreter = self._interpreters.choose(
            request.path,
            lambda: self._registry.read(file)[:_HEAD_BYTES] if file is not None else b"",
        )
        workdir = workspace.prepare(request.workdir)
        if request.fill is not None:
            workspace.fill(request.fill)
        directory.make(owner)
        for name, skill in run.skills.items():
            script = request.path if name == run.skill_directory else None
            lay_out(self._registry, skill, script, os.path.join(directory.skills, name))
        skills, work, temporary = directory.skills, workspace.path, directory.temporary
        path, prefix, seccomp = os.environ.get("PATH", ""), None, None
        if box is not None:
            start = sandbox.WORKSPACE + workdir[len(work) :]
            mounted = skills, work, temporary, directory.shared
            view = SandboxView(*mounted, start, interpreter.needs, network=run.network)
            prefix, seccomp = partial(box.prefix, view), box.seccomp
            # from here on the paths as the script sees them
            skills, work, temporary = sandbox.SKILLS, sandbox.WORKSPACE, sandbox.TEMPORARY
            path = sandbox.PATH if not interpreter.argv else _path_with(interpreter.argv[0])
        skill_dir, script_dir = skills, work
        if run.skill_directory:
            skill_dir = script_dir = os.path.join(skills, run.skill_directory)
        started = [os.path.join(script_dir, *request.path.split("/"))]
        if request.launcher is not None:
            started.insert(0, os.path.join(work, request.launcher))
        env = {
            **{name: os.environ[name] for name in _PLATFORM_NEEDS if name in os.environ},
            "PATH": path or os.defpath,
            "HOME": work,
            "TMPDIR": temporary,
            "LANG": "C.UTF-8",
            "SKILL_DIR": skill_dir,
            "SKILL_WORKSPACE": work,
            **run.env,
        }
        argv = (*interpreter.argv, *started, *request.args)
        limits = self._limits(run.timeout_s, owner)
        return Command(argv, env, workdir, limits, prefix, seccomp, stdin=request.stdin)

    def _limits(self, timeout_s: float, owner: int | None) -> dict[str, int]:
        # The CPU limit ends processes that escape the timeout. It counts all threads, hence the
        # factor. No limit of address space, of which V8 and Go reserve much and use little.
        limits = {
            "CPU": math.ceil(timeout_s + _CPU_SPARE_S) * (os.cpu_count() or 1),
            "DATA": self._settings.memory_bytes,
            "FSIZE": self._settings.file_bytes,
            "NOFILE": _MAX_OPEN_FILES,
            "CORE": 0,
            "MSGQUEUE": 0,
            "RTPRIO": 0,
            "NPROC": _MAX_PROCESSES,
        }
        if owner is not None:
            limits["USER"] = owner
        return limits

    def _authorized(self, run: _CheckedRun) -> _CheckedRun:
        """Return the run with the policy's secrets and network access. Blocks."""
        request, skills = run.request, tuple(run.skills.values())
        allowed = self._policy.decide(
            request.skill, skills, permissions=request.permissions, needs=request.needs
        )
        own = checked_env(allowed.secrets, None)
        return replace(run, env={**run.env, **own}, network=allowed.network)

    def _record(self, run: _CheckedRun) -> None:
        """Emit the start event; raise NotRecordedError if the audit log fails. Blocks."""
        with self._server.serving():  # for runs outside of a request, too
            skill, path = run.request.skill, run.request.path
            digests = {
                skill.path: self._registry.digest_over(skill) for skill in run.skills.values()
            }
            if skill is not None:
                events.record_run(skill.path, path, digests[skill.path])
            else:  # code from a call can read all skills that are laid out for it
                events.record_run("", path, "", laid_out=digests)

    def _clean_up(self, directory: RunDirectory, workspace: Workspace) -> tuple[OutputFiles, bool]:
        """Remove a run's directory; return its output files, and True if those were removed too."""
        files = directory.files_made(workspace.path)
        directory.discard()
        return files, workspace.end_run(self._settings.workspace_bytes)

    def _log(self, request: RunRequest, ended: ProcessResult) -> None:
        whose, how = "a call", f"exit code {ended.exit_code}"
        if request.skill is not None:
            whose = request.skill.path
        if ended.exit_code is None:
            how = "ended by the server"
        logger.info("ran %s of %s: %s, %d ms", request.path, whose, how, ended.duration_ms)

    def _run_directory(self) -> RunDirectory:
        return RunDirectory(os.path.join(self._directory(), f"run-{secrets.token_hex(8)}"))

    def _directory(self) -> str:
        """Return the directory of all work directories; remake it if a cleaner of /tmp removed it.

        RequestError says that it cannot be used.
        """
        top = self._top
        try:
            if top is None:
                top = self._top = os.path.realpath(tempfile.mkdtemp(prefix="mcp-skills-scripts-"))
                weakref.finalize(self, discard, top)  # runs at process exit at the latest
            with suppress(FileExistsError):
                os.mkdir(top, 0o700)  # at the same path, below which open sessions have theirs
            if hasattr(os, "geteuid") and os.lstat(top).st_uid != os.geteuid():
                raise FileExistsError(errno.EEXIST, "it belongs to another user")
        except OSError as error:
            fault = f"its work directory cannot be made ({error.strerror})"
            raise RequestError(_NOTHING_RUN.format(fault)) from None
        return top

    def _checked_timeout(self, timeout_s: float | None) -> float:
        most = self._settings.max_timeout_s
        if timeout_s is None:
            return min(self._settings.timeout_s, most)
        if not 0 < timeout_s <= most:
            words = f"more than 0 and at most {most:g} seconds"
            raise RequestError(f"The time limit (timeout_s) must be {words}")
        return timeout_s


def _file(skill: Skill, path: str) -> SkillFile:
    file = skill.files.get(path)
    if file is None:
        there = [file for file in skill.files if file.startswith("scripts/")]
        hint = "it has no scripts"
        if there:
            hint = f"its scripts are {listed(there)}"
        fault = f"The skill {skill.name} has no file {printable(path[:200])!r}"
        raise RequestError(f"{fault}; {printable(hint)}")
    return file


def _path_with(program: str) -> str:
    """Return the sandbox's PATH, with the program's directory prepended if it is missing."""
    directory = os.path.dirname(program)
    if directory in sandbox.PATH.split(":"):
        return sandbox.PATH
    return f"{directory}:{sandbox.PATH}"
