"""Runs actions and code with what runs scripts: the same sandbox, limits and turns.

Each run has a work directory of its own, which is gone with its end. What runs is a file of a
skill, found by exact look-up, or code that came with the call and is written into the work
directory; arguments and blobs are files beside it. What the run leaves there is read as something
that an enemy made: no link is followed, and nothing without a bound is read.
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
"""Where, in the work directory, a run leaves files that are to become blobs."""
BLOBS_IN: Final = "blobs"
"""Where, in the work directory, the input blobs lie: each under its name without `blob:`."""
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
"""Languages whose name is not their extension."""
_REFUSED: Final = {"grant": DISABLED, "source": "not_run", "secret": "secret_missing"}
"""By what is missing, the kind of the error."""
_LONGEST_MS: Final = 10**12
"""More than is ever allowed, and still a number of floating point."""
_EXTENSION: Final = re.compile(r"[a-z0-9]{1,16}", re.ASCII)
MAX_RESULT: Final = 1 << 20
"""Bytes of the JSON that a function may return."""
_MAX_LOGS: Final = 4000
_NODE: Final = "Node.js v"


@dataclass(frozen=True, slots=True)
class _Task:
    """A run that has not begun.

    Attributes:
        start: `Scripts.run` with what is to run.
        title: what the summary calls it.
        args: what it is given.
        blobs: identifiers of the blobs that it may read.
        function: what to call in it; None runs it as a program.
        owner: among whose runs it counts, and among whose blobs those that it leaves.
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
    """Runs actions and code for one server, on one event loop."""

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
        """Run the entry point of a skill and wait for its end; what goes wrong with it is in the
        result.

        It counts among the runs of `owner`. `permissions` are those of the caller; None where the
        options alone decide.

        Raises:
            QuotaError: the owner runs too much already.
            RequestError: an input blob is unknown.
            OSError: a file of the skill changed; scan it again and call again. Nothing was started.
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
        """Run code that came with the call, with some skills mounted by name; the rest is as for
        `run`.

        Raises:
            RequestError: an input blob is unknown, or too many skills are to be mounted.
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
        """Run in a work directory that is filled when its turn comes, and take out what is left."""
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
    """Return what may be asked for, of these extensions: names, and extensions that have none."""
    names = {name for name, extension in _EXTENSIONS.items() if extension in extensions}
    return sorted(names | {each[1:] for each in extensions if each not in _EXTENSIONS.values()})


# The work directory


def _fill(files: Mapping[str, bytes], called: bool, work: str) -> None:
    """Write the input files of the run, before any script writes here; with the launcher if a
    function is called."""
    if called:
        shutil.copyfile(launcher.__file__, os.path.join(work, _LAUNCHER))
    for directory in (BLOBS_IN, BLOBS_OUT):
        os.mkdir(os.path.join(work, directory), 0o700)
    for name, raw in files.items():
        with open(os.path.join(work, *name.split("/")), "xb") as file:
            file.write(raw)


class _Harvest(NamedTuple):
    """The output of a run: its result, the files that become blobs, and whether those are all."""

    result: bytes | None
    files: Mapping[str, bytes]
    is_whole: bool


def _harvest(work: str, most: int) -> _Harvest:
    """Read the output of a run from its work directory, whose content is untrusted."""
    directory = output_files.open_directory(work)
    if directory is None:
        return _Harvest(None, {}, True)
    with directory:
        result = directory.take(launcher.RESULT, MAX_RESULT)
        files: dict[str, bytes] = {}
        inner = directory.inner(BLOBS_OUT)
        if inner is None:
            return _Harvest(result, files, True)
        with inner:
            names = sorted(inner.names(MAX_OUTPUT_BLOBS * 4))
            for name in names:
                if len(files) == MAX_OUTPUT_BLOBS:
                    break
                raw = inner.take(name, most)
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
    """Return a run that has ended, well or not, a function that was `called` or a program that
    printed its output.

    `result` is what the launcher wrote down, if it did; `remark` is appended to the log.
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
    """Return the output that the launcher wrote down, and the error."""
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
    """Return what a program printed: JSON if it is JSON, else text."""
    try:
        return cast(Json, jsonrpc.parse(outcome.stdout.encode("utf-8", "replace")))
    except jsonrpc.JsonError:
        return outcome.stdout


def _reason(stderr: str, *, ours: bool) -> str:
    """The line that says why: the last one that is neither indented, as in a stack of calls, nor
    Node's last line."""
    lines = stderr.splitlines()
    if not ours:  # advice is no reason
        lines = [line for line in lines if not line.startswith(OURS)]
    lines = [line.rstrip() for line in lines if line.strip() and not line.startswith(_NODE)]
    plain = [line for line in lines if not line[0].isspace()]
    return next(reversed(plain or lines), "").strip()[:_MAX_LOGS]
