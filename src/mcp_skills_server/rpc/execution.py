"""Execution of skill actions and code, with the sandbox, limits and queue of scripts.

Each run has a temporary work directory with arguments and blobs. A run executes a file of a skill,
found by exact look-up, or code from the call, written into that directory. The run's output is
untrusted: no symlink is followed, and all reads are bounded.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, cast

import anyio
from anyio import to_thread

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.skills_protocol import DISABLED, CodeExecution, Execution, Run
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import media
from mcp_skills_server.format.manifest import ACTION, Manifest
from mcp_skills_server.model import Json, Skill, printable
from mcp_skills_server.rpc import launcher
from mcp_skills_server.rpc.blobs import PREFIX, Blobs
from mcp_skills_server.rpc.messages import MAX_SUMMARY, failed, new_run_id
from mcp_skills_server.runtime.quota import Owner, QuotaError
from mcp_skills_server.runtime.scripts import output_files
from mcp_skills_server.runtime.scripts.launch import NOT_STARTED
from mcp_skills_server.runtime.scripts.outcome import OURS, Outcome
from mcp_skills_server.runtime.scripts.policy import RunRefusedError
from mcp_skills_server.runtime.scripts.runner import Scripts

BLOBS_OUT: Final = "output_blobs"
"""The folder of the work directory whose files become blobs after the run."""
BLOBS_IN: Final = "blobs"
"""The folder of the work directory with input blobs, named without `blob:`."""
MAX_INPUT_BLOBS: Final = 64
MAX_OUTPUT_BLOBS: Final = 64
MAX_MOUNTED: Final = 16
_TIDYING_S: Final = 20.0
_LEFT_OUT: Final = f"\nmcp-skills-server: there are more files in {BLOBS_OUT} than are kept\n"
_LAUNCHER: Final = ".launcher.py"
_PYTHON: Final = ("python", "python3", "py")
_EXTENSIONS: Final = {
    **dict.fromkeys(_PYTHON, ".py"),
    "javascript": ".js",
    "node": ".js",
    "typescript": ".ts",
    "shell": ".sh",
    "ruby": ".rb",
    "perl": ".pl",
    "powershell": ".ps1",
}
"""File extensions by language, where the name is not the extension."""
_REFUSED: Final = {"grant": DISABLED, "source": "not_run", "secret": "secret_missing"}
"""The error kind by the missing condition, `RunRefusedError.by`."""
_LONGEST_MS: Final = 10**12
"""A limit in milliseconds above all allowed ones that a float can hold."""
_EXTENSION: Final = re.compile(r"[a-z0-9]{1,16}", re.ASCII)
MAX_RESULT: Final = 1 << 20
"""The maximum JSON size of a function's result, in bytes."""
_MAX_LOGS: Final = 4000
_NODE: Final = "Node.js v"


@dataclass(frozen=True, slots=True)
class _Task:
    """A prepared run.

    Attributes:
        start: `Scripts.run` bound to the file to run.
        title: its name in the summary.
        args: its arguments.
        blobs: ids of its input blobs.
        function: the function to call; None to run a program.
        owner: the owner charged for the run and its output blobs.
    """

    start: Callable[..., Awaitable[Outcome]]
    title: str
    args: Mapping[str, Json]
    blobs: tuple[str, ...]
    function: str | None
    timeout_ms: int | None
    owner: Owner
    permissions: Permissions | None


class Executor:
    """Executor of actions and code for one server, on one event loop."""

    def __init__(self, scripts: Scripts, blobs: Blobs) -> None:
        self._scripts = scripts
        self._blobs = blobs

    async def run(
        self,
        manifest: Manifest,
        skill: Skill,
        request: Execution,
        owner: Owner = None,
        *,
        permissions: Permissions | None = None,
    ) -> Run:
        """Run a skill's entry point to its end; failures of the run are in the result.

        The run is charged to `owner`. `permissions` are the caller's; None if only options decide.

        Raises:
            QuotaError: the owner has too many runs.
            RequestError: an input blob is unknown.
            OSError: a file of the skill changed and nothing was started; rescan the skill and
                retry.
        """
        entry, language, export = (
            manifest.runtime.get(name) for name in ("entrypoint", "language", "export")
        )
        if manifest.fields["kind"] != ACTION or not isinstance(entry, str):
            return failed(
                "not_executable", f"{manifest.name} is no action with an entry point; read it"
            )
        if entry not in skill.files:
            return failed(
                "not_executable",
                f"the entry point {printable(entry[:200])} is no file of the skill",
            )
        python = entry.endswith(".py") and language in (None, *_PYTHON)
        if export is not None and not (python and isinstance(export, str)):
            message = (
                "only exports of Python entry points can be called here; others are run as "
                "programs, without export"
            )
            return failed("unsupported_runtime", message)

        start = partial(
            self._scripts.run, skill, entry, directory=manifest.name, needs=manifest.secrets
        )
        named = (request.args.get(name) for name in manifest.blob_inputs)
        blobs = (*request.input_blobs, *(each for each in named if isinstance(each, str)))
        task = _Task(
            start,
            manifest.name,
            request.args,
            blobs,
            export,
            request.timeout_ms,
            owner,
            permissions,
        )
        return await self._perform(task)

    async def run_code(
        self,
        request: CodeExecution,
        skills: Mapping[str, Skill],
        owner: Owner = None,
        *,
        permissions: Permissions | None = None,
    ) -> Run:
        """Run code from the call, with skills mounted by name; otherwise like `run`.

        Raises:
            RequestError: an input blob is unknown, or there are too many skills.
        """
        extension = _EXTENSIONS.get(request.language, f".{request.language}")
        if not _EXTENSION.fullmatch(extension[1:]) or extension not in self._scripts.extensions:
            known = ", ".join(_languages(self._scripts.extensions))
            message = (
                f"the language {printable(request.language[:100])!r} is not run here; there "
                f"are {known}"
            )
            return failed("unsupported_runtime", message)
        if request.entrypoint is not None and not (
            extension == ".py" and request.entrypoint.isidentifier()
        ):
            message = (
                "entrypoint is the name of a Python function to call; leave it out to run the "
                "code as a program"
            )
            return failed("unsupported_runtime", message)
        if len(skills) > MAX_MOUNTED:
            raise RequestError(f"at most {MAX_MOUNTED} skills are mounted for a run")
        name = f"main{extension}"

        start = partial(self._scripts.run, None, name, skills=skills)
        blobs, function, code = (
            request.input_blobs,
            request.entrypoint,
            request.code.encode("utf-8", "replace"),
        )
        task = _Task(
            start, "the code", request.args, blobs, function, request.timeout_ms, owner, permissions
        )
        return await self._perform(task, {name: code})

    async def _perform(self, task: _Task, code: Mapping[str, bytes] | None = None) -> Run:
        """Run a task in a temporary work directory, and collect its result and output blobs."""
        wanted = dict.fromkeys(task.blobs)
        if len(wanted) > MAX_INPUT_BLOBS:
            raise RequestError(f"at most {MAX_INPUT_BLOBS} blobs are handed to a run")
        files = {
            BLOBS_IN + "/" + name.removeprefix(PREFIX): self._blobs.get(name).raw for name in wanted
        }
        try:
            files |= {launcher.ARGS: jsonrpc.dump(task.args), **(code or {})}
        except RecursionError:
            raise RequestError("args is nested too deeply") from None
        start = task.start
        if task.function is not None:
            start = partial(start, args=(task.function,), launcher=_LAUNCHER)
        workspace = self._scripts.workspace()
        try:
            outcome = await start(
                workspace=workspace,
                timeout_s=_seconds(task.timeout_ms),
                fill=partial(_fill, files, task.function is not None),
                owner=task.owner,
                permissions=task.permissions,
            )
            harvest = await to_thread.run_sync(
                _harvest, workspace.path, self._blobs.limit(task.owner)
            )
        except QuotaError:
            raise
        except RunRefusedError as error:
            return failed(_REFUSED[error.by], str(error))
        except RequestError as error:
            return failed("not_run", str(error))
        finally:
            with anyio.move_on_after(_TIDYING_S, shield=True):
                await to_thread.run_sync(workspace.close, abandon_on_cancel=True)
        blobs: list[str] = []
        is_whole = harvest.is_whole
        try:
            for name, raw in harvest.files.items():
                blobs.append(
                    self._blobs.add(raw, media.media_type(name) or "text/plain", task.owner)
                )
        except QuotaError:
            is_whole = False
        remark = ""
        if not is_whole:
            remark = _LEFT_OUT
        return ended(
            task.title,
            outcome,
            harvest.result,
            tuple(blobs),
            called=task.function is not None,
            remark=remark,
        )


def _seconds(timeout_ms: int | None) -> float | None:
    if timeout_ms is None:
        return None
    return min(timeout_ms, _LONGEST_MS) / 1000


def _languages(extensions: Iterable[str]) -> list[str]:
    """Return the languages of these extensions, or the bare extension without a language."""
    names = {name for name, extension in _EXTENSIONS.items() if extension in extensions}
    return sorted(names | {each[1:] for each in extensions if each not in _EXTENSIONS.values()})


# The work directory


def _fill(files: Mapping[str, bytes], called: bool, work: str) -> None:
    """Write the run's input files, and the launcher if a function is called."""
    if called:
        shutil.copyfile(launcher.__file__, os.path.join(work, _LAUNCHER))
    for directory in (BLOBS_IN, BLOBS_OUT):
        os.mkdir(os.path.join(work, directory), 0o700)
    for name, raw in files.items():
        with open(os.path.join(work, *name.split("/")), "xb") as file:
            file.write(raw)


class _Harvest(NamedTuple):
    """The output of a run: its result, output blob files, and whether those are complete."""

    result: bytes | None
    files: Mapping[str, bytes]
    is_whole: bool


def _harvest(work: str, most: int) -> _Harvest:
    """Read the output of a run from its work directory, whose files are untrusted."""
    directory = output_files.open_directory(work)
    if directory is None:
        return _Harvest(None, {}, True)
    with directory:
        result = directory.read(launcher.RESULT, MAX_RESULT)
        files: dict[str, bytes] = {}
        inner = directory.open_subdirectory(BLOBS_OUT)
        if inner is None:
            return _Harvest(result, files, True)
        with inner:
            names = sorted(inner.names(MAX_OUTPUT_BLOBS * 4))
            for name in names:
                if len(files) == MAX_OUTPUT_BLOBS:
                    break
                raw = inner.read(name, most)
                if raw is not None:
                    files[name] = raw
                    most -= len(raw)
        return _Harvest(result, files, len(files) == len(names))


def ended(
    title: str,
    outcome: Outcome,
    result: bytes | None,
    blobs: tuple[str, ...],
    *,
    called: bool,
    remark: str,
) -> Run:
    """Convert a script's outcome into a Run.

    Args:
        title: the name of the run in the summary.
        outcome: of the script.
        result: the JSON written by the launcher, or None.
        blobs: ids of the output blobs.
        called: True for a function; False for a program, whose output is printed.
        remark: text to append to the log.
    """
    logs = outcome.stderr + remark
    if called:
        logs = outcome.stdout + logs
        output, error = _returned(result)
    else:
        output, error = _printed(outcome), None
    last = _reason(outcome.stderr, ours=outcome.exit_code in {None, NOT_STARTED})
    if outcome.timed_out:
        error = ("timeout", "the run was ended after its time limit")
    elif outcome.exit_code == NOT_STARTED and not (called and result is not None):
        error = ("not_started", last or "it could not be started")
    elif outcome.exit_code != 0 and error is None:
        how = f"ended with exit code {outcome.exit_code}"
        if outcome.exit_code is None:
            how = "was ended"
        error = ("execution_failed", last or f"{title} {how}")
    elif called and error is None and result is None:
        error = (
            "execution_failed",
            f"it ended without a result, or with one of more than {MAX_RESULT:,} bytes",
        )
    elif not called and outcome.stdout_truncated:
        error = (
            "output_too_long",
            f"it printed more than is kept; leave large output as files in {BLOBS_OUT}",
        )
    summary = f"{title} completed in {outcome.duration_ms} ms."
    if error is not None:
        summary, output = " ".join(error[1].split())[:MAX_SUMMARY] or error[0], None
    return Run(new_run_id(), summary, output, blobs, logs[-_MAX_LOGS:], error)


def _returned(result: bytes | None) -> tuple[Json, tuple[str, str] | None]:
    """Decode the launcher's JSON into output and error."""
    if result is None:
        return None, None
    try:
        report = jsonrpc.parse(result)
        if isinstance(report, dict):
            fields = cast(dict[str, Any], report)
            error = fields.get("error")
            if isinstance(error, dict):
                of = cast(dict[str, Any], error)
                return None, (str(of.get("type"))[:MAX_SUMMARY], str(of.get("message"))[:_MAX_LOGS])
            if "output" in fields:
                return cast(Json, fields["output"]), None
    except jsonrpc.JsonError:
        pass
    return None, ("execution_failed", "what the entry point left as its result cannot be read")


def _printed(outcome: Outcome) -> Json:
    """Return a program's output: decoded JSON if possible, else text."""
    try:
        return cast(Json, jsonrpc.parse(outcome.stdout.encode("utf-8", "replace")))
    except jsonrpc.JsonError:
        return outcome.stdout


def _reason(stderr: str, *, ours: bool) -> str:
    """Return the failure reason: the last unindented line of stderr, except Node's version."""
    lines = stderr.splitlines()
    if not ours:  # our own advice is not the program's error
        lines = [line for line in lines if not line.startswith(OURS)]
    lines = [line.rstrip() for line in lines if line.strip() and not line.startswith(_NODE)]
    plain = [line for line in lines if not line[0].isspace()]
    return next(reversed(plain or lines), "").strip()[:_MAX_LOGS]
